// SPDX-License-Identifier: MIT
#include "tier/rope_tables.h"

#include <algorithm>
#include <cmath>

namespace sharpi {

void fill_inv_freq(const RopeSpec& r, std::span<double> inv_freq) {
  const auto half = static_cast<uint32_t>(inv_freq.size());
  const double kPi = 3.14159265358979323846;
  const auto corr = [&](double beta) {
    return r.n_rot * std::log(r.yarn_orig_ctx / (2 * kPi * beta)) / (2 * std::log(r.freq_base));
  };
  double low = r.yarn ? corr(r.yarn_beta_fast) : 0, high = r.yarn ? corr(r.yarn_beta_slow) : 0;
  if (r.yarn_whole_pairs) low = std::floor(low), high = std::ceil(high);
  low = std::max(0.0, low);
  high = std::min(r.n_rot - 1.0, high);
  const std::vector<float>* divisors = r.divisors();
  for (uint32_t j = 0; j < half; ++j) {
    double f = std::pow(r.freq_base, -2.0 * j / r.n_rot);
    if (divisors != nullptr) f /= static_cast<double>((*divisors)[j]);
    if (r.yarn) {
      const double ramp = std::clamp((j - low) / std::max(0.001, high - low), 0.0, 1.0);
      const double mix = r.yarn_ext * (1.0 - ramp);
      f = f / r.yarn_factor * (1.0 - mix) + f * mix;
    } else {
      f *= r.freq_scale;
    }
    inv_freq[j] = f;
  }
}

bool same_rope(const RopeSpec& a, const RopeSpec& b) {
  return a.n_rot == b.n_rot && a.freq_base == b.freq_base && a.freq_scale == b.freq_scale &&
         a.freq_factors == b.freq_factors && a.long_factors == b.long_factors &&
         a.is_long == b.is_long && a.magnitude == b.magnitude && a.yarn == b.yarn &&
         a.yarn_factor == b.yarn_factor && a.yarn_orig_ctx == b.yarn_orig_ctx &&
         a.yarn_ext == b.yarn_ext && a.yarn_beta_fast == b.yarn_beta_fast &&
         a.yarn_beta_slow == b.yarn_beta_slow && a.yarn_whole_pairs == b.yarn_whole_pairs;
}

namespace {

RopeTable make_table(const RopeSpec& r) {
  RopeTable t;
  t.spec = r;
  t.inv_freq.resize(r.n_rot / 2);
  fill_inv_freq(r, t.inv_freq);
  t.mscale = static_cast<float>(r.magnitude);
  return t;
}

}  // namespace

std::vector<RopeTable> make_rope_tables(const ModelSpec& spec,
                                        std::vector<int32_t>* table_of_layer) {
  std::vector<RopeTable> tables;
  table_of_layer->assign(spec.layers.size(), -1);
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    const AttentionSpec* a = spec.layers[l].attends();
    if (a == nullptr) continue;
    const RopeSpec& r = a->rope;
    const auto it = std::find_if(tables.begin(), tables.end(),
                                 [&](const RopeTable& t) { return same_rope(t.spec, r); });
    (*table_of_layer)[l] = static_cast<int32_t>(it - tables.begin());
    if (it == tables.end()) tables.push_back(make_table(r));
  }
  return tables;
}

void rope_angles(const double* inv_freq, uint32_t n_half, uint64_t position, float mscale,
                 float* cos, float* sin) {
  // In double: pos * freq in f32 has lost the low bits of the angle by 100k positions.
  for (uint32_t j = 0; j < n_half; ++j) {
    const double angle = static_cast<double>(position) * inv_freq[j];
    cos[j] = static_cast<float>(std::cos(angle) * static_cast<double>(mscale));
    sin[j] = static_cast<float>(std::sin(angle) * static_cast<double>(mscale));
  }
}

}  // namespace sharpi
