// SPDX-License-Identifier: MIT
// All ways of the Vulkan tier: splits, weights that stream, drafts, forks, saved sessions,
// compaction, KV codecs, and memory: what is taken is what the plan says. Every one is near what
// the CPU tier computes alone.
#include <algorithm>
#include <cmath>
#include <thread>

#include "engine/engine_case.h"
#include "engine/session_blob.h"
#include "vulkan/driver.h"
#include "vulkan/vulkan_tier.h"

namespace sharpi::testing {
namespace {

class VulkanWays : public ::testing::TestWithParam<test::ModelRecipe> {
 protected:
  void SetUp() override {
    SHARPI_NEEDS_VULKAN();
    file_.emplace(GetParam());
    auto engine = InnerEngine::open(file_->path(), &host_and_vulkan);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    engine_ = engine.take();
  }

  Result<std::shared_ptr<Model>> load(int32_t layers, const Edit& edit = {}) const {
    SHARPI_TRY_ASSIGN(auto plan, engine_.plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
      s->k_dtype = s->v_dtype = SHARPI_KV_F32;
      p->arithmetic = SHARPI_ARITHMETIC_EXACT;
      p->device = layers == 0 ? 0 : 1;
      p->n_gpu_layers = layers;
      p->n_chunk = 64;
      p->n_sessions = 4;
      p->stream_rows = SHARPI_UNSET;
      if (edit) edit(p, s);
    }));
    return Model::load(engine_.context, plan, nullptr);
  }
  /// Null where this kind of model cannot be placed so.
  std::shared_ptr<Model> open(int32_t layers, const Edit& edit = {}) const {
    auto model = load(layers, edit);
    EXPECT_TRUE(model.is_ok() || model.status().code() == Code::kUnsupported)
        << model.status().text();
    return model.is_ok() ? model.take() : nullptr;
  }
  std::unique_ptr<Session> session(const std::shared_ptr<Model>& model) const {
    return make_session(model, model->plan().session);
  }
  /// Logits after a prompt of a whole chunk and a part of one, and after each of n tokens.
  std::vector<Logits> talk(Session* s, int32_t n = 3) const {
    std::vector<Logits> out;
    prefill(s, file_->tokens(100));
    out.push_back(logits_of(*s, *engine_.spec));
    for (int32_t t = 0; t < n; ++t) {
      decode(s, 3 + t % 40);
      out.push_back(logits_of(*s, *engine_.spec));
    }
    return out;
  }
  std::vector<Logits> talk(const std::shared_ptr<Model>& model, int32_t n = 3) const {
    return talk(session(model).get(), n);
  }
  static double apart(const std::vector<Logits>& a, const std::vector<Logits>& b) {
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double d = distance(a[i], b.at(i));
      most = std::isfinite(d) ? std::max(most, d) : INFINITY;
    }
    return most;
  }
  bool is_moe() const {
    return std::any_of(engine_.spec->layers.begin(), engine_.spec->layers.end(),
                       [](const LayerSpec& l) { return l.ffn.kind == FfnKind::kMoe; });
  }
  int32_t n_layers() const { return static_cast<int32_t>(engine_.spec->n_layers()); }
  std::optional<MadeModel> file_;
  InnerEngine engine_;
};

TEST_P(VulkanWays, SplitsAndStreamsAreNearTheCpu) {
  const auto want = talk(open(0));
  for (int32_t layers = 1; layers <= n_layers(); ++layers) {
    for (const int32_t ffn : {0, layers}) {
      for (const uint32_t stream : {SHARPI_UNSET, 40u}) {
        const auto model = open(layers, [=](sharpi_plan_params* p, sharpi_session_params*) {
          p->n_gpu_ffn = ffn;
          p->stream_rows = stream;
        });
        if (model == nullptr) continue;
        EXPECT_LE(apart(talk(model), want), kNear)
            << layers << " layers, " << ffn << " FFNs, streams from " << stream;
      }
    }
  }
}

