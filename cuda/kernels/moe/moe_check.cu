// SPDX-License-Identifier: MIT
// A mixture-of-experts block of few rows in one launch (moe_step.h) against plain loops.
#include <numeric>

#include "cuda/kernels/moe/moe_cases.cuh"
#include "cuda/kernels/products/gemm_check.h"

namespace sharpi::cuda::check {
namespace {

/// Chosen experts, largest first, with their weights; all: of every expert.
std::vector<std::pair<uint32_t, double>> route(const StepCase& c, const Matrix& router,
                                               const std::vector<double>& row,
                                               std::vector<double>* all) {
  std::vector<double> p(c.n_experts);
  for (uint32_t e = 0; e < c.n_experts; ++e) p[e] = router.dot(0, e, row.data());
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0, total = 0;
  for (double& v : p) sum += v = std::exp(v - largest);
  std::vector<uint32_t> order(c.n_experts);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return p[a] > p[b]; });
  std::vector<std::pair<uint32_t, double>> chosen;
  for (uint32_t j = 0; j < c.n_used; ++j) {
    chosen.emplace_back(order[j], p[order[j]] / sum);
    total += p[order[j]] / sum;
  }
  for (auto& e : chosen) e.second /= c.renormalize ? total : 1.0;
  for (const double v : p) all->push_back(v / sum);
  return chosen;
}

/// want += weight * down(act(gate row) * up row) of one expert.
void add_expert(std::vector<double>* want, double weight, const std::vector<double>& row,
                const Matrix& gate, const Matrix* up, const Matrix& down, uint64_t e) {
  const uint32_t d_ff = down.m.n_in;
  std::vector<double> h(d_ff);
  for (uint32_t i = 0; i < d_ff; ++i) {
    const double u = up != nullptr ? up->dot(e, i, row.data()) : gate.dot(e, d_ff + i, row.data());
    h[i] = act(Epilogue::kSwiGlu, gate.dot(e, i, row.data()), u);
  }
  for (size_t o = 0; o < want->size(); ++o) (*want)[o] += weight * down.dot(e, o, h.data());
}

/// The matrices of a case.
struct Weights {
  Matrix router, gate, down;
  std::unique_ptr<Matrix> up, shared[3];
  Weights(const StepCase& c, uint32_t slabs)
      : router(GgmlType::kF32, c.n_embd, c.n_experts),
        gate(c.up, c.n_embd, c.fused ? 2 * c.d_ff : c.d_ff, slabs),
        down(c.down, c.d_ff, c.n_embd, slabs) {
    if (!c.fused) up = std::make_unique<Matrix>(c.up, c.n_embd, c.d_ff, slabs);
    if (c.d_shared == 0) return;
    for (int k = 0; k < 2; ++k)
      shared[k] = std::make_unique<Matrix>(c.shared, c.n_embd, c.d_shared);
    shared[2] = std::make_unique<Matrix>(c.down, c.d_shared, c.n_embd);
  }
  void put(const StepCase& c, MoeStepParams* p) const {
    p->moe.gate = c.fused ? output_slice(gate.m, 0, c.d_ff) : gate.m;
    p->moe.up = c.fused ? output_slice(gate.m, c.d_ff, c.d_ff) : up->m;
    p->moe.down = down.m;
    p->router = router.m;
    if (c.d_shared == 0) return;
    p->shared_gate = shared[0]->m;
    p->shared_up = shared[1]->m;
    p->shared_down = shared[2]->m;
  }
};

/// What a block should give.
struct Wanted {
  std::vector<double> y;     // [row][n_embd]
  std::vector<int32_t> ids;  // [row][n_used]
  std::vector<double> p;     // [row][expert]

  /// Whether these experts were chosen, in this order: two whose weights differ by less than the
  /// arithmetic knows may have changed places.
  bool chose(const StepCase& c, const std::vector<int32_t>& got) const {
    for (size_t i = 0; i < ids.size(); ++i) {
      const double* of = p.data() + i / c.n_used * c.n_experts;
      if (got[i] < 0 || got[i] >= static_cast<int32_t>(c.n_experts)) return false;
      if (std::abs(of[got[i]] - of[ids[i]]) > 1e-4 * of[ids[i]]) return false;
    }
    return true;
  }
};
struct Inputs {
  std::vector<float> x, norm, shared_gate;
  std::vector<int32_t> slot_of;
};
Wanted want_of(const StepCase& c, const Weights& w, const Neighbours& near, const Inputs& in) {
  Wanted all;
  for (uint32_t r = 0; r < c.rows; ++r) {
    // With `add` the block's input is y itself, after the product in front.
    std::vector<double> want(in.x.begin() + r * c.n_embd, in.x.begin() + (r + 1) * c.n_embd);
    near.add_before(r, &want);
    const std::vector<float> input(want.begin(), want.end());
    const std::vector<double> row =
        norm_row(input.data(), c.n_embd, c.norm ? in.norm.data() : nullptr, 1e-6);
    if (!c.add) std::fill(want.begin(), want.end(), 0.0);
    for (const auto& [e, weight] : route(c, w.router, row, &all.p)) {
      all.ids.push_back(static_cast<int32_t>(e));
      const int32_t slot = c.slots ? in.slot_of[e] : all.ids.back();
      if (slot >= 0)
        add_expert(&want, weight, row, w.gate, w.up.get(), w.down, static_cast<uint64_t>(slot));
    }
    if (c.d_shared != 0) {
      double dot = 0;
      for (uint32_t i = 0; i < c.n_embd; ++i) dot += row[i] * in.shared_gate[i];
      add_expert(&want, c.gate ? 1 / (1 + std::exp(-dot)) : 1.0, row, *w.shared[0],
                 w.shared[1].get(), *w.shared[2], 0);
    }
    all.y.insert(all.y.end(), want.begin(), want.end());
  }
  return all;
}

