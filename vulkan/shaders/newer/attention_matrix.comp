#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require
#pragma use_vulkan_memory_model
#include "../common.glsl"
#include "../memory.glsl"
// Attention of many rows, softmax in one pass over tiles of 32 stored rows (arXiv 2307.08691), by cooperative matrices.
// Eight subgroups of 32 threads have 128 / SPLIT queries: HEADS query heads, which share a KV head, of each row. SPLIT
// subgroups have sixteen of the queries together: each a part of the scores and a part of the outputs' elements.
layout(constant_id = 1) const uint K_CODEC = 2;
layout(constant_id = 2) const uint V_CODEC = 2;
layout(constant_id = 3) const uint WINDOW = 0;
layout(constant_id = 4) const uint GATED = 0;
layout(constant_id = 5) const uint DIM = 128;
layout(constant_id = 6) const uint SPLIT = 1;  // 1, 2, 4: of heads up to 128, 256, 512
layout(constant_id = 7) const uint HEADS = 4;
#include "../kv_rows.glsl"
layout(buffer_reference, std430, buffer_reference_align = 8) buffer F16x4 { f16vec4 v[]; };
const uint kThreads = 256, kKeys = 32, kTiles = 8 / SPLIT, kQueries = 16 * kTiles, kRows = kQueries / HEADS;
const uint kFours = DIM / 4, kStride = kFours + 2;  // in fours of halves
const uint kScoreDeep = SPLIT == 4 ? DIM / 32 : DIM / 16, kPartials = SPLIT == 4 ? 2 : 1;
const uint kOutputs = DIM / 16 / SPLIT, kEach = kKeys * kFours / kThreads;
const float kUnseen = -3.0e38;
#define ROWS_OF_A coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define ROWS_OF_B coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define SUM coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
shared f16vec4 stored_rows[kKeys * kStride];          // keys of a tile, then its values
shared float scores[kTiles * kPartials * 16 * kKeys];  // at last outputs, 256 for each subgroup
shared float16_t shares[kTiles * 16 * kKeys];
shared float fades[kTiles * 16];
shared uint64_t names[2][2 * kKeys], places[2][2 * kKeys];  // keys, then values, of this tile and of the next
shared uint lefts[2][2 * kKeys], parted[2];
f16vec4 fetched[kEach];
// Where the tile's rows lie, by the first 64 threads.
void find_rows(Sequence seq, Group g, uint64_t tile, uint64_t last_key, uint turn) {
  if (me() >= 2 * kKeys) return;
  const bool value = me() >= kKeys;
  const uint64_t at = min(tile + me() % kKeys, last_key);
  const Stored s = stored(p.pages, row_address(seq, g, at, value));
  names[turn][me()] = s.name;
  places[turn][me()] = s.at;
  lefts[turn][me()] = s.left;
  if (s.left < (value ? p.v_row_bytes : p.k_row_bytes)) parted[turn] = 1;
}
void fetch(uint turn, bool value, uint from, uint width) {
  const uint first = value ? kKeys : 0;
  if (parted[turn] == 0) {
    [[unroll]] for (uint n = 0; n < kEach; ++n) {
      const uint i = n * kThreads + me();
      const uint64_t at = places[turn][first + i / kFours];
      fetched[n] = f16vec4(four_of(at, value ? V_CODEC : K_CODEC, width, from + i % kFours * 4));
    }
    return;
  }
  [[unroll]] for (uint n = 0; n < kEach; ++n) {
    const uint i = n * kThreads + me(), key = first + i / kFours;
    Stored s;
    s.name = names[turn][key];
    s.at = places[turn][key];
    s.left = lefts[turn][key];
    fetched[n] = f16vec4(four_at(p.pages, s, value ? V_CODEC : K_CODEC, width, from + i % kFours * 4));
  }
}
void put_fetched() {
  [[unroll]] for (uint n = 0; n < kEach; ++n) {
    const uint i = n * kThreads + me();
    stored_rows[i / kFours * kStride + i % kFours] = fetched[n];
  }
}
// Rows r to r + n - 1, which follow each other in their sequence.
void attend(BatchRow row, uint r, uint n, uint h) {
  const Sequence seq = Sequences(p.sequences).v[row.sequence];
  const Group g = Groups(p.groups).v[row.sequence * p.n_groups + p.group];
  const uint from = h / (p.n_heads / p.n_kv_heads) * DIM, width = p.n_kv_heads * DIM;
  const uint64_t last = WINDOW != 0 ? row.position : uint64_t(g.n_slots + row.index);
  uint64_t least = 0;
  if ((seq.flags & kNoContext) != 0) least = WINDOW != 0 ? seq.position : uint64_t(g.n_slots);
  const uint64_t first = WINDOW != 0 && last + 1 > WINDOW ? max(least, last + 1 - WINDOW) : least, end = last + n;
  const uint subgroup = me() / 32, lane = me() % 32, tile = subgroup / SPLIT, part = subgroup % SPLIT;
  const uint key_tile = SPLIT == 1 ? 0 : part % 2, partial = SPLIT == 4 ? part / 2 : 0;
  // The softmax of query lane / 2 of the subgroup's sixteen, of every second sixteen keys.
  const uint mine = tile * 16 + lane / 2, my_row = mine / HEADS, my_head = h + mine % HEADS;
  float top = !HAS(sinks, 8) ? kUnseen : F32(p.sinks).v[my_head], total = !HAS(sinks, 8) ? 0.0 : 1.0;
  const float my_scale =
      p.scale * F32(p.q + uint64_t(p.n_rows) * p.n_heads * DIM * 2).v[min(r + my_row, p.n_rows - 1)];
  ROWS_OF_A queries[kScoreDeep];
  for (uint q0 = 0; q0 < kQueries; q0 += kKeys) {  // through the room of stored rows, 32 at a time
    barrier();
    for (uint i = me(); i < kKeys * kFours; i += kThreads) {
      const uint e = q0 + i / kFours, at = min(r + e / HEADS, p.n_rows - 1);
      stored_rows[i / kFours * kStride + i % kFours] =
          F16x4(p.q + (uint64_t(at) * p.n_heads + h + e % HEADS) * DIM * 2).v[i % kFours];
    }
    barrier();
    if (tile * 16 >= q0 && tile * 16 < q0 + kKeys) {
      [[unroll]] for (uint d = 0; d < kScoreDeep; ++d)
        coopMatLoad(queries[d], stored_rows, (tile * 16 - q0) * kStride + (partial * kScoreDeep + d) * 4, kStride,
                    gl_CooperativeMatrixLayoutRowMajor);
    }
  }
  SUM outputs[kOutputs];
  [[unroll]] for (uint o = 0; o < kOutputs; ++o) outputs[o] = SUM(0.0);
  if (me() < 2) parted[me()] = 0;
  barrier();
  find_rows(seq, g, first, end - 1, 0);
  barrier();
  fetch(0, false, from, width);
  uint turn = 0;
  for (uint64_t keys = first; keys < end; keys += kKeys, turn = 1 - turn) {
    put_fetched();
    barrier();
    fetch(turn, true, from, width);
    [[unroll]] for (uint c = 0; c < 2; ++c) {
      if (SPLIT != 1 && c != key_tile) continue;
      SUM s = SUM(0.0);
      [[unroll]] for (uint d = 0; d < kScoreDeep; ++d) {
        ROWS_OF_B b;
        coopMatLoad(b, stored_rows, c * 16 * kStride + (partial * kScoreDeep + d) * 4, kStride,
                    gl_CooperativeMatrixLayoutColumnMajor);
        s = coopMatMulAdd(queries[d], b, s);
      }
      coopMatStore(s, scores, (tile * kPartials + partial) * 16 * kKeys + c * 16, kKeys,
                   gl_CooperativeMatrixLayoutRowMajor);
    }
    barrier();
    put_fetched();
    if (me() == 0) parted[turn] = 0;
    find_rows(seq, g, keys + kKeys, end - 1, 1 - turn);
    float mine_of[16], most = top;
    const uint at = tile * kPartials * 16 * kKeys + lane / 2 * kKeys + lane % 2 * 16;
    [[unroll]] for (uint i = 0; i < 16; ++i) {
      const uint64_t key = keys + lane % 2 * 16 + i, sees = last + my_row;
      const bool seen = key >= least && key <= sees && (WINDOW == 0 || key + WINDOW > sees) && my_row < n;
      float s = scores[at + i];
      if (kPartials == 2) s += scores[at + 16 * kKeys + i];
      mine_of[i] = seen ? s * my_scale : kUnseen;
      most = max(most, mine_of[i]);
    }
    most = max(most, subgroupShuffleXor(most, 1));
    float all = 0.0;
    [[unroll]] for (uint i = 0; i < 16; ++i) {
      // What is no number has a share that is none.
      const float share = mine_of[i] == kUnseen ? 0.0 : exp(mine_of[i] - most);
      all += share;
      if (part == 0) shares[mine * kKeys + lane % 2 * 16 + i] = float16_t(share);
    }
    const float fade = exp(top - most);
    total = total * fade + all + subgroupShuffleXor(all, 1);
    top = most;
    if (part == 0 && lane % 2 == 0) fades[mine] = fade;
    barrier();
    if (keys + kKeys < end) fetch(1 - turn, false, from, width);
    SUM f;
    coopMatLoad(f, fades, tile * 16, 0, gl_CooperativeMatrixLayoutColumnMajor);
    [[unroll]] for (uint o = 0; o < kOutputs; ++o) outputs[o] = outputs[o] * f;
    [[unroll]] for (uint c = 0; c < 2; ++c) {
      ROWS_OF_A a;
      coopMatLoad(a, shares, tile * 16 * kKeys + c * 16, kKeys, gl_CooperativeMatrixLayoutRowMajor);
      [[unroll]] for (uint o = 0; o < kOutputs; ++o) {
        ROWS_OF_B b;
        coopMatLoad(b, stored_rows, c * 16 * kStride + (part * kOutputs + o) * 4, kStride,
                    gl_CooperativeMatrixLayoutRowMajor);
        outputs[o] = coopMatMulAdd(a, b, outputs[o]);
      }
    }
    barrier();
  }
  if (part == 0 && lane % 2 == 0) fades[mine] = 1.0 / total;
  barrier();
  SUM f;
  coopMatLoad(f, fades, tile * 16, 0, gl_CooperativeMatrixLayoutColumnMajor);
  [[unroll]] for (uint o = 0; o < kOutputs; ++o) {
    outputs[o] = outputs[o] * f;
    coopMatStore(outputs[o], scores, subgroup * 256, 16, gl_CooperativeMatrixLayoutRowMajor);
    subgroupMemoryBarrierShared();
    subgroupBarrier();
    for (uint i = lane; i < 256; i += 32) {
      const uint e = tile * 16 + i / 16, at = r + e / HEADS, head = h + e % HEADS, d = (part * kOutputs + o) * 16 + i % 16;
      if (e / HEADS >= n) continue;
      float x = scores[subgroup * 256 + i];
      if (GATED != 0) x *= sigmoid(F32(p.gate).v[at * p.gate_stride + (2 * head + 1) * DIM + d]);
      F32(p.y).v[(at * p.n_heads + head) * DIM + d] = x;
    }
    subgroupBarrier();
  }
  barrier();
}
void main() {
  const uint per_row = p.n_heads / HEADS, tile = item() / per_row * kRows, h = item() % per_row * HEADS;
  if (tile >= p.n_rows) return;
  const uint end = min(tile + kRows, p.n_rows);
  for (uint r = tile; r < end;) {
    const BatchRow row = Rows(p.rows).v[r];
    uint n = 1;
    while (r + n < end && Rows(p.rows).v[r + n].sequence == row.sequence) ++n;
    if (row.sequence != kNoSequence) attend(row, r, n, h);
    r += n;
  }
}
