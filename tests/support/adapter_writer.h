// SPDX-License-Identifier: MIT
// Writes adapters (LoRA) as GGUF files, with seeded random halves and any of their keys bent.
// Thread rule: one owner.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/model_spec.h"
#include "support/gguf_writer.h"

namespace sharpi::test {

class AdapterWriter {
 public:
  explicit AdapterWriter(std::string arch, std::optional<float> alpha = std::nullopt)
      : arch_(std::move(arch)), alpha_(alpha) {}
  /// general.type and adapter.type; an empty one is left out.
  AdapterWriter& type(std::string text) {
    type_ = std::move(text);
    return *this;
  }
  AdapterWriter& kind(std::string text) {
    kind_ = std::move(text);
    return *this;
  }
  /// Further keys and tensors.
  GgufWriter& gguf() { return gguf_; }
  AdapterWriter& half(const std::string& name, std::vector<uint64_t> ne, uint64_t seed,
                      GgmlType type = GgmlType::kF32, double deviation = 1.0) {
    uint64_t n = 1;
    for (const uint64_t d : ne) n *= d;
    if (n == 0) {
      gguf_.tensor(name, type, std::move(ne), {});
    } else {
      gguf_.tensor_random(name, type, std::move(ne), seed, deviation);
    }
    return *this;
  }
  /// Both halves of a weight, so that B A has elements of about `gain` / sqrt(n_in).
  AdapterWriter& pair(const std::string& weight, uint64_t n_in, uint64_t n_out, uint64_t rank,
                      uint64_t seed, GgmlType type = GgmlType::kF32, double gain = 1.0) {
    half(weight + ".lora_a", {n_in, rank}, 2 * seed, type, 1.0 / std::sqrt(double(n_in)));
    return half(weight + ".lora_b", {rank, n_out}, 2 * seed + 1, type,
                gain / std::sqrt(double(rank)));
  }
  AdapterWriter& pair(const TensorRef& w, uint64_t rank, uint64_t seed,
                      GgmlType type = GgmlType::kF32, double gain = 1.0) {
    return pair(std::string(w.tensor->name), w.n_in, w.n_out, rank, seed, type, gain);
  }
  Bytes bytes() const { return with_keys().bytes(); }
  [[nodiscard]] bool write(const std::string& path) const { return with_keys().write(path); }

 private:
  GgufWriter with_keys() const {
    GgufWriter w = gguf_;
    w.value("general.architecture", arch_);
    if (!type_.empty()) w.value("general.type", type_);
    if (!kind_.empty()) w.value("adapter.type", kind_);
    if (alpha_) w.value("adapter.lora.alpha", *alpha_);
    return w;
  }
  std::string arch_, type_ = "adapter", kind_ = "lora";
  std::optional<float> alpha_;
  GgufWriter gguf_;
};

}  // namespace sharpi::test