void few_slots(sharpi_plan_params* p, sharpi_session_params*) {
  p->n_gpu_experts = 0;
  p->n_expert_slots = 6;
}
void no_slots(sharpi_plan_params* p, sharpi_session_params*) {
  p->n_gpu_experts = p->n_expert_slots = 0;
}

/// Rows of a chunk have the bits of steps, and those of other chunks.
TEST_P(VulkanWays, DeterministicRowsDoNotDependOnChunks) {
  const auto model =
      open(n_layers(), [](sharpi_plan_params* p, sharpi_session_params*) { p->deterministic = 1; });
  ASSERT_TRUE(model);
  std::vector<Logits> got;
  for (const std::ptrdiff_t first : {0, 30, 59}) {
    const auto s = session(model);
    const std::vector<int32_t> tokens = file_->tokens(60);
    const auto at = tokens.begin() + first;
    if (first != 0) prefill(s.get(), {tokens.begin(), at});
    if (first == 59) {
      decode(s.get(), *at);
    } else {
      prefill(s.get(), {at, tokens.end()});
    }
    got.push_back(logits_of(*s, *engine_.spec));
  }
  EXPECT_EQ(got[1], got[0]);
  EXPECT_EQ(got[2], got[0]);
}

/// Experts on the host, asked for in recorded steps; and those that come into slots by and by.
TEST_P(VulkanWays, ExpertsOfTheHostAndInSlotsAreNearTheCpu) {
  if (!is_moe()) GTEST_SKIP() << "no experts";
  const auto want = talk(open(0), 24);
  const auto apart_from_host = open(n_layers(), &no_slots);
  ASSERT_TRUE(apart_from_host);
  EXPECT_LE(apart(talk(apart_from_host, 24), want), kNear);
  const auto model = open(n_layers(), &few_slots);
  ASSERT_TRUE(model);
  EXPECT_LE(apart(talk(model, 24), want), kNear);
  const sharpi_expert_stats stats = model->expert_stats();
  EXPECT_EQ(stats.n_slots, 6u);
  EXPECT_GT(stats.n_hits, 0u);
  EXPECT_GT(stats.n_promotions, 0u);
}

/// With a slot for each expert, steps go on without an answer of the host.
TEST_P(VulkanWays, ExpertsThatAllHaveSlotsAreNearTheCpu) {
  if (!is_moe()) GTEST_SKIP() << "no experts";
  const auto want = talk(open(0), 6);
  for (const uint32_t stream : {SHARPI_UNSET, 40u}) {
    const auto model = open(n_layers(), [=](sharpi_plan_params* p, sharpi_session_params*) {
      p->n_gpu_experts = 0;
      p->n_expert_slots = -1;
      p->stream_rows = stream;
    });
    ASSERT_TRUE(model);
    EXPECT_EQ(model->plan().placement.n_expert_slots,
              model->plan().placement.n_parted_experts(*engine_.spec));
    EXPECT_LE(apart(talk(model, 6), want), kNear) << "streams from " << stream;
    EXPECT_EQ(model->expert_stats().n_hits, model->expert_stats().n_uses);
  }
}

/// Sessions take turns, each with steps that ask the host.
TEST_P(VulkanWays, SessionsOfSeveralThreadsAskForExperts) {
  if (!is_moe()) GTEST_SKIP() << "no experts";
  const auto model = open(n_layers(), [](sharpi_plan_params* p, sharpi_session_params* s) {
    few_slots(p, s);
    p->max_concurrent = 2;
  });
  ASSERT_TRUE(model);
  const auto want = talk(open(0), 8);
  std::vector<Logits> got[2];
  std::vector<std::thread> threads;
  for (auto& one : got) threads.emplace_back([&] { one = talk(model, 8); });
  for (std::thread& t : threads) t.join();
  for (const auto& one : got) EXPECT_LE(apart(one, want), kNear);
}

