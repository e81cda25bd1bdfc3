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

constexpr size_t kMaxPrompts = 256;  // of a request

class CompletionFormat : public AnswerFormat {
 public:
  /// @param echoes the texts of the prompts, which come before their answers; empty: they do not.
  CompletionFormat(const Engine& engine, const Asked& asked, std::vector<std::string> echoes,
                   bool usage)
      : engine_(engine),
        id_(new_id("cmpl-")),
        created_(std::time(nullptr)),
        logprobs_(asked.generations.front().n_logprobs > 0),
        usage_(usage),
        choices_(asked.generations.size()) {
    for (size_t i = 0; i < choices_.size() && !echoes.empty(); ++i) {
      choices_[i].text = echoes[i / asked.per_prompt];
    }
  }

  std::string begin(const Outcome& outcome) override {
    session_ = outcome.session;
    std::string out;
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (!choices_[i].text.empty()) out += event(body(one(i, choices_[i].text, nullptr, json())));
    }
    return out;
  }

  std::string pieces(size_t choice, const std::vector<Piece>& pieces) override {
    Choice& c = choices_[choice];
    std::string text;
    json lists = no_logprobs();
    for (const Piece& piece : pieces) {
      if (logprobs_ && piece.token >= 0) {
        add(piece, c.offset, &lists);
        add(piece, c.offset, &c.logprobs);
      }
      c.offset += piece.n_characters;
      text += piece.text;
    }
    c.text += text;
    if (text.empty() && lists["tokens"].empty()) return "";
    return event(body(one(choice, text, nullptr, logprobs_ ? lists : json())));
  }

  std::string end(size_t choice, const Outcome& outcome) override {
    choices_[choice].finish = finish_reason(outcome, false);
    return event(body(one(choice, "", choices_[choice].finish, json())));
  }

  std::string finish(const Usage& usage) override {
    if (!usage_) return kDone;
    json last = body(json());
    last["choices"] = json::array();
    last["usage"] = usage_json(usage);
    return event(last) + kDone;
  }

  json whole(const Usage& usage) override {
    json choices = json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& c = choices_[i];
      choices.push_back(one(i, c.text, c.finish, logprobs_ ? c.logprobs : json()));
    }
    json out = body(json());
    out["choices"] = std::move(choices);
    out["usage"] = usage_json(usage);
    return out;
  }

 private:
  struct Choice {
    std::string text;
    size_t offset = 0;  // in characters of all text that was drawn, before stop strings are cut off
    json logprobs = no_logprobs();
    const char* finish = "stop";
  };

  static json no_logprobs() {
    return {{"tokens", json::array()},
            {"token_logprobs", json::array()},
            {"top_logprobs", json::array()},
            {"text_offset", json::array()}};
  }

  void add(const Piece& piece, size_t offset, json* lists) const {
    (*lists)["text_offset"].push_back(offset);
    if (piece.logprobs.empty()) {  // nothing comes before the first token of a prompt
      (*lists)["tokens"].push_back(engine_.token_bytes(piece.token));
      (*lists)["token_logprobs"].push_back(nullptr);
      (*lists)["top_logprobs"].push_back(nullptr);
      return;
    }
    const json entry = logprob_json(engine_, piece.logprobs);
    json top = json::object();
    for (const json& other : entry["top_logprobs"]) {
      top[other["token"].get<std::string>()] = other["logprob"];
    }
    (*lists)["tokens"].push_back(entry["token"]);
    (*lists)["token_logprobs"].push_back(entry["logprob"]);
    (*lists)["top_logprobs"].push_back(std::move(top));
  }

  static json one(size_t index, const std::string& text, const json& finish, const json& logprobs) {
    return {{"index", index}, {"text", text}, {"finish_reason", finish}, {"logprobs", logprobs}};
  }

  json body(const json& choice) const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", engine_.name()},
            {"choices", json::array({choice})},
            {"sharpi_session", session_}};
  }

  const Engine& engine_;
  const std::string id_;
  const std::time_t created_;
  const bool logprobs_, usage_;
  std::vector<Choice> choices_;
  std::string session_;
};

