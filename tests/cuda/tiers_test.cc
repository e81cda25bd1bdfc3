// SPDX-License-Identifier: MIT
// The GPU against the CPU, both in one program: logits, saved sessions that change tiers, kept
// rows, memory that comes back, budgets of the device. Skipped where there is no CUDA device.
#include "cuda/device_test.h"
#include "engine/expected_refusals.h"
#include "support/session_rows.h"

namespace sharpi::testing {
namespace {

Edit on(int32_t n_gpu_layers, const Edit& edit = {}) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->arithmetic = SHARPI_ARITHMETIC_EXACT;
    p->max_logit_rows = 64;
    s->n_ctx = 2048;
    s->k_dtype = s->v_dtype = SHARPI_KV_F32;  // narrower rows round what differs in the last bits
    if (edit) edit(p, s);
    p->n_gpu_layers = n_gpu_layers;
  };
}

class Tiers : public DeviceTest {
 protected:
  Loaded cpu(const Edit& edit = {}) const { return load(path(), setup_with(on(0, edit))); }
  Loaded gpu(const Edit& edit = {}) const {
    Loaded l = load(path(), setup_with(on(-1, edit)));
    EXPECT_EQ(l.plan_info.n_gpu_layers, l.plan_info.n_layers);
    return l;
  }
};

/// What needs rows to compact: one of the random models has windows only.
class TrainedTiers : public Tiers {};

/// f32 products in another order: errors of half an ulp a term, as a random walk over the terms of
/// a row and the layers; the goldens allow 2e-3 for the same reason.
constexpr double kExactBound = 2e-3;

TEST_P(Tiers, ExactLogitsAreClose) {
  const auto prompt = tokens(300);
  const Loaded c = cpu(), g = gpu();
  Chat a(c.model.get()), b(g.model.get());
  const auto want = a.all_logits(prompt, 64), got = b.all_logits(prompt, 64);
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, distance(got[i], want[i]));
  RecordProperty("worst", std::to_string(worst));
  EXPECT_LE(worst, kExactBound);
}

/// Layers, or only their FFN blocks, on the other tier: hidden rows change hands in the middle.
TEST_P(Tiers, SplitModelsGiveTheSameLogits) {
  const auto prompt = tokens(200);
  const Loaded c = cpu();
  Chat a(c.model.get());
  const auto want = a.all_logits(prompt, 50);
  const auto n = static_cast<int32_t>(c.plan_info.n_layers);
  const auto spec = spec_of(path());
  ASSERT_TRUE(spec);
  for (const auto& split : {std::pair{n / 2, -1}, {n - 1, 1}, {n, n / 2}, {n, 0}}) {
    const int32_t layers = split.first, ffn = split.second;
    const ModelSetup setup = setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
      on(layers)(p, s);
      p->n_gpu_ffn = ffn;
    });
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    const std::string what = std::to_string(layers) + " layers, " + std::to_string(ffn) + " FFNs";
    const sharpi_status planned = try_plan(c.context.get(), path(), setup, &plan, &e);
    if (is_expected_refusal(*spec, layers, planned == SHARPI_E_UNSUPPORTED, planned == SHARPI_OK,
                            e.text, what)) {
      continue;
    }
    const Loaded l = load(path(), setup);
    Chat b(l.model.get());
    const auto got = b.all_logits(prompt, 50);
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, distance(got[i], want[i]));
    EXPECT_LE(worst, kExactBound) << what;
    for (const int32_t t : {7, 8, 9}) a.decode(t), b.decode(t);
    EXPECT_LE(distance(a.logits(), b.logits()), kExactBound) << what;
    Chat again(c.model.get());
    again.prefill(prompt);
    a = std::move(again);
  }
}

TEST_P(Tiers, ASavedSessionChangesTiers) {
  const auto prompt = tokens(260);
  for (const sharpi_kv_dtype d : {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0}) {
    const Edit edit = [=](sharpi_plan_params*, sharpi_session_params* s) {
      s->k_dtype = s->v_dtype = d, s->n_checkpoints = 2;
    };
    const Loaded c = cpu(edit), g = gpu(edit);
    for (const auto& [from, to] : {std::pair{&c, &g}, std::pair{&g, &c}}) {
      Chat a(from->model.get()), b(to->model.get());
      a.prefill(prompt);
      const auto blob = saved(a);
      sharpi_error e = SHARPI_ERROR_INIT;
      ASSERT_EQ(sharpi_session_restore(b.get(), blob.data(), blob.size(), &e), SHARPI_OK)
          << text_of(e);
      EXPECT_EQ(saved(b), blob) << dtype_text(d) << ": the blob changed on its way";
      EXPECT_TRUE(same_bits(a.logits(), b.logits()));
      a.decode(prompt[1]), b.decode(prompt[1]);
      EXPECT_LE(distance(a.logits(), b.logits()), kExactBound) << dtype_text(d);
    }
  }
}

