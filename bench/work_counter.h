// SPDX-License-Identifier: MIT
// What a model's tokens must read and compute, counted from its file apart from the library, whose
// speed is judged by it. Thread rule: plain values; kv_read_bytes() as the session.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf_file.h"
#include "kv_names.h"
#include "model/model_spec.h"
#include "sharpi.h"

namespace sharpi::bench {

struct Work {
  uint64_t weight_bytes = 0;    // without embedding tables; active experts only; head included
  uint64_t matrix_weights = 0;  // multiplied with every token of a prompt: without the head
  uint64_t state_bytes = 0;     // recurrent state
  uint32_t n_vocab = 0;
  std::vector<uint32_t> window;  // of a layer; 0 = none, or no attention
  std::vector<uint64_t> width;   // elements of all query heads of a layer; 0 = no attention
  std::vector<bool> one_row;     // a layer stores one row that is key and value
  uint32_t n_layers() const { return static_cast<uint32_t>(window.size()); }

  /// Floating-point operations of n tokens of a prompt behind `past` others: products with weights,
  /// and attention's two products with every key that a token sees.
  double flop(uint64_t past, uint64_t n) const {
    double total = 2.0 * static_cast<double>(matrix_weights) * static_cast<double>(n);
    for (uint32_t l = 0; l < n_layers(); ++l) {
      double pairs = 0;
      for (uint64_t i = 1; i <= n; ++i) {
        pairs += static_cast<double>(window[l] == 0 ? past + i
                                                    : std::min<uint64_t>(past + i, window[l]));
      }
      total += 4.0 * pairs * static_cast<double>(width[l]);
    }
    return total;
  }
};

class WorkCounter {
 public:
  explicit WorkCounter(const ModelSpec& spec) {
    work_.n_vocab = spec.n_vocab;
    for (const LayerSpec& l : spec.layers) add_layer(l);
    add(spec.ple_model_proj);
    const TensorRef& head = spec.tied_output ? spec.token_embd : spec.output;
    work_.weight_bytes += head.bytes();
  }
  const Work& work() const { return work_; }

 private:
  void add(const TensorRef& t) { add(t, t.n_experts); }
  void add(const TensorRef& t, uint64_t n_used) {
    if (!t) return;
    work_.weight_bytes += t.bytes() / t.n_experts * n_used;
    work_.matrix_weights += t.n_in * t.n_out * n_used;
  }
  void add_layer(const LayerSpec& l) {
    for (const TensorRef* t : l.mixer_products()) add(*t);
    work_.state_bytes += l.recurrence().state * sizeof(float);
    const bool attends = l.mixer == MixerKind::kAttention;
    work_.window.push_back(attends ? l.attention.window : 0);
    work_.width.push_back(attends ? uint64_t{l.attention.n_heads} * l.attention.head_dim : 0);
    work_.one_row.push_back(attends && l.attention.one_row());
    const auto& f = l.ffn;
    const uint64_t n_used = f.kind == FfnKind::kMoe ? f.n_used : 1;
    add(f.gate, n_used), add(f.up, n_used), add(f.down, n_used);
    add(f.router), add(f.shared_gate), add(f.shared_up), add(f.shared_down);
    add(l.ple_gate), add(l.ple_proj);
  }
  Work work_;
};

/// False with a text where the file cannot be read.
inline bool read_work(const std::string& path, Work* out, std::string* why) {
  auto file = GgufFile::open(path);
  if (!file.is_ok()) return *why = file.status().text(), false;
  auto spec = load_model_spec(file.take());
  if (!spec.is_ok()) return *why = spec.status().text(), false;
  *out = WorkCounter(*spec.value()).work();
  return true;
}

/// Bytes of KV rows that a session's next token reads behind n tokens.
inline uint64_t kv_read_bytes(const sharpi_session* session, const Work& work, uint32_t n) {
  const auto info = [&](uint32_t layer) {
    sharpi_layer_info l{};
    l.struct_size = sizeof l;
    sharpi_session_layer(session, layer, &l, nullptr);
    return l;
  };
  uint64_t total = 0;
  for (uint32_t i = 0; i < work.n_layers(); ++i) {
    const sharpi_layer_info layer = info(i);
    if (layer.n_kv_heads == 0) continue;
    const sharpi_layer_info owner = info(static_cast<uint32_t>(layer.kv_source));
    const uint64_t elements = uint64_t{owner.n_kv_heads} * owner.head_dim;
    const uint64_t rows = work.window[i] == 0 ? n : std::min(n, work.window[i]);
    total += rows * kv_bytes(owner.k_dtype, elements);
    if (!work.one_row[i]) total += rows * kv_bytes(owner.v_dtype, elements);
  }
  return total;
}

}  // namespace sharpi::bench