std::string name_of(const StepCase& c) {
  return std::string("moe step ") + ggml_traits(c.up).name + " " + ggml_traits(c.down).name + " " +
         std::to_string(c.n_used) + " of " + std::to_string(c.n_experts) + ", " +
         std::to_string(c.n_embd) + "x" + std::to_string(c.d_ff) + "+" +
         std::to_string(c.d_shared) + (c.before != 0 ? " before" : "") +
         (c.after.empty() ? "" : " after") +
         (c.rows != 1 ? ", " + std::to_string(c.rows) + " rows" : "");
}

/// `buffers`: of the case, or of one that had other numbers of rows before.
void check_step(Bench& b, const StepCase& c, const StepBuffers& buffers) {
  const uint32_t slabs = c.slots ? c.n_experts / 2 : c.n_experts;
  const Weights weights(c, slabs);
  Inputs in;
  in.slot_of.assign(c.n_experts, -1);  // of every other expert, in another order
  for (uint32_t e = 1; e < c.n_experts; e += 2)
    in.slot_of[e] = static_cast<int32_t>((e / 2 + 3) % slabs);
  in.x = random_floats(uint64_t{c.rows} * c.n_embd, 1.0f);
  // Rows have experts in common, or all of them, or none.
  for (uint32_t r = 1; r < c.rows; ++r) {
    for (uint32_t i = 0; i < c.n_embd; ++i)
      in.x[r * c.n_embd + i] = std::lerp(in.x[r * c.n_embd + i], in.x[i], c.alike);
  }
  in.norm = random_floats(c.n_embd, 1.0f);
  in.shared_gate = random_floats(c.n_embd, 0.05f);
  Buffer<float> dx(in.x), dn(in.norm), dsg(in.shared_gate), dy(in.x.size());
  Buffer<int32_t> dslot(in.slot_of);
  const Neighbours near(c);
  MoeStepParams p;
  p.moe.x = c.add ? dy.p : dx.p;
  p.moe.x_stride = c.n_embd;
  p.moe.n_rows = c.rows;
  p.moe.norm_weight = c.norm ? dn.p : nullptr;
  p.moe.norm_eps = 1e-6f;
  p.moe.n_used = c.n_used;
  p.moe.slot_of_expert = c.slots ? dslot.p : nullptr;
  p.moe.y = dy.p;
  p.moe.y_stride = c.n_embd;
  p.moe.add = c.add;
  p.renormalize = c.renormalize;
  p.shared_gate_inp = c.d_shared != 0 && c.gate ? dsg.p : nullptr;
  weights.put(c, &p);
  buffers.put(&p);
  near.put(c, &p);
  const std::string name = name_of(c);
  if (!moe_step_takes(b.config, p)) {
    ++g_failed;
    std::printf("FAIL %s: not taken\n", name.c_str());
    return;
  }

  const Wanted want = want_of(c, weights, near, in);
  std::vector<float> first;
  for (int run = 0; run < 3; ++run) {  // the counters serve every launch
    if (c.add) {
      must(cudaMemcpy(dy.p, in.x.data(), in.x.size() * 4, cudaMemcpyHostToDevice), "y");
    } else {
      must(cudaMemset(dy.p, 0xFF, dy.n * 4), "poison");
    }
    must(launch_moe_step(b.config, p, nullptr), name.c_str());
    must(cudaDeviceSynchronize(), name.c_str());
    const std::vector<float> got = dy.host();
    std::vector<int32_t> ids = buffers.ids.host();
    ids.resize(want.ids.size());
    if (run == 0) first = got;
    const bool same = got == first && want.chose(c, ids);
    (same ? g_passed : g_failed)++;
    if (!same)
      std::printf("FAIL %s: run %d, ids %d for %d\n", name.c_str(), run, ids[0], want.ids[0]);
    expect_finite(name, got);
    expect_close(name, got, want.y, kFastMoe);
    near.expect_after(name, got, c.rows);
  }
}
void check_step(Bench& b, const StepCase& c) {
  check_step(b, c, StepBuffers(b.config, c));
}

