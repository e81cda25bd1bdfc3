// SPDX-License-Identifier: MIT
// Models over two GPUs: wherever the layers are cut they give the bits of one GPU, sessions the
// same saved forms and drafts no trace; each GPU holds what the plan says, within a budget of its
// own. Skipped where there are fewer than two GPUs of the CUDA tier.
#include <cmath>
#include <map>
#include <thread>

#include "engine/engine_case.h"
#include "engine/mtp_case.h"
#include "support/device_ladders.h"

namespace sharpi::testing {
namespace {

/// Of logits in `exact`, against the CPU's or another implementation's.
constexpr double kExactBound = 2e-3;

class TwoGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    context_ = make_context({});
    on_ = {context_.get()};
    if (const std::string why = why_no_gpu(context_.get()); !why.empty()) GTEST_SKIP() << why;
    for (uint32_t i = 1;
         sharpi_device_info(context_.get(), i, 0, &(info_ = blank()), nullptr) == SHARPI_OK; ++i) {
      if (info_.tier == SHARPI_TIER_CUDA) gpus_.push_back(i);
    }
    if (gpus_.size() < 2) GTEST_SKIP() << "this machine has one GPU";
  }
  static sharpi_device blank() {
    sharpi_device d{};
    d.struct_size = sizeof d;
    return d;
  }
  /// Device memory that the context's models and sessions hold there.
  uint64_t held(uint32_t gpu) const {
    sharpi_device d = blank();
    EXPECT_EQ(sharpi_device_info(context_.get(), gpu, 0, &d, nullptr), SHARPI_OK);
    return d.held_bytes;
  }
  /// n layers, of which the first `at` are on one GPU and the others on the other one.
  Ladder cut(int32_t at, int32_t n, bool turned = false) const {
    return {{gpus_[turned ? 1 : 0], at}, {gpus_[turned ? 0 : 1], n - at}};
  }
  Ladder whole(int32_t n) const { return {{gpus_[0], n}}; }
  ContextPtr context_;
  LadderMachine on_{};
  std::vector<uint32_t> gpus_;
  sharpi_device info_{};
};

test::ModelRecipe with_layers(test::ModelRecipe recipe, uint32_t n) {
  recipe.n_layers = n;
  recipe.head_dim = recipe.head_dim_swa = 64;  // what the GPU's kernels know
  recipe.delta_dim = 32;
  return recipe;
}
std::vector<test::ModelRecipe> recipes() {
  return {with_layers(test::tiny_qwen3(), 4),    with_layers(test::tiny_llama(), 4),
          with_layers(test::tiny_qwen3moe(), 4), with_layers(test::tiny_gemma4kv(), 8),
          with_layers(test::tiny_qwen35(), 8),   with_layers(test::tiny_qwen35moe(), 8),
          with_layers(test::tiny_gpt_oss(), 4)};
}
void same_everywhere(sharpi_plan_params* p, sharpi_session_params* s) {
  p->deterministic = 1;
  with_checkpoints(p, s);
}
/// Layers that share KV rows stay together; nothing else is refused.
bool parts_shared_rows(const sharpi_error& why) {
  return why.status == SHARPI_E_UNSUPPORTED &&
         std::string(why.text).find("KV rows") != std::string::npos;
}

TEST_F(TwoGpus, EveryBoundaryGivesTheBitsOfOne) {
  for (const test::ModelRecipe& recipe : recipes()) {
    const MadeModel file(recipe);
    const auto n = static_cast<int32_t>(recipe.n_layers);
    const auto prompt = file.tokens(100);
    const auto want = talk(on_.load(file.path(), whole(n), &same_everywhere), prompt);
    const auto other = talk(on_.load(file.path(), {{gpus_[1], n}}, &same_everywhere), prompt);
    expect_same_rows(other, want, recipe.arch + " on the second GPU alone");
    uint32_t n_compared = 0;
    for (int32_t at = 1; at < n; ++at) {
      for (const bool turned : {false, true}) {
        sharpi_error why = SHARPI_ERROR_INIT;
        const Loaded l = on_.try_load(file.path(), cut(at, n, turned), &why, &same_everywhere);
        if (!l.model) {
          ASSERT_TRUE(parts_shared_rows(why)) << recipe.arch << ": " << why.text;
          continue;
        }
        expect_same_rows(talk(l, prompt), want, recipe.arch + ": " + text_of(cut(at, n, turned)));
        ++n_compared;
      }
    }
    EXPECT_GE(n_compared, 2u) << recipe.arch;
  }
}

