// SPDX-License-Identifier: MIT
// Weights of every tensor type for tests of products, and memory that shows reads behind its end.
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/checked.h"
#include "base/half.h"
#include "gguf/ggml_type.h"
#include "os/pages.h"

namespace sharpi::cpu {

/// Bytes that end exactly at an unreadable page.
class Guarded {
 public:
  explicit Guarded(uint64_t bytes) {
    const uint64_t page = os::page_size();
    mapped_ = round_up(std::max<uint64_t>(bytes, 1), page) + page;
    int error = 0;
    base_ = os::map_pages(mapped_, os::Access::kReadWrite, &error);
    os::protect_pages(base_ + mapped_ - page, page, os::Access::kNone);
    data_ = base_ + (mapped_ - page - bytes);
  }
  ~Guarded() { os::unmap_pages(base_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  std::byte* data() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t mapped_ = 0;
};

struct Aligned {
  explicit Aligned(uint64_t bytes)
      : p(static_cast<std::byte*>(os::allocate_aligned(64, round_up(bytes + 1, 64))),
          &os::free_aligned) {
    std::memset(p.get(), 0xFF, round_up(bytes + 1, 64));
  }
  std::unique_ptr<std::byte, decltype(&os::free_aligned)> p;
};

/// A tensor type, and where its blocks keep half floats.
struct TypeCase {
  GgmlType type;
  std::vector<uint32_t> halves;
  uint64_t n_in;
};

// Block types: whole vectors of blocks, a few blocks, one block.
inline const std::vector<TypeCase>& type_cases() {
  static const std::vector<TypeCase> cases = {
      {GgmlType::kF32, {}, 333},        {GgmlType::kF32, {}, 7},
      {GgmlType::kF16, {}, 333},        {GgmlType::kF16, {}, 64},
      {GgmlType::kBF16, {}, 333},       {GgmlType::kBF16, {}, 1},
      {GgmlType::kQ8_0, {0}, 608},      {GgmlType::kQ8_0, {0}, 32},
      {GgmlType::kQ4_0, {0}, 608},      {GgmlType::kQ4_0, {0}, 96},
      {GgmlType::kQ4_1, {0, 2}, 608},   {GgmlType::kQ4_1, {0, 2}, 32},
      {GgmlType::kQ5_0, {0}, 608},      {GgmlType::kQ5_0, {0}, 224},
      {GgmlType::kQ5_1, {0, 2}, 608},   {GgmlType::kQ5_1, {0, 2}, 64},
      {GgmlType::kIQ4_NL, {0}, 608},    {GgmlType::kIQ4_NL, {0}, 32},
      {GgmlType::kMXFP4, {}, 608},      {GgmlType::kMXFP4, {}, 160},
      {GgmlType::kQ2_K, {80, 82}, 768}, {GgmlType::kQ3_K, {108}, 768},
      {GgmlType::kQ4_K, {0, 2}, 768},   {GgmlType::kQ5_K, {0, 2}, 768},
      {GgmlType::kQ6_K, {208}, 768},    {GgmlType::kIQ4_XS, {0}, 768},
      {GgmlType::kQ4_K, {0, 2}, 2304},  {GgmlType::kQ8_0, {0}, 2336},
      {GgmlType::kQ8_0, {0}, 576},      {GgmlType::kQ8_0, {0}, 448},
      {GgmlType::kQ4_1, {0, 2}, 576},   {GgmlType::kQ4_1, {0, 2}, 448},
      {GgmlType::kQ5_0, {0}, 320},      {GgmlType::kQ8_0, {0}, 640},
  };
  return cases;
}

/// Random bytes make valid blocks once the scales are ordinary numbers.
inline void fill_weights(const TypeCase& c, uint64_t n_out, std::mt19937& rng, std::byte* data) {
  const GgmlTypeTraits& t = ggml_traits(c.type);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  const uint64_t n_blocks = n_out * c.n_in / t.block_elements;
  for (uint64_t b = 0; b < n_blocks; ++b) {
    std::byte* block = data + b * t.block_bytes;
    const auto put_half = [&](uint32_t at, float v) {
      const uint16_t h = f16_from_f32(v);
      std::memcpy(block + at, &h, sizeof h);
    };
    for (uint32_t i = 0; i < t.block_bytes; ++i) block[i] = static_cast<std::byte>(rng());
    for (const uint32_t at : c.halves) put_half(at, normal(rng));
    const float v = normal(rng);
    const uint16_t bf16 = bf16_from_f32(v);
    if (c.type == GgmlType::kF32) std::memcpy(block, &v, sizeof v);
    if (c.type == GgmlType::kF16) put_half(0, v);
    if (c.type == GgmlType::kBF16) std::memcpy(block, &bf16, sizeof bf16);
    if (c.type == GgmlType::kMXFP4) block[0] = static_cast<std::byte>(120 + rng() % 8);
  }
}

}  // namespace sharpi::cpu
