// SPDX-License-Identifier: MIT
// Products of few rows: the parameters that matvec.cu (f16 activations, tensor cores) and
// matvec_f32.cu (f32 everywhere, up to kMatvecF32Rows) share. Callers outside use matmul.h.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/products/chain.h"
#include "cuda/kernels/products/matmul.h"
#include "cuda/kernels/stream_handle.h"

namespace sharpi::cuda {

/// What the rows and matrices of a launch are.
enum class StreamMode : uint8_t {
  kDense,        // every row times every task
  kExpertsUp,    // grid.y = row; task slabs ids[row][j], outputs [row * n_used + j]
  kExpertsDown,  // grid.y = row; the n_used inputs of a row are one long input, scaled by weights
};

struct StreamTask {
  const uint8_t* data;
  uint64_t expert_bytes;
  float* y;
  uint64_t y_stride;
  uint32_t panel_bytes;  // 16 rows
  uint32_t unit_bytes;   // 256 columns of a panel
  uint32_t tail_bytes;   // its last columns
  uint32_t first_group;  // dense, not gated: index of the task's first panel in the launch
  uint32_t n_out;
  GgmlType type;
  WeightLayout layout;
  const float* bias;  // MatmulTask, MoeParams
};

/// n / divisor by a multiplication, for n * divisor < 2^32.
struct Divider {
  uint32_t divisor, multiplier;
};

struct StreamParams {
  const float* x;
  uint64_t x_stride;
  const float* norm_weight;
  const float* row_scale;
  const int32_t* ids;             // experts
  const int32_t* slot_of_expert;  // MoeParams
  const float* weights;           // kExpertsDown
  const uint8_t* image;           // several rows: the staged input, made by a launch before
  float norm_eps;
  uint32_t n_rows;      // of x; kDense only (1 otherwise)
  uint32_t n_in;        // columns of one segment
  uint32_t n_segments;  // kExpertsDown: n_used, else 1
  uint32_t n_used;
  uint32_t n_tasks;
  uint32_t n_groups;  // panels, or pairs of panels when gated
  uint32_t units;     // of one segment, and once planned of one part
  uint32_t n_parts;   // several rows: their columns are multiplied in so many parts, one by one
  uint32_t buffers;   // that a block has for the parts
  Epilogue epilogue;
  StreamMode mode;
  Divider by_units, by_panels;  // by_panels: panels of one expert
  // matvec.cu: blocks get `groups` panels (or pairs), the first `more_groups` blocks one more;
  // warps get share[extra] units, the first more_share[extra] warps one more.
  uint32_t groups, more_groups, share[2], more_share[2];
  uint32_t max_panels;  // of a block, both of a pair (or all experts' parts) counted
  uint32_t n_warps, n_stages, stage_bytes;
  StreamTask tasks[kMaxMatmulTasks];
  // Last, so that the code of one row finds the others where it had them, two at a time.
  uint32_t n_absent;  // units that the last part has fewer
  bool biased;        // a task has a bias
  bool ids_known;     // ids, slots and weights are older than the launch before
};

Divider make_divider(uint32_t divisor);
/// The rows [first, first + n) of a dense launch.
StreamParams some_rows(const StreamParams& p, uint32_t first, uint32_t n);

/// Every task in tiles. `workspace` (stream_workspace_bytes) is needed for several rows. `branch`:
/// added to several rows first, as in a chain, but that x_out may be x.
Status launch_matvec(const KernelConfig& config, StreamParams p, uint32_t grid_rows,
                     std::byte* workspace, uint64_t workspace_bytes, cudaStream_t stream,
                     const ChainBranch* branch = nullptr);
/// Whether one row goes to matvec_row.cu, or reads its weights by launch_matvec_f32().
bool takes_row(const KernelConfig& config, StreamParams p);
/// Stages the rows of a planned launch of several, `branch` added first unless it is null, for
/// which rows must be one that stages_sums() (stage_rows.cu).
Status launch_stage_rows(const KernelConfig& config, const StreamParams& p,
                         const ChainBranch* branch, uint8_t* image, cudaStream_t stream);
bool stages_sums(uint32_t n_in);
uint64_t stream_workspace_bytes(uint32_t n_rows, uint32_t n_in);
/// Any type, any layout.
Status launch_matvec_f32(const KernelConfig& config, const StreamParams& p, uint32_t grid_rows,
                         cudaStream_t stream);
/// Raises the shared-memory limit of the kernels to what the device has.
Status prepare_matvec(int max_shared_bytes);

}  // namespace sharpi::cuda
