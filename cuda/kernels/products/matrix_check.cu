// SPDX-License-Identifier: MIT
// A program of its own: every matrix kernel against double loops over dequantize_row on the host,
// and their speed on the shapes of published models. Usage: matrix_check [test] [bench]
// [rows-bench] [experts-bench] [gemm] [gemm-bench] [moe] [moe-bench] [moe-tuning] [quick]
// [moe-quick] (small parts of gemm and moe, for slow tools) [mma] (no kernels of newer
// architectures) [cublas] [profile]
#include "cuda/kernels/check_device.h"
#include "cuda/kernels/products/cublas_lt.h"
#include "cuda/kernels/products/gemm_check.h"
#include "cuda/kernels/products/matrix_cases.cuh"

namespace {

using namespace sharpi;
using namespace sharpi::cuda;
using namespace sharpi::cuda::check;

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
    // Sums in front: staged with the rows, or apart (one row, many, rows too long, not in tiles).
    for (uint32_t rows : {1u, 2u, 5u, 8u, 13u, 16u, 17u}) {
      for (const bool post : {false, true}) {
        check_link(b, {{q4, q6}, 3840, {144, 32}, rows, Epilogue::kStore, post}, post,
                   rows % 2 == 0);
        check_link(b, {{q8}, 672, {48}, rows, Epilogue::kStore, true}, post, true);
        check_link(b, {{q4}, 8448, {48}, rows, Epilogue::kStore, false}, post, false);
        check_link(b, {{GgmlType::kF32, q4}, 512, {80, 64}, rows, Epilogue::kStore, true}, post,
                   true);
      }
    }
    // Blocks of several panels, whose columns are multiplied in parts where rows leave little room.
    const auto q40 = GgmlType::kQ4_0;
    for (uint32_t rows : {2u, 4u, 7u, 8u, 9u, 16u}) {
      if (exact != 0) break;
      check_case(b, {{q6}, 12288, {4160}, rows, Epilogue::kAdd});
      check_case(b, {{q40}, 15360, {2128}, rows, Epilogue::kStore, true});
      check_case(b, {{q4, q6}, 17408, {2064, 2048}, rows, Epilogue::kStore, true, true});
      check_case(b, {{q4, q6}, 5120, {4368, 4368}, rows, Epilogue::kSwiGlu, true});
      check_case(b, {{q8, q8}, 3840, {4368, 4368}, rows, Epilogue::kGeGlu, true});
      // The last part is shorter.
      check_case(b, {{q6}, 11008, {2128}, rows, Epilogue::kAdd});
      check_case(b, {{q4, q6}, 18944, {1040, 1088}, rows, Epilogue::kStore, true, true});
      check_case(b, {{q40, q8}, 9728, {2128, 2128}, rows, Epilogue::kSwiGlu, true});
    }
    for (uint32_t rows : row_counts) {
      check_moe(b, q8, 96, 64, 8, 3, rows, true, rows % 2 != 0);
      check_moe(b, q4, 512, 256, 16, 4, rows, false, true);
      check_moe(b, q4, 512, 256, 16, 4, rows, false, true, Routing::kRandom, true, true);
      check_moe(b, q6, 512, 768, 16, 8, rows, true, false);
      check_moe(b, GgmlType::kQ4_0, 160, 32, 4, 1, rows, false, false);
      check_moe(b, GgmlType::kBF16, 64, 32, 4, 2, rows, false, true);
      const auto mx = GgmlType::kMXFP4;
      check_moe(b, mx, 320, 160, 8, 4, rows, false, true, Routing::kRandom, rows % 2 != 0);
      check_moe(b, mx, 320, 96, 8, 3, rows, false, true, Routing::kRandom, true, false,
                Experts::kBiased);
      check_moe(b, mx, 320, 96, 8, 3, rows, rows % 2 != 0, true, Routing::kRandom, true, true,
                Experts::kBiased);
      check_moe(b, GgmlType::kBF16, 64, 24, 6, 2, rows, false, true, Routing::kRandom, true, false,
                Experts::kBiased);
      check_squares(b, rows);
      check_case(b, {{q8}, 672, {48}, rows, Epilogue::kAdd, false, false, false, true});
      // Last units that are partly filled behind whole ones, and one row: blocks of several panels,
      // experts that begin in one and end in the next.
      for (GgmlType t : kTileTypes) {
        if (ggml_traits(t).block_elements != 32) continue;
        check_moe(b, t, 704, 352, 6, 4, rows, rows % 2 != 0, true);
        if (rows == 1)
          check_moe(b, t, 736, 2880, 4, 3, rows, false, true, Routing::kRandom, true, true,
                    Experts::kBiased);
      }
      if (rows == 1) check_moe(b, q4, 2816, 2304, 6, 4, rows, false, true);
      // More outputs of a block than threads.
      check_case(b, {{q8}, 256, {34832}, rows, Epilogue::kAdd});
      check_case(b, {{mx, q8}, 2880, {144, 20}, rows, Epilogue::kStore, true, false, false, true});
      check_case(
          b, {{mx, mx}, 2880, {48, 48}, rows, Epilogue::kSwiGluClamped, true, false, false, true});
      check_case(b,
                 {{GgmlType::kF32}, 2880, {32}, rows, Epilogue::kStore, true, false, true, true});
    }
  }
  b.config.exact = false;
  std::printf("tests: %d passed, %d failed\n", g_passed, g_failed);
}

