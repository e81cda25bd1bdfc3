// SPDX-License-Identifier: MIT
// A launch of moe_step.cu as its kernel takes it: what moe_step_plan.cc makes of the layer. Plain
// C++, so that tests walk all of it without a device. Thread rule: pure functions.
#pragma once

#include "cuda/kernels/moe/moe_step.h"
#include "cuda/kernels/moe/router.h"
#include "cuda/kernels/products/matvec.h"
#include "cuda/kernels/products/unit_shares.h"

namespace sharpi::cuda::step {

constexpr uint32_t kKeptNorms = 2;  // constant rows kept before x is known
constexpr uint32_t kMostSm = 1024;  // multiprocessors
constexpr uint32_t kHeadBytes = kMostSm * 4;
constexpr uint32_t kMostGroups = 4096, kMostUnits = 4096;  // of a block, of a row
constexpr uint8_t kNobody = 255;                           // a row that does not use an expert

/// A logit is a sum of parts that blocks add in any order, so in integers: how many there are in
/// the lower bits, above them their sum in units of 2^-28. Two sets of sums take turns: each launch
/// clears the one that the next launch adds to.
constexpr uint32_t kCountBits = 11;
constexpr float kPartUnit = 0x1p28f;
constexpr int64_t kMostSum = int64_t{1} << (63 - kCountBits);
constexpr uint32_t kLogitStride = 16;  // words: so that other parts of the cache add them up
constexpr uint32_t kLogits = kMaxExperts + 1;  // of a set: the shared expert's behind the others
constexpr uint32_t kLogitWords = 2 * kLogits * kLogitStride;

/// Matrices of all experts: what a unit's address follows from.
struct Slab {
  const uint8_t* data;
  uint64_t expert_bytes;
  uint32_t panel_bytes, unit_bytes;
  GgmlType type;
};

/// Numbers of the slabs.
enum SlabId : uint32_t {
  kGateSlab,
  kUpSlab,
  kDownSlab,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kBeforeSlab,
  kAfterSlab
};
constexpr uint32_t kSlabs = kAfterSlab + kMaxMatmulTasks;

/// How many panels (pairs) a block has.
struct Groups {
  uint32_t each, more;  // the first `more` blocks have one more
};

struct StepArgs {
  const float* x;  // before the first phase
  const float* norm_weight;
  float norm_eps, after_eps;
  bool renormalize, add;
  Epilogue activation;
  const float* router;
  const float* shared_gate;  // nullptr: no such row
  const int32_t* slot_of_expert;
  const float* before_x;  // nullptr: no such phase
  const float* after_norm;
  float *y, *weights;
  int32_t* ids;
  // Of a row, `area` bytes behind those of the row before:
  uint32_t* sync;                  // each block's number of launches that had the row
  uint64_t *logits, *x1, *h, *y1;  // behind it; h: the routed experts', then the shared one's
  uint64_t area;
  uint32_t n_rows, x_stride, y_stride, before_stride, after_stride[kMaxMatmulTasks];
  uint32_t n_embd, n_experts, n_used;
  uint32_t router_rows;                                             // all rows
  uint32_t units, ff_units, routed_units, row_units, before_units;  // row_units: all of down
  uint32_t routed_pairs, expert_panels, shared_pairs;  // routed_pairs: of one row's experts
  Groups pairs, out_panels, after_panels;
  Divider by_units, by_panels, by_row_units, by_ff_units, by_before;  // by_panels: of an expert
  uint32_t ring_bytes;                                                // of a warp
  uint32_t image, part, range, misc, slots, rows;  // shared memory, behind the rings
  uint32_t image_bytes, zeros;  // several rows: from image to image; a unit of zeros
  uint32_t router_at;           // [panel][row][16]
  bool keeps;                   // norms' weights at `rows`, columns of the router at `router_at`
  uint32_t n_parts;             // of a logit
  float part_limit;             // of one of them, in its unit
  uint32_t n_after;
  uint32_t first_panel[kMaxMatmulTasks];  // of the tasks of the last phase
  float* after_y[kMaxMatmulTasks];
  Slab slabs[kSlabs];
  bool small;  // rings may have room for a unit only
};

struct alignas(16) Misc {
  float squares[kShareWarps];          // of the rows of n_embd, each warp's part
  float own[kShareWarps][kPanelRows];  // the block's panels of x, times the norm's weights
  int32_t slot[kMaxExpertsUsed];       // where the experts' matrices are, each expert once
  float weight[kMaxExpertsUsed];       // [row][n_used]
  float shared_weight[kMaxMoeStepRows];
  // Several rows: what each chose, how many experts that is, and which of its own a row has in one.
  uint32_t tag[kMaxExpertsUsed];  // [row][n_used]
  uint32_t n_experts;
  uint8_t own_number[kMaxExpertsUsed][kMaxMoeStepRows];  // kNobody: none
};

/// A unit in a ring.
struct alignas(16) Note {
  uint32_t use, at;  // Line::use; where in the ring, kNothing: its expert is skipped
  uint32_t taken;    // bytes of the ring
};
constexpr uint32_t kNothing = ~0u;
struct Slots {
  uint64_t full[kShareWarps][kSlots];
  uint64_t kept;             // constant rows are there
  uint64_t added, squared;   // the block has added to the logits; squares are there
  uint64_t chosen, weighed;  // slots and weights of the experts are there
  Note note[kShareWarps][kSlots];
};

/// Whether one launch takes these rows.
bool launch_takes(const KernelConfig& config, const MoeStepParams& m);
/// The division of work and of shared memory; returns the bytes of a block, 0: it does not fit.
uint32_t shape_step(const KernelConfig& config, const MoeStepParams& m, const MoeStepTuning& tuning,
                    StepArgs* p);
/// Where the first row's values are behind the words that all launches use; returns the bytes that
/// as many rows as there can be take.
uint64_t place_step(const MoeStepParams& m, std::byte* sync, StepArgs* p);

}  // namespace sharpi::cuda::step
