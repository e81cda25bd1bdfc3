// SPDX-License-Identifier: MIT
// Feeds arbitrary bytes to the GGUF reader. What opens is then read in full through every
// accessor, so that a view which leaves the input is seen by the address sanitizer.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "gguf/gguf_file.h"
#include "support/gguf_walk.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Exactly as long as the input, so that the first byte behind it is poisoned.
  const std::unique_ptr<std::byte[]> bytes(new std::byte[size]);
  if (size != 0) std::memcpy(bytes.get(), data, size);
  const auto file = sharpi::GgufFile::open_memory(bytes.get(), size, "input");
  if (file.is_ok()) {
    sharpi::test::walk(*file.value());
  } else if (file.status().text().empty()) {
    __builtin_trap();  // a refusal without a reason
  }
  return 0;
}
