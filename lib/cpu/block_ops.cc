// SPDX-License-Identifier: MIT
#include "cpu/block_ops.h"

#include <array>

#include "cpu/ops.h"

namespace sharpi::cpu {

void BlockOps::products(const Pass& p, const MatmulInput& in,
                        std::span<const WeightProduct> products) const {
  std::array<MatmulTask, kMaxProducts> tasks;
  for (size_t i = 0; i < products.size(); ++i)
    tasks[i] = matmul_task(*products[i].w, in, products[i].y, products[i].y_stride);
  p.matmul().run({tasks.data(), products.size()});
  add_adapters(p, spec_, pool_, kernels(), in, products);
}

void BlockOps::norm_rows(const Pass& p, const float* x, const TensorRef& w, float* y) const {
  const uint64_t e = spec_.n_embd;
  each_row(p.rows.n_rows, [&](uint64_t r) {
    rms_norm(kernels(), x + r * e, f32_weights(w), spec_.rms_eps, e, y + r * e);
  });
}

void BlockOps::layer_norm_row(const LayerNormSpec& norm, float* row) const {
  if (!norm) return;
  layer_norm(kernels(), row, f32_weights(norm.weight), f32_weights(norm.bias), spec_.rms_eps,
             spec_.n_embd, row);
}

void BlockOps::add_residual(const Pass& p, const Residual& how) const {
  const uint64_t e = spec_.n_embd;
  float* x = p.ws.get(Buf::kX);
  float* y = p.ws.get(Buf::kY);
  each_row(p.rows.n_rows, [&](uint64_t r) {
    if (how.bias) add_inplace(kernels(), y + r * e, f32_weights(how.bias), e);
    if (how.post_norm) {
      rms_norm(kernels(), y + r * e, f32_weights(how.post_norm), spec_.rms_eps, e, y + r * e);
    }
    if (how.scale == 1.0f) {
      add_inplace(kernels(), x + r * e, y + r * e, e);
    } else {
      add_scaled(kernels(), x + r * e, y + r * e, how.scale, e);
    }
    layer_norm_row(how.norm, x + r * e);
  });
}

void BlockOps::activate(const FfnSpec& f, const float* gate, const float* up, uint64_t stride_in,
                        uint64_t width, uint64_t n_rows, float* out) const {
  if (stride_in == width) {
    // Contiguous: split finer than rows, so that one long row is spread too.
    pool_.for_range(n_rows * width, 2048, [&](uint64_t b, uint64_t e) {
      cpu::activate(kernels(), f.activation, gate + b, up + b, e - b, out + b);
    });
    return;
  }
  // Rows shrink towards the front: in order, never in parallel.
  for (uint64_t r = 0; r < n_rows; ++r) {
    cpu::activate(kernels(), f.activation, gate + r * stride_in, up + r * stride_in, width,
                  out + r * width);
  }
}

void BlockOps::activate_alone(const FfnSpec& f, float* y, const float* bias, uint64_t width,
                              uint64_t n_rows) const {
  each_row(n_rows, [&](uint64_t r) {
    cpu::activate_alone(kernels(), f.activation, y + r * width, bias, width);
  });
}

}  // namespace sharpi::cpu