/// One to eight rows, with all sorts of experts in common, one number of rows after another on the
/// same words. More than four are two launches.
void check_rows(Bench& b, StepCase c) {
  c.rows = kMaxMoeLaunches * kMaxMoeStepRows;
  const StepBuffers buffers(b.config, c);
  constexpr std::pair<uint32_t, float> kLaunches[] = {
      {2, 0.7f}, {4, 0.0f}, {1, 0.0f}, {3, 0.7f}, {4, 1.0f}, {2, 0.0f}, {3, 0.0f}, {1, 0.0f},
      {2, 1.0f}, {8, 0.7f}, {4, 0.7f}, {5, 0.0f}, {3, 1.0f}, {7, 0.7f}, {6, 0.7f}};
  for (const auto& [rows, alike] : kLaunches) {
    c.rows = rows;
    c.alike = alike;
    check_step(b, c, buffers);
  }
}

/// Small shapes that one row and several rows are checked with.
std::vector<StepCase> small_cases() {
  std::vector<StepCase> all;
  for (const bool slots : {false, true}) {
    for (const bool add : {true, false}) {
      all.push_back({.n_embd = 512, .d_shared = 256, .gate = true, .add = add, .slots = slots});
      all.push_back({.up = q8,
                     .down = q8,
                     .n_embd = 256,
                     .n_experts = 8,
                     .n_used = 3,
                     .renormalize = false,
                     .add = add,
                     .slots = slots,
                     .fused = true});
    }
  }
  for (const GgmlType t : {q4, q5, q6, q8, q40}) {
    all.push_back({.up = t,
                   .down = t,
                   .n_embd = 768,
                   .n_experts = 12,
                   .n_used = 6,
                   .d_shared = 512,
                   .shared = q6,
                   .gate = true,
                   .before = 512,
                   .after = {{t, 144}, {q4, 48}}});
  }
  return all;
}

void run_row_tests(Bench& b, const StepCase& all) {
  for (const StepCase& c : small_cases()) check_rows(b, c);
  check_rows(b, {.n_embd = 256, .n_experts = 300, .n_used = 8, .d_shared = 256, .gate = true});
  check_rows(b, {.up = q8, .down = q8, .n_embd = 256, .n_experts = 512, .n_used = 7});
  // As wide as a published model: what devices have room for.
  for (const uint32_t rows : {2u, 3u, 4u, 7u}) {
    StepCase c = all;
    c.rows = rows;
    c.alike = 0.5f;
    if (rows > 2 && b.config.device.shared_per_block < (200 << 10)) {
      std::printf("no room for %u rows of the widest case\n", rows);
      continue;
    }
    check_step(b, c);
  }
}

}  // namespace

void run_moe_tests(Bench& b, bool quick) {
  const int failed = g_failed, passed = g_passed;
  b.config.exact = false;
  const StepCase all = {.n_embd = 2048,
                        .d_ff = 512,
                        .n_experts = 20,
                        .n_used = 8,
                        .d_shared = 512,
                        .shared = q5,
                        .gate = true,
                        .before = 4096,
                        .after = {{q4, 8192}, {q6, 512}, {q8, 32}, {q8, 16}}};
  if (quick) {  // a launch each with everything and with nothing
    for (const uint32_t rows : {1u, 2u, 3u, 6u}) {
      check_step(b, {.n_embd = 512,
                     .d_shared = 256,
                     .gate = true,
                     .before = 512,
                     .after = {{q8, 144}, {q4, 48}},
                     .rows = rows});
      check_step(b, {.up = q8, .down = q8, .n_embd = 256, .n_used = 2, .add = false, .rows = rows});
    }
    std::printf("moe step tests: %d passed, %d failed\n", g_passed - passed, g_failed - failed);
    return;
  }
  for (const StepCase& c : small_cases()) check_step(b, c);
  for (const bool slots : {false, true}) {
    StepCase c = all;
    c.slots = slots;
    check_step(b, c);
    check_step(b, {.down = q4, .d_ff = 768, .n_used = 8, .slots = slots, .after = {{q4, 64}}});
    check_step(b, {.up = q40,
                   .down = q40,
                   .n_embd = 512,
                   .n_experts = 4,
                   .n_used = 1,
                   .d_shared = 768,
                   .shared = q40,
                   .norm = false,
                   .renormalize = false,
                   .slots = slots,
                   .before = 256});
  }
  for (const GgmlType t : {q4, q5, q6, q8, q40}) {
    check_step(b, {.up = t,
                   .down = t,
                   .n_embd = 512,
                   .n_experts = 40,
                   .n_used = 32,
                   .shared = q6,
                   .fused = true});
  }
  check_step(b, {.n_embd = 256, .n_experts = 300, .n_used = 10, .d_shared = 256, .gate = true});
  check_step(b, {.up = q8, .down = q8, .n_embd = 256, .n_experts = 512, .n_used = 10});
  check_step(b, {.up = q8, .down = q8, .n_embd = 5120, .n_experts = 140, .n_used = 2});
  check_step(b, {.d_ff = 1024, .n_experts = 10, .n_used = 8, .renormalize = false, .before = 2048});
  run_row_tests(b, all);
  std::printf("moe step tests: %d passed, %d failed\n", g_passed - passed, g_failed - failed);
}

}  // namespace sharpi::cuda::check
