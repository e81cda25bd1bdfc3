// SPDX-License-Identifier: MIT
#include "vulkan/profile.h"

#include <algorithm>
#include <bit>

#include "base/checked.h"

namespace sharpi::vulkan {
namespace {

/// Elements of a head at most (support.cc), and threads of a workgroup where nothing else bounds
/// them; stored rows that a tile of attention has at most (shaders/attention.comp).
constexpr uint32_t kMostDim = 512, kMostThreads = 64, kMostKeys = 128;
/// Threads of a workgroup that has a row; threads, and heads, of one that has a share of stored
/// rows (shaders/attention_step.comp); the least of a subgroup that writes rows in 8 bits, of
/// which four threads have a run of 16 elements (shaders/quantise.glsl).
constexpr uint32_t kRowThreads = 512, kStepThreads = 128, kStepHeads = 8, kRunThreads = 8;
/// Outputs that fill a device with a workgroup each, workgroups that fill it with attention of long
/// contexts, and times the least shares at most.
constexpr uint64_t kEnoughOutputs = 2048, kEnoughShares = 512, kMostShares = 4;
/// Elements of a stored row for a thread where heads are few, and sums of a thread's at most
/// (shaders/attention_lanes.comp).
constexpr uint32_t kWideEach = 16, kStepSums = 64, kLeastLanes = 4;
/// Threads that join the shares of a head.
constexpr uint32_t kJoinThreads = 256;
/// Threads that share a channel of a recurrence.
constexpr uint32_t kRecurrentParts = 4;
/// Floats of queries that make replay scores in a workgroup, and how many queries at most.
constexpr uint32_t kReplayFloats = 2048, kMostReplayTerms = 8;
/// Subgroups of shaders/newer, and elements of a matrix that a thread has at most.
constexpr uint32_t kMatrixGroups = 8, kMostEach = 16;
/// The subgroups, matrices and bytes of shared memory of shaders/newer/attention_matrix.comp.
constexpr uint32_t kMatrixAttentionGroup = 32, kMatrixAttentionSide = 16,
                   kMatrixAttentionBytes = 47 << 10;

}  // namespace

uint32_t attention_shared_bytes(uint32_t rows, uint32_t dim) {
  const uint32_t heads_and_queries = 2 * rows * dim, shares = rows * kMostKeys;
  const uint32_t places = kMostKeys * (2 * sizeof(uint64_t) + sizeof(uint32_t));
  return static_cast<uint32_t>((heads_and_queries + shares + kMostThreads) * sizeof(float)) +
         places;
}

uint32_t step_shared_bytes(uint32_t heads, uint32_t dim, uint32_t threads) {
  const uint32_t keys = threads / 4, names = keys * (2 * sizeof(uint64_t) + sizeof(uint32_t));
  return static_cast<uint32_t>((heads * (dim + keys) + kMostThreads + 2) * sizeof(float)) + names;
}

uint32_t lane_shared_bytes(const LaneShape& s) {
  constexpr uint32_t kLevels = 16;  // of q4
  const uint32_t queries = s.heads * s.each * s.lanes, of_subgroups = 2 * s.heads * kMostThreads;
  return static_cast<uint32_t>((queries + of_subgroups + kLevels) * sizeof(float));
}

uint32_t matrix_shared_bytes(const MatrixShape& s) {
  constexpr uint32_t kStride = 64 + 8, kSums = 64;  // halves; shaders/common.glsl's
  return 8 * (s.m + s.n) * kStride * 2 +
         (8 * s.m * s.n + kSums) * static_cast<uint32_t>(sizeof(float));
}

uint32_t Profile::dot_outputs(uint64_t n_out) const {
  return n_out >= 4 * kEnoughOutputs ? 4 : n_out >= 2 * kEnoughOutputs ? 2 : 1;
}

uint32_t Profile::shares(uint64_t workgroups) const {
  const uint64_t wanted = kEnoughShares / std::max<uint64_t>(workgroups, 1);
  return least_shares * static_cast<uint32_t>(std::clamp<uint64_t>(
                            wanted / std::max(least_shares, 1u), 1, kMostShares));
}

uint32_t Profile::step_heads(uint32_t dim, uint32_t group) const {
  uint32_t n = std::clamp(step_floats / dim, 1u, std::min(kStepHeads, group));
  while (group % n != 0) --n;
  return n;
}

LaneShape Profile::lane_shape(uint32_t dim, uint32_t group) const {
  if (dim % kWideEach != 0) return {};
  for (uint32_t heads = std::min(kStepHeads, group); heads > 0; --heads) {
    if (group % heads != 0) continue;
    const uint32_t each = heads * kWideEach <= kStepSums ? kWideEach : kWideEach / 2;
    const auto lanes = std::bit_ceil(static_cast<uint32_t>(div_up(dim, each)));
    const LaneShape shape{heads, each, std::max(kLeastLanes, lanes)};
    if (shape.lanes <= step_lanes && lane_shared_bytes(shape) <= step_bytes) return shape;
  }
  return {};
}

/// Each is there twice, in at most 8 KiB, and a thread has as many products of each of its rows.
uint32_t Profile::replay_terms(uint32_t dim) const {
  return std::clamp(kReplayFloats / (2 * dim), 1u, kMostReplayTerms);
}

uint32_t Profile::attention_tile(uint32_t dim) const {
  return std::clamp(attention_floats / dim, 1u, attention_rows);
}

Profile make_profile(const PhysicalDevice& d) {
  Profile p;
  // A processor runs the threads of a subgroup at once, and subgroups one after the other.
  const bool software = d.kind == DeviceKind::kSoftware;
  const uint32_t wanted = software ? d.subgroup_size : kMostThreads;
  p.most_threads = d.max_invocations;
  p.threads = std::min({wanted, kMostThreads, p.most_threads});
  p.gathering_threads = std::min(2 * kMostThreads, p.most_threads);
  p.product_rows = p.attention_rows = 8;
  p.row_threads = wanted == kMostThreads ? std::min(kRowThreads, p.most_threads) : p.threads;
  // A software device has no such instruction, and takes long to compile what does without.
  p.byte_dots = d.byte_dots && d.subgroup_size >= kRunThreads && !software;
  if (wanted == kMostThreads) p.recurrent_parts = std::min(kRecurrentParts, d.subgroup_size);
  const uint32_t matrix_threads = kMatrixGroups * d.subgroup_size;
  if (d.matrix.size() != 0 && !software && matrix_threads <= p.most_threads &&
      d.matrix.m * d.matrix.n <= kMostEach * d.subgroup_size &&
      matrix_shared_bytes(d.matrix) <= d.shared_bytes) {
    p.matrix_threads = matrix_threads;
    p.matrix = d.matrix;
  }
  p.matrix_attention = p.matrix_threads != 0 && d.subgroup_size == kMatrixAttentionGroup &&
                       p.matrix.is_square() && p.matrix.m == kMatrixAttentionSide &&
                       kMatrixAttentionBytes <= d.shared_bytes;
  p.attention_keys = std::min(4u, kMostKeys / p.threads);
  // The widest heads decide: stored rows are read once for each tile.
  p.attention_floats = kMostDim;
  while (p.attention_floats < p.attention_rows * kMostDim &&
         attention_shared_bytes(2 * p.attention_floats / kMostDim, kMostDim) <= d.shared_bytes) {
    p.attention_floats *= 2;
  }
  if (software) return p;
  p.least_shares = 32;
  p.step_threads = std::min(kStepThreads, p.most_threads);
  p.step_lanes = std::min(d.subgroup_size, p.step_threads);
  p.step_bytes = d.shared_bytes;
  p.join_threads = std::min(kJoinThreads, p.most_threads);
  p.step_floats = kMostDim;
  while (p.step_floats < kStepHeads * kMostDim &&
         step_shared_bytes(2 * p.step_floats / kMostDim, kMostDim, p.step_threads) <=
             d.shared_bytes) {
    p.step_floats *= 2;
  }
  return p;
}

}  // namespace sharpi::vulkan
