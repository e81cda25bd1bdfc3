// SPDX-License-Identifier: MIT
// Split files whose parts do not agree: three good parts, whose bytes the input overwrites, cuts
// off or leaves out. Records of 4 bytes: part, offset, value, and what to do.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "gguf/gguf_file.h"
#include "support/gguf_walk.h"
#include "support/gguf_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace sharpi {
namespace {

constexpr uint32_t kParts = 3;

void require(bool condition) {
  if (!condition) __builtin_trap();
}

struct Parts {
  std::string prefix, path[kParts], bytes[kParts];
  Parts() {
    const char* folder = std::getenv("TMPDIR");
    prefix = std::string(folder == nullptr ? "/tmp" : folder) + "/sharpi-split-fuzz-" +
             std::to_string(getpid());
    test::GgufWriter parts[kParts];
    parts[0].value("general.architecture", "test").value("general.alignment", 32u);
    parts[0].split(0, kParts, 4).tensor_f32("first", {1}, {1});
    parts[1].value("long key that moves the data of this part", 1u).split(1, kParts, 4);
    parts[1].tensor_f32("second", {2}, {2, 20}).tensor_f32("more", {1}, {4});
    parts[2].split(2, kParts, 4).tensor_f32("third", {1}, {3});
    for (uint32_t i = 0; i < kParts; ++i) {
      path[i] = test::split_path(prefix, i, kParts);
      require(parts[i].write(path[i]));
      std::ifstream in(path[i], std::ios::binary);
      bytes[i].assign(std::istreambuf_iterator<char>(in), {});
    }
  }
  ~Parts() {
    for (const std::string& p : path) unlink(p.c_str());
  }
};

}  // namespace
}  // namespace sharpi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sharpi;
  static const Parts parts;
  std::string now[kParts] = {parts.bytes[0], parts.bytes[1], parts.bytes[2]};
  bool there[kParts] = {true, true, true};
  for (size_t at = 0; at + 4 <= size; at += 4) {
    const uint32_t part = data[at] % kParts, what = data[at] / kParts % 8;
    const size_t offset = data[at + 1] + 256u * (data[at + 2] % 4);
    if (what == 0) now[part].resize(std::min(now[part].size(), offset));
    if (what == 1) there[part] = false;
    if (what == 2) now[part] = parts.bytes[data[at + 3] % kParts];
    if (what > 2 && offset < now[part].size()) now[part][offset] = static_cast<char>(data[at + 3]);
  }
  for (uint32_t i = 0; i < kParts; ++i) {
    unlink(parts.path[i].c_str());
    if (there[i]) std::ofstream(parts.path[i], std::ios::binary) << now[i];
  }
  const auto file = GgufFile::open(parts.path[size == 0 ? 0 : data[0] % kParts]);
  if (file.is_ok()) {
    require(file.value()->n_shards() <= kParts);
    const auto mapped = file.value()->map_tensors();
    require(mapped.is_ok());
    test::walk(*mapped.value());
  } else {
    require(!file.status().text().empty() && file.status().code() != Code::kInternal);
  }
  return 0;
}
