// SPDX-License-Identifier: MIT
// Models split between GPU and CPU, by layers and by FFN blocks, with weights streamed and without:
// goldens, codecs, needles, long prompts, everything a session can do across the split, sessions of
// several formats in one batch, the bytes of the plan. Skipped where there is no CUDA device.
#include <algorithm>
#include <map>

#include "cuda/device_test.h"
#include "engine/expected_refusals.h"
#include "engine/recorded_codecs.h"
#include "support/needle.h"
#include "support/session_rows.h"

namespace sharpi::testing {
namespace {

/// n_ffn -1: with their layers. stream: rows from which weights stream. slots: of single experts,
/// -1 = a layer's experts are with its FFN block.
struct Split {
  int32_t n_layers = 0, n_ffn = -1;
  uint32_t stream = SHARPI_UNSET;
  int32_t slots = -1;
  std::string text() const {
    return std::to_string(n_layers) + " layers, " + (n_ffn < 0 ? "their" : std::to_string(n_ffn)) +
           " FFN blocks on the GPU, " +
           (slots < 0 ? "" : std::to_string(slots) + " expert slots, ") +
           (stream == SHARPI_UNSET ? "nothing streams"
                                   : "streams from " + std::to_string(stream) + " rows");
  }
};

Edit at(const Split& split, const Edit& edit = {}) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->arithmetic = SHARPI_ARITHMETIC_EXACT;
    p->max_logit_rows = 64;
    s->n_ctx = 2048;
    s->k_dtype = s->v_dtype = SHARPI_KV_F32;
    if (edit) edit(p, s);
    p->n_gpu_layers = split.n_layers;
    p->n_gpu_ffn = split.n_ffn < 0 ? split.n_layers : split.n_ffn;
    p->stream_rows = split.stream;
    if (split.slots >= 0) p->n_gpu_experts = 0;
    p->n_expert_slots = split.slots;
  };
}

std::vector<sharpi_segment_info> segments(const sharpi_model* model) {
  std::vector<sharpi_segment_info> out(4096);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_model_segments(model, out.data(), sizeof out[0], 4096, &n, &e), SHARPI_OK)
      << text_of(e);
  out.resize(n);
  return out;
}

class Splits : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    const Loaded l = load(path(), setup_with(at({0})));
    n_ = static_cast<int32_t>(l.plan_info.n_layers);
    n_experts_ = static_cast<int32_t>(l.info.n_experts);
    spec_ = spec_of(path());
    ASSERT_TRUE(spec_);
  }
  /// Whether weights of FFNs or experts stay off the GPU; no others stream.
  bool has_ffn_beyond(const Split& split) const {
    const int32_t first = split.n_ffn < 0 ? split.n_layers : split.n_ffn;
    return std::any_of(spec_->layers.begin(), spec_->layers.end(), [&](const LayerSpec& l) {
      const bool parted = split.slots >= 0 && l.ffn.kind == FfnKind::kMoe;
      return l.ffn.kind != FfnKind::kNone && (parted || &l - spec_->layers.data() >= first);
    });
  }
  /// The split as a model; no model where layers that share rows would be parted.
  Loaded open(const Split& split, const Edit& edit = {}) const {
    const ModelSetup setup = setup_with(at(split, edit), 4);
    const ContextPtr context = make_context(setup);
    PlanPtr plan;
    sharpi_error e = SHARPI_ERROR_INIT;
    const sharpi_status planned = try_plan(context.get(), path(), setup, &plan, &e);
    if (is_expected_refusal(*spec_, split.n_layers, planned == SHARPI_E_UNSUPPORTED,
                            planned == SHARPI_OK, e.text, split.text())) {
      return {};
    }
    return load(path(), setup);
  }
  std::vector<Split> all() const {
    std::vector<Split> out;
    for (const int32_t layers : {0, 1, n_ / 2, n_ - 1, n_}) out.push_back({layers});
    for (const int32_t ffn : {0, 1, n_ - 1}) out.push_back({n_, ffn});
    out.push_back({n_ - 1, n_ / 2});
    if (n_experts_ == 0) return out;
    const auto mixtures = static_cast<int32_t>(
        std::count_if(spec_->layers.begin(), spec_->layers.end(),
                      [](const LayerSpec& l) { return l.ffn.kind == FfnKind::kMoe; }));
    for (const int32_t slots : {0, n_experts_, mixtures * n_experts_}) {
      out.push_back({n_, n_, SHARPI_UNSET, slots});
    }
    return out;
  }
  /// A few that are as different as can be; the first layer split that keeps sharing layers whole,
  /// where layers do not share rows from the first on.
  std::vector<Split> few() const {
    std::vector<Split> out{{n_, n_ / 2}, {n_, 0, 1}};
    int32_t layers = n_ / 2;
    while (parts_shared_rows(*spec_, layers)) --layers;
    if (layers > 0) {
      out.push_back({layers});
      out.push_back({layers, layers, 1});
    }
    if (n_experts_ != 0) out.push_back({n_, n_, 24, n_experts_});
    return out;
  }
  int32_t n_ = 0, n_experts_ = 0;
  std::shared_ptr<const ModelSpec> spec_;
};

