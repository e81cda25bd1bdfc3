// SPDX-License-Identifier: MIT
#include "embeddings.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>
#include <vector>

#include "answer_format.h"
#include "sampling_request.h"
#include "sse.h"

namespace server {
namespace {

constexpr size_t kMostInputs = 2048;     // as OpenAI has it
constexpr uint64_t kBytesOfAFloat = 20;  // as text with its comma, and as it comes
constexpr int64_t kMostDims = 1 << 20;

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k)
      out += i + k > bytes.size() ? '=' : kDigits[group >> (18 - 6 * k) & 63];
  }
  return out;
}

std::string numbers(const float* v, size_t n) {
  std::string out = "[";
  char text[32];
  for (size_t i = 0; i < n; ++i) {
    if (i != 0) out += ',';
    out.append(text, std::to_chars(text, text + sizeof text, v[i]).ptr);
  }
  return out + "]";
}

// As bytes of little-endian floats.
std::string encoded(const float* v, size_t n) {
  return "\"" + base64(std::string(reinterpret_cast<const char*>(v), n * sizeof *v)) + "\"";
}

bool is_token_list(const json& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const json& e) { return e.is_number(); });
}

std::vector<Tokens> read_inputs(Fields& f, const Engine& engine) {
  const json& input = f.need("input");
  std::vector<Tokens> texts;
  const auto add = [&](const json& one, const std::string& path) {
    if (one.is_string()) {
      texts.push_back(
          engine.tokenize(one.get_ref<const std::string&>(), SHARPI_TOKENIZE_ADD_SPECIAL));
    } else if (is_token_list(one)) {
      texts.push_back(read_token_ids(f, path.c_str(), one, engine));
    } else {
      f.refuse(path.c_str(), "is no text and no list of token ids");
    }
  };
  if (input.is_array() && !is_token_list(input)) {
    if (input.size() > kMostInputs) {
      f.refuse("input", "has more than " + std::to_string(kMostInputs) + " texts");
    }
    for (size_t i = 0; i < input.size(); ++i) add(input[i], "input[" + std::to_string(i) + "]");
  } else {
    add(input, "input");
  }
  if (texts.empty()) f.refuse("input", "is empty");
  return texts;
}

sharpi_pooling pooling_of(Fields& f) {
  const std::string name = f.text("pooling").value_or("auto");
  const std::pair<const char*, sharpi_pooling> all[] = {{"auto", SHARPI_POOLING_AUTO},
                                                        {"mean", SHARPI_POOLING_MEAN},
                                                        {"cls", SHARPI_POOLING_CLS},
                                                        {"last", SHARPI_POOLING_LAST}};
  for (const auto& [known, pooling] : all)
    if (name == known) return pooling;
  f.refuse("pooling", "is not one of auto, mean, cls, last");
}

std::vector<sharpi_text_tokens> views(const std::vector<Tokens>& texts) {
  std::vector<sharpi_text_tokens> out;
  for (const Tokens& t : texts) out.push_back({t.data(), static_cast<uint32_t>(t.size()), 0});
  return out;
}

uint64_t token_count(const std::vector<sharpi_text_tokens>& texts) {
  return std::accumulate(texts.begin(), texts.end(), uint64_t{0},
                         [](uint64_t n, const sharpi_text_tokens& t) { return n + t.n_tokens; });
}

json usage_of(const std::vector<sharpi_text_tokens>& texts) {
  const uint64_t n = token_count(texts);
  return {{"prompt_tokens", n}, {"total_tokens", n}};
}

void take_memory(Exchange& exchange, uint64_t bytes) {
  if (exchange.share().grow_to(exchange.share().bytes() + bytes)) return;
  throw RequestError(503, "the answer takes more memory than requests may have together");
}

// A call ends when its client has gone.
int32_t while_there(void* exchange, uint32_t, uint64_t, uint64_t) {
  return static_cast<const Exchange*>(exchange)->gone() ? 1 : 0;
}

struct Document {
  json as_given;
  std::string text;
};

std::vector<Document> read_documents(Fields& f) {
  const bool of_texts = f.find("documents") == nullptr && f.find("texts") != nullptr;
  const char* name = of_texts ? "texts" : "documents";
  const json& list = f.need(name);
  if (!list.is_array() || list.empty()) f.refuse(name, "is not a list of documents");
  if (list.size() > kMostInputs) {
    f.refuse(name, "has more than " + std::to_string(kMostInputs) + " documents");
  }
  std::vector<Document> out;
  for (size_t i = 0; i < list.size(); ++i) {
    const json& one = list[i];
    const bool object = one.is_object() && one.contains("text") && one["text"].is_string();
    if (!one.is_string() && !object) {
      f.refuse((std::string(name) + "[" + std::to_string(i) + "]").c_str(),
               "is no text and no object with a text");
    }
    const std::string text =
        one.is_string() ? one.get<std::string>() : one["text"].get<std::string>();
    out.push_back({object ? one : json{{"text", text}}, text});
  }
  return out;
}

