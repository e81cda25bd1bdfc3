// SPDX-License-Identifier: MIT
// sharpi_verify_batch(): sessions with different numbers of drafts in one pass are where decoding
// alone leaves them, whatever a row of the caller measures; what is refused changes none.
#include "draft_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kSessions = 4, kTokens = 24;

Edit setting(uint32_t n_draft = 6) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->deterministic = 1;
    p->n_chunk = 32;
    p->n_sessions = 2 * kSessions;
    p->max_batch = kSessions;
    p->max_logit_rows = 32;
    p->n_gpu_layers = on_gpu() ? -1 : 0;
    s->n_ctx = 96;
    s->n_draft = n_draft;
  };
}

void use_sampler(const Chat& chat, uint32_t i) {
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  p.seed = 5 + i;
  p.temperature = i % 2 == 0 ? 0.0f : 0.8f;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_set_sampler(chat.get(), &p, &e), SHARPI_OK) << e.text;
}

/// Two sessions for each text: one decodes alone, one takes part in batches.
struct Pair {
  Chat alone, together;
  std::vector<int32_t> want, got;
};

std::vector<Pair> make_pairs(const Loaded& l, const MadeModel& file) {
  std::vector<Pair> out;
  for (uint32_t i = 0; i < kSessions; ++i) {
    Pair p{Chat(l.model.get()), Chat(l.model.get()), {}, {}};
    for (Chat* c : {&p.alone, &p.together}) {
      c->prefill(file.tokens(9 + 3 * i, i));
      use_sampler(*c, i);
    }
    for (uint32_t t = 0; t < kTokens; ++t) {
      p.want.push_back(drawn(p.alone));
      p.alone.decode(p.want.back());
    }
    out.push_back(std::move(p));
  }
  return out;
}

/// A newer caller's row: more behind what this library knows.
struct WiderRead {
  sharpi_batch_read known;
  uint64_t more;
};

template <class Row>
sharpi_batch_read& known_part(Row& row) {
  if constexpr (std::is_same_v<Row, WiderRead>) {
    return row.known;
  } else {
    return row;
  }
}

template <class Row>
void read_to_the_end(std::vector<Pair>* pairs, uint32_t n_vocab) {
  uint32_t count = 0;
  while (true) {
    std::vector<Row> rows;
    std::vector<std::vector<int32_t>> tokens(kSessions);
    std::vector<Pair*> who;
    for (uint32_t i = 0; i < kSessions; ++i) {
      Pair& p = (*pairs)[i];
      if (p.got.size() == kTokens) continue;
      tokens[i] = {drawn(p.together)};
      const size_t n = 2 * i % 7;  // drafts of this session: 0, 2, 4, 6
      for (size_t k = p.got.size() + 1; k < kTokens && tokens[i].size() <= n; ++k) {
        const auto wrong = static_cast<int32_t>((static_cast<uint32_t>(p.want[k]) + 1) % n_vocab);
        tokens[i].push_back(++count % 4 == 0 ? wrong : p.want[k]);
      }
      Row row{};
      sharpi_batch_read& r = known_part(row);
      r.session = p.together.get(), r.tokens = tokens[i].data(), r.n_read = 77;
      r.n = static_cast<uint32_t>(tokens[i].size());
      rows.push_back(row);
      who.push_back(&p);
    }
    if (rows.empty()) return;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_verify_batch(reinterpret_cast<sharpi_batch_read*>(rows.data()), sizeof(Row),
                                  static_cast<uint32_t>(rows.size()), &e),
              SHARPI_OK)
        << e.text;
    for (size_t r = 0; r < rows.size(); ++r) {
      const sharpi_batch_read& one = known_part(rows[r]);
      ASSERT_GE(one.n_read, 1u);
      ASSERT_LE(one.n_read, one.n);
      who[r]->got.insert(who[r]->got.end(), one.tokens, one.tokens + one.n_read);
    }
  }
}

TEST(VerifyBatch, LeavesEverySessionWhereDecodingAloneLeavesIt) {
  for (const auto& recipe :
       test::with_newer_kinds({test::tiny_qwen3(), test::tiny_qwen35(), test::tiny_gemma3()})) {
    const MadeModel file(recipe);
    const Loaded loaded = load(file.path(), setup_with(setting()));
    ASSERT_TRUE(loaded.model);
    for (const bool wider : {false, true}) {
      SCOPED_TRACE(recipe.arch + (wider ? ", wider rows" : ""));
      std::vector<Pair> pairs = make_pairs(loaded, file);
      if (wider) {
        read_to_the_end<WiderRead>(&pairs, recipe.n_vocab);
      } else {
        read_to_the_end<sharpi_batch_read>(&pairs, recipe.n_vocab);
      }
      if (HasFatalFailure()) return;
      for (const Pair& p : pairs) {
        EXPECT_EQ(p.got, p.want);
        EXPECT_TRUE(same_bits(p.together.logits(), p.alone.logits()));
      }
    }
  }
}

