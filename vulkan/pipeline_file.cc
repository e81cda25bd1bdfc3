// SPDX-License-Identifier: MIT
#include "vulkan/pipeline_file.h"

#include <cstring>

#include "base/cache_folder.h"
#include "base/hash.h"
#include "os/file.h"
#include "vulkan/pipelines.h"
#include "vulkan/spirv.h"

namespace sharpi::vulkan {
namespace {

/// In front of the driver's data: a mark, two hashes and the number of bytes.
struct Header {
  char mark[8] = {'s', 'h', 'a', 'r', 'p', 'i', 'v', '1'};
  uint64_t key = 0, bytes = 0, hash = 0;  // hash: of the data
};
/// No driver's data of ours comes near this; a file that says so is damaged.
constexpr uint64_t kMostBytes = 256ull << 20;

uint64_t hash_of(const PipelineKey& key) {
  Hash64 h;
  h.add(key.device.data(), key.device.size());
  for (const uint64_t n : {uint64_t{key.vendor}, uint64_t{key.model}, uint64_t{key.driver_version}})
    h.add_u64(n);
  h.add(key.driver_cache, sizeof key.driver_cache);
  h.add_u64(key.shaders);
  return h.value();
}

}  // namespace

PipelineKey pipeline_key(const PhysicalDevice& device) {
  PipelineKey key;
  key.device = device.id;
  key.vendor = device.vendor;
  key.model = device.model;
  key.driver_version = device.driver_version;
  std::memcpy(key.driver_cache, device.driver_cache, sizeof key.driver_cache);
  Hash64 shaders;
  for (size_t i = 0; i < static_cast<size_t>(Shader::kCount); ++i) {
    const Spirv code = spirv_of(static_cast<Shader>(i));
    shaders.add(code.words, code.bytes);
  }
  key.shaders = shaders.value();
  return key;
}

std::string pipeline_file(const std::string& folder, const PipelineKey& key) {
  return folder + "/" + key.device + ".pipelines";
}

std::vector<std::byte> read_pipelines(const std::string& folder, const PipelineKey& key) {
  os::File file;
  os::File::Kind kind{};
  os::File::Facts facts;
  if (folder.empty() || file.open(pipeline_file(folder, key).c_str(), &kind) != 0) return {};
  if (kind != os::File::Kind::kRegular || file.facts(&facts) != 0) return {};
  const Header ours;
  Header h;
  if (facts.bytes < sizeof h || facts.bytes > kMostBytes || file.read(0, &h, sizeof h) != 0)
    return {};
  const bool fits = std::memcmp(h.mark, ours.mark, sizeof h.mark) == 0 && h.key == hash_of(key) &&
                    h.bytes == facts.bytes - sizeof h;
  if (!fits) return {};
  std::vector<std::byte> data(h.bytes);
  if (file.read(sizeof h, data.data(), h.bytes) != 0) return {};
  if (hash64(data.data(), data.size()) != h.hash) return {};
  return data;
}

bool write_pipelines(const std::string& folder, const PipelineKey& key,
                     const std::vector<std::byte>& data) {
  if (folder.empty() || data.size() > kMostBytes - sizeof(Header)) return false;
  if (!make_cache_folder(folder)) return false;
  Header h;
  h.key = hash_of(key);
  h.bytes = data.size();
  h.hash = hash64(data.data(), data.size());
  std::vector<std::byte> all(sizeof h + data.size());
  std::memcpy(all.data(), &h, sizeof h);
  if (!data.empty()) std::memcpy(all.data() + sizeof h, data.data(), data.size());
  return os::replace_file(pipeline_file(folder, key).c_str(), all.data(), all.size()) == 0;
}

}  // namespace sharpi::vulkan
