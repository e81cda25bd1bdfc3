#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// What a recurrent mixer's convolution has to remember of a sequence's rows, and of drafted ones all that replays them:
// the rows that it reads, and alpha and beta (0: none) of each head. A workgroup has a sequence and as many channels as
// threads.
layout(constant_id = 1) const uint REPLAY = 0;
layout(constant_id = 2) const uint TAPS = 4;
layout(push_constant) uniform P {
  uint64_t sequences, x, alpha, beta;
  uint n_sequences, conv_dim, n_heads, conv_offset, plane_x, plane_alpha, plane_beta;
} p;
void main() {
  const uint parts = (p.conv_dim + threads() - 1) / threads();
  const uint s = item() / parts, c = item() % parts * threads() + me();
  if (s >= p.n_sequences || c >= p.conv_dim) return;
  const Sequence seq = Sequences(p.sequences).v[s];
  const uint n = REPLAY != 0 ? seq.n_pending : seq.n_rows;
  if (seq.state_in == 0 || n == 0) return;
  const uint64_t x = REPLAY != 0 ? seq.kept + uint64_t(p.plane_x) * seq.kept_rows * 4
                                 : p.x + uint64_t(seq.first_row) * p.conv_dim * 4;
  if (REPLAY == 0 && (seq.flags & kDrafted) != 0) {
    const uint64_t rows = seq.kept_rows;
    for (uint t = 0; t < n; ++t) {
      F32(seq.keep + p.plane_x * rows * 4).v[t * p.conv_dim + c] = F32(x).v[t * p.conv_dim + c];
      if (c >= p.n_heads) continue;
      const uint64_t at = (uint64_t(seq.first_row) + t) * p.n_heads + c;
      F32(seq.keep + p.plane_alpha * rows * 4).v[t * p.n_heads + c] = F32(p.alpha + at * 4).v[0];
      if (!HAS(beta, 3)) continue;
      F32(seq.keep + p.plane_beta * rows * 4).v[t * p.n_heads + c] = F32(p.beta + at * 4).v[0];
    }
    return;
  }
  const bool replayed = REPLAY == 0 && seq.n_pending != 0;
  F32 from = F32((replayed ? seq.state_out : seq.state_in) + p.conv_offset);
  F32 to = F32(seq.state_out + p.conv_offset);
  float tail[TAPS];
  for (uint i = 0; i + 1 < TAPS; ++i) {
    const uint at = n + i;  // of the old tail followed by the rows
    tail[i] = at < TAPS - 1 ? from.v[at * p.conv_dim + c]
                            : F32(x).v[(at - (TAPS - 1)) * p.conv_dim + c];
  }
  for (uint i = 0; i + 1 < TAPS; ++i) to.v[i * p.conv_dim + c] = tail[i];
}
