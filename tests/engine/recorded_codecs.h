// SPDX-License-Identifier: MIT
// How far narrow KV rows may move the logits of the trained models: what was measured, and how it
// is compared. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine/engine_case.h"

namespace sharpi::testing {

/// How far logits are from those of f32 KV at a position (the largest difference of any logit), per
/// codec (bf16, q8_0, bf16 keys with q8_0 values, q8_0 keys with q4 values, and q4), measured with
/// f32 activations: the median and the worst of all golden prompts read in batches, and the median
/// of one prompt read token by token. A tenth over the medians is allowed, which a codec that drops
/// a bit leaves far behind, and twice the worst, since where two experts are nearly as good a
/// router may take either.
constexpr size_t kRecordedPairs = 5;
struct RecordedCodecs {
  const char* model;
  bool has_experts;
  double median[kRecordedPairs], worst[kRecordedPairs], single[kRecordedPairs];
};
inline constexpr RecordedCodecs kRecorded[] = {
    {"tiny-qwen3",
     false,
     {0.018099, 0.049208, 0.039428, 0.503920, 0.603717},
     {0.073781, 0.111318, 0.112556, 1.052684, 1.379669},
     {0.017788, 0.049185, 0.039241, 0.516619, 0.594500}},
    {"tiny-qwen3moe",
     true,
     {0.011107, 0.029241, 0.023236, 0.309674, 0.367359},
     {0.631794, 0.956191, 0.697699, 2.907167, 3.290433},
     {0.010172, 0.026880, 0.021500, 0.300709, 0.363319}},
    {"tiny-olmoe",
     true,
     {0.011952, 0.032182, 0.026600, 0.356575, 0.409569},
     {0.659389, 1.178629, 1.933163, 3.688356, 3.449575},
     {0.010309, 0.031209, 0.025311, 0.343771, 0.391526}},
    {"tiny-gemma4",
     false,
     {0.008473, 0.023221, 0.016474, 0.193930, 0.305349},
     {0.060030, 0.089083, 0.045308, 0.483871, 0.791713},
     {0.007549, 0.021255, 0.015043, 0.182843, 0.292915}},
    {"tiny-gemma4kv",
     false,
     {0.008761, 0.028346, 0.022380, 0.261363, 0.350244},
     {0.028670, 0.108345, 0.051916, 0.633259, 1.009713},
     {0.007350, 0.025273, 0.021309, 0.246270, 0.317526}},
    {"tiny-qwen35",
     false,
     {0.006816, 0.015193, 0.012023, 0.141718, 0.186704},
     {0.039232, 0.055922, 0.045442, 0.445272, 0.703064},
     {0.005249, 0.012456, 0.009812, 0.127472, 0.155842}},
    {"tiny-qwen35moe",
     true,
     {0.006657, 0.016587, 0.012222, 0.148582, 0.202645},
     {0.047799, 0.326451, 0.047607, 1.175860, 1.532921},
     {0.005661, 0.016112, 0.011625, 0.149916, 0.186840}},
};

inline const RecordedCodecs* recorded_codecs(const std::string& model) {
  for (const RecordedCodecs& r : kRecorded) {
    if (model == r.model) return &r;
  }
  ADD_FAILURE() << "nothing is recorded for " << model;
  return nullptr;
}

/// The worst distance of a position where other arithmetic than the recorded one computes. Twice
/// the recorded one; with experts that of any model with experts, because where two of them are
/// nearly as good a router may take either, at other positions than those that were recorded.
inline double worst_allowed(const RecordedCodecs& r, size_t codec) {
  double worst = r.worst[codec];
  for (const RecordedCodecs& other : kRecorded) {
    if (!r.has_experts || !other.has_experts) continue;
    worst = std::max(worst, *std::max_element(std::begin(other.worst), std::end(other.worst)));
  }
  return 2.0 * worst;
}

inline bool in_best_five(const Logits& l, size_t token) {
  size_t better = 0;
  for (const float x : l) better += x > l[token] ? 1 : 0;
  return better < 5;
}

struct Distance {
  double median = 0, worst = 0;
};

inline Distance measure(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all.empty() ? Distance{} : Distance{all[all.size() / 2], all.back()};
}

}  // namespace sharpi::testing
