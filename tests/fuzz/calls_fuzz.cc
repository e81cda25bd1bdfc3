// SPDX-License-Identifier: MIT
// Sequences of calls on sessions, chosen by the input, with the replay as an oracle
// (tests/engine/replay_sequence.h): byte 0 chooses the template, every further byte is one choice.
// What fails there ends the program.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "engine/replay_sequence.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace sharpi::testing {
namespace {

const std::vector<Ready>& all() {
  // Never destroyed: they live as long as the program.
  static const auto* made = [] {
    auto* ready = new std::vector<Ready>();
    for (const Template& t : replay_templates()) ready->push_back(prepare_replay(t));
    return ready;
  }();
  return *made;
}

}  // namespace
}  // namespace sharpi::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sharpi::testing;
  if (size == 0) return 0;
  size_t at = 1;
  uint64_t tail = 0;  // ids of tokens need no bytes of their own
  const Below below = [&](uint32_t n) -> uint32_t {
    if (n > 256) return static_cast<uint32_t>((tail += 0x9E3779B97F4A7C15u) >> 33) % n;
    return at < size ? data[at++] % n : 0;
  };
  replay(all()[data[0] % all().size()], below, [&] { return at < size; });
  if (::testing::Test::HasFailure()) __builtin_trap();
  return 0;
}
