// SPDX-License-Identifier: MIT
#include "vulkan/profile.h"

#include <algorithm>

namespace sharpi::vulkan {
namespace {

/// Elements of a head at most (support.cc), and threads of a workgroup where nothing else bounds
/// them; stored rows that a tile of attention has at most (shaders/attention.comp).
constexpr uint32_t kMostDim = 512, kMostThreads = 64, kMostKeys = 128;

}  // namespace

uint32_t attention_shared_bytes(uint32_t rows, uint32_t dim) {
  const uint32_t heads_and_queries = 2 * rows * dim, shares = rows * kMostKeys;
  const uint32_t places = kMostKeys * (2 * sizeof(uint64_t) + sizeof(uint32_t));
  return static_cast<uint32_t>((heads_and_queries + shares + kMostThreads) * sizeof(float)) +
         places;
}

uint32_t Profile::attention_tile(uint32_t dim) const {
  return std::clamp(attention_floats / dim, 1u, attention_rows);
}

Profile make_profile(const PhysicalDevice& d) {
  Profile p;
  // A processor runs the threads of a subgroup at once, and subgroups one after the other.
  const uint32_t wanted = d.kind == DeviceKind::kSoftware ? d.subgroup_size : kMostThreads;
  p.most_threads = d.max_invocations;
  p.threads = std::min({wanted, kMostThreads, p.most_threads});
  p.gathering_threads = std::min(2 * kMostThreads, p.most_threads);
  p.product_rows = p.attention_rows = 8;
  p.attention_keys = std::min(4u, kMostKeys / p.threads);
  // The widest heads decide: stored rows are read once for each tile.
  p.attention_floats = kMostDim;
  while (p.attention_floats < p.attention_rows * kMostDim &&
         attention_shared_bytes(2 * p.attention_floats / kMostDim, kMostDim) <= d.shared_bytes) {
    p.attention_floats *= 2;
  }
  return p;
}

}  // namespace sharpi::vulkan
