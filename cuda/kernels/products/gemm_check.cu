// SPDX-License-Identifier: MIT
// Products of many rows, grouped experts, router and sampling against plain loops, and their speed.
#include "cuda/kernels/moe/router.h"
#include "cuda/kernels/products/gemm.h"
#include "cuda/kernels/products/gemm_check.h"
#include "cuda/kernels/products/matrix_cases.cuh"
#include "cuda/kernels/sampling/sampling.h"

namespace sharpi::cuda::check {
namespace {

constexpr GgmlType kTileTypes[] = {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1,
                                   GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kMXFP4,
                                   GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K};
constexpr GgmlType kOtherTypes[] = {GgmlType::kF32,   GgmlType::kF16,  GgmlType::kBF16,
                                    GgmlType::kQ2_K,  GgmlType::kQ3_K, GgmlType::kIQ4_NL,
                                    GgmlType::kIQ4_XS};
constexpr auto q4 = GgmlType::kQ4_K, q5 = GgmlType::kQ5_K, q6 = GgmlType::kQ6_K,
               q8 = GgmlType::kQ8_0;

void expect(bool ok, const std::string& name) {
  (ok ? g_passed : g_failed)++;
  if (!ok) std::printf("FAIL %s\n", name.c_str());
}

void check_products(Bench& b, bool quick) {
  for (GgmlType t : kTileTypes) {
    const uint32_t odd = ggml_traits(t).block_elements == 32 ? 96 : 256;
    check_case(b, {{t}, 768, {144}, 17, Epilogue::kStore, true});
    if (quick) continue;
    check_case(b, {{t}, odd, {16}, 9, Epilogue::kAdd});
    check_case(b, {{t}, 768, {272}, 100, Epilogue::kStore, true, true});
    check_case(b, {{t}, odd, {20}, 64});  // not in tiles
    check_case(b, {{t},
                   512,
                   {
                       64,
                   },
                   513,
                   Epilogue::kAdd,
                   false,
                   true});
    check_case(b, {{t, t}, 768, {208, 208}, 33, Epilogue::kSwiGlu, true});
  }
  for (GgmlType t : kOtherTypes) {
    check_case(b, {{t}, 768, {37}, 16, Epilogue::kStore, true});
    if (quick) continue;
    check_case(b, {{t}, 256, {150}, 100, Epilogue::kAdd, false, true});
    check_case(b, {{t, t}, 256, {65, 65}, 40, Epilogue::kGeGlu, true});
  }
  for (const uint32_t rows : {9u, 16u, 17u, 40u, 64u, 100u, 513u, 2048u}) {
    if (quick && rows > 64) continue;
    check_case(b, {{q4, q4, q6}, 512, {512, 144, 144}, rows, Epilogue::kStore, true, true});
    check_case(b, {{q4, q8}, 256, {96, 96}, rows, Epilogue::kSwiGlu, true});
    check_case(b, {{q8}, 672, {144}, rows, Epilogue::kAdd, false, false, false, true});
    check_case(
        b,
        {{GgmlType::kBF16, q8}, 2880, {150, 48}, rows, Epilogue::kStore, true, false, false, true});
    check_case(b, {{GgmlType::kF32}, 2880, {32}, rows, Epilogue::kStore, true, false, true, true});
    check_case(b, {{q6, q6}, 512, {80, 80}, rows, Epilogue::kGeGlu});
    check_case(b, {{GgmlType::kF32, q4}, 512, {80, 64}, rows, Epilogue::kAdd, false, true});
    check_case(b, {{GgmlType::kF32}, 520, {128}, rows, Epilogue::kStore, true, false, true});
  }
  // Rows whose columns come in parts, the last one shorter.
  check_case(b, {{q8}, 11008, {48}, 12, Epilogue::kStore, true});
  check_case(b, {{q4}, 18944, {2128}, 8, Epilogue::kAdd});
  check_link(b, {{q4, q6}, 3840, {144, 32}, 5, Epilogue::kStore, true}, true, false);
  if (quick) return;
  check_case(b, {{q4}, 12288, {64}, 70, Epilogue::kAdd});
  check_case(b, {{q8}, 17408, {48}, 20, Epilogue::kStore, true});
  check_case(b, {{q5}, 4096, {2128}, 12, Epilogue::kStore, true});
}

void check_experts(Bench& b, bool quick) {
  for (const uint32_t rows : {9u, 33u, 130u, 513u}) {
    if (quick && rows != 33) continue;
    const bool odd = rows % 2 != 0;
    check_moe(b, q8, 96, 64, 8, 3, rows, true, odd);
    check_moe(b, q4, 512, 256, 16, 4, rows, false, true, Routing::kRandom, odd);
    check_moe(b, q6, 512, 768, 16, 8, rows, true, false, Routing::kFewExperts);
    check_moe(b, q6, 512, 256, 16, 4, rows, true, true, Routing::kFewExperts, odd, true);
    check_moe(b, GgmlType::kQ4_0, 160, 32, 4, 1, rows, false, false, Routing::kOneExpert, odd);
    check_moe(b, q4, 256, 256, 128, 8, rows, false, true, Routing::kOneExpert, odd);
    check_moe(b, GgmlType::kBF16, 64, 32, 4, 2, rows, false, true);
    const auto mx = GgmlType::kMXFP4;
    check_moe(b, mx, 64, 96, 6, 2, rows, true, true, Routing::kFewExperts, odd);
    check_moe(b, mx, 320, 160, 8, 4, rows, false, true, Routing::kRandom, odd, false,
              Experts::kBiased);
    check_moe(b, mx, 320, 96, 8, 3, rows, odd, true, Routing::kFewExperts, true, true,
              Experts::kBiased);
    check_moe(b, GgmlType::kBF16, 64, 24, 6, 2, rows, false, true, Routing::kRandom, true, true,
              Experts::kBiased);
    check_moe(b, q4, 256, 256, 16, 4, rows, false, true, Routing::kRandom, odd, false,
              Experts::kBiased);
    check_squares(b, rows);
  }
}

/// Rows of a product by themselves, together and in other company: equal bits.
void check_deterministic(Bench& b) {
  b.config.deterministic = true;
  const uint32_t n_in = 1024, n_out = 208, rows = 300;
  const Matrix w(q4, n_in, n_out, 1, false);
  const std::vector<float> x = random_floats(uint64_t{rows} * n_in, 1.0f);
  Buffer<float> dx(x), y(uint64_t{rows} * n_out), z(uint64_t{rows} * n_out);
  MatmulParams p;
  p.x_stride = n_in;
  p.n_tasks = 1;
  p.workspace = b.workspace.p;
  p.workspace_bytes = b.workspace.n;
  const auto run = [&](uint32_t first, uint32_t n, float* out) {
    p.x = dx.p + uint64_t{first} * n_in;
    p.n_rows = n;
    p.tasks[0] = {w.m, out + uint64_t{first} * n_out, n_out};
    must(launch_matmul(b.config, p, nullptr), "deterministic");
  };
  run(0, rows, y.p);
  const uint32_t pieces[] = {1, 2, 40, 7, 100, 150};
  for (uint32_t first = 0, k = 0; first < rows; first += pieces[k++]) run(first, pieces[k], z.p);
  expect(y.host() == z.host(), "deterministic rows");
  for (const uint32_t n : {1u, 8u}) {
    check_case(b, {{q4, q6}, 512, {64, 48}, n, Epilogue::kStore, true});
    check_moe(b, q4, 512, 256, 16, 4, n, false, true);
    check_squares(b, n);
  }
  b.config.deterministic = false;
}

void route_on_host(const float* logits, uint32_t n, uint32_t k, bool renormalize, int32_t* ids,
                   float* weights) {
  float largest = logits[0], sum = 0.0f;
  for (uint32_t i = 0; i < n; ++i) largest = std::max(largest, logits[i]);
  std::vector<float> p(n);
  for (uint32_t i = 0; i < n; ++i) sum += p[i] = std::exp(logits[i] - largest);
  std::vector<uint32_t> order(n);
  for (uint32_t i = 0; i < n; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t c) { return logits[a] > logits[c]; });
  float chosen = 0.0f;
  for (uint32_t j = 0; j < k; ++j) chosen += p[order[j]] / sum;
  for (uint32_t j = 0; j < k; ++j) {
    ids[j] = static_cast<int32_t>(order[j]);
    weights[j] = p[order[j]] / sum / (renormalize ? std::max(chosen, 0x1p-14f) : 1.0f);
  }
}

void check_router(uint32_t n_experts, uint32_t n_used, uint32_t n_rows, bool renormalize) {
  std::vector<float> logits(uint64_t{n_rows} * n_experts);
  for (float& f : logits) f = std::round(uniform(-20.0f, 20.0f)) * 0.25f;  // many ties
  std::vector<int32_t> want(n_rows * n_used);
  std::vector<float> weights(n_rows * n_used);
  for (uint32_t r = 0; r < n_rows; ++r) {
    route_on_host(logits.data() + uint64_t{r} * n_experts, n_experts, n_used, renormalize,
                  want.data() + r * n_used, weights.data() + r * n_used);
  }
  Buffer<float> dl(logits), dw(std::vector<float>(n_rows * n_used, NAN));
  Buffer<int32_t> di(std::vector<int32_t>(n_rows * n_used, -1));
  RouterParams p;
  p.logits = dl.p;
  p.stride = n_experts;
  p.n_rows = n_rows;
  p.n_experts = n_experts;
  p.n_used = n_used;
  p.renormalize = renormalize;
  p.ids = di.p;
  p.weights = dw.p;
  must(launch_router(p, nullptr), "router");
  must(cudaDeviceSynchronize(), "router");
  const std::string name = "router " + std::to_string(n_used) + " of " + std::to_string(n_experts);
  expect(di.host() == want, name + " ids");
  expect_close(name + " weights", dw.host(), {weights.begin(), weights.end()}, 3e-6);
}

void check_gate(uint32_t n_in, uint32_t n_rows, bool norm) {
  const std::vector<float> x = random_floats(uint64_t{n_rows} * n_in, 1.0f),
                           w = random_floats(n_in, 0.02f), nw = random_floats(n_in, 1.0f);
  Buffer<float> dx(x), dw(w), dn(nw), dy(std::vector<float>(n_rows, NAN));
  SigmoidGateParams p;
  p.x = dx.p;
  p.x_stride = n_in;
  p.n_rows = n_rows;
  p.n_in = n_in;
  p.norm_weight = norm ? dn.p : nullptr;
  p.norm_eps = 1e-6f;
  p.w = dw.p;
  p.y = dy.p;
  must(launch_sigmoid_gate(p, nullptr), "sigmoid_gate");
  must(cudaDeviceSynchronize(), "sigmoid_gate");
  std::vector<double> want(n_rows);
  for (uint32_t r = 0; r < n_rows; ++r) {
    const std::vector<double> row =
        norm_row(x.data() + uint64_t{r} * n_in, n_in, norm ? nw.data() : nullptr, 1e-6);
    double s = 0;
    for (uint32_t i = 0; i < n_in; ++i) s += row[i] * w[i];
    want[r] = 1 / (1 + std::exp(-s));
  }
  expect_close("sigmoid_gate", dy.host(), want, 1e-5);
}

void check_sampling(Bench& b, uint32_t n_vocab, uint32_t k, uint32_t n_rows, bool ties) {
  const uint64_t stride = n_vocab + 5;
  std::vector<float> logits = random_floats(n_rows * stride, 3.0f);
  if (ties) {
    for (float& f : logits) f = std::round(f);
  }
  logits[stride - 1] = 1e9f;  // past the end of row 0
  logits[n_vocab / 2] = NAN;
  std::vector<int32_t> want(n_rows * k), best(n_rows);
  for (uint32_t r = 0; r < n_rows; ++r) {
    const float* l = logits.data() + r * stride;
    std::vector<int32_t> order(n_vocab);
    for (uint32_t i = 0; i < n_vocab; ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t c) {
      return !std::isnan(l[a]) && (std::isnan(l[c]) || l[a] > l[c]);
    });
    std::copy(order.begin(), order.begin() + k, want.begin() + r * k);
    best[r] = order[0];
  }
  Buffer<float> dl(logits), dv(std::vector<float>(n_rows * k, NAN)), dm(n_rows);
  Buffer<int32_t> di(std::vector<int32_t>(n_rows * k, -1)), db(n_rows);
  TopKParams t;
  t.logits = dl.p;
  t.stride = stride;
  t.n_rows = n_rows;
  t.n_vocab = n_vocab;
  t.k = k;
  t.values = dv.p;
  t.ids = di.p;
  t.workspace = b.workspace.p;
  t.workspace_bytes = sampling_workspace_bytes(n_rows, n_vocab, k);
  must(launch_top_k(t, nullptr), "top_k");
  const std::string name = "of " + std::to_string(n_vocab) + " logits, k " + std::to_string(k);
  expect(di.host() == want, "top_k ids " + name);
  const std::vector<float> values = dv.host();
  bool equal = true;
  for (uint32_t i = 0; i < n_rows * k; ++i) {
    const float v = logits[i / k * stride + static_cast<uint64_t>(want[i])];
    equal = equal && (values[i] == v || (std::isnan(v) && std::isnan(values[i])));
  }
  expect(equal, "top_k values " + name);
  ArgmaxParams a;
  a.logits = dl.p;
  a.stride = stride;
  a.n_rows = n_rows;
  a.n_vocab = n_vocab;
  a.ids = db.p;
  a.values = dm.p;
  a.workspace = b.workspace.p;
  a.workspace_bytes = sampling_workspace_bytes(n_rows, n_vocab, 1);
  must(launch_argmax(a, nullptr), "argmax");
  expect(db.host() == best, "argmax " + name);
}