/// What needs a model that answers, rows to compact, or distances that were recorded.
class TrainedSplits : public Splits {};

TEST_P(Splits, GreedyGoldensAreExact) {
  for (Split split : all()) {
    for (const uint32_t stream : {SHARPI_UNSET, 1u, 24u}) {
      split.stream = stream;
      const Loaded l = open(split);
      if (!l.model) continue;
      ASSERT_EQ(l.plan_info.n_gpu_layers, static_cast<uint32_t>(split.n_layers));
      const bool streams = split.n_layers > 0 && stream != SHARPI_UNSET &&
                           (split.n_ffn >= 0 || split.n_layers < n_ || split.slots >= 0);
      EXPECT_EQ(l.info.stream_rows, streams ? stream : SHARPI_UNSET) << split.text();
      for (const GoldenCase& g : golden_.cases) {
        Chat chat(l.model.get());
        chat.prefill(g.tokens);
        EXPECT_EQ(chat.greedy(static_cast<uint32_t>(g.greedy.size())), g.greedy) << split.text();
      }
      uint64_t bytes = 0, rows[2] = {0, 0};
      for (const sharpi_segment_info& s : segments(l.model.get())) {
        bytes += s.streamed_bytes;
        rows[s.list] += s.n_rows;
        EXPECT_TRUE(s.n_calls == 0 || s.seconds > 0);
      }
      EXPECT_EQ(bytes > 0, streams && has_ffn_beyond(split)) << split.text();
      EXPECT_EQ(rows[1] > 0, streams) << split.text();
      EXPECT_EQ(rows[0] > 0, !streams || stream != 1u) << split.text();
    }
  }
}

/// Types of rows below f32, and what is recorded of them.
struct Narrow {
  sharpi_kv_dtype kv;
  size_t recorded;
};
constexpr Narrow kNarrow[] = {{SHARPI_KV_BF16, 0}, {SHARPI_KV_Q8_0, 1}, {SHARPI_KV_Q4, 4}};

/// Logits of the same tokens with narrow rows and with f32 ones: the f32 choice stays among the
/// five best (q4: but for one position), and distances stay within what is recorded for the model.
/// Returns the worst.
double expect_near(const std::vector<Logits>& got, const std::vector<Logits>& want,
                   const RecordedCodecs& recorded, Narrow narrow, const std::string& what) {
  EXPECT_EQ(got.size(), want.size()) << what;
  std::vector<double> all;
  size_t missed = 0;
  for (size_t p = 0; p < std::min(got.size(), want.size()); ++p) {
    missed += in_best_five(got[p], best_of(want[p])) ? 0 : 1;
    all.push_back(distance(got[p], want[p]));
  }
  // Keys in four bits lose one in hundreds, as in oracle_test.
  EXPECT_LE(missed, narrow.kv == SHARPI_KV_Q4 ? 1u : 0u) << what;
  const Distance d = measure(all);
  EXPECT_LE(d.median, 1.5 * recorded.median[narrow.recorded]) << what;  // one prompt of several
  EXPECT_LE(d.worst, worst_allowed(recorded, narrow.recorded)) << what;
  return d.worst;
}

