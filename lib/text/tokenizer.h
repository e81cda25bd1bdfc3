// SPDX-License-Identifier: MIT
// Text <-> token ids for the vocabularies inside GGUF files: byte-level BPE (tokenizer.ggml.model
// "gpt2" with the pre-tokenizers of pretokenizer.cc), SentencePiece's BPE by scores ("llama"), and
// Gemma 4's space-marker BPE ("gemma4"), both with byte fallback. Equal to the HF tokenizers these
// files were converted from, NFC included. Those of encoders are WordPiece ("bert") and
// SentencePiece's unigram model ("t5").
// Thread rule: immutable after create(); any thread (scratch is per call).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "gguf/gguf_file.h"
#include "text/jinja/marked_text.h"

namespace sharpi {

enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

class Tokenizer {
 public:
  /// kUnsupported names an unknown tokenizer model or pre-tokenizer; kFormat says what is wrong
  /// with a malformed vocabulary.
  static Result<std::shared_ptr<const Tokenizer>> create(std::shared_ptr<const GgufFile> file);
  ~Tokenizer();

  uint32_t n_vocab() const;
  /// Appends the ids of `text`; on failure *out stays as it was. add_special: BOS and EOS as the
  /// file asks (a BOS that the text itself begins with is not doubled). parse_special: the text of
  /// a control token becomes its id (that of user-defined tokens always does). Bytes that are not
  /// UTF-8 are kept, as byte tokens. A byte without a token is dropped by byte-level vocabularies,
  /// as the reference tokenizers do; others refuse it (kUnsupported).
  Status encode(std::string_view text, bool add_special, bool parse_special,
                std::vector<int32_t>* out) const;
  /// Appends the ids of a rendered conversation, without adding BOS or EOS. Control tokens are
  /// found only where no part of their text is foreign.
  Status encode_marked(const jinja::MarkedText& text, std::vector<int32_t>* out) const;
  /// Appends the bytes of one token; control tokens give nothing unless `render_special`.
  /// kInvalidArgument for an id outside the vocabulary.
  Status decode(int32_t token, bool render_special, std::string* out) const;

  /// The token that decodes to exactly this text (control tokens: their spelling); -1 = none does.
  int32_t find_decoded(std::string_view text) const;
  TokenKind kind(int32_t token) const;             // pre: 0 <= token < n_vocab
  std::string_view raw_text(int32_t token) const;  // as stored in the file
  int32_t find(std::string_view text) const;       // id of the token with that stored text, or -1
  bool add_bos() const;                            // what encode() adds with add_special
  int32_t bos() const;                             // -1 if none
  int32_t eos() const;                             // -1 if none
  /// WordPiece or unigram; BOS and EOS are then what is put around texts and between two of a pair.
  bool is_encoders() const;
  bool doubles_separators() const;  // two EOS between the texts of a pair
  bool is_end_of_generation(int32_t token) const;
  /// Tokens a sampler must never pick: unused kind and the file's suppress list; ascending.
  const std::vector<int32_t>& never_sample() const;
  /// The raw Jinja template; empty if the file has none.
  std::string_view chat_template() const;

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sharpi
