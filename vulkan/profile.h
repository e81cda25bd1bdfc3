// SPDX-License-Identifier: MIT
// What a device is to the kernels: every shape of a launch that depends on the device is read from
// here, so that tests decide for devices that are not there.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "vulkan/physical_device.h"

namespace sharpi::vulkan {

struct Profile {
  uint32_t threads = 64;           // of a workgroup where nothing else bounds them; at most 64
  uint32_t gathering_threads = 0;  // of one whose threads show each other what they have found
  uint32_t most_threads = 0;
  uint32_t product_rows = 0;      // of which a workgroup makes one output
  uint32_t attention_rows = 0;    // that read stored rows together, at most
  uint32_t attention_keys = 0;    // stored rows of a tile for each thread
  uint32_t attention_floats = 0;  // of all heads of those rows

  /// Rows of heads of `dim` elements that a workgroup of attention takes.
  uint32_t attention_tile(uint32_t dim) const;
};

Profile make_profile(const PhysicalDevice& device);

/// Bytes of a workgroup's memory that attention takes for tiles of so many rows
/// (shaders/attention.comp). Tiles of products take 16 KiB, the least that Vulkan allows; other
/// kernels take no more than 5 KiB.
uint32_t attention_shared_bytes(uint32_t rows, uint32_t dim);

}  // namespace sharpi::vulkan
