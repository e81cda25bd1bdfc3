// SPDX-License-Identifier: MIT
// What the adapters (LoRA) of a pass's sessions add to products: y += scale B (A x), in f32, for
// the rows of each session by its own adapters. A row's bits depend neither on the rows beside it
// nor on the number of threads, in every arithmetic. Thread rule: as BlockOps.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "cpu/pass.h"

namespace sharpi::cpu {

/// A product of all rows of an input with a weight.
struct WeightProduct {
  const TensorRef* w = nullptr;
  float* y = nullptr;  // [n_rows][y_stride]
  uint64_t y_stride = 0;
};

/// Products that are asked for at once: those of a delta net's input are the most.
inline constexpr uint32_t kMaxProducts = 4;

/// Floats of scratch for calls of up to n_rows rows with adapters of up to this rank.
constexpr uint64_t adapter_scratch_floats(uint64_t n_rows, uint32_t rank) {
  return n_rows * kMaxProducts * rank;
}

/// Adds to the products of all rows of the submission, which are those of `in`, what adapters give.
/// Pre: at most kMaxProducts.
void add_adapters(const Pass& p, const ModelSpec& spec, ThreadPool& pool, const KernelSet& kernels,
                  const MatmulInput& in, std::span<const WeightProduct> products);

}  // namespace sharpi::cpu
