// SPDX-License-Identifier: MIT
// What adapters (LoRA) add to a product: the k-th adapter of each row's sequence, as the call's
// tables have it (device/batch.h). Sums are f32 in one order, whatever rows are beside a row.
// Launchers allocate nothing and can be captured. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/batch.h"
#include "cuda/kernels/elementwise.h"

namespace sharpi::cuda {

/// Matrices of a product.
inline constexpr uint32_t kMaxAdapterTasks = 4;

struct AdapterParams {
  const BatchRow* rows = nullptr;          // of the call, on the device
  const BatchAdapter* adapters = nullptr;  // [sequences][kMaxAdapters], on the device
  uint32_t k = 0;
  uint32_t n_rows = 0, n_in = 0;
  const float* x = nullptr;            // [n_rows][n_in]: what the product read
  const float* norm_weight = nullptr;  // of x first; nullptr: none
  float norm_eps = 0.0f;
  uint32_t rank = 0;   // the most of a call
  float* t = nullptr;  // [n_rows][kMaxAdapterTasks][rank] scratch
  uint32_t n_tasks = 0;
  uint32_t weights[kMaxAdapterTasks] = {};  // by index in the model's file
  uint32_t n_out[kMaxAdapterTasks] = {};
  float* y[kMaxAdapterTasks] = {};  // [n_rows][n_out]
  const float* shares = nullptr;    // of rows, by which what is added is scaled; nullptr: 1
};
/// y += share * s * scale * B (A x), in two launches.
Status launch_adapters(const AdapterParams& p, const OnStream& on);

}  // namespace sharpi::cuda
