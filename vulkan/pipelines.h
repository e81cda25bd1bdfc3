// SPDX-License-Identifier: MIT
// Compute pipelines of one device, made when they are first asked for: a shader with its constants.
// All have one layout, which is nothing but push constants: kernels get addresses. What the driver
// compiles for them is kept in a file (pipeline_file.h), where there is a folder for it: nothing
// fails for its sake. Those that a model will want are listed first and compiled by several
// threads. Thread rule: any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "vulkan/functions.h"

namespace sharpi::vulkan {

class Driver;

/// One for each file of shaders/, in the order of their names.
enum class Shader : uint32_t {
#define SHARPI_SHADER(name) name,
#include "vulkan/shaders.inc"
#undef SHARPI_SHADER
  kCount
};
const char* shader_name(Shader shader);

inline constexpr uint32_t kPushBytes = 128;

/// Constants of a shader, in place: a launch takes no memory.
class Constants {
 public:
  Constants() = default;
  Constants(std::initializer_list<uint32_t> values) { append(values.begin(), values.end()); }
  void push_back(uint32_t value) {
    if (n_ < kMost) values_[n_] = value;
    ++n_;
  }
  void append(const uint32_t* from, const uint32_t* end) {
    for (; from != end; ++from) push_back(*from);
  }
  void append(std::initializer_list<uint32_t> values) { append(values.begin(), values.end()); }
  /// Whether all that were given have room.
  bool fits() const { return n_ <= kMost; }
  uint32_t size() const { return std::min(n_, kMost); }
  const uint32_t* data() const { return values_.data(); }
  const uint32_t* begin() const { return data(); }
  const uint32_t* end() const { return data() + size(); }
  bool operator<(const Constants& o) const {
    return std::lexicographical_compare(begin(), end(), o.begin(), o.end());
  }

 private:
  static constexpr uint32_t kMost = 24;
  std::array<uint32_t, kMost> values_{};
  uint32_t n_ = 0;
};

class Pipelines {
 public:
  explicit Pipelines(const Driver& driver) : driver_(driver) {}
  Pipelines(const Pipelines&) = delete;
  Pipelines& operator=(const Pipelines&) = delete;
  Status create(const std::string& cache_folder);
  /// Writes the file, if pipelines were made since it was read or written.
  void keep() const;
  VkPipelineLayout layout() const { return layout_; }
  /// constants[i] is constant i of the shader; constant 0 is the number of threads of a workgroup.
  /// The last is another's: NULLS of shaders/common.glsl.
  Result<VkPipeline> get(Shader shader, const Constants& constants) const;
  /// How many get() has at hand.
  size_t n_made() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return made_.size();
  }
  /// Lists one that get() will be asked for.
  void want(Shader shader, const Constants& constants) const;
  /// Makes those that are listed and not there, by at most kMakers threads that end with it.
  Status make_wanted() const;

 private:
  static constexpr uint32_t kMakers = 8;
  using Key = std::pair<Shader, Constants>;
  struct Order {
    Key key;
    VkShaderModule module;
  };
  VkPipelineCache make_cache(const std::vector<std::byte>& data) const;
  Result<VkShaderModule> module(Shader shader) const;
  Result<VkPipeline> make(const Order& order) const;
  Status make_one(const Order& order) const;
  const Driver& driver_;
  VkPipelineLayout layout_ = VK_NULL_HANDLE;
  VkPipelineCache cache_ = VK_NULL_HANDLE;
  std::string cache_folder_;
  mutable std::mutex mutex_;
  mutable VkShaderModule modules_[static_cast<size_t>(Shader::kCount)] = {};
  mutable std::map<Key, VkPipeline> made_;
  mutable std::set<Key> wanted_;
  mutable size_t n_kept_ = 0;
};

}  // namespace sharpi::vulkan
