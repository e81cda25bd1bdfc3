// SPDX-License-Identifier: MIT
// Grammars that requests have asked for: clients send the same schema with every request, and what
// was found out about one is there for the next.
// Thread rule: any thread; one compiles at a time, so that large schemas of many clients do not
// take all processors, and who asks for a known one does not wait for that.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "constraint.h"

namespace server {

/// What an answer has to match.
struct GrammarRequest {
  sharpi_grammar_kind kind = SHARPI_GRAMMAR_ANY;
  uint32_t flags = 0;  // SHARPI_GRAMMAR_*
  std::string text, tools, tool;
};

struct CompiledGrammar {
  GrammarHandle handle;
  std::vector<std::string> notes;  // what it does not enforce
};

class GrammarCache {
 public:
  /// Throws LibraryError.
  std::shared_ptr<const CompiledGrammar> find(const sharpi_model* model,
                                              const GrammarRequest& request);

 private:
  using Known = std::shared_ptr<const CompiledGrammar>;
  Known known(const std::string& key);
  void keep(const std::string& key, const Known& grammar);

  static constexpr size_t kMaxGrammars = 8;
  static constexpr size_t kMaxBytes = size_t{1} << 20;  // of what they were compiled from
  std::mutex compiling_;
  std::mutex mutex_;  // of what follows
  // The last one that was used comes first.
  std::list<std::pair<std::string, Known>> known_;
};

}  // namespace server
