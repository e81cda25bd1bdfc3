// SPDX-License-Identifier: MIT
// Routed experts on the CPU while router, shared expert and the rest of the layer are on the GPU:
// goldens with no, few and all slots, every KV dtype, batches; what is counted, kept and pinned;
// memory as planned. Skipped where there is no CUDA device.
#include <cmath>
#include <numeric>
#include <thread>

#include "cuda/device_test.h"
#include "gguf/gguf_file.h"
#include "model/model_spec.h"

namespace sharpi::testing {
namespace {

constexpr int32_t kAll = 1 << 20;  // more slots than experts
constexpr uint32_t kRows = 64;
constexpr double kExactBound = 2e-3;

class Experts : public DeviceTest {
 protected:
  static Edit with_slots(int32_t n_slots, sharpi_kv_dtype kv = SHARPI_KV_F32) {
    return [=](sharpi_plan_params* p, sharpi_session_params* s) {
      p->arithmetic = SHARPI_ARITHMETIC_EXACT;
      p->max_logit_rows = kRows;
      p->n_gpu_layers = -1;
      p->n_expert_slots = n_slots;
      s->n_ctx = 2048;
      s->k_dtype = s->v_dtype = kv;
    };
  }
  /// As many slots as asked for, or as there are experts.
  Loaded parted(int32_t n_slots, sharpi_kv_dtype kv = SHARPI_KV_F32, const Edit& edit = {}) const {
    const ModelSetup setup = setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
      with_slots(n_slots == kAll ? static_cast<int32_t>(n_experts()) : n_slots, kv)(p, s);
      if (edit) edit(p, s);
    });
    Loaded l = load(path(), setup);
    EXPECT_EQ(l.plan_info.n_gpu_layers, l.plan_info.n_layers);
    EXPECT_EQ(l.plan_info.n_gpu_ffn, l.plan_info.n_layers);
    return l;
  }
  /// Routed experts of each layer; not every one has some.
  std::vector<uint32_t> experts_of_layers() const {
    auto file = GgufFile::open(path());
    EXPECT_TRUE(file.is_ok()) << file.status().text();
    const auto spec = load_model_spec(file.take());
    EXPECT_TRUE(spec.is_ok()) << spec.status().text();
    std::vector<uint32_t> out;
    for (const LayerSpec& l : spec.value()->layers) out.push_back(l.ffn.n_experts);
    return out;
  }
  uint32_t n_experts() const {
    const std::vector<uint32_t> all = experts_of_layers();
    return std::accumulate(all.begin(), all.end(), 0u);
  }
};

sharpi_expert_stats stats_of(const Loaded& l) {
  sharpi_expert_stats s{};
  s.struct_size = sizeof s;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_model_experts(l.model.get(), &s, &e), SHARPI_OK) << text_of(e);
  return s;
}

TEST_P(Experts, GoldensHoldWithAnyNumberOfSlots) {
  for (const int32_t n_slots : {0, 1, 7, kAll}) {
    const Loaded l = parted(n_slots);
    for (const GoldenCase& g : golden_.cases) {
      Chat chat(l.model.get());
      const auto logits = chat.all_logits(g.tokens, kRows);
      double worst = 0;
      for (size_t p = 0; p < logits.size(); ++p) {
        for (size_t i = 0; i < 5; ++i) {
          worst = std::max(
              worst, std::fabs(static_cast<double>(logits[p][static_cast<size_t>(g.top5[p][i])]) -
                               static_cast<double>(g.top5_logits[p][i])));
        }
      }
      EXPECT_LE(worst, kExactBound) << n_slots << " slots";
      EXPECT_EQ(chat.greedy(static_cast<uint32_t>(g.greedy.size())), g.greedy)
          << n_slots << " slots";
    }
    const sharpi_expert_stats s = stats_of(l);
    EXPECT_EQ(s.n_slots, l.plan_info.n_expert_slots);
    EXPECT_GT(s.n_uses, 0u);
    EXPECT_EQ(s.n_hits > 0, n_slots > 0) << n_slots << " slots";
    if (n_slots == kAll) {
      EXPECT_EQ(s.n_slots, n_experts());
      EXPECT_EQ(s.n_resident, s.n_slots);
      EXPECT_EQ(s.n_promotions, 0u);
      EXPECT_EQ(s.n_evictions, 0u);
    }
  }
}

