// SPDX-License-Identifier: MIT
// A low-rank adapter (LoRA, arXiv 2106.09685) in a GGUF file: for some weights W of a model, given
// as NAME, two matrices NAME.lora_a and NAME.lora_b with y = W x + s alpha / rank B (A x). The file
// says general.type "adapter", adapter.type "lora", general.architecture and adapter.lora.alpha.
// Everything is checked against the model before anything is read of it.
// Thread rule: immutable after read_adapter().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "gguf/gguf_file.h"
#include "model/model_spec.h"

namespace sharpi {

/// What an adapter adds to one weight.
struct AdapterPair {
  uint32_t tensor = 0;            // the weight: its index in the model's file
  uint32_t layer = 0;             // whose it is,
  bool of_ffn = false;            // and of which of its blocks: the FFN's or the mixer's
  const GgufTensor* a = nullptr;  // {n_in, rank}
  const GgufTensor* b = nullptr;  // {rank, n_out}, or more rows
  uint64_t first_row = 0;         // of b, that is the weight's
  uint64_t n_in = 0, n_out = 0;
  uint32_t rank = 0;
  float scale = 1.0f;  // alpha / rank; 1 where alpha is 0
};

struct AdapterFile {
  std::shared_ptr<const GgufFile> file;
  std::string name;  // general.name, or that of the file
  float alpha = 0.0f;
  uint32_t max_rank = 0;
  std::vector<AdapterPair> pairs;  // in the order of the model's tensors
  uint64_t parameter_count() const;
};

/// The weights of a layer's mixer, and of its FFN block, that adapters may change: whatever reads
/// them adds the adapters' products.
std::vector<const TensorRef*> adaptable_in_mixer(const LayerSpec& layer);
std::vector<const TensorRef*> adaptable_in_ffn(const LayerSpec& layer);

/// Where a tensor is among those of the model's file.
inline uint32_t tensor_index(const ModelSpec& spec, const TensorRef& w) {
  return static_cast<uint32_t>(w.tensor - spec.file->tensors().data());
}

/// Of an adapter for this model. kFormat: no adapter, a key or one half of a pair is missing, ranks
/// that differ or are 0, an alpha that is no number. kMismatch: of another architecture or base, by
/// names and by shapes, both of which are in the text. kUnsupported: another kind of adapter, a key
/// or a tensor that nothing here reads, a weight that adapters do not change here.
Result<AdapterFile> read_adapter(std::shared_ptr<const GgufFile> file, const ModelSpec& base);
Result<AdapterFile> open_adapter(const std::string& path, const ModelSpec& base);

}  // namespace sharpi
