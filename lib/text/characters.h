// SPDX-License-Identifier: MIT
// Kinds of characters, as the tokenizers of encoders cut text by them.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace sharpi {

/// Unicode's property White_Space.
bool is_white_space(uint32_t code_point);
/// Control, format and private code points.
bool is_other(uint32_t code_point);
/// All ASCII characters that are no letters, digits or spaces, and Unicode's punctuation.
bool is_punctuation(uint32_t code_point);
/// The blocks of Chinese characters, which are words of their own for BERT.
bool is_chinese(uint32_t code_point);
/// Appends the canonical decomposition without marks, in lower case, as far as asked for.
void append_folded(uint32_t code_point, bool strip_accents, bool lower_case, std::string* out);

}  // namespace sharpi