TEST_P(TrainedSplits, CodecsOfTheTrunkKeepTheChoice) {
  const std::vector<int32_t>& prompt = golden_.cases.front().tokens;
  const RecordedCodecs* recorded = recorded_codecs(GetParam());
  ASSERT_NE(recorded, nullptr);
  for (const Split& split : few()) {
    const Loaded base = open(split);
    Chat f32(base.model.get());
    const auto want = f32.all_logits(prompt, 64);
    for (const Narrow& narrow : kNarrow) {
      const sharpi_kv_dtype kv = narrow.kv;
      const Loaded l = open(split, [=](sharpi_plan_params*, sharpi_session_params* s) {
        s->k_dtype = s->v_dtype = kv;
      });
      Chat chat(l.model.get());
      const double worst = expect_near(chat.all_logits(prompt, 64), want, *recorded, narrow,
                                       split.text() + ", " + dtype_text(kv));
      uint32_t n_trunk = 0;
      for (int32_t i = 0; i < n_; ++i) {
        sharpi_layer_info layer{};
        layer.struct_size = sizeof layer;
        sharpi_error e = SHARPI_ERROR_INIT;
        ASSERT_EQ(sharpi_session_layer(chat.get(), static_cast<uint32_t>(i), &layer, &e),
                  SHARPI_OK);
        EXPECT_EQ(layer.tier, i < split.n_layers ? SHARPI_TIER_CUDA : SHARPI_TIER_CPU);
        if (layer.mixer == SHARPI_MIXER_DELTA_NET || layer.kv_source != i) continue;
        const bool trunk = i < split.n_layers;
        n_trunk += trunk ? 1 : 0;
        const bool tail_alone = n_trunk == 0;  // no attention layer on the GPU: kv_dtype is its own
        EXPECT_EQ(layer.k_dtype, trunk || tail_alone ? kv : SHARPI_KV_F32) << i;
      }
      if (n_trunk == 0) continue;
      EXPECT_GT(worst, 0.0) << "the codec is not used";
    }
  }
}

/// The rows of layers on the CPU are narrowed, those on the GPU are not.
TEST_P(TrainedSplits, CodecsOfTheTailKeepTheChoice) {
  const std::vector<int32_t>& prompt = golden_.cases.front().tokens;
  const RecordedCodecs* recorded = recorded_codecs(GetParam());
  ASSERT_NE(recorded, nullptr);
  size_t n_compared = 0;
  for (int32_t layers = n_ - 1; layers > 0 && n_compared < 4; --layers) {
    if (!has_rows_on_both(*spec_, layers)) continue;
    const Split split{layers};
    const Loaded base = open(split);
    Chat f32(base.model.get());
    const auto want = f32.all_logits(prompt, 64);
    for (const Narrow& narrow : kNarrow) {
      const sharpi_kv_dtype kv = narrow.kv;
      const Loaded l = open(split, [=](sharpi_plan_params*, sharpi_session_params* s) {
        s->tail_k_dtype = s->tail_v_dtype = kv;
      });
      Chat chat(l.model.get());
      const std::string what = split.text() + ", tail " + dtype_text(kv);
      EXPECT_GT(expect_near(chat.all_logits(prompt, 64), want, *recorded, narrow, what), 0.0)
          << what << ": the codec is not used";
      for (int32_t i = 0; i < n_; ++i) {
        if (!spec_->layers[static_cast<size_t>(i)].owns_kv()) continue;
        sharpi_layer_info layer{};
        layer.struct_size = sizeof layer;
        sharpi_error e = SHARPI_ERROR_INIT;
        ASSERT_EQ(sharpi_session_layer(chat.get(), static_cast<uint32_t>(i), &layer, &e),
                  SHARPI_OK);
        EXPECT_EQ(layer.k_dtype, i < split.n_layers ? SHARPI_KV_F32 : kv)
            << what << ", layer " << i;
        EXPECT_EQ(layer.v_dtype, i < split.n_layers ? SHARPI_KV_F32 : kv)
            << what << ", layer " << i;
      }
      ++n_compared;
    }
  }
  size_t n_owners = 0;
  for (const LayerSpec& layer : spec_->layers) n_owners += layer.owns_kv() ? 1 : 0;
  EXPECT_EQ(n_compared > 0, n_owners > 1) << "a tail with rows of its own";
}

