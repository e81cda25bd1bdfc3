// SPDX-License-Identifier: MIT
// Drafters beside a head on a GPU, on every split that has one there: they draft what they draft on
// the CPU, with `deterministic` a session is the one that decoding leaves, and the steps that are
// recorded for single rows draft as others do. Skipped where there is no CUDA device.
#include "api/api_handles.h"
#include "cuda/device_test.h"
#include "engine/draft_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kPrompt = 21, kTokens = 40;

/// -1: as many as fit, which is all of them.
struct Where {
  int32_t layers = -1, ffn = -1, experts = -1, ends = 1;
};

class Drafters : public DeviceTest {
 protected:
  Loaded load_at(const Where& where, uint32_t drafters, const Edit& edit = {}) const {
    return load(path(), setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
                  p->deterministic = 1;
                  p->n_chunk = 48;
                  p->n_sessions = 4;
                  p->n_gpu_layers = where.layers;
                  p->n_gpu_ffn = where.ffn;
                  p->n_gpu_experts = where.experts;
                  p->gpu_ends = where.ends;
                  if ((drafters & SHARPI_DRAFT_MODEL) != 0) p->draft_path = path().c_str();
                  s->n_ctx = 256;
                  s->n_checkpoints = 2;
                  s->n_draft = 8;
                  s->drafters = drafters;
                  s->k_dtype = s->v_dtype = s->tail_k_dtype = s->tail_v_dtype = SHARPI_KV_F32;
                  if (edit) edit(p, s);
                }));
  }
  /// Everything; all mixers and one FFN block; without routed experts; without the embedding, where
  /// that is no part of the head.
  std::vector<Where> with_head() const {
    std::vector<Where> out{{}, {-1, 1, -1, 1}};
    if (has_mtp()) out.push_back({-1, -1, -1, 2});
    if (has_experts()) out.push_back({-1, -1, 0, 1});
    return out;
  }
  bool has_experts() const { return GetParam().find("moe") != std::string::npos; }
  static bool has_mtp() { return GetParam().find("qwen35") != std::string::npos; }
  std::vector<uint32_t> drafters() const {
    return has_mtp() ? std::vector<uint32_t>{SHARPI_DRAFT_MTP, SHARPI_DRAFT_MODEL}
                     : std::vector<uint32_t>{SHARPI_DRAFT_MODEL};
  }
  static Chat plain_chat(const Loaded& l) {
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = 256, s.n_checkpoints = 2;
    s.k_dtype = s.v_dtype = s.tail_k_dtype = s.tail_v_dtype = SHARPI_KV_F32;
    return Chat(l.model.get(), &s);
  }
};

/// What the session's drafter takes to follow `next`.
std::vector<int32_t> drafts_of(const Chat& chat, int32_t next, uint32_t n) {
  Session& s = *chat.get()->p;
  std::vector<int32_t> out(n);
  Drafted drafted;
  Logits scratch(chat.n_vocab());
  const Status done = s.mtp() != nullptr ? s.mtp()->propose(s.tokens(), s.first_position(), next, n,
                                                            scratch.data(), out.data(), &drafted.n)
                                         : s.draft_model()->propose(s.tokens(), s.first_position(),
                                                                    next, n, out.data(), &drafted);
  EXPECT_TRUE(done.is_ok()) << done.text();
  out.resize(drafted.n);
  return out;
}

TEST_P(Drafters, LeaveTheSessionThatDecodingLeaves) {
  for (const Where& where : with_head()) {
    for (const uint32_t by : drafters()) {
      const Loaded loaded = load_at(where, by);
      ASSERT_TRUE(loaded.model);
      Chat plain = plain_chat(loaded);
      plain.prefill(tokens(kPrompt));
      use_endless_sampler(plain, loaded.model.get(), 0);
      std::vector<int32_t> want;
      while (want.size() < kTokens) {
        want.push_back(drawn(plain));
        plain.decode(want.back());
      }
      for (const uint32_t n : {1u, 2u, 4u, 8u}) {
        SCOPED_TRACE("FFN blocks " + std::to_string(where.ffn) + ", experts " +
                     std::to_string(where.experts) + ", ends " + std::to_string(where.ends) +
                     ", drafters " + std::to_string(by) + ", " + std::to_string(n) + " drafts");
        Chat chat(loaded.model.get());
        chat.prefill(tokens(kPrompt));
        use_endless_sampler(chat, loaded.model.get(), 0);
        std::vector<int32_t> got;
        size_t n_drafted = 0, n_accepted = 0;
        while (got.size() < kTokens && !HasFailure()) {
          std::vector<int32_t> pass = {drawn(chat)};
          const auto left = static_cast<uint32_t>(std::min<size_t>(n, kTokens - got.size() - 1));
          if (left != 0) {
            for (const int32_t t : drafts_of(chat, pass[0], left)) pass.push_back(t);
          }
          const std::vector<int32_t> read = verified(chat, pass);
          n_drafted += pass.size() - 1;
          n_accepted += read.size() - 1;
          got.insert(got.end(), read.begin(), read.end());
        }
        ASSERT_EQ(got, want);
        expect_same(chat, plain, "at the end");
        EXPECT_GT(n_drafted, 0u);
        // A model that drafts for itself, but for rows and blocks of other arithmetic.
        EXPECT_TRUE(by != SHARPI_DRAFT_MODEL || n_accepted * 4 > n_drafted);
      }
    }
  }
}

