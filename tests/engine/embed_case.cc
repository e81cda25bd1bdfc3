// SPDX-License-Identifier: MIT
#include "embed_case.h"

#include <cmath>

#include "support/json_reader.h"
#include "support/paths.h"

namespace sharpi::testing {
namespace {

EncodedText read_text(JsonReader& json) {
  EncodedText t;
  json.object([&](const std::string& key) {
    if (key == "query")
      t.query = json.string();
    else if (key == "text")
      t.text = json.string();
    else if (key == "tokens")
      read(json, &t.tokens);
    else if (key == "n_first")
      t.n_first = json.number<uint32_t>();
    else if (key == "vector")
      read(json, &t.vector);
    else if (key == "last_row")
      read(json, &t.last_row);
    else if (key == "score")
      t.score = json.number<double>();
    else
      json.skip_value();
  });
  return t;
}

}  // namespace

std::string encoder_path(const std::string& name) {
  return test::source_path("tests/fixtures/" + name + ".gguf");
}

std::vector<EncodedText> encoded_texts(const std::string& name) {
  std::vector<EncodedText> out;
  auto text = read_text_file(test::source_path("tests/fixtures/" + name + ".golden.json"));
  EXPECT_TRUE(text.is_ok()) << text.status().text();
  if (!text.is_ok()) return out;
  JsonReader json(text.value());
  json.object([&](const std::string& key) {
    if (key == "cases" || key == "pairs")
      json.array([&] { out.push_back(read_text(json)); });
    else
      json.skip_value();
  });
  json.end();
  EXPECT_TRUE(json.status().is_ok()) << json.status().text();
  EXPECT_FALSE(out.empty());
  return out;
}

sharpi_embed_params embed_params() {
  sharpi_embed_params p;
  sharpi_embed_params_init(&p, sizeof p);
  return p;
}

Embedding::Embedding(const sharpi_model* model, uint32_t n_parallel) {
  sharpi_embedder_params p;
  sharpi_embedder_params_init(&p, sizeof p);
  p.n_parallel = n_parallel;
  sharpi_embedder* made = nullptr;
  EXPECT_EQ(sharpi_embedder_create(model, &p, &made, &error_), SHARPI_OK) << error_.text;
  embedder_.reset(made);
}

std::vector<Vector> Embedding::embed(const std::vector<Ids>& texts,
                                     const sharpi_embed_params& params) {
  std::vector<sharpi_text_tokens> list;
  for (const Ids& t : texts) list.push_back({t.data(), static_cast<uint32_t>(t.size()), 0});
  const auto n_texts = static_cast<uint32_t>(list.size());
  error_ = SHARPI_ERROR_INIT;
  uint64_t n = 0;
  if (sharpi_embed(get(), list.data(), sizeof list[0], n_texts, &params, nullptr, 0, &n, &error_) !=
      SHARPI_E_BUFFER_TOO_SMALL) {
    return {};
  }
  std::vector<float> all(n);
  error_ = SHARPI_ERROR_INIT;
  if (sharpi_embed(get(), list.data(), sizeof list[0], n_texts, &params, all.data(), n, &n,
                   &error_) != SHARPI_OK) {
    return {};
  }
  size_t n_vectors = texts.size();
  if (params.pooling == SHARPI_POOLING_NONE) {
    n_vectors = 0;
    for (const Ids& t : texts) n_vectors += t.size();
  }
  std::vector<Vector> out;
  const auto width = static_cast<ptrdiff_t>(n / n_vectors);
  for (auto at = all.begin(); at != all.end(); at += width) out.emplace_back(at, at + width);
  return out;
}

std::vector<Vector> Embedding::embed(const std::vector<Ids>& texts, sharpi_pooling pooling) {
  sharpi_embed_params p = embed_params();
  p.pooling = pooling;
  return embed(texts, p);
}

Vector Embedding::scores(const std::vector<EncodedText>& pairs, bool normalize) {
  std::vector<sharpi_text_tokens> list;
  for (const EncodedText& t : pairs)
    list.push_back({t.tokens.data(), static_cast<uint32_t>(t.tokens.size()), t.n_first});
  sharpi_rerank_params p;
  sharpi_rerank_params_init(&p, sizeof p);
  p.normalize = normalize ? 1 : 0;
  Vector out(list.size());
  error_ = SHARPI_ERROR_INIT;
  const sharpi_status done =
      sharpi_rerank(get(), list.data(), sizeof list[0], static_cast<uint32_t>(list.size()), &p,
                    out.data(), &error_);
  return done == SHARPI_OK ? out : Vector();
}

double cosine(const Vector& a, const Vector& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    aa += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return ab / std::sqrt(aa * bb);
}

Vector normed(Vector v) {
  double sum = 0;
  for (const float x : v) sum += static_cast<double>(x) * static_cast<double>(x);
  for (float& x : v) x = static_cast<float>(static_cast<double>(x) / std::sqrt(sum));
  return v;
}

double largest_difference(const Vector& a, const Vector& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

Ids tokenized(const sharpi_model* model, const std::string& text) {
  Ids ids(text.size() + 8);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_tokenize(model, text.data(), text.size(), SHARPI_TOKENIZE_ADD_SPECIAL,
                            ids.data(), static_cast<uint32_t>(ids.size()), &n, &e),
            SHARPI_OK)
      << e.text;
  ids.resize(n);
  return ids;
}

}  // namespace sharpi::testing
