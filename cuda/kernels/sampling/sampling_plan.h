// SPDX-License-Identifier: MIT
// How a row of logits is divided among blocks (sampling.cu), and how long it can be. Plain C++.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace sharpi::cuda {

constexpr uint32_t kSamplingThreads = 512;
constexpr uint32_t kSamplingSlice = 4096;  // logits of a block: 32 KiB of keys
constexpr uint32_t kSamplingParts = 64;    // slices of a row; longer rows have longer slices
constexpr uint32_t kSamplingKeyBytes = 8;
/// Keys of a slice take no more, so that with what the kernel has of its own no more is taken than
/// any block may without asking for it.
constexpr uint32_t kMostKeyBytes = 44u << 10;

struct SamplingSlices {
  uint32_t n_parts, length;
};
SHARPI_HOST_DEVICE constexpr SamplingSlices sampling_slices(uint32_t n_vocab) {
  const uint32_t want = (n_vocab + kSamplingSlice - 1) / kSamplingSlice;
  const uint32_t parts = want < kSamplingParts ? want : kSamplingParts;
  return {parts, (n_vocab + parts - 1) / parts};
}

/// The longest vocabularies of which a launch finds the best token, and the best ones.
constexpr uint32_t kMostArgmaxTokens = 1u << 24;
constexpr uint32_t kMostTopKTokens = kSamplingParts * (kMostKeyBytes / kSamplingKeyBytes);
constexpr uint32_t kMaxTopK = 256;
/// How many of the best of a vocabulary are found on the device; the host finds more.
constexpr uint32_t most_best(uint32_t n_vocab) {
  if (n_vocab > kMostArgmaxTokens) return 0;
  if (n_vocab > kMostTopKTokens) return 1;
  return n_vocab < kMaxTopK ? n_vocab : kMaxTopK;
}

}  // namespace sharpi::cuda