TEST_P(TrainedSplits, NeedlesAreFound) {
  for (const Split& split : few()) {
    for (const sharpi_kv_dtype kv : {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0}) {
      const Loaded l = open(split, [=](sharpi_plan_params* p, sharpi_session_params* s) {
        p->arithmetic = SHARPI_ARITHMETIC_FAST;
        s->k_dtype = s->v_dtype = kv;
      });
      size_t found = 0;
      for (const GoldenNeedle& needle : golden_.needles) {
        Chat chat(l.model.get());
        chat.prefill(needle.prompt);
        found += answers(l.model.get(), chat, needle) ? 1 : 0;
      }
      EXPECT_GE(found, 23u) << split.text() << ", " << dtype_text(kv);
    }
  }
}

TEST_P(Splits, PromptsPast4096InOneCall) {
  const auto prompt = tokens(5000);
  const Edit big = [](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 5120;
    s->n_ctx = 8192;
  };
  const Loaded whole = open({n_}, big);
  Chat a(whole.model.get());
  a.prefill(prompt, 64);
  const auto want = rows_of(a, 64);
  for (const Split& split : few()) {
    const Loaded l = open(split, big);
    Chat b(l.model.get());
    b.prefill(prompt, 64);
    expect_same_argmax(rows_of(b, 64), want, split.text());
  }
}

void compact_to(Chat* chat, uint32_t budget) {
  sharpi_compact_params p = compact_params(SHARPI_POLICY_SNAPKV, budget);
  p.recency = 32;
  p.headroom = 128;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_compact(chat->get(), &p, nullptr, &e), SHARPI_OK) << text_of(e);
}

/// Whatever a session can do is done to one on the CPU and one that is split.
TEST_P(TrainedSplits, SessionsDoWhatTheyDoOnOneTier) {
  const auto prompt = tokens(300);
  const Edit edit = [](sharpi_plan_params* p, sharpi_session_params* s) {
    s->capture_window = 32;
    s->n_checkpoints = 2;
    p->n_sessions = 2;
  };
  const Loaded cpu = open({0}, edit);
  for (const Split& split : few()) {
    const Loaded l = open(split, edit);
    Chat a(cpu.model.get()), b(l.model.get());
    for (Chat* c : {&a, &b}) {
      c->prefill(slice(prompt, 0, 280));
      sharpi_error e = SHARPI_ERROR_INIT;
      if (cpu.info.is_hybrid) {
        ASSERT_EQ(sharpi_session_checkpoint(c->get(), 0, &e), SHARPI_OK) << text_of(e);
      }
      c->prefill(slice(prompt, 280, 300));
      ASSERT_EQ(sharpi_session_truncate(c->get(), 280, &e), SHARPI_OK) << text_of(e);
      c->prefill(slice(prompt, 280, 290));
    }
    EXPECT_LE(distance(a.logits(), b.logits()), 2e-3) << split.text() << ", truncated";
    const auto blob = saved(b);
    EXPECT_EQ(blob.size(), saved(a).size());
    Chat moved(cpu.model.get());
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_restore(moved.get(), blob.data(), blob.size(), &e), SHARPI_OK)
        << text_of(e);
    EXPECT_EQ(saved(moved), blob) << split.text() << ": the blob changed on its way";
    Chat other = b.fork();
    other.decode(prompt[3]), a.decode(prompt[3]), moved.decode(prompt[3]);
    EXPECT_LE(distance(a.logits(), other.logits()), 2e-3) << split.text() << ", forked";
    EXPECT_LE(distance(moved.logits(), other.logits()), 2e-3) << split.text() << ", moved";
    b.decode(prompt[3]);
    if (split.slots > 0) {  // which experts are resident may have changed in between
      EXPECT_LE(distance(b.logits(), other.logits()), 2e-3) << split.text();
    } else {
      EXPECT_TRUE(same_bits(b.logits(), other.logits())) << split.text();
    }
    compact_to(&a, 96), compact_to(&b, 96);
    EXPECT_EQ(a.info().n_slots_max, b.info().n_slots_max);
    a.decode(prompt[4]), b.decode(prompt[4]);
    EXPECT_EQ(best_of(a.logits()), best_of(b.logits())) << split.text() << ", compacted";
  }
}

