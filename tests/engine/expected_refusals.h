// SPDX-License-Identifier: MIT
// The splits of a model that a plan must refuse, known from the model alone, so that tests over
// many splits pass over these and no others. Thread rule: pure functions.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "model/model_spec.h"

namespace sharpi::testing {

/// Whether a layer behind the first `n_gpu_layers` reads KV rows of one before them: rows are never
/// read across tiers.
inline bool parts_shared_rows(const ModelSpec& spec, int32_t n_gpu_layers) {
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (layer.mixer != MixerKind::kAttention || layer.attention.kv_source < 0) continue;
    if (layer.attention.kv_source < n_gpu_layers && n_gpu_layers <= static_cast<int32_t>(l))
      return true;
  }
  return false;
}

/// Whether attention layers with rows of their own lie on both sides of a split that a plan takes.
inline bool has_rows_on_both(const ModelSpec& spec, int32_t n_gpu_layers) {
  bool before = false, behind = false;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const bool on_gpu = static_cast<int32_t>(l) < n_gpu_layers;
    (on_gpu ? before : behind) |= spec.layers[l].owns_kv();
  }
  return before && behind && !parts_shared_rows(spec, n_gpu_layers);
}

/// A plan or model of a split ended with this status and sentence. True if it is refused as it must
/// be; anything else that is no success fails the test.
inline bool is_expected_refusal(const ModelSpec& spec, int32_t n_gpu_layers, bool unsupported,
                                bool ok, const std::string& text, const std::string& what) {
  const bool parted = parts_shared_rows(spec, n_gpu_layers);
  EXPECT_EQ(unsupported, parted) << what << ": " << text;
  EXPECT_EQ(ok, !parted) << what << ": " << text;
  if (!parted) return false;
  const std::string want = "n_gpu_layers " + std::to_string(n_gpu_layers) +
                           " would put layers that share KV rows on different devices";
  EXPECT_NE(text.find(want), std::string::npos) << what << ": " << text;
  return true;
}

}  // namespace sharpi::testing
