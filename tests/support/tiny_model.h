// SPDX-License-Identifier: MIT
// Makes small, valid model files of every architecture with seeded random weights and any dims, and
// lets a test bend their keys and tensors before they are written.
//   ModelFile file(tiny_qwen3());  file.set("attention.head_count_kv", 3u);  open_model(file);
// Thread rule: one owner.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "gguf/gguf_file.h"
#include "model/model_spec.h"
#include "support/gguf_writer.h"

namespace sharpi::test {

/// What to make. Fields of other families than `arch` are not read.
struct ModelRecipe {
  std::string arch = "qwen3";
  uint32_t n_layers = 2;  // without MTP blocks
  uint32_t n_embd = 64, d_ff = 96, n_vocab = 320, n_ctx = 4096;
  uint32_t n_heads = 4, n_kv_heads = 2, head_dim = 32;
  uint32_t n_rot = 0;  // 0 = head_dim
  float rms_eps = 1e-6f, rope_base = 10000.0f;
  bool tied = false;
  /// Matrices, and the embedding table and head. Where a row is no multiple of the type's block,
  /// q8_0 takes its place, or f16.
  GgmlType matrix_type = GgmlType::kF32, table_type = GgmlType::kF32;
  bool tokenizer = true;  // a vocabulary of bytes and numbered tokens, no chat template
  uint64_t seed = 1;

  // qwen3moe, olmoe (without shared expert), qwen35moe.
  uint32_t n_experts = 8, n_used = 2, d_expert = 32, d_shared = 32;
  bool fused_gate_up = false;

  // gemma4: head_dim and n_kv_heads_global are those of the global layers.
  uint32_t window = 16, head_dim_swa = 32, n_kv_heads_global = 2;
  uint32_t global_every = 4;  // the last of every so many layers, and the very last, are global
  uint32_t n_shared_kv = 0;   // layers of the tail that shares KV
  bool shared_kv_weights = false;  // the file carries the unused K and V weights of that tail
  bool k_eq_v = false;             // no attn_v on global layers
  uint32_t d_ple = 0;
  bool beside_dense = false;  // a mixture beside every dense FFN

  // qwen35, qwen35moe, qwen3next.
  uint32_t attention_every = 4;
  uint32_t delta_k_heads = 2, delta_v_heads = 4, delta_dim = 16, conv_kernel = 4;
  uint32_t n_mtp = 0;

  uint32_t n_blocks() const { return n_layers + n_mtp; }
  bool is_global(uint32_t layer) const {
    return (layer + 1) % global_every == 0 || layer + 1 == n_layers;
  }
  // deepseek2: head_dim is latent_rank + n_rot; parts of a head's keys that are not turned, and its
  // values.
  uint32_t latent_rank = 48, q_rank = 64, key_part = 32, value_dim = 24, n_dense = 1;

  // granitehybrid, nemotron_h_moe: the fields above but n_mtp; heads of Mamba-2 are value heads,
  // its groups key heads.
  uint32_t mamba_state = 32;

