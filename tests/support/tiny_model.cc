// SPDX-License-Identifier: MIT
#include "support/tiny_model.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/checked.h"
#include "support/tiny_model_tensors.h"

namespace sharpi::test {
namespace {

constexpr uint64_t kAlignment = 32;

uint64_t element_count(const ModelTensor& t) {
  uint64_t n = 1;
  for (const uint64_t d : t.ne) n *= d;
  return n;
}

bool is_exact(const ModelTensor& t) {
  return t.type == GgmlType::kF32 && !t.values.empty() && t.values.size() == element_count(t);
}

uint64_t data_bytes(const ModelTensor& t) {
  return ggml_row_bytes(t.type, element_count(t));
}

Bytes float_bytes(const std::vector<float>& values) {
  Bytes out;
  for (const float v : values) append(out, v);
  return out;
}

Bytes contents(const ModelTensor& t, uint64_t seed) {
  if (is_exact(t)) return float_bytes(t.values);
  if (!ggml_traits(t.type).computable) return Bytes(data_bytes(t));
  Bytes data = random_rows(t.type, element_count(t), seed, t.deviation);
  if (t.type == GgmlType::kF32 && t.centre != 0.0) {
    for (uint64_t at = 0; at < data.size(); at += sizeof(float)) {
      float v = 0;
      std::memcpy(&v, data.data() + at, sizeof v);
      patch(data, at, v + static_cast<float>(t.centre));
    }
  }
  return data;
}

/// UTF-8 of the character that byte-level vocabularies write for a byte.
std::string byte_spelling(uint32_t byte) {
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

}  // namespace

ModelFile::ModelFile(const ModelRecipe& recipe)
    : arch_(recipe.arch), seed_(recipe.seed), tensors_(recipe_tensors(recipe)) {
  add_keys(recipe);
  if (recipe.tokenizer) add_tokenizer(recipe);
}

std::string ModelFile::full_key(std::string_view key) const {
  if (key.starts_with("general.") || key.starts_with("tokenizer.")) return std::string(key);
  return arch_ + "." + std::string(key);
}

ModelFile& ModelFile::put(std::string_view key, Put put) {
  const std::string name = full_key(key);
  const auto at =
      std::find_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.name == name; });
  if (at != keys_.end()) {
    at->put = std::move(put);
  } else {
    keys_.push_back({name, std::move(put)});
  }
  return *this;
}

ModelFile& ModelFile::erase_key(std::string_view key) {
  std::erase_if(keys_, [name = full_key(key)](const Key& k) { return k.name == name; });
  return *this;
}

ModelRecipe tiny_nemotron_dense() {
  ModelRecipe r = tiny_nemotron();
  r.arch = "nemotron_h";
  return r;
}

