// SPDX-License-Identifier: MIT
// One launch of a pass on the device of tests: what it needs, and the arithmetic that several kinds
// of launches have in common. host_launch.cc has embeddings, products, attention and ends,
// host_expert_launch.cc the mixtures of experts. Thread rule: one launch, one thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/cpu_relax.h"
#include "device/host_delta.h"
#include "device/host_device.h"
#include "device/host_mamba.h"
#include "device/host_matrix.h"
#include "device/latent.h"
#include "device/loaded_model.h"
#include "device/pass_kernels.h"
#include "device/session.h"
#include "kv/rotation.h"

namespace sharpi::testing {

using namespace device;

inline float dot(const float* a, const float* b, uint64_t n) {
  float sums[4] = {};
  uint64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (uint64_t j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}
inline float silu(float x) {
  return x / (1.0f + std::exp(-x));
}
inline float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}
inline float gelu(float x) {
  return 0.5f * x * (1.0f + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}
/// What a gate and an up become.
inline float act(Epilogue e, float gate, float up) {
  if (e != Epilogue::kSwiGluClamped) return (e == Epilogue::kSwiGlu ? silu(gate) : gelu(gate)) * up;
  const float g = std::min(gate, 7.0f), u = std::clamp(up, -7.0f, 7.0f);
  return g / (1.0f + std::exp(-1.702f * g)) * (u + 1.0f);
}
/// y = rms_norm(x) * weight; null: 1.
inline void norm(const float* x, const float* weight, float eps, uint64_t n, float* y) {
  double sum = 0;
  for (uint64_t i = 0; i < n; ++i) sum += double{x[i]} * double{x[i]};
  const auto scale =
      static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(n) + double{eps}));
  for (uint64_t i = 0; i < n; ++i) y[i] = x[i] * scale * (weight == nullptr ? 1.0f : weight[i]);
}
inline void rotate(float* x, const float* cos, const float* sin, uint32_t n_half, bool neighbours) {
  for (uint32_t j = 0; j < n_half; ++j) {
    float& a = x[neighbours ? 2 * j : j];
    float& b = x[neighbours ? 2 * j + 1 : j + n_half];
    const float t = a * cos[j] - b * sin[j];
    b = a * sin[j] + b * cos[j];
    a = t;
  }
}

/// One launch: a copy of what of the pass it needs, because the pass ends before it is made.
class HostLaunch {
 public:
  HostLaunch(const Pass& p, const LaunchList& list, const Launch& l)
      : m_(p.model),
        s_(p.model.spec()),
        ws_(p.ws),
        format_(p.format),
        batch_(p.batch),
        n_head_(p.n_head_rows),
        l_(l),
        links_(list.links.begin() + l.first_link, list.links.begin() + l.first_link + l.n_links),
        n_adapters_(p.n_adapters),
        to_ring_(p.rows_to_ring()),
        recorded_(p.recorded) {}

  Status run() const;

 private:
  uint32_t n() const { return batch_.n_rows; }
  float* buf(Buf b) const { return ws_.get(b); }
  const float* floats(const TensorRef* w) const { return w == nullptr ? nullptr : m_.floats(*w); }
  HostMatrix matrix(const TensorRef& w) const { return {w, m_.weight(w)}; }
  const LayerSpec& layer() const { return s_.layers[l_.layer]; }

  void embed(Buf to) const;
  void pairs() const;
  void product(const RowProduct& p, const RowSum& sum) const;
  void add_adapter(uint32_t k) const;
  void activate() const;
  void residual(const RowSum& sum) const;
  void heads(const HeadProduct& p) const;
  void ropes() const;
  KvLayer kv() const;
  void rows() const;
  void store(const KvLayer& kv, const BatchRow& row, const float* k, const float* v) const;
  void attend() const;
  void attend_row(const KvLayer& kv, uint32_t r, uint32_t head) const;
  void keep_ring() const;
  void delta() const;
  void mamba() const;
  void route() const;
  void experts(bool slots) const;
  void send_rows() const;
  void answers() const;
  void per_layer_table() const;
  void per_layer_combine() const;
  void logits() const;

  const LoadedModel& m_;
  const ModelSpec& s_;
  DeviceWorkspace& ws_;
  const KvFormat& format_;
  Batch batch_;
  uint32_t n_head_;
  Launch l_;
  std::vector<RowLink> links_;
  uint32_t n_adapters_;
  bool to_ring_, recorded_;
};

}  // namespace sharpi::testing
