// SPDX-License-Identifier: MIT
#include "cpu/row_peaks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace sharpi::cpu {
namespace {

constexpr uint64_t kGroup = 32, kGroupsOfUnit = kInt8RowUnit / kGroup;

/// The groups with the largest scales, largest first, the first of equal ones.
struct Groups {
  uint32_t n = 0;
  uint64_t index[kMaxPeaks] = {};
  float scale[kMaxPeaks] = {};

  void offer(uint64_t group, float d, uint32_t most) {
    // Neither zero nor NaN, which compares with nothing.
    if (!(d > 0) || (n == most && !(d > scale[n - 1]))) return;
    uint32_t at = n < most ? n++ : n - 1;
    for (; at > 0 && d > scale[at - 1]; --at) {
      index[at] = index[at - 1];
      scale[at] = scale[at - 1];
    }
    index[at] = group;
    scale[at] = d;
  }
};

/// The largest magnitude of a group of finite elements.
float amax_of(const float* x) {
  float m = 0;
  for (uint64_t i = 0; i < kGroup; ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

/// Where a group's first element of that magnitude is.
uint64_t first_of(const float* x, float amax) {
  uint64_t at = 0;
  while (std::fabs(x[at]) != amax) ++at;
  return at;
}

/// The nearest integer, ties to even; |x| < 2^22. A float of this size has no bits for less.
int8_t rounded(float x) {
  constexpr float kOnes = 12582912.0f;  // 1.5 * 2^23
  const float sum = x + kOnes;
  return static_cast<int8_t>(std::bit_cast<int32_t>(sum) - std::bit_cast<int32_t>(kOnes));
}

int32_t sum_of(const int8_t* q, uint64_t n) {
  int32_t sum = 0;
  for (uint64_t i = 0; i < n; ++i) sum += q[i];
  return sum;
}

/// A group of finite elements with the scale and rounding of QuantizeRowFn, to q[32] and the floats
/// of its unit. `x`: the element at `at`, which the sums count besides.
void quantize_group(const float* v, uint64_t group, uint64_t at, float x, int8_t* q, float* meta) {
  const float amax = amax_of(v);
  const bool used = amax >= kInt8MinAmax;
  const float inverse = used ? 127.0f / amax : 0.0f;
  const float d = used ? amax / 127.0f : 0.0f;
  for (uint64_t i = 0; i < kGroup; ++i) q[i] = rounded(v[i] * inverse);
  const float low = d * static_cast<float>(sum_of(q, 16));
  const float high = d * static_cast<float>(sum_of(q + 16, 16));
  meta[group] = d;
  meta[8 + group] = low + high + x;
  meta[16 + 2 * group] = at < 16 ? low + x : low;
  meta[17 + 2 * group] = at < 16 ? high : high + x;
}

}  // namespace

uint32_t peaks_of_row(uint64_t n) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(n / 2048, 1, kMaxPeaks));
}

void quantize_with_peaks(QuantizeRowFn quantize, const float* x, uint64_t n, std::byte* row) {
  quantize(x, n, row);
  const uint64_t n_units = (n + kInt8RowUnit - 1) / kInt8RowUnit;
  auto* const q = reinterpret_cast<int8_t*>(row);
  auto* const meta = reinterpret_cast<float*>(row + n_units * kInt8RowUnit);
  const uint32_t most = peaks_of_row(n);
  Groups groups;
  for (uint64_t unit = 0; unit < n_units; ++unit) {
    for (uint64_t g = 0; g < kGroupsOfUnit; ++g) {
      groups.offer(unit * kGroupsOfUnit + g, meta[unit * kInt8UnitFloats + g], most);
    }
  }
  Int8Peaks peaks;
  for (; peaks.n < groups.n; ++peaks.n) {
    const uint64_t group = groups.index[peaks.n], first = group * kGroup;
    float v[kGroup] = {};
    std::copy(x + first, x + std::min(first + kGroup, n), v);
    const uint64_t at = first_of(v, amax_of(v));
    peaks.at[peaks.n] = static_cast<uint32_t>(first + at);
    peaks.x[peaks.n] = v[at];
    v[at] = 0;
    quantize_group(v, group % kGroupsOfUnit, at, peaks.x[peaks.n], q + first,
                   meta + group / kGroupsOfUnit * kInt8UnitFloats);
  }
  std::memcpy(meta + n_units * kInt8UnitFloats, &peaks, sizeof peaks);
}

}  // namespace sharpi::cpu
