// SPDX-License-Identifier: MIT
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_out.h"
#include "api/api_params.h"
#include "text/grammar/grammar.h"
#include "text/grammar/schema_check.h"

namespace api = sharpi::api;
namespace grammar = sharpi::grammar;
using sharpi::Code;
using sharpi::Status;

struct sharpi_grammar {
  std::shared_ptr<const grammar::Grammar> p;
};

struct sharpi_matcher {
  std::unique_ptr<grammar::Matcher> p;
  mutable sharpi::api::CallGate gate;
};

namespace {

constexpr uint32_t kGrammarFlags =
    SHARPI_GRAMMAR_LENIENT | SHARPI_GRAMMAR_MUST_CALL | SHARPI_GRAMMAR_SINGLE_CALL;
constexpr api::StructInfo kGrammarParams{"sharpi_grammar_params", 56,
                                         sizeof(sharpi_grammar_params)};

sharpi_grammar_params default_grammar_params() {
  sharpi_grammar_params p{};
  p.struct_size = sizeof p;
  return p;
}

Status read_request(const sharpi_grammar_params& p, grammar::GrammarRequest* out) {
  SHARPI_TRY(api::require_flags(p.flags, kGrammarFlags, "flags"));
  SHARPI_TRY(api::require_array(p.text, p.text_len, "text"));
  SHARPI_TRY(api::require_array(p.tools, p.tools_len, "tools"));
  if (p.kind > SHARPI_GRAMMAR_GBNF || p.reserved != 0) {
    return Status::error(Code::kInvalidArgument,
                         p.reserved != 0 ? "reserved is not 0 (%u)" : "kind %u is unknown",
                         p.reserved != 0 ? p.reserved : p.kind);
  }
  const bool any = p.kind == SHARPI_GRAMMAR_ANY;
  if (any && p.text_len > 0) {
    return Status::error(Code::kInvalidArgument, "text is given, but kind is ANY");
  }
  const bool asks_for_calls = p.tool != nullptr || (p.flags & ~SHARPI_GRAMMAR_LENIENT) != 0;
  if (p.tools_len == 0 && asks_for_calls) {
    return Status::error(Code::kInvalidArgument, "calls are asked for, but there are no tools");
  }
  if ((p.flags & SHARPI_GRAMMAR_MUST_CALL) != 0 && !any) {
    return Status::error(Code::kInvalidArgument,
                         "a call has to come, so a text of another kind never would");
  }
  out->kind = static_cast<grammar::GrammarKind>(p.kind);
  if (p.text != nullptr) out->text = {p.text, p.text_len};
  if (p.tools != nullptr) out->tools = {p.tools, p.tools_len};
  if (p.tool != nullptr) out->tool = p.tool;
  out->lenient = (p.flags & SHARPI_GRAMMAR_LENIENT) != 0;
  out->must_call = (p.flags & SHARPI_GRAMMAR_MUST_CALL) != 0;
  out->single_call = (p.flags & SHARPI_GRAMMAR_SINGLE_CALL) != 0;
  return Status::ok();
}

// Runs a call that changes a matcher.
template <class Body>
sharpi_status change_matcher(sharpi_matcher* matcher, sharpi_error* err, Body&& body) {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(matcher, "matcher"));
    const api::ExclusiveCall call(matcher->gate);
    if (!call) return Status::error(Code::kBusy, "another call is using the matcher");
    return body(*matcher->p);
  });
}

}  // namespace

void sharpi_grammar_params_init(sharpi_grammar_params* p, size_t size) SHARPI_NOEXCEPT {
  const sharpi_grammar_params defaults = default_grammar_params();
  api::init_struct(kGrammarParams, &defaults, p, size);
}

sharpi_status sharpi_grammar_compile(const sharpi_model* model, const sharpi_grammar_params* params,
                                     sharpi_grammar** out, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    const sharpi::Tokenizer* tokenizer = nullptr;
    SHARPI_TRY(api::require(out, "out"));
    SHARPI_TRY(api::require(params, "params"));
    sharpi_grammar_params p = default_grammar_params();
    SHARPI_TRY(api::adopt_struct(kGrammarParams, params, &p));
    grammar::GrammarRequest request;
    SHARPI_TRY(read_request(p, &request));
    SHARPI_TRY(api::find_tokenizer(model, &tokenizer));
    request.chat_template = tokenizer->chat_template();
    SHARPI_TRY_ASSIGN(auto compiled,
                      grammar::Grammar::compile(model->text->grammar_vocabulary(), request));
    *out = new sharpi_grammar{std::move(compiled)};
    return Status::ok();
  });
}

