// SPDX-License-Identifier: MIT
// What the kernels of scoring share. Scores and value norms are the same product of stored rows
// with many vectors: a block decodes a tile of rows once and takes all vectors ("terms") of its KV
// head past it, as an image that a launch before made of them. Terms are two bf16 numbers each,
// rows too unless they are bf16 already (hi * hi + hi * lo + lo * hi: relative error about 2^-16 of
// the products' sizes), summed in f32.
//   normalise  per term the maximum and the sum of exponentials over a part of the rows; merged
//   mass       per row the sum and the maximum of the normalised exponentials over the terms
//   norm       per row the sum of magnitudes over the terms (rows of the output projection)
// Thread rule: device code and plain values.
#pragma once

#include "cuda/kernels/kv/kv_fragments.cuh"
#include "cuda/kernels/kv/kv_score.h"
#include "cuda/kernels/kv/kv_score_plan.h"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {

enum class ScoreMode : uint8_t { kNormalise, kMass, kNorm };

/// Offset = maximum + log2(sum) of a term over all rows; weight: its factor in max.
struct TermFactors {
  float offset, weight;
};

struct ScoreArgs {
  KvView kv;
  uint32_t n_slots, n_terms;
  uint32_t padded_terms, width;  // of the image: multiples of kScoreTerms and kScoreColumns
  uint32_t n_parts, n_stages;
  uint32_t group;
  const uint16_t* image;  // as ImageKind says
  // scores
  uint32_t n_queries;
  float scale;         // times log2(e)
  const float* sinks;  // ScoreParams
  const uint32_t* visible;
  const float* weight;         // of a query's terms in max; nullptr = 1
  float *part_max, *part_sum;  // [n_parts][kv heads][n_terms]
  TermFactors* factors;        // [kv heads][padded_terms]
  float *sum, *max;
  bool add;
  // norms
  float* norms;
  float factor;  // of the last slab: 1 / group

  __host__ __device__ KvDtype dtype(ScoreMode mode) const {
    return mode == ScoreMode::kNorm ? kv.v_dtype : kv.k_dtype;
  }
};

/// The row of a slot among a.kv's K or V rows; one past the last is nowhere in a table.
__device__ __forceinline__ const std::byte* score_row(const ScoreArgs& a, const std::byte* base,
                                                      uint32_t row_bytes, uint32_t slot) {
  const uint64_t block = slot / kKvBlockSlots;
  const uint64_t at = a.kv.table == nullptr ? block * a.kv.block_stride
                      : slot < a.n_slots    ? a.kv.table[block]
                                            : 0;
  return base + at + uint64_t{slot % kKvBlockSlots} * row_bytes;
}

/// Rows: [kv heads][padded_terms][hi, lo][width]. Blocks: [kv heads][kScoreTerms at a time][blocks
/// of columns][hi, lo][kScoreTerms rows of 128 bytes, 16-byte pieces xored with row % 8].
enum class ImageKind : uint8_t { kRows, kBlocks };

/// kv_score_tiles.cu: any device, any rows. kv_score_sm90.cu: Hopper's warpgroups, most heads.
template <ScoreMode kMode>
Status launch_score_tiles(const DeviceProfile& device, const char* name, ScoreArgs* a,
                          cudaStream_t stream);
template <ScoreMode kMode>
Status launch_score_warpgroups(const DeviceProfile& device, const char* name, ScoreArgs* a,
                               cudaStream_t stream);
/// True where the warpgroups' kernel runs: it wants an image of blocks.
bool score_on_warpgroups(const DeviceProfile& device, uint32_t head_dim);

}  // namespace sharpi::cuda
