// SPDX-License-Identifier: MIT
// Speed of a mixture-of-experts block of few rows in one launch, that of one row next to the same
// block kernel by kernel.
#include <numeric>

#include "cuda/kernels/moe/moe_cases.cuh"
#include "cuda/kernels/moe/router.h"
#include "cuda/kernels/products/gemm_check.h"

namespace sharpi::cuda::check {
namespace {

struct Block {
  StepCase shape;
  Rotation router, gate, up, down, shared_gate, shared_up, shared_down, before;
  std::vector<std::unique_ptr<Rotation>> after;
  Buffer<float> x, norm, gate_inp, ffn, logits, scale, h, m;
  std::vector<std::unique_ptr<Buffer<float>>> y;
  StepBuffers buffers;
  std::vector<std::unique_ptr<Buffer<int32_t>>> slots;
  Block(const KernelConfig& config, const StepCase& c)
      : shape(c),
        router(GgmlType::kF32, c.n_embd, c.n_experts, 40u << 20),
        gate(c.up, c.n_embd, c.d_ff, 600u << 20, c.n_experts),
        up(c.up, c.n_embd, c.d_ff, 600u << 20, c.n_experts),
        down(c.down, c.d_ff, c.n_embd, 600u << 20, c.n_experts),
        shared_gate(c.shared, c.n_embd, std::max(c.d_shared, 16u), 20u << 20),
        shared_up(c.shared, c.n_embd, std::max(c.d_shared, 16u), 20u << 20),
        shared_down(c.down, std::max(c.d_shared, 256u), c.n_embd, 20u << 20),
        before(c.up, c.before, c.n_embd, 100u << 20),
        x(random_floats(uint64_t{c.rows} * c.n_embd, 1.0f)),
        norm(random_floats(c.n_embd, 1.0f)),
        gate_inp(random_floats(c.n_embd, 0.05f)),
        ffn(std::max(c.d_shared, 16u)),
        logits(c.n_experts),
        scale(1),
        h(uint64_t{c.n_used} * c.d_ff),
        m(random_floats(uint64_t{c.rows} * c.before, 1.0f)),
        buffers(config, c) {
    for (const auto& [type, n_out] : c.after) {
      after.push_back(std::make_unique<Rotation>(type, c.n_embd, n_out, 60u << 20));
      y.push_back(std::make_unique<Buffer<float>>(uint64_t{c.rows} * n_out));
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
    p.moe.n_rows = shape.rows;
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
    p.before.n_rows = shape.rows;
    p.before.n_tasks = 1;
    p.before.tasks[0] = {before.at(layer), x.p, shape.n_embd};
    p.before.epilogue = Epilogue::kAdd;
    p.after.x = x.p;
    p.after.x_stride = shape.n_embd;
    p.after.n_rows = shape.rows;
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
void launch_apart(const KernelConfig& config, const Block& k, const MoeStepParams& s,
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

void launch_layer(const KernelConfig& config, const Block& k, uint32_t layer, Fused fused,
                  bool near, const MoeStepTuning& tuning, cudaStream_t s) {
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
    must(launch_moe_step(config, p, s, tuning), "step");
  }
  if (fused < Fused::kAll && near) must(launch_matmul(config, after, s), "after");
}

constexpr uint32_t kLayers = 32;

double layer_us(const KernelConfig& config, const Block& k, Fused fused, bool near,
                const MoeStepTuning& tuning) {
  return time_graph([&](cudaStream_t s) {
           for (uint32_t l = 0; l < kLayers; ++l)
             launch_layer(config, k, l, fused, near, tuning, s);
         }) *
         1000 / kLayers;
}

void bench_step(Bench& b, const char* name, const StepCase& c, const MoeStepTuning& tuning) {
  const Block k(b.config, c);
  const char* const what[] = {"apart", "block", "with the one before", "with both"};
  for (const bool pdl : {false, true}) {
    b.config.pdl = pdl;
    for (const bool near : {false, true}) {
      for (uint32_t f = 0; f < (near ? 4 : 2); ++f) {
        const double us = layer_us(b.config, k, static_cast<Fused>(f), near, tuning),
                     bytes = k.bytes() + (near ? k.near_bytes() : 0.0);
        std::printf("one row %-10s pdl %d %-17s %-20s %7.2f us, %3.0f%% of %.1f MB at %.1f TB/s\n",
                    name, pdl, near ? "block, neighbours" : "block", what[f], us,
                    100 * bytes / (us * 1e-6) / kBandwidth, bytes * 1e-6, kBandwidth / 1e12);
      }
    }
  }
}

/// One launch a layer, as it is tuned and otherwise.
void bench_tuning(Bench& b, const char* name, const StepCase& c) {
  const Block k(b.config, c);
  b.config.pdl = true;
  const auto row = [&](const char* what, const MoeStepTuning& tuning) {
    std::printf("%-10s %-32s block %6.2f us, with both %6.2f us\n", name, what,
                layer_us(b.config, k, Fused::kBlock, false, tuning),
                layer_us(b.config, k, Fused::kAll, true, tuning));
  };
  row("as it is", {});
  row("cooperative", {.cooperative = true});
  row("leaves 32 KiB of shared memory", {.spare = 32u << 10});
}

/// Blocks of several rows, with the products in front and behind.
void bench_rows(Bench& b, const char* name, StepCase c) {
  b.config.pdl = true;
  for (uint32_t rows = 1; rows <= kMaxMoeLaunches * kMaxMoeStepRows; ++rows) {
    c.rows = rows;
    const Block k(b.config, c);
    if (!moe_step_takes(b.config, k.params(0))) {
      std::printf("%u rows %-10s does not fit\n", rows, name);
      continue;
    }
    std::printf("%u rows %-10s block %7.2f us, with both %7.2f us\n", rows, name,
                layer_us(b.config, k, Fused::kBlock, false, {}),
                layer_us(b.config, k, Fused::kAll, true, {}));
  }
}

const StepCase k35b = {.d_ff = 512,
                       .n_experts = 256,
                       .n_used = 8,
                       .d_shared = 512,
                       .gate = true,
                       .before = 4096,
                       .after = {{q4, 8192}, {q4, 4096}, {q8, 32}, {q8, 32}}};
const StepCase kCoder = {.d_ff = 768,
                         .n_experts = 128,
                         .n_used = 8,
                         .before = 4096,
                         .after = {{q4, 4096}, {q4, 512}, {q6, 512}}};
const StepCase kOlmoe = {.d_ff = 1024,
                         .n_experts = 64,
                         .n_used = 8,
                         .before = 2048,
                         .after = {{q4, 2048}, {q4, 2048}, {q6, 2048}}};

}  // namespace

void run_moe_rows_bench(Bench& b) {
  bench_rows(b, "35B-A3B", k35b);
  bench_rows(b, "Coder-30B", kCoder);
  bench_rows(b, "OLMoE", kOlmoe);
}

void run_moe_bench(Bench& b) {
  bench_step(b, "35B-A3B", k35b, {});
  bench_step(b, "Coder-30B", kCoder, {});
  bench_step(b, "OLMoE", kOlmoe, {});
  run_moe_rows_bench(b);
}

void run_moe_tuning(Bench& b) {
  bench_tuning(b, "35B-A3B", k35b);
  bench_tuning(b, "Coder-30B", kCoder);
  bench_tuning(b, "OLMoE", kOlmoe);
}

}  // namespace sharpi::cuda::check