/// Some layers with their experts on the GPU, some beside them, some whole on the CPU.
TEST_P(Experts, LayersArePlacedOneByOne) {
  const GoldenCase& g = golden_.cases.back();
  const Loaded whole = parted(0);
  const auto n_layers = static_cast<int32_t>(whole.plan_info.n_layers);
  if (n_experts() != whole.info.n_experts * whole.info.n_layers)
    GTEST_SKIP() << "some layers have no experts";
  struct Split {
    int32_t layers, ffn, experts, slots;
  };
  for (const Split& s : {Split{n_layers, -1, 1, 0}, Split{n_layers, -1, n_layers - 1, 3},
                         Split{n_layers - 1, -1, 0, 3}, Split{n_layers - 1, -1, 1, 0},
                         Split{n_layers, n_layers - 1, 1, 5}}) {
    const Loaded l =
        load(path(), setup_with([&](sharpi_plan_params* p, sharpi_session_params* session) {
               with_slots(s.slots)(p, session);
               p->n_gpu_layers = s.layers;
               p->n_gpu_ffn = s.ffn;
               p->n_gpu_experts = s.experts;
             }));
    const std::string what = std::to_string(s.layers) + " layers, " + std::to_string(s.experts) +
                             " with experts, " + std::to_string(s.slots) + " slots";
    ASSERT_TRUE(l.model) << what;
    EXPECT_EQ(l.plan_info.n_gpu_experts, static_cast<uint32_t>(s.experts)) << what;
    EXPECT_EQ(l.plan_info.n_expert_slots, static_cast<uint32_t>(s.slots)) << what;
    Chat chat(l.model.get());
    chat.prefill(g.tokens);
    EXPECT_EQ(chat.greedy(static_cast<uint32_t>(g.greedy.size())), g.greedy) << what;
    EXPECT_GT(stats_of(l).n_uses, 0u) << what;
  }
}

/// Streamed prompts take the experts that have slots from there: not a bit differs, whatever is
/// resident.
TEST_P(Experts, StreamedPromptsDoNotDependOnSlots) {
  const auto prompt = tokens(150);
  const auto stream = [](sharpi_plan_params* p, sharpi_session_params*) {
    p->stream_rows = 16;
    p->n_chunk = 64;
  };
  std::vector<Logits> want;
  for (const int32_t n_slots : {0, 1, 7, kAll}) {
    const Loaded l = parted(n_slots, SHARPI_KV_F32, stream);
    ASSERT_EQ(l.info.stream_rows, 16u);
    for (int round = 0; round < 3; ++round) {
      Chat chat(l.model.get());
      std::vector<Logits> got;
      for (size_t at = 0; at < prompt.size(); at += 50) {
        chat.prefill(slice(prompt, at, at + 50), 50);
        for (Logits& row : rows_of(chat, 50)) got.push_back(std::move(row));
      }
      if (want.empty()) want = got;
      expect_same_rows(got, want, std::to_string(n_slots) + " slots");
      for (int32_t t = 1; t < 40; ++t) chat.decode(t * 7);  // others become resident
    }
    if (n_slots == 7) {
      EXPECT_GT(stats_of(l).n_promotions, 0u);
    }
  }
}

/// A row more or less per call takes another way through the GPU's and the CPU's products.
TEST_P(Experts, EveryNumberOfRowsGivesTheSameLogits) {
  const auto prompt = tokens(96);
  const Loaded c = load(path(), setup_with([](sharpi_plan_params* p, sharpi_session_params* s) {
                          with_slots(-1)(p, s);
                          p->n_gpu_layers = 0;
                        }));
  Chat reference(c.model.get());
  const auto want = reference.all_logits(prompt, kRows);
  for (const int32_t n_slots : {0, 9}) {
    const Loaded l = parted(n_slots);
    for (const uint32_t piece : {1u, 3u, 8u, 9u, 24u, 25u, 64u}) {
      Chat chat(l.model.get());
      const auto got = chat.all_logits(prompt, piece);
      double worst = 0;
      for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, distance(got[i], want[i]));
      EXPECT_LE(worst, kExactBound) << n_slots << " slots, " << piece << " rows a call";
    }
  }
}

/// f16 and int8 activations, in calls that go by rows and in calls that sort rows by expert.
TEST_P(Experts, FastArithmeticKeepsTheBestTokens) {
  const GoldenCase& g = golden_.cases.back();
  for (const int32_t n_slots : {0, 9, kAll}) {
    const Loaded l =
        parted(n_slots, SHARPI_KV_F32, [](sharpi_plan_params* p, sharpi_session_params*) {
          p->arithmetic = SHARPI_ARITHMETIC_FAST;
        });
    for (const uint32_t piece : {1u, 8u, 64u}) {
      Chat chat(l.model.get());
      const auto got = chat.all_logits(g.tokens, piece);
      size_t wide = 0, same = 0;
      for (size_t p = 0; p < got.size(); ++p) {
        if (g.top5_logits[p][0] - g.top5_logits[p][1] <= 0.25f) continue;
        ++wide;
        same += best_of(got[p]) == static_cast<size_t>(g.top5[p][0]) ? 1 : 0;
      }
      ASSERT_GT(wide, 10u);
      EXPECT_GE(static_cast<double>(same), 0.98 * static_cast<double>(wide))
          << n_slots << " slots, " << piece << " rows a call";
    }
  }
}