TEST_P(VulkanWays, ForksAndSavedSessionsGoOnAlike) {
  const auto model = open(-1);
  ASSERT_TRUE(model);
  const auto s = session(model);
  talk(s.get());
  auto forked = s->fork();
  ASSERT_TRUE(forked.is_ok()) << forked.status().text();
  auto bytes = s->save_bytes();
  ASSERT_TRUE(bytes.is_ok());
  std::vector<std::byte> blob(bytes.value());
  MemorySink sink(blob.data());
  ASSERT_TRUE(s->save(&sink, blob.size()).is_ok());
  const auto restored = session(model);
  MemorySource source(blob.data(), blob.size());
  const Status read = restored->restore(&source, blob.size());
  ASSERT_TRUE(read.is_ok()) << read.text();
  std::vector<Logits> next;
  for (Session* one : {s.get(), forked.value().get(), restored.get()}) {
    decode(one, 7);
    next.push_back(logits_of(*one, *engine_.spec));
  }
  EXPECT_TRUE(same_bits(next[1], next[0])) << "fork";
  EXPECT_TRUE(same_bits(next[2], next[0])) << "restored";
}

TEST_P(VulkanWays, DraftsThatAreRightChangeNothing) {
  const Edit drafts = [](sharpi_plan_params*, sharpi_session_params* s) { s->n_draft = 3; };
  const auto model = open(-1, drafts);
  ASSERT_TRUE(model);
  const auto a = session(model), b = session(model);
  prefill(a.get(), file_->tokens(70));
  prefill(b.get(), file_->tokens(70));
  sharpi_sample_params drawn;
  sharpi_sample_params_init(&drawn, sizeof drawn);
  sharpi_sampler_params sampler;
  sharpi_sampler_params_init(&sampler, sizeof sampler);
  sampler.temperature = 0.0f;
  ASSERT_TRUE(b->set_sampler(sampler).is_ok());
  uint32_t n_right = 0;
  for (int32_t round = 0; round < 6; ++round) {
    auto ahead = a->fork();
    ASSERT_TRUE(ahead.is_ok()) << ahead.status().text();
    std::vector<int32_t> said;
    for (int32_t i = 0; i < 4; ++i) {
      Session* f = ahead.value().get();
      said.push_back(static_cast<int32_t>(best_of(logits_of(*f, *engine_.spec))));
      decode(f, said.back());
    }
    uint32_t n_read = 0;
    const Status read = b->verify(said, drawn, &n_read);
    ASSERT_TRUE(read.is_ok()) << read.text();
    for (uint32_t i = 0; i < n_read; ++i) decode(a.get(), said[i]);
    n_right += n_read - 1;
    EXPECT_LE(distance(logits_of(*a, *engine_.spec), logits_of(*b, *engine_.spec)), kNear);
  }
  EXPECT_GE(n_right, 3u * 6u - 1u);
}

TEST_P(VulkanWays, CompactionKeepsWhatTheCpuKeeps) {
  const Edit captures = [](sharpi_plan_params*, sharpi_session_params* s) {
    s->capture_window = 16;
  };
  const auto cpu = open(0, captures), whole = open(-1, captures);
  ASSERT_TRUE(whole);
  const std::vector<int32_t> probe = file_->tokens(134, 9);
  for (const sharpi_policy policy : {SHARPI_POLICY_RETRIEVAL, SHARPI_POLICY_SNAPKV,
                                     SHARPI_POLICY_VALUE, SHARPI_POLICY_DEFENSIVE}) {
    for (const uint32_t n_probe : {0u, 134u}) {  // none, and one of more than two chunks
      std::vector<std::vector<uint32_t>> kept;
      std::vector<Logits> after;
      for (const auto& model : {cpu, whole}) {
        const auto s = session(model);
        talk(s.get());
        sharpi_compact_params p;
        sharpi_compact_params_init(&p, sizeof p);
        p.policy = policy;
        p.budget = 60;
        p.recency = 8;
        p.sinks = 2;
        p.n_probe = n_probe;
        p.probe = probe.data();
        sharpi_compact_report report{};
        const Status done = s->compact(p, &report);
        ASSERT_TRUE(done.is_ok()) << done.text();
        for (uint32_t l = 0; l < engine_.spec->n_layers(); ++l) {
          const LayerSpec& layer = engine_.spec->layers[l];
          if (layer.attends_to_all() == nullptr || !layer.owns_kv()) continue;
          kept.emplace_back();
          ASSERT_TRUE(s->kept(l, 0, &kept.back()).is_ok());
        }
        decode(s.get(), 5);
        after.push_back(logits_of(*s, *engine_.spec));
      }
      const size_t half = kept.size() / 2;
      for (size_t i = 0; i < half; ++i)
        EXPECT_EQ(kept[i], kept[half + i]) << "policy " << policy << ", probe " << n_probe;
      EXPECT_LE(distance(after[0], after[1]), kNear)
          << "policy " << policy << ", probe " << n_probe;
    }
  }
}