TEST(VerifyBatch, WhatIsRefusedChangesNoSession) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded loaded = load(file.path(), setup_with(setting()));
  const Loaded elsewhere = load(file.path(), setup_with(setting()));
  std::vector<Pair> pairs = make_pairs(loaded, file);
  const Chat stranger(elsewhere.model.get());
  const std::vector<int32_t> fine = {1, 2}, unknown = {1, 1 << 30}, many(8, 1);
  sharpi_error e = SHARPI_ERROR_INIT;
  const auto row = [](const Chat& c, const std::vector<int32_t>& tokens) {
    sharpi_batch_read r{};
    r.session = c.get(), r.tokens = tokens.data(), r.n = static_cast<uint32_t>(tokens.size());
    r.n_read = 9;
    return r;
  };
  const auto refused = [&](const sharpi_batch_read& second, sharpi_status status,
                           const std::string& text) {
    sharpi_batch_read reads[] = {row(pairs[0].together, fine), second};
    const std::vector<char> before = saved(pairs[0].together);
    EXPECT_EQ(sharpi_verify_batch(reads, sizeof reads[0], 2, &e), status) << text;
    EXPECT_NE(std::string(e.text).find(text), std::string::npos) << e.text;
    for (const sharpi_batch_read& r : reads) EXPECT_EQ(r.n_read, 0u) << text;
    EXPECT_TRUE(saved(pairs[0].together) == before) << text;
  };
  const sharpi_status bad = SHARPI_E_INVALID_ARGUMENT;
  const Chat& second = pairs[1].together;
  refused(row(second, unknown), bad, "token 1 is 1073741824");
  refused(row(second, many), bad, "7 drafts behind the first token");
  refused(row(pairs[0].together, fine), bad, "sessions[0] and sessions[1] are the same");
  refused(row(stranger, fine), bad, "belong to different models");
  sharpi_batch_read one = row(second, fine);
  one.n = 0;
  refused(one, bad, "session 1 reads no token");
  one = row(second, fine), one.session = nullptr;
  refused(one, bad, "sessions[1] is null");
  one = row(second, fine), one.tokens = nullptr;
  refused(one, bad, "tokens");
  sharpi_sample_params params;
  sharpi_sample_params_init(&params, sizeof params);
  params.meanwhile = [](void*, int32_t) {};
  one = row(second, fine), one.params = &params;
  refused(one, bad, "reads[1].params has a meanwhile");
  sharpi_session_cancel(second.get());
  refused(row(second, fine), SHARPI_E_CANCELLED, "reads[1] was cancelled");
  EXPECT_EQ(e.native_code, 1);
  WiderRead wide{row(second, fine), 1};
  EXPECT_EQ(sharpi_verify_batch(&wide.known, sizeof wide, 1, &e), SHARPI_E_UNSUPPORTED);
  EXPECT_EQ(sharpi_verify_batch(&wide.known, 8, 1, &e), bad);
  std::vector<sharpi_batch_read> crowd(65, row(second, fine));
  for (sharpi_batch_read& r : crowd) r.n_read = 7;
  for (const uint32_t n : {0u, 65u}) {
    EXPECT_EQ(sharpi_verify_batch(crowd.data(), sizeof crowd[0], n, &e), bad);
    EXPECT_NE(std::string(e.text).find("1 to max_batch"), std::string::npos) << e.text;
  }
  for (const sharpi_batch_read& r : crowd) EXPECT_EQ(r.n_read, 0u);
  std::vector<sharpi_batch_read> five;
  for (const Pair& p : pairs) five.push_back(row(p.together, fine));
  five.push_back(row(pairs[0].alone, fine));
  EXPECT_EQ(sharpi_verify_batch(five.data(), sizeof five[0], 5, &e), bad);
  EXPECT_NE(std::string(e.text).find("max_batch is 4"), std::string::npos) << e.text;
  five.pop_back();
  EXPECT_EQ(sharpi_verify_batch(five.data(), sizeof five[0], 4, &e), SHARPI_OK) << e.text;
}

}  // namespace
}  // namespace sharpi::testing
