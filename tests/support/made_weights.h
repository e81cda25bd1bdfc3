// SPDX-License-Identifier: MIT
// Random tensors and common keys of the models of made_models.h. Numbers are drawn by arithmetic
// that is the same everywhere, which the distributions of a standard library are not. Thread rule:
// one owner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/gguf_writer.h"

namespace sharpi::test {

class MadeWeights {
 public:
  static constexpr uint32_t kVocab = 288;

  MadeWeights(std::string arch, uint64_t seed) : arch_(std::move(arch)), state_(seed) {}

  template <class T>
  void key(const std::string& name, const T& v) {
    w_.value(arch_ + "." + name, v);
  }
  template <class T>
  void keys(const std::string& name, const std::vector<T>& v) {
    w_.array(arch_ + "." + name, v);
  }
  /// Name, architecture, and a vocabulary of the 256 bytes and numbered control tokens.
  void begin(std::string_view name, std::string_view pre_tokenizer);
  /// Context, width, blocks and what plain attention has; `kv` 0: its key is left to the caller.
  void attention_keys(uint32_t embd, uint32_t layers, uint32_t heads, uint32_t kv, uint32_t dim);

  /// Q8_0, of rows that keep the size of what they are multiplied with, times `gain`.
  void matrix(const std::string& name, std::vector<uint64_t> ne, double gain = 1.0);
  /// f32, normal around `centre`.
  void values(const std::string& name, std::vector<uint64_t> ne, double centre, double spread);
  void exact(const std::string& name, const std::vector<float>& v) { exact(name, {v.size()}, v); }
  void exact(const std::string& name, std::vector<uint64_t> ne, const std::vector<float>& v) {
    w_.tensor_f32(name, std::move(ne), v);
  }
  /// In [low, high).
  double uniform(double low, double high);

  Bytes bytes() const { return w_.bytes(); }

 private:
  uint64_t next();
  double normal();
  std::string arch_;
  uint64_t state_;
  GgufWriter w_;
};

}  // namespace sharpi::test