/// A stored element on the border between two codes may round to either, which shows.
constexpr double kCodecNear = 0.05;

/// Near the CPU with rows of the same codec.
TEST_P(VulkanWays, EveryCodecIsNearTheCpu) {
  for (const uint32_t dtype : {SHARPI_KV_BF16, SHARPI_KV_Q8_0, SHARPI_KV_Q4}) {
    const Edit stored = [=](sharpi_plan_params*, sharpi_session_params* s) {
      s->k_dtype = s->v_dtype = dtype;
    };
    const auto host = open(0, stored), whole = open(-1, stored);
    if (host == nullptr) continue;  // heads that this codec does not take
    ASSERT_TRUE(whole);
    EXPECT_LE(apart(talk(whole), talk(host)), kCodecNear) << "codec " << dtype;
  }
}

/// A row of weights is what the CPU tier takes it for, in every format of a file, in products and
/// as an embedding.
TEST(VulkanWeights, EveryFormatIsNearTheCpu) {
  SHARPI_NEEDS_VULKAN();
  for (const GgmlType type :
       {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_0,
        GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kQ2_K, GgmlType::kQ3_K,
        GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kIQ4_NL, GgmlType::kIQ4_XS,
        GgmlType::kMXFP4}) {
    SCOPED_TRACE(ggml_traits(type).name);
    test::ModelRecipe recipe = test::tiny_qwen3();
    recipe.n_layers = 1;
    recipe.n_embd = recipe.d_ff = 256;
    recipe.matrix_type = recipe.table_type = type;
    const MadeModel file(recipe);
    auto engine = InnerEngine::open(file.path(), &host_and_vulkan);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    std::vector<Logits> got;
    for (const uint32_t device : {0u, 1u}) {
      auto plan = engine.value().plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
        s->k_dtype = s->v_dtype = SHARPI_KV_F32;
        p->arithmetic = SHARPI_ARITHMETIC_EXACT;
        p->device = device;
        p->n_gpu_layers = device == 0 ? 0 : -1;
      });
      ASSERT_TRUE(plan.is_ok()) << plan.status().text();
      auto model = Model::load(engine.value().context, plan.value(), nullptr);
      ASSERT_TRUE(model.is_ok()) << model.status().text();
      const auto s = make_session(model.value(), plan.value()->session);
      // Few rows, then more than a tile of them.
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
      EXPECT_LE(d, kNear * std::max(1.0, most));
    }
  }
}

uint64_t device_bytes(const std::vector<MemoryRow>& rows, bool of_sessions) {
  uint64_t n = 0;
  for (const MemoryRow& r : rows) {
    const bool counts = r.kind == SHARPI_ROW_DEVICE && r.transient == 0;
    if (counts && (of_sessions || r.per_session == 0)) n += r.held_bytes;
  }
  return n;
}