// Token ids, or a text.
Tokens read_prompt(Fields& f, const std::string& where, const json& prompt, const Engine& engine) {
  if (prompt.is_string()) {
    check_bytes(engine, prompt.get_ref<const std::string&>().size(), "prompt");
    return engine.tokenize(prompt.get<std::string>(),
                           SHARPI_TOKENIZE_ADD_SPECIAL | SHARPI_TOKENIZE_PARSE_SPECIAL);
  }
  Tokens out;
  if (prompt.is_array()) out = read_token_ids(f, where, prompt, engine);
  if (out.empty()) f.refuse(where.c_str(), "is not a text or a list of token ids");
  return out;
}

// One prompt, or a list of them. @param texts nullable: gets the text of each.
std::vector<Tokens> read_prompts(Fields& f, const Engine& engine, std::vector<std::string>* texts) {
  const json& given = f.need("prompt");
  const bool is_list = given.is_array() && !given.empty() && !given[0].is_number();
  if (is_list && given.size() > kMaxPrompts) {
    f.refuse("prompt", "has more than " + std::to_string(kMaxPrompts) + " prompts");
  }
  std::vector<Tokens> out;
  for (size_t i = 0; i < (is_list ? given.size() : 1); ++i) {
    const std::string where = is_list ? "prompt[" + std::to_string(i) + "]" : "prompt";
    const json& prompt = is_list ? given[i] : given;
    out.push_back(read_prompt(f, where, prompt, engine));
    check_length(engine, out.back(), "prompt");
    if (texts == nullptr) continue;
    texts->push_back(prompt.is_string() ? prompt.get<std::string>()
                                        : engine.text_of(out.back().data(), out.back().size(),
                                                         SHARPI_DETOKENIZE_SPECIAL));
  }
  return out;
}

// BOS, where the tokenizer put it before a text that does not spell it.
uint32_t count_silent(const Engine& engine, const Tokens& prompt, const std::string& text) {
  const std::string first = engine.text_of(prompt.data(), 1, SHARPI_DETOKENIZE_SPECIAL);
  const std::string plain = engine.text_of(prompt.data(), 1, 0);
  return plain.empty() && !first.empty() && text.compare(0, first.size(), first) != 0 ? 1 : 0;
}

}  // namespace

bool read_stream_options(Fields& f, bool stream) {
  const json* options = f.find("stream_options");
  if (options == nullptr) return false;
  Fields inner(*options, "stream_options");
  const bool usage = inner.boolean("include_usage").value_or(false);
  inner.leave_out({"include_obfuscation"});
  inner.finish();
  if (!stream) f.note_left_out("stream_options");  // a whole answer has its usage anyway
  f.take_left_out(inner);
  return usage;
}

Asked read_completion(const json& body, const Engine& engine, const Settings& settings) {
  Asked out;
  Generation g;
  Fields f(body, "");
  // OpenAI's default of 16 tokens surprises most who leave the limit out; here it is the server's.
  out.stream = read_common(f, engine, settings, {"max_tokens"}, &g);
  const size_t n = read_n(f, settings);
  const auto top = f.integer("logprobs", 0, 20);
  if (top) g.n_logprobs = static_cast<uint32_t>(1 + *top);
  const bool usage = read_stream_options(f, out.stream);
  const bool echo = f.boolean("echo").value_or(false);
  g.prompt_logprobs = echo && top;
  if (g.prompt_logprobs && engine.bounded()) {
    f.refuse("echo", "has no logprobs where sessions are bounded: their prompts are read at once");
  }
  f.only("best_of", n, "all answers are returned");
  f.only("suffix", "", "nothing is filled in");
  std::vector<std::string> texts;
  size_t at = 0;
  for (Tokens& prompt : read_prompts(f, engine, echo ? &texts : nullptr)) {
    g.prompt = std::move(prompt);
    if (g.prompt_logprobs) g.n_silent = count_silent(engine, g.prompt, texts[at++]);
    add_choices(g, n, {}, &out);
  }
  f.finish();
  out.left_out = f.left_out();
  out.format = std::make_unique<CompletionFormat>(engine, out, std::move(texts), usage);
  return out;
}

}  // namespace server
