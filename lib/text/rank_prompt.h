// SPDX-License-Identifier: MIT
// A query and a document as one text for a reranker. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "gguf/gguf_file.h"
#include "text/tokenizer.h"

namespace sharpi {

struct RankPair {
  std::string_view query, document;
  std::optional<std::string_view> instruction;
};

/// Appends the ids of a pair; *n_first: those of the first text, all of them where the model has no
/// token types. kUnsupported: no form of a pair is known for the vocabulary.
Status encode_pair(const Tokenizer& tokenizer, const GgufFile& file, const RankPair& pair,
                   std::vector<int32_t>* out, uint32_t* n_first);

}  // namespace sharpi
