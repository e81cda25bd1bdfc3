// SPDX-License-Identifier: MIT
// What a device is to the kernels: every shape of a launch that depends on the device is read from
// here, so that tests decide for devices that are not there.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "vulkan/physical_device.h"

namespace sharpi::vulkan {

/// How a workgroup of shaders/attention_lanes.comp goes over stored rows; no heads: it cannot.
struct LaneShape {
  uint32_t heads = 0;  // that share a KV head
  uint32_t each = 0;   // elements of a row for each thread
  uint32_t lanes = 0;  // threads that have a row together
};

struct Profile {
  uint32_t threads = 64;           // of a workgroup where nothing else bounds them; at most 64
  uint32_t gathering_threads = 0;  // of one whose threads show each other what they have found
  uint32_t most_threads = 0;
  uint32_t row_threads = 0;     // of one that has a whole row
  bool byte_dots = false;       // products in 8 bits
  uint32_t matrix_threads = 0;  // of one whose subgroups multiply matrices; 0: none does
  MatrixShape matrix;           // that they multiply
  bool matrix_attention = false;
  uint32_t recurrent_parts = 1;   // threads that have a channel of a recurrence together
  uint32_t product_rows = 0;      // of which a workgroup makes one output
  uint32_t attention_rows = 0;    // that read stored rows together, at most
  uint32_t attention_keys = 0;    // stored rows of a tile for each thread
  uint32_t attention_floats = 0;  // of all heads of those rows
  uint32_t least_shares = 0;      // of stored rows in which a few rows' attention is; 0: in one
  uint32_t step_threads = 0;      // of a workgroup that has one
  uint32_t step_floats = 0;       // of heads that it has together
  uint32_t step_lanes = 0;        // threads at most that have a stored row together
  uint32_t step_bytes = 0;        // of such a workgroup's memory, at most
  uint32_t join_threads = 0;      // of a workgroup that joins a head's shares

  /// Rows of heads of `dim` elements that a workgroup of attention takes.
  uint32_t attention_tile(uint32_t dim) const;
  /// Outputs of one row's product that a workgroup makes: as many as leave the device enough of
  /// those.
  uint32_t dot_outputs(uint64_t n_out) const;
  /// Shares of stored rows, of layers with so many workgroups for each.
  uint32_t shares(uint64_t workgroups) const;
  /// Queries that a workgroup asks together about a chunk's rows (shaders/replay.comp).
  uint32_t replay_terms(uint32_t dim) const;
  /// Heads of `dim` elements, of `group` that share a KV head, that such a workgroup takes.
  uint32_t step_heads(uint32_t dim, uint32_t group) const;
  /// The same where threads have their elements of stored rows in 16 bytes and fewer.
  LaneShape lane_shape(uint32_t dim, uint32_t group) const;
};

/// Rows of a call whose attention is in shares of their stored rows, at most.
inline constexpr uint32_t kShareRows = 8;

Profile make_profile(const PhysicalDevice& device);

/// Bytes of a workgroup's memory that attention takes for tiles of so many rows
/// (shaders/attention.comp). Tiles of products take 16 KiB, the least that Vulkan allows; other
/// kernels take no more than 13 KiB.
uint32_t attention_shared_bytes(uint32_t rows, uint32_t dim);
/// That products by matrices take (shaders/newer/product_matrix.glsl).
uint32_t matrix_shared_bytes(const MatrixShape& shape);
/// That shaders/attention_step.comp takes for so many heads.
uint32_t step_shared_bytes(uint32_t heads, uint32_t dim, uint32_t threads);
/// That shaders/attention_lanes.comp takes.
uint32_t lane_shared_bytes(const LaneShape& shape);

}  // namespace sharpi::vulkan
