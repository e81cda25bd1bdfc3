// SPDX-License-Identifier: MIT
// What a driver has compiled, in a file of a folder of caches: one file a device, which says for
// which driver and which shaders it is. A file that is damaged or of another driver or build is as
// good as none, and is written anew. Thread rule: pure functions; processes may share a folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "vulkan/physical_device.h"

namespace sharpi::vulkan {

/// What a file is for.
struct PipelineKey {
  std::string device;  // PhysicalDevice::id
  uint32_t vendor = 0, model = 0, driver_version = 0;
  uint8_t driver_cache[VK_UUID_SIZE] = {};  // which caches the driver takes, as it says
  uint64_t shaders = 0;                     // hash of all words of them
};
PipelineKey pipeline_key(const PhysicalDevice& device);
std::string pipeline_file(const std::string& folder, const PipelineKey& key);

/// Empty: there is no file, or none for this key.
std::vector<std::byte> read_pipelines(const std::string& folder, const PipelineKey& key);
/// Whether the file is there now.
bool write_pipelines(const std::string& folder, const PipelineKey& key,
                     const std::vector<std::byte>& data);

}  // namespace sharpi::vulkan
