// SPDX-License-Identifier: MIT
#include "grammar_cache.h"

#include <algorithm>

namespace server {
namespace {

std::string key_of(const GrammarRequest& request) {
  std::string key = std::to_string(request.kind) + " " + std::to_string(request.flags);
  for (const std::string* part : {&request.text, &request.tools, &request.tool}) {
    key += " " + std::to_string(part->size()) + " " + *part;
  }
  return key;
}

std::shared_ptr<const CompiledGrammar> compile(const sharpi_model* model,
                                               const GrammarRequest& request) {
  sharpi_grammar_params p;
  sharpi_grammar_params_init(&p, sizeof p);
  p.kind = request.kind;
  p.flags = request.flags;
  p.text = request.text.data();
  p.text_len = request.text.size();
  p.tools = request.tools.data();
  p.tools_len = request.tools.size();
  p.tool = request.tool.empty() ? nullptr : request.tool.c_str();
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_grammar* grammar = nullptr;
  check(sharpi_grammar_compile(model, &p, &grammar, &err), err);
  auto out = std::make_shared<CompiledGrammar>();
  out->handle.reset(grammar);
  for (uint32_t i = 0;; ++i) {
    char note[1024];
    size_t n = 0;
    if (sharpi_grammar_note(grammar, i, note, sizeof note, &n, nullptr) != SHARPI_OK) break;
    out->notes.emplace_back(note, n);
  }
  return out;
}

}  // namespace

GrammarCache::Known GrammarCache::known(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(known_.begin(), known_.end(), [&](const auto& one) { return one.first == key; });
  if (found == known_.end()) return nullptr;
  known_.splice(known_.begin(), known_, found);
  return found->second;
}

void GrammarCache::keep(const std::string& key, const Known& grammar) {
  std::list<std::pair<std::string, Known>> forgotten;  // is freed without the lock
  const std::lock_guard lock(mutex_);
  known_.emplace_front(key, grammar);
  size_t n = 0, bytes = 0;
  auto end = known_.begin();
  for (; end != known_.end() && n < kMaxGrammars; ++end, ++n) {
    bytes += end->first.size();
    if (bytes > kMaxBytes && n != 0) break;
  }
  forgotten.splice(forgotten.begin(), known_, end, known_.end());
}

std::shared_ptr<const CompiledGrammar> GrammarCache::find(const sharpi_model* model,
                                                          const GrammarRequest& request) {
  const std::string key = key_of(request);
  if (Known found = known(key)) return found;
  const std::lock_guard lock(compiling_);
  if (Known found = known(key)) return found;  // meanwhile
  const Known made = compile(model, request);
  keep(key, made);
  return made;
}

}  // namespace server
