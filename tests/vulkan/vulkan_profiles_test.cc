// SPDX-License-Identifier: MIT
// Shapes of launches by class of device: none takes more than the device has, and models give the
// same with the shapes of devices that are not here, as far as this one can run them.
#include <cmath>
#include <tuple>

#include "engine/engine_case.h"
#include "engine/session_blob.h"
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
    for (uint32_t dim = 8; dim <= 1024; dim += 8) {
      const uint32_t rows = p.attention_tile(dim);
      EXPECT_GE(rows, 1u);
      EXPECT_LE(rows, p.attention_rows);
      EXPECT_LE(vulkan::attention_shared_bytes(rows, dim), as.shared_bytes) << dim;
      if (p.least_shares == 0) continue;
      for (const uint32_t group : {1u, 5u, 6u, 8u, 16u}) {
        const uint32_t heads = p.step_heads(dim, group);
        EXPECT_EQ(group % heads, 0u);
        EXPECT_LE(vulkan::step_shared_bytes(heads, dim, p.step_threads), as.shared_bytes) << dim;
        const vulkan::LaneShape lanes = p.lane_shape(dim, group);
        EXPECT_LE(vulkan::lane_shared_bytes(lanes), as.shared_bytes) << dim;
        if (lanes.heads == 0) continue;
        EXPECT_EQ(group % lanes.heads, 0u);
        EXPECT_GE(lanes.each * lanes.lanes, dim);
        EXPECT_LE(lanes.lanes, as.subgroup_size);
      }
    }
  }
}

/// What a device lacks is not in its profile; and what kernels take is there.
TEST(VulkanProfiles, HaveWhatTheDeviceMultiplies) {
  for (const Posed& as : kClasses) {
    SCOPED_TRACE(as.name);
    PhysicalDevice device = pose({}, as);
    EXPECT_FALSE(make_profile(device).byte_dots);
    EXPECT_EQ(make_profile(device).matrix_threads, 0u);
    device.byte_dots = true;
    const bool gpu = as.kind != DeviceKind::kSoftware;
    EXPECT_EQ(make_profile(device).byte_dots, gpu);
    for (const auto& [shape, bytes] : {std::pair{vulkan::MatrixShape{16, 16, 16}, 48u << 10},
                                       {vulkan::MatrixShape{8, 16, 16}, 32u << 10},
                                       {vulkan::MatrixShape{8, 8, 8}, 21u << 10}}) {
      device.matrix = shape;
      const Profile p = make_profile(device);
      const bool fits = gpu && 8 * as.subgroup_size <= as.max_invocations &&
                        as.shared_bytes >= bytes && shape.m * shape.n <= 16 * as.subgroup_size;
      EXPECT_EQ(p.matrix_threads, fits ? 8 * as.subgroup_size : 0u) << bytes;
      EXPECT_LE(vulkan::matrix_shared_bytes(shape), bytes);
      EXPECT_EQ(p.matrix_attention, fits && as.subgroup_size == 32 && shape.size() == 4096)
          << bytes;
    }
    device.subgroup_size = 4;  // runs of 32 elements take eight threads
    EXPECT_FALSE(make_profile(device).byte_dots);
  }
}

TEST(VulkanProfiles, AskForMoreSharesOfFewerWorkgroups) {
  const Profile p = make_profile(pose({}, kClasses[2]));
  EXPECT_EQ(p.shares(64), 32u);
  EXPECT_EQ(p.shares(8), 64u);
  EXPECT_EQ(p.shares(1), 128u);
  EXPECT_EQ(make_profile(pose({}, kClasses[6])).least_shares, 0u);
}

