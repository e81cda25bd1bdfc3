#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
#extension GL_KHR_shader_subgroup_shuffle : require
// The sums of shaders/attention_step.comp for stored rows that begin at multiples of 16 bytes. LANES threads of a
// subgroup have four stored rows at a time, each EACH elements of all four, and the HEADS query heads share what is
// unpacked of them. Keys and values are asked for together, and nothing waits for other threads but those of the four
// rows: each such group has its own scores from which parts are taken until the rows are through.
layout(constant_id = 1) const uint K_CODEC = 2;
layout(constant_id = 2) const uint V_CODEC = 2;
layout(constant_id = 3) const uint WINDOW = 0;
layout(constant_id = 4) const uint HEADS = 4;  // at most 8
layout(constant_id = 5) const uint DIM = 128;  // a multiple of 16
layout(constant_id = 6) const uint SHARES = 32;
layout(constant_id = 7) const uint EACH = 16;  // or 8
layout(constant_id = 8) const uint BY_HEAD = 0;
layout(constant_id = 9) const uint LANES = 8;  // a power of two from 4 on, at most the subgroup's
#include "kv_rows.glsl"
#include "head_rows.glsl"
const float kUnseen = -3.0e38, kSlack = 8.0;
const uint kFours = EACH / 4, kTile = 4 * (gl_WorkGroupSize.x / LANES), kMostSubgroups = 64;
// Elements of a thread's that follow each other: what 16 bytes hold, or all. Those of the threads are side by side, so
// that what a subgroup asks for at once is in one piece.
const uint kKeyRun = K_CODEC == kF32Rows ? 4 : K_CODEC == kBf16Rows ? 8 : EACH;
const uint kValueRun = V_CODEC == kF32Rows ? 4 : V_CODEC == kBf16Rows ? 8 : EACH;
shared vec4 query[HEADS * kFours * LANES];  // in the order in which keys are read; in the end sums, as values are
shared float tops_of[HEADS * kMostSubgroups], totals_of[HEADS * kMostSubgroups];
shared float levels[16];  // of q4
vec4 sums[32];            // of a head and a four of elements
// Of a head: what its parts are from on, the same for a group's threads; and the sum of parts of the thread's rows.
float tops[8], totals[8];

// BODY for each i below 4, and below the number of heads; indices of arrays are known when a pipeline is made, so that
// arrays are registers.
#define ROWS(i, BODY)                                        \
  { const uint i = 0; BODY } { const uint i = 1; BODY }      \
  { const uint i = 2; BODY } { const uint i = 3; BODY }
#define FOURS(i, BODY) ROWS(i, if (i < kFours) { BODY })
#define EACH_HEAD(i, BODY) EIGHT(i, 0, if (i < HEADS) { BODY })

