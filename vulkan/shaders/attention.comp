#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Attention of one query head of up to ROWS rows over stored rows, softmax in one pass over tiles of
// KEYS stored rows for each thread (at most 128 in all). A workgroup has a head of a tile of rows. A thread
// has the scores of its keys for all rows, then the sums of up to four elements of the outputs.
layout(constant_id = 1) const uint K_CODEC = 1;
layout(constant_id = 2) const uint V_CODEC = 1;
layout(constant_id = 3) const uint ROTATED = 0;  // of values, which are rotated back
layout(constant_id = 4) const uint WINDOW = 0;
layout(constant_id = 5) const uint GATED = 0;
layout(constant_id = 6) const uint ROWS = 1;
layout(constant_id = 7) const uint DIM = 128;
layout(constant_id = 8) const uint KEYS = 1;
layout(constant_id = 9) const uint BY_HEAD = 0;
shared float head[ROWS * DIM];
shared float query[ROWS * DIM];
const uint kMostKeys = 128;  // of a tile
const float kUnseen = -3.0e38;
shared float shares[ROWS * kMostKeys];
shared uint64_t value_names[kMostKeys], values_at[kMostKeys];
shared uint values_left[kMostKeys];
const uint kTile = KEYS * gl_WorkGroupSize.x, kEach = DIM / gl_WorkGroupSize.x,
           kElements = kEach < 1 ? 1 : kEach < 4 ? kEach : 4;
