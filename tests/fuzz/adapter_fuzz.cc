// SPDX-License-Identifier: MIT
// Feeds arbitrary bytes to the reader of adapters, beside a small model. Of what it takes, every
// pair has the shapes of its weight and data inside the input.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "model/adapter_file.h"
#include "support/tiny_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

const sharpi::ModelSpec& base() {
  static const auto spec =
      sharpi::test::load_model(sharpi::test::ModelFile(sharpi::test::tiny_qwen3()), true).take();
  return *spec;
}

bool reads_whole(const sharpi::AdapterFile& adapter, const sharpi::GgufTensor& half, uint64_t n_in,
                 uint64_t n_out) {
  if (half.ne[0] != n_in || half.ne[1] != n_out) return false;
  std::vector<std::byte> bytes(half.bytes);
  return adapter.file->read_tensor(half, 0, bytes.data(), bytes.size()).is_ok();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::unique_ptr<std::byte[]> bytes(new std::byte[size]);
  if (size != 0) std::memcpy(bytes.get(), data, size);
  auto file = sharpi::GgufFile::open_memory(bytes.get(), size, "input");
  if (!file.is_ok()) return 0;
  const auto adapter = sharpi::read_adapter(file.take(), base());
  if (!adapter.is_ok()) {
    if (adapter.status().text().empty()) __builtin_trap();  // a refusal without a reason
    return 0;
  }
  const sharpi::AdapterFile& a = adapter.value();
  for (const sharpi::AdapterPair& p : a.pairs) {
    if (p.tensor >= base().file->tensors().size() || p.rank == 0 || p.rank > a.max_rank)
      __builtin_trap();
    if (!reads_whole(a, *p.a, p.n_in, p.rank) || !reads_whole(a, *p.b, p.rank, p.n_out))
      __builtin_trap();
  }
  return 0;
}
