// SPDX-License-Identifier: MIT
// Matrices of tests that take minutes are cut into parts, of which each commit runs one.
// SHARPI_TEST_TURN says which: `make test` sets it to the commit's hash (tools/ci/turn.sh). Without
// it, or with `all`, everything runs. Thread rule: one thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace sharpi::testing {

/// Why a case is skipped whose turn it is not.
inline const char* not_this_turn() {
  return "it is another commit's turn (SHARPI_TEST_TURN=all runs everything)";
}

class Turn {
 public:
  /// One of `parts`; cases with different offsets run different ones. A case that runs in part says
  /// so in its result, where tools/ci/cases.sh finds it.
  Turn(uint64_t offset, uint32_t parts) : Turn(std::getenv("SHARPI_TEST_TURN"), offset, parts) {
    if (!whole_) {
      ::testing::Test::RecordProperty("part",
                                      std::to_string(part_ + 1) + " of " + std::to_string(parts_));
    }
  }
  Turn(const char* text, uint64_t offset, uint32_t parts)
      : whole_(text == nullptr || *text == '\0' || std::string_view(text) == "all"),
        parts_(parts),
        part_(whole_ ? 0 : static_cast<uint32_t>((number_of(text) + offset) % parts)) {}

  bool whole() const { return whole_; }
  uint32_t part() const { return part_; }
  /// Whether the i-th of what is cut into parts runs now.
  bool has(uint64_t i) const { return whole_ || i % parts_ == part_; }

 private:
  static uint64_t number_of(std::string_view text) {
    uint64_t h = 0xCBF29CE484222325u;  // FNV-1a
    for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
    return h >> 20;  // the low bits of FNV say little
  }
  bool whole_;
  uint32_t parts_, part_;
};

}  // namespace sharpi::testing
