// SPDX-License-Identifier: MIT
// Shapes of mixture-of-experts blocks of few rows and their neighbours: what moe_check.cu and
// moe_speed_check.cu launch. Thread rule: one thread.
#pragma once

#include "cuda/kernels/moe/moe_step.h"
#include "cuda/kernels/products/matrix_cases.cuh"

namespace sharpi::cuda::check {

inline constexpr auto q4 = GgmlType::kQ4_K, q5 = GgmlType::kQ5_K, q6 = GgmlType::kQ6_K,
                      q8 = GgmlType::kQ8_0, q40 = GgmlType::kQ4_0;

struct StepCase {
  GgmlType up = q4, down = q6;
  uint32_t n_embd = 2048, d_ff = 256, n_experts = 16, n_used = 4, d_shared = 0;
  GgmlType shared = q4;
  bool gate = false;  // of the shared expert
  bool norm = true, renormalize = true, add = true, slots = false;
  bool fused = false;   // gate and up in one matrix
  uint32_t before = 0;  // inputs of the product in front, 0: none
  std::vector<std::pair<GgmlType, uint32_t>> after{};
  uint32_t rows = 1;
  float alike = 0.0f;  // 1: all rows are the first one
};

/// Device memory that every case needs besides its matrices.
struct StepBuffers {
  Buffer<float> weights;
  Buffer<int32_t> ids;
  Buffer<std::byte> sync;
  StepBuffers(const KernelConfig& config, const StepCase& c)
      : weights(uint64_t{c.rows} * c.n_used),
        ids(uint64_t{c.rows} * c.n_used),
        sync(moe_step_sync_bytes(c.n_embd, c.n_used * c.d_ff, c.d_shared)) {
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
      : m(random_floats(uint64_t{c.rows} * c.before, 1.0f)),
        norm(random_floats(c.n_embd, 1.0f)),
        dm(m),
        dnorm(norm) {
    if (c.before != 0) before = std::make_unique<Matrix>(c.up, c.before, c.n_embd);
    for (const auto& [type, n_out] : c.after) {
      after.push_back(std::make_unique<Matrix>(type, c.n_embd, n_out));
      y.push_back(std::make_unique<Buffer<float>>(uint64_t{c.rows} * n_out));
    }
  }
  void put(const StepCase& c, MoeStepParams* p) const {
    if (before != nullptr) {
      p->before.x = dm.p;
      p->before.x_stride = c.before;
      p->before.n_rows = c.rows;
      p->before.n_tasks = 1;
      p->before.tasks[0] = {before->m, p->moe.y, c.n_embd};
      p->before.epilogue = Epilogue::kAdd;
    }
    p->after.x = p->moe.y;
    p->after.x_stride = c.n_embd;
    p->after.n_rows = c.rows;
    p->after.norm_weight = dnorm.p;
    p->after.norm_eps = 1e-6f;
    for (size_t t = 0; t < after.size(); ++t)
      p->after.tasks[p->after.n_tasks++] = {after[t]->m, y[t]->p, after[t]->m.n_out};
  }
  void add_before(uint32_t row, std::vector<double>* x) const {
    if (before == nullptr) return;
    const uint32_t n_in = before->m.n_in;
    const std::vector<double> in(m.begin() + row * n_in, m.begin() + (row + 1) * n_in);
    for (size_t o = 0; o < x->size(); ++o) (*x)[o] += before->dot(0, o, in.data());
  }
  /// got: the outputs of the block, row after row.
  void expect_after(const std::string& name, const std::vector<float>& got, uint32_t rows) const {
    const auto n_embd = static_cast<uint32_t>(got.size() / rows);
    for (size_t t = 0; t < after.size(); ++t) {
      const uint32_t n_out = after[t]->m.n_out;
      std::vector<double> want(uint64_t{rows} * n_out);
      for (uint32_t r = 0; r < rows; ++r) {
        const std::vector<double> row =
            norm_row(got.data() + uint64_t{r} * n_embd, n_embd, norm.data(), 1e-6);
        for (uint32_t o = 0; o < n_out; ++o)
          want[uint64_t{r} * n_out + o] = after[t]->dot(0, o, row.data());
      }
      expect_close(name + " after " + std::to_string(t), y[t]->host(), want, kFast);
      must(cudaMemset(y[t]->p, 0xFF, want.size() * 4), "poison");
    }
  }
};

}  // namespace sharpi::cuda::check
