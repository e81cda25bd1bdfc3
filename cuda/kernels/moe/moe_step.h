// SPDX-License-Identifier: MIT
// A mixture-of-experts block of up to four rows in one launch of a persistent kernel (a fused MoE
// for decode): router, its softmax and top-k, the routed and the shared experts, weighting,
// residual; also the products in front and behind (moe_step.cu). Of several rows, an expert's
// weights are read once for all that chose it. Steps of more rows are such launches one after
// another. Weights in tiles; everything else goes through matmul.h and router.h kernel by kernel.
// The blocks of a launch wait for each other: no other launch whose blocks do so may run on the
// device at once (Device::launch_mutex()), and nothing else that runs there may wait for one.
// Thread rule: pure functions; launches that share `sync` must follow each other on one stream.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/products/matmul.h"
#include "cuda/kernels/stream_handle.h"

namespace sharpi::cuda {

constexpr uint32_t kMaxMoeStepRows = 4;  // of a launch
constexpr uint32_t kMaxMoeLaunches = 2;  // of a step

/// Device memory of a stream of launches, for the largest of them and as many rows as there can be;
/// zero before the first. hidden: n_used * d_ff.
uint64_t moe_step_sync_bytes(uint32_t n_embd, uint32_t hidden, uint32_t shared_hidden);

struct MoeStepParams {
  /// As launch_moe takes them (matmul.h), but with `add` x and y are the same, and ids, weights and
  /// workspace are not read.
  MoeParams moe;
  int32_t* ids = nullptr;    // [n_rows][n_used], written
  float* weights = nullptr;  // [n_rows][n_used], written
  DeviceMatrix router;       // f32, [n_experts of the model]
  /// It has a bias, or chooses by other numbers than shares, which no such launch takes.
  bool router_bias = false, other_scores = false;
  bool renormalize = false;
  /// Shared expert; none when shared_down is empty. Scaled by sigmoid(dot(shared_gate_inp, x)).
  DeviceMatrix shared_gate, shared_up, shared_down;
  const float* shared_gate_inp = nullptr;  // [n_embd] or nullptr: 1
  /// As launch_matmul takes them, without workspace; none when n_tasks is 0. First x += W m (one
  /// task, with `add`), last plain products of y.
  MatmulParams before, after;
  std::byte* sync = nullptr;  // aligned to 128
  uint64_t sync_bytes = 0;
};

/// Rows of a step that goes in such launches at most, with this configuration; 0: none goes so.
uint32_t max_moe_step_rows(const KernelConfig& config);
/// Whether launch_moe_step takes these parameters; the addresses in them do not matter. Of more
/// rows than a launch takes, the neighbours' rows lie as far apart as the block's.
bool moe_step_takes(const KernelConfig& config, const MoeStepParams& p);
/// Settings that measurements vary; the library uses the defaults.
struct MoeStepTuning {
  bool cooperative = false;       // the launch itself sees to it that all blocks run at once
  uint32_t spare = 0;             // bytes of shared memory left to other kernels
  uint32_t ring_bytes = 1 << 20;  // of a warp, at most
};
/// One launch, or one for each kMaxMoeStepRows rows.
Status launch_moe_step(const KernelConfig& config, const MoeStepParams& p, cudaStream_t stream,
                       const MoeStepTuning& tuning = {});
/// Raises the shared-memory limit of the kernel to what the device has.
Status prepare_moe_step(const KernelConfig& config);

}  // namespace sharpi::cuda
