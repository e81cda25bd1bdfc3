// SPDX-License-Identifier: MIT
// Splits text into the pieces that byte-level BPE works inside, by the regular expressions of a
// tokenizer family, one behind the other (PCRE2, JIT-compiled where the system allows it).
// Thread rule: PreTokenizer is immutable; each call brings its own Matcher.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/status.h"

namespace sharpi {

class PreTokenizer {
 public:
  /// `name` is the file's tokenizer.ggml.pre. kUnsupported names an unknown one, and all that are
  /// known.
  static Result<PreTokenizer> create(std::string_view name);
  /// Texts are brought into Unicode's form NFC first.
  bool nfc() const { return nfc_; }
  /// A piece that is a token as it stands is taken whole, whatever merges would make of it.
  bool whole_pieces() const { return whole_pieces_; }
  /// Texts begin with BOS where the file does not say.
  bool default_bos() const { return default_bos_; }
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  /// Walks one text: owns the match state, so it is cheap to reuse for the next text.
  class Matcher {
   public:
    static Result<Matcher> create(const PreTokenizer& owner);
    ~Matcher();
    Matcher(Matcher&&) noexcept;
    Matcher& operator=(Matcher&&) noexcept;

    /// Starts on `text`, which is whole UTF-8 characters and outlives the walk.
    void start(std::string_view text);
    /// Sets *piece to the next piece; empty at the end. The pieces cover the text without gaps.
    Status next(std::string_view* piece);

   private:
    Matcher();
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  PreTokenizer();
  struct Patterns;
  std::unique_ptr<Patterns> patterns_;
  bool nfc_ = false, whole_pieces_ = false, default_bos_ = false;
};

}  // namespace sharpi
