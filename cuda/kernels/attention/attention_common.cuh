// SPDX-License-Identifier: MIT
// What the attention kernels share: which query rows a block has, which keys they see, where a
// key's rows lie, and how partial results of split launches are merged. Thread rule: device code.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/attention/attention_f32_plan.h"
#include "cuda/kernels/attention/attention_shapes.h"
#include "cuda/kernels/kv/kv_rows.cuh"

namespace sharpi::cuda {

/// Constants of a launch that the host derives.
struct AttentionArgs {
  AttentionParams p;
  uint32_t group;        // query heads per KV head
  uint32_t block_rows;   // query rows of one sequence that a block takes
  uint32_t n_blocks;     // row blocks, at most
  uint32_t max_splits;   // partial results per block
  uint32_t alone_tiles;  // up to this many tiles one block takes all: no merge
  uint32_t least_tiles;  // tiles that a split has at least where there are several
  bool merge_later;      // a launch of its own merges
  bool meets;            // a unit's last blocks wait for each other and share the merging
  uint32_t* counters;    // [n_blocks][kv heads]
  float* parts;          // [n_blocks][kv heads][max_splits][part_floats()]
};

/// Row blocks of a launch of many rows, at most: sequences may have rows left that fill no block.
inline uint32_t most_row_blocks(const Batch& batch, uint32_t block_rows) {
  if (batch.n_rows == batch.n_sequences) return batch.n_rows;
  return batch.n_rows / block_rows + batch.n_sequences;
}

/// Query rows [row0, row0 + n) of a sequence, the keys that some of them see, [begin, end): slots,
/// or positions in windowed layers.
struct RowBlock {
  uint32_t sequence, row0, n;
  uint64_t begin, end;
  uint64_t first_key;  // of row 0 of the block: it sees [first_key, last_key], row i one more
  uint64_t low;        // no row sees keys below
};

__device__ __forceinline__ bool find_rows(const AttentionArgs& a, uint32_t block,
                                          uint32_t block_rows, RowBlock* b) {
  const Batch& batch = a.p.batch;
  if (batch.n_rows == batch.n_sequences) {  // decode: a row each
    const BatchSequence& s = batch.table.sequences[block];
    b->sequence = block;
    b->row0 = 0;
    b->n = s.n_rows;
    return s.n_rows != 0;
  }
  for (uint32_t i = 0; i < batch.n_sequences; ++i) {
    const uint32_t rows = batch.table.sequences[i].n_rows;
    const uint32_t blocks = (rows + block_rows - 1) / block_rows;
    if (block < blocks) {
      b->sequence = i;
      b->row0 = block * block_rows;
      b->n = min(block_rows, rows - b->row0);
      return true;
    }
    block -= blocks;
  }
  return false;
}

__device__ __forceinline__ bool find_rows(const AttentionArgs& a, uint32_t block, RowBlock* b) {
  return find_rows(a, block, a.block_rows, b);
}

/// Row blocks with the most keys should run first: block indices count backwards in prefill.
__device__ __forceinline__ void find_keys(const AttentionArgs& a, RowBlock* b) {
  const KvLayer& l = a.p.kv;
  const BatchSequence& s = a.p.batch.table.sequences[b->sequence];
  const bool alone = (s.flags & kSequenceNoContext) != 0;
  uint64_t past;
  if (l.window == 0) {
    past = a.p.batch.table.groups[b->sequence * a.p.batch.table.n_groups + l.group].n_slots;
  } else {
    past = s.position;
  }
  b->low = alone ? past : 0;
  b->first_key = past + b->row0;  // the newest key that row 0 of the block sees
  b->end = b->first_key + b->n;
  b->begin = b->low;
  if (l.window != 0 && b->first_key + 1 > b->low + l.window) {
    b->begin = b->first_key + 1 - l.window;
  }
}

/// True if row i of the block sees key t.
__device__ __forceinline__ bool sees(const AttentionArgs& a, const RowBlock& b, uint32_t i,
                                     uint64_t t) {
  const uint64_t newest = b.first_key + i;
  return t <= newest && t >= b.low && (a.p.kv.window == 0 || t + a.p.kv.window > newest);
}

/// Where the rows of a sequence lie in a layer.
struct KeyMap {
  BatchGroup group;
  uint64_t position;  // of the sequence's row 0 in this call
  uint32_t chunk_block;
};
__device__ __forceinline__ KeyMap make_key_map(const AttentionArgs& a, uint32_t sequence) {
  const BatchSequence& s = a.p.batch.table.sequences[sequence];
  return {a.p.batch.table.groups[sequence * a.p.batch.table.n_groups + a.p.kv.group], s.position,
          s.chunk_block};
}
__device__ __forceinline__ const std::byte* key_row(const KvLayer& l, const KeyMap& m, uint64_t t,
                                                    bool value) {
  if (l.window == 0) return store_row(l, m.group, t, value);
  if (t >= m.position) {
    return chunk_row(l, m.chunk_block, static_cast<uint32_t>(t - m.position), value);
  }
  return store_row(l, m.group, static_cast<uint32_t>(t) % m.group.ring_slots, value);
}

/// Of a KV head whose rows may be in blocks of one head.
struct HeadMap {
  KeyMap map;
  const KvHeadRows* own;  // nullptr: they are with those of the others
};
/// kByHead: the launch's sequences may have rows in blocks of one head; then a block's keys, which
/// were counted as of the group's fullest head, are counted as this head's.
template <bool kByHead>
__device__ __forceinline__ void count_keys(const AttentionArgs& a, uint32_t kv, RowBlock* b) {
  if constexpr (kByHead) {
    const KvHeadRows* own = head_rows(make_key_map(a, b->sequence).group, kv);
    const uint64_t lag = own != nullptr ? own->lag : 0;
    b->first_key -= lag;
    b->end -= lag;
    b->low -= b->low >= lag ? lag : 0;
    b->begin = b->low;
  }
}
/// Where the rows of a KV head lie.
template <bool kByHead>
__device__ __forceinline__ auto find_head(const AttentionArgs& a, uint32_t sequence, uint32_t kv) {
  const KeyMap map = make_key_map(a, sequence);
  if constexpr (kByHead) {
    return HeadMap{map, head_rows(map.group, kv)};
  } else {
    return map;
  }
}
/// The row of a key; of it, elements in all, and where those of a head of `dim` begin; bytes from
/// row to row in a block.
__device__ __forceinline__ const std::byte* row_at(const KvLayer& l, const KeyMap& m, uint64_t t,
                                                   bool value) {
  return key_row(l, m, t, value);
}
__device__ __forceinline__ const std::byte* row_at(const KvLayer& l, const HeadMap& m, uint64_t t,
                                                   bool value) {
  return m.own != nullptr ? head_row(l, *m.own, t, value) : key_row(l, m.map, t, value);
}
__device__ __forceinline__ uint32_t row_elements(const KvLayer& l, const KeyMap&, uint32_t dim) {
  return l.n_heads * dim;
}
__device__ __forceinline__ uint32_t row_elements(const KvLayer& l, const HeadMap& m, uint32_t dim) {
  return m.own != nullptr ? dim : l.n_heads * dim;
}
__device__ __forceinline__ uint32_t first_element(const KeyMap&, uint32_t kv, uint32_t dim) {
  return kv * dim;
}
__device__ __forceinline__ uint32_t first_element(const HeadMap& m, uint32_t kv, uint32_t dim) {
  return m.own != nullptr ? 0 : kv * dim;
}
__device__ __forceinline__ uint32_t bytes_of_row(const KvLayer& l, const KeyMap&, bool value) {
  return value ? l.v_row_bytes : l.k_row_bytes;
}
__device__ __forceinline__ uint32_t bytes_of_row(const KvLayer& l, const HeadMap& m, bool value) {
  return (value ? l.v_row_bytes : l.k_row_bytes) / (m.own != nullptr ? l.n_heads : 1);
}
/// Both of a host's launch: what divides bytes of any row.
inline uint32_t row_bits(const AttentionParams& p, uint32_t row_bytes) {
  return row_bytes | (p.by_head ? row_bytes / p.kv.n_heads : 0);
}

/// Tiles [first, last) of `tile` keys that split i of a block takes; a context has fewer than 2^32.
struct TileRange {
  uint64_t first, last;
};
__device__ __forceinline__ uint32_t tile_count(const RowBlock& b, uint32_t tile) {
  return static_cast<uint32_t>((b.end + tile - 1) / tile - b.begin / tile);
}
__device__ __forceinline__ uint32_t split_count(const AttentionArgs& a, const RowBlock& b,
                                                uint32_t tile, uint32_t least_tiles) {
  const uint32_t n = tile_count(b, tile);
  return n <= a.alone_tiles ? 1 : min((n + least_tiles - 1) / least_tiles, a.max_splits);
}
__device__ __forceinline__ TileRange split_tiles(const RowBlock& b, uint32_t tile, uint32_t i,
                                                 uint32_t n_splits) {
  const uint32_t n = tile_count(b, tile), each = n / n_splits, more = n % n_splits;
  const uint64_t first = b.begin / tile + uint64_t{i} * each + min(i, more);
  return {first, first + each + (i < more ? 1 : 0)};
}

/// Floats of one partial result: `vectors` rows of dim floats, maxima (in units of log2) and sums;
/// a multiple of four.
__host__ __device__ constexpr uint64_t part_floats(uint64_t vectors, uint64_t dim) {
  return (vectors * (dim + 2) + 3) / 4 * 4;
}

/// 1 / a vector's sum of weights `all`, which are in units of 2^top; its head's sink is a weight
/// beside them. Where only sums are known: the last who adds some up asks, and nobody else.
__device__ __forceinline__ float inverse_sum(const AttentionParams& p, uint32_t head, float top,
                                             float all) {
  if (p.sinks != nullptr) all += exp2f(fmaf(p.sinks[head], 1.4426950408889634f, -top));
  return all > 0.0f ? 1.0f / all : 0.0f;
}

__device__ __forceinline__ float gate_factor(const AttentionParams& p, uint64_t row, uint32_t head,
                                             uint32_t d) {
  const float g = p.gate[row * p.gate_stride + uint64_t{head} * p.gate_head_stride + d];
  return 1.0f / (1.0f + expf(-g));
}

/// o[row][head][d] = value, gated.
__device__ __forceinline__ void store_result(const AttentionParams& p, uint64_t row, uint32_t head,
                                             uint32_t d, float value) {
  if (p.gate != nullptr) value *= gate_factor(p, row, head, d);
  p.o[row * p.o_stride + uint64_t{head} * p.kv.head_dim + d] = value;
}
/// Not inlined, because most models have no gate and kernels are kept small: in a model with large
/// kernels their code is evicted from the instruction caches and fetched again in every layer.
static __device__ __noinline__ float4 gated(const AttentionParams& p, uint64_t row, uint32_t head,
                                            uint32_t d, float4 x) {
  return {x.x * gate_factor(p, row, head, d), x.y * gate_factor(p, row, head, d + 1),
          x.z * gate_factor(p, row, head, d + 2), x.w * gate_factor(p, row, head, d + 3)};
}
/// The same of elements d to d + 3, d a multiple of four.
__device__ __forceinline__ void store_result(const AttentionParams& p, uint64_t row, uint32_t head,
                                             uint32_t d, float4 x) {
  if (p.gate != nullptr) x = gated(p, row, head, d, x);
  *reinterpret_cast<float4*>(p.o + row * p.o_stride + uint64_t{head} * p.kv.head_dim + d) = x;
}
__device__ __forceinline__ float4 fma4(float w, float4 x, float4 sum) {
  return {fmaf(w, x.x, sum.x), fmaf(w, x.y, sum.y), fmaf(w, x.z, sum.z), fmaf(w, x.w, sum.w)};
}

/// Partial results of splits first, first + step, .. of n, `stride` floats apart, on their way
/// together: four columns, the vector's maxima and sums of weights, which are `vectors` floats
/// behind; nothing of splits that are not there. `column`, `top`: of split 0.
template <uint32_t kAhead>
__device__ __forceinline__ void load_splits(const float* column, const float* top, uint32_t vectors,
                                            uint64_t stride, uint32_t first, uint32_t step,
                                            uint32_t n, float4 (&x)[kAhead], float (&m)[kAhead],
                                            float (&l)[kAhead]) {
#pragma unroll
  for (uint32_t j = 0; j < kAhead; ++j) {
    const uint32_t s = first + j * step;
    x[j] = {};
    m[j] = -INFINITY;
    l[j] = 0.0f;
    if (s >= n) continue;
    m[j] = __ldcg(top + s * stride);
    l[j] = __ldcg(top + s * stride + vectors);
    x[j] = __ldcg(reinterpret_cast<const float4*>(column + s * stride));
  }
}

/// The kernels' launchers, called by launch_attention.
Status launch_attention_f32(const AttentionArgs& a, bool pdl, cudaStream_t stream);
Status prepare_attention_f32();
/// Calls of few rows on tensor cores: KV rows arrive through ring buffers in shared memory.
Status launch_attention_ring(const KernelConfig& config, const AttentionArgs& a,
                             cudaStream_t stream);
uint32_t attention_ring_blocks_per_sm(const KernelConfig& config, const KvLayer& l);
Status prepare_attention_ring(const KernelConfig& config);
/// Few rows of the usual shapes in fewer instructions: one a sequence (a decode step), or several.
bool attention_step_fits(const KernelConfig& config, const KvLayer& l);
Status launch_attention_step(const KernelConfig& config, const AttentionArgs& a,
                             cudaStream_t stream);
Status launch_attention_step_rows(const KernelConfig& config, const AttentionArgs& a,
                                  cudaStream_t stream);
/// Of both.
Status prepare_attention_step(const KernelConfig& config);
Status prepare_attention_step_rows(const KernelConfig& config);
Status launch_attention_merge(const AttentionArgs& a, bool pdl, cudaStream_t stream);
/// Sums of rotated values rotated back, then gated.
Status launch_attention_back(const AttentionParams& p, bool pdl, cudaStream_t stream);
/// Blocks of query rows on tensor cores; false if this layer does not fit the device's shared
/// memory.
bool attention_flash_fits(const KernelConfig& config, const KvLayer& l);
Status launch_attention_flash(const KernelConfig& config, const AttentionArgs& a,
                              cudaStream_t stream);
Status prepare_attention_flash(const KernelConfig& config);
/// The same with heads of 128 and 256 and the usual pairs of codecs, in blocks of more rows.
bool attention_wide_fits(const KernelConfig& config, const KvLayer& l);
Status launch_attention_wide(const KernelConfig& config, const AttentionArgs& a,
                             cudaStream_t stream);
Status prepare_attention_wide(const KernelConfig& config);
/// The same with warpgroups (9.0, heads of 512), where the build has them.
bool have_attention_flash_sm90(const KernelConfig& config, const KvLayer& l);
Status launch_attention_flash_sm90(const KernelConfig& config, const AttentionArgs& a,
                                   cudaStream_t stream);
Status prepare_attention_flash_sm90(const KernelConfig& config);
/// The same with specialised warpgroups (9.0, heads of 64, 128 and 256).
bool have_attention_specialized_sm90(const KernelConfig& config, const KvLayer& l);
Status launch_attention_specialized_sm90(const KernelConfig& config, const AttentionArgs& a,
                                         cudaStream_t stream);
Status prepare_attention_specialized_sm90(const KernelConfig& config);

}  // namespace sharpi::cuda