// Of a thread, the first element of its j-th four.
uint element(uint run, uint j, uint lane) {
  return (4 * j / run * LANES + lane) * run + 4 * j % run;
}
// Bytes from a stored row's beginning to its element e of n, and to that element's scale.
uint place(uint codec, uint e) {
  return codec == kF32Rows ? 4 * e : codec == kBf16Rows ? 2 * e : codec == kQ8Rows ? e : e / 2;
}
uint place_of_scale(uint codec, uint n, uint e) {
  return (codec == kQ8Rows ? n : n / 2) + e / 32 * 2;
}
// Where a thread's runs of four rows lie, a row's from 4 times its number on, and their scales. Behind a head's end
// it has what is at the head's beginning.
struct Places {
  uint64_t at[16], scales[4];
};
#define RUNS(c, RUN, BODY) ROWS(c, if (c * RUN < EACH) { BODY })
#define OF_RUN(c, RUN, lane) element(RUN, c * RUN / 4, lane)
struct Rows4 {
  HeadView own;
  Sequence seq;
  Group g;
  uint64_t first;   // of the rows that are seen
  uint ring_first;  // its place in a ring
};
uint64_t address(Rows4 rows, uint i, bool value) {
  const uint64_t at = rows.first + i;
  if (WINDOW == 0 || at >= rows.seq.position) return row_address(rows.own, rows.seq, rows.g, at, value);
  const uint slot = rows.ring_first + i;  // a ring has no more rows than it has places
  return slot_address(rows.g.base, slot < rows.g.ring_slots ? slot : slot - rows.g.ring_slots, p.block_stride,
                      value ? p.v_offset : p.k_offset, value ? p.v_row_bytes : p.k_row_bytes);
}
// Of rows i to i + 3, of which `behind` follow the first.
Places places(Rows4 rows, uint i, uint behind, uint lane, bool value) {
  const uint codec = value ? V_CODEC : K_CODEC, run = value ? kValueRun : kKeyRun,
             row_bytes = value ? rows.own.v_row_bytes : rows.own.k_row_bytes, from = rows.own.from,
             of_scale = place_of_scale(codec, rows.own.width, from + (lane * run < DIM ? lane * run : 0));
  uint of_run[4];
  RUNS(c, run, const uint e = OF_RUN(c, run, lane); of_run[c] = place(codec, from + (e < DIM ? e : 0));)
  Places to;
  const uint64_t name = address(rows, i, value);
  const Stored first = stored(p.pages, name);
  if (first.left >= 4 * row_bytes && address(rows, i + min(3, behind), value) == name + min(3, behind) * row_bytes) {
    ROWS(u, const uint64_t row = first.at + min(u, behind) * row_bytes;
         RUNS(c, run, to.at[4 * u + c] = row + of_run[c];)
         to.scales[u] = row + of_scale;)
  } else {
    ROWS(u, const Stored row = stored(p.pages, address(rows, i + min(u, behind), value));
         RUNS(c, run, to.at[4 * u + c] = byte_of(p.pages, row, of_run[c]);)
         to.scales[u] = byte_of(p.pages, row, of_scale);)
  }
  return to;
}
uvec4 load(uint64_t at, uint codec) {
  const uint bytes = codec == kQ8Rows ? EACH : codec == kQ4Rows ? EACH / 2 : 16;
  if (bytes == 16) return U32x4(at).v[0];
  return bytes == 8 ? uvec4(U32x2(at).v[0], 0, 0) : uvec4(U32(at).v[0], 0, 0, 0);
}
// What unpack() leaves out.
float load_scale(uint64_t at, uint codec) {
  if (codec != kQ8Rows && codec != kQ4Rows) return 1.0;
  const float d = half_of(uint(U16(at).v[0]));
  return codec == kQ8Rows ? d / 16777216.0 : d;
}
// The w-th four of what load() brought: of q8_0 in the upper bits of integers, which are floats after one instruction.
vec4 unpack(uvec4 x, uint codec, uint w) {
  if (codec == kF32Rows) return uintBitsToFloat(x);
  if (codec == kBf16Rows) {
    const uvec2 two = w == 0 ? x.xy : x.zw;
    return uintBitsToFloat(uvec4(two.x << 16, two.x & 0xFFFF0000u, two.y << 16, two.y & 0xFFFF0000u));
  }
  if (codec == kQ8Rows) {
    const uint four = w == 0 ? x.x : w == 1 ? x.y : w == 2 ? x.z : x.w;
    return vec4(ivec4(uvec4(four << 24, four << 16, four << 8, four) & 0xFF000000u));
  }
  const uint codes = (w < 2 ? x.x : x.y) >> w % 2 * 16;
  return vec4(levels[codes & 15], levels[codes >> 4 & 15], levels[codes >> 8 & 15], levels[codes >> 12 & 15]);
}
// The j-th fours of four rows, of whose runs a row's are four of `x`: no index depends on the run's length.
#define RUN_OF(x, u, run, j) (run == 4 ? x[4 * u + j] : run == 8 ? x[4 * u + j / 2] : x[4 * u])
#define UNPACKED(x, codec, run, j)                                                                            \
  mat4(unpack(RUN_OF(x, 0, run, j), codec, j % (run / 4)), unpack(RUN_OF(x, 1, run, j), codec, j % (run / 4)), \
       unpack(RUN_OF(x, 2, run, j), codec, j % (run / 4)), unpack(RUN_OF(x, 3, run, j), codec, j % (run / 4)))