// ---- speed -------------------------------------------------------------------------------------

struct Io {
  Buffer<float> x{random_floats(size_t{2048} * 17408, 1.0f)};
  Buffer<float> norm{random_floats(32768, 1.0f)};
  Buffer<float> y[3] = {Buffer<float>(size_t{2048} * 35840), Buffer<float>(size_t{2048} * 8192),
                        Buffer<float>(size_t{2048} * 8192)};
};

struct Layer {
  const char* name;
  GgmlType type;
  uint32_t n_in;
  std::vector<uint32_t> n_out;
  Epilogue epilogue;
};

double layer_time(Bench& b, Io& io, const Layer& l, uint32_t rows, double* flops) {
  std::vector<std::unique_ptr<Rotation>> w;
  *flops = 0;
  for (const uint32_t n : l.n_out) {
    w.push_back(std::make_unique<Rotation>(l.type, l.n_in, n, 100u << 20));
    *flops += 2.0 * rows * n * l.n_in;
  }
  const uint32_t launches = 4;
  const double ms = time_graph(
      [&](cudaStream_t s) {
        for (uint32_t i = 0; i < launches; ++i) {
          MatmulParams p;
          p.x = io.x.p;
          p.x_stride = l.n_in;
          p.n_rows = rows;
          p.norm_weight = l.epilogue == Epilogue::kAdd ? nullptr : io.norm.p;
          p.norm_eps = 1e-6f;
          p.n_tasks = static_cast<uint32_t>(w.size());
          for (uint32_t t = 0; t < p.n_tasks; ++t)
            p.tasks[t] = {w[t]->at(i), io.y[t].p, l.n_out[t]};
          p.epilogue = l.epilogue;
          p.workspace = b.workspace.p;
          p.workspace_bytes = b.workspace.n;
          must(launch_matmul(b.config, p, s), l.name);
        }
      },
      5);
  return ms / launches;
}