/// The drafts behind every token of a text, one each.
std::vector<int32_t> drafts_along(const Loaded& loaded, const std::vector<int32_t>& text) {
  Chat chat(loaded.model.get());
  std::vector<int32_t> out;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    chat.decode(text[i]);
    const std::vector<int32_t> one = drafts_of(chat, text[i + 1], 1);
    EXPECT_EQ(one.size(), 1u);
    out.push_back(one.empty() ? -1 : one[0]);
  }
  return out;
}

size_t n_equal(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  size_t n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += a[i] == b[i] ? 1 : 0;
  return n;
}

/// Between tiers and kinds of arithmetic a draft may change where two tokens are nearly as good.
TEST_P(Drafters, DraftAsOnTheCpu) {
  const std::vector<int32_t> text = tokens(120);
  const Edit exact = [](sharpi_plan_params* p, sharpi_session_params*) {
    p->arithmetic = SHARPI_ARITHMETIC_EXACT;
  };
  const Edit fast = [](sharpi_plan_params* p, sharpi_session_params*) { p->deterministic = 0; };
  for (const uint32_t by : drafters()) {
    SCOPED_TRACE("drafters " + std::to_string(by));
    const std::vector<int32_t> want = drafts_along(load_at({0, -1, -1, -1}, by, exact), text);
    const size_t most = want.size();
    for (const Where& where : with_head()) {
      EXPECT_GE(n_equal(drafts_along(load_at(where, by, exact), text), want), most * 19 / 20);
      EXPECT_GE(n_equal(drafts_along(load_at(where, by, fast), text), want), most * 9 / 10)
          << "recorded steps of one row";
    }
  }
}

/// A part of the head drafts the best of its tokens, and sessions are left as without drafts.
TEST_P(Drafters, DraftWithAPartOfTheHead) {
  if (!has_mtp()) return;
  const std::vector<int32_t> text = tokens(120);
  for (const uint32_t n_vocab : {16u, 256u}) {
    SCOPED_TRACE(std::to_string(n_vocab) + " tokens");
    const Edit exact = [=](sharpi_plan_params* p, sharpi_session_params* s) {
      p->arithmetic = SHARPI_ARITHMETIC_EXACT;
      s->n_draft_vocab = n_vocab;
    };
    const std::vector<int32_t> want =
        drafts_along(load_at({0, -1, -1, -1}, SHARPI_DRAFT_MTP, exact), text);
    EXPECT_LT(*std::max_element(want.begin(), want.end()), static_cast<int32_t>(n_vocab));
    for (const Where& where : with_head()) {
      const Loaded loaded = load_at(where, SHARPI_DRAFT_MTP, exact);
      EXPECT_GE(n_equal(drafts_along(loaded, text), want), want.size() * 19 / 20);
      Chat plain = plain_chat(loaded), chat(loaded.model.get());
      for (Chat* s : {&plain, &chat}) {
        s->prefill(tokens(kPrompt));
        use_endless_sampler(*s, loaded.model.get(), 0);
      }
      for (size_t n_read = 0; n_read < kTokens && !HasFailure();) {
        std::vector<int32_t> pass = {drawn(chat)};
        for (const int32_t t : drafts_of(chat, pass[0], 4)) {
          EXPECT_LT(t, static_cast<int32_t>(n_vocab));
          pass.push_back(t);
        }
        for (const int32_t t : verified(chat, pass)) {
          ASSERT_EQ(drawn(plain), t);
          plain.decode(t);
          ++n_read;
        }
      }
      expect_same(chat, plain, "at the end");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Drafters,
                         ::testing::Values("tiny-qwen3", "tiny-qwen3moe", "tiny-qwen35",
                                           "tiny-qwen35moe", "tiny-gemma4"),
                         model_name);

}  // namespace
}  // namespace sharpi::testing
