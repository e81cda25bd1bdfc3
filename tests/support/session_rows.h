// SPDX-License-Identifier: MIT
// What a saved session holds, as numbers: the live KV rows, their positions and the captured
// queries of every full-attention layer. Read from a blob by its documented format
// (engine/session_blob.h). Thread rule: plain values, pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_spec.h"

namespace sharpi::testing {

struct OwnerRows {
  uint32_t n_rows = 0;
  std::vector<float> k, v;                       // [n_rows][n_kv_heads * head_dim]
  std::vector<std::vector<uint32_t>> positions;  // [n_kv_heads][n_rows]
  uint32_t n_compacted = 0;                      // of the rows, the first ones
  std::vector<std::vector<float>> replay;        // [n_kv_heads][n_rows] replay scores, or empty
};

struct SessionRows {
  uint32_t n_tokens = 0, n_queries = 0, n_scored = 0;
  std::vector<OwnerRows> layers;            // empty for layers that store no full-attention rows
  std::vector<std::vector<char>> others;    // [n_layers], bytes of ring rows or recurrent state
  std::vector<std::vector<float>> queries;  // [n_layers], [n_queries][n_heads * head_dim]
};

/// The spec of a model file, or null.
std::shared_ptr<const ModelSpec> spec_of(const std::string& gguf_path);
/// Aborts the program if the blob is not one of this model.
SessionRows session_rows(const ModelSpec& spec, const std::vector<char>& blob);

}  // namespace sharpi::testing