/// Threads that go over a stored row together are of one subgroup, and a group's heads are shared
/// by as few workgroups as have room for their sums.
TEST(VulkanProfiles, HaveThreadsForTheElementsOfAHead) {
  const auto is = [](const Posed& as, uint32_t dim, uint32_t group, vulkan::LaneShape want) {
    const vulkan::LaneShape got = make_profile(pose({}, as)).lane_shape(dim, group);
    EXPECT_EQ(got.heads, want.heads) << as.name << dim << "," << group;
    EXPECT_EQ(got.each, want.each) << as.name << dim << "," << group;
    EXPECT_EQ(got.lanes, want.lanes) << as.name << dim << "," << group;
  };
  is(kClasses[2], 128, 4, {4, 16, 8});
  is(kClasses[2], 128, 8, {8, 8, 16});
  is(kClasses[2], 256, 6, {6, 8, 32});
  is(kClasses[2], 80, 2, {2, 16, 8});
  is(kClasses[2], 32, 1, {1, 16, 4});
  is(kClasses[2], 512, 16, {4, 16, 32});  // eight would need 64 threads
  is(kClasses[3], 512, 16, {8, 8, 64});
  is(kClasses[2], 576, 20, {});
  is(kClasses[2], 72, 2, {});
  is(kClasses[0], 256, 2, {});
  is(kClasses[6], 128, 4, {});  // has no shares
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
  physical.subgroup_size = std::min(physical.subgroup_size, real.subgroup_size);
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

/// `fast`: rows in 8 and 16 bits where the device multiplies those, attention in shares of stored
/// rows and by matrices where it has them; chunks of many rows, one of few, and steps.
class VulkanFast : public ::testing::TestWithParam<std::pair<test::ModelRecipe, int32_t>> {};

TEST_P(VulkanFast, IsNearTheExactCpu) {
  SHARPI_NEEDS_VULKAN();
  const MadeModel file(GetParam().first);
  posed = &kClasses[2];
  auto engine = InnerEngine::open(file.path(), &host_and_class);
  ASSERT_TRUE(engine.is_ok()) << engine.status().text();
  std::vector<Logits> got[2];
  for (const uint32_t device : {0u, 1u}) {
    auto plan = engine.value().plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
      s->k_dtype = s->v_dtype = GetParam().second;
      p->arithmetic = device == 0 ? SHARPI_ARITHMETIC_EXACT : SHARPI_ARITHMETIC_FAST;
      p->device = device;
      p->n_gpu_layers = device == 0 ? 0 : -1;
    });
    ASSERT_TRUE(plan.is_ok()) << plan.status().text();
    auto model = Model::load(engine.value().context, plan.value(), nullptr);
    ASSERT_TRUE(model.is_ok()) << model.status().text();
    const auto s = make_session(model.value(), plan.value()->session);
    for (const int32_t n : {150, 70, 5}) {
      prefill(s.get(), file.tokens(n));
      got[device].push_back(logits_of(*s, *engine.value().spec));
    }
    decode(s.get(), 3);
    got[device].push_back(logits_of(*s, *engine.value().spec));
  }
  for (size_t i = 0; i < got[0].size(); ++i) {
    double most = 0;
    for (const float x : got[0][i]) most = std::max(most, std::fabs(double{x}));
    const double d = distance(got[0][i], got[1][i]);
    EXPECT_TRUE(std::isfinite(d));
    EXPECT_LE(d, 0.05 * most) << i;
  }
}

/// A step's attention whose shares of stored rows have several tiles each: workgroups of few
/// threads have small ones, and many KV heads few shares. The prompt is read by the CPU. Rows of
/// all codecs begin at multiples of 16 bytes (not with heads of 80), and heads are as wide as those
/// of real models; of 256 no subgroup here has room for one.
struct SharedHeads {
  uint32_t dim, kv_heads, group;
};
class VulkanShares : public ::testing::TestWithParam<SharedHeads> {};

TEST_P(VulkanShares, OfSeveralTilesAreNearTheCpu) {
  SHARPI_NEEDS_VULKAN();
  static constexpr Posed kNarrow{"narrow", DeviceKind::kDiscrete, 8, 49152, 32};
  constexpr int32_t kPrompt = 600;  // 32 shares of tiles of 8: three tiles each
  posed = &kNarrow;
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_layers = 1;
  recipe.head_dim = GetParam().dim;
  recipe.n_kv_heads = GetParam().kv_heads;
  recipe.n_heads = GetParam().group * recipe.n_kv_heads;
  const MadeModel file(recipe);
  auto engine = InnerEngine::open(file.path(), &host_and_class);
  ASSERT_TRUE(engine.is_ok()) << engine.status().text();
  for (const int32_t codec : {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0, SHARPI_KV_Q4}) {
    SCOPED_TRACE(codec);
    std::vector<Logits> got;
    std::vector<std::byte> blob;
    for (const uint32_t device : {0u, 1u}) {
      auto plan = engine.value().plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
        s->k_dtype = s->v_dtype = codec;
        s->n_ctx = 640;
        p->arithmetic = SHARPI_ARITHMETIC_EXACT;
        p->device = device;
        p->n_gpu_layers = device == 0 ? 0 : -1;
      });
      ASSERT_TRUE(plan.is_ok()) << plan.status().text();
      auto model = Model::load(engine.value().context, plan.value(), nullptr);
      ASSERT_TRUE(model.is_ok()) << model.status().text();
      const auto s = make_session(model.value(), plan.value()->session);
      if (device == 0) {
        prefill(s.get(), file.tokens(kPrompt));
        const auto bytes = s->save_bytes();
        ASSERT_TRUE(bytes.is_ok());
        blob.resize(bytes.value());
        MemorySink sink(blob.data());
        ASSERT_TRUE(s->save(&sink, blob.size()).is_ok());
      } else {
        MemorySource source(blob.data(), blob.size());
        const Status read = s->restore(&source, blob.size());
        ASSERT_TRUE(read.is_ok()) << read.text();
      }
      decode(s.get(), 3);
      got.push_back(logits_of(*s, *engine.value().spec));
    }
    EXPECT_LE(distance(got[0], got[1]), kNear);
  }
}
INSTANTIATE_TEST_SUITE_P(Heads, VulkanShares,
                         ::testing::Values(SharedHeads{32, 16, 1}, SharedHeads{128, 4, 2},
                                           SharedHeads{256, 2, 2}, SharedHeads{128, 2, 4},
                                           SharedHeads{64, 8, 8}, SharedHeads{96, 8, 3},
                                           SharedHeads{80, 2, 2}),
                         [](const ::testing::TestParamInfo<SharedHeads>& p) {
                           return std::to_string(p.param.group) + "_heads_of_" +
                                  std::to_string(p.param.dim);
                         });