/// Bytes of the device, counted where they are allocated, are the plan's, and all of them go back.
TEST_P(VulkanWays, WhatIsTakenIsWhatThePlanSays) {
  std::string why;
  const auto device = vulkan_device(&why);
  ASSERT_TRUE(device && device->open().is_ok());
  const uint64_t before = device->driver().allocated_bytes();
  for (const Edit& placed : {Edit{}, Edit{&few_slots}, Edit{&no_slots}}) {
    if (placed && !is_moe()) continue;
    auto model = placed ? open(n_layers(), placed) : open(-1);
    ASSERT_TRUE(model);
    const uint64_t loaded = device->driver().allocated_bytes();
    EXPECT_EQ(loaded - before, device_bytes(model->plan().rows, false));
    auto s = session(model);
    talk(s.get());
    EXPECT_EQ(device->driver().allocated_bytes() - loaded, device_bytes(s->memory_rows(), true));
    s.reset();
    model.reset();
    EXPECT_EQ(device->driver().allocated_bytes(), before);
  }
}

/// Devices give blocks of 2 to 4 GiB at most; weights of larger models lie in several.
TEST_P(VulkanWays, WeightsInSeveralBlocksAreTheSame) {
  const auto want = talk(open(-1));
  auto engine = InnerEngine::open(file_->path(), &host_and_small_blocks);
  ASSERT_TRUE(engine.is_ok()) << engine.status().text();
  engine_ = engine.take();
  const auto model = open(-1);
  ASSERT_TRUE(model);
  uint64_t weights = 0;
  for (const MemoryRow& r : model->plan().rows)
    if (r.purpose == SHARPI_ROW_WEIGHTS && r.kind == SHARPI_ROW_DEVICE) weights += r.held_bytes;
  EXPECT_GT(weights, uint64_t{128 << 10}) << "there is one block";
  EXPECT_EQ(talk(model), want);
}

/// Slots lie in one block: a plan takes as many as it has room for, and refuses more.
TEST_P(VulkanWays, SlotsAreAsManyAsABlockHolds) {
  if (!is_moe()) GTEST_SKIP() << "no experts";
  auto engine = InnerEngine::open(file_->path(), &host_and_small_blocks);
  ASSERT_TRUE(engine.is_ok()) << engine.status().text();
  engine_ = engine.take();
  const auto with_slots = [&](int32_t n) {
    return load(n_layers(), [=](sharpi_plan_params* p, sharpi_session_params*) {
      p->n_gpu_experts = 0;
      p->n_expert_slots = n;
    });
  };
  const auto automatic = with_slots(-1);
  ASSERT_TRUE(automatic.is_ok()) << automatic.status().text();
  const Plan& plan = automatic.value()->plan();
  const uint64_t n = plan.placement.n_expert_slots,
                 all = plan.placement.n_parted_experts(*engine_.spec);
  EXPECT_EQ(n, std::min<uint64_t>(all, (128 << 10) / plan.expert_slot_bytes - 1));
  if (n == all) return;
  const auto refused = with_slots(static_cast<int32_t>(n + 1));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), Code::kDoesNotFit);
  EXPECT_NE(refused.status().text().find("expert slots"), std::string::npos)
      << refused.status().text();
}

std::vector<test::ModelRecipe> vulkan_recipes() {
  return {test::tiny_qwen3(),    test::tiny_gemma3(),    test::tiny_qwen3moe(),
          test::tiny_olmoe(),    test::tiny_gemma4(),    test::tiny_gemma4kv(),
          test::tiny_qwen35(),   test::tiny_qwen35moe(), test::tiny_gemma4moe(),
          test::tiny_gpt_oss(),  test::tiny_granite(),   test::tiny_nemotron_dense(),
          test::tiny_nemotron(), test::tiny_deepseek2()};
}

INSTANTIATE_TEST_SUITE_P(Kinds, VulkanWays, ::testing::ValuesIn(vulkan_recipes()), recipe_name);

}  // namespace
}  // namespace sharpi::testing
