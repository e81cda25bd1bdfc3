// SPDX-License-Identifier: MIT
// Vocabularies made in memory, and the tokenizers over them.
// Thread rule: one owner.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "support/gguf_writer.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer.h"

namespace sharpi {

using Ids = std::vector<int32_t>;
using Strings = std::vector<std::string>;

struct VocabularyFile {
  std::string model = "gpt2", pre = "qwen2";
  Strings tokens;
  std::vector<int32_t> types;  // normal where shorter than tokens
  Strings merges;
  test::GgufWriter writer;  // further keys

  int32_t add(const std::string& token, TokenKind kind = TokenKind::kNormal) {
    tokens.push_back(token);
    types.push_back(static_cast<int32_t>(kind));
    return static_cast<int32_t>(tokens.size()) - 1;
  }
  /// Ids 0 to 255 spell the bytes.
  VocabularyFile& add_bytes() {
    for (uint32_t b = 0; b < 256; ++b) {
      std::string token;
      if (model == "gpt2") {
        utf8_append(kByteAlphabet[b], &token);
        add(token);
      } else {
        const char* hex = "0123456789ABCDEF";
        add(std::string("<0x") + hex[b / 16] + hex[b % 16] + ">", TokenKind::kByte);
      }
    }
    return *this;
  }
  int32_t add_merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    return add(left + right);
  }
};

/// The tokenizer and the bytes that its file object reads.
struct Loaded {
  std::unique_ptr<test::Bytes> bytes;
  Status status;
  std::shared_ptr<const Tokenizer> tokenizer;
};

/// The file's bytes: keys, and no tensor.
inline test::Bytes bytes_of(const VocabularyFile& v) {
  test::GgufWriter writer = v.writer;
  writer.value("tokenizer.ggml.model", v.model);
  if (!v.pre.empty()) writer.value("tokenizer.ggml.pre", v.pre);
  writer.array("tokenizer.ggml.tokens", v.tokens);
  writer.array("tokenizer.ggml.token_type", v.types);
  writer.array("tokenizer.ggml.merges", v.merges);
  return writer.bytes();
}

inline Loaded load(const VocabularyFile& v) {
  Loaded out;
  out.bytes = std::make_unique<test::Bytes>(bytes_of(v));
  auto file = GgufFile::open_memory(out.bytes->data(), out.bytes->size(), "vocabulary");
  EXPECT_TRUE(file.is_ok()) << file.status().text();
  auto tokenizer = Tokenizer::create(file.take());
  out.status = tokenizer.status();
  if (tokenizer.is_ok()) out.tokenizer = tokenizer.take();
  return out;
}

inline void expect_refused(const VocabularyFile& v, Code code, const char* word) {
  const Loaded loaded = load(v);
  EXPECT_EQ(loaded.status.code(), code) << loaded.status.text();
  EXPECT_NE(loaded.status.text().find(word), std::string::npos) << loaded.status.text();
}

inline Ids encode(const Tokenizer& tokenizer, std::string_view text, bool parse_special = true) {
  Ids ids;
  const Status status = tokenizer.encode(text, false, parse_special, &ids);
  EXPECT_TRUE(status.is_ok()) << status.text();
  return ids;
}

}  // namespace sharpi