/// The default arithmetic has steps in few launches, which end at the boundary; and layers, FFNs
/// and experts may be on the host behind two GPUs.
TEST_F(TwoGpus, EveryWayIsNearTheCpu) {
  for (const test::ModelRecipe& recipe : recipes()) {
    const MadeModel file(recipe);
    const auto n = static_cast<int32_t>(recipe.n_layers);
    const auto prompt = file.tokens(100);
    const Edit exact = [](auto* p, auto*) { p->arithmetic = SHARPI_ARITHMETIC_EXACT; };
    const auto want = talk(on_.load(file.path(), {}, exact), prompt);
    const auto near = [&](const Ladder& ladder, const std::string& what, const Edit& edit) {
      sharpi_error why = SHARPI_ERROR_INIT;
      const Loaded l = on_.try_load(file.path(), ladder, &why, edit);
      if (!l.model) {
        EXPECT_TRUE(parts_shared_rows(why)) << recipe.arch << ": " << why.text;
        return;
      }
      const auto got = talk(l, prompt);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_LE(distance(got[i], want[i]), kExactBound) << recipe.arch << what << i;
    };
    near(cut(n / 2, n), ": exact", exact);
    near({{gpus_[0], 1}, {gpus_[1], 1}}, ": the rest on the host", exact);
    near(cut(n / 2, n), ": FFNs stream", [&](auto* p, auto* s) {
      exact(p, s);
      p->n_gpu_ffn = 1;
      p->stream_rows = 40;
    });
    if (recipe.arch.find("moe") == std::string::npos) continue;
    near(cut(n / 2, n), ": experts come into slots", [&](auto* p, auto* s) {
      exact(p, s);
      p->n_gpu_experts = 0;
      p->n_expert_slots = 6;
    });
  }
}

/// In the default arithmetic a model over two GPUs says what it says on one: logits differ by no
/// more than those of the same kernels in other launches.
TEST_F(TwoGpus, FastStepsSayTheSame) {
  const MadeModel file(with_layers(test::tiny_qwen3(), 4));
  const auto prompt = file.tokens(60);
  const auto want = talk(on_.load(file.path(), whole(4)), prompt);
  for (int32_t at = 1; at < 4; ++at) {
    const auto got = talk(on_.load(file.path(), cut(at, 4)), prompt);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LE(distance(got[i], want[i]), 0.02 * std::max(1.0, rms_of({want[i]}))) << at << i;
  }
}

TEST_F(TwoGpus, SessionsDoTheSame) {
  for (const test::ModelRecipe& recipe : recipes()) {
    const MadeModel file(recipe);
    const auto n = static_cast<int32_t>(recipe.n_layers);
    const Loaded one = on_.load(file.path(), whole(n), &same_everywhere);
    const auto before = session_life(one, file, nullptr);
    const auto want = session_life(one, file, &before.front());
    for (const bool turned : {false, true}) {
      sharpi_error why = SHARPI_ERROR_INIT;
      const Loaded l = on_.try_load(file.path(), cut(n / 2, n, turned), &why, &same_everywhere);
      if (!l.model) {
        ASSERT_TRUE(parts_shared_rows(why)) << recipe.arch << ": " << why.text;
        continue;
      }
      // What one GPU saved goes on over two, and the other way round.
      const auto got = session_life(l, file, &before.front());
      const auto back = session_life(one, file, &got.front());
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(got[i] == want[i]) << recipe.arch << ", blob " << i;
      EXPECT_TRUE(back.back() == want.back()) << recipe.arch;
    }
  }
}

