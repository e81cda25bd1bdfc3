// SPDX-License-Identifier: MIT
// What a product does with its results. Plain C++ that kernels can include too.
// Thread rule: a plain enumeration.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace sharpi::device {

/// Biases are added to the sums of products before all else.
enum class Epilogue : uint8_t {
  kStore,          // y  = s * W x
  kAdd,            // y += s * W x (the residual stream)
  kSwiGlu,         // two tasks, gate and up: tasks[0].y = silu(gate) * up; tasks[1].y unused
  kGeGlu,          // the same with gelu (tanh form)
  kSwiGluClamped,  // the same with Activation::kSwigluClamped
  kSquare,         // y  = max(W x, 0)^2: hidden rows without a gate (routed experts' alone)
};

/// Two products become one.
SHARPI_HOST_DEVICE constexpr bool is_gated(Epilogue e) {
  return e >= Epilogue::kSwiGlu && e <= Epilogue::kSwiGluClamped;
}

}  // namespace sharpi::device
