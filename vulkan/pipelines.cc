// SPDX-License-Identifier: MIT
#include "vulkan/pipelines.h"

#include <algorithm>

#include "base/no_throw.h"
#include "base/thread_pool.h"
#include "os/processors.h"
#include "vulkan/driver.h"
#include "vulkan/pipeline_file.h"
#include "vulkan/spirv.h"

namespace sharpi::vulkan {
namespace {

constexpr uint32_t kNullsConstant = 31;  // shaders/common.glsl

constexpr const char* kNames[] = {
#define SHARPI_SHADER(name) #name,
#include "vulkan/shaders.inc"
#undef SHARPI_SHADER
};

}  // namespace

const char* shader_name(Shader shader) {
  return kNames[static_cast<size_t>(shader)];
}

VkPipelineCache Pipelines::make_cache(const std::vector<std::byte>& data) const {
  VkPipelineCacheCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
  info.initialDataSize = data.size();
  info.pInitialData = data.empty() ? nullptr : data.data();
  VkPipelineCache made = VK_NULL_HANDLE;
  const VkResult got = driver_.f().vkCreatePipelineCache(driver_.device(), &info, nullptr, &made);
  return got == VK_SUCCESS ? made : VK_NULL_HANDLE;
}

void Pipelines::keep() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (cache_ == VK_NULL_HANDLE || made_.size() == n_kept_) return;
  size_t bytes = 0;
  const auto get = [&](void* to) {
    return driver_.f().vkGetPipelineCacheData(driver_.device(), cache_, &bytes, to);
  };
  if (get(nullptr) != VK_SUCCESS) return;
  std::vector<std::byte> data(bytes);
  if (get(data.data()) != VK_SUCCESS) return;
  data.resize(bytes);
  if (write_pipelines(cache_folder_, pipeline_key(driver_.physical()), data))
    n_kept_ = made_.size();
}

Status Pipelines::create(const std::string& cache_folder) {
  cache_folder_ = cache_folder;
  if (!cache_folder.empty()) {
    cache_ = make_cache(read_pipelines(cache_folder, pipeline_key(driver_.physical())));
    if (cache_ == VK_NULL_HANDLE) cache_ = make_cache({});
  }
  const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, kPushBytes};
  VkPipelineLayoutCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
  info.pushConstantRangeCount = 1;
  info.pPushConstantRanges = &range;
  return driver_.check(
      driver_.f().vkCreatePipelineLayout(driver_.device(), &info, nullptr, &layout_),
      "vkCreatePipelineLayout");
}

Result<VkShaderModule> Pipelines::module(Shader shader) const {
  VkShaderModule& m = modules_[static_cast<size_t>(shader)];
  if (m != VK_NULL_HANDLE) return m;
  const Spirv code = spirv_of(shader);
  VkShaderModuleCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
  info.codeSize = code.bytes;
  info.pCode = code.words;
  SHARPI_TRY(driver_.check(driver_.f().vkCreateShaderModule(driver_.device(), &info, nullptr, &m),
                           shader_name(shader)));
  return m;
}

/// The constants of one, and its compilation, which any number of threads may do at once.
Result<VkPipeline> Pipelines::make(const Order& order) const {
  const auto& [shader, constants] = order.key;
  std::vector<VkSpecializationMapEntry> entries;
  for (uint32_t i = 0; i < constants.size(); ++i)
    entries.push_back({i, i * uint32_t{sizeof(uint32_t)}, sizeof(uint32_t)});
  entries.back().constantID = kNullsConstant;
  VkSpecializationInfo special{};
  special.mapEntryCount = static_cast<uint32_t>(entries.size());
  special.pMapEntries = entries.data();
  special.dataSize = constants.size() * sizeof(uint32_t);
  special.pData = constants.data();
  VkComputePipelineCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
  info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = order.module;
  info.stage.pName = "main";
  info.stage.pSpecializationInfo = &special;
  info.layout = layout_;
  VkPipeline made = VK_NULL_HANDLE;
  SHARPI_TRY(driver_.check(
      driver_.f().vkCreateComputePipelines(driver_.device(), cache_, 1, &info, nullptr, &made),
      shader_name(shader)));
  return made;
}

Result<VkPipeline> Pipelines::get(Shader shader, const Constants& constants) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Key key(shader, constants);
  const auto known = made_.find(key);
  if (known != made_.end()) return known->second;
  SHARPI_TRY_ASSIGN(const VkShaderModule code, module(shader));
  SHARPI_TRY_ASSIGN(const VkPipeline made, make({key, code}));
  made_.emplace(key, made);
  return made;
}

void Pipelines::want(Shader shader, const Constants& constants) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Key key(shader, constants);
  if (!made_.contains(key)) wanted_.insert(std::move(key));
}

Status Pipelines::make_one(const Order& order) const {
  SHARPI_TRY_ASSIGN(const VkPipeline made, make(order));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!made_.emplace(order.key, made).second)  // get() was asked for it meanwhile
    driver_.f().vkDestroyPipeline(driver_.device(), made, nullptr);
  return Status::ok();
}

Status Pipelines::make_wanted() const {
  std::vector<Order> orders;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Key& key : wanted_) {
      SHARPI_TRY_ASSIGN(const VkShaderModule code, module(key.first));
      orders.push_back({key, code});
    }
    wanted_.clear();
  }
  if (orders.empty()) return Status::ok();
  const auto n = static_cast<uint32_t>(orders.size());
  const uint32_t n_threads = std::min({n, kMakers, os::usable_cpus()});
  SHARPI_TRY_ASSIGN(const auto makers, ThreadPool::create(n_threads));
  std::vector<Status> ended(n, Status::ok());
  makers->run(n, [&](uint32_t i) { ended[i] = no_throw([&] { return make_one(orders[i]); }); });
  for (const Status& s : ended) SHARPI_TRY(s);
  return Status::ok();
}

}  // namespace sharpi::vulkan