void sharpi_grammar_destroy(sharpi_grammar* grammar) SHARPI_NOEXCEPT {
  delete grammar;
}

sharpi_status sharpi_grammar_note(const sharpi_grammar* grammar, uint32_t index, char* out,
                                  size_t cap, size_t* out_len, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(grammar, "grammar"));
    SHARPI_TRY(api::check_out(out, cap, out_len));
    const std::vector<std::string>& notes = grammar->p->notes();
    if (index >= notes.size()) {
      return Status::error(Code::kNotFound, "the grammar has %zu notes", notes.size());
    }
    return api::copy_text(notes[index], out, cap, out_len);
  });
}

sharpi_status sharpi_schema_check(const char* schema, size_t schema_len, const char* json,
                                  size_t len, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(schema, "schema"));
    SHARPI_TRY(api::require(json, "json"));
    SHARPI_TRY(api::require_array(schema, schema_len, "schema"));
    SHARPI_TRY(api::require_array(json, len, "json"));
    return grammar::check_against_schema({schema, schema_len}, {json, len});
  });
}

sharpi_status sharpi_matcher_create(const sharpi_grammar* grammar, sharpi_matcher** out,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(grammar, "grammar"));
    SHARPI_TRY(api::require(out, "out"));
    SHARPI_TRY_ASSIGN(auto matcher, grammar::Matcher::create(grammar->p));
    auto made = std::make_unique<sharpi_matcher>();
    made->p = std::move(matcher);
    *out = made.release();
    return Status::ok();
  });
}

sharpi_status sharpi_matcher_clone(const sharpi_matcher* matcher, sharpi_matcher** out,
                                   sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(matcher, "matcher"));
    SHARPI_TRY(api::require(out, "out"));
    const api::SharedCall call(matcher->gate);
    if (!call) return Status::error(Code::kBusy, "another call is using the matcher");
    auto made = std::make_unique<sharpi_matcher>();
    made->p = matcher->p->clone();
    *out = made.release();
    return Status::ok();
  });
}

void sharpi_matcher_destroy(sharpi_matcher* matcher) SHARPI_NOEXCEPT {
  delete matcher;
}

sharpi_status sharpi_matcher_accept(sharpi_matcher* matcher, int32_t token,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return change_matcher(matcher, err, [&](grammar::Matcher& m) { return m.accept(token); });
}

sharpi_status sharpi_matcher_accept_text(sharpi_matcher* matcher, const char* bytes, size_t len,
                                         sharpi_error* err) SHARPI_NOEXCEPT {
  return change_matcher(matcher, err, [&](grammar::Matcher& m) -> Status {
    SHARPI_TRY(api::require_array(bytes, len, "bytes"));
    return m.accept_text({len > 0 ? bytes : "", len});
  });
}

sharpi_status sharpi_matcher_mask(sharpi_matcher* matcher, uint32_t* out, uint32_t cap,
                                  uint32_t* out_words, sharpi_error* err) SHARPI_NOEXCEPT {
  return change_matcher(matcher, err, [&](grammar::Matcher& m) -> Status {
    SHARPI_TRY(api::check_out(out, cap, out_words));
    *out_words = m.grammar().vocabulary().tree->n_words();
    if (cap < *out_words) return api::too_small(cap, *out_words, "words");
    return m.mask(out);
  });
}

uint32_t sharpi_matcher_progress(const sharpi_matcher* matcher) SHARPI_NOEXCEPT {
  if (matcher == nullptr) return SHARPI_MATCH_OPEN;
  return static_cast<uint32_t>(matcher->p->progress());
}

sharpi_status sharpi_matcher_forced(sharpi_matcher* matcher, char* out, size_t cap, size_t* out_len,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return change_matcher(matcher, err, [&](grammar::Matcher& m) -> Status {
    SHARPI_TRY(api::check_out(out, cap, out_len));
    std::string text;
    SHARPI_TRY(m.forced(cap, &text));
    return api::copy_text(text, out, cap, out_len);
  });
}