void bench_layers(Bench& b, Io& io, const char* name, const std::vector<Layer>& layers) {
  double sum[3] = {}, all[3] = {};
  const uint32_t counts[] = {64, 512, 2048};
  for (const Layer& l : layers) {
    std::printf("%-10s %-8s %-5s %6u", name, l.name, ggml_traits(l.type).name, l.n_in);
    for (int i = 0; i < 3; ++i) {
      double flops;
      const double ms = layer_time(b, io, l, counts[i], &flops);
      sum[i] += ms;
      all[i] += flops;
      std::printf(" | %4u: %8.1f us %5.0f TF", counts[i], ms * 1e3, flops / ms * 1e-9);
    }
    std::printf("\n");
  }
  std::printf("%-10s layer                 ", name);
  for (int i = 0; i < 3; ++i)
    std::printf(" | %4u: %8.1f us %5.0f TF", counts[i], sum[i] * 1e3, all[i] / sum[i] * 1e-9);
  std::printf("\n");
}

void bench_experts(Bench& b, Io& io, const char* name, GgmlType t, GgmlType td, uint32_t d,
                   uint32_t ff, uint32_t n_experts, uint32_t n_used,
                   const std::vector<uint32_t>& counts = {64, 512, 2048}, bool once = false) {
  const Matrix wg(t, d, ff, n_experts, false), wu(t, d, ff, n_experts, false),
      wd(td, ff, d, n_experts, false);
  std::printf("moe %-18s", name);
  for (const uint32_t rows : counts) {
    const std::vector<int32_t> ids = random_ids(rows, n_used, n_experts, Routing::kRandom);
    Buffer<int32_t> di(ids);
    Buffer<float> dw(std::vector<float>(rows * n_used, 0.125f));
    MoeParams p;
    p.x = io.x.p;
    p.x_stride = d;
    p.n_rows = rows;
    p.norm_weight = io.norm.p;
    p.norm_eps = 1e-6f;
    p.gate = wg.m;
    p.up = wu.m;
    p.down = wd.m;
    p.n_used = n_used;
    p.ids = di.p;
    p.weights = dw.p;
    p.y = io.y[0].p;
    p.y_stride = d;
    p.add = true;
    p.workspace = b.workspace.p;
    p.workspace_bytes = b.workspace.n;
    if (once) {
      must(launch_moe(b.config, p, nullptr), name);
      must(cudaDeviceSynchronize(), name);
      continue;
    }
    const uint32_t n = 4;
    const double ms = time_graph(
                          [&](cudaStream_t s) {
                            for (uint32_t i = 0; i < n; ++i) must(launch_moe(b.config, p, s), name);
                          },
                          5) /
                      n;
    const double flops = 6.0 * rows * n_used * d * ff;
    std::printf(" | %4u: %8.1f us %5.0f TF", rows, ms * 1e3, flops / ms * 1e-9);
  }
  std::printf("\n");
}