#include "rotation.glsl"
#include "kv_rows.glsl"
#include "head_rows.glsl"
float scores[ROWS * KEYS], sums[ROWS * kElements];  // of a row one after the other
Stored keys[KEYS];
void add_products(uint d, uint width, uint element) {
  float x[KEYS];
  for (uint i = 0; i < KEYS; ++i) x[i] = stored_at(p.pages, keys[i], K_CODEC, width, element);
  for (uint k = 0; k < ROWS; ++k) {
    const float q = query[k * DIM + d];
    for (uint i = 0; i < KEYS; ++i) scores[k * KEYS + i] += q * x[i];
  }
}
// Elements d, d + threads() and so on of value t of the tile, as far as a head has them.
void add_values(uint t, uint d, uint width, uint from) {
  Stored value;
  value.name = value_names[t];
  value.at = values_at[t];
  value.left = values_left[t];
  float x[kElements];
  for (uint i = 0; i < kElements; ++i) {
    const uint e = d + i * threads();
    x[i] = e < DIM ? stored_at(p.pages, value, V_CODEC, width, from + e) : 0.0;
  }
  for (uint k = 0; k < ROWS; ++k) {
    const float share = shares[k * kMostKeys + t];
    for (uint i = 0; i < kElements; ++i) sums[k * kElements + i] += share * x[i];
  }
}
// Rows r to r + n - 1, which follow each other in their sequence.
void attend(BatchRow row, uint r, uint n, uint h) {
  const Sequence seq = Sequences(p.sequences).v[row.sequence];
  Group g = Groups(p.groups).v[row.sequence * p.n_groups + p.group];
  const HeadView own = view_head(g, h / (p.n_heads / p.n_kv_heads));
  const uint from = own.from, width = own.width;
  // What the first row sees; row k sees k more, and in a window leaves out as many.
  const uint64_t last = WINDOW != 0 ? row.position : uint64_t(g.n_slots + row.index);
  uint64_t least = 0;
  if ((seq.flags & kNoContext) != 0) least = WINDOW != 0 ? seq.position : uint64_t(g.n_slots);
  float tops[ROWS], totals[ROWS], fades[ROWS];
  for (uint k = 0; k < ROWS; ++k) {
    tops[k] = !HAS(sinks, 8) ? kUnseen : F32(p.sinks).v[h];  // a score without a value
    totals[k] = !HAS(sinks, 8) ? 0.0 : 1.0;
  }
  for (uint i = me(); i < n * DIM; i += threads()) {
    query[i] = F32(p.q).v[((r + i / DIM) * p.n_heads + h) * DIM + i % DIM];
    head[i] = 0.0;
  }
  barrier();
  const uint64_t first = WINDOW != 0 && last + 1 > WINDOW ? max(least, last + 1 - WINDOW) : least;
  const uint64_t end = last + n;
  // Tiles begin at multiples of their size, so that a row's sums do not depend on those beside it. Keys that
  // no row sees are others', and have no share.
  for (uint64_t tile = first / kTile * kTile; tile < end; tile += kTile) {
    for (uint i = 0; i < ROWS * KEYS; ++i) scores[i] = 0.0;
    for (uint i = 0; i < KEYS; ++i) {
      const uint t = i * threads() + me();
      const uint64_t at = clamp(tile + t, first, end - 1);
      const Stored value = stored(p.pages, row_address(own, seq, g, at, true));
      keys[i] = stored(p.pages, row_address(own, seq, g, at, false));
      value_names[t] = value.name;
      values_at[t] = value.at;
      values_left[t] = value.left;
    }
    for (uint d0 = 0; d0 < DIM; d0 += 16) {
      SIXTEEN(d, DIM, d0, add_products(d, width, from + d);)
    }
    for (uint k = 0; k < ROWS; ++k) {
      if (k >= n) break;
      float most = kUnseen, all = 0.0;
      for (uint i = 0; i < KEYS; ++i) {
        const uint64_t at = tile + i * threads() + me();
        const bool seen = at >= least && at <= last + k && (WINDOW == 0 || at + WINDOW > last + k);
        scores[k * KEYS + i] = seen ? scores[k * KEYS + i] * p.scale : kUnseen;
        most = max(most, scores[k * KEYS + i]);
      }
      most = max(tops[k], max_all(most));
      for (uint i = 0; i < KEYS; ++i) {
        // What is no number has a share that is none.
        const float score = scores[k * KEYS + i], share = score == kUnseen ? 0.0 : exp(score - most);
        shares[k * kMostKeys + i * threads() + me()] = share;
        all += share;
      }
      fades[k] = exp(tops[k] - most);
      totals[k] = totals[k] * fades[k] + sum_all(all);
      tops[k] = most;
    }
    barrier();
    const uint begin = tile < first ? uint(first - tile) : 0;
    const uint count = uint(min(uint64_t(kTile), end - tile));
    for (uint d = me(); d < DIM; d += kElements * threads()) {
      for (uint k = 0; k < ROWS; ++k) {
        for (uint i = 0; i < kElements; ++i) {
          const uint e = d + i * threads();
          sums[k * kElements + i] = k < n && e < DIM ? head[k * DIM + e] * fades[k] : 0.0;
        }
      }
      for (uint t0 = begin / 16 * 16; t0 < count; t0 += 16) {
        SIXTEEN(t, kTile, t0, add_values(t, d, width, from);)
      }
      for (uint k = 0; k < ROWS; ++k) {
        for (uint i = 0; i < kElements; ++i) {
          const uint e = d + i * threads();
          if (k < n && e < DIM) head[k * DIM + e] = sums[k * kElements + i];
        }
      }
    }
    barrier();
  }
  for (uint k = 0; k < ROWS; ++k) {
    for (uint d = me(); k < n && d < DIM; d += threads()) head[k * DIM + d] /= totals[k];
  }
  barrier();
  unrotate_head(n * DIM, ROTATED);
  for (uint i = me(); i < n * DIM; i += threads()) {
    const uint at = r + i / DIM, d = i % DIM;
    float o = head[i];
    if (GATED != 0) o *= sigmoid(F32(p.gate).v[at * p.gate_stride + (2 * h + 1) * DIM + d]);
    F32(p.y).v[(at * p.n_heads + h) * DIM + d] = o;
  }
  barrier();
}
void main() {
  const uint tile = item() / p.n_heads * ROWS, h = item() % p.n_heads;
  if (tile >= p.n_rows) return;
  const uint end = min(tile + ROWS, p.n_rows);
  for (uint r = tile; r < end;) {
    const BatchRow row = Rows(p.rows).v[r];
    uint n = 1;
    while (r + n < end && Rows(p.rows).v[r + n].sequence == row.sequence) ++n;
    if (row.sequence != kNoSequence) attend(row, r, n, h);
    r += n;
  }
}