TEST_P(Experts, BatchesDecodeAsSingleSessionsDo) {
  const auto prompt = tokens(40);
  const Loaded l = parted(5);
  const Loaded c = load(path(), setup_with([](sharpi_plan_params* p, sharpi_session_params* s) {
                          with_slots(-1)(p, s);
                          p->n_gpu_layers = 0;
                        }));
  std::vector<Chat> here, there;
  std::vector<sharpi_session*> a, b;
  for (size_t i = 0; i < 5; ++i) {
    here.emplace_back(l.model.get());
    there.emplace_back(c.model.get());
    const auto part = slice(prompt, 0, 20 + i);
    here.back().prefill(part);
    there.back().prefill(part);
  }
  for (size_t i = 0; i < 5; ++i) a.push_back(here[i].get()), b.push_back(there[i].get());
  for (size_t step = 0; step < 6; ++step) {
    std::vector<int32_t> next;
    for (size_t i = 0; i < 5; ++i) next.push_back(prompt[(step * 5 + i) % prompt.size()]);
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_decode_batch(a.data(), next.data(), 5, &e), SHARPI_OK) << text_of(e);
    ASSERT_EQ(sharpi_decode_batch(b.data(), next.data(), 5, &e), SHARPI_OK) << text_of(e);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_LE(distance(here[i].logits(), there[i].logits()), kExactBound);
    }
  }
}

/// What the reference prefers stays among the five best, whatever the rows are stored in.
TEST_P(Experts, EveryKvDtypeKeepsTheBestTokens) {
  const auto prompt = tokens(128);
  const Loaded full = parted(0);
  Chat reference(full.model.get());
  const auto want = reference.all_logits(prompt, kRows);
  for (const sharpi_kv_dtype kv : {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0}) {
    for (const int32_t n_slots : {0, 7, kAll}) {
      const Loaded l = parted(n_slots, kv);
      ASSERT_EQ(l.plan_info.k_dtype, kv);
      Chat chat(l.model.get());
      const auto got = chat.all_logits(prompt, kRows);
      size_t kept = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        const size_t best = best_of(want[i]);
        size_t better = 0;
        for (const float v : got[i]) better += v > got[i][best] ? 1 : 0;
        kept += better < 5 ? 1 : 0;
      }
      EXPECT_EQ(kept, want.size()) << dtype_text(kv) << ", " << n_slots << " slots";
    }
  }
}

TEST_P(Experts, WhatIsUsedComesIntoTheSlots) {
  const Loaded l = parted(static_cast<int32_t>(std::min(12u, n_experts() / 2)));
  Chat chat(l.model.get());
  chat.prefill(tokens(16));
  for (int i = 0; i < 200; ++i) chat.decode(tokens(16)[static_cast<size_t>(i) % 4]);
  const sharpi_expert_stats s = stats_of(l);
  EXPECT_GT(s.n_promotions, 0u);
  EXPECT_GT(s.n_evictions, 0u);
  EXPECT_LE(s.n_resident, s.n_slots);
  EXPECT_GE(s.promoted_bytes, s.n_promotions);
  EXPECT_LE(s.promoted_bytes, s.n_promotions * s.slot_bytes);
  uint64_t uses = 0;
  for (uint32_t layer = 0; layer < l.info.n_layers; ++layer) {
    std::vector<uint64_t> of(l.info.n_experts);
    uint32_t n = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_model_expert_uses(l.model.get(), layer, of.data(), l.info.n_experts, &n, &e),
              SHARPI_OK)
        << text_of(e);
    for (uint32_t i = 0; i < n; ++i) uses += of[i];
  }
  EXPECT_EQ(uses, s.n_uses);
}

