// SPDX-License-Identifier: MIT
// A mixture-of-experts block of one row in one launch (moe_step.h) against plain loops.
#include <numeric>

#include "cuda/kernels/moe/moe_cases.cuh"
#include "cuda/kernels/products/gemm_check.h"

namespace sharpi::cuda::check {
namespace {

/// Chosen experts, largest first, with their weights.
std::vector<std::pair<uint32_t, double>> route(const StepCase& c, const Matrix& router,
                                               const std::vector<double>& row) {
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

void check_step(Bench& b, const StepCase& c) {
  const uint32_t slabs = c.slots ? c.n_experts / 2 : c.n_experts;
  const Matrix router(GgmlType::kF32, c.n_embd, c.n_experts),
      gate(c.up, c.n_embd, c.fused ? 2 * c.d_ff : c.d_ff, slabs),
      down(c.down, c.d_ff, c.n_embd, slabs);
  std::unique_ptr<Matrix> up, shared[3];
  if (!c.fused) up = std::make_unique<Matrix>(c.up, c.n_embd, c.d_ff, slabs);
  if (c.d_shared != 0) {
    for (int k = 0; k < 2; ++k)
      shared[k] = std::make_unique<Matrix>(c.shared, c.n_embd, c.d_shared);
    shared[2] = std::make_unique<Matrix>(c.down, c.d_shared, c.n_embd);
  }
  std::vector<int32_t> slot_of(c.n_experts, -1);  // of every other expert, in another order
  for (uint32_t e = 1; e < c.n_experts; e += 2)
    slot_of[e] = static_cast<int32_t>((e / 2 + 3) % slabs);
  const std::vector<float> x = random_floats(c.n_embd, 1.0f), nw = random_floats(c.n_embd, 1.0f),
                           sg = random_floats(c.n_embd, 0.05f);
  Buffer<float> dx(x), dn(nw), dsg(sg), dy(c.n_embd);
  Buffer<int32_t> dslot(slot_of);
  const StepBuffers buffers(b.config, c);
  const Neighbours near(c);
  MoeStepParams p;
  p.moe.x = c.add ? dy.p : dx.p;
  p.moe.x_stride = c.n_embd;
  p.moe.n_rows = 1;
  p.moe.norm_weight = c.norm ? dn.p : nullptr;
  p.moe.norm_eps = 1e-6f;
  p.moe.gate = c.fused ? output_slice(gate.m, 0, c.d_ff) : gate.m;
  p.moe.up = c.fused ? output_slice(gate.m, c.d_ff, c.d_ff) : up->m;
  p.moe.down = down.m;
  p.moe.n_used = c.n_used;
  p.moe.slot_of_expert = c.slots ? dslot.p : nullptr;
  p.moe.y = dy.p;
  p.moe.y_stride = c.n_embd;
  p.moe.add = c.add;
  p.router = router.m;
  p.renormalize = c.renormalize;
  buffers.put(&p);
  near.put(c, &p);
  if (c.d_shared != 0) {
    p.shared_gate = shared[0]->m;
    p.shared_up = shared[1]->m;
    p.shared_down = shared[2]->m;
    p.shared_gate_inp = c.gate ? dsg.p : nullptr;
  }
  const std::string name = std::string("moe step ") + ggml_traits(c.up).name + " " +
                           ggml_traits(c.down).name + " " + std::to_string(c.n_used) + " of " +
                           std::to_string(c.n_experts) + ", " + std::to_string(c.n_embd) + "x" +
                           std::to_string(c.d_ff) + "+" + std::to_string(c.d_shared) +
                           (c.before != 0 ? " before" : "") + (c.after.empty() ? "" : " after");
  if (!moe_step_takes(b.config, p)) {
    ++g_failed;
    std::printf("FAIL %s: not taken\n", name.c_str());
    return;
  }

  // With `add` the block's input is y itself, after the product in front.
  std::vector<double> want(x.begin(), x.end());
  near.add_before(&want);
  const std::vector<float> input(want.begin(), want.end());
  const std::vector<double> row =
      norm_row(input.data(), c.n_embd, c.norm ? nw.data() : nullptr, 1e-6);
  if (!c.add) std::fill(want.begin(), want.end(), 0.0);
  std::vector<int32_t> ids;
  for (const auto& [e, weight] : route(c, router, row)) {
    ids.push_back(static_cast<int32_t>(e));
    const int32_t slot = c.slots ? slot_of[e] : ids.back();
    if (slot >= 0)
      add_expert(&want, weight, row, gate, up.get(), down, static_cast<uint64_t>(slot));
  }
  if (c.d_shared != 0) {
    double dot = 0;
    for (uint32_t i = 0; i < c.n_embd; ++i) dot += row[i] * sg[i];
    add_expert(&want, c.gate ? 1 / (1 + std::exp(-dot)) : 1.0, row, *shared[0], shared[1].get(),
               *shared[2], 0);
  }
  std::vector<float> first;
  for (int run = 0; run < 3; ++run) {  // the counters serve every launch
    if (c.add) {
      must(cudaMemcpy(dy.p, x.data(), x.size() * 4, cudaMemcpyHostToDevice), "y");
    } else {
      must(cudaMemset(dy.p, 0xFF, dy.n * 4), "poison");
    }
    must(launch_moe_step(b.config, p, nullptr), name.c_str());
    must(cudaDeviceSynchronize(), name.c_str());
    const std::vector<float> got = dy.host();
    if (run == 0) first = got;
    const bool same = got == first && buffers.ids.host() == ids;
    (same ? g_passed : g_failed)++;
    if (!same) {
      const std::vector<int32_t> chosen = buffers.ids.host();
      std::printf("FAIL %s: run %d, ids %d for %d\n", name.c_str(), run, chosen[0], ids[0]);
    }
    expect_finite(name, got);
    expect_close(name, got, want, kFastMoe);
    near.expect_after(name, got);
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
    check_step(b, {.n_embd = 512,
                   .d_shared = 256,
                   .gate = true,
                   .before = 512,
                   .after = {{q8, 144}, {q4, 48}}});
    check_step(b, {.up = q8, .down = q8, .n_embd = 256, .n_used = 2, .add = false});
    std::printf("moe step tests: %d passed, %d failed\n", g_passed - passed, g_failed - failed);
    return;
  }
  for (const bool slots : {false, true}) {
    for (const bool add : {true, false}) {
      check_step(b, {.n_embd = 512, .d_shared = 256, .gate = true, .add = add, .slots = slots});
      check_step(b, {.up = q8,
                     .down = q8,
                     .n_embd = 256,
                     .n_experts = 8,
                     .n_used = 3,
                     .renormalize = false,
                     .add = add,
                     .slots = slots,
                     .fused = true});
    }
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
                   .n_embd = 768,
                   .n_experts = 12,
                   .n_used = 6,
                   .d_shared = 512,
                   .shared = q6,
                   .gate = true,
                   .before = 512,
                   .after = {{t, 144}, {q4, 48}}});
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
  std::printf("moe step tests: %d passed, %d failed\n", g_passed - passed, g_failed - failed);
}

}  // namespace sharpi::cuda::check
