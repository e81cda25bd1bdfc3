// SPDX-License-Identifier: MIT
// What the engine does with a split model, seen without a GPU: a second CPU backend plays the GPU,
// so every split must give the very bits of one tier. Routes of few and many rows, the threshold,
// sessions of several formats in one batch, what the model says about its segments.
#include "engine/engine_case.h"
#include "engine/expected_refusals.h"
#include "engine/inner_engine.h"
#include "engine/session_batch.h"
#include "support/faulty_tier.h"
#include "support/second_tier.h"
#include "support/session_rows.h"
#include "tier/block_tensors.h"

namespace sharpi::testing {
namespace {

Faults faults;

Result<std::vector<std::unique_ptr<Backend>>> two_backends(const BackendOptions&) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, small_cpu());
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> other, small_cpu());
  auto watched = std::make_unique<FaultyBackend>(std::move(other), &faults);
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::move(host));
  out.push_back(std::make_unique<SecondBackend>(std::move(watched)));
  return out;
}

using PlanEdit = std::function<void(sharpi_plan_params*)>;
using PlacementEdit = std::function<void(Placement*)>;

class Split : public ::testing::TestWithParam<test::ModelRecipe> {
 protected:
  void SetUp() override {
    faults = Faults{};
    file_.emplace(GetParam());
    auto engine = InnerEngine::open(file_->path(), &two_backends);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    context_ = engine.value().context;
    spec_ = engine.value().spec;
  }
  Result<std::shared_ptr<Model>> open(int32_t layers, int32_t ffn, const PlanEdit& edit = {},
                                      const PlacementEdit& place = {},
                                      KvDtype tail = KvDtype::kF32) {
    const InnerEngine engine{context_, spec_};
    SHARPI_TRY_ASSIGN(auto plan, engine.plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
      s->k_dtype = s->v_dtype = SHARPI_KV_F32;
      s->tail_k_dtype = s->tail_v_dtype = static_cast<sharpi_kv_dtype>(tail);
      p->n_gpu_layers = layers;
      p->n_gpu_ffn = ffn;
      p->n_chunk = 64;
      p->n_sessions = 4;
      p->stream_rows = SHARPI_UNSET;
      if (edit) edit(p);
    }));
    if (place) {
      auto moved = std::make_shared<Plan>(*plan);
      place(&moved->placement);
      moved->rows.clear();
      for (const TierSizer* sizer : context_->sizers()) {
        if (!moved->uses(*sizer)) continue;
        for (MemoryRow& r :
             sizer->session_rows(*spec_, moved->placement, moved->model, moved->session)) {
          moved->rows.push_back(r);
        }
      }
      plan = moved;
    }
    return Model::load(context_, plan, nullptr);
  }
  std::unique_ptr<Session> session(const std::shared_ptr<Model>& model,
                                   KvDtype kv = KvDtype::kF32) const {
    SessionShape shape = model->plan().session;
    for (KvDtypePair& d : shape.dtypes) d = {kv, kv};
    return make_session(model, shape);
  }
  Logits logits(const Session& s) const { return logits_of(s, *spec_); }
  /// Logits after a prompt of a whole chunk and a part of one, and after each of three tokens.
  std::vector<Logits> talk(const std::shared_ptr<Model>& model) const {
    const auto s = session(model);
    std::vector<Logits> out;
    prefill(s.get(), file_->tokens(100));
    out.push_back(logits(*s));
    for (const int32_t t : {3, 4, 5}) {
      decode(s.get(), t);
      out.push_back(logits(*s));
    }
    return out;
  }
  int32_t n_layers() const { return static_cast<int32_t>(spec_->n_layers()); }

  std::optional<MadeModel> file_;
  std::shared_ptr<Context> context_;
  std::shared_ptr<const ModelSpec> spec_;
};

TEST_P(Split, EverySplitGivesTheBitsOfOneTier) {
  auto one = open(0, 0);
  ASSERT_TRUE(one.is_ok()) << one.status().text();
  const auto want = talk(one.value());
  for (int32_t layers = 1; layers <= n_layers(); ++layers) {
    for (int32_t ffn = 0; ffn <= layers; ++ffn) {
      for (const uint32_t stream : {SHARPI_UNSET, 1u, 40u}) {
        for (const int ends : {2, 1, 0}) {  // both, the head, none
          auto model = open(
              layers, ffn, [=](sharpi_plan_params* p) { p->stream_rows = stream; },
              [=](Placement* p) {
                if (ends < 2) p->embedding = DeviceIndex::kHost;
                if (ends < 1) p->head = DeviceIndex::kHost;
              });
          const std::string what = std::to_string(layers) + " layers, " + std::to_string(ffn) +
                                   " FFNs, " + std::to_string(stream) + ", ends " +
                                   std::to_string(ends);
          if (is_expected_refusal(*spec_, layers, model.status().code() == Code::kUnsupported,
                                  model.is_ok(), model.status().text(), what)) {
            continue;
          }
          ASSERT_TRUE(model.is_ok());
          expect_same_rows(talk(model.value()), want, what);
        }
      }
    }
  }
}

