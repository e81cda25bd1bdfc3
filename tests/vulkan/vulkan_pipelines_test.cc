// SPDX-License-Identifier: MIT
// Compiled pipelines in a folder of caches: they are read again where they fit, and a file that is
// damaged, foreign, or cannot be written harms nothing.
#include <filesystem>
#include <fstream>

#include "vulkan/pipeline_file.h"
#include "vulkan/pipelines.h"
#include "vulkan/vulkan_tier.h"

namespace sharpi::testing {
namespace {

namespace fs = std::filesystem;
using vulkan::PipelineKey;

class VulkanPipelines : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(::testing::TempDir()) / (std::string("sharpi-pipelines-") + info->name());
    fs::remove_all(root_);
    fs::create_directory(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string folder() const { return (root_ / "caches" / "sharpi").string(); }
  static PipelineKey key() {
    PipelineKey k;
    k.device = "vulkan-posed";
    k.vendor = 1;
    k.model = 2;
    k.driver_version = 3;
    k.driver_cache[5] = 4;
    k.shaders = 6;
    return k;
  }
  static std::vector<std::byte> data(size_t n) {
    std::vector<std::byte> out(n);
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(i * 7);
    return out;
  }
  static std::string bytes_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  static void put(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  static size_t n_files(const std::string& folder) {
    const fs::directory_iterator all(folder), end;
    return static_cast<size_t>(std::distance(all, end));
  }
  fs::path root_;
};

TEST_F(VulkanPipelines, AreReadAsTheyWereWritten) {
  EXPECT_TRUE(vulkan::read_pipelines(folder(), key()).empty());
  for (const size_t n : {1u, 4000u, 100u}) {
    ASSERT_TRUE(vulkan::write_pipelines(folder(), key(), data(n)));
    EXPECT_EQ(vulkan::read_pipelines(folder(), key()), data(n));
    EXPECT_EQ(n_files(folder()), 1u) << "what was written on the way is left behind";
  }
}

TEST_F(VulkanPipelines, OfAnotherDriverOrBuildAreNone) {
  ASSERT_TRUE(vulkan::write_pipelines(folder(), key(), data(50)));
  const auto changed = [](auto change) {
    PipelineKey k = key();
    change(&k);
    return k;
  };
  for (const PipelineKey& other : {changed([](PipelineKey* k) { k->vendor = 9; }),
                                   changed([](PipelineKey* k) { k->model = 9; }),
                                   changed([](PipelineKey* k) { k->driver_version = 9; }),
                                   changed([](PipelineKey* k) { k->driver_cache[15] = 9; }),
                                   changed([](PipelineKey* k) { k->shaders = 9; })}) {
    EXPECT_TRUE(vulkan::read_pipelines(folder(), other).empty());
  }
  PipelineKey other = key();
  other.driver_version = 9;
  ASSERT_TRUE(vulkan::write_pipelines(folder(), other, data(60)));
  EXPECT_EQ(vulkan::read_pipelines(folder(), other), data(60));
  EXPECT_TRUE(vulkan::read_pipelines(folder(), key()).empty());
  // A file of another device under this one's name.
  PipelineKey second = key();
  second.device = "vulkan-second";
  fs::copy_file(vulkan::pipeline_file(folder(), other), vulkan::pipeline_file(folder(), second));
  second.driver_version = 9;
  EXPECT_TRUE(vulkan::read_pipelines(folder(), second).empty());
}

TEST_F(VulkanPipelines, ThatAreDamagedAreNone) {
  ASSERT_TRUE(vulkan::write_pipelines(folder(), key(), data(40)));
  const std::string path = vulkan::pipeline_file(folder(), key()), whole = bytes_of(path);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x40);
    put(path, damaged);
    EXPECT_TRUE(vulkan::read_pipelines(folder(), key()).empty()) << "byte " << i;
    put(path, whole.substr(0, i));
    EXPECT_TRUE(vulkan::read_pipelines(folder(), key()).empty()) << i << " bytes";
  }
  put(path, whole + "x");
  EXPECT_TRUE(vulkan::read_pipelines(folder(), key()).empty());
  put(path, whole);
  EXPECT_EQ(vulkan::read_pipelines(folder(), key()), data(40));
}

TEST_F(VulkanPipelines, ThatCannotBeWrittenHarmNothing) {
  EXPECT_FALSE(vulkan::write_pipelines("", key(), data(4)));
  put((root_ / "file").string(), "a file");
  EXPECT_FALSE(vulkan::write_pipelines((root_ / "file").string(), key(), data(4)));
  EXPECT_FALSE(vulkan::write_pipelines((root_ / "file" / "below").string(), key(), data(4)));
  const std::string no_parents = (root_ / "a" / "b" / "c").string();
  EXPECT_FALSE(vulkan::write_pipelines(no_parents, key(), data(4)));
  fs::create_directories(vulkan::pipeline_file(folder(), key()));
  EXPECT_FALSE(vulkan::write_pipelines(folder(), key(), data(4)));
  EXPECT_TRUE(vulkan::read_pipelines(folder(), key()).empty());
  EXPECT_EQ(n_files(folder()), 1u);
}

std::string posed_folder;
const char* posed_id = "";
std::shared_ptr<vulkan::Device> posed_device;

/// The first device under another name, so that it is opened anew.
Result<std::vector<std::unique_ptr<Backend>>> host_and_posed(const BackendOptions&) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, small_cpu());
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::move(host));
  std::string why;
  vulkan::PhysicalDevice physical = vulkan_device(&why)->physical();
  physical.id = posed_id;
  posed_device = std::make_shared<vulkan::Device>(physical, 1, posed_folder);
  out.push_back(vulkan::make_backend(posed_device));
  return out;
}

