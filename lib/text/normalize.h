// SPDX-License-Identifier: MIT
// Unicode normalisation form C, over the data of utf8proc. Linear in the text for any input: runs
// of combining marks are sorted here, because utf8proc orders them by insertion.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sharpi {

/// Points *out at the NFC of `text`: at `text` itself if nothing changes, else at *storage, which
/// is overwritten. pre: `text` is whole UTF-8 characters and outlives *out.
Status normalize_nfc(std::string_view text, std::string* storage, std::string_view* out);

/// Whether no normalisation changes `code_point` or joins it to the character before it.
bool is_nfc_inert(uint32_t code_point);

/// Whether the reference tokenizers' normaliser, whose tables are of Unicode 9, does not know that
/// `code_point` is a mark or composed: then it is a letter here too.
bool is_nfc_unknown(uint32_t code_point);

}  // namespace sharpi
