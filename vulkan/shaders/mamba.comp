#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
#extension GL_KHR_shader_subgroup_shuffle : require
// Mamba-2 (arXiv 2405.21060): convolution and recurrence of a head, ROWS rows at a time. A workgroup has a head of a
// sequence, PARTS threads every n-th channel, whose row of the state they keep. REPLAY: rows of an earlier pass, to the
// working state, without outputs. A dispatch has up to n_rows rows from row `from` of each sequence on; a later one goes
// on from state_out.
layout(constant_id = 1) const uint REPLAY = 0;
layout(constant_id = 2) const uint STATE = 128;
layout(constant_id = 3) const uint TAPS = 4;
layout(constant_id = 4) const uint PARTS = 1;  // threads that have a channel together, in one subgroup
layout(constant_id = 5) const uint ROWS = 1;
layout(constant_id = 6) const uint BIASED = 0;  // the convolution has a bias
layout(push_constant) uniform P {
  uint64_t sequences, xbc, dt, parameters, y;  // parameters: see below
  uint n_sequences, n_heads, dim, n_groups, state_offset, conv_offset, plane_xbc, plane_dt, from, n_rows;
} p;
// Addresses of the layer's convolution, its bias (0: none), dt bias, a and d, [5].
shared float b[ROWS * STATE], c[ROWS * STATE];
const uint kKept = STATE / PARTS;
float over_parts(float x) {
  for (uint i = 1; i < PARTS; i *= 2) x += subgroupShuffleXor(x, i);
  return x;
}
#include "recurrent.glsl"
void main() {
  const uint s = item() / p.n_heads, h = item() % p.n_heads;
  if (s >= p.n_sequences) return;
  const Sequence seq = Sequences(p.sequences).v[s];
  if (seq.state_in == 0) return;
  const uint end = min(REPLAY != 0 ? seq.n_pending : seq.n_rows, p.from + p.n_rows);
  if (p.from >= end) return;
  const uint inner = p.n_heads * p.dim, group = inner + h / (p.n_heads / p.n_groups) * STATE,
             conv_dim = inner + 2 * p.n_groups * STATE;
  const bool drafted = REPLAY == 0 && (seq.flags & kDrafted) != 0,
             replayed = REPLAY == 0 && seq.n_pending != 0;
  const uint64_t in_state = replayed ? seq.state_out : seq.state_in;
  const uint64_t tail = in_state + p.conv_offset;
  const uint64_t first = REPLAY != 0 ? 0 : seq.first_row;
  const uint64_t x = REPLAY != 0 ? seq.kept + uint64_t(p.plane_xbc) * seq.kept_rows * 4
                                 : p.xbc + first * conv_dim * 4;
  const uint64_t steps = REPLAY != 0 ? seq.kept + uint64_t(p.plane_dt) * seq.kept_rows * 4
                                     : p.dt + first * p.n_heads * 4;
  const uint64_t taps = U64(p.parameters).v[0], bias = BIASED == 0 ? 0 : U64(p.parameters).v[1];
  const float dt_bias = F32(U64(p.parameters).v[2]).v[h], a = F32(U64(p.parameters).v[3]).v[h],
              skip = F32(U64(p.parameters).v[4]).v[h];
  const uint64_t state_at = p.state_offset + uint64_t(h) * p.dim * STATE * 4;
  const uint at = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID, part = at % PARTS;
  for (uint base = 0; base < p.dim; base += threads() / PARTS) {
    const uint j = base + at / PARTS;
    const bool mine = j < p.dim;
    float state[kKept];
    const uint64_t row = state_at + (uint64_t(j) * STATE + part * kKept) * 4;
    const uint64_t from = (p.from == 0 ? in_state : seq.state_out) + row;
    if (mine && kKept % 4 == 0) {
      FOR_EACH(i, kKept / 4, const vec4 four = F32x4(from).v[i]; state[4 * i] = four.x; state[4 * i + 1] = four.y;
               state[4 * i + 2] = four.z; state[4 * i + 3] = four.w;)
    } else if (mine) {
      for (uint i = 0; i < kKept; ++i) state[i] = F32(from).v[i];
    }
    for (uint t0 = p.from; t0 < end; t0 += ROWS) {
      const uint n = min(ROWS, end - t0);
      barrier();
      for (uint i = me(); i < n * STATE; i += threads()) {
        const uint channel = group + i % STATE;
        const int t = int(t0 + i / STATE);
        b[i] = convolved(taps, bias, tail, x, conv_dim, t, channel);
        c[i] = convolved(taps, bias, tail, x, conv_dim, t, channel + p.n_groups * STATE);
      }
      barrier();
      for (uint r = 0; r < n; ++r) {
        const uint t = t0 + r;
        const float dt = softplus(F32(steps).v[t * p.n_heads + h] + dt_bias), decay = exp(a * dt);
        const float value = mine ? convolved(taps, bias, tail, x, conv_dim, int(t), h * p.dim + j) : 0.0, added = dt * value;
        float o = 0.0;
        if (mine) {
          FOR_EACH(i, kKept, state[i] = decay * state[i] + added * b[r * STATE + part * kKept + i];
                   o += state[i] * c[r * STATE + part * kKept + i];)
        }
        o = over_parts(o);
        if (REPLAY == 0 && mine && part == 0) F32(p.y + ((first + t) * p.n_heads + h) * p.dim * 4).v[j] = o + skip * value;
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
}