/// Rows in 8 bits are off by up to a 254th of the largest of 32 elements, which layers carry on.
constexpr double kNearInBytes = 0.03;

/// A format of a file in `fast`, with few rows and with many, of a dense model and of one with
/// routed experts.
class VulkanFastWeights : public ::testing::TestWithParam<std::tuple<GgmlType, bool>> {};

TEST_P(VulkanFastWeights, AreNearTheExactCpu) {
  SHARPI_NEEDS_VULKAN();
  posed = &kClasses[2];
  const auto [type, experts] = GetParam();
  test::ModelRecipe recipe = experts ? test::tiny_qwen3moe() : test::tiny_qwen3();
  recipe.n_layers = 1;
  recipe.n_embd = recipe.d_ff = recipe.d_expert = 256;
  recipe.matrix_type = recipe.table_type = type;
  const MadeModel file(recipe);
  auto engine = InnerEngine::open(file.path(), &host_and_class);
  ASSERT_TRUE(engine.is_ok()) << engine.status().text();
  std::vector<Logits> got;
  for (const uint32_t device : {0u, 1u}) {
    auto plan = engine.value().plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
      s->k_dtype = s->v_dtype = SHARPI_KV_F32;
      p->arithmetic = device == 0 ? SHARPI_ARITHMETIC_EXACT : SHARPI_ARITHMETIC_FAST;
      p->device = device;
      p->n_gpu_layers = device == 0 ? 0 : -1;
    });
    ASSERT_TRUE(plan.is_ok()) << plan.status().text();
    auto model = Model::load(engine.value().context, plan.value(), nullptr);
    ASSERT_TRUE(model.is_ok()) << model.status().text();
    const auto s = make_session(model.value(), plan.value()->session);
    for (const int32_t n : {9, 90}) {
      prefill(s.get(), file.tokens(n));
      got.push_back(logits_of(*s, *engine.value().spec));
    }
  }
  for (const size_t i : {0u, 1u}) {
    const double d = distance(got[i], got[i + 2]);
    double most = 0;
    for (const float x : got[i]) most = std::max(most, std::fabs(double{x}));
    EXPECT_GT(most, 0.01);  // else nothing was multiplied
    EXPECT_TRUE(std::isfinite(d));
    EXPECT_LE(d, kNearInBytes * most);
  }
}

constexpr GgmlType kFormats[] = {
    GgmlType::kQ8_0,   GgmlType::kQ4_0,   GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
    GgmlType::kQ2_K,   GgmlType::kQ3_K,   GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K,
    GgmlType::kIQ4_NL, GgmlType::kIQ4_XS, GgmlType::kMXFP4};
std::string format_name(const ::testing::TestParamInfo<std::tuple<GgmlType, bool>>& p) {
  return ggml_traits(std::get<0>(p.param)).name;
}
INSTANTIATE_TEST_SUITE_P(Dense, VulkanFastWeights,
                         ::testing::Combine(::testing::ValuesIn(kFormats),
                                            ::testing::Values(false)),
                         format_name);
INSTANTIATE_TEST_SUITE_P(Experts, VulkanFastWeights,
                         ::testing::Combine(::testing::Values(GgmlType::kQ8_0, GgmlType::kQ4_K,
                                                              GgmlType::kQ6_K, GgmlType::kMXFP4),
                                            ::testing::Values(true)),
                         format_name);

test::ModelRecipe wide_heads() {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.head_dim = 256;
  return recipe;
}

test::ModelRecipe widest_heads() {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.head_dim = 512;
  return recipe;
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, VulkanFast,
    ::testing::Values(std::pair(test::tiny_qwen3(), SHARPI_KV_BF16),
                      std::pair(wide_heads(), SHARPI_KV_F32),
                      std::pair(widest_heads(), SHARPI_KV_BF16),
                      std::pair(test::tiny_gemma3(), SHARPI_KV_Q8_0),
                      std::pair(test::tiny_qwen35(), SHARPI_KV_Q4),
                      std::pair(test::tiny_qwen3moe(), SHARPI_KV_BF16),
                      std::pair(test::tiny_nemotron(), SHARPI_KV_BF16),
                      std::pair(wide_latents(), SHARPI_KV_Q8_0)),
    [](const ::testing::TestParamInfo<std::pair<test::ModelRecipe, int32_t>>& p) {
      return p.param.first.arch + "_" + std::to_string(p.index);
    });

INSTANTIATE_TEST_SUITE_P(Kinds, VulkanClasses,
                         ::testing::Values(wide_heads(), test::tiny_gemma3(), test::tiny_qwen3moe(),
                                           test::tiny_qwen35(), test::tiny_granite(),
                                           wide_latents()),
                         recipe_name);

}  // namespace
}  // namespace sharpi::testing