void ModelFile::add_keys(const ModelRecipe& r) {
  set("general.architecture", r.arch).set("general.name", std::string("test model"));
  set("block_count", r.n_blocks()).set("context_length", r.n_ctx);
  set("embedding_length", r.n_embd).set("attention.head_count", r.n_heads);
  set("attention.head_count_kv", r.n_kv_heads);
  set("attention.layer_norm_rms_epsilon", r.rms_eps).set("rope.freq_base", r.rope_base);
  set("attention.key_length", r.head_dim).set("attention.value_length", r.head_dim);
  if (r.n_rot != 0) set("rope.dimension_count", r.n_rot);
  const bool moe = r.arch == "qwen3moe" || r.arch == "olmoe" || r.arch == "qwen35moe" ||
                   r.arch == "qwen3next" || r.arch == "gpt-oss" || r.arch == "deepseek2" ||
                   (r.is_mamba() && r.arch != "nemotron_h") || r.beside_dense;
  if (moe) set("expert_count", r.n_experts).set("expert_used_count", r.n_used);
  if (r.arch == "olmoe" || r.arch == "granitehybrid") {
    set("feed_forward_length", r.d_expert);
  } else if (moe) {
    set("expert_feed_forward_length", r.d_expert);
  }
  if ((!moe && !r.is_mamba()) || r.beside_dense) {
    set("feed_forward_length", r.d_ff);
  }
  if (r.arch == "phi3") {
    set("rope.scaling.original_context_length", 512u).set("rope.scaling.attn_factor", 1.25f);
    set("attention.sliding_window", 0u);
  }
  if (r.arch == "gemma3" || r.arch == "gpt-oss") set("attention.sliding_window", r.window);
  if (r.arch == "gpt-oss") {
    set("rope.scaling.type", std::string("yarn")).set("rope.scaling.factor", 32.0f);
    set("rope.scaling.original_context_length", 128u);
  }
  if (r.arch == "gemma4") {
    std::vector<bool> windowed;
    std::vector<int32_t> kv_heads;
    for (uint32_t i = 0; i < r.n_layers; ++i) {
      windowed.push_back(!r.is_global(i));
      kv_heads.push_back(static_cast<int32_t>(r.is_global(i) ? r.n_kv_heads_global : r.n_kv_heads));
    }
    set_array("attention.sliding_window_pattern", windowed);
    set_array("attention.head_count_kv", kv_heads);
    set("attention.sliding_window", r.window).set("attention.shared_kv_layers", r.n_shared_kv);
    set("attention.key_length_swa", r.head_dim_swa);
    set("attention.value_length_swa", r.head_dim_swa);
    set("rope.dimension_count", r.n_rot != 0 ? r.n_rot : r.head_dim);
    set("rope.dimension_count_swa", r.head_dim_swa).set("rope.freq_base_swa", 10000.0f);
    set("embedding_length_per_layer_input", r.d_ple).set("final_logit_softcapping", 30.0f);
  }
  if (r.is_mamba()) add_mamba_keys(r);
  if (r.arch == "deepseek2") add_latent_keys(r);
  if (r.is_delta()) {
    // Sections that share the rotated pairs among time, height and width as evenly as they go.
    const uint32_t pairs = (r.n_rot != 0 ? r.n_rot : r.head_dim) / 2;
    const auto share = [&](uint32_t k) { return static_cast<int32_t>((pairs + 2 - k) / 3); };
    if (r.arch != "qwen3next")
      set_array("rope.dimension_sections", std::vector<int32_t>{share(0), share(1), share(2), 0});
    set("full_attention_interval", r.attention_every).set("ssm.conv_kernel", r.conv_kernel);
    set("ssm.state_size", r.delta_dim).set("ssm.group_count", r.delta_k_heads);
    set("ssm.time_step_rank", r.delta_v_heads);
    set("ssm.inner_size", r.delta_v_heads * r.delta_dim);
    if (r.n_mtp != 0) set("nextn_predict_layers", r.n_mtp);
    if (moe) set("expert_shared_feed_forward_length", r.d_shared);
  }
}

void ModelFile::add_mamba_keys(const ModelRecipe& r) {
  std::vector<int32_t> kv_heads, widths;
  for (uint32_t i = 0; i < r.n_layers; ++i) {
    const bool attends = !r.is_recurrent(i) && !(r.is_nemotron() && r.has_ffn(i));
    kv_heads.push_back(attends ? static_cast<int32_t>(r.n_kv_heads) : 0);
    widths.push_back(r.has_ffn(i) ? static_cast<int32_t>(r.d_expert) : 0);
  }
  set_array("attention.head_count_kv", kv_heads);
  set("ssm.conv_kernel", r.conv_kernel).set("ssm.state_size", r.mamba_state);
  set("ssm.group_count", r.delta_k_heads).set("ssm.time_step_rank", r.delta_v_heads);
  set("ssm.inner_size", r.delta_v_heads * r.delta_dim);
  set("expert_shared_feed_forward_length", r.d_shared);
  if (r.is_nemotron()) {
    set_array("feed_forward_length", widths).set("expert_weights_norm", true);
    set("expert_weights_scale", 2.5f);
  } else {
    set("rope.scaling.finetuned", false).set("attention.scale", 0.1f).set("logit_scale", 2.0f);
    set("residual_scale", 0.7f).set("embedding_scale", 1.5f);
  }
}

void ModelFile::add_latent_keys(const ModelRecipe& r) {
  set("attention.kv_lora_rank", r.latent_rank).set("attention.value_length", r.latent_rank);
  if (r.q_rank != 0) set("attention.q_lora_rank", r.q_rank);
  set("attention.key_length_mla", r.key_part + r.n_rot);
  set("attention.value_length_mla", r.value_dim);
  set("leading_dense_block_count", r.n_dense).set("feed_forward_length", r.d_ff);
  set("expert_shared_count", r.d_shared / r.d_expert)
      .set("expert_gating_func", 2u)
      .set("expert_weights_norm", true);
  set("expert_weights_scale", 1.8f);
}