TEST_F(TwoGpus, RandomSequencesStayTheSame) {
  for (const test::ModelRecipe& recipe : recipes()) {
    const MadeModel file(recipe);
    const auto n = static_cast<int32_t>(recipe.n_layers);
    const Loaded one = on_.load(file.path(), whole(n), &same_everywhere);
    const Loaded two = on_.load(file.path(), cut(n / 2, n), &same_everywhere);
    for (uint32_t seed = 1; seed <= 30; ++seed)
      expect_same_sequence(one, two, file, seed, recipe.arch);
  }
}

TEST_F(TwoGpus, DraftsLeaveNoTrace) {
  for (const test::ModelRecipe& recipe :
       {with_layers(test::tiny_qwen35(), 8), with_layers(test::tiny_gemma4kv(), 8)}) {
    const MadeModel file(recipe);
    for (const uint32_t drafters : {SHARPI_DRAFT_NGRAM, SHARPI_DRAFT_MTP, SHARPI_DRAFT_MODEL}) {
      if (drafters == SHARPI_DRAFT_MTP && recipe.n_mtp == 0) continue;
      const Loaded l = on_.load(file.path(), cut(4, 8), draft_by(drafters, file.path()));
      expect_no_trace_of_drafts(l, file, recipe.arch + ", drafter " + std::to_string(drafters));
    }
  }
}

/// Two threads with a session each, on a model that serves two calls at once: each reads what it
/// reads alone.
TEST_F(TwoGpus, CallsMeetOnNoGpu) {
  const MadeModel file(with_layers(test::tiny_qwen3moe(), 4));
  const Loaded l = on_.load(file.path(), cut(2, 4), [](auto* p, auto* s) {
    same_everywhere(p, s);
    p->max_concurrent = 2;
  });
  ASSERT_TRUE(l.model);
  const auto speak = [&](uint32_t seed) {
    Chat chat(l.model.get());
    chat.prefill(file.tokens(90, seed));
    for (int32_t t = 0; t < 24; ++t) chat.decode(3 + t % 40);
    return chat.logits();
  };
  const Logits want[] = {speak(1), speak(2)};
  for (int round = 0; round < 4; ++round) {
    Logits got[2];
    std::thread second([&] { got[1] = speak(2); });
    got[0] = speak(1);
    second.join();
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(got[i], want[i])) << round << i;
  }
}

/// By what the driver was asked for, on each GPU.
TEST_F(TwoGpus, EachHoldsWhatThePlanSays) {
  for (const test::ModelRecipe& recipe : recipes()) {
    const MadeModel file(recipe);
    const auto n = static_cast<int32_t>(recipe.n_layers);
    const uint64_t before[] = {held(gpus_[0]), held(gpus_[1])};
    sharpi_error why = SHARPI_ERROR_INIT;
    const Loaded l = on_.try_load(file.path(), cut(n / 2, n), &why, &same_everywhere);
    if (!l.model) {
      ASSERT_TRUE(parts_shared_rows(why)) << recipe.arch << ": " << why.text;
      continue;
    }
    const Chat chat(l.model.get());
    std::map<uint32_t, uint64_t> want;
    for (const sharpi_memory_row& r : rows_of_handle(sharpi_plan_rows, l.plan.get())) {
      if (r.kind == SHARPI_ROW_DEVICE && r.transient == 0) want[r.device] += r.held_bytes;
    }
    for (const int i : {0, 1}) {
      const auto at = static_cast<size_t>(i);
      EXPECT_GT(want[gpus_[at]], 0u);
      EXPECT_EQ(held(gpus_[at]) - before[i], want[gpus_[at]]) << recipe.arch << ", GPU " << i;
    }
  }
}

