// SPDX-License-Identifier: MIT
// One matrix product or one mixture of experts against double loops: the cases that the check
// programs run. Thread rule: one thread.
#pragma once

#include "cuda/kernels/check_support.cuh"
#include "cuda/kernels/products/chain.h"

namespace sharpi::cuda::check {

struct Case {
  std::vector<GgmlType> types;
  uint32_t n_in;
  std::vector<uint32_t> n_out;
  uint32_t n_rows;
  Epilogue epilogue = Epilogue::kStore;
  bool norm = false, scale = false, force_f32 = false;
  bool bias = false;  // of every task
};

inline std::string describe(const KernelConfig& c, const Case& k) {
  std::string s = c.exact ? "exact " : "fast ";
  for (size_t t = 0; t < k.types.size(); ++t) {
    s += std::string(ggml_traits(k.types[t]).name) + "[" + std::to_string(k.n_out[t]) + "x" +
         std::to_string(k.n_in) + "] ";
  }
  return s + "rows " + std::to_string(k.n_rows) + " epilogue " +
         std::to_string(static_cast<int>(k.epilogue)) + (k.norm ? " norm" : "") +
         (k.scale ? " scale" : "") + (k.bias ? " bias" : "") +
         (c.deterministic ? " deterministic" : "");
}

/// Rows whose results are compared: all of a few, else some at both ends and between.
inline std::vector<uint32_t> checked_rows(uint32_t n) {
  std::vector<uint32_t> rows;
  for (uint32_t r = 0; r < n; ++r) {
    if (n <= 24 || r < 6 || r + 6 >= n || g_rng() % n < 8) rows.push_back(r);
  }
  return rows;
}
/// Outputs are poisoned before every launch.
inline void expect_finite(const std::string& name, const std::vector<float>& v) {
  size_t bad = 0;
  for (const float f : v) bad += std::isfinite(f) ? 0 : 1;
  (bad == 0 ? g_passed : g_failed)++;
  if (bad != 0)
    std::printf("FAIL %s: %zu of %zu outputs not finite\n", name.c_str(), bad, v.size());
}

/// By the kernel that the product goes to.
inline double tolerance_of(const KernelConfig& config, const Case& k,
                           const std::vector<std::unique_ptr<Matrix>>& w) {
  if (config.exact || k.force_f32) return kExact;
  bool tiles = true;
  for (const std::unique_ptr<Matrix>& m : w) tiles = tiles && m->m.layout == WeightLayout::kTiles;
  const uint32_t most = tiles ? streamed_tile_rows(config) : kStreamedRows;
  if (k.n_rows > most || config.deterministic) return kFastMany;
  return is_gated_epilogue(k.epilogue) ? gated_tolerance(k.types) : fast_tolerance(k.types);
}

inline void check_case(Bench& b, const Case& k) {
  const bool gated = is_gated_epilogue(k.epilogue);
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
  std::vector<std::unique_ptr<Buffer<float>>> y, dbias;
  std::vector<std::vector<float>> bias;
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
  p.workspace_bytes = matmul_workspace_bytes(b.config, k.n_rows, k.n_in,
                                             *std::max_element(k.n_out.begin(), k.n_out.end()));
  poison(b.workspace);
  std::vector<std::vector<float>> before;
  for (size_t t = 0; t < k.types.size(); ++t) {
    w.push_back(std::make_unique<Matrix>(k.types[t], k.n_in, k.n_out[t]));
    const bool add = k.epilogue == Epilogue::kAdd;
    before.push_back(add ? random_floats(uint64_t{k.n_rows} * k.n_out[t], 1.0f)
                         : std::vector<float>(uint64_t{k.n_rows} * k.n_out[t], NAN));
    y.push_back(std::make_unique<Buffer<float>>(before.back()));
    bias.push_back(k.bias ? random_floats(k.n_out[t], 1.0f) : std::vector<float>(k.n_out[t], 0.0f));
    dbias.push_back(std::make_unique<Buffer<float>>(bias.back()));
    p.tasks[t] = {w[t]->m, y[t]->p, k.n_out[t], k.bias ? dbias[t]->p : nullptr};
  }
  must(launch_matmul(b.config, p, nullptr), describe(b.config, k).c_str());
  must(cudaDeviceSynchronize(), describe(b.config, k).c_str());

  const std::vector<uint32_t> rows = checked_rows(k.n_rows);
  for (size_t t = 0; t < (gated ? 1 : k.types.size()); ++t) {
    std::vector<double> want(uint64_t{k.n_rows} * k.n_out[t]);
    for (const uint32_t r : rows) {
      const std::vector<double> row =
          norm_row(x.data() + r * stride, k.n_in, k.norm ? norm.data() : nullptr, 1e-6);
      for (uint32_t o = 0; o < k.n_out[t]; ++o) {
        double v = w[t]->dot(0, o, row.data()) + bias[t][o];
        if (gated)
          v = act(k.epilogue, v, w[1]->dot(0, o, row.data()) + bias[1][o]);
        else if (k.scale)
          v *= scale[r];
        if (k.epilogue == Epilogue::kAdd) v += before[t][r * k.n_out[t] + o];
        want[r * k.n_out[t] + o] = v;
      }
    }
    const std::vector<float> got = y[t]->host();
    expect_finite(describe(b.config, k), got);
    const double tolerance = tolerance_of(b.config, k, w);
    for (const uint32_t r : rows) {
      const auto at = static_cast<ptrdiff_t>(r * k.n_out[t]);
      expect_close(
          describe(b.config, k) + " task " + std::to_string(t) + " row " + std::to_string(r),
          {got.begin() + at, got.begin() + at + k.n_out[t]},
          {want.begin() + at, want.begin() + at + k.n_out[t]}, tolerance);
    }
  }
}

/// A product behind a sum, by itself (launch_link): `post`: what is added is normalised first;
/// `in_place`: the sum goes where its row is.
inline void check_link(Bench& b, const Case& k, bool post, bool in_place) {
  const uint64_t n = uint64_t{k.n_rows} * k.n_in;
  const std::vector<float> x = random_floats(n, 1.0f), add = random_floats(n, 3.0f),
                           weight = random_floats(k.n_in, 1.0f), norm = random_floats(k.n_in, 1.0f);
  Buffer<float> dx(x), dadd(add), dweight(weight), dnorm(norm), dsum(std::vector<float>(n, NAN));
  ChainLink link;
  MatmulParams& p = link.product;
  p.x = dx.p;
  p.x_stride = k.n_in;
  p.n_rows = k.n_rows;
  p.norm_weight = k.norm ? dnorm.p : nullptr;
  p.norm_eps = 1e-6f;
  p.n_tasks = static_cast<uint32_t>(k.types.size());
  p.epilogue = k.epilogue;
  p.workspace = b.workspace.p;
  p.workspace_bytes = matmul_workspace_bytes(b.config, k.n_rows, k.n_in, k.n_out[0]);
  link.branch = {dadd.p, post ? dweight.p : nullptr, 1e-5f, 0.75f, in_place ? dx.p : dsum.p};
  poison(b.workspace);
  std::vector<std::unique_ptr<Matrix>> w;
  std::vector<std::unique_ptr<Buffer<float>>> y;
  for (size_t t = 0; t < k.types.size(); ++t) {
    w.push_back(std::make_unique<Matrix>(k.types[t], k.n_in, k.n_out[t]));
    y.push_back(
        std::make_unique<Buffer<float>>(std::vector<float>(uint64_t{k.n_rows} * k.n_out[t], NAN)));
    p.tasks[t] = {w[t]->m, y[t]->p, k.n_out[t]};
  }
  const std::string name = "link " + describe(b.config, k) + (post ? " post" : "");
  must(launch_link(b.config, link, nullptr), name.c_str());
  must(cudaDeviceSynchronize(), name.c_str());
  const std::vector<float> sums = (in_place ? dx : dsum).host();
  const double tolerance = tolerance_of(b.config, k, w);
  for (uint32_t r = 0; r < k.n_rows; ++r) {
    const auto at = static_cast<ptrdiff_t>(uint64_t{r} * k.n_in);
    const std::vector<double> added =
        norm_row(add.data() + at, k.n_in, post ? weight.data() : nullptr, 1e-5);
    std::vector<double> want(k.n_in);
    for (uint32_t i = 0; i < k.n_in; ++i) want[i] = (x[at + i] + added[i]) * 0.75;
    const std::vector<float> got(sums.begin() + at, sums.begin() + at + k.n_in);
    expect_close(name + " sum of row " + std::to_string(r), got, want, kExact);
    const std::vector<double> row =
        norm_row(got.data(), k.n_in, k.norm ? norm.data() : nullptr, 1e-6);
    for (size_t t = 0; t < k.types.size(); ++t) {
      const std::vector<float> all = y[t]->host();
      const auto from = all.begin() + static_cast<ptrdiff_t>(uint64_t{r} * k.n_out[t]);
      std::vector<double> out(k.n_out[t]);
      for (uint32_t o = 0; o < k.n_out[t]; ++o) out[o] = w[t]->dot(0, o, row.data());
      expect_close(name + " task " + std::to_string(t) + " row " + std::to_string(r),
                   {from, from + k.n_out[t]}, out, tolerance);
    }
  }
}

enum class Routing { kRandom, kFewExperts, kOneExpert };
/// Experts with biases are clamped, too; those of squares have biases and no gate.
enum class Experts { kPlain, kBiased, kSquares };

inline std::vector<int32_t> random_ids(uint32_t n_rows, uint32_t n_used, uint32_t n_experts,
                                       Routing routing) {
  const uint32_t pool =
      routing == Routing::kFewExperts ? std::min(n_experts, n_used + 1) : n_experts;
  std::vector<int32_t> ids(n_rows * n_used), all(pool);
  for (uint32_t e = 0; e < pool; ++e) all[e] = static_cast<int32_t>(n_experts - 1 - e);
  for (uint32_t r = 0; r < n_rows; ++r) {
    std::shuffle(all.begin(), all.end(), g_rng);
    std::copy(all.begin(), all.begin() + n_used, ids.begin() + r * n_used);
    if (routing != Routing::kOneExpert) continue;
    for (uint32_t j = 0; j < n_used; ++j) ids[r * n_used + j] = j == 0 ? 1 : -1;
  }
  if (n_used > 1) ids[1] = -1;
  return ids;
}

inline void check_moe(Bench& b, GgmlType type, uint32_t n_embd, uint32_t d_ff, uint32_t n_experts,
                      uint32_t n_used, uint32_t n_rows, bool fused, bool norm,
                      Routing routing = Routing::kRandom, bool add = true, bool slots = false,
                      Experts kind = Experts::kPlain) {
  const bool squares = kind == Experts::kSquares, biased = kind != Experts::kPlain;
  std::unique_ptr<Matrix> gate, up, down = std::make_unique<Matrix>(type, d_ff, n_embd, n_experts);
  if (!squares) gate = std::make_unique<Matrix>(type, n_embd, fused ? 2 * d_ff : d_ff, n_experts);
  if (!fused) up = std::make_unique<Matrix>(type, n_embd, d_ff, n_experts);
  std::vector<int32_t> ids = random_ids(n_rows, n_used, n_experts, routing);
  std::vector<float> weights(n_rows * n_used), x = random_floats(n_rows * n_embd, 1.0f),
                                               y0(n_rows * n_embd, NAN);
  if (add) y0 = random_floats(n_rows * n_embd, 1.0f);
  for (float& f : weights) f = uniform(0.0f, 1.0f);
  const std::vector<float> nw = random_floats(n_embd, 1.0f);
  Buffer<float> dx(x), dy(y0), dw(weights), dn(nw);
  // Twice as many experts as there are slabs, every other one of them absent.
  std::vector<int32_t> slot_of(2 * n_experts, -1);
  for (uint32_t e = 0; e < n_experts; ++e)
    slot_of[2 * e + 1] = static_cast<int32_t>((e + 3) % n_experts);
  std::vector<int32_t> asked = ids;
  if (slots) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0) asked[i] = 2 * ids[i] + (i % 5 == 0 ? 0 : 1);
      ids[i] = asked[i] < 0 ? -1 : slot_of[static_cast<size_t>(asked[i])];
    }
  }
  Buffer<int32_t> di(asked), dslot(slot_of);
  // Of the model's experts, of which there may be more than matrices.
  const uint32_t n_ids = slots ? 2 * n_experts : n_experts;
  const std::vector<float> gate_bias = random_floats(uint64_t{n_ids} * d_ff, 1.0f),
                           up_bias = random_floats(uint64_t{n_ids} * d_ff, 1.0f),
                           down_bias = random_floats(uint64_t{n_ids} * n_embd, 1.0f);
  const Buffer<float> dgb(gate_bias), dub(up_bias), ddb(down_bias);
  MoeParams p;
  if (biased) p.gate_bias = squares ? nullptr : dgb.p, p.up_bias = dub.p, p.down_bias = ddb.p;
  p.activation = squares  ? Epilogue::kSquare
                 : biased ? Epilogue::kSwiGluClamped
                          : Epilogue::kSwiGlu;
  p.slot_of_expert = slots ? dslot.p : nullptr;
  p.x = dx.p;
  p.x_stride = n_embd;
  p.n_rows = n_rows;
  p.norm_weight = norm ? dn.p : nullptr;
  p.norm_eps = 1e-6f;
  if (!squares) p.gate = fused ? output_slice(gate->m, 0, d_ff) : gate->m;
  p.up = fused ? output_slice(gate->m, d_ff, d_ff) : up->m;
  p.down = down->m;
  p.n_used = n_used;
  p.ids = di.p;
  p.weights = dw.p;
  p.y = dy.p;
  p.y_stride = n_embd;
  p.add = add;
  p.workspace = b.workspace.p;
  p.workspace_bytes = moe_workspace_bytes(b.config, n_rows, n_embd, d_ff, n_experts, n_used);
  poison(b.workspace);
  const std::string name =
      std::string(b.config.exact ? "exact" : "fast") + " moe " + ggml_traits(type).name + " " +
      std::to_string(n_embd) + "x" + std::to_string(d_ff) + " rows " + std::to_string(n_rows) +
      (fused ? " fused" : "") + (norm ? " norm" : "") + (slots ? " slots" : "") +
      (squares  ? " squares"
       : biased ? " biased"
                : "") +
      " routing " + std::to_string(static_cast<int>(routing)) +
      (b.config.deterministic ? " deterministic" : "");
  must(launch_moe(b.config, p, nullptr), name.c_str());
  must(cudaDeviceSynchronize(), name.c_str());
  const std::vector<float> got = dy.host();
  expect_finite(name, got);
  for (const uint32_t r : checked_rows(n_rows)) {
    const auto at = static_cast<ptrdiff_t>(r * n_embd);
    std::vector<double> want(n_embd);
    if (add) std::copy(y0.begin() + at, y0.begin() + at + n_embd, want.begin());
    const std::vector<double> row =
        norm_row(x.data() + r * n_embd, n_embd, norm ? nw.data() : nullptr, 1e-6);
    for (uint32_t j = 0; j < n_used; ++j) {
      const int32_t e = ids[r * n_used + j];
      if (e < 0) continue;
      const auto id = static_cast<uint64_t>(asked[r * n_used + j]);
      std::vector<double> h(d_ff);
      for (uint32_t i = 0; i < d_ff; ++i) {
        const double u = fused ? gate->dot(static_cast<uint64_t>(e), d_ff + i, row.data())
                               : up->dot(static_cast<uint64_t>(e), i, row.data());
        const double g = squares ? 0.0 : gate->dot(static_cast<uint64_t>(e), i, row.data());
        const uint64_t b = id * d_ff + i;
        h[i] =
            biased ? act(p.activation, g + gate_bias[b], u + up_bias[b]) : act(p.activation, g, u);
      }
      for (uint32_t o = 0; o < n_embd; ++o) {
        const double y = down->dot(static_cast<uint64_t>(e), o, h.data());
        want[o] += weights[r * n_used + j] * (biased ? y + down_bias[id * n_embd + o] : y);
      }
    }
    expect_close(name + " row " + std::to_string(r), {got.begin() + at, got.begin() + at + n_embd},
                 want, b.config.exact ? kExact : kFastMoe);
  }
}