void ModelFile::add_tokenizer(const ModelRecipe& r) {
  const bool spaces = r.arch == "gemma4";
  std::vector<std::string> tokens;
  std::vector<int32_t> types(r.n_vocab, 1);
  for (uint32_t i = 0; i < r.n_vocab; ++i) {
    char hex[8];
    std::snprintf(hex, sizeof hex, "<0x%02X>", i & 0xFFu);
    if (i >= 256) {
      tokens.push_back(std::string("<").append(std::to_string(i)).append(">"));
    } else {
      tokens.push_back(spaces ? hex : byte_spelling(i));
    }
    if (spaces && i < 256) types[i] = 6;
  }
  const bool olmo = r.arch == "olmoe", qwen35 = r.arch.starts_with("qwen35");
  set("tokenizer.ggml.model", std::string(spaces ? "gemma4" : "gpt2"));
  if (!spaces) {
    set("tokenizer.ggml.pre", std::string(olmo ? "olmo" : qwen35 ? "qwen35" : "qwen2"));
  }
  set_array("tokenizer.ggml.tokens", tokens).set_array("tokenizer.ggml.token_type", types);
  set_array("tokenizer.ggml.merges", std::vector<std::string>{});
  set("tokenizer.ggml.bos_token_id", r.n_vocab - 2);
  set("tokenizer.ggml.eos_token_id", r.n_vocab - 1);
}

ModelTensor& ModelFile::tensor(std::string_view name) {
  for (ModelTensor& t : tensors_) {
    if (t.name == name) return t;
  }
  std::fprintf(stderr, "the test model has no tensor \"%s\"\n", std::string(name).c_str());
  std::abort();
}

ModelFile& ModelFile::add_tensor(std::string_view name, GgmlType type, std::vector<uint64_t> ne) {
  ModelTensor t;
  t.name = name;
  t.type = type;
  t.ne = std::move(ne);
  tensors_.push_back(std::move(t));
  return *this;
}

ModelFile& ModelFile::reshape(std::string_view name, std::vector<uint64_t> ne) {
  tensor(name).ne = std::move(ne);
  return *this;
}

ModelFile& ModelFile::retype(std::string_view name, GgmlType type) {
  tensor(name).type = type;
  return *this;
}

ModelFile& ModelFile::erase_tensor(std::string_view name) {
  const std::string found = tensor(name).name;
  std::erase_if(tensors_, [&](const ModelTensor& t) { return t.name == found; });
  return *this;
}

GgufWriter ModelFile::writer_with_keys() const {
  GgufWriter w;
  for (const Key& k : keys_) k.put(w);
  return w;
}

bool ModelFile::write(const std::string& path) const {
  GgufWriter w = writer_with_keys();
  uint64_t seed = seed_ * 1000003;
  for (const ModelTensor& t : tensors_) w.tensor(t.name, t.type, t.ne, contents(t, ++seed));
  return w.write(path);
}

bool ModelFile::write_sparse(const std::string& path) const {
  GgufWriter w = writer_with_keys();
  std::vector<uint64_t> offsets;
  uint64_t end = 0;
  for (const ModelTensor& t : tensors_) {
    w.tensor(t.name, t.type, t.ne, {});
    w.tensors().back().forced_offset = end;
    offsets.push_back(end);
    end += round_up(data_bytes(t), kAlignment);
  }
  const Bytes header = w.bytes();
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  const auto put = [&](const Bytes& bytes, uint64_t at) {
    out.seekp(static_cast<std::streamoff>(at));
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
  };
  put(header, 0);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (is_exact(tensors_[i])) put(float_bytes(tensors_[i].values), header.size() + offsets[i]);
  }
  out.close();
  std::error_code refused;
  std::filesystem::resize_file(path, header.size() + end, refused);
  return out.good() && !refused;
}

TempFile::TempFile()
    : path_((std::filesystem::temp_directory_path() / "sharpi-model-XXXXXX").string()) {
  const int fd = ::mkstemp(path_.data());
  if (fd >= 0) ::close(fd);
}

TempFile::~TempFile() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

Result<std::shared_ptr<const GgufFile>> open_model(const ModelFile& file, bool sparse) {
  const TempFile temp;
  if (!(sparse ? file.write_sparse(temp.path()) : file.write(temp.path()))) {
    return Status::error(Code::kIo, "%s cannot be written", temp.path().c_str());
  }
  SHARPI_TRY_ASSIGN(std::shared_ptr<const GgufFile> opened, GgufFile::open(temp.path()));
  return opened->map_tensors();
}

Result<std::shared_ptr<const ModelSpec>> load_model(const ModelFile& file, bool sparse) {
  SHARPI_TRY_ASSIGN(std::shared_ptr<const GgufFile> opened, open_model(file, sparse));
  return load_model_spec(std::move(opened));
}

}  // namespace sharpi::test