TEST_P(Experts, PinnedExpertsStay) {
  const Loaded l = parted(6);
  const std::vector<uint32_t> of = experts_of_layers();
  std::vector<uint32_t> layers;  // the first two that have experts
  for (uint32_t i = 0; layers.size() < 2; ++i) {
    ASSERT_LT(i, of.size());
    if (of[i] != 0) layers.push_back(i);
  }
  layers.insert(layers.end(), {layers[0], layers[1]});
  const std::vector<uint32_t> experts{3, 4, 5, 2};
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_model_pin_experts(l.model.get(), layers.data(), experts.data(), 4, &e),
            SHARPI_OK)
      << text_of(e);
  EXPECT_EQ(stats_of(l).n_pinned, 4u);
  Chat chat(l.model.get());
  chat.prefill(tokens(16));
  const auto& g = golden_.cases.front();
  Chat golden(l.model.get());
  golden.prefill(g.tokens);
  EXPECT_EQ(golden.greedy(static_cast<uint32_t>(g.greedy.size())), g.greedy);
  EXPECT_EQ(stats_of(l).n_pinned, 4u);
  EXPECT_EQ(sharpi_model_pin_experts(l.model.get(), layers.data(), experts.data(), 4, &e),
            SHARPI_E_DOES_NOT_FIT);
  const uint32_t none = l.info.n_experts;
  EXPECT_EQ(sharpi_model_pin_experts(l.model.get(), layers.data(), &none, 1, &e),
            SHARPI_E_INVALID_ARGUMENT);
}

/// Two calls at once: their tokens take turns on the CPU, and the slots change only between them.
TEST_P(Experts, CallsAtTheSameTimeGiveTheirOwnResults) {
  const Loaded l = parted(7, SHARPI_KV_F32, [](sharpi_plan_params* p, sharpi_session_params*) {
    p->max_concurrent = 2;
    p->n_sessions = 2;
  });
  const GoldenCase& a = golden_.cases.front();
  const GoldenCase& b = golden_.cases.back();
  const auto talk = [&](const GoldenCase& g, std::vector<int32_t>* out) {
    for (int round = 0; round < 3; ++round) {
      Chat chat(l.model.get());
      chat.prefill(g.tokens);
      *out = chat.greedy(static_cast<uint32_t>(g.greedy.size()));
    }
  };
  std::vector<int32_t> first, second;
  std::thread other([&] { talk(b, &second); });
  talk(a, &first);
  other.join();
  EXPECT_EQ(first, a.greedy);
  EXPECT_EQ(second, b.greedy);
}

/// What a deterministic model keeps never changes, so equal calls give equal bits.
TEST_P(Experts, DeterministicModelsKeepTheirSlots) {
  const Loaded l = parted(7, SHARPI_KV_F32, [](sharpi_plan_params* p, sharpi_session_params*) {
    p->deterministic = 1;
  });
  const auto prompt = tokens(30);
  std::vector<Logits> runs;
  for (int round = 0; round < 2; ++round) {
    Chat chat(l.model.get());
    chat.prefill(prompt);
    for (int i = 0; i < 60; ++i) chat.decode(prompt[static_cast<size_t>(i) % 5]);
    runs.push_back(chat.logits());
  }
  EXPECT_TRUE(same_bits(runs[0], runs[1]));
  const sharpi_expert_stats s = stats_of(l);
  EXPECT_EQ(s.n_promotions, 0u);
  EXPECT_EQ(s.n_resident, s.n_slots);
  EXPECT_GT(s.n_hits, 0u);
}

TEST_P(Experts, MemoryIsThePlans) {
  for (const int32_t n_slots : {0, 1, 11, kAll}) {
    const Loaded l = parted(n_slots);
    std::vector<sharpi_memory_row> planned(64), held(64);
    uint32_t n = 0, m = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_plan_rows(l.plan.get(), planned.data(), sizeof planned[0], 64, &n, &e),
              SHARPI_OK);
    ASSERT_EQ(sharpi_model_memory(l.model.get(), held.data(), sizeof held[0], 64, &m, &e),
              SHARPI_OK);
    uint32_t n_compared = 0;
    for (uint32_t i = 0; i < m; ++i) {
      for (uint32_t k = 0; k < n; ++k) {
        const bool same = planned[k].tier == held[i].tier && planned[k].kind == held[i].kind &&
                          planned[k].purpose == held[i].purpose &&
                          std::string(planned[k].label) == held[i].label;
        if (!same) continue;
        ++n_compared;
        EXPECT_EQ(planned[k].payload_bytes, held[i].payload_bytes) << held[i].label;
        EXPECT_EQ(planned[k].held_bytes, held[i].held_bytes) << held[i].label;
        if (std::string(held[i].label) == "expert slots") {
          EXPECT_EQ(held[i].payload_bytes, l.plan_info.n_expert_slots * stats_of(l).slot_bytes);
        }
      }
    }
    EXPECT_EQ(n_compared, m);
    EXPECT_GT(n_compared, 6u);
  }
}

std::vector<std::string> models_with_experts() {
  return {"tiny-qwen3moe", "tiny-olmoe", "tiny-qwen35moe", "rand-gpt-oss", "rand-nemotron-moe"};
}

INSTANTIATE_TEST_SUITE_P(Cuda, Experts, ::testing::ValuesIn(models_with_experts()), model_name);

}  // namespace
}  // namespace sharpi::testing
