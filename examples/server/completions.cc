// SPDX-License-Identifier: MIT
// /v1/completions: text that goes on from a text.
#include <algorithm>
#include <ctime>

#include "answer_format.h"
#include "reply.h"
#include "sampling_request.h"
#include "sse.h"

namespace server {
namespace {

class CompletionFormat : public AnswerFormat {
 public:
  CompletionFormat(const Engine& engine, bool logprobs, bool usage)
      : engine_(engine),
        id_(new_id("cmpl-")),
        created_(std::time(nullptr)),
        logprobs_(logprobs),
        usage_(usage) {}

  std::string begin(const Outcome& outcome) override {
    session_ = outcome.session;
    return "";
  }

  std::string pieces(const std::vector<Piece>& pieces) override {
    std::string text;
    json lists = no_logprobs();
    for (const Piece& piece : pieces) {
      if (logprobs_ && piece.token >= 0) {
        add(piece, offset_, &lists);
        add(piece, offset_, &all_logprobs_);
      }
      offset_ += piece.n_characters;
      text += piece.text;
    }
    text_ += text;
    if (text.empty() && lists["tokens"].empty()) return "";
    return event(body(text, nullptr, logprobs_ ? lists : json()));
  }

  std::string end(const Outcome& outcome) override {
    if (outcome.finish == Finish::kFailed) {
      return event(error_json(outcome.http_status, outcome.error));
    }
    std::string out = event(body("", finish_reason(outcome, false), json()));
    if (usage_) {
      json usage = body("", nullptr, json());
      usage["choices"] = json::array();
      usage["usage"] = usage_json(outcome.usage);
      out += event(usage);
    }
    return out + kDone;
  }

  json whole(const Outcome& outcome) override {
    json out = body(text_, finish_reason(outcome, false), logprobs_ ? all_logprobs_ : json());
    out["usage"] = usage_json(outcome.usage);
    return out;
  }

 private:
  static json no_logprobs() {
    return {{"tokens", json::array()},
            {"token_logprobs", json::array()},
            {"top_logprobs", json::array()},
            {"text_offset", json::array()}};
  }

  void add(const Piece& piece, size_t offset, json* lists) const {
    const json entry = logprob_json(engine_, piece.logprobs);
    json top = json::object();
    for (const json& other : entry["top_logprobs"]) {
      top[other["token"].get<std::string>()] = other["logprob"];
    }
    (*lists)["tokens"].push_back(entry["token"]);
    (*lists)["token_logprobs"].push_back(entry["logprob"]);
    (*lists)["top_logprobs"].push_back(std::move(top));
    (*lists)["text_offset"].push_back(offset);
  }

  json body(const std::string& text, const json& finish, const json& logprobs) const {
    return {
        {"id", id_},
        {"object", "text_completion"},
        {"created", created_},
        {"model", engine_.name()},
        {"choices",
         json::array({json{
             {"index", 0}, {"text", text}, {"finish_reason", finish}, {"logprobs", logprobs}}})},
        {"sharpi_session", session_}};
  }

  const Engine& engine_;
  const std::string id_;
  const std::time_t created_;
  const bool logprobs_, usage_;
  std::string session_, text_;
  size_t offset_ = 0;  // in characters of all text that was drawn, before stop strings are cut off
  json all_logprobs_ = no_logprobs();
};

// A text, a list of one text, or token ids.
Tokens read_prompt(Fields& f, const Engine& engine) {
  const json* prompt = &f.need("prompt");
  if (prompt->is_array() && prompt->size() == 1 && !(*prompt)[0].is_number()) {
    prompt = &(*prompt)[0];
  }
  if (prompt->is_string()) {
    check_bytes(engine, prompt->get_ref<const std::string&>().size(), "prompt");
    return engine.tokenize(prompt->get<std::string>(),
                           SHARPI_TOKENIZE_ADD_SPECIAL | SHARPI_TOKENIZE_PARSE_SPECIAL);
  }
  Tokens out;
  for (const json& token : prompt->is_array() ? *prompt : json::array()) {
    const bool fits = token.is_number_unsigned() && token.get<uint64_t>() < engine.info().n_vocab;
    if (!fits)
      f.refuse("prompt", "has something that is no token of the model; one text a request");
    out.push_back(token.get<int32_t>());
  }
  if (out.empty()) f.refuse("prompt", "is not a text or a list of token ids");
  return out;
}

}  // namespace

bool read_stream_options(Fields& f, bool stream) {
  const json* options = f.find("stream_options");
  if (options == nullptr) return false;
  if (!stream) f.refuse("stream_options", "is for streams");
  Fields inner(*options, "stream_options");
  const bool usage = inner.boolean("include_usage").value_or(false);
  inner.ignore({"include_obfuscation"});
  inner.finish();
  return usage;
}

Asked read_completion(const json& body, const Engine& engine, const Settings& settings) {
  Asked out;
  Generation& g = out.generation;
  Fields f(body, "");
  // OpenAI's default of 16 tokens surprises most who leave the limit out; here it is the server's.
  out.stream = read_common(f, engine, settings, {"max_tokens"}, &g);
  const auto top = f.integer("logprobs", 0, 20);
  if (top) g.n_logprobs = static_cast<uint32_t>(1 + *top);
  const bool usage = read_stream_options(f, out.stream);
  f.only("best_of", 1, "one answer a request");
  f.only("echo", false, "the prompt is not repeated");
  f.only("suffix", "", "nothing is filled in");
  g.prompt = read_prompt(f, engine);
  f.finish();
  check_length(engine, g.prompt, "prompt");
  out.format = std::make_unique<CompletionFormat>(engine, g.n_logprobs > 0, usage);
  return out;
}

}  // namespace server