  bool is_delta() const { return arch.starts_with("qwen35") || arch == "qwen3next"; }
  bool is_nemotron() const { return arch.starts_with("nemotron_h"); }
  bool is_mamba() const { return arch == "granitehybrid" || is_nemotron(); }
  bool is_hybrid() const { return is_delta() || is_mamba(); }
  /// Layers of nemotron_h have one thing only, by turns Mamba-2, an FFN, attention and an FFN.
  bool has_ffn(uint32_t block) const { return !is_nemotron() || block % 2 == 1; }
  bool is_recurrent(uint32_t block) const {
    if (is_nemotron()) return block % 4 == 0;
    return block < n_layers && (block + 1) % attention_every != 0;
  }
};

/// One small model of each kind (a few hundred kilobytes in f32).
ModelRecipe tiny_qwen3();
ModelRecipe tiny_llama();
ModelRecipe tiny_qwen2();
ModelRecipe tiny_phi3();     // fused matrices, divisors for short and long contexts
ModelRecipe tiny_smollm3();  // the last of four layers without rope
ModelRecipe tiny_gemma3();
ModelRecipe tiny_qwen3moe();
ModelRecipe tiny_olmoe();
ModelRecipe tiny_gpt_oss();
ModelRecipe tiny_gemma4();     // E4B kind: per-layer embeddings, a tail that shares KV
ModelRecipe tiny_gemma4kv();   // 12B kind: K = V and fewer KV heads on global layers
ModelRecipe tiny_gemma4moe();  // 26B-A4B kind: that with a mixture beside every dense FFN
ModelRecipe tiny_qwen35();     // with an MTP block
ModelRecipe tiny_qwen35moe();
ModelRecipe tiny_qwen3next();  // projections in one matrix, key head by key head
ModelRecipe tiny_granite();    // Mamba-2 and attention, a mixture with a shared expert in each
ModelRecipe tiny_nemotron();   // layers of one thing only
ModelRecipe tiny_nemotron_dense();
ModelRecipe tiny_deepseek2();  // latent attention, a dense layer and then experts
std::vector<ModelRecipe> tiny_recipes();
/// These, and of the three above those that the tier of these suites computes.
std::vector<ModelRecipe> with_newer_kinds(std::vector<ModelRecipe> recipes);

struct ModelTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<uint64_t> ne;
  double deviation = 1.0;     // of random values
  double centre = 0.0;        // added to them, f32 only
  std::vector<float> values;  // exact contents; used if f32 and as many as `ne` says
};

class ModelFile {
 public:
  explicit ModelFile(const ModelRecipe& recipe);

  // Keys. Those that do not begin with "general." or "tokenizer." get the architecture's prefix.
  template <class T>
  ModelFile& set(std::string_view key, const T& v) {
    return put(key, [k = full_key(key), v](GgufWriter& w) { w.value(k, v); });
  }
  template <class T>
  ModelFile& set_array(std::string_view key, const std::vector<T>& v) {
    return put(key, [k = full_key(key), v](GgufWriter& w) { w.array(k, v); });
  }
  ModelFile& erase_key(std::string_view key);

  // Tensors. Names that do not exist end the test program.
  ModelTensor& tensor(std::string_view name);
  std::vector<ModelTensor>& tensors() { return tensors_; }
  const std::vector<ModelTensor>& tensors() const { return tensors_; }
  ModelFile& add_tensor(std::string_view name, GgmlType type, std::vector<uint64_t> ne);
  ModelFile& reshape(std::string_view name, std::vector<uint64_t> ne);
  ModelFile& retype(std::string_view name, GgmlType type);
  ModelFile& erase_tensor(std::string_view name);

  /// False if the system refuses.
  [[nodiscard]] bool write(const std::string& path) const;
  /// The header and the exact tensors only; the rest of the data is a hole in the file, so models
  /// of real size take no disk.
  [[nodiscard]] bool write_sparse(const std::string& path) const;

 private:
  using Put = std::function<void(GgufWriter&)>;
  struct Key {
    std::string name;
    Put put;
  };
  std::string full_key(std::string_view key) const;
  ModelFile& put(std::string_view key, Put put);
  GgufWriter writer_with_keys() const;
  void add_keys(const ModelRecipe& r);
  void add_mamba_keys(const ModelRecipe& r);
  void add_latent_keys(const ModelRecipe& r);
  void add_tokenizer(const ModelRecipe& r);

  std::string arch_;
  uint64_t seed_;
  std::vector<Key> keys_;
  std::vector<ModelTensor> tensors_;
};

/// A fresh path in the system's folder for temporary files; the file goes with the object.
class TempFile {
 public:
  TempFile();
  ~TempFile();
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Writes to a temporary file, opens it and removes its name again. Tensors are mapped.
Result<std::shared_ptr<const GgufFile>> open_model(const ModelFile& file, bool sparse = false);
/// The same, and its spec.
Result<std::shared_ptr<const ModelSpec>> load_model(const ModelFile& file, bool sparse = false);

}  // namespace sharpi::test
