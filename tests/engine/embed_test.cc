// SPDX-License-Identifier: MIT
// Vectors and scores of texts against those that HF transformers computed from the same weights,
// and what an embedder refuses.
#include <cmath>

#include "embed_case.h"
#include "model/model_spec.h"

namespace sharpi::testing {
namespace {

Loaded load_encoder(const std::string& name, bool exact, bool deterministic = false,
                    uint32_t n_chunk = SHARPI_UNSET) {
  ModelSetup setup;
  setup.edit = [=](sharpi_plan_params* p, sharpi_session_params* s) {
    s->n_ctx = SHARPI_UNSET;
    p->arithmetic = exact ? SHARPI_ARITHMETIC_EXACT : SHARPI_ARITHMETIC_FAST;
    p->deterministic = deterministic ? 1 : 0;
    p->n_chunk = n_chunk;
  };
  return load(encoder_path(name), setup);
}

std::vector<Ids> ids_of(const std::vector<EncodedText>& texts) {
  std::vector<Ids> out;
  for (const EncodedText& t : texts) out.push_back(t.tokens);
  return out;
}

class Encoders : public ::testing::TestWithParam<std::string> {};

TEST_P(Encoders, TokensAreTheReferences) {
  const Loaded m = load_encoder(GetParam(), true);
  for (const EncodedText& t : encoded_texts(GetParam()))
    EXPECT_EQ(tokenized(m.model.get(), t.text), t.tokens) << t.text;
}

TEST_P(Encoders, ExactVectorsAndRowsAreTheReferences) {
  const Loaded m = load_encoder(GetParam(), true);
  Embedding e(m.model.get());
  const auto texts = encoded_texts(GetParam());
  sharpi_embed_params p = embed_params();
  p.normalize = 0;
  const std::vector<Vector> vectors = e.embed(ids_of(texts), p);
  ASSERT_EQ(vectors.size(), texts.size()) << e.error().text;
  const std::vector<Vector> rows = e.embed(ids_of(texts), SHARPI_POOLING_NONE);
  size_t last = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_LE(largest_difference(vectors[i], texts[i].vector), 1e-4) << texts[i].text;
    last += texts[i].tokens.size();
    EXPECT_LE(largest_difference(rows[last - 1], texts[i].last_row), 1e-4) << texts[i].text;
  }
}

TEST_P(Encoders, FastVectorsAreClose) {
  const Loaded m = load_encoder(GetParam(), false);
  Embedding e(m.model.get());
  const auto texts = encoded_texts(GetParam());
  const std::vector<Vector> vectors = e.embed(ids_of(texts));
  ASSERT_EQ(vectors.size(), texts.size()) << e.error().text;
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_GE(cosine(vectors[i], texts[i].vector), 1 - 2e-3) << texts[i].text;
}

TEST_P(Encoders, AVectorDoesNotDependOnItsNeighboursOrThePasses) {
  const Loaded wide = load_encoder(GetParam(), false, true);
  const Loaded narrow = load_encoder(GetParam(), false, true, 200);
  Embedding all(wide.model.get()), few(narrow.model.get());
  std::vector<Ids> texts;
  for (int i = 0; i < 30; ++i) {
    for (const Ids& t : ids_of(encoded_texts(GetParam()))) texts.push_back(t);
  }
  const std::vector<Vector> together = all.embed(texts), parted = few.embed(texts);
  ASSERT_EQ(together.size(), texts.size()) << all.error().text;
  EXPECT_TRUE(together == parted) << few.error().text;
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(all.embed({texts[i]})[0] == together[i]) << i;
}

TEST_P(Encoders, DimensionsAreTheFirstOnesNormedAgain) {
  const Loaded m = load_encoder(GetParam(), true);
  Embedding e(m.model.get());
  const std::vector<Ids> texts = ids_of(encoded_texts(GetParam()));
  const std::vector<Vector> whole = e.embed(texts);
  sharpi_embed_params p = embed_params();
  p.n_dims = 8;
  const std::vector<Vector> some = e.embed(texts, p);
  ASSERT_EQ(some.size(), whole.size());
  for (size_t i = 0; i < some.size(); ++i) {
    const Vector first(whole[i].begin(), whole[i].begin() + 8);
    EXPECT_LE(largest_difference(some[i], normed(first)), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Encoders,
                         ::testing::Values("rand-bert", "rand-nomic-bert", "rand-gemma-embedding"),
                         model_name);

TEST(Rerank, PairsAndScoresAreTheReferences) {
  const Loaded m = load_encoder("rand-bert-rank", true);
  Embedding e(m.model.get());
  const auto pairs = encoded_texts("rand-bert-rank");
  for (const EncodedText& pair : pairs) {
    Ids ids(512);
    uint32_t n = 0, n_first = 0;
    sharpi_error err = SHARPI_ERROR_INIT;
    ASSERT_EQ(
        sharpi_rank_tokenize(m.model.get(), pair.query.data(), pair.query.size(), pair.text.data(),
                             pair.text.size(), nullptr, ids.data(), 512, &n, &n_first, &err),
        SHARPI_OK)
        << err.text;
    ids.resize(n);
    EXPECT_EQ(ids, pair.tokens);
    EXPECT_EQ(n_first, pair.n_first);
  }
  const Vector raw = e.scores(pairs, false), shares = e.scores(pairs, true);
  ASSERT_EQ(raw.size(), pairs.size()) << e.error().text;
  for (size_t i = 0; i < pairs.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(raw[i]), pairs[i].score, 1e-4);
    EXPECT_NEAR(static_cast<double>(shares[i]), 1 / (1 + std::exp(-pairs[i].score)), 1e-5);
  }
  EXPECT_TRUE(e.embed(ids_of(pairs)).empty());  // AUTO of a reranker
  EXPECT_EQ(e.error().status, SHARPI_E_UNSUPPORTED);
  EXPECT_EQ(e.embed(ids_of(pairs), SHARPI_POOLING_CLS).size(), pairs.size());
}

TEST(EmbedRefusals, SayWhichTextAndWhy) {
  const Loaded m = load_encoder("rand-bert", true);
  Embedding e(m.model.get());
  const auto refused = [&](const std::vector<Ids>& texts, const sharpi_embed_params& p,
                           sharpi_status status, const std::string& says) {
    EXPECT_TRUE(e.embed(texts, p).empty());
    EXPECT_EQ(e.error().status, status) << e.error().text;
    EXPECT_NE(std::string(e.error().text).find(says), std::string::npos) << e.error().text;
  };
  const sharpi_embed_params usual = embed_params();
  refused({{2, 3}, {}}, usual, SHARPI_E_INVALID_ARGUMENT, "texts[1] is empty");
  refused({Ids(200, 5)}, usual, SHARPI_E_INVALID_ARGUMENT, "at most 128");
  refused({{2, 100000}}, usual, SHARPI_E_INVALID_ARGUMENT, "token 1 of texts[0]");
  refused({{2, -1}}, usual, SHARPI_E_INVALID_ARGUMENT, "token 1 of texts[0]");
  sharpi_embed_params p = usual;
  p.n_dims = 33;
  refused({{2, 3}}, p, SHARPI_E_INVALID_ARGUMENT, "n_dims is 33");
  p = usual;
  p.pooling = SHARPI_POOLING_RANK;
  refused({{2, 3}}, p, SHARPI_E_INVALID_ARGUMENT, "sharpi_rerank()");
  p.pooling = 77;
  refused({{2, 3}}, p, SHARPI_E_INVALID_ARGUMENT, "pooling 77");
  sharpi_text_tokens pair{nullptr, 0, 0};
  float score = 0;
  sharpi_error err = SHARPI_ERROR_INIT;
  const Ids text{2, 5, 3};
  pair = {text.data(), 3, 0};
  EXPECT_EQ(sharpi_rerank(e.get(), &pair, sizeof pair, 1, nullptr, &score, &err),
            SHARPI_E_UNSUPPORTED);
  EXPECT_EQ(e.embed({text}).size(), 1u);  // it goes on
}

TEST(EmbedRefusals, AnEncoderHasNoSessionsAndRefusesTheirSettings) {
  const Loaded m = load_encoder("rand-bert", true);
  EXPECT_EQ(m.info.is_encoder, 1u);
  sharpi_session* session = nullptr;
  sharpi_error err = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_create(m.model.get(), nullptr, &session, &err), SHARPI_E_UNSUPPORTED);
  EXPECT_NE(std::string(err.text).find("sharpi_embedder_create()"), std::string::npos) << err.text;
  const auto refused = [&](const Edit& edit) {
    PlanPtr plan;
    err = SHARPI_ERROR_INIT;
    EXPECT_EQ(try_plan(m.context.get(), encoder_path("rand-bert"), setup_with(edit), &plan, &err),
              SHARPI_E_INVALID_ARGUMENT);
    return std::string(err.text);
  };
  EXPECT_NE(refused([](auto*, auto* s) { s->k_dtype = SHARPI_KV_Q8_0; }).find("k_dtype"),
            std::string::npos);
  EXPECT_NE(refused([](auto*, auto* s) { s->kv_budget = 64; }).find("kv_budget"),
            std::string::npos);
  EXPECT_NE(refused([](auto*, auto* s) { s->n_ctx = 129; }).find("128 positions"),
            std::string::npos);
  EXPECT_NE(refused([](auto* p, auto* s) {
              s->n_ctx = 100;
              p->n_chunk = 64;
            }).find("n_chunk is 64"),
            std::string::npos);
}

int32_t stop_at_once(void* calls, uint32_t phase, uint64_t, uint64_t) {
  EXPECT_EQ(phase, SHARPI_PHASE_EMBED);
  return ++*static_cast<int*>(calls) > 1 ? 1 : 0;
}

TEST(EmbedCancel, ACancelIsAnsweredOnceByACallAndByItsProgress) {
  const Loaded m = load_encoder("rand-bert", true);
  Embedding e(m.model.get());
  const std::vector<Ids> texts(40, Ids(60, 7));
  sharpi_embedder_cancel(e.get());
  EXPECT_TRUE(e.embed(texts).empty());
  EXPECT_EQ(e.error().status, SHARPI_E_CANCELLED);
  EXPECT_EQ(e.embed(texts).size(), texts.size());
  sharpi_embedder_cancel(e.get());
  sharpi_embedder_resume(e.get());
  EXPECT_EQ(e.embed(texts).size(), texts.size());
  int calls = 0;
  sharpi_embed_params p = embed_params();
  p.progress = stop_at_once;
  p.user_data = &calls;
  EXPECT_TRUE(e.embed(texts, p).empty());
  EXPECT_EQ(e.error().status, SHARPI_E_CANCELLED);
  EXPECT_EQ(calls, 2);
}

TEST(EmbedMemory, WhatItHoldsIsWhatWasPriced) {
  const Loaded m = load_encoder("rand-bert", true);
  MemoryRows rows(16);
  uint32_t n = 0;
  sharpi_error err = SHARPI_ERROR_INIT;
  ASSERT_EQ(
      sharpi_embedder_price(m.model.get(), nullptr, rows.data(), sizeof rows[0], 16, &n, &err),
      SHARPI_OK)
      << err.text;
  uint64_t priced = 0;
  for (uint32_t i = 0; i < n; ++i) priced += rows[i].held_bytes;
  Embedding e(m.model.get());
  sharpi_embedder_summary info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(sharpi_embedder_info(e.get(), &info, &err), SHARPI_OK);
  EXPECT_EQ(info.held_bytes, priced);
  EXPECT_EQ(info.held_bytes, m.plan_info.session_held_bytes);
  EXPECT_EQ(info.n_embd, 32u);
  EXPECT_EQ(info.pooling, SHARPI_POOLING_MEAN);
  EXPECT_EQ(info.can_rank, 0u);
}

/// Of a chat model: the golden's logits are its output matrix times the rows.
TEST(ChatModels, RowsAreThoseThatTheLogitsComeFrom) {
  for (const std::string name : {"tiny-qwen3", "tiny-qwen35", "rand-gemma3"}) {
    const auto fixture = find_fixture(name);
    if (!fixture) continue;
    auto golden = load_golden(fixture->golden_path);
    ASSERT_TRUE(golden.is_ok());
    auto file = GgufFile::open(fixture->gguf_path);
    ASSERT_TRUE(file.is_ok());
    auto mapped = file.value()->map_tensors();
    ASSERT_TRUE(mapped.is_ok());
    const auto spec = load_model_spec(mapped.take());
    ASSERT_TRUE(spec.is_ok());
    const Loaded m = load(fixture->gguf_path, setup_with([](auto* p, auto* s) {
                            p->arithmetic = SHARPI_ARITHMETIC_EXACT;
                            s->k_dtype = s->v_dtype = SHARPI_KV_F32;
                            p->n_chunk = 32;  // texts are read in several passes
                          }));
    Embedding e(m.model.get(), 2);
    std::vector<Ids> texts;
    for (const GoldenCase& c : golden.value().cases) texts.push_back(c.tokens);
    const std::vector<Vector> rows = e.embed(texts, SHARPI_POOLING_NONE);
    ASSERT_FALSE(rows.empty()) << e.error().text;
    size_t at = 0;
    for (const GoldenCase& c : golden.value().cases) {
      for (size_t p = 0; p < c.tokens.size(); ++p, ++at) {
        Vector row(rows[at].size());
        table_row(spec.value()->output, static_cast<uint64_t>(c.top5[p][0]), row.data());
        double logit = 0;
        for (size_t i = 0; i < row.size(); ++i)
          logit += static_cast<double>(row[i]) * static_cast<double>(rows[at][i]);
        ASSERT_NEAR(logit, static_cast<double>(c.top5_logits[p][0]), 5e-3) << name << " " << p;
      }
    }
  }
}

TEST(ChatModels, WhereNoPoolingIsSaidOneIsAskedFor) {
  const auto fixture = find_fixture("tiny-qwen3");
  ASSERT_TRUE(fixture);
  const Loaded m = load(fixture->gguf_path, setup_with([](auto*, auto*) {}));
  Embedding e(m.model.get());
  const Ids text{5, 6, 7, 8};
  EXPECT_TRUE(e.embed({text}).empty());
  EXPECT_EQ(e.error().status, SHARPI_E_UNSUPPORTED);
  EXPECT_NE(std::string(e.error().text).find("qwen3.pooling_type"), std::string::npos)
      << e.error().text;
  const std::vector<Vector> rows = e.embed({text}, SHARPI_POOLING_NONE);
  const std::vector<Vector> last = e.embed({text}, SHARPI_POOLING_LAST);
  ASSERT_EQ(last.size(), 1u) << e.error().text;
  EXPECT_LE(largest_difference(last[0], normed(rows.back())), 1e-6);
}

TEST(ChatModels, TextsBesideEachOtherAreReadAsAlone) {
  const auto fixture = find_fixture("tiny-qwen3");
  ASSERT_TRUE(fixture);
  const Loaded m =
      load(fixture->gguf_path, setup_with([](auto* p, auto*) { p->deterministic = 1; }));
  Embedding one(m.model.get()), three(m.model.get(), 3);
  std::vector<Ids> texts;
  for (int32_t i = 1; i < 12; ++i) texts.push_back(Ids(static_cast<size_t>(i * 7), i));
  const auto alone = one.embed(texts, SHARPI_POOLING_MEAN);
  ASSERT_EQ(alone.size(), texts.size()) << one.error().text;
  for (int again = 0; again < 2; ++again)
    EXPECT_TRUE(three.embed(texts, SHARPI_POOLING_MEAN) == alone) << three.error().text;
}

}  // namespace
}  // namespace sharpi::testing
