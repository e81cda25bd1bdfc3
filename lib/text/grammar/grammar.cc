// SPDX-License-Identifier: MIT
#include "text/grammar/grammar.h"

#include "text/grammar/gbnf.h"
#include "text/grammar/json_texts.h"
#include "text/grammar/schema_compiler.h"
#include "text/grammar/tool_calls.h"
#include "text/jinja/json.h"

namespace sharpi::grammar {
namespace {

// Of compiling: a few hundred milliseconds at most.
constexpr uint64_t kCompileWork = uint64_t{1} << 22;
constexpr uint64_t kCompileBytes = uint64_t{48} << 20;
constexpr uint64_t kMaxSchemaBytes = uint64_t{64} << 20;  // as values
constexpr uint64_t kParseWork = uint64_t{1} << 27;
constexpr size_t kMaxText = size_t{4} << 20;

// Finds out what tokens do in a string of JSON, before the first text needs it.
std::shared_ptr<SharedMasks> masks_of_strings(const std::shared_ptr<const TokenTree>& tree) {
  Expressions common;
  const JsonTexts json(common);
  const PatternText plain = json.pattern_text();
  auto masks = std::make_shared<SharedMasks>(static_cast<uint32_t>(common.size()));
  const Expr name = common.terminal(
      common.sequence({plain.open, common.any_number(plain.character), plain.close}));
  Expr culprit = 0;
  if (!common.settle(&culprit)) return masks;
  Automaton strings(common, tree, masks);
  std::vector<uint32_t> bits(tree->n_words());
  for (const Expr each : {json.string(), name}) {
    strings.mask(strings.step(strings.state_of(each), '"'), bits.data());
  }
  return masks;
}

class GrammarBuilder {
 public:
  GrammarBuilder(Expressions& e, std::vector<std::string>* notes)
      : e_(e), json_(e), heap_(kMaxSchemaBytes, kParseWork), notes_(notes) {}

  Status whole(const GrammarRequest& request, Expr* out);

 private:
  Result<Expr> content(const GrammarRequest& request);
  Result<Expr> schema(const GrammarRequest& request);
  Status settle();

  Expressions& e_;
  JsonTexts json_;
  jinja::Heap heap_;
  std::vector<std::string>* notes_;
  bool settled_ = false;
};

Result<Expr> GrammarBuilder::schema(const GrammarRequest& request) {
  jinja::Value value;
  SHARPI_TRY(jinja::parse_json(request.text, "the schema", &heap_, &value,
                               jinja::JsonNumbers::kAsWritten));
  return SchemaCompiler(e_, json_, SchemaDocument(&value, "schema"), !request.lenient, notes_)
      .whole();
}

Result<Expr> GrammarBuilder::content(const GrammarRequest& request) {
  switch (request.kind) {
    case GrammarKind::kAny:
      return any_text(e_);
    case GrammarKind::kJsonSchema:
      return schema(request);
    case GrammarKind::kGbnf:
      settled_ = true;
      return compile_gbnf(e_, request.text);
    case GrammarKind::kRegex: {
      PatternText text;
      text.whole = true;
      text.character = characters(e_, CodePoints::all(), Spelling::kPlain);
      Result<Expr> made = compile_pattern(e_, request.text, text);
      if (!made.is_ok()) {
        return Status::error(made.status().code(), "the expression %.300s",
                             made.status().text().c_str());
      }
      return e_.terminal(made.value());
    }
  }
  return Status::error(Code::kInvalidArgument, "the kind of grammar %u is unknown",
                       static_cast<uint32_t>(request.kind));
}

Status GrammarBuilder::settle() {
  Expr culprit = 0;
  if (settled_ || e_.settle(&culprit)) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "the schema refers to itself without anything in between");
}

Status GrammarBuilder::whole(const GrammarRequest& request, Expr* out) {
  Expr root = Expressions::kNothing;
  if (!request.must_call) {
    SHARPI_TRY_ASSIGN(root, content(request));
  }
  if (!request.tools.empty()) {
    SHARPI_TRY_ASSIGN(root, with_tool_calls(e_, json_, request, root, &heap_, notes_));
  }
  if (!e_.is_spent()) SHARPI_TRY(settle());
  if (e_.is_spent()) {
    return Status::error(Code::kDoesNotFit,
                         "the grammar is too large: compiling it takes too much work or memory");
  }
  *out = root;
  if (e_.node(root).possible) return Status::ok();
  return Status::error(Code::kUnsupported, "no text matches the %s",
                       request.kind == GrammarKind::kJsonSchema ? "schema" : "grammar");
}

}  // namespace

Vocabulary::Vocabulary(const Tokenizer& tokenizer)
    : tree(std::make_shared<const TokenTree>(tokenizer)), masks(masks_of_strings(tree)) {}

Status Grammar::build(const GrammarRequest& request) {
  if (request.text.size() > kMaxText || request.tools.size() > kMaxText) {
    return Status::error(Code::kDoesNotFit, "a grammar may have %zu bytes at most", kMaxText);
  }
  expressions_.set_limits(kCompileWork, kCompileBytes);
  GrammarBuilder builder(expressions_, &notes_);
  return builder.whole(request, &root_);
}

Result<std::shared_ptr<const Grammar>> Grammar::compile(
    std::shared_ptr<const Vocabulary> vocabulary, const GrammarRequest& request) {
  std::shared_ptr<Grammar> out(new Grammar);
  out->vocabulary_ = std::move(vocabulary);
  SHARPI_TRY(out->build(request));
  return std::shared_ptr<const Grammar>(std::move(out));
}

std::shared_ptr<Automaton> Grammar::automaton() const {
  const std::lock_guard lock(mutex_);
  bool full = automaton_ == nullptr;
  if (!full) {
    const std::lock_guard its(automaton_->mutex);
    full = automaton_->is_full();
  }
  if (full) {
    automaton_ = std::make_shared<Automaton>(expressions_, vocabulary_->tree, vocabulary_->masks);
  }
  return automaton_;
}

}  // namespace sharpi::grammar