// ---- speed -------------------------------------------------------------------------------------

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

/// The products of a layer for few rows, launch by launch.
void run_bench_rows(Bench& b, Io& io) {
  const auto q4 = GgmlType::kQ4_K, q6 = GgmlType::kQ6_K;
  for (int mode = 0; mode < 2; ++mode) {
    b.config.pdl = mode == 0 && b.config.device.pdl;
    for (uint32_t rows : {1u, 2u, 4u, 6u, 8u, 9u, 12u, 16u, 24u, 32u, 40u, 48u, 56u, 64u}) {
      bench_chain(b, io, "Qwen3-8B", 4096, 4096, 1024, 12288, q4, q6, rows);
      bench_chain(b, io, "Gemma-12B-like Q4_0", 3840, 4096, 2048, 15360, GgmlType::kQ4_0,
                  GgmlType::kQ4_0, rows);
      bench_chain(b, io, "Qwen3.6-27B-like", 5120, 6144, 1024, 17408, q4, q6, rows);
    }
    if (!b.config.device.pdl) break;
  }
  b.config.pdl = b.config.device.pdl;
}

/// Experts of few rows that are launches of their own, and the products around them.
void run_bench_experts(Bench& b, Io& io) {
  const auto q4 = GgmlType::kQ4_K, q6 = GgmlType::kQ6_K, q40 = GgmlType::kQ4_0,
             q8 = GgmlType::kQ8_0, mx = GgmlType::kMXFP4;
  bench_moe(b, io, "Qwen3-Coder-30B", q4, q6, 2048, 768, 128, 8);
  bench_moe(b, io, "OLMoE", q4, q6, 2048, 1024, 64, 8);
  bench_moe(b, io, "gpt-oss-20b", mx, mx, 2880, 2880, 32, 4);
  bench_moe(b, io, "the same in Q4_0", q40, q40, 2880, 2880, 32, 4);
  bench_moe(b, io, "26B-A4B", q4, q40, 2816, 704, 128, 8);
  bench_stream(b, io, "q, k, v of gpt-oss", q8, 2880, 5120, Epilogue::kStore, true);
  bench_stream(b, io, "its attention's output", q8, 4096, 2880, Epilogue::kAdd, false);
}

void run_bench_streams(Bench& b) {
  Io io;
  const auto q4 = GgmlType::kQ4_K, q6 = GgmlType::kQ6_K;
  run_bench_rows(b, io);
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
  run_bench_experts(b, io);
}

}  // namespace

int main(int argc, char** argv) {
  const auto wants = [&](const char* what) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], what) == 0) return true;
    }
    return argc == 1;
  };
  sharpi::cuda::check::require_device();
  Bench b;
  must(make_kernel_config(&b.config), "config");
  std::printf("%d multiprocessors, compute capability %d, %d bytes of shared memory\n",
              b.config.device.n_sm, b.config.device.capability, b.config.device.shared_per_block);
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "mma") == 0) b.config.gemm_path = GemmPath::kMma;
    if (std::strcmp(argv[i], "cublas") == 0) b.config.gemm_path = GemmPath::kCublasLt;
  }
  Result<std::unique_ptr<CublasLt>> library = CublasLt::open(0);
  if (library.is_ok()) b.config.cublas_lt = library.value().get();
  std::printf("%s; 2048 rows: %s\n",
              library.is_ok() ? library.value()->text().c_str() : library.status().text().c_str(),
              matmul_path(b.config, 2048));
  if (wants("test")) run_tests(b, {1, 2, 3, 5, 8, 11, 16});
  if (wants("gemm")) run_gemm_tests(b, false);
  if (wants("quick")) run_gemm_tests(b, true);
  if (wants("moe")) run_moe_tests(b, false);
  if (wants("moe-quick")) run_moe_tests(b, true);
  if (wants("rows-bench")) {
    Io io;
    run_bench_rows(b, io);
  }
  if (wants("bench")) run_bench_streams(b);
  if (wants("experts-bench")) {
    Io io;
    run_bench_experts(b, io);
  }
  if (wants("gemm-bench")) run_gemm_bench(b);
  if (wants("moe-bench")) run_moe_bench(b);
  if (wants("moe-rows-bench")) run_moe_rows_bench(b);
  if (wants("moe-tuning")) run_moe_tuning(b);
  if (wants("profile")) run_gemm_profile(b);
  return g_failed == 0 ? 0 : 1;
}