/// What compacts may be made by the first compaction of a kind; what goes on is there.
void compact_and_go_on(const MadeModel& file, Session* s) {
  for (const sharpi_layer_budget budget : {SHARPI_LAYER_BUDGET_EQUAL, SHARPI_LAYER_BUDGET_SHARED}) {
    sharpi_compact_params c;
    sharpi_compact_params_init(&c, sizeof c);
    c.budget = 24;
    c.layer_budget = budget;
    const Status done = s->compact(c, nullptr);
    ASSERT_TRUE(done.is_ok()) << done.text();
    const size_t made = posed_device->driver().pipelines().n_made();
    for (const uint32_t n_rows : {70u, 5u}) prefill(s, file.tokens(n_rows));
    for (const int32_t token : {3, 4, 5}) decode(s, token);
    EXPECT_EQ(posed_device->driver().pipelines().n_made(), made) << "by budgets " << budget;
  }
}

/// Loads a model on the posed device and asks it for tokens, which needs no other pipelines.
void use_model(const char* id, const std::string& folder,
               const test::ModelRecipe& recipe = test::tiny_qwen3(),
               void (*edit)(sharpi_session_params*) = nullptr) {
  posed_id = id;
  posed_folder = folder;
  const MadeModel file(recipe);
  auto engine = InnerEngine::open(file.path(), &host_and_posed);
  ASSERT_TRUE(engine.is_ok()) << engine.status().text();
  auto plan = engine.value().plan([&](sharpi_plan_params* p, sharpi_session_params* session) {
    p->device = 1;
    p->n_gpu_layers = -1;
    if (edit != nullptr) edit(session);
  });
  ASSERT_TRUE(plan.is_ok()) << plan.status().text();
  auto model = Model::load(engine.value().context, plan.value(), nullptr);
  ASSERT_TRUE(model.is_ok()) << model.status().text();
  const auto s = make_session(model.value(), plan.value()->session);
  const size_t made = posed_device->driver().pipelines().n_made();
  for (const uint32_t n_rows : {70u, 5u, 20u, 2u, 33u}) prefill(s.get(), file.tokens(n_rows));
  decode(s.get(), 3);
  sharpi_sample_params best;
  sharpi_sample_params_init(&best, sizeof best);
  std::array<int32_t, 4> out;
  for (int i = 0; i < 4; ++i) {
    uint32_t n = 0;
    const Status drawn = s->step(best, out, &n);
    EXPECT_TRUE(drawn.is_ok()) << drawn.text();
  }
  EXPECT_EQ(posed_device->driver().pipelines().n_made(), made) << "one is made while tokens come";
  if (plan.value()->session.replay_every != 0) compact_and_go_on(file, s.get());
  posed_device.reset();
}