/// Budgets that are pretended, alike and unlike: the model goes over both by itself, and each holds
/// no more than it may.
TEST_F(TwoGpus, BudgetsAreEachItsOwn) {
  test::ModelRecipe recipe = with_layers(test::tiny_qwen3(), 16);
  recipe.n_embd = 512;
  recipe.d_ff = 1536;
  const MadeModel file(recipe);
  const Edit once = [](auto* p, auto*) {
    p->deterministic = 1;
    p->n_sessions = 1;
  };
  const auto devices_of = [](const sharpi_plan* plan) {
    std::vector<sharpi_plan_device> rows(16);
    uint32_t n = 0;
    EXPECT_EQ(sharpi_plan_devices(plan, rows.data(), sizeof rows[0], 16, &n, nullptr), SHARPI_OK);
    std::map<uint32_t, sharpi_plan_device> out;
    for (uint32_t i = 0; i < n; ++i) out[rows[i].device] = rows[i];
    return out;
  };
  const Loaded one = on_.load(file.path(), whole(16), once);
  const uint64_t peak = devices_of(one.plan.get())[gpus_[0]].peak_bytes;
  const auto want = talk(one, file.tokens(50));
  for (const auto& [first, second] : {std::pair{8, 8}, std::pair{9, 7}, std::pair{7, 9}}) {
    std::vector<sharpi_device_request> list(2);
    for (size_t i = 0; i < 2; ++i) {
      sharpi_device_request_init(&list[i], sizeof list[i]);
      list[i].device = gpus_[i];
      list[i].rate = list[i].link_rate = 1e9;
      list[i].budget = peak * static_cast<uint64_t>(i == 0 ? first : second) / 10;
    }
    sharpi_error why = SHARPI_ERROR_INIT;
    const Loaded l = on_.try_load(file.path(), {}, &why, [&](auto* p, auto* s) {
      once(p, s);
      p->n_gpu_layers = -1;
      p->device = SHARPI_UNSET;
      p->devices = list.data();
      p->n_devices = 2;
    });
    ASSERT_TRUE(l.model) << why.text;
    auto rows = devices_of(l.plan.get());
    EXPECT_EQ(rows[0].n_layers, 0u) << first << "/" << second;
    for (const sharpi_device_request& d : list) {
      EXPECT_GT(rows[d.device].n_layers, 0u);
      EXPECT_LE(rows[d.device].peak_bytes, d.budget);
    }
    const Chat chat(l.model.get());
    for (const sharpi_device_request& d : list) EXPECT_LE(held(d.device), d.budget + peak);
    expect_same_rows(talk(l, file.tokens(50)), want, std::to_string(first));
  }
}

/// Prompts of many chunks keep both GPUs busy, and leave the bits of one; whole chunks where they
/// are cancelled. Not over in an instant, so that a wait that is missing can show.
TEST_F(TwoGpus, PipelinesGiveTheBitsOfOne) {
  const Edit in_chunks = [](auto* p, auto* s) {
    same_everywhere(p, s);
    p->n_chunk = 128;
    p->max_logit_rows = 16;
    s->n_ctx = 4096;
  };
  for (test::ModelRecipe recipe : recipes()) {
    recipe.n_embd = 512;
    const MadeModel file(recipe);
    const auto n = static_cast<int32_t>(recipe.n_layers);
    const auto tokens = file.tokens(2000);
    const auto read = [&](const Loaded& l, size_t end) {
      Chat chat(l.model.get());
      chat.prefill(slice(tokens, 0, end), 16);
      for (const int32_t t : {3, 4}) chat.decode(t);
      return saved(chat);
    };
    const Loaded one = on_.load(file.path(), whole(n), in_chunks);
    for (const bool turned : {false, true}) {
      sharpi_error why = SHARPI_ERROR_INIT;
      const Loaded l = on_.try_load(file.path(), cut(n / 2, n, turned), &why, in_chunks);
      if (!l.model) {
        ASSERT_TRUE(parts_shared_rows(why)) << recipe.arch << ": " << why.text;
        continue;
      }
      EXPECT_TRUE(is_pipelined(l)) << recipe.arch;
      for (const size_t end : {2000u, 1290u, 300u})
        EXPECT_TRUE(read(l, end) == read(one, end)) << recipe.arch << turned << end;
      Chat chat(l.model.get());
      sharpi_prefill_params p;
      sharpi_prefill_params_init(&p, sizeof p);
      p.progress = [](void*, uint32_t, uint64_t done, uint64_t) { return done >= 512 ? 1 : 0; };
      uint32_t committed = 0;
      EXPECT_EQ(sharpi_session_prefill(chat.get(), tokens.data(), 2000, &p, &committed, &why),
                SHARPI_E_CANCELLED);
      EXPECT_EQ(committed % 128, 0u);
      EXPECT_GE(committed, 512u);
      chat.prefill(slice(tokens, committed, 2000), 16);
      for (const int32_t t : {3, 4}) chat.decode(t);
      EXPECT_TRUE(saved(chat) == read(one, 2000)) << recipe.arch << turned;
    }
  }
}

