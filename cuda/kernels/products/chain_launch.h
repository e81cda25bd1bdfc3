// SPDX-License-Identifier: MIT
// A chain as its kernel takes it: what chain_plan.cc makes of the links and chain.cu launches.
// Thread rule: pure functions.
#pragma once

#include "cuda/kernels/products/chain.h"
#include "cuda/kernels/products/unit_shares.h"

namespace sharpi::cuda {

constexpr uint32_t kBranchUnits = 2;     // units of a branch that a warp has in registers
constexpr uint32_t kStagedUnits = 4;     // units of a row that a warp waits for at once
constexpr uint32_t kMaxColumns = 32768;  // of a product
constexpr uint32_t kMaxPanels = 512;     // of a block, over all products
constexpr uint32_t kFeeders = 4;         // that copy
constexpr uint32_t kMaxChainBlocks = 512;
constexpr uint32_t kHandedFloats = 131072;  // of the rows that the links of a launch hand on
constexpr uint32_t kMaxChainProducts = 8;   // links, and parts of them
constexpr uint32_t kMostColumnParts = 4;    // of a product of several rows
constexpr uint32_t kCarriedOutputs = 2;     // that a thread sums over parts of the columns
constexpr uint32_t kNotHanded = ~0u;

/// What a block remembers from launch to launch.
struct ChainState {
  uint32_t launches;  // so far: odd ones hand on in the second set
  uint32_t handed;    // floats that the last one handed on
};
static_assert(kChainSyncBytes ==
              kMaxChainBlocks * sizeof(ChainState) + 2 * kHandedFloats * sizeof(float));

/// A row that a link reads: of an earlier link of the launch, or from before it.
struct ChainRow {
  const float* plain;
  uint32_t handed;  // offset in the set, or kNotHanded
};

struct ChainTask {
  const uint8_t* data;
  float* y;
  uint32_t panel_bytes, unit_bytes;
  uint32_t first_group;
  GgmlType type;
  uint32_t hand;    // where the outputs are handed on, or kNotHanded
  uint32_t before;  // kAdd: where what is added to was handed on; kNotHanded: it is in y
  bool stores;      // to y; else a later link does
  uint16_t width;   // panels of the matrix: what a row of y is long
};

struct ChainProduct {
  ChainRow x, branch;
  const float* norm_weight;
  const float* row_scale;
  const float* branch_weight;
  float* x_out;  // nullptr: a later link overwrites it
  uint32_t x_out_hand;
  float norm_eps, branch_eps, branch_scale;
  uint32_t n_in, units;
  uint32_t n_tasks;
  Epilogue epilogue;
  bool has_branch;
  ChainTask tasks[kMaxMatmulTasks];
};

/// Of a product of several rows: which columns of its input it reads.
struct ChainColumns {
  uint32_t stride;  // floats from row to row
  bool carries;     // its sums wait for those of the next product, which reads more columns
  bool sums;        // a matrix has minima, which are multiplied by sums of columns
};

/// A block's panels (or pairs) of a product: `groups`, one more for `more` blocks from `first` on.
struct ChainSplit {
  uint32_t groups, more, first, members;  // members: 2 of pairs, 1
};

struct ChainLaunch {
  ChainState* states;  // [block]
  float* handed;       // two sets of kHandedFloats
  uint32_t n_handed;   // floats of a set in use
  uint32_t n_products;
  uint32_t ring_bytes;                                      // of a warp
  uint32_t image, part, range, panels, sums, works, slots;  // offsets in shared memory
  uint32_t shared_bytes;
  uint32_t arrivals;  // that free a slot: 1 of a warp, or 32
  ChainSplit splits[kMaxChainProducts];
  ChainProduct products[kMaxChainProducts];
  uint32_t n_rows;
  ChainColumns columns[kMaxChainProducts];  // of several rows
};
static_assert(sizeof(ChainLaunch) <= 4096, "parameters of a kernel");

struct alignas(16) ChainPanel {
  const uint8_t* data;
  float* y;
  uint32_t hand, before;
  uint32_t unit_bytes;
  uint8_t type;  // GgmlType
  bool stores;
  uint16_t width;  // several rows: as of the task
};
static_assert(sizeof(ChainPanel) == 32);

/// A block's part of a product: panels [base, base + n_panels) of its table, all gates then all
/// ups.
struct alignas(16) Work {
  uint32_t base, n_groups, n_panels, reserved;
};

/// Of a block, behind its parts of the products.
struct alignas(16) ChainProgress {
  ChainState state;     // as it was before the launch
  uint32_t multiplies;  // 1: units of a product are being multiplied
};

/// Per warp and slot: barriers of arrived units and of freed ones.
struct ChainSlots {
  uint64_t full[kShareWarps][kSlots], empty[kShareWarps][kSlots];
};

/// The form of the kernel that a device's launches have.
ChainForm chain_form(const KernelConfig& config, const ChainTuning& tuning);

/// The links as a launch takes them; false: they do not hand on rows as a launch can, they have
/// more rows than the form takes, or there is no room.
bool make_chain_launch(const KernelConfig& config, const ChainLink* links, uint32_t n_links,
                       std::byte* sync, const ChainTuning& tuning, ChainLaunch* out);

/// Rows that the kernel of a launch of n_rows has room for.
constexpr uint32_t chain_kernel_rows(uint32_t n_rows) {
  return n_rows <= 2 ? n_rows : kMaxChainRows;
}

/// chain_registers.cu and chain_rows_registers.cu: `shape` without its block.
struct LaunchShape;
Status launch_chain_registers(const LaunchShape& shape, const ChainLaunch& l);
Status prepare_chain_registers(int max_shared_bytes);
Status launch_chain_rows_registers(const LaunchShape& shape, const ChainLaunch& l);
Status prepare_chain_rows_registers(int max_shared_bytes);

}  // namespace sharpi::cuda
