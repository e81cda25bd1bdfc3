// SPDX-License-Identifier: MIT
// Characters of UTF-8 text as Python counts them, and numbers as it spells them.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sharpi::jinja {

/// Characters of UTF-8 text; bytes that are none count as one each.
size_t count_characters(std::string_view text);
/// Byte at which character `index` begins; text.size() behind the last.
size_t byte_of_character(std::string_view text, size_t index);
/// Whether Python's str.strip() removes it.
bool is_blank(uint32_t code_point);
/// Python's repr() of a float: the shortest digits that read back as the same number.
std::string represent_real(double value);

}  // namespace sharpi::jinja
