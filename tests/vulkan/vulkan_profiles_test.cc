// SPDX-License-Identifier: MIT
// Shapes of launches by class of device: none takes more than the device has, and models give the
// same with the shapes of devices that are not here, as far as this one can run them.
#include <cmath>

#include "vulkan/profile.h"
#include "vulkan/vulkan_tier.h"

namespace sharpi::testing {
namespace {

using vulkan::DeviceKind;
using vulkan::PhysicalDevice;
using vulkan::Profile;

struct Posed {
  const char* name;
  DeviceKind kind;
  uint32_t subgroup_size, shared_bytes, max_invocations;
};

/// Of Intel (8, 16, 32), NVIDIA (32), AMD (32, 64), phones (16 to 128), and the least that Vulkan
/// allows.
constexpr Posed kClasses[] = {{"least", DeviceKind::kIntegrated, 8, 16384, 128},
                              {"intel", DeviceKind::kIntegrated, 16, 32768, 1024},
                              {"nvidia", DeviceKind::kDiscrete, 32, 49152, 1024},
                              {"amd", DeviceKind::kDiscrete, 64, 65536, 1024},
                              {"phone", DeviceKind::kIntegrated, 128, 32768, 1024},
                              {"virtual", DeviceKind::kVirtual, 32, 65536, 512},
                              {"software", DeviceKind::kSoftware, 8, 32768, 1024},
                              {"wide_software", DeviceKind::kSoftware, 16, 16384, 1024}};

PhysicalDevice pose(PhysicalDevice device, const Posed& as) {
  device.kind = as.kind;
  device.subgroup_size = as.subgroup_size;
  device.shared_bytes = as.shared_bytes;
  device.max_invocations = as.max_invocations;
  device.id = std::string("vulkan-posed-") + as.name;
  return device;
}

TEST(VulkanProfiles, TakeNoMoreThanTheDeviceHas) {
  for (const Posed& as : kClasses) {
    SCOPED_TRACE(as.name);
    const Profile p = make_profile(pose({}, as));
    EXPECT_LE(p.most_threads, as.max_invocations);
    EXPECT_GE(p.threads, 8u);
    EXPECT_LE(p.threads, 64u);  // shaders have room for so many
    EXPECT_LE(p.gathering_threads, std::min(256u, as.max_invocations));
    for (uint32_t dim = 8; dim <= 512; dim += 8) {
      const uint32_t rows = p.attention_tile(dim);
      EXPECT_GE(rows, 1u);
      EXPECT_LE(rows, p.attention_rows);
      EXPECT_LE(vulkan::attention_shared_bytes(rows, dim), as.shared_bytes) << dim;
    }
  }
}

TEST(VulkanProfiles, GiveAttentionTheRoomThatThereIs) {
  const auto tile = [](const Posed& as, uint32_t dim) {
    return make_profile(pose({}, as)).attention_tile(dim);
  };
  EXPECT_EQ(tile(kClasses[0], 512), 2u);
  EXPECT_EQ(tile(kClasses[1], 512), 4u);
  EXPECT_EQ(tile(kClasses[2], 512), 8u);
  for (const Posed& as : kClasses) EXPECT_EQ(tile(as, 128), 8u);
  EXPECT_EQ(make_profile(pose({}, kClasses[6])).threads, 8u);
  EXPECT_EQ(make_profile(pose({}, kClasses[3])).threads, 64u);
}

const Posed* posed = nullptr;

Result<std::vector<std::unique_ptr<Backend>>> host_and_class(const BackendOptions&) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, small_cpu());
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::move(host));
  std::string why;
  PhysicalDevice real = vulkan_device(&why)->physical();
  PhysicalDevice physical = pose(real, *posed);
  physical.shared_bytes = std::min(physical.shared_bytes, real.shared_bytes);
  out.push_back(vulkan::make_backend(std::make_shared<vulkan::Device>(physical, 1)));
  return out;
}

class VulkanClasses : public ::testing::TestWithParam<test::ModelRecipe> {};

/// A prompt and steps, with the sums of workgroups of several subgroups, and other tiles.
TEST_P(VulkanClasses, AreNearTheCpu) {
  SHARPI_NEEDS_VULKAN();
  const MadeModel file(GetParam());
  std::vector<Logits> want;
  for (const Posed& as : {kClasses[0], kClasses[7]}) {
    SCOPED_TRACE(as.name);
    posed = &as;
    auto engine = InnerEngine::open(file.path(), &host_and_class);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    for (const uint32_t device : {0u, 1u}) {
      if (device == 0 && !want.empty()) continue;
      auto plan = engine.value().plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
        s->k_dtype = s->v_dtype = SHARPI_KV_F32;
        p->arithmetic = SHARPI_ARITHMETIC_EXACT;
        p->device = device;
        p->n_gpu_layers = device == 0 ? 0 : -1;
        p->n_chunk = 64;
      });
      ASSERT_TRUE(plan.is_ok()) << plan.status().text();
      auto model = Model::load(engine.value().context, plan.value(), nullptr);
      ASSERT_TRUE(model.is_ok()) << model.status().text();
      const auto s = make_session(model.value(), plan.value()->session);
      prefill(s.get(), file.tokens(100));
      std::vector<Logits> got{logits_of(*s, *engine.value().spec)};
      decode(s.get(), 3);
      got.push_back(logits_of(*s, *engine.value().spec));
      if (device == 0) want = got;
      for (size_t i = 0; i < got.size(); ++i) {
        const double d = distance(got[i], want[i]);
        EXPECT_TRUE(std::isfinite(d));
        EXPECT_LE(d, kNear);
      }
    }
  }
}

test::ModelRecipe wide_heads() {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.head_dim = 256;
  return recipe;
}

INSTANTIATE_TEST_SUITE_P(Kinds, VulkanClasses,
                         ::testing::Values(wide_heads(), test::tiny_gemma3(), test::tiny_qwen3moe(),
                                           test::tiny_qwen35()),
                         [](const ::testing::TestParamInfo<test::ModelRecipe>& p) {
                           return p.param.arch + "_" + std::to_string(p.index);
                         });

}  // namespace
}  // namespace sharpi::testing