std::vector<Tokens> read_pairs(const Engine& engine, const std::string& query,
                               const std::vector<Document>& documents, const char* instruction,
                               std::vector<uint32_t>* firsts) {
  std::vector<Tokens> out;
  for (const Document& d : documents) {
    uint32_t n_first = 0;
    out.push_back(sized<Tokens, uint32_t>([&](int32_t* to, uint32_t cap, uint32_t* n, auto* err) {
      return sharpi_rank_tokenize(engine.model(), query.data(), query.size(), d.text.data(),
                                  d.text.size(), instruction, to, cap, n, &n_first, err);
    }));
    firsts->push_back(n_first);
  }
  return out;
}

}  // namespace

Embeddings::Embeddings(const Engine& engine) : engine_(engine) {
  if (engine.info().is_encoder == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  embedder();
}

sharpi_embedder* Embeddings::embedder() {
  if (embedder_ != nullptr) return embedder_.get();
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_embedder* made = nullptr;
  check(sharpi_embedder_create(engine_.model(), nullptr, &made, &err), err);
  embedder_.reset(made);
  return made;
}

void Embeddings::embed(Exchange& exchange, const json& body) {
  Fields f(body, "");
  check_model(f, engine_);
  const std::string format = f.text("encoding_format").value_or("float");
  if (format != "float" && format != "base64") {
    f.refuse("encoding_format", "is not one of float, base64");
  }
  sharpi_embed_params params;
  sharpi_embed_params_init(&params, sizeof params);
  params.pooling = pooling_of(f);
  params.n_dims = static_cast<uint32_t>(f.integer("dimensions", 1, kMostDims).value_or(0));
  params.normalize = f.boolean("normalize").value_or(true) ? 1 : 0;
  params.progress = while_there;
  params.user_data = &exchange;
  const std::vector<Tokens> texts = read_inputs(f, engine_);
  f.ignore({"user"});
  f.finish();
  const std::vector<sharpi_text_tokens> list = views(texts);
  sharpi_error err = SHARPI_ERROR_INIT;
  std::vector<float> vectors;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    uint64_t n = 0;
    const auto n_texts = static_cast<uint32_t>(list.size());
    const sharpi_status asked = sharpi_embed(embedder(), list.data(), sizeof list[0], n_texts,
                                             &params, nullptr, 0, &n, &err);
    if (asked != SHARPI_E_BUFFER_TOO_SMALL) check(asked, err);
    take_memory(exchange, n * kBytesOfAFloat);
    vectors.resize(n);
    check(sharpi_embed(embedder(), list.data(), sizeof list[0], n_texts, &params, vectors.data(), n,
                       &n, &err),
          err);
  }
  const size_t width = vectors.size() / list.size();
  std::string data;
  for (size_t i = 0; i < list.size(); ++i) {
    const float* v = vectors.data() + i * width;
    data += (i == 0 ? "" : ",") + std::string("{\"object\":\"embedding\",\"index\":") +
            std::to_string(i) +
            ",\"embedding\":" + (format == "float" ? numbers(v, width) : encoded(v, width)) + "}";
  }
  exchange.response.type = "application/json";
  exchange.response.body = "{\"object\":\"list\",\"data\":[" + data +
                           "],\"model\":" + dump(json(engine_.name())) +
                           ",\"usage\":" + dump(usage_of(list)) + "}";
}

void Embeddings::rerank(Exchange& exchange, const json& body) {
  Fields f(body, "");
  check_model(f, engine_);
  const std::string query = f.need("query").is_string() ? f.text("query").value() : std::string();
  if (query.empty()) f.refuse("query", "is not a text");
  const std::vector<Document> documents = read_documents(f);
  const auto most = static_cast<int64_t>(documents.size());
  const auto n_top =
      static_cast<size_t>(std::min(most, f.integer("top_n", 1, 0x7FFFFFFF).value_or(most)));
  const bool returns = f.boolean("return_documents").value_or(false);
  const std::optional<std::string> instruction = f.text("instruction");
  f.ignore({"user"});
  f.finish();
  std::vector<uint32_t> firsts;
  const std::vector<Tokens> pairs =
      read_pairs(engine_, query, documents, instruction ? instruction->c_str() : nullptr, &firsts);
  std::vector<sharpi_text_tokens> list = views(pairs);
  for (size_t i = 0; i < list.size(); ++i) list[i].n_first = firsts[i];
  sharpi_rerank_params params;
  sharpi_rerank_params_init(&params, sizeof params);
  params.progress = while_there;
  params.user_data = &exchange;
  std::vector<float> scores(list.size());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sharpi_error err = SHARPI_ERROR_INIT;
    check(sharpi_rerank(embedder(), list.data(), sizeof list[0], static_cast<uint32_t>(list.size()),
                        &params, scores.data(), &err),
          err);
  }
  std::vector<size_t> order(list.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  json results = json::array();
  for (size_t i = 0; i < n_top; ++i) {
    json one = {{"index", order[i]}, {"relevance_score", scores[order[i]]}};
    if (returns) one["document"] = documents[order[i]].as_given;
    results.push_back(std::move(one));
  }
  exchange.response.type = "application/json";
  exchange.response.body = dump(json{{"object", "list"},
                                     {"model", engine_.name()},
                                     {"results", std::move(results)},
                                     {"usage", usage_of(list)}});
}

}  // namespace server
