// SPDX-License-Identifier: MIT
// A mixture-of-experts block of one row in one launch (moe_step.h) against plain loops, and its
// speed next to the same block kernel by kernel.
#include <numeric>

#include "cuda/kernels/gemm_check.h"
#include "cuda/kernels/matrix_cases.cuh"
#include "cuda/kernels/moe_step.h"
#include "cuda/kernels/router.h"

namespace sharpi::cuda::check {
namespace {

constexpr auto q4 = GgmlType::kQ4_K, q5 = GgmlType::kQ5_K, q6 = GgmlType::kQ6_K,
               q8 = GgmlType::kQ8_0, q40 = GgmlType::kQ4_0;

struct StepCase {
  GgmlType up, down;
  uint32_t n_embd, d_ff, n_experts, n_used, d_shared = 0;
  GgmlType shared = q4;
  bool gate = false, norm = true, renormalize = true, add = true, slots = false, fused = false;
  uint32_t before = 0;  // inputs of the product in front, 0: none
  std::vector<std::pair<GgmlType, uint32_t>> after{};
};

/// Device memory that every case needs besides its matrices.
struct StepBuffers {
  Buffer<float> weights;
  Buffer<int32_t> ids;
  Buffer<std::byte> sync;
  StepBuffers(const MatmulConfig& config, const StepCase& c)
      : weights(c.n_used),
        ids(c.n_used),
        sync(moe_step_sync_bytes(c.n_experts, c.n_embd, c.n_used * c.d_ff, c.d_shared)) {
    must(cudaMemset(sync.p, 0, sync.n), "sync");
  }
  void put(MoeStepParams* p) const {
    p->weights = weights.p;
    p->ids = ids.p;
    p->sync = sync.p;
    p->sync_bytes = sync.n;
  }
};

/// The products in front and behind: matrices, input and outputs.
struct Neighbours {
  std::unique_ptr<Matrix> before;
  std::vector<std::unique_ptr<Matrix>> after;
  std::vector<float> m, norm;
  Buffer<float> dm, dnorm;
  std::vector<std::unique_ptr<Buffer<float>>> y;
  explicit Neighbours(const StepCase& c)
      : m(random_floats(c.before, 1.0f)), norm(random_floats(c.n_embd, 1.0f)), dm(m), dnorm(norm) {
    if (c.before != 0) before = std::make_unique<Matrix>(c.up, c.before, c.n_embd);
    for (const auto& [type, n_out] : c.after) {
      after.push_back(std::make_unique<Matrix>(type, c.n_embd, n_out));
      y.push_back(std::make_unique<Buffer<float>>(n_out));
    }
  }
  void put(const StepCase& c, MoeStepParams* p) const {
    if (before != nullptr) {
      p->before.x = dm.p;
      p->before.x_stride = c.before;
      p->before.n_rows = p->before.n_tasks = 1;
      p->before.tasks[0] = {before->m, p->moe.y, c.n_embd};
      p->before.epilogue = Epilogue::kAdd;
    }
    p->after.x = p->moe.y;
    p->after.x_stride = c.n_embd;
    p->after.n_rows = 1;
    p->after.norm_weight = dnorm.p;
    p->after.norm_eps = 1e-6f;
    for (size_t t = 0; t < after.size(); ++t)
      p->after.tasks[p->after.n_tasks++] = {after[t]->m, y[t]->p, after[t]->m.n_out};
  }
  void add_before(std::vector<double>* x) const {
    if (before == nullptr) return;
    const std::vector<double> in(m.begin(), m.end());
    for (size_t o = 0; o < x->size(); ++o) (*x)[o] += before->dot(0, o, in.data());
  }
  void expect_after(const std::string& name, const std::vector<float>& got) const {
    const std::vector<double> row =
        norm_row(got.data(), static_cast<uint32_t>(got.size()), norm.data(), 1e-6);
    for (size_t t = 0; t < after.size(); ++t) {
      std::vector<double> want(after[t]->m.n_out);
      for (size_t o = 0; o < want.size(); ++o) want[o] = after[t]->dot(0, o, row.data());
      expect_close(name + " after " + std::to_string(t), y[t]->host(), want, kFast);
      must(cudaMemset(y[t]->p, 0xFF, want.size() * 4), "poison");
    }
  }
};

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
  p.moe.gate = c.fused ? row_slice(gate.m, 0, c.d_ff) : gate.m;
  p.moe.up = c.fused ? row_slice(gate.m, c.d_ff, c.d_ff) : up->m;
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

// ---- speed -------------------------------------------------------------------------------------

struct Block {
  StepCase shape;
  Rotation router, gate, up, down, shared_gate, shared_up, shared_down, before;
  std::vector<std::unique_ptr<Rotation>> after;
  Buffer<float> x, norm, gate_inp, ffn, logits, scale, h, m;
  std::vector<std::unique_ptr<Buffer<float>>> y;
  StepBuffers buffers;
  std::vector<std::unique_ptr<Buffer<int32_t>>> slots;
  Block(const MatmulConfig& config, const StepCase& c)
      : shape(c),
        router(GgmlType::kF32, c.n_embd, c.n_experts, 40u << 20),
        gate(c.up, c.n_embd, c.d_ff, 600u << 20, c.n_experts),
        up(c.up, c.n_embd, c.d_ff, 600u << 20, c.n_experts),
        down(c.down, c.d_ff, c.n_embd, 600u << 20, c.n_experts),
        shared_gate(c.shared, c.n_embd, std::max(c.d_shared, 16u), 20u << 20),
        shared_up(c.shared, c.n_embd, std::max(c.d_shared, 16u), 20u << 20),
        shared_down(c.down, std::max(c.d_shared, 256u), c.n_embd, 20u << 20),
        before(c.up, c.before, c.n_embd, 100u << 20),
        x(random_floats(c.n_embd, 1.0f)),
        norm(random_floats(c.n_embd, 1.0f)),
        gate_inp(random_floats(c.n_embd, 0.05f)),
        ffn(std::max(c.d_shared, 16u)),
        logits(c.n_experts),
        scale(1),
        h(uint64_t{c.n_used} * c.d_ff),
        m(random_floats(c.before, 1.0f)),
        buffers(config, c) {
    for (const auto& [type, n_out] : c.after) {
      after.push_back(std::make_unique<Rotation>(type, c.n_embd, n_out, 60u << 20));
      y.push_back(std::make_unique<Buffer<float>>(n_out));
    }
    std::vector<int32_t> order(c.n_experts);
    std::iota(order.begin(), order.end(), 0);
    for (int i = 0; i < 16; ++i) {  // other experts in every layer
      std::shuffle(order.begin(), order.end(), g_rng);
      slots.push_back(std::make_unique<Buffer<int32_t>>(order));
    }
  }
  MoeStepParams params(uint32_t layer) const {
    MoeStepParams p;
    p.moe.x = p.moe.y = x.p;
    p.moe.x_stride = p.moe.y_stride = shape.n_embd;
    p.moe.n_rows = 1;
    p.moe.norm_weight = norm.p;
    p.moe.norm_eps = 1e-6f;
    p.moe.gate = gate.at(layer);
    p.moe.up = up.at(layer);
    p.moe.down = down.at(layer);
    p.moe.n_used = shape.n_used;
    p.moe.slot_of_expert = slots[layer % slots.size()]->p;
    p.moe.add = true;
    p.moe.ids = buffers.ids.p;
    p.moe.weights = buffers.weights.p;
    p.router = router.at(layer);
    p.renormalize = true;
    p.moe.workspace = reinterpret_cast<std::byte*>(h.p);
    p.moe.workspace_bytes = h.n * sizeof(float);
    buffers.put(&p);
    p.before.x = m.p;
    p.before.x_stride = shape.before;
    p.before.n_rows = p.before.n_tasks = 1;
    p.before.tasks[0] = {before.at(layer), x.p, shape.n_embd};
    p.before.epilogue = Epilogue::kAdd;
    p.after.x = x.p;
    p.after.x_stride = shape.n_embd;
    p.after.n_rows = 1;
    p.after.norm_weight = norm.p;
    p.after.norm_eps = 1e-6f;
    for (size_t t = 0; t < after.size(); ++t)
      p.after.tasks[p.after.n_tasks++] = {after[t]->at(layer), y[t]->p, shape.after[t].second};
    if (shape.d_shared == 0) return p;
    p.shared_gate = shared_gate.at(layer);
    p.shared_up = shared_up.at(layer);
    p.shared_down = shared_down.at(layer);
    p.shared_gate_inp = gate_inp.p;
    return p;
  }
  double bytes() const {
    double n = (gate.bytes() + up.bytes() + down.bytes()) / shape.n_experts * shape.n_used +
               router.bytes();
    if (shape.d_shared != 0) n += shared_gate.bytes() + shared_up.bytes() + shared_down.bytes();
    return n;
  }
  double near_bytes() const {
    double n = before.bytes();
    for (const auto& w : after) n += w->bytes();
    return n;
  }
};

/// What forward_ffn.cc launches without moe_step.
void launch_apart(const MatmulConfig& config, const Block& k, const MoeStepParams& s,
                  cudaStream_t stream) {
  MatmulParams m;
  m.x = s.moe.x;
  m.x_stride = s.moe.x_stride;
  m.n_rows = 1;
  m.norm_weight = s.moe.norm_weight;
  m.norm_eps = s.moe.norm_eps;
  m.n_tasks = 1;
  m.tasks[0] = {s.router, k.logits.p, k.shape.n_experts};
  m.force_f32 = true;
  must(launch_matmul(config, m, stream), "router product");
  RouterParams r;
  r.logits = k.logits.p;
  r.stride = r.n_experts = k.shape.n_experts;
  r.n_rows = 1;
  r.n_used = k.shape.n_used;
  r.renormalize = true;
  r.ids = s.ids;
  r.weights = s.weights;
  r.pdl = config.pdl;
  must(launch_router(r, stream), "router");
  if (k.shape.d_shared != 0) {
    SigmoidGateParams g;
    g.x = s.moe.x;
    g.x_stride = s.moe.x_stride;
    g.n_rows = 1;
    g.n_in = k.shape.n_embd;
    g.norm_weight = s.moe.norm_weight;
    g.norm_eps = s.moe.norm_eps;
    g.w = s.shared_gate_inp;
    g.y = k.scale.p;
    g.pdl = config.pdl;
    must(launch_sigmoid_gate(g, stream), "shared gate");
    m.force_f32 = false;
    m.n_tasks = 2;
    m.tasks[0] = {s.shared_gate, k.ffn.p, k.shape.d_shared};
    m.tasks[1] = {s.shared_up, k.ffn.p, k.shape.d_shared};
    m.epilogue = Epilogue::kSwiGlu;
    must(launch_matmul(config, m, stream), "shared gate and up");
  }
  must(launch_moe(config, s.moe, stream), "experts");
  if (k.shape.d_shared == 0) return;
  m = {};
  m.x = k.ffn.p;
  m.x_stride = k.shape.d_shared;
  m.n_rows = 1;
  m.n_tasks = 1;
  m.tasks[0] = {s.shared_down, s.moe.y, k.shape.n_embd};
  m.epilogue = Epilogue::kAdd;
  m.row_scale = k.scale.p;
  must(launch_matmul(config, m, stream), "shared down");
}

/// What is in the launch.
enum class Fused { kNothing, kBlock, kBefore, kAll };

void launch_layer(const MatmulConfig& config, const Block& k, uint32_t layer, Fused fused,
                  bool near, cudaStream_t s) {
  MoeStepParams p = k.params(layer);
  const MatmulParams before = p.before, after = p.after;
  if (fused < Fused::kBefore) {
    p.before.n_tasks = 0;
    if (near) must(launch_matmul(config, before, s), "before");
  }
  if (fused < Fused::kAll) p.after.n_tasks = 0;
  if (fused == Fused::kNothing) {
    launch_apart(config, k, p, s);
  } else {
    must(launch_moe_step(config, p, s), "step");
  }
  if (fused < Fused::kAll && near) must(launch_matmul(config, after, s), "after");
}

void bench_step(Bench& b, const char* name, const StepCase& c) {
  const Block k(b.config, c);
  const uint32_t layers = 32;
  const char* const what[] = {"apart", "block", "with the one before", "with both"};
  for (const bool pdl : {false, true}) {
    b.config.pdl = pdl;
    for (const bool near : {false, true}) {
      for (uint32_t f = 0; f < (near ? 4 : 2); ++f) {
        const double ms = time_graph([&](cudaStream_t s) {
          for (uint32_t l = 0; l < layers; ++l)
            launch_layer(b.config, k, l, static_cast<Fused>(f), near, s);
        });
        const double us = ms * 1000 / layers, bytes = k.bytes() + (near ? k.near_bytes() : 0.0);
        std::printf("one row %-10s pdl %d %-17s %-20s %7.2f us, %3.0f%% of %.1f MB at %.1f TB/s\n",
                    name, pdl, near ? "block, neighbours" : "block", what[f], us,
                    100 * bytes / (us * 1e-6) / kBandwidth, bytes * 1e-6, kBandwidth / 1e12);
      }
    }
  }
}

}  // namespace

void run_moe_tests(Bench& b) {
  const int failed = g_failed, passed = g_passed;
  b.config.exact = false;
  for (const bool slots : {false, true}) {
    for (const bool add : {true, false}) {
      check_step(b, {q4, q6, 512, 256, 16, 4, 256, q4, true, true, true, add, slots});
      check_step(b, {q8, q8, 96, 64, 8, 3, 0, q8, false, true, false, add, slots, true});
    }
    check_step(b, {q4,
                   q6,
                   2048,
                   512,
                   20,
                   8,
                   512,
                   q5,
                   true,
                   true,
                   true,
                   true,
                   slots,
                   false,
                   4096,
                   {{q4, 8192}, {q6, 512}, {q8, 32}, {q8, 16}}});
    check_step(
        b, {q4, q4, 2048, 768, 16, 8, 0, q4, false, true, true, true, slots, false, 0, {{q4, 64}}});
    check_step(b, {q40, q40, 160, 32, 4, 1, 96, q40, false, false, false, true, slots, false, 96});
  }
  for (const GgmlType t : kTileTypes) {
    check_step(b, {t,
                   t,
                   768,
                   256,
                   12,
                   6,
                   512,
                   q6,
                   true,
                   true,
                   true,
                   true,
                   false,
                   false,
                   512,
                   {{t, 144}, {q4, 48}}});
    check_step(b, {t, t, 512, 256, 40, 32, 0, q6, false, true, true, true, false, true});
  }
  check_step(b, {q4, q6, 256, 256, 300, 10, 256, q4, true, true, true});
  check_step(b, {q8, q8, 96, 64, 512, 10});
  check_step(b, {q8, q8, 5120, 32, 140, 2});
  check_step(b, {q4, q6, 2048, 1024, 10, 8, 0, q4, false, true, false, true, false, false, 2048});
  std::printf("moe step tests: %d passed, %d failed\n", g_passed - passed, g_failed - failed);
}

void run_moe_bench(Bench& b) {
  bench_step(b, "35B-A3B",
             {q4,
              q6,
              2048,
              512,
              256,
              8,
              512,
              q4,
              true,
              true,
              true,
              true,
              false,
              false,
              4096,
              {{q4, 8192}, {q4, 4096}, {q8, 32}, {q8, 32}}});
  bench_step(b, "Coder-30B",
             {q4,
              q6,
              2048,
              768,
              128,
              8,
              0,
              q4,
              false,
              true,
              true,
              true,
              false,
              false,
              4096,
              {{q4, 4096}, {q4, 512}, {q6, 512}}});
  bench_step(b, "OLMoE",
             {q4,
              q6,
              2048,
              1024,
              64,
              8,
              0,
              q4,
              false,
              true,
              true,
              true,
              false,
              false,
              2048,
              {{q4, 2048}, {q4, 2048}, {q6, 2048}}});
}

}  // namespace sharpi::cuda::check
