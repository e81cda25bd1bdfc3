// SPDX-License-Identifier: MIT
// What the classes for every kind of block (attention, delta net, FFN, experts) share: the model's
// spec, the settings of the kernels, and operations on the rows of a pass.
// Thread rule: immutable; rows are spread over the pool.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "cpu/adapter_products.h"
#include "cpu/pass.h"

namespace sharpi::cpu {

class BlockOps {
 public:
  /// `spec` and `pool` outlive it. config.kernels: of a set that the machine has.
  BlockOps(const ModelSpec& spec, ThreadPool& pool, const MatmulConfig& config)
      : spec_(spec), pool_(pool), config_(config) {}
  const ModelSpec& spec() const { return spec_; }
  ThreadPool& pool() const { return pool_; }
  const MatmulConfig& config() const { return config_; }
  const KernelSet& kernels() const { return *config_.kernels; }

  /// body(row) for every row of the submission, spread over the pool when there are several.
  template <class F>
  void each_row(uint64_t n_rows, F&& body) const {
    if (n_rows == 1) {
      body(uint64_t{0});
      return;
    }
    pool_.for_range(n_rows, 1, [&](uint64_t b, uint64_t e) {
      for (uint64_t r = b; r < e; ++r) body(r);
    });
  }
  /// Products of all rows of `in`, which are those of the submission, and what the adapters of
  /// their sessions add to them. Pre: at most kMaxProducts.
  void products(const Pass& p, const MatmulInput& in,
                std::span<const WeightProduct> products) const;
  void product(const Pass& p, const MatmulInput& in, const TensorRef& w, float* y,
               uint64_t y_stride) const {
    const WeightProduct one{&w, y, y_stride};
    products(p, in, {&one, 1});
  }
  /// A row of n_embd under a layer norm, which may be absent.
  void layer_norm_row(const LayerNormSpec& norm, float* row) const;
  /// y = norm(x), rows of n_embd.
  void norm_rows(const Pass& p, const float* x, const TensorRef& w, float* y) const;
  /// What a block's output y goes through on its way to the residual stream; all may be absent.
  struct Residual {
    float scale;
    TensorRef post_norm = {}, bias = {};
    LayerNormSpec norm = {};
  };
  /// x = norm(x + scale * post_norm(y + bias)), row by row.
  void add_residual(const Pass& p, const Residual& how) const;
  /// out = act(gate) * up, rows of `width` that lie stride_in apart; `out`, whose rows follow each
  /// other, may be `gate`.
  void activate(const FfnSpec& f, const float* gate, const float* up, uint64_t stride_in,
                uint64_t width, uint64_t n_rows, float* out) const;
  /// y = act(y + bias) of an FFN without a gate; bias may be null.
  void activate_alone(const FfnSpec& f, float* y, const float* bias, uint64_t width,
                      uint64_t n_rows) const;

 private:
  const ModelSpec& spec_;
  ThreadPool& pool_;
  const MatmulConfig config_;
};

}  // namespace sharpi::cpu