void bench_small(Bench& b) {
  const uint32_t n_vocab = 151936;
  Buffer<float> logits(random_floats(n_vocab, 3.0f)), values(kMaxTopK);
  Buffer<int32_t> ids(kMaxTopK);
  const auto time_one = [&](const char* name, const std::function<void(cudaStream_t)>& body) {
    const double ms = time_graph([&](cudaStream_t s) {
      for (int i = 0; i < 20; ++i) body(s);
    });
    std::printf("%-20s %7.2f us\n", name, ms * 1e3 / 20);
  };
  for (const uint32_t k : {1u, 40u, 256u}) {
    TopKParams t;
    t.logits = logits.p;
    t.stride = t.n_vocab = n_vocab;
    t.n_rows = 1;
    t.k = k;
    t.values = values.p;
    t.ids = ids.p;
    t.workspace = b.workspace.p;
    t.workspace_bytes = b.workspace.n;
    t.pdl = true;
    time_one(("top_k " + std::to_string(k)).c_str(),
             [&](cudaStream_t s) { must(launch_top_k(t, s), "top_k"); });
  }
  ArgmaxParams a;
  a.logits = logits.p;
  a.stride = a.n_vocab = n_vocab;
  a.n_rows = 1;
  a.ids = ids.p;
  a.workspace = b.workspace.p;
  a.workspace_bytes = b.workspace.n;
  a.pdl = true;
  time_one("argmax", [&](cudaStream_t s) { must(launch_argmax(a, s), "argmax"); });
  RouterParams r;
  r.logits = logits.p;
  r.stride = r.n_experts = 128;
  r.n_used = 8;
  r.renormalize = true;
  r.ids = ids.p;
  r.weights = values.p;
  r.pdl = true;
  r.n_rows = 1;
  time_one("router", [&](cudaStream_t s) { must(launch_router(r, s), "router"); });
}

