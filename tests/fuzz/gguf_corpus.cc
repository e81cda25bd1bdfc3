// SPDX-License-Identifier: MIT
// Writes the seed corpus of gguf_fuzz: small well-formed files that between them hold every value
// type, array type and tensor type, both versions, and an alignment of their own. With a second
// argument "adapters" that of adapter_fuzz: adapters of its model.
#include <cstdio>
#include <string>
#include <vector>

#include "support/adapter_writer.h"
#include "support/gguf_writer.h"

namespace sharpi::test {
namespace {

GgufWriter scalars(uint32_t version) {
  GgufWriter w(version);
  w.value("general.architecture", "test").value("u8", uint8_t{1}).value("i8", int8_t{-1});
  w.value("u16", uint16_t{2}).value("i16", int16_t{-2}).value("u32", 3u).value("i32", -3);
  w.value("u64", uint64_t{4}).value("i64", int64_t{-4}).value("f32", 0.5f).value("f64", 0.25);
  return w.value("yes", true).value("no", false).value("empty", "");
}

GgufWriter arrays() {
  GgufWriter w;
  w.array("u8", std::vector<uint8_t>{1, 2}).array("i32", std::vector<int32_t>{-1, 0, 1});
  w.array("f32", std::vector<float>{0.5f}).array("f64", std::vector<double>{});
  w.array("flags", std::vector<bool>{true, false}).array("u64", std::vector<uint64_t>{UINT64_MAX});
  return w.array("tokens", std::vector<std::string>{"a", "", "bc"});
}

GgufWriter tensors(uint32_t alignment) {
  GgufWriter w;
  w.alignment(alignment).tensor_f32("norm", {4}, {1, 2, 3, 4});
  w.tensor_random("q8", GgmlType::kQ8_0, {32, 2}, 1);
  return w.tensor_random("q4", GgmlType::kQ4_K, {256, 1, 1, 2}, 2);
}

GgufWriter every_type() {
  GgufWriter w;
  for (uint32_t id = 0; id < 64; ++id) {
    const GgmlTypeTraits* t = ggml_type_traits(id);
    if (t == nullptr) continue;
    w.tensor(t->name, static_cast<GgmlType>(id), {t->block_elements}, Bytes(t->block_bytes));
  }
  return w;
}

GgufWriter split() {
  GgufWriter w;
  return w.split(0, 2, 2).tensor_f32("a", {1}, {1});
}

bool write_adapters(const std::string& folder) {
  AdapterWriter one("qwen3", 8.0f), types("qwen3", 2.0f), half("qwen3", 1.0f);
  one.pair("blk.0.attn_q.weight", 64, 128, 4, 1);
  types.pair("blk.1.ffn_down.weight", 96, 64, 32, 2, GgmlType::kQ8_0);
  types.pair("blk.0.attn_v.weight", 64, 64, 2, 3, GgmlType::kBF16);
  half.half("blk.0.attn_q.weight.lora_a", {64, 4}, 4, GgmlType::kF16);
  return one.write(folder + "/one.gguf") && types.write(folder + "/types.gguf") &&
         half.write(folder + "/half.gguf");
}

}  // namespace
}  // namespace sharpi::test

int main(int argc, char** argv) {
  using namespace sharpi::test;
  const bool adapters = argc == 3 && std::string(argv[2]) == "adapters";
  if (argc != 2 && !adapters) {
    std::fprintf(stderr, "usage: %s FOLDER [adapters]\n", argv[0]);
    return 2;
  }
  const std::string folder = argv[1];
  const bool written = adapters ? write_adapters(folder)
                                : GgufWriter().write(folder + "/empty.gguf") &&
                                      scalars(2).write(folder + "/scalars-v2.gguf") &&
                                      scalars(3).write(folder + "/scalars-v3.gguf") &&
                                      arrays().write(folder + "/arrays.gguf") &&
                                      tensors(8).write(folder + "/tensors-8.gguf") &&
                                      tensors(64).write(folder + "/tensors-64.gguf") &&
                                      every_type().write(folder + "/types.gguf") &&
                                      split().write(folder + "/split.gguf");
  if (!written) std::fprintf(stderr, "cannot write to %s\n", folder.c_str());
  return written ? 0 : 1;
}