/// Experts of squares: in tiles, with last units that are partly filled, of rows that are no tiles,
/// in slots, and where all rows have one expert.
inline void check_squares(Bench& b, uint32_t rows) {
  constexpr auto kSquares = Experts::kSquares;
  const bool odd = rows % 2 != 0;
  check_moe(b, GgmlType::kQ4_K, 512, 256, 16, 4, rows, false, true, Routing::kRandom, true, false,
            kSquares);
  check_moe(b, GgmlType::kQ8_0, 672, 448, 8, 6, rows, false, true, Routing::kRandom, odd, true,
            kSquares);
  check_moe(b, GgmlType::kQ6_K, 256, 512, 16, 8, rows, false, odd, Routing::kFewExperts, true,
            false, kSquares);
  check_moe(b, GgmlType::kQ5_0, 160, 96, 6, 1, rows, false, true, Routing::kOneExpert, odd, false,
            kSquares);
  check_moe(b, GgmlType::kMXFP4, 320, 160, 8, 4, rows, false, true, Routing::kRandom, odd, false,
            kSquares);
  check_moe(b, GgmlType::kBF16, 64, 24, 6, 2, rows, false, true, Routing::kRandom, odd, true,
            kSquares);
  check_moe(b, GgmlType::kIQ4_NL, 96, 64, 8, 3, rows, false, true, Routing::kRandom, odd, false,
            kSquares);
}

constexpr GgmlType kTileTypes[] = {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1,
                                   GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kMXFP4,
                                   GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K};
constexpr GgmlType kOtherTypes[] = {GgmlType::kF32,   GgmlType::kF16,  GgmlType::kBF16,
                                    GgmlType::kQ2_K,  GgmlType::kQ3_K, GgmlType::kIQ4_NL,
                                    GgmlType::kIQ4_XS};

}  // namespace sharpi::cuda::check