// sum + x * weights, and sum + four * x: one instruction a product.
vec4 more(vec4 sum, mat4 x, vec4 weights) {
  ROWS(u, sum = fma(x[u], vec4(weights[u]), sum);)
  return sum;
}
vec4 more(vec4 sum, vec4 four, mat4 x) {
  ROWS(c, sum = fma(vec4(four[c]), vec4(x[0][c], x[1][c], x[2][c], x[3][c]), sum);)
  return sum;
}
// The sum over a group's threads of the one of four rows that is a thread's: the one that its lowest bits number.
float sum_row(vec4 x, uint lane) {
  const bool odd = (lane & 1) != 0, upper = (lane & 2) != 0;
  const vec2 two = (odd ? x.yw : x.xz) + subgroupShuffleXor(odd ? x.xz : x.yw, 1);
  float one = (upper ? two.y : two.x) + subgroupShuffleXor(upper ? two.x : two.y, 2);
  if (LANES > 4) one += subgroupShuffleXor(one, 4);
  if (LANES > 8) one += subgroupShuffleXor(one, 8);
  if (LANES > 16) one += subgroupShuffleXor(one, 16);
  if (LANES > 32) one += subgroupShuffleXor(one, 32);
  return one;
}
float most_of_rows(float x) {
  x = max(x, subgroupShuffleXor(x, 1));
  return max(x, subgroupShuffleXor(x, 2));
}
// Sums are of parts from `tops` on, which follow where a score is far above.
void raise(float scores[8]) {
  float over = 0.0;
  EACH_HEAD(k, over = max(over, scores[k] - tops[k]);)
  if (most_of_rows(over) <= kSlack) return;
  EACH_HEAD(k, const float top = max(most_of_rows(scores[k]), tops[k]);
            const float fade = exp(tops[k] - top);
            tops[k] = top;
            totals[k] *= fade;
            FOURS(j, sums[4 * k + j] *= fade;))
}
void add_rows(Places keys, Places values, uint lane, bool seen) {
  uvec4 key[16], value[16];
  vec4 key_scales, value_scales;
  ROWS(u, RUNS(c, kKeyRun, key[4 * u + c] = load(keys.at[4 * u + c], K_CODEC);)
       key_scales[u] = load_scale(keys.scales[u], K_CODEC);)
  ROWS(u, RUNS(c, kValueRun, value[4 * u + c] = load(values.at[4 * u + c], V_CODEC);)
       value_scales[u] = load_scale(values.scales[u], V_CODEC);)
  vec4 of_rows[8];
  float scores[8];
  EACH_HEAD(k, of_rows[k] = vec4(0.0);)
  FOURS(j, const mat4 x = UNPACKED(key, K_CODEC, kKeyRun, j);
        EACH_HEAD(k, of_rows[k] = more(of_rows[k], query[(k * kFours + j) * LANES + lane], x);))
  EACH_HEAD(k, scores[k] = sum_row(of_rows[k] * key_scales, lane); if (!seen) scores[k] = kUnseen;)
  raise(scores);
  // What is no number has a share that is none.
  const uint beside = gl_SubgroupInvocationID & ~3u;
  EACH_HEAD(k, const float part = scores[k] == kUnseen ? 0.0 : exp(scores[k] - tops[k]);
            totals[k] += part;
            ROWS(u, of_rows[k][u] = subgroupShuffle(part, beside + u) * value_scales[u];))
  FOURS(j, const mat4 x = UNPACKED(value, V_CODEC, kValueRun, j);
        EACH_HEAD(k, sums[4 * k + j] = more(sums[4 * k + j], x, of_rows[k]);))
}
// What the groups of a subgroup have becomes what each of them has.
void join_groups() {
  EACH_HEAD(k, float top = tops[k];
            for (uint apart = LANES; apart < gl_SubgroupSize; apart *= 2)
              top = max(top, subgroupShuffleXor(top, apart));
            const float fade = exp(tops[k] - top);
            tops[k] = top;
            totals[k] *= fade;
            totals[k] += subgroupShuffleXor(totals[k], 1);
            totals[k] += subgroupShuffleXor(totals[k], 2);
            FOURS(j, sums[4 * k + j] *= fade;))
  for (uint apart = LANES; apart < gl_SubgroupSize; apart *= 2) {
    EACH_HEAD(k, totals[k] += subgroupShuffleXor(totals[k], apart);
              FOURS(j, sums[4 * k + j] += subgroupShuffleXor(sums[4 * k + j], apart);))
  }
}
// What the subgroups have, to memory: for each head and share the greatest score, the shares' sum, two of no use, the
// sums.
void join_subgroups(uint r, uint h, uint share, uint lane) {
  EACH_HEAD(k, if (subgroupElect()) {
    tops_of[k * kMostSubgroups + gl_SubgroupID] = tops[k];
    totals_of[k * kMostSubgroups + gl_SubgroupID] = totals[k];
  })
  barrier();
  float all[8];
  EACH_HEAD(k, float top = tops[k];
            FOR_SUBGROUPS(g, top = max(top, tops_of[k * kMostSubgroups + g]);)
            all[k] = top;
            const float fade = exp(tops[k] - top);
            FOURS(j, sums[4 * k + j] *= fade;))
  for (uint g = 0; g < gl_NumSubgroups; ++g) {
    if (gl_SubgroupID == g && gl_SubgroupInvocationID < LANES) {
      EACH_HEAD(k, FOURS(j, const uint at = (k * kFours + j) * LANES + lane;
                         query[at] = g == 0 ? sums[4 * k + j] : query[at] + sums[4 * k + j];))
    }
    barrier();
  }
  EACH_HEAD(k, const uint64_t to = p.y + (uint64_t(r * p.n_heads + h + k) * SHARES + share) * (DIM + 4) * 4;
            if (me() == 0) {
              float total = 0.0;
              FOR_SUBGROUPS(g, total += totals_of[k * kMostSubgroups + g] *
                                        exp(tops_of[k * kMostSubgroups + g] - all[k]);)
              F32x4(to).v[0] = vec4(all[k], total, 0.0, 0.0);
            }
            for (uint i = me(); i < kFours * LANES; i += threads()) {
              const uint e = element(kValueRun, i / LANES, i % LANES);
              if (e < DIM) F32x4(to).v[1 + e / 4] = query[k * kFours * LANES + i];
            })
}
void main() {
  const uint per_row = p.n_heads / HEADS, share = gl_WorkGroupID.z;
  const uint r = item() / per_row, h = item() % per_row * HEADS;
  if (r >= p.n_rows) return;
  const BatchRow row = Rows(p.rows).v[r];
  if (row.sequence == kNoSequence) return;
  const Sequence seq = Sequences(p.sequences).v[row.sequence];
  Group g = Groups(p.groups).v[row.sequence * p.n_groups + p.group];
  const HeadView own = view_head(g, h / (p.n_heads / p.n_kv_heads));
  const uint64_t last = WINDOW != 0 ? row.position : uint64_t(g.n_slots + row.index);
  uint64_t first = 0;
  if ((seq.flags & kNoContext) != 0) first = WINDOW != 0 ? seq.position : uint64_t(g.n_slots);
  if (WINDOW != 0 && last + 1 > WINDOW) first = max(first, last + 1 - WINDOW);
  const uint n = uint(last + 1 - first), tiles = (n + kTile - 1) / kTile, each = (tiles + SHARES - 1) / SHARES,
             begin = share * each * kTile, end = min(n, begin + each * kTile);
  EACH_HEAD(k, tops[k] = kUnseen; totals[k] = 0.0; ROWS(j, sums[4 * k + j] = vec4(0.0);))
  const uint thread = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID, lane = thread % LANES;
  for (uint i = me(); i < HEADS * kFours * LANES; i += threads()) {
    const uint e = element(kKeyRun, i / LANES % kFours, i % LANES), k = i / (kFours * LANES);
    query[i] = e < DIM ? p.scale * F32x4(p.q + uint64_t(r * p.n_heads + h + k) * DIM * 4).v[e / 4] : vec4(0.0);
  }
  if (me() == 0) {
    for (uint i = 0; i < 16; ++i) levels[i] = q4_level(i);
  }
  barrier();
  const Rows4 rows = Rows4(own, seq, g, first, WINDOW != 0 && first < seq.position ? uint(first % g.ring_slots) : 0);
  for (uint tile = begin; tile < end; tile += kTile) {
    const uint at = tile + thread / LANES * 4, from = min(at, (end - 1) / 4 * 4), behind = end - 1 - from;
    const Places keys = places(rows, from, behind, lane, false), values = places(rows, from, behind, lane, true);
    add_rows(keys, values, lane, at + lane % 4 < end);
  }
  join_groups();
  join_subgroups(r, h, share, lane);
}