/// What the MTP block drafts behind prompts of many chunks is what it drafts on one GPU.
TEST_F(TwoGpus, PipelinesFeedTheMtpBlock) {
  const test::ModelRecipe recipe = with_layers(test::tiny_qwen35(), 8);
  ASSERT_NE(recipe.n_mtp, 0u);
  const MadeModel file(recipe);
  const auto tokens = file.tokens(1500);
  const Edit by_block = [](auto* p, auto* s) {
    same_everywhere(p, s);
    p->n_chunk = 128;
    s->n_ctx = 2048;
    s->n_draft = 8;
    s->drafters = SHARPI_DRAFT_MTP;
  };
  const auto say = [&](const Loaded& l) {
    Chat chat(l.model.get());
    Logits last;
    std::vector<int32_t> drafts;
    for (const auto& [from, to] : {std::pair<size_t, size_t>{0, 900}, {900, 1500}}) {
      chat.prefill(slice(tokens, from, to));
      for (const int32_t d : drafts_of(chat, 7, 5, &last)) drafts.push_back(d);
    }
    return std::pair(drafts, last);
  };
  const auto want = say(on_.load(file.path(), whole(8), by_block));
  for (const bool turned : {false, true}) {
    const Loaded l = on_.load(file.path(), cut(4, 8, turned), by_block);
    EXPECT_TRUE(is_pipelined(l));
    const auto got = say(l);
    EXPECT_EQ(got.first, want.first) << turned;
    EXPECT_TRUE(same_bits(got.second, want.second)) << turned;
  }
}

class TwoGpusGoldens : public TwoGpus, public ::testing::WithParamInterface<std::string> {};

TEST_P(TwoGpusGoldens, EveryBoundaryAgrees) {
  const auto fixture = find_fixture(GetParam());
  if (!fixture) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
  auto loaded = load_golden(fixture->golden_path);
  ASSERT_TRUE(loaded.is_ok()) << loaded.status().text();
  const Golden golden = loaded.take();
  for (const sharpi_kv_dtype dtype :
       {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0, SHARPI_KV_Q4}) {
    const Edit exact = [&](auto* p, auto* s) {
      p->arithmetic = SHARPI_ARITHMETIC_EXACT;
      p->max_logit_rows = 48;
      s->n_ctx = SHARPI_UNSET;
      s->k_dtype = s->v_dtype = dtype;
    };
    sharpi_error why = SHARPI_ERROR_INIT;
    const Loaded cpu = on_.load(fixture->gguf_path, {});
    const auto n = static_cast<int32_t>(cpu.info.n_layers);
    const Loaded one = on_.try_load(fixture->gguf_path, whole(n), &why, exact);
    if (!one.model) {
      ASSERT_EQ(why.status, SHARPI_E_UNSUPPORTED) << why.text;  // rows that the codec cannot store
      continue;
    }
    const GoldenCase& g = golden.cases[0];
    Chat first(one.model.get());
    const auto want = first.all_logits(g.tokens, 48);
    for (int32_t at = 1; at < n; ++at) {
      const Loaded l = on_.try_load(fixture->gguf_path, cut(at, n), &why, exact);
      if (!l.model) {
        const std::string text = why.text;
        ASSERT_TRUE(parts_shared_rows(why) ||
                    text.find("per-layer embeddings") != std::string::npos)
            << text;
        continue;
      }
      Chat chat(l.model.get());
      const auto got = chat.all_logits(g.tokens, 48);
      for (size_t p = 0; p < got.size(); ++p) {
        EXPECT_LE(distance(got[p], want[p]), kExactBound) << at << ", token " << p;
        for (size_t i = 0; dtype == SHARPI_KV_F32 && i < 5; ++i) {
          const auto id = static_cast<size_t>(g.top5[p][i]);
          ASSERT_LE(std::fabs(got[p][id] - g.top5_logits[p][i]), kExactBound) << at << ", " << p;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TwoGpusGoldens, ::testing::ValuesIn(all_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