/// A few launches of their own, for a profiler.
void launch_once(Bench& b, Io& io, const Layer& l, uint32_t rows) {
  std::vector<std::unique_ptr<Matrix>> w;
  MatmulParams p;
  p.x = io.x.p;
  p.x_stride = l.n_in;
  p.n_rows = rows;
  p.norm_weight = l.epilogue == Epilogue::kAdd ? nullptr : io.norm.p;
  p.norm_eps = 1e-6f;
  p.epilogue = l.epilogue;
  p.workspace = b.workspace.p;
  p.workspace_bytes = b.workspace.n;
  for (const uint32_t n : l.n_out) {
    w.push_back(std::make_unique<Matrix>(l.type, l.n_in, n, 1, false));
    p.tasks[p.n_tasks] = {w.back()->m, io.y[p.n_tasks].p, n};
    ++p.n_tasks;
  }
  must(launch_matmul(b.config, p, nullptr), l.name);
  must(cudaDeviceSynchronize(), l.name);
}

}  // namespace

void run_gemm_profile(Bench& b) {
  Io io;
  for (const uint32_t rows : {1u, 64u, 2048u}) {
    launch_once(b, io, {"qkv", q4, 4096, {4096, 1024, 1024}, Epilogue::kStore}, rows);
    launch_once(b, io, {"o", q4, 4096, {4096}, Epilogue::kAdd}, rows);
    launch_once(b, io, {"gate up", q4, 4096, {12288, 12288}, Epilogue::kSwiGlu}, rows);
    launch_once(b, io, {"down", q6, 12288, {4096}, Epilogue::kAdd}, rows);
  }
  bench_experts(b, io, "Coder-30B", q4, q6, 2048, 768, 128, 8, {2048}, true);
}