struct Ready {
  const char* name;
  test::ModelRecipe (*recipe)();
  void (*edit)(sharpi_session_params*) = nullptr;
};
void PrintTo(const Ready& r, std::ostream* out) {
  *out << r.name;
}
class VulkanReady : public ::testing::TestWithParam<Ready> {};

TEST_P(VulkanReady, AllPipelinesAreMadeBeforeTokensCome) {
  SHARPI_NEEDS_VULKAN();
  use_model(GetParam().name, "", GetParam().recipe(), GetParam().edit);
}

INSTANTIATE_TEST_SUITE_P(
    All, VulkanReady,
    ::testing::Values(
        Ready{"qwen3_q8_0", test::tiny_qwen3,
              [](auto* p) { p->k_dtype = p->v_dtype = SHARPI_KV_Q8_0; }},
        Ready{"qwen3_q4", test::tiny_qwen3,
              [](auto* p) { p->k_dtype = p->v_dtype = SHARPI_KV_Q4; }},
        Ready{"qwen3_replay", test::tiny_qwen3, [](auto* p) { p->replay = 1, p->n_ctx = 512; }},
        Ready{"qwen35_checkpoints", test::tiny_qwen35, [](auto* p) { p->n_checkpoints = 2; }},
        Ready{"qwen35_drafts", test::tiny_qwen35, [](auto* p) { p->n_draft = 3; }},
        Ready{"gemma4", test::tiny_gemma4}, Ready{"gemma4moe", test::tiny_gemma4moe},
        Ready{"gpt_oss", test::tiny_gpt_oss}, Ready{"gemma3", test::tiny_gemma3},
        Ready{"granite", test::tiny_granite}, Ready{"qwen3next", test::tiny_qwen3next},
        Ready{"gemma4kv", test::tiny_gemma4kv}, Ready{"qwen35moe", test::tiny_qwen35moe},
        Ready{"qwen3moe", test::tiny_qwen3moe}, Ready{"nemotron", test::tiny_nemotron},
        Ready{"deepseek2", test::tiny_deepseek2}),
    [](const auto& info) { return info.param.name; });

TEST_F(VulkanPipelines, OfALoadedModelAreKeptAndTakenAgain) {
  SHARPI_NEEDS_VULKAN();
  std::string why;
  const auto key_of = [&](const char* id) {
    vulkan::PhysicalDevice physical = vulkan_device(&why)->physical();
    physical.id = id;
    return vulkan::pipeline_key(physical);
  };
  const PipelineKey first = key_of("vulkan-kept-1"), second = key_of("vulkan-kept-2");
  use_model("vulkan-kept-1", folder());
  const auto kept = vulkan::read_pipelines(folder(), first);
  ASSERT_FALSE(kept.empty());
  const std::string path = vulkan::pipeline_file(folder(), second);
  // One that fits, one that is damaged, and one that only the driver can refuse.
  ASSERT_TRUE(vulkan::write_pipelines(folder(), second, kept));
  use_model("vulkan-kept-2", folder());
  EXPECT_FALSE(vulkan::read_pipelines(folder(), second).empty());
  const PipelineKey third = key_of("vulkan-kept-3"), fourth = key_of("vulkan-kept-4");
  put(vulkan::pipeline_file(folder(), third), "no cache");
  use_model("vulkan-kept-3", folder());
  EXPECT_FALSE(vulkan::read_pipelines(folder(), third).empty());
  ASSERT_TRUE(vulkan::write_pipelines(folder(), fourth, data(200)));
  use_model("vulkan-kept-4", folder());
  const auto replaced = vulkan::read_pipelines(folder(), fourth);
  EXPECT_FALSE(replaced.empty());
  EXPECT_NE(replaced, data(200));
}

TEST_F(VulkanPipelines, AreKeptNowhereWithoutAFolderOrWhereItCannotBe) {
  SHARPI_NEEDS_VULKAN();
  use_model("vulkan-kept-5", "");
  put((root_ / "file").string(), "a file");
  use_model("vulkan-kept-6", (root_ / "file").string());
  EXPECT_EQ(n_files(root_.string()), 1u);
}

}  // namespace
}  // namespace sharpi::testing
