// SPDX-License-Identifier: MIT
// The plan is the truth: over models, codecs, splits and budgets every row that is planned is taken
// with the same bytes, and no other. Without a CUDA device the host's share of it runs: codecs and
// host budgets.
#include <map>
#include <tuple>

#include "engine/engine_case.h"
#include "engine/expected_refusals.h"
#include "support/session_rows.h"

namespace sharpi::testing {
namespace {

using Rows = MemoryRows;
using Key = std::tuple<uint32_t, uint32_t, uint32_t, std::string, uint32_t, uint32_t, uint32_t>;
using Table = std::map<Key, std::pair<uint64_t, uint64_t>>;

void add(const Rows& rows, Table* to) {
  for (const sharpi_memory_row& r : rows) {
    if (r.transient != 0) continue;  // gone when loading has ended
    auto& at =
        (*to)[Key{r.tier, r.purpose, r.kind, r.label, r.first_layer, r.n_layers, r.per_session}];
    at.first += r.payload_bytes;
    at.second += r.held_bytes;
  }
}

struct Wish {
  sharpi_kv_dtype kv = SHARPI_KV_AUTO, tail = SHARPI_KV_AUTO;
  int32_t layers = 0, ffn = -1, experts = -1, slots = -1;
  uint64_t device_budget = SHARPI_ALL_FREE, host_budget = SHARPI_ALL_FREE;
  uint32_t n_ctx = 512, window = 0;
  int32_t ends = -1;
  uint32_t drafters = 0;
  uint32_t kv_budget = 0;
};

std::string describe(const Wish& w) {
  return std::string(dtype_text(w.kv)) + " layers " + std::to_string(w.layers) + " ffn " +
         std::to_string(w.ffn) + " experts " + std::to_string(w.experts) + " slots " +
         std::to_string(w.slots) + " window " + std::to_string(w.window) + " ends " +
         std::to_string(w.ends) + " drafters " + std::to_string(w.drafters) + " KV budget " +
         std::to_string(w.kv_budget);
}

uint64_t held_by_context(const sharpi_context* context) {
  sharpi_device d{};
  d.struct_size = sizeof d;
  sharpi_error e = SHARPI_ERROR_INIT;
  return sharpi_device_info(context, 1, 0, &d, &e) == SHARPI_OK ? d.held_bytes : 0;
}

class Truth : public ModelTest {
 protected:
  void SetUp() override {
    ModelTest::SetUp();
    if (IsSkipped()) return;
    context_ = make_context({});
    spec_ = spec_of(path());
    ASSERT_TRUE(spec_);
  }
  ModelSetup setup_of(const Wish& w) const {
    return setup_with([=, this](sharpi_plan_params* p, sharpi_session_params* s) {
      s->k_dtype = s->v_dtype = w.kv;
      s->tail_k_dtype = s->tail_v_dtype = w.tail;
      s->n_ctx = w.n_ctx;
      s->capture_window = w.window;
      s->n_checkpoints = 2;
      p->n_gpu_layers = w.layers;
      p->n_gpu_ffn = w.ffn;
      p->n_gpu_experts = w.experts;
      p->n_expert_slots = w.slots;
      p->device_budget = w.device_budget;
      p->host_budget = w.host_budget;
      p->n_chunk = 64;
      p->gpu_ends = w.ends;
      s->kv_budget = w.kv_budget;
      s->drafters = w.drafters;
      s->n_draft = w.drafters == 0 ? 0 : 4;
      // A model drafts for itself: the vocabulary is the same, and so are the bytes twice.
      if ((w.drafters & SHARPI_DRAFT_MODEL) != 0) p->draft_path = path().c_str();
    });
  }
  /// The plan's summary when what was taken could be compared with it; n_rows 0 when refused.
  sharpi_plan_summary compare(const Wish& w) {
    sharpi_plan_summary info{};
    info.struct_size = sizeof info;
    sharpi_error e = SHARPI_ERROR_INIT;
    PlanPtr plan;
    const sharpi_status planned = try_plan(context_.get(), path(), setup_of(w), &plan, &e);
    const bool unsupported = planned == SHARPI_E_UNSUPPORTED;
    if (is_expected_refusal(*spec_, w.layers, unsupported, planned == SHARPI_OK, e.text,
                            describe(w)) ||
        !plan) {
      return info;
    }
    EXPECT_EQ(held_by_context(context_.get()), 0u);
    sharpi_model* raw = nullptr;
    EXPECT_EQ(sharpi_model_load(plan.get(), nullptr, nullptr, &raw, &e), SHARPI_OK)
        << describe(w) << ": " << text_of(e);
    const ModelPtr model(raw);
    if (!model) return info;
    EXPECT_EQ(sharpi_plan_info(plan.get(), &info, &e), SHARPI_OK) << text_of(e);
    Chat chat(raw);
    Table want, got;
    add(rows_of_handle(sharpi_plan_rows, plan.get()), &want);
    add(rows_of_handle(sharpi_model_memory, raw), &got);
    add(rows_of_handle(sharpi_session_memory, chat.get()), &got);
    EXPECT_EQ(got, want) << describe(w);
    EXPECT_EQ(held_by_context(context_.get()), info.device_held_bytes) << describe(w);
    uint64_t kv = 0, weights = 0;
    for (const auto& [key, bytes] : want) {
      EXPECT_GT(bytes.first, 0u) << std::get<3>(key);
      EXPECT_GE(bytes.second, bytes.first) << std::get<3>(key);
      kv += std::get<1>(key) == SHARPI_ROW_KV ? bytes.first : 0;
      weights += std::get<1>(key) == SHARPI_ROW_WEIGHTS ? bytes.first : 0;
    }
    EXPECT_GT(weights, 0u) << "nothing was priced";
    EXPECT_GT(kv, 0u) << "nothing was priced";
    EXPECT_EQ(kv, info.kv_payload_bytes);
    chat.prefill(tokens(70));  // and what computes takes no more
    chat.decode(3);
    EXPECT_EQ(held_by_context(context_.get()), info.device_held_bytes) << describe(w);
    return info;
  }
  uint32_t n_layers() {
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_plan_summary info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(try_plan(context_.get(), path(), setup_of({}), &plan, &e), SHARPI_OK) << text_of(e);
    EXPECT_EQ(sharpi_plan_info(plan.get(), &info, &e), SHARPI_OK) << text_of(e);
    return info.n_layers;
  }
  /// Routed experts of all layers: the most slots that a plan takes.
  int32_t n_experts() {
    int32_t n = 1;
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    const auto layers = static_cast<int32_t>(n_layers());
    while (try_plan(context_.get(), path(), setup_of({.layers = layers, .slots = n}), &plan, &e) ==
           SHARPI_OK)
      ++n;
    EXPECT_EQ(e.status, SHARPI_E_INVALID_ARGUMENT) << e.text;
    EXPECT_NE(std::string(e.text).find("n_expert_slots is " + std::to_string(n)), std::string::npos)
        << e.text;
    return n - 1;
  }
  /// Of the layers with routed experts.
  int32_t first_mixture() const {
    int32_t l = 0;
    while (spec_->layers[static_cast<size_t>(l)].ffn.kind != FfnKind::kMoe) ++l;
    return l;
  }
  ContextPtr context_;
  std::shared_ptr<const ModelSpec> spec_;
};

constexpr sharpi_kv_dtype kDtypes[] = {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0};

TEST_P(Truth, OnTheHostOverCodecsAndBudgets) {
  uint32_t n_compared = 0;
  for (const sharpi_kv_dtype kv : kDtypes) {
    const uint64_t takes = compare({.kv = kv}).host_held_bytes;
    ASSERT_GT(takes, 0u);
    const sharpi_plan_summary exact = compare({.kv = kv, .host_budget = takes});
    EXPECT_EQ(exact.host_held_bytes, takes);
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(
        try_plan(context_.get(), path(), setup_of({.kv = kv, .host_budget = takes - 1}), &plan, &e),
        SHARPI_E_DOES_NOT_FIT);
    const sharpi_plan_summary captured = compare({.kv = kv, .window = 32});
    EXPECT_GT(captured.host_held_bytes, takes);
    n_compared += exact.n_rows > 0 ? 1 : 0;
  }
  EXPECT_EQ(n_compared, 3u);
}

TEST_P(Truth, OverSplitsAndCodecs) {
  if (const std::string why = why_no_gpu(context_.get()); !why.empty()) GTEST_SKIP() << why;
  const auto n = static_cast<int32_t>(n_layers());
  for (const sharpi_kv_dtype kv : kDtypes) {
    for (const int32_t layers : {1, n / 2, n - 1, n}) {
      for (const int32_t ffn : {-1, 0, layers / 2}) {
        const sharpi_plan_summary s = compare({.kv = kv, .tail = kv, .layers = layers, .ffn = ffn});
        if (parts_shared_rows(*spec_, layers)) continue;
        EXPECT_EQ(s.n_gpu_layers, static_cast<uint32_t>(layers));
        EXPECT_GT(s.device_held_bytes, 0u);
      }
    }
    EXPECT_GT(compare({.kv = kv, .layers = n, .window = 32}).n_rows, 0u);
  }
}

TEST_P(Truth, OverExpertsAndSlots) {
  if (const std::string why = why_no_gpu(context_.get()); !why.empty()) GTEST_SKIP() << why;
  const auto n = static_cast<int32_t>(n_layers());
  const sharpi_plan_summary whole = compare({.layers = n});
  if (whole.expert_slot_bytes == 0) GTEST_SKIP() << "no routed experts";
  const int32_t total = n_experts();
  ASSERT_GT(total, 0);
  for (const sharpi_kv_dtype kv : kDtypes) {
    for (const int32_t slots : {0, 3, total}) {
      const sharpi_plan_summary s = compare({.kv = kv, .layers = n, .slots = slots});
      EXPECT_EQ(s.n_expert_slots, static_cast<uint32_t>(slots));
      EXPECT_EQ(s.n_gpu_experts, 0u);
    }
    const sharpi_plan_summary some =
        compare({.kv = kv, .layers = n, .experts = first_mixture() + 1, .slots = 2});
    EXPECT_EQ(some.n_gpu_experts, 1u);
  }
}

TEST_P(Truth, OverDeviceBudgets) {
  if (const std::string why = why_no_gpu(context_.get()); !why.empty()) GTEST_SKIP() << why;
  const uint64_t all = compare({.layers = -1}).device_held_bytes;
  ASSERT_GT(all, 0u);
  uint64_t before = all + 1;
  for (const uint32_t percent : {100u, 90u, 75u, 60u, 45u, 30u, 15u, 0u}) {
    const uint64_t budget = all * percent / 100;
    const sharpi_plan_summary s = compare({.layers = -1, .device_budget = budget});
    EXPECT_LE(s.device_peak_bytes, budget);
    EXPECT_LE(s.device_held_bytes, before);
    before = s.device_held_bytes;
  }
  EXPECT_EQ(before, 0u) << "a budget of nothing takes nothing";
}

/// Drafters go with the head: everything there, some layers, no ends; and on the host.
TEST_P(Truth, OverDrafters) {
  const auto n = static_cast<int32_t>(n_layers());
  const bool has_gpu = why_no_gpu(context_.get()).empty();
  std::vector<uint32_t> drafters = {SHARPI_DRAFT_MODEL, SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MODEL};
  if (spec_->mtp) drafters.push_back(SHARPI_DRAFT_MTP);
  for (const uint32_t d : drafters) {
    for (const uint32_t budget : {0u, 128u}) {
      const uint32_t window = budget == 0 ? 0 : 16;
      const auto with = [&](int32_t layers, int32_t ends) {
        return Wish{.kv = SHARPI_KV_BF16,
                    .tail = SHARPI_KV_BF16,
                    .layers = layers,
                    .window = window,
                    .ends = ends,
                    .drafters = d,
                    .kv_budget = budget};
      };
      EXPECT_EQ(compare(with(0, -1)).device_held_bytes, 0u);
      if (!has_gpu) continue;
      const uint64_t there = compare(with(n, 1)).device_held_bytes;
      const uint64_t parted = compare(with(n, 0)).device_held_bytes;
      if (n > 1) compare(with(n - 1, 1));
      EXPECT_GT(there, parted);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Truth, ::testing::ValuesIn(all_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