TEST_P(TrainedTiers, CompactionKeepsTheSameRows) {
  const auto prompt = tokens(600);
  for (const sharpi_policy policy :
       {SHARPI_POLICY_GLOBAL, SHARPI_POLICY_SNAPKV, SHARPI_POLICY_DEFENSIVE, SHARPI_POLICY_VALUE,
        SHARPI_POLICY_SPAN, SHARPI_POLICY_RETRIEVAL}) {
    const Edit edit = [](sharpi_plan_params*, sharpi_session_params* s) { s->capture_window = 32; };
    const Loaded c = cpu(edit), g = gpu(edit);
    Chat a(c.model.get()), b(g.model.get());
    size_t same = 0, all = 0;
    for (Chat* chat : {&a, &b}) {
      chat->prefill(prompt);
      sharpi_compact_params p;
      sharpi_compact_params_init(&p, sizeof p);
      p.policy = policy;
      p.budget = 128;
      p.recency = 32;
      sharpi_error e = SHARPI_ERROR_INIT;
      ASSERT_EQ(sharpi_session_compact(chat->get(), &p, nullptr, &e), SHARPI_OK) << text_of(e);
    }
    for (uint32_t l = 0; l < c.plan_info.n_layers; ++l) {
      for (uint32_t h = 0;; ++h) {
        std::vector<uint32_t> x(600), y(600);
        uint32_t n = 0, m = 0;
        sharpi_error e = SHARPI_ERROR_INIT;
        if (sharpi_session_kept(a.get(), l, h, x.data(), 600, &n, &e) != SHARPI_OK) break;
        ASSERT_EQ(sharpi_session_kept(b.get(), l, h, y.data(), 600, &m, &e), SHARPI_OK);
        ASSERT_EQ(n, m);
        x.resize(n), y.resize(m);
        std::vector<uint32_t> both;
        std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(both));
        same += both.size(), all += n;
      }
    }
    ASSERT_GT(all, 0u);
    // Scores that differ in the last bits may swap neighbours at the threshold.
    EXPECT_GE(static_cast<double>(same), 0.99 * static_cast<double>(all)) << "policy " << policy;
    a.decode(prompt[2]), b.decode(prompt[2]);
    EXPECT_EQ(best_of(a.logits()), best_of(b.logits())) << "policy " << policy;
  }
}

TEST_P(TrainedTiers, MemoryComesBackToTheDevice) {
  const Loaded g = gpu([](sharpi_plan_params*, sharpi_session_params* s) {
    s->n_ctx = 32768, s->capture_window = 32, s->k_dtype = s->v_dtype = SHARPI_KV_F32;
  });
  const uint64_t before = free_device_bytes(g.context.get());
  {
    Chat chat(g.model.get());
    chat.prefill(tokens(900));
    const uint64_t held = chat.info().kv_held_bytes;
    const uint64_t with_session = free_device_bytes(g.context.get());
    EXPECT_GE(before - with_session, held);
    sharpi_compact_params p;
    sharpi_compact_params_init(&p, sizeof p);
    p.budget = 128;
    p.headroom = 128;
    sharpi_compact_report report{};
    report.struct_size = sizeof report;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_compact(chat.get(), &p, &report, &e), SHARPI_OK) << text_of(e);
    EXPECT_LT(report.held_after, report.held_before / 4);
    EXPECT_EQ(free_device_bytes(g.context.get()) - with_session,
              report.held_before - report.held_after);
    chat.decode(5);  // the captured step still finds its rows
  }
  EXPECT_EQ(free_device_bytes(g.context.get()), before);
}

TEST_P(Tiers, TheDeviceBudgetIsKept) {
  const Loaded g = gpu();
  sharpi_error e = SHARPI_ERROR_INIT;
  PlanPtr plan;
  const uint64_t takes = g.plan_info.device_held_bytes;
  const uint32_t n_chunk = g.plan_info.n_chunk;  // else a smaller budget takes smaller chunks
  const auto budget = [&](uint64_t bytes, int32_t layers) {
    return setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
      on(layers)(p, s);
      p->n_gpu_ffn = layers;
      p->n_chunk = n_chunk;
      p->device_budget = bytes;
    });
  };
  const auto layers = static_cast<int32_t>(g.plan_info.n_layers);
  EXPECT_EQ(try_plan(g.context.get(), path(), budget(takes, layers), &plan, &e), SHARPI_OK)
      << text_of(e);
  EXPECT_EQ(try_plan(g.context.get(), path(), budget(takes / 2, layers), &plan, &e),
            SHARPI_E_DOES_NOT_FIT);
  EXPECT_NE(std::string(e.text).find("device_budget"), std::string::npos) << e.text;
  EXPECT_NE(std::string(e.text).find(" bytes lacks them"), std::string::npos) << e.text;
}

INSTANTIATE_TEST_SUITE_P(Cuda, Tiers, ::testing::ValuesIn(all_models()), model_name);
INSTANTIATE_TEST_SUITE_P(Cuda, TrainedTiers, ::testing::ValuesIn(trained_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
