// SPDX-License-Identifier: MIT
// A program of its own: every matrix kernel against double loops over dequantize_row on the host,
// and their speed on the shapes of published models. Usage: matrix_check [test] [bench] [filter]
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/matmul.h"

namespace {

using namespace sharpi;
using namespace sharpi::cuda;

int g_failed = 0, g_passed = 0;

void must(Status s, const char* what) {
  if (s.is_ok()) return;
  std::printf("FATAL %s: %s\n", what, s.text().c_str());
  std::exit(1);
}
void must(cudaError_t e, const char* what) {
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

std::mt19937 g_rng(7);
float uniform(float lo, float hi) {
  return std::uniform_real_distribution<float>(lo, hi)(g_rng);
}
std::vector<float> random_floats(size_t n, float scale) {
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
ScaleAt scale_at(GgmlType t) {
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
std::vector<uint8_t> random_weights(GgmlType type, uint64_t n_in, uint64_t n_rows) {
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

double act(Epilogue e, double g, double u) {
  if (e == Epilogue::kSwiGlu) return g / (1 + std::exp(-g)) * u;
  return 0.5 * g * (1 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u;
}

std::vector<double> norm_row(const float* x, uint32_t n, const float* w, double eps) {
  std::vector<double> y(x, x + n);
  if (w == nullptr) return y;
  double s = 0;
  for (double v : y) s += v * v;
  const double r = 1 / std::sqrt(s / n + eps);
  for (uint32_t i = 0; i < n; ++i) y[i] *= r * w[i];
  return y;
}

void expect_close(const std::string& name, const std::vector<float>& got,
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

struct Bench {
  MatmulConfig config;
  Buffer<std::byte> workspace{256u << 20};
};

struct Case {
  std::vector<GgmlType> types;
  uint32_t n_in;
  std::vector<uint32_t> n_out;
  uint32_t n_rows;
  Epilogue epilogue = Epilogue::kStore;
  bool norm = false, scale = false, force_f32 = false;
};

std::string describe(const MatmulConfig& c, const Case& k) {
  std::string s = c.exact ? "exact " : "fast ";
  for (size_t t = 0; t < k.types.size(); ++t) {
    s += std::string(ggml_traits(k.types[t]).name) + "[" + std::to_string(k.n_out[t]) + "x" +
         std::to_string(k.n_in) + "] ";
  }
  return s + "rows " + std::to_string(k.n_rows) + " epilogue " +
         std::to_string(static_cast<int>(k.epilogue)) + (k.norm ? " norm" : "") +
         (k.scale ? " scale" : "") + (c.deterministic ? " deterministic" : "");
}

void check_case(Bench& b, const Case& k) {
  const bool gated = k.epilogue == Epilogue::kSwiGlu || k.epilogue == Epilogue::kGeGlu;
  const uint64_t stride = k.n_in + 8;
  // Rows of very different size: the scaling must follow each.
  std::vector<float> x(k.n_rows * stride);
  for (uint32_t r = 0; r < k.n_rows; ++r) {
    const std::vector<float> row =
        random_floats(stride, std::pow(10.0f, static_cast<float>(r % 5) - 2.0f));
    std::copy(row.begin(), row.end(), x.begin() + static_cast<ptrdiff_t>(r * stride));
  }
  std::vector<float> norm = random_floats(k.n_in, 1.0f), scale = random_floats(k.n_rows, 1.0f);
  Buffer<float> dx(x), dnorm(norm), dscale(scale);
  std::vector<std::unique_ptr<Matrix>> w;
  std::vector<std::unique_ptr<Buffer<float>>> y;
  MatmulParams p;
  p.x = dx.p;
  p.x_stride = stride;
  p.n_rows = k.n_rows;
  p.norm_weight = k.norm ? dnorm.p : nullptr;
  p.norm_eps = 1e-6f;
  p.n_tasks = static_cast<uint32_t>(k.types.size());
  p.epilogue = k.epilogue;
  p.row_scale = k.scale ? dscale.p : nullptr;
  p.force_f32 = k.force_f32;
  p.workspace = b.workspace.p;
  p.workspace_bytes = b.workspace.n;
  std::vector<std::vector<float>> before;
  for (size_t t = 0; t < k.types.size(); ++t) {
    w.push_back(std::make_unique<Matrix>(k.types[t], k.n_in, k.n_out[t]));
    const bool add = k.epilogue == Epilogue::kAdd;
    before.push_back(add ? random_floats(uint64_t{k.n_rows} * k.n_out[t], 1.0f)
                         : std::vector<float>(uint64_t{k.n_rows} * k.n_out[t], NAN));
    y.push_back(std::make_unique<Buffer<float>>(before.back()));
    p.tasks[t] = {w[t]->m, y[t]->p, k.n_out[t]};
  }
  must(launch_matmul(b.config, p, nullptr), describe(b.config, k).c_str());
  must(cudaDeviceSynchronize(), describe(b.config, k).c_str());

  for (size_t t = 0; t < (gated ? 1 : k.types.size()); ++t) {
    std::vector<double> want(uint64_t{k.n_rows} * k.n_out[t]);
    for (uint32_t r = 0; r < k.n_rows; ++r) {
      const std::vector<double> row =
          norm_row(x.data() + r * stride, k.n_in, k.norm ? norm.data() : nullptr, 1e-6);
      double unit = 0;  // rows differ in size: compare each at its own
      for (uint32_t o = 0; o < k.n_out[t]; ++o) {
        double v = w[t]->dot(0, o, row.data());
        if (gated)
          v = act(k.epilogue, v, w[1]->dot(0, o, row.data()));
        else if (k.scale)
          v *= scale[r];
        if (k.epilogue == Epilogue::kAdd) v += before[t][r * k.n_out[t] + o];
        want[r * k.n_out[t] + o] = v;
        unit += v * v;
      }
    }
    const std::vector<float> got = y[t]->host();
    const bool fast = !b.config.exact && !k.force_f32;
    for (uint32_t r = 0; r < k.n_rows; ++r) {
      const auto at = static_cast<ptrdiff_t>(r * k.n_out[t]);
      expect_close(
          describe(b.config, k) + " task " + std::to_string(t) + " row " + std::to_string(r),
          {got.begin() + at, got.begin() + at + k.n_out[t]},
          {want.begin() + at, want.begin() + at + k.n_out[t]}, fast ? kFast : kExact);
    }
  }
}

void check_moe(Bench& b, GgmlType type, uint32_t n_embd, uint32_t d_ff, uint32_t n_experts,
               uint32_t n_used, uint32_t n_rows, bool fused, bool norm) {
  std::unique_ptr<Matrix> gate, up, down = std::make_unique<Matrix>(type, d_ff, n_embd, n_experts);
  gate = std::make_unique<Matrix>(type, n_embd, fused ? 2 * d_ff : d_ff, n_experts);
  if (!fused) up = std::make_unique<Matrix>(type, n_embd, d_ff, n_experts);
  std::vector<int32_t> ids(n_rows * n_used);
  for (uint32_t r = 0; r < n_rows; ++r) {
    std::vector<int32_t> all(n_experts);
    for (uint32_t e = 0; e < n_experts; ++e) all[e] = static_cast<int32_t>(e);
    std::shuffle(all.begin(), all.end(), g_rng);
    std::copy(all.begin(), all.begin() + n_used, ids.begin() + r * n_used);
  }
  if (n_used > 1) ids[1] = -1;
  std::vector<float> weights(n_rows * n_used), x = random_floats(n_rows * n_embd, 1.0f),
                                               y0 = random_floats(n_rows * n_embd, 1.0f);
  for (float& f : weights) f = uniform(0.0f, 1.0f);
  const std::vector<float> nw = random_floats(n_embd, 1.0f);
  Buffer<float> dx(x), dy(y0), dw(weights), dn(nw);
  Buffer<int32_t> di(ids);
  MoeParams p;
  p.x = dx.p;
  p.x_stride = n_embd;
  p.n_rows = n_rows;
  p.norm_weight = norm ? dn.p : nullptr;
  p.norm_eps = 1e-6f;
  p.gate = fused ? row_slice(gate->m, 0, d_ff) : gate->m;
  p.up = fused ? row_slice(gate->m, d_ff, d_ff) : up->m;
  p.down = down->m;
  p.n_used = n_used;
  p.ids = di.p;
  p.weights = dw.p;
  p.y = dy.p;
  p.y_stride = n_embd;
  p.add = true;
  p.workspace = b.workspace.p;
  p.workspace_bytes = b.workspace.n;
  const std::string name = std::string(b.config.exact ? "exact" : "fast") + " moe " +
                           ggml_traits(type).name + " " + std::to_string(n_embd) + "x" +
                           std::to_string(d_ff) + " rows " + std::to_string(n_rows) +
                           (fused ? " fused" : "") + (norm ? " norm" : "");
  must(launch_moe(b.config, p, nullptr), name.c_str());
  must(cudaDeviceSynchronize(), name.c_str());
  std::vector<double> want(y0.begin(), y0.end());
  for (uint32_t r = 0; r < n_rows; ++r) {
    const std::vector<double> row =
        norm_row(x.data() + r * n_embd, n_embd, norm ? nw.data() : nullptr, 1e-6);
    for (uint32_t j = 0; j < n_used; ++j) {
      const int32_t e = ids[r * n_used + j];
      if (e < 0) continue;
      std::vector<double> h(d_ff);
      for (uint32_t i = 0; i < d_ff; ++i) {
        const double u = fused ? gate->dot(static_cast<uint64_t>(e), d_ff + i, row.data())
                               : up->dot(static_cast<uint64_t>(e), i, row.data());
        h[i] = act(Epilogue::kSwiGlu, gate->dot(static_cast<uint64_t>(e), i, row.data()), u);
      }
      for (uint32_t o = 0; o < n_embd; ++o) {
        want[r * n_embd + o] +=
            weights[r * n_used + j] * down->dot(static_cast<uint64_t>(e), o, h.data());
      }
    }
  }
  expect_close(name, dy.host(), want, b.config.exact ? kExact : 2 * kFast);
}

constexpr GgmlType kTileTypes[] = {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1,
                                   GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kQ4_K,
                                   GgmlType::kQ5_K, GgmlType::kQ6_K};
constexpr GgmlType kOtherTypes[] = {GgmlType::kF32,    GgmlType::kF16,  GgmlType::kBF16,
                                    GgmlType::kQ2_K,   GgmlType::kQ3_K, GgmlType::kIQ4_NL,
                                    GgmlType::kIQ4_XS, GgmlType::kMXFP4};

void check_dequantize(GgmlType type) {
  const uint32_t n_in = 768, n_out = 48;
  const Matrix w(type, n_in, n_out);
  Buffer<float> y(uint64_t{n_in} * n_out);
  must(launch_dequantize({w.m, 0, n_out, y.p, nullptr}, nullptr), "dequantize");
  const bool equal = y.host() == w.values;
  std::vector<int32_t> ids = {5, 47, 0, 5};
  Buffer<int32_t> di(ids);
  Buffer<float> e(ids.size() * n_in);
  must(launch_embed_rows({w.m, di.p, 4, 1.0f, e.p, n_in}, nullptr), "embed");
  const std::vector<float> rows = e.host();
  bool same = true;
  for (size_t r = 0; r < ids.size(); ++r) {
    same = same && std::equal(rows.begin() + static_cast<ptrdiff_t>(r * n_in),
                              rows.begin() + static_cast<ptrdiff_t>((r + 1) * n_in),
                              w.values.begin() + ids[r] * static_cast<ptrdiff_t>(n_in));
  }
  (equal && same ? g_passed : g_failed)++;
  if (!equal || !same)
    std::printf("FAIL dequantize %s: all %d, by index %d\n", ggml_traits(type).name, equal, same);
}

void run_tests(Bench& b, const std::vector<uint32_t>& row_counts) {
  for (GgmlType t : kTileTypes) check_dequantize(t);
  for (GgmlType t : kOtherTypes) check_dequantize(t);
  for (int exact = 0; exact < 2; ++exact) {
    b.config.exact = exact != 0;
    for (GgmlType t : kTileTypes) {
      const uint32_t odd = ggml_traits(t).block_elements == 32 ? 96 : 256;
      for (uint32_t rows : row_counts) {
        check_case(b, {{t}, 768, {144}, rows, Epilogue::kStore, rows % 2 == 0});
        check_case(b, {{t}, odd, {16}, rows, Epilogue::kAdd});
      }
      check_case(b, {{t}, 2304, {2128}, 1, Epilogue::kStore, true});
      check_case(b, {{t}, odd, {20}, 3});  // not in tiles
    }
    for (GgmlType t : kOtherTypes) {
      for (uint32_t rows : {1u, 5u})
        check_case(b, {{t}, 768, {37}, rows, Epilogue::kStore, rows == 5});
    }
    const auto q4 = GgmlType::kQ4_K, q6 = GgmlType::kQ6_K, q8 = GgmlType::kQ8_0;
    for (uint32_t rows : row_counts) {
      check_case(b, {{q4, q4, q6}, 2048, {2048, 512, 512}, rows, Epilogue::kStore, true, true});
      check_case(b, {{q4, q8}, 1024, {1536, 1536}, rows, Epilogue::kSwiGlu, true});
      check_case(b, {{q6, q4}, 512, {80, 80}, rows, Epilogue::kGeGlu});
      check_case(b, {{GgmlType::kF32, q4}, 512, {80, 64}, rows, Epilogue::kAdd, false, true});
      check_case(b, {{q4}, 12288, {64}, rows, Epilogue::kAdd});
      check_case(b, {{q8}, 17408, {48}, rows, Epilogue::kStore, true});
      check_case(b, {{GgmlType::kF32}, 2048, {128}, rows, Epilogue::kStore, true, false, true});
    }
    for (uint32_t rows : row_counts) {
      check_moe(b, q8, 96, 64, 8, 3, rows, true, rows % 2 != 0);
      check_moe(b, q4, 512, 256, 16, 4, rows, false, true);
      check_moe(b, q6, 512, 768, 16, 8, rows, true, false);
      check_moe(b, GgmlType::kQ4_0, 160, 32, 4, 1, rows, false, false);
      check_moe(b, GgmlType::kBF16, 64, 32, 4, 2, rows, false, true);
    }
  }
  b.config.exact = false;
  std::printf("tests: %d passed, %d failed\n", g_passed, g_failed);
}

// ---- speed -------------------------------------------------------------------------------------

constexpr double kBandwidth = 4.2e12, kMatrixRate = 790e12;

/// Median milliseconds of one replay of what `body` launches.
double time_graph(const std::function<void(cudaStream_t)>& body, int replays = 7) {
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

struct Io {
  Buffer<float> x{random_floats(size_t{4096} * 17408 / 8, 1.0f)};
  Buffer<float> norm{random_floats(32768, 1.0f)};
  Buffer<float> y[4] = {Buffer<float>(size_t{2048} * 25600), Buffer<float>(size_t{2048} * 8192),
                        Buffer<float>(size_t{2048} * 8192), Buffer<float>(size_t{8} * 262144)};
};

MatmulParams params(Bench& b, Io& io, uint32_t n_in, uint32_t rows, bool norm) {
  MatmulParams p;
  p.x = io.x.p;
  p.x_stride = n_in;
  p.n_rows = rows;
  p.norm_weight = norm ? io.norm.p : nullptr;
  p.norm_eps = 1e-6f;
  p.workspace = b.workspace.p;
  p.workspace_bytes = b.workspace.n;
  return p;
}

void bench_stream(Bench& b, Io& io, const char* name, GgmlType t, uint32_t n_in, uint32_t n_out,
                  Epilogue e, bool norm) {
  const bool gated = e == Epilogue::kSwiGlu;
  const Rotation w(t, n_in, n_out);
  std::printf("%-26s %-5s %6ux%-6u", name, ggml_traits(t).name, n_out, n_in);
  for (uint32_t rows : {1u, 2u, 4u, 8u}) {
    const uint32_t n = gated ? w.n / 2 : w.n;
    const double ms = time_graph([&](cudaStream_t s) {
      for (uint32_t i = 0; i < n; ++i) {
        MatmulParams p = params(b, io, n_in, rows, norm);
        p.epilogue = e;
        p.n_tasks = gated ? 2 : 1;
        float* y = n_out > 30000 ? io.y[3].p : io.y[0].p;
        p.tasks[0] = {w.at(gated ? 2 * i : i), y, n_out};
        if (gated) p.tasks[1] = {w.at(2 * i + 1), y, n_out};
        must(launch_matmul(b.config, p, s), name);
      }
    });
    const double us = ms * 1000 / n, bytes = w.bytes() * (gated ? 2 : 1);
    std::printf(" | %2u: %7.2f us %3.0f%%", rows, us, 100 * bytes / (us * 1e-6) / kBandwidth);
  }
  std::printf("\n");
}

/// One token through the matrices of n_layers layers, as the tier launches them.
void bench_chain(Bench& b, Io& io, const char* name, uint32_t d, uint32_t q, uint32_t kv,
                 uint32_t ff, GgmlType t, GgmlType t6, uint32_t rows) {
  const uint64_t all = uint64_t{6} << 30;
  const uint32_t n_layers = 36;
  (void)all;
  const Rotation wq(t, d, q, 1u << 30), wk(t, d, kv, 256u << 20), wv(t6, d, kv, 256u << 20),
      wo(t, q, d, 1u << 30), wg(t, d, ff, 2047u << 20), wd(t6, ff, d, 2047u << 20),
      wu(t, d, ff, 2047u << 20);
  const double bytes = n_layers * (wq.bytes() + wk.bytes() + wv.bytes() + wo.bytes() + wg.bytes() +
                                   wu.bytes() + wd.bytes());
  const double ms = time_graph([&](cudaStream_t s) {
    for (uint32_t l = 0; l < n_layers; ++l) {
      MatmulParams p = params(b, io, d, rows, true);
      p.n_tasks = 3;
      p.tasks[0] = {wq.at(l), io.y[0].p, q};
      p.tasks[1] = {wk.at(l), io.y[1].p, kv};
      p.tasks[2] = {wv.at(l), io.y[2].p, kv};
      must(launch_matmul(b.config, p, s), "qkv");
      p = params(b, io, q, rows, false);
      p.n_tasks = 1;
      p.epilogue = Epilogue::kAdd;
      p.tasks[0] = {wo.at(l), io.y[3].p, d};
      must(launch_matmul(b.config, p, s), "o");
      p = params(b, io, d, rows, true);
      p.n_tasks = 2;
      p.epilogue = Epilogue::kSwiGlu;
      p.tasks[0] = {wg.at(l), io.y[0].p, ff};
      p.tasks[1] = {wu.at(l), io.y[0].p, ff};
      must(launch_matmul(b.config, p, s), "gate up");
      p = params(b, io, ff, rows, false);
      p.n_tasks = 1;
      p.epilogue = Epilogue::kAdd;
      p.tasks[0] = {wd.at(l), io.y[3].p, d};
      must(launch_matmul(b.config, p, s), "down");
    }
  });
  std::printf("chain %-20s rows %u pdl %d: %7.2f us/layer, %5.2f TB/s, %3.0f%% of %.1f TB/s\n",
              name, rows, b.config.pdl, ms * 1000 / n_layers, bytes / ms / 1e9,
              100 * bytes / (ms * 1e-3) / kBandwidth, kBandwidth / 1e12);
}

void bench_moe(Bench& b, Io& io, const char* name, GgmlType t, GgmlType td, uint32_t d, uint32_t ff,
               uint32_t n_experts, uint32_t n_used) {
  const Rotation wg(t, d, ff, 700u << 20, n_experts), wu(t, d, ff, 700u << 20, n_experts),
      wd(td, ff, d, 700u << 20, n_experts);
  for (uint32_t rows : {1u, 4u}) {
    std::vector<int32_t> ids(rows * n_used);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 37 + 5) % n_experts);
    const std::vector<float> weights(rows * n_used, 0.125f);
    Buffer<int32_t> di(ids);
    Buffer<float> dw(weights);
    const uint32_t n = 40;
    const double ms = time_graph([&](cudaStream_t s) {
      for (uint32_t i = 0; i < n; ++i) {
        MoeParams p;
        p.x = io.x.p;
        p.x_stride = d;
        p.n_rows = rows;
        p.norm_weight = io.norm.p;
        p.gate = wg.at(i);
        p.up = wu.at(i);
        p.down = wd.at(i);
        p.n_used = n_used;
        p.ids = di.p;
        p.weights = dw.p;
        p.y = io.y[3].p;
        p.y_stride = d;
        p.add = true;
        p.workspace = b.workspace.p;
        p.workspace_bytes = b.workspace.n;
        must(launch_moe(b.config, p, s), name);
      }
    });
    const double us = ms * 1000 / n,
                 bytes = (wg.bytes() + wu.bytes() + wd.bytes()) / n_experts * n_used * rows;
    std::printf("moe %-22s rows %u: %7.2f us per layer (2 launches), %3.0f%% of bound\n", name,
                rows, us, 100 * bytes / (us * 1e-6) / kBandwidth);
  }
}

void run_bench_streams(Bench& b) {
  Io io;
  const auto q4 = GgmlType::kQ4_K, q6 = GgmlType::kQ6_K;
  for (int mode = 0; mode < 2; ++mode) {
    b.config.pdl = mode == 0;
    for (uint32_t rows : {1u, 2u, 4u, 8u})
      bench_chain(b, io, "Qwen3-8B", 4096, 4096, 1024, 12288, q4, q6, rows);
  }
  b.config.pdl = true;
  bench_chain(b, io, "Gemma-12B-like Q4_0", 3840, 4096, 2048, 15360, GgmlType::kQ4_0,
              GgmlType::kQ4_0, 1);
  bench_stream(b, io, "qkv-like", q4, 4096, 6144, Epilogue::kStore, true);
  bench_stream(b, io, "o", q4, 4096, 4096, Epilogue::kAdd, false);
  bench_stream(b, io, "gate+up", q4, 4096, 12288, Epilogue::kSwiGlu, true);
  bench_stream(b, io, "down", q4, 12288, 4096, Epilogue::kAdd, false);
  bench_stream(b, io, "down", q6, 12288, 4096, Epilogue::kAdd, false);
  bench_stream(b, io, "head", q6, 4096, 151936, Epilogue::kStore, true);
  bench_stream(b, io, "o 27B", q4, 6144, 5120, Epilogue::kAdd, false);
  bench_stream(b, io, "down 27B", q6, 17408, 5120, Epilogue::kAdd, false);
  for (GgmlType t : kTileTypes) bench_stream(b, io, "type", t, 4096, 12288, Epilogue::kStore, true);
  bench_stream(b, io, "router", GgmlType::kF32, 2048, 128, Epilogue::kStore, true);
  b.config.exact = true;
  bench_stream(b, io, "exact", q4, 4096, 12288, Epilogue::kStore, true);
  bench_stream(b, io, "exact", q6, 12288, 4096, Epilogue::kStore, true);
  b.config.exact = false;
  bench_moe(b, io, "Qwen3-Coder-30B", q4, q6, 2048, 768, 128, 8);
  bench_moe(b, io, "OLMoE", q4, q6, 2048, 1024, 64, 8);
}

}  // namespace

int main(int argc, char** argv) {
  const auto wants = [&](const char* what) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], what) == 0) return true;
    }
    return argc == 1;
  };
  Bench b;
  must(make_matmul_config(&b.config), "config");
  std::printf("%d multiprocessors, compute capability %d, %d bytes of shared memory\n",
              b.config.n_sm, b.config.compute_capability, b.config.max_shared_bytes);
  if (wants("test")) run_tests(b, {1, 2, 3, 5, 8});
  if (wants("bench")) run_bench_streams(b);
  return g_failed == 0 ? 0 : 1;
}
