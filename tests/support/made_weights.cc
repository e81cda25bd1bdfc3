// SPDX-License-Identifier: MIT
#include "support/made_weights.h"

#include <algorithm>
#include <cmath>

#include "base/half.h"

namespace sharpi::test {
namespace {

/// What byte-level vocabularies write for a byte, as UTF-8.
std::string byte_text(uint32_t byte) {
  const auto printable = [](uint32_t b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  };
  uint32_t code = byte;
  if (!printable(byte)) {
    code = 0x100;
    for (uint32_t b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

uint64_t count_of(const std::vector<uint64_t>& ne) {
  uint64_t n = 1;
  for (const uint64_t d : ne) n *= d;
  return n;
}

}  // namespace

/// SplitMix64 (Steele, Lea and Flood 2014).
uint64_t MadeWeights::next() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double MadeWeights::uniform(double low, double high) {
  return low + (high - low) * (static_cast<double>(next() >> 11) * 0x1p-53);
}

/// A sum of twelve: near enough to a normal number, and sums are the same everywhere.
double MadeWeights::normal() {
  double sum = -6.0;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(next() >> 11) * 0x1p-53;
  return sum;
}

void MadeWeights::begin(std::string_view name, std::string_view pre_tokenizer) {
  w_.value("general.architecture", arch_).value("general.name", std::string(name));
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  for (uint32_t i = 0; i < kVocab; ++i) {
    tokens.push_back(i < 256 ? byte_text(i)
                             : std::string("<").append(std::to_string(i)).append(">"));
    types.push_back(i < 256 ? 1 : 3);
  }
  w_.value("tokenizer.ggml.model", std::string("gpt2"));
  w_.value("tokenizer.ggml.pre", std::string(pre_tokenizer));
  w_.array("tokenizer.ggml.tokens", tokens).array("tokenizer.ggml.token_type", types);
  w_.array("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  w_.value("tokenizer.ggml.bos_token_id", kVocab - 2);
  w_.value("tokenizer.ggml.eos_token_id", kVocab - 1);
}

void MadeWeights::attention_keys(uint32_t embd, uint32_t layers, uint32_t heads, uint32_t kv,
                                 uint32_t dim) {
  key("context_length", 32768u);
  key("embedding_length", embd);
  key("block_count", layers);
  key("attention.head_count", heads);
  if (kv != 0) key("attention.head_count_kv", kv);
  key("attention.key_length", dim);
  key("attention.value_length", dim);
}

void MadeWeights::matrix(const std::string& name, std::vector<uint64_t> ne, double gain) {
  constexpr uint64_t kBlock = 32;
  const double deviation = gain / std::sqrt(static_cast<double>(ne[0]));
  Bytes data;
  for (uint64_t left = count_of(ne); left != 0; left -= kBlock) {
    double drawn[kBlock], most = 0;
    for (double& v : drawn) {
      v = normal() * deviation;
      most = std::max(most, std::fabs(v));
    }
    const uint16_t d = f16_from_f32(static_cast<float>(most / 127));
    const double scale = static_cast<double>(f32_from_f16(d));
    append(data, d);
    for (const double v : drawn)
      append(data, static_cast<int8_t>(std::clamp(std::lround(v / scale), -127l, 127l)));
  }
  w_.tensor(name, GgmlType::kQ8_0, std::move(ne), std::move(data));
}

void MadeWeights::values(const std::string& name, std::vector<uint64_t> ne, double centre,
                         double spread) {
  std::vector<float> v(count_of(ne));
  for (float& x : v) x = static_cast<float>(centre + spread * normal());
  w_.tensor_f32(name, std::move(ne), v);
}

}  // namespace sharpi::test