TEST_P(TrainedSplits, BoundedSessionsStayWithinTheirBudget) {
  const auto prompt = tokens(900);
  const Edit edit = [](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 128;
    s->kv_budget = 160;
    s->capture_window = 32;
    s->recency = 32;
  };
  for (const Split& split : few()) {
    const Loaded l = open(split, edit);
    Chat chat(l.model.get());
    chat.prefill(prompt);
    for (const int32_t t : {5, 6, 7}) chat.decode(t);
    EXPECT_EQ(chat.info().n_tokens, 903u);
    EXPECT_LE(chat.info().n_slots_max, 160u + 128u) << split.text();
    EXPECT_LE(chat.info().capacity, 160u + 128u) << split.text();
  }
}

/// What each session says alone it says in a batch with the others, however each stores its rows.
TEST_P(Splits, OneBatchMixesFormats) {
  const sharpi_kv_dtype kinds[] = {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0, SHARPI_KV_F32};
  const Edit edit = [](sharpi_plan_params* p, sharpi_session_params*) { p->n_sessions = 8; };
  for (const Split& split : few()) {
    const Loaded l = open(split, edit);
    std::vector<Chat> alone, batch;
    for (size_t i = 0; i < std::size(kinds); ++i) {
      sharpi_session_params s;
      sharpi_session_params_init(&s, sizeof s);
      s.n_ctx = 1024;
      s.k_dtype = s.v_dtype = kinds[i];
      for (std::vector<Chat>* to : {&alone, &batch}) {
        to->emplace_back(l.model.get(), &s);
        to->back().prefill(tokens(100 + 7 * i));
      }
    }
    for (const int32_t t : {11, 12, 13}) {
      std::vector<sharpi_session*> sessions;
      std::vector<int32_t> next(batch.size(), t);
      for (Chat& c : batch) sessions.push_back(c.get());
      sharpi_error e = SHARPI_ERROR_INIT;
      ASSERT_EQ(
          sharpi_decode_batch(sessions.data(), next.data(), static_cast<uint32_t>(next.size()), &e),
          SHARPI_OK)
          << text_of(e);
      for (size_t i = 0; i < alone.size(); ++i) {
        alone[i].decode(t);
        EXPECT_LE(distance(alone[i].logits(), batch[i].logits()), 2e-3)
            << split.text() << ", session " << i;
      }
    }
  }
}

using RowKey = std::tuple<uint32_t, uint32_t, uint32_t, std::string>;
using RowSums = std::map<RowKey, std::pair<uint64_t, uint64_t>>;

void add_row(RowSums* to, const sharpi_memory_row& r) {
  auto& sum = (*to)[{r.tier, r.purpose, r.kind, r.label}];
  sum.first += r.payload_bytes;
  sum.second += r.held_bytes;
}

TEST_P(Splits, ThePlanIsWhatTheModelTakes) {
  for (const Split& split : few()) {
    const Loaded l = open(split);
    std::vector<sharpi_memory_row> rows(256);
    uint32_t n = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    RowSums planned, taken;
    ASSERT_EQ(sharpi_plan_rows(l.plan.get(), rows.data(), sizeof rows[0], 256, &n, &e), SHARPI_OK);
    uint64_t staging = 0;
    for (uint32_t i = 0; i < n; ++i) {
      // Transient rows are gone when loading has ended.
      if (!rows[i].per_session && !rows[i].transient) add_row(&planned, rows[i]);
      if (rows[i].purpose == SHARPI_ROW_STAGING) staging += rows[i].held_bytes;
    }
    ASSERT_EQ(sharpi_model_memory(l.model.get(), rows.data(), sizeof rows[0], 256, &n, &e),
              SHARPI_OK);
    for (uint32_t i = 0; i < n; ++i) add_row(&taken, rows[i]);
    EXPECT_EQ(planned, taken) << split.text();
    EXPECT_GT(staging, 0u) << "hidden rows change hands";
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Splits, ::testing::ValuesIn(all_models()), model_name);
INSTANTIATE_TEST_SUITE_P(Cuda, TrainedSplits, ::testing::ValuesIn(trained_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
