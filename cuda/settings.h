// SPDX-License-Identifier: MIT
// The settings that the kernels of a model's passes are launched with. Thread rule: immutable.
#pragma once

#include "cuda/device.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/kernel_config.h"
#include "cuda/queue.h"
#include "cuda/weight_matrix.h"
#include "device/loaded_model.h"
#include "device/pass.h"

namespace sharpi::cuda {

using namespace device;

inline cudaStream_t raw_stream(const Pass& p) {
  return stream_of(p.ws.queue());
}

struct Settings {
  const Device& device;
  KernelConfig step;  // of recorded steps
  KernelConfig call;  // of other calls
  const KernelConfig& of(const Pass& p) const { return p.step ? step : call; }
  /// Where the small kernels of a pass run.
  OnStream on(const Pass& p) const { return {raw_stream(p), of(p).pdl}; }
};

/// A weight where it is; empty where it is not here.
inline DeviceMatrix matrix_at(const LoadedModel& model, const TensorRef& w) {
  const std::byte* data = model.weight(w);
  return data == nullptr ? DeviceMatrix() : matrix_of(w, data);
}

}  // namespace sharpi::cuda
