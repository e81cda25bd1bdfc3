// SPDX-License-Identifier: MIT
// What the check programs of the CUDA kernels share: device buffers, random weights in the file's
// formats, matrices on host and device, comparison with double-precision references, timing.
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/matmul.h"

namespace sharpi::cuda::check {

inline int g_failed = 0, g_passed = 0;

inline void must(Status s, const char* what) {
  if (s.is_ok()) return;
  std::printf("FATAL %s: %s\n", what, s.text().c_str());
  std::exit(1);
}
inline void must(cudaError_t e, const char* what) {
  must(kernel_status(e, what), what);
}

template <class T>
struct Buffer {
  T* p = nullptr;
  size_t n = 0;
  explicit Buffer(size_t count) : n(count) {
    must(cudaMalloc(&p, std::max<size_t>(count, 1) * sizeof(T)), "malloc");
  }
  explicit Buffer(const std::vector<T>& v) : Buffer(v.size()) {
    must(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  ~Buffer() { cudaFree(p); }
  Buffer(const Buffer&) = delete;
  std::vector<T> host() const {
    std::vector<T> v(n);
    must(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return v;
  }
};

inline std::mt19937 g_rng(7);
inline float uniform(float lo, float hi) {
  return std::uniform_real_distribution<float>(lo, hi)(g_rng);
}
inline std::vector<float> random_floats(size_t n, float scale) {
  std::vector<float> v(n);
  std::normal_distribution<float> d(0.0f, scale);
  for (float& f : v) f = d(g_rng);
  return v;
}

/// Where a block keeps its f16 scales; -1 = none.
struct ScaleAt {
  int first, second;
  float size;
};
inline ScaleAt scale_at(GgmlType t) {
  switch (t) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
      return {0, 2, 0.01f};
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
      return {0, 2, 0.0002f};
    case GgmlType::kQ6_K:
      return {208, -1, 0.00003f};
    case GgmlType::kQ3_K:
      return {108, -1, 0.0003f};
    case GgmlType::kQ2_K:
      return {80, 82, 0.002f};
    case GgmlType::kIQ4_XS:
      return {0, -1, 0.00003f};
    case GgmlType::kIQ4_NL:
      return {0, -1, 0.0003f};
    case GgmlType::kQ8_0:
      return {0, -1, 0.0005f};
    default:
      return {0, -1, 0.005f};
  }
}

/// Random valid weights in the file's format.
inline std::vector<uint8_t> random_weights(GgmlType type, uint64_t n_in, uint64_t n_rows) {
  const GgmlTypeTraits& t = ggml_traits(type);
  std::vector<uint8_t> bytes(n_rows * ggml_row_bytes(type, n_in) + 4);
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    const uint32_t r = g_rng();
    std::memcpy(bytes.data() + i, &r, 4);
  }
  bytes.resize(bytes.size() - 4);
  const auto half = [](uint8_t* at, float f) {
    const uint16_t h = f16_from_f32(f);
    std::memcpy(at, &h, 2);
  };
  for (size_t at = 0; at < bytes.size(); at += t.block_bytes) {
    uint8_t* b = bytes.data() + at;
    if (type == GgmlType::kF32) {
      const float f = uniform(-0.05f, 0.05f);
      std::memcpy(b, &f, 4);
    } else if (type == GgmlType::kF16) {
      half(b, uniform(-0.05f, 0.05f));
    } else if (type == GgmlType::kBF16) {
      const uint16_t h = bf16_from_f32(uniform(-0.05f, 0.05f));
      std::memcpy(b, &h, 2);
    } else if (type == GgmlType::kMXFP4) {
      b[0] = static_cast<uint8_t>(118 + g_rng() % 6);
    } else {
      const ScaleAt s = scale_at(type);
      half(b + s.first, s.size * uniform(0.5f, 1.5f));
      if (s.second >= 0) half(b + s.second, s.size * uniform(0.5f, 1.5f));
    }
  }
  return bytes;
}

/// A matrix on host (file layout) and device.
struct Matrix {
  std::vector<uint8_t> host;
  std::vector<float> values;  // dequantised, all experts
  Buffer<uint8_t> device;
  DeviceMatrix m;
  Matrix(GgmlType type, uint32_t n_in, uint32_t n_out, uint32_t n_experts = 1,
         bool keep_values = true)
      : host(random_weights(type, n_in, uint64_t{n_out} * n_experts)), device(host.size()) {
    m = make_device_matrix(type, n_in, n_out, n_experts, device.p);
    Buffer<uint8_t> raw(host);
    if (m.layout == WeightLayout::kTiles) {
      must(launch_repack(
               {type, n_in, uint64_t{n_out} * n_experts, reinterpret_cast<std::byte*>(raw.p),
                reinterpret_cast<std::byte*>(device.p)},
               nullptr),
           "repack");
      must(cudaDeviceSynchronize(), "repack");
    } else {
      must(cudaMemcpy(device.p, host.data(), host.size(), cudaMemcpyHostToDevice), "upload");
    }
    if (!keep_values) return;
    values.resize(uint64_t{n_out} * n_experts * n_in);
    for (uint64_t r = 0; r < uint64_t{n_out} * n_experts; ++r) {
      dequantize_row(type, host.data() + r * ggml_row_bytes(type, n_in), values.data() + r * n_in,
                     n_in);
    }
  }
  double dot(uint64_t expert, uint64_t row, const double* x) const {
    const float* w = values.data() + (expert * m.n_out + row) * m.n_in;
    double s = 0;
    for (uint32_t i = 0; i < m.n_in; ++i) s += w[i] * x[i];
    return s;
  }
};

inline double act(Epilogue e, double g, double u) {
  if (e == Epilogue::kSwiGluClamped) {
    g = std::min(g, 7.0);
    return g / (1 + std::exp(-1.702 * g)) * (std::clamp(u, -7.0, 7.0) + 1);
  }
  if (e == Epilogue::kSwiGlu) return g / (1 + std::exp(-g)) * u;
  if (e == Epilogue::kSquare) return std::max(u, 0.0) * std::max(u, 0.0);
  return 0.5 * g * (1 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u;
}

inline std::vector<double> norm_row(const float* x, uint32_t n, const float* w, double eps) {
  std::vector<double> y(x, x + n);
  if (w == nullptr) return y;
  double s = 0;
  for (double v : y) s += v * v;
  const double r = 1 / std::sqrt(s / n + eps);
  for (uint32_t i = 0; i < n; ++i) y[i] *= r * w[i];
  return y;
}

inline void expect_close(const std::string& name, const std::vector<float>& got,
                         const std::vector<double>& want, double tolerance) {
  double err = 0, ref = 0, worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double e = std::fabs(got[i] - want[i]);
    if (!(e <= worst)) {
      worst = e;
      at = i;
    }
    err += e * e;
    ref += want[i] * want[i];
  }
  const double rel = std::sqrt(err / std::max(ref, 1e-300));
  const bool ok = rel <= tolerance;
  (ok ? g_passed : g_failed)++;
  if (!ok) {
    std::printf("FAIL %s: relative error %.3g > %.1g; worst at %zu: got %.7g want %.7g\n",
                name.c_str(), rel, tolerance, at, static_cast<double>(got[at]), want[at]);
  }
  static double worst_fast = 0, worst_exact = 0;
  double& w = tolerance > 1e-4 ? worst_fast : worst_exact;
  if (ok && rel > w) {
    w = rel;
    std::printf("  largest relative error so far (%s): %.3g  %s\n",
                tolerance > 1e-4 ? "fast" : "exact", rel, name.c_str());
  }
}

// f16 inputs: 2^-12 relative per element, averaged; gated outputs add the derivative of the
// activation.
constexpr double kFast = 1e-3, kExact = 1e-5;
// Codes that all have one sign add up the row: rounding is then off by the same in all outputs, and
// a row whose sum cancels leaves little to hold against it.
inline double fast_tolerance(const std::vector<GgmlType>& types) {
  bool one_sign = false;
  for (const GgmlType t : types)
    one_sign = one_sign || t == GgmlType::kQ4_1 || t == GgmlType::kQ5_1;
  return one_sign ? 2 * kFast : kFast;
}
// Types of 256 with minimums have codes of one sign as well, finer ones; where two of their
// products are multiplied up to 1.26e-3 was seen.
inline double gated_tolerance(const std::vector<GgmlType>& types) {
  double most = fast_tolerance(types);
  for (const GgmlType t : types)
    if (t == GgmlType::kQ4_K || t == GgmlType::kQ5_K) most = std::max(most, 1.5 * kFast);
  return most;
}
// Of many rows the weights are rounded as well: scale, minimum and value, 2^-12 each. Experts:
// three products and an activation in a row, of rows whose sums may cancel.
constexpr double kFastMany = 2e-3, kFastMoe = 5e-3;

struct Bench {
  KernelConfig config;
  Buffer<std::byte> workspace{768u << 20};
};
/// What a launch leaves unwritten is NaN.
inline void poison(const Buffer<std::byte>& b) {
  must(cudaMemsetAsync(b.p, 0xFF, b.n, nullptr), "poison");
}

constexpr double kBandwidth = 4.2e12, kMatrixRate = 790e12;

/// Median milliseconds of one replay of what `body` launches.
inline double time_graph(const std::function<void(cudaStream_t)>& body, int replays = 7) {
  cudaStream_t s;
  must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "stream");
  body(s);  // loads the kernels
  must(cudaStreamSynchronize(s), "warm-up");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  must(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
  body(s);
  must(cudaStreamEndCapture(s, &graph), "capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t e0, e1;
  must(cudaEventCreate(&e0), "event");
  must(cudaEventCreate(&e1), "event");
  std::vector<float> ms;
  for (int i = 0; i < replays + 2; ++i) {
    must(cudaEventRecord(e0, s), "record");
    must(cudaGraphLaunch(exec, s), "replay");
    must(cudaEventRecord(e1, s), "record");
    must(cudaStreamSynchronize(s), "replay");
    float t;
    must(cudaEventElapsedTime(&t, e0, e1), "elapsed");
    if (i >= 2) ms.push_back(t);
  }
  std::sort(ms.begin(), ms.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(e0);
  cudaEventDestroy(e1);
  cudaStreamDestroy(s);
  return ms[ms.size() / 2];
}

/// Copies of one matrix at different addresses, more than the caches hold.
struct Rotation {
  Matrix first;
  Buffer<uint8_t> all;
  uint32_t n;
  Rotation(GgmlType t, uint32_t n_in, uint32_t n_out, uint64_t at_least = 400u << 20,
           uint32_t experts = 1)
      : first(t, n_in, n_out, experts, false),
        all(copies(first, at_least) * first.host.size()),
        n(static_cast<uint32_t>(copies(first, at_least))) {
    for (uint32_t i = 0; i < n; ++i) {
      must(cudaMemcpy(all.p + i * first.host.size(), first.device.p, first.host.size(),
                      cudaMemcpyDeviceToDevice),
           "copy");
    }
  }
  static uint64_t copies(const Matrix& m, uint64_t at_least) {
    return std::min<uint64_t>(64, std::max<uint64_t>(1, at_least / m.host.size()));
  }
  DeviceMatrix at(uint32_t i) const {
    DeviceMatrix m = first.m;
    m.data = reinterpret_cast<std::byte*>(all.p) + (i % n) * first.host.size();
    return m;
  }
  double bytes() const { return static_cast<double>(first.host.size()); }
};

}  // namespace sharpi::cuda::check
