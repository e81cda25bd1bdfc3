// SPDX-License-Identifier: MIT
// Chooses the attention kernel of a call, and into how many splits its keys are divided (split-KV).
#include <algorithm>

#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/attention/attention_meet.cuh"
#include "cuda/kernels/paths.h"

namespace sharpi::cuda {
namespace {

// Blocks per multiprocessor that a split launch aims at.
constexpr uint32_t kBlocksPerSm = 2;
// Floats that the last block of a unit reads to merge if it is alone; more are merged by a launch
// of their own.
constexpr uint64_t kMergeAlone = 16 * 1024;

uint32_t target_blocks(const KernelConfig& config, uint32_t per_sm) {
  return static_cast<uint32_t>(std::max(config.device.n_sm, 1)) * per_sm;
}

Status check(const AttentionParams& p) {
  const KvLayer& l = p.kv;
  if (p.batch.n_rows == 0 || p.batch.n_sequences == 0 || l.n_heads == 0 ||
      p.n_heads % l.n_heads != 0 || p.n_heads / l.n_heads > kSplitVectors || p.n_heads == 0) {
    return Status::error(
        Code::kUnsupported,
        "kernel attention cannot take %u rows of %u sequences with %u query heads over %u KV heads",
        p.batch.n_rows, p.batch.n_sequences, p.n_heads, l.n_heads);
  }
  if (p.o == nullptr || (l.window != 0 && l.chunk == nullptr) || p.q == nullptr ||
      p.q_stride % 4 != 0 || reinterpret_cast<uintptr_t>(p.q) % 16 != 0 ||
      (p.by_head && l.window != 0)) {
    return Status::error(Code::kInternal,
                         "kernel attention lacks an operand, or one is not aligned");
  }
  for (const KvDtype d : {l.k_dtype, l.v_dtype}) {
    if (!is_kv_codec(d)) {
      return Status::error(Code::kInternal, "kernel attention does not know KV codec %u",
                           static_cast<uint32_t>(d));
    }
  }
  return Status::ok();
}

enum class Kernel : uint8_t { kF32, kRing, kFlash, kWide, kWarpgroups, kSpecialized };

/// by_head: rows of some sequences are in blocks of one head, which not all kernels read.
Kernel choose(const KernelConfig& config, const KvLayer& kv, bool few_rows, bool by_head) {
  if (config.exact || config.deterministic) return Kernel::kF32;
  if (few_rows) return Kernel::kRing;
  if (!by_head && have_attention_specialized_sm90(config, kv)) return Kernel::kSpecialized;
  if (!by_head && have_attention_flash_sm90(config, kv)) return Kernel::kWarpgroups;
  if (attention_wide_fits(config, kv)) return Kernel::kWide;
  return attention_flash_fits(config, kv) ? Kernel::kFlash : Kernel::kF32;
}

/// One row a sequence.
bool is_step(const AttentionParams& p) {
  return p.batch.n_rows == p.batch.n_sequences;
}
bool has_few_rows(const AttentionParams& p) {
  return p.batch.n_rows <= kSplitRows || is_step(p);
}
/// Few rows, of a shape whose kernels need fewer instructions.
bool takes_step(const KernelConfig& config, const AttentionParams& p) {
  return !config.exact && !p.by_head && has_few_rows(p) && attention_step_fits(config, p.kv);
}

/// Blocks of rows, at most: sequences may have rows left that fill no block.
uint32_t row_blocks(const Batch& batch, uint32_t block_rows) {
  if (batch.n_sequences == 1) return (batch.n_rows + block_rows - 1) / block_rows;
  return batch.n_rows / block_rows + batch.n_sequences;
}

/// Row blocks and splits of a call of few rows.
Status plan_splits(const KernelConfig& config, const AttentionParams& p, AttentionArgs* a) {
  a->block_rows = is_step(p) ? 1 : std::max(1u, kSplitVectors / a->group);
  a->n_blocks = is_step(p) ? p.batch.n_rows : row_blocks(p.batch, a->block_rows);
  const uint32_t units = p.kv.n_heads * a->n_blocks;
  const bool step = takes_step(config, p);
  const uint32_t per_sm = config.exact ? kBlocksPerSm
                          : step       ? 1
                                       : attention_ring_blocks_per_sm(config, p.kv);
  a->max_splits = std::clamp(target_blocks(config, per_sm) / units, 1u, kMostSplits);
  // Two tiles of 16 keys for each of a block's teams, one where heads are 512 wide. A merge costs
  // as much as some five more.
  const uint32_t slices = std::max(1u, p.kv.head_dim / 128), keys = (step ? 256 : 128) / slices;
  a->least_tiles = slices == 4 ? 1 : keys / kSplitTile;
  a->alone_tiles = config.exact || slices == 4 ? 0 : 3 * keys / kSplitTile;
  const uint64_t vectors = uint64_t{a->block_rows} * a->group;
  const uint64_t mergers = std::min<uint64_t>(most_mergers(vectors, p.kv.head_dim), a->max_splits);
  a->meets =
      p.may_wait && units * (mergers - 1) < static_cast<uint64_t>(std::max(config.device.n_sm, 1));
  a->merge_later = !a->meets && !p.by_head && a->max_splits * vectors * p.kv.head_dim > kMergeAlone;
  a->counters = reinterpret_cast<uint32_t*>(p.workspace);
  a->parts = reinterpret_cast<float*>(p.workspace + kAttentionCounterBytes);
  const uint64_t n = uint64_t{a->n_blocks} * p.kv.n_heads;
  const uint64_t floats = n * a->max_splits * part_floats(a->block_rows * a->group, p.kv.head_dim);
  if (a->max_splits == 1) return Status::ok();
  if (p.workspace == nullptr || n * sizeof(uint32_t) > kAttentionCounterBytes ||
      kAttentionCounterBytes + floats * sizeof(float) > p.workspace_bytes) {
    return Status::error(Code::kInternal,
                         "kernel attention needs a workspace of more than %llu bytes",
                         static_cast<unsigned long long>(p.workspace_bytes));
  }
  return Status::ok();
}

}  // namespace

uint64_t attention_workspace_bytes(const KernelConfig& config, uint32_t max_heads,
                                   uint32_t max_head_dim) {
  // Blocks times splits stay under the target, or there is one split; a block has up to
  // kSplitVectors vectors, a call up to 2 * kSplitRows blocks per KV head.
  const uint64_t blocks = std::max(target_blocks(config, kBlocksPerSm), 2 * kSplitRows * max_heads);
  return kAttentionCounterBytes + blocks * part_floats(kSplitVectors, max_head_dim) * sizeof(float);
}

Status prepare_attention(const KernelConfig& config) {
  SHARPI_TRY(prepare_attention_f32());
  SHARPI_TRY(prepare_attention_ring(config));
  SHARPI_TRY(prepare_attention_step(config));
  SHARPI_TRY(prepare_attention_flash(config));
  SHARPI_TRY(prepare_attention_wide(config));
  SHARPI_TRY(prepare_attention_specialized_sm90(config));
  return prepare_attention_flash_sm90(config);
}

namespace {

Status launch_stored(const KernelConfig& config, const AttentionParams& p, cudaStream_t stream) {
  AttentionArgs a = {};
  a.p = p;
  a.group = p.n_heads / p.kv.n_heads;
  a.max_splits = 1;
  a.least_tiles = 1;
  const bool split = has_few_rows(p) && !config.deterministic;
  if (split) SHARPI_TRY(plan_splits(config, p, &a));
  switch (choose(config, p.kv, split, p.by_head)) {
    case Kernel::kRing:
      if (!takes_step(config, p)) return launch_attention_ring(config, a, stream);
      return is_step(p) ? launch_attention_step(config, a, stream)
                        : launch_attention_step_rows(config, a, stream);
    case Kernel::kSpecialized:
      return launch_attention_specialized_sm90(config, a, stream);
    case Kernel::kWarpgroups:
      return launch_attention_flash_sm90(config, a, stream);
    case Kernel::kWide:
      return launch_attention_wide(config, a, stream);
    case Kernel::kFlash:
      return launch_attention_flash(config, a, stream);
    case Kernel::kF32:
      break;
  }
  return launch_attention_f32(a, config.pdl, stream);
}

}  // namespace

Status launch_attention(const KernelConfig& config, const AttentionParams& p, cudaStream_t stream) {
  SHARPI_TRY(check(p));
  const bool step = !config.deterministic && takes_step(config, p);  // turns its sums itself
  if (step || !is_rotated(p.kv.v_dtype)) return launch_stored(config, p, stream);
  AttentionParams sums = p;  // gates are of what is rotated back
  sums.gate = nullptr;
  SHARPI_TRY(launch_stored(config, sums, stream));
  return launch_attention_back(p, config.pdl, stream);
}

const char* attention_path(const KernelConfig& config, const KvLayer& kv, bool few_rows) {
  switch (choose(config, kv, few_rows, false)) {
    case Kernel::kRing:
      return attention_step_fits(config, kv) ? "split, few instructions" : "split, rings";
    case Kernel::kSpecialized:
      return "flash, specialised warpgroups";
    case Kernel::kWarpgroups:
      return "flash, warpgroup tensor cores";
    case Kernel::kWide:
      return "flash, tensor cores, wide blocks";
    case Kernel::kFlash:
      return "flash, tensor cores";
    case Kernel::kF32:
      break;
  }
  return "f32";
}

}  // namespace sharpi::cuda
