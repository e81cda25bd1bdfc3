// SPDX-License-Identifier: MIT
// The original requirement, at the size of the fixtures: with SHARPI_SNAPKV_BUDGET in the
// environment and nothing else, a prompt of eight times that leaves an eighth of the attention's KV
// payload, with every codec; held bytes follow; and what was hidden far back is still found.
#include <algorithm>
#include <cstdlib>

#include "engine_case.h"
#include "support/needle.h"
#include "support/system.h"

namespace sharpi::testing {
namespace {

/// SHARPI_SNAPKV_BUDGET for the time of a test.
class Budget {
 public:
  explicit Budget(uint32_t n) {
    test::set_environment("SHARPI_SNAPKV_BUDGET", std::to_string(n).c_str());
  }
  ~Budget() { test::unset_environment("SHARPI_SNAPKV_BUDGET"); }
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;
};

uint64_t row_bytes(sharpi_kv_dtype d, uint64_t elements) {
  return d == SHARPI_KV_AUTO   ? 0  // keys are the values too
         : d == SHARPI_KV_F32  ? elements * 4
         : d == SHARPI_KV_BF16 ? elements * 2
         : d == SHARPI_KV_Q8_0 ? elements / 32 * 34
                               : elements / 32 * 18;
}

class SnapKv : public ModelTest {
 protected:
  Loaded loaded(sharpi_kv_dtype kv, uint32_t n_ctx) const {
    ModelSetup setup = setup_with(
        [=](sharpi_plan_params*, sharpi_session_params* s) {
          s->n_ctx = n_ctx;
          s->k_dtype = s->v_dtype = kv;
        },
        kThreadsOfNeedles);
    setup.use_env = true;
    return load(path(), setup);
  }
  /// KV bytes of full-attention layers; rings and recurrent states are not compacted.
  static uint64_t payload(const Chat& chat, uint32_t n_layers) {
    uint64_t n = 0;
    for (uint32_t l = 0; l < n_layers; ++l) {
      sharpi_layer_info i{};
      i.struct_size = sizeof i;
      sharpi_error e = SHARPI_ERROR_INIT;
      EXPECT_EQ(sharpi_session_layer(chat.get(), l, &i, &e), SHARPI_OK) << text_of(e);
      if (i.mixer != SHARPI_MIXER_ATTENTION || i.kv_source != static_cast<int32_t>(l)) continue;
      const uint64_t row = uint64_t{i.n_kv_heads} * i.head_dim;
      n += i.n_slots * (row_bytes(i.k_dtype, row) + row_bytes(i.v_dtype, row));
    }
    return n;
  }
};

TEST_P(SnapKv, TheEnvironmentAloneLeavesAnEighthOfThePayload) {
  constexpr uint32_t kBudget = 192, kPrompt = 8 * kBudget, kHeadroom = 1024, kContext = 4096;
  const Budget budget(kBudget);
  for (const sharpi_kv_dtype kv : stored_dtypes()) {
    const Loaded l = loaded(kv, kContext);
    Chat chat(l.model.get());
    EXPECT_EQ(chat.info().k_dtype, kv) << "the dtype is what was asked for";
    const auto prompt = tokens(kPrompt);
    sharpi_prefill_params more;
    sharpi_prefill_params_init(&more, sizeof more);
    more.flags = SHARPI_PREFILL_MORE;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_prefill(chat.get(), prompt.data(), kPrompt - 1, &more, nullptr, &e),
              SHARPI_OK)
        << text_of(e);
    const uint64_t one_row = payload(chat, l.info.n_layers) / (kPrompt - 1);
    ASSERT_GT(one_row, 0u);
    const uint64_t held = chat.info().kv_held_bytes;
    chat.prefill(prompt.data() + kPrompt - 1, 1);  // the end of the prompt
    const sharpi_session_summary s = chat.info();
    EXPECT_EQ(s.is_compacted, 1u);
    EXPECT_EQ(payload(chat, l.info.n_layers) * 8, one_row * kPrompt) << dtype_text(kv);
    EXPECT_EQ(s.n_tokens, kPrompt);
    EXPECT_EQ(s.capacity, kBudget + kHeadroom);
    // What full attention holds falls to that, its headroom and less than one handle of the group.
    constexpr uint64_t kHandle = 2u << 20;
    const uint64_t full_before = one_row * kContext, full_after = one_row * (kBudget + kHeadroom);
    EXPECT_LE(s.kv_held_bytes + full_before, held + full_after + kHandle) << dtype_text(kv);
    chat.decode(prompt[1]);
  }
}

class SnapKvNeedles : public SnapKv {};

/// What the environment asks for at the end of a prompt is the compaction that needles_test asks
/// for: the same rows stay and the same logits follow.
TEST_P(SnapKvNeedles, TheEnvironmentCompactsAsACallDoes) {
  constexpr uint32_t kBudget = 256;
  const Budget budget(kBudget);
  const auto& needle = *std::min_element(
      golden_.needles.begin(), golden_.needles.end(),
      [](const auto& a, const auto& b) { return a.prompt.size() < b.prompt.size(); });
  for (const sharpi_kv_dtype kv : stored_dtypes()) {
    SCOPED_TRACE(dtype_text(kv));
    const Loaded l = loaded(kv, 4096);
    Chat chat(l.model.get());
    chat.prefill(needle.prompt);
    EXPECT_EQ(chat.info().n_slots_max, kBudget);
    sharpi_session_params whole;
    sharpi_session_params_init(&whole, sizeof whole);
    whole.n_ctx = 4096;
    whole.k_dtype = whole.v_dtype = kv;
    whole.prompt_budget = 0;
    whole.capture_window = l.plan_info.capture_window;
    Chat told(l.model.get(), &whole);
    told.prefill(needle.prompt);
    EXPECT_EQ(told.info().n_slots_max, needle.prompt.size());
    const sharpi_compact_params p = compact_params(SHARPI_POLICY_AUTO, kBudget);
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_compact(told.get(), &p, nullptr, &e), SHARPI_OK) << text_of(e);
    for (size_t i = 0; i < needle.answer.size(); ++i) {
      ASSERT_TRUE(same_bits(chat.logits(), told.logits())) << "token " << i << " of the answer";
      const int32_t token = chat.argmax();
      chat.decode(token);
      told.decode(token);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, SnapKv, ::testing::ValuesIn(compactable_models()), model_name);
INSTANTIATE_TEST_SUITE_P(Engine, SnapKvNeedles, ::testing::ValuesIn(trained_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
