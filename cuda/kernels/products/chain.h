// SPDX-License-Identifier: MIT
// Products of one to four rows that follow each other, in one launch of a persistent kernel: one
// block a multiprocessor, every warp streams its units of all the products, whatever it waits for
// meanwhile: through a ring in shared memory (chain.cu; compute capability 9.0 and 200 KB a block),
// elsewhere through registers (chain_registers.cu; several rows chain_rows_registers.cu).
// docs/architecture.md says how and when. A row is rounded to 16 bits in fixed point
// (fixed_product.cuh), codes and their sums under integer scales are exact. Thread rule: pure
// functions. Blocks wait for each other: there is one for each multiprocessor, none of which asks
// for more than a multiprocessor has; two chains must not run on a device at once
// (Device::launch_mutex()), and nothing else that runs there may wait for a chain.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/products/matmul.h"
#include "cuda/kernels/stream_handle.h"

namespace sharpi::cuda {

/// Links of a chain: products that one launch makes one after the other.
constexpr uint32_t kMaxChainLinks = 6;
/// Rows that a chain in registers takes, which are the second operand of one product of tensor
/// cores; more go launch by launch.
constexpr uint32_t kMaxChainRows = 4;
/// Device memory that launches on one stream share (chain_launch.h says for what); zero before the
/// first.
constexpr uint64_t kChainSyncBytes = 4096 + 2 * 131072 * 4;

/// What a link adds to its input row first: x_out = scale * (x + share * y), y RMS-normalised when
/// there is a weight; the product reads x_out. Of several rows each is n_in floats behind the one
/// before.
struct ChainBranch {
  const float* y = nullptr;  // [n_rows][n_in]; nullptr: the link has no branch
  const float* weight = nullptr;
  float eps = 0.0f, scale = 1.0f;
  float* x_out =
      nullptr;         // [n_rows][n_in]; in chains neither x nor y, nor what the link before reads
  float share = 1.0f;  // other shares: no chain takes them
};

/// A product of a chain, with what is added to its input. `product` is as launch_matmul takes it,
/// without workspace; all links have as many rows, which follow each other without gaps, and may
/// read what earlier links wrote.
struct ChainLink {
  MatmulParams product;
  ChainBranch branch;
};

/// Where a warp's next units of weights wait.
enum class ChainForm : uint8_t {
  kByDevice,   // as the device has room
  kRings,      // in shared memory, copied in bulk (chain.cu): of one row
  kRegisters,  // in registers (chain_registers.cu, chain_rows_registers.cu)
};

/// Shapes of launches, to measure and to test; the defaults are what was fastest.
struct ChainTuning {
  bool cooperative = false;    // the launch itself sees to it that all blocks run at once
  int shared_bytes = 1 << 30;  // of a block at most
  // Every lane says itself that it has read a slot of the ring, instead of one for its warp, and
  // those who copy are not told what the block does: slower, for tools that do not follow what lies
  // between lanes of a warp, or relaxed accesses.
  bool every_lane_arrives = false;
  ChainForm form = ChainForm::kByDevice;
  // Several rows: parts that the columns of the widest product are taken in at least; more where
  // all of them have no room.
  uint32_t column_parts = 1;
};

/// A link by itself: what launch_matmul does, behind the sum, which may go where x is. The sum of
/// two to kMatvecRows rows of weights in tiles is in the launch that stages them.
Status launch_link(const KernelConfig& config, const ChainLink& link, cudaStream_t stream);
/// The sum of a branch and rows of `width` as a launch of its own; without y the rows are scaled.
Status launch_branch_sum(const KernelConfig& config, const float* x, const ChainBranch& branch,
                         uint32_t n_rows, uint32_t width, cudaStream_t stream);

bool has_chains(const KernelConfig& config);
/// Rows up to which links are chained on the device; 0: none are. One where blocks have rings:
/// several rows are faster launch by launch there (docs/experiments_drafts.md).
uint32_t max_chain_rows(const KernelConfig& config, const ChainTuning& tuning = {});
/// Rows up to which the launches of a captured step are as few as can be, and their blocks may wait
/// for each other, so that only one such step may run on a device at a time; 0: of none.
uint32_t max_fused_rows(const KernelConfig& config);
bool chain_takes(const KernelConfig& config, const ChainLink& link, const ChainTuning& tuning = {});
/// Every link must be one that chain_takes(). config.pdl: weights are fetched while the preceding
/// grid still runs.
Status launch_chain(const KernelConfig& config, const ChainLink* links, uint32_t n_links,
                    std::byte* sync, cudaStream_t stream, const ChainTuning& tuning = {});
/// Whether one launch has room for these links, each of which chain_takes(), and their rows can be
/// handed on within it.
bool chain_fits(const KernelConfig& config, const ChainLink* links, uint32_t n_links,
                const ChainTuning& tuning = {});
/// Raises the shared-memory limit of the kernels that the device can run.
Status prepare_chain(const KernelConfig& config);

}  // namespace sharpi::cuda
