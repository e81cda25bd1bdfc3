// SPDX-License-Identifier: MIT
// Row-wise operations of a transformer block, in f32. Rows are independent: a row's bits do not
// depend on its neighbours or on the thread count.
// Thread rule: pure functions over caller-owned rows; callers spread rows over the pool.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "cpu/kernel_set.h"
#include "kv/codec_traits.h"
#include "model/model_spec.h"

namespace sharpi::cpu {

/// y = x / sqrt(mean(x^2) + eps) * w; w may be null (all ones); y may be x.
void rms_norm(const KernelSet& kernels, const float* x, const float* w, float eps, uint64_t n,
              float* y);
/// y = (x - mean) / sqrt(variance + eps) * w + b; b may be null; y may be x.
void layer_norm(const KernelSet& kernels, const float* x, const float* w, const float* b, float eps,
                uint64_t n, float* y);
/// RMS norm of each of n_heads slices of head_dim elements with one shared weight (nullable).
void rms_norm_heads(const KernelSet& kernels, float* x, const float* w, float eps, uint32_t n_heads,
                    uint32_t head_dim);

/// Rotary embedding in place on n_heads heads. cos/sin: [n_rot/2] for this row's position.
void rope_apply(const KernelSet& kernels, RopePairs pairs, float* x, uint32_t n_heads,
                uint32_t head_dim, uint32_t n_rot, const float* cos, const float* sin);

void add_inplace(const KernelSet& kernels, float* y, const float* x, uint64_t n);  // y += x
void scale_inplace(const KernelSet& kernels, float* y, float s, uint64_t n);       // y *= s
void add_scaled(const KernelSet& kernels, float* y, const float* x, float s,
                uint64_t n);  // y += s * x
void swiglu(const KernelSet& kernels, const float* gate, const float* up, uint64_t n,
            float* y);  // silu(gate) * up
void geglu(const KernelSet& kernels, const float* gate, const float* up, uint64_t n,
           float* y);  // gelu_tanh(gate) * up
/// Activation::kSwigluClamped.
void swiglu_clamped(const KernelSet& kernels, const float* gate, const float* up, uint64_t n,
                    float* y);
/// What an FFN does with its two products: y = act(gate) * up; y may be gate.
void activate(const KernelSet& kernels, Activation activation, const float* gate, const float* up,
              uint64_t n, float* y);
/// y = gelu(y + bias), with the error function; bias may be null.
void gelu(const KernelSet& kernels, float* y, const float* bias, uint64_t n);
/// y = max(y + bias, 0)^2; bias may be null.
void relu_squared(const KernelSet& kernels, float* y, const float* bias, uint64_t n);
/// What an FFN without a gate does with its product: y = act(y + bias); bias may be null.
void activate_alone(const KernelSet& kernels, Activation activation, float* y, const float* bias,
                    uint64_t n);
void sigmoid(const KernelSet& kernels, float* x, uint64_t n);  // x = sigmoid(x)
void sigmoid_gate(const KernelSet& kernels, float* y, const float* gate,
                  uint64_t n);  // y *= sigmoid(gate)
void silu_gate(const KernelSet& kernels, float* y, const float* gate,
               uint64_t n);                                               // y *= silu(gate)
void softcap(const KernelSet& kernels, float* y, float cap, uint64_t n);  // y = cap * tanh(y / cap)
/// Max-subtracted softmax in place.
void softmax(const KernelSet& kernels, float* x, uint64_t n);
float dot(const KernelSet& kernels, const float* a, const float* b, uint64_t n);

/// kv/rotation.h, with the same bits; b = 0 leaves x as it is.
void rotate(const KernelSet& kernels, float* x, uint64_t n, uint32_t b);
void unrotate(const KernelSet& kernels, float* x, uint64_t n, uint32_t b);
/// kv_encode_row(), with the same bits, of a row that is rotated first if the codec rotates. `x` is
/// scratch afterwards.
Status store_row(const KernelSet& kernels, KvDtype dtype, uint32_t head_dim, float* x, uint64_t n,
                 void* row);

/// Router: the k largest of n probabilities in descending order, ties to the lower index.
void top_k(const float* p, uint32_t n, uint32_t k, uint32_t* ids, float* values);

}  // namespace sharpi::cpu