void run_gemm_tests(Bench& b, bool quick) {
  const int before = g_failed, passed = g_passed;
  for (int exact = 0; exact < 2; ++exact) {
    b.config.exact = exact != 0;
    check_products(b, quick);
    check_experts(b, quick);
    if (!quick) check_deterministic(b);
  }
  b.config.exact = false;
  for (const bool renormalize : {false, true}) {
    check_router(128, 8, 100, renormalize);
    check_router(64, 8, 1, renormalize);
    check_router(512, 10, 33, renormalize);
    check_router(4, 4, 3, renormalize);
  }
  check_gate(2048, 9, true);
  check_gate(96, 1, false);
  check_sampling(b, 151936, 40, 2, false);
  check_sampling(b, 262144, 256, 1, true);
  check_sampling(b, 50304, 256, 3, true);
  check_sampling(b, 1000, 17, 2, true);
  check_sampling(b, 40, 40, 2, false);
  std::printf("gemm tests: %d passed, %d failed\n", g_passed - passed, g_failed - before);
}

void run_gemm_bench(Bench& b) {
  b.config.pdl = true;
  Io io;
  const auto store = Epilogue::kStore, add = Epilogue::kAdd, glu = Epilogue::kSwiGlu;
  bench_layers(b, io, "8B",
               {{"qkv", q4, 4096, {4096, 1024, 1024}, store},
                {"o", q4, 4096, {4096}, add},
                {"gate up", q4, 4096, {12288, 12288}, glu},
                {"down", q6, 12288, {4096}, add}});
  bench_layers(b, io, "27B",
               {{"qkv", q4, 5120, {10240}, store},
                {"gate up", q4, 5120, {17408, 17408}, glu},
                {"down", q6, 17408, {5120}, add}});
  bench_layers(b, io, "types",
               {{"q8_0", q8, 4096, {8192}, store},
                {"q4_0", GgmlType::kQ4_0, 4096, {8192}, store},
                {"q5_K", q5, 4096, {8192}, store},
                {"bf16", GgmlType::kBF16, 4096, {8192}, store}});
  bench_experts(b, io, "Coder-30B", q4, q6, 2048, 768, 128, 8);
  bench_experts(b, io, "OLMoE", q4, q6, 2048, 1024, 64, 8);
  b.config.exact = true;
  bench_layers(b, io, "exact", {{"o", q4, 4096, {4096}, add}});
  b.config.exact = false;
  bench_small(b);
}

}  // namespace sharpi::cuda::check
