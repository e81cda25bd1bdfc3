#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
#extension GL_KHR_shader_subgroup_shuffle : require
// Gated delta net (arXiv 2412.06464): convolution, recurrence and output gate of a value head, row
// by row. A workgroup has a value head of a sequence, PARTS threads every n-th value channel, whose row
// of the state they keep. REPLAY: rows of an earlier pass, to the working state, without outputs.
// A dispatch has up to n_rows rows from row `from` of each sequence on; a later one goes on from state_out.
layout(constant_id = 1) const uint REPLAY = 0;
layout(constant_id = 2) const uint DIM = 128;
layout(constant_id = 3) const uint TAPS = 4;
layout(constant_id = 4) const uint PARTS = 1;  // threads that have a value channel together, in one subgroup
layout(push_constant) uniform P {
  uint64_t sequences, qkv, z, alpha, beta, parameters, y;  // parameters: see below
  uint n_sequences, n_k_heads, n_v_heads, state_offset, conv_offset, plane_qkv, plane_alpha,
      plane_beta;
  float eps;
  uint grouped;  // value heads of one key head follow each other; else key heads recur
  uint from, n_rows;
} p;
// Addresses of the layer's convolution, dt bias, a and norm weights, [4].
shared float q[DIM], k[DIM];
const uint kKept = DIM / PARTS;
float over_parts(float x) {
  for (uint i = 1; i < PARTS; i *= 2) x += subgroupShuffleXor(x, i);
  return x;
}
#include "recurrent.glsl"
void main() {
  const uint s = item() / p.n_v_heads, h = item() % p.n_v_heads;
  if (s >= p.n_sequences) return;
  const Sequence seq = Sequences(p.sequences).v[s];
  if (seq.state_in == 0) return;
  const uint end = min(REPLAY != 0 ? seq.n_pending : seq.n_rows, p.from + p.n_rows);
  if (p.from >= end) return;
  const uint key = p.n_k_heads * DIM, conv_dim = 2 * key + p.n_v_heads * DIM;
  const bool drafted = REPLAY == 0 && (seq.flags & kDrafted) != 0,
             replayed = REPLAY == 0 && seq.n_pending != 0;
  const uint64_t in_state = replayed ? seq.state_out : seq.state_in;
  const uint64_t tail = in_state + p.conv_offset;
  const uint64_t first = REPLAY != 0 ? 0 : seq.first_row;
  const uint64_t x = REPLAY != 0 ? seq.kept + uint64_t(p.plane_qkv) * seq.kept_rows * 4
                                 : p.qkv + first * conv_dim * 4;
  const uint64_t alphas = REPLAY != 0 ? seq.kept + uint64_t(p.plane_alpha) * seq.kept_rows * 4
                                      : p.alpha + first * p.n_v_heads * 4;
  const uint64_t betas = REPLAY != 0 ? seq.kept + uint64_t(p.plane_beta) * seq.kept_rows * 4
                                     : p.beta + first * p.n_v_heads * 4;
  const uint64_t taps = U64(p.parameters).v[0];
  const float dt = F32(U64(p.parameters).v[1]).v[h], a = F32(U64(p.parameters).v[2]).v[h];
  const uint kh = p.grouped != 0 ? h / (p.n_v_heads / p.n_k_heads) : h % p.n_k_heads;
  const uint64_t state_at = p.state_offset + uint64_t(h) * DIM * DIM * 4;
  const uint at = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID, part = at % PARTS;
  for (uint base = 0; base < DIM; base += threads() / PARTS) {
    const uint j = base + at / PARTS;
    const bool mine = j < DIM;
    float state[kKept];
    const uint64_t row = state_at + (uint64_t(j) * DIM + part * kKept) * 4;
    const uint64_t from = (p.from == 0 ? in_state : seq.state_out) + row;
    if (mine && kKept % 4 == 0) {
      FOR_EACH(i, kKept / 4, const vec4 four = F32x4(from).v[i]; state[4 * i] = four.x; state[4 * i + 1] = four.y;
               state[4 * i + 2] = four.z; state[4 * i + 3] = four.w;)
    } else if (mine) {
      for (uint i = 0; i < kKept; ++i) state[i] = F32(from).v[i];
    }
    for (uint t = p.from; t < end; ++t) {
      float qq = 0.0, kk = 0.0;
      barrier();
      for (uint i = me(); i < 2 * DIM; i += threads()) {
        const bool of_key = i >= DIM;
        const uint c = kh * DIM + i % DIM + (of_key ? key : 0);
        const float f = convolved(taps, 0, tail, x, conv_dim, int(t), c);
        if (of_key) {
          k[i - DIM] = f;
          kk += f * f;
        } else {
          q[i] = f;
          qq += f * f;
        }
      }
      const float fq = 1.0 / (max(sqrt(sum_all(qq)), p.eps) * sqrt(float(DIM)));
      const float fk = 1.0 / max(sqrt(sum_all(kk)), p.eps);
      barrier();
      const float decay = exp(a * softplus(F32(alphas).v[t * p.n_v_heads + h] + dt));
      const float beta = sigmoid(F32(betas).v[t * p.n_v_heads + h]);
      if (mine) {
        float sk = 0.0;
        FOR_EACH(i, kKept, sk += state[i] * k[part * kKept + i];)
        sk = over_parts(sk);
        const float v = convolved(taps, 0, tail, x, conv_dim, int(t), 2 * key + h * DIM + j);
        const float d = beta * (v - decay * sk * fk) * fk;
        float o = 0.0;
        FOR_EACH(i, kKept, state[i] = decay * state[i] + d * k[part * kKept + i];
                 o += state[i] * q[part * kKept + i];)
        o = over_parts(o);
        if (REPLAY == 0 && part == 0) F32(p.y + ((first + t) * p.n_v_heads + h) * DIM * 4).v[j] = o * fq;
      }
    }
    if (mine && !drafted) {
      const uint64_t to = seq.state_out + row;
      if (kKept % 4 == 0) {
        FOR_EACH(i, kKept / 4,
                 F32x4(to).v[i] = vec4(state[4 * i], state[4 * i + 1], state[4 * i + 2], state[4 * i + 3]);)
      } else {
        for (uint i = 0; i < kKept; ++i) F32(to).v[i] = state[i];
      }
    }
  }
  if (REPLAY != 0) return;
  memoryBarrierBuffer();
  barrier();
  F32 weight = F32(U64(p.parameters).v[3]);
  for (uint t = p.from; t < end; ++t) {
    const uint64_t row_at = ((first + t) * p.n_v_heads + h) * DIM * 4;
    F32 y = F32(p.y + row_at), z = F32(p.z + row_at);
    float sum = 0.0;
    for (uint i = me(); i < DIM; i += threads()) sum += y.v[i] * y.v[i];
    const float f = 1.0 / sqrt(sum_all(sum) / float(DIM) + p.eps);
    for (uint i = me(); i < DIM; i += threads())
      y.v[i] = y.v[i] * f * weight.v[i] * silu(z.v[i]);
  }
}
