// SPDX-License-Identifier: MIT
// The Vulkan tier beside a small CPU tier, for tests. Thread rule: as tier.h.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "api/api_handles.h"
#include "engine/inner_engine.h"
#include "vulkan/vulkan_backend.h"
#include "vulkan/vulkan_device.h"

namespace sharpi::testing {

/// How far logits may be from those of another implementation.
inline constexpr double kNear = 2e-3;

/// The first device of the machine, of all contexts; null where there is none: *why says so.
inline std::shared_ptr<vulkan::Device> vulkan_device(std::string* why) {
  auto all = vulkan::find_devices(1, why);
  return all.empty() ? nullptr : all.front();
}

/// A CPU tier of two threads, and the first Vulkan device.
inline Result<std::vector<std::unique_ptr<Backend>>> host_and_vulkan(const BackendOptions&) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, small_cpu());
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::move(host));
  std::string why;
  if (auto device = vulkan_device(&why)) out.push_back(vulkan::make_backend(std::move(device)));
  return out;
}

/// Its tiers as a context of the C interface.
inline ContextPtr context_of(BackendFactory make) {
  sharpi_context_params c;
  sharpi_context_params_init(&c, sizeof c);
  auto context = Context::create(c, make);
  EXPECT_TRUE(context.is_ok()) << context.status().text();
  auto handle = std::make_unique<sharpi_context>();
  if (context.is_ok()) handle->p = context.take();
  return ContextPtr(handle.release());
}

/// The same with a device that gives no block above 128 KiB, so that weights lie in several.
inline Result<std::vector<std::unique_ptr<Backend>>> host_and_small_blocks(const BackendOptions&) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, small_cpu());
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::move(host));
  std::string why;
  if (const auto device = vulkan_device(&why)) {
    vulkan::PhysicalDevice physical = device->physical();
    physical.max_allocation = 128 << 10;
    out.push_back(vulkan::make_backend(std::make_shared<vulkan::Device>(physical, 1)));
  }
  return out;
}

/// Latent attention with stored rows of 512 + 64 elements, as published models have them.
inline test::ModelRecipe wide_latents() {
  test::ModelRecipe r = test::tiny_deepseek2();
  r.n_layers = 2;
  r.n_heads = 2;
  r.latent_rank = 512;
  r.n_rot = 64;
  r.head_dim = 576;
  r.q_rank = 0;
  r.value_dim = 64;
  return r;
}

}  // namespace sharpi::testing

/// At the beginning of a test: it needs a device.
#define SHARPI_NEEDS_VULKAN()                                                           \
  do {                                                                                  \
    std::string why_none;                                                               \
    if (sharpi::testing::vulkan_device(&why_none) == nullptr) GTEST_SKIP() << why_none; \
  } while (false)
