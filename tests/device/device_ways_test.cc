// SPDX-License-Identifier: MIT
// All ways of the room of GPU tiers, over a device of host memory: splits, weights that stream,
// expert slots, drafts, forks, saved sessions, compaction. Every one is near what the CPU tier
// computes alone; and where a wait or an upload is missing it is not.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "device/host_tier.h"
#include "engine/engine_case.h"
#include "engine/session_blob.h"

namespace sharpi::testing {
namespace {

class Ways : public ::testing::TestWithParam<test::ModelRecipe> {
 protected:
  void SetUp() override {
    file_.emplace(GetParam());
    auto engine = InnerEngine::open(file_->path(), &host_and_device);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    engine_ = engine.take();
  }
  void TearDown() override { host_faults().drops_waits = host_faults().drops_uploads = false; }

  Result<std::shared_ptr<Model>> load(int32_t layers, const Edit& edit = {}) const {
    SHARPI_TRY_ASSIGN(auto plan, engine_.plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
      s->k_dtype = s->v_dtype = SHARPI_KV_F32;
      p->arithmetic = SHARPI_ARITHMETIC_EXACT;
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

TEST_P(Ways, SplitsAndStreamsAreNearTheCpu) {
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

TEST_P(Ways, ExpertsComeIntoSlots) {
  if (!is_moe()) GTEST_SKIP() << "no experts";
  const auto want = talk(open(0), 24);
  const auto model = open(n_layers(), &few_slots);
  ASSERT_TRUE(model);
  EXPECT_LE(apart(talk(model, 24), want), kNear);
  const sharpi_expert_stats stats = model->expert_stats();
  EXPECT_EQ(stats.n_slots, 6u);
  EXPECT_GT(stats.n_hits, 0u);
  EXPECT_GT(stats.n_promotions, 0u);
}

TEST_P(Ways, ForksAndSavedSessionsGoOnAlike) {
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

/// Saves a session once more in the midst of it, when the first rows have come.
class SavesAgain final : public BlobSink {
 public:
  SavesAgain(const Session& session, std::vector<std::byte>* first, std::vector<std::byte>* second)
      : session_(session), first_(first), second_(second), inner_(second->data()) {}
  Status write(const void* data, uint64_t bytes) override {
    std::memcpy(first_->data() + at_, data, bytes);
    at_ += bytes;
    if (bytes <= kRowPiece / 2 || std::exchange(again_, true)) return Status::ok();
    return session_.save(&inner_, second_->size());
  }
  bool again() const { return again_; }

 private:
  const Session& session_;
  std::vector<std::byte>*first_, *second_;
  MemorySink inner_;
  uint64_t at_ = 0;
  bool again_ = false;
};

/// Rows of three pieces and more are copied ahead of what is written, or one piece after the other
/// where another call copies.
class LongRows : public Ways {};

TEST_P(LongRows, AreSavedAheadPieceByPiece) {
  const auto model = open(-1, [](sharpi_plan_params*, sharpi_session_params* s) {
    s->n_ctx = 4096;
    s->k_dtype = s->v_dtype = SHARPI_KV_F32;
  });
  ASSERT_TRUE(model);
  const auto s = session(model);
  prefill(s.get(), file_->tokens(3200));
  auto bytes = s->save_bytes();
  ASSERT_TRUE(bytes.is_ok());
  std::vector<std::byte> first(bytes.value()), second(bytes.value());
  SavesAgain sink(*s, &first, &second);
  ASSERT_TRUE(s->save(&sink, first.size()).is_ok());
  EXPECT_TRUE(sink.again() && first == second);
  EXPECT_GT(first.size(), 6 * kRowPiece * engine_.spec->n_layers());
  const auto restored = session(model);
  MemorySource source(first.data(), first.size());
  const Status read = restored->restore(&source, first.size());
  ASSERT_TRUE(read.is_ok()) << read.text();
  decode(s.get(), 7);
  decode(restored.get(), 7);
  EXPECT_TRUE(same_bits(logits_of(*restored, *engine_.spec), logits_of(*s, *engine_.spec)));
}

TEST_P(Ways, DraftsThatAreRightChangeNothing) {
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

TEST_P(Ways, CompactionKeepsWhatTheCpuKeeps) {
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

TEST_P(Ways, AMissingWaitShows) {
  const auto want = talk(open(0));
  const auto model = open(n_layers(), [](sharpi_plan_params* p, sharpi_session_params*) {
    p->n_gpu_ffn = 0;
    p->stream_rows = 40;
  });
  if (model == nullptr) GTEST_SKIP() << "nothing streams";
  const auto s = session(model);
  host_faults().drops_waits = true;
  EXPECT_GT(apart(talk(s.get()), want), 10 * kNear);
}

/// Kernels that read an old call table compute what was asked before.
TEST_P(Ways, AMissingUploadShows) {
  const auto want = talk(open(0));
  const auto model = open(-1);
  ASSERT_TRUE(model);
  const auto s = session(model);
  prefill(s.get(), file_->tokens(100));
  host_faults().drops_uploads = true;
  prefill(s.get(), {3});
  EXPECT_GT(distance(logits_of(*s, *engine_.spec), want[1]), 10 * kNear);
}

std::vector<test::ModelRecipe> device_recipes() {
  return {test::tiny_qwen3(),    test::tiny_gemma3(),    test::tiny_qwen3moe(),
          test::tiny_olmoe(),    test::tiny_gemma4(),    test::tiny_gemma4kv(),
          test::tiny_qwen35(),   test::tiny_qwen35moe(), test::tiny_gemma4moe(),
          test::tiny_gpt_oss(),  test::tiny_granite(),   test::tiny_nemotron_dense(),
          test::tiny_nemotron(), test::tiny_deepseek2()};
}

INSTANTIATE_TEST_SUITE_P(Kinds, Ways, ::testing::ValuesIn(device_recipes()), recipe_name);
INSTANTIATE_TEST_SUITE_P(Kinds, LongRows, ::testing::Values(test::tiny_qwen3()), recipe_name);

}  // namespace
}  // namespace sharpi::testing