uint64_t tensor_bytes(const ModelSpec& spec, BlockKind kind, uint32_t first) {
  uint64_t n = 0;
  for (uint32_t l = first; l < spec.n_layers(); ++l) {
    if (kind == BlockKind::kExperts && spec.layers[l].ffn.kind != FfnKind::kMoe) continue;
    for (const TensorRef& t : block_tensors(spec, Block{kind, l})) n += t.bytes();
  }
  return n;
}

TEST_P(Split, CallsOfManyRowsTakeTheOtherRoute) {
  auto made = open(n_layers(), 1, [](sharpi_plan_params* p) { p->stream_rows = 40; });
  ASSERT_TRUE(made.is_ok()) << made.status().text();
  const auto model = made.take();
  EXPECT_EQ(model->stream_rows(), 40u);
  talk(model);  // 64 rows, 36 rows, three single rows
  const bool moe = spec_->layers[1].ffn.kind == FfnKind::kMoe;
  uint64_t bytes = 0;
  uint32_t n_many = 0, n_streamed = 0;
  for (const sharpi_segment_info& s : model->segment_stats()) {
    EXPECT_GT(s.seconds, 0.0);
    if (s.list == 1) {
      ++n_many;
      n_streamed += s.n_streamed;
      bytes += s.streamed_bytes;
      EXPECT_EQ(s.n_calls, 1u);
      EXPECT_EQ(s.n_rows, 64u);
      EXPECT_EQ(s.tier, SHARPI_TIER_CUDA);
    } else {
      EXPECT_EQ(s.n_streamed, 0u);
      EXPECT_EQ(s.n_calls, 4u);
      EXPECT_EQ(s.n_rows, 36u + 3u);
    }
  }
  EXPECT_EQ(n_many, 1u) << "with every block on one tier there is one segment";
  const auto n_away = static_cast<uint32_t>(n_layers() - 1);
  EXPECT_EQ(n_streamed, moe ? 2 * n_away : n_away);
  EXPECT_EQ(bytes, tensor_bytes(*spec_, BlockKind::kFfn, 1) +
                       tensor_bytes(*spec_, BlockKind::kExperts, 1));
  const std::string json = model->json();
  for (const char* part : {"\"placement\": {", "\"stream_rows\": 40", "\"segments\": [{",
                           "\"streamed_bytes\": ", "\"seconds\": ", "\"paths\": \""}) {
    EXPECT_NE(json.find(part), std::string::npos) << part << " in " << json;
  }
}

TEST_P(Split, NothingStreamsWhereItMayNot) {
  const auto rows_of_plan = [&](int32_t layers, int32_t ffn, const PlanEdit& edit) {
    auto made = open(layers, ffn, edit);
    EXPECT_TRUE(made.is_ok()) << made.status().text();
    if (!made.is_ok()) return 0u;
    EXPECT_EQ(made.value()->plan().summary().stream_rows, made.value()->stream_rows());
    return made.value()->stream_rows();
  };
  EXPECT_EQ(rows_of_plan(n_layers(), 1, {}), SHARPI_UNSET);
  EXPECT_EQ(rows_of_plan(n_layers(), n_layers(), [](auto* p) { p->stream_rows = 2; }),
            SHARPI_UNSET);
  EXPECT_EQ(rows_of_plan(0, 0, [](auto* p) { p->stream_rows = 2; }), SHARPI_UNSET);
  EXPECT_EQ(rows_of_plan(n_layers(), 1, [](auto* p) { p->stream_rows = 65; }), SHARPI_UNSET)
      << "longer than a chunk";
  EXPECT_EQ(rows_of_plan(n_layers(), 1, [](auto* p) { p->stream_rows = 2, p->deterministic = 1; }),
            SHARPI_UNSET)
      << "results would depend on the number of rows";
  EXPECT_EQ(rows_of_plan(n_layers(), 1, [](auto* p) { p->stream_rows = 2; }), 2u);
}

/// Both ways are timed; whichever wins, the answer is a power of two within a chunk, or never.
TEST_P(Split, TheThresholdIsMeasured) {
  auto made = open(n_layers(), 0, [](sharpi_plan_params* p) { p->stream_rows = 0; });
  ASSERT_TRUE(made.is_ok()) << made.status().text();
  const uint32_t rows = made.value()->stream_rows();
  EXPECT_TRUE(rows == SHARPI_UNSET || rows == 16 || rows == 32 || rows == 64) << rows;
  EXPECT_EQ(made.value()->plan().summary().stream_rows, 0u);
  for (const sharpi_segment_info& s : made.value()->segment_stats()) EXPECT_EQ(s.n_calls, 0u);
  auto one = open(0, 0);
  ASSERT_TRUE(one.is_ok());
  expect_same_rows(talk(made.value()), talk(one.value()), "after measuring");
}

TEST_P(Split, FormatsTakeTurnsInOneBatch) {
  faults.formats = true;
  int32_t layers = 1;
  while (parts_shared_rows(*spec_, layers)) ++layers;
  auto made = open(layers, layers);
  ASSERT_TRUE(made.is_ok());
  const auto model = made.take();
  const std::vector<KvDtype> kinds{KvDtype::kF32, KvDtype::kBf16, KvDtype::kF32, KvDtype::kBf16};
  const auto make = [&] {
    std::vector<std::unique_ptr<Session>> out;
    for (size_t i = 0; i < kinds.size(); ++i) {
      out.push_back(session(model, kinds[i]));
      prefill(out.back().get(), file_->tokens(20 + 9 * i, static_cast<uint32_t>(i)));
    }
    return out;
  };
  const auto mixed = make(), apart = make();
  const auto step = [](const std::vector<std::unique_ptr<Session>>& all,
                       const std::vector<size_t>& which) {
    std::vector<Session*> list;
    std::vector<int32_t> tokens;
    for (const size_t i : which) {
      list.push_back(all[i].get());
      tokens.push_back(static_cast<int32_t>(7 + i));
    }
    const Status read = SessionBatch::decode(list, tokens);
    ASSERT_TRUE(read.is_ok()) << read.text();
  };
  for (int n = 0; n < 3; ++n) {
    step(mixed, {0, 1, 2, 3});
    step(apart, {0, 2});
    step(apart, {1, 3});
    for (size_t i = 0; i < kinds.size(); ++i) {
      EXPECT_TRUE(same_bits(logits(*mixed[i]), logits(*apart[i]))) << "session " << i;
    }
  }
}

class TailSplit : public Split {};

/// Narrow rows on the tail alone: the bits of one tier whose same layers have narrow rows, and
/// other bits than with wide ones.
TEST_P(TailSplit, NarrowRowsOfTheTailGiveTheBitsOfOneTier) {
  auto one = open(0, 0);
  ASSERT_TRUE(one.is_ok()) << one.status().text();
  const auto talk_with = [&](const std::shared_ptr<Model>& model, const SessionShape& shape) {
    const auto s = make_session(model, shape);
    std::vector<Logits> out;
    prefill(s.get(), file_->tokens(100));
    out.push_back(logits(*s));
    for (const int32_t t : {3, 4, 5}) {
      decode(s.get(), t);
      out.push_back(logits(*s));
    }
    return out;
  };
  const auto wide = talk(one.value());
  size_t n_compared = 0;
  for (int32_t layers = 1; layers < n_layers(); ++layers) {
    if (!has_rows_on_both(*spec_, layers)) continue;
    for (const KvDtype narrow : {KvDtype::kBf16, KvDtype::kQ8_0, KvDtype::kQ4}) {
      auto split = open(layers, layers, {}, {}, narrow);
      ASSERT_TRUE(split.is_ok()) << split.status().text();
      SessionShape same = one.value()->plan().session;
      for (int32_t l = 0; l < n_layers(); ++l) {
        const KvDtype want = l < layers ? KvDtype::kF32 : narrow;
        same.dtypes[static_cast<size_t>(l)] = {want, want};
      }
      const auto got = talk_with(split.value(), split.value()->plan().session);
      const std::string what = std::to_string(layers) + " layers, tail " + kv_dtype_name(narrow);
      expect_same_rows(got, talk_with(one.value(), same), what);
      EXPECT_FALSE(same_bits(got.front(), wide.front())) << what << ": the codec is not used";
      ++n_compared;
    }
  }
  EXPECT_GT(n_compared, 0u) << "no split of this model has a tail with rows of its own";
}

/// With two attention layers at least.
test::ModelRecipe with_layers(test::ModelRecipe recipe, uint32_t n) {
  recipe.n_layers = n;
  return recipe;
}

INSTANTIATE_TEST_SUITE_P(Engine, Split,
                         ::testing::Values(test::tiny_qwen3(), test::tiny_qwen3moe(),
                                           test::tiny_gemma4(), test::tiny_gemma4kv(),
                                           test::tiny_qwen35(), test::tiny_qwen35moe(),
                                           test::tiny_llama(), test::tiny_qwen2(),
                                           test::tiny_gemma3()),
                         recipe_name);
INSTANTIATE_TEST_SUITE_P(Engine, TailSplit,
                         ::testing::Values(test::tiny_qwen3(), test::tiny_qwen3moe(),
                                           test::tiny_gemma4(), test::tiny_gemma4kv(),
                                           with_layers(test::tiny_qwen35(), 8),
                                           with_layers(test::tiny_qwen35moe(), 8),
                                           test::tiny_llama(), test::tiny_qwen2(),
                                           test::tiny_gemma3()),
                         recipe_name);

}  // namespace
}  // namespace sharpi::testing
