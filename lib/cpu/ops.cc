// SPDX-License-Identifier: MIT
#include "cpu/ops.h"

#include <cmath>

#include "cpu/ops_table.h"
#include "kv/codec.h"
#include "kv/rotation.h"

namespace sharpi::cpu {

void rms_norm(const KernelSet& kernels, const float* x, const float* w, float eps, uint64_t n,
              float* y) {
  kernels.ops.rms_norm(x, w, eps, n, y);
}

void layer_norm(const KernelSet& kernels, const float* x, const float* w, const float* b, float eps,
                uint64_t n, float* y) {
  kernels.ops.layer_norm(x, w, b, eps, n, y);
}

void rms_norm_heads(const KernelSet& kernels, float* x, const float* w, float eps, uint32_t n_heads,
                    uint32_t head_dim) {
  const OpsTable& ops = kernels.ops;
  for (uint32_t h = 0; h < n_heads; ++h) {
    float* head = x + uint64_t{h} * head_dim;
    ops.rms_norm(head, w, eps, head_dim, head);
  }
}

void rope_apply(const KernelSet& kernels, RopePairs pairs, float* x, uint32_t n_heads,
                uint32_t head_dim, uint32_t n_rot, const float* cos, const float* sin) {
  const OpsTable& ops = kernels.ops;
  switch (pairs) {
    case RopePairs::kHalves:
      return ops.rope_halves(x, n_heads, head_dim, n_rot / 2, cos, sin);
    case RopePairs::kNeighbours:
      return ops.rope_neighbours(x, n_heads, head_dim, n_rot / 2, cos, sin);
  }
}

void rotate(const KernelSet& kernels, float* x, uint64_t n, uint32_t b) {
  if (b != 0) kernels.ops.rotate(x, n, b);
}
void unrotate(const KernelSet& kernels, float* x, uint64_t n, uint32_t b) {
  if (b != 0) kernels.ops.unrotate(x, n, b);
}
Status store_row(const KernelSet& kernels, KvDtype dtype, uint32_t head_dim, float* x, uint64_t n,
                 void* row) {
  rotate(kernels, x, n, kv_rotation(dtype, head_dim));
  return visit_kv_codec(
      dtype,
      [&]<KvDtype kType>() {
        if constexpr (KvCodecTraits<kType>::kProduct == KvProduct::kLevels) {
          static_assert(kType == KvDtype::kQ4, "how vectors find the levels of this codec");
          kernels.ops.encode_q4(x, n, static_cast<uint8_t*>(row));
          return Status::ok();
        } else {
          return kv_encode_row(kType, x, n, row);
        }
      },
      [&] { return kv_encode_row(dtype, x, n, row); });  // which refuses it
}

void add_inplace(const KernelSet& kernels, float* y, const float* x, uint64_t n) {
  kernels.ops.add(y, x, n);
}
void scale_inplace(const KernelSet& kernels, float* y, float s, uint64_t n) {
  kernels.ops.scale(y, s, n);
}
void add_scaled(const KernelSet& kernels, float* y, const float* x, float s, uint64_t n) {
  kernels.ops.add_scaled(y, x, s, n);
}
void swiglu(const KernelSet& kernels, const float* gate, const float* up, uint64_t n, float* y) {
  kernels.ops.swiglu(gate, up, n, y);
}
void geglu(const KernelSet& kernels, const float* gate, const float* up, uint64_t n, float* y) {
  kernels.ops.geglu(gate, up, n, y);
}
void swiglu_clamped(const KernelSet& kernels, const float* gate, const float* up, uint64_t n,
                    float* y) {
  kernels.ops.swiglu_clamped(gate, up, n, y);
}
void activate(const KernelSet& kernels, Activation activation, const float* gate, const float* up,
              uint64_t n, float* y) {
  switch (activation) {
    case Activation::kSilu:
      return swiglu(kernels, gate, up, n, y);
    case Activation::kGeluTanh:
      return geglu(kernels, gate, up, n, y);
    case Activation::kSwigluClamped:
      return swiglu_clamped(kernels, gate, up, n, y);
    case Activation::kGeluErf:
    case Activation::kReluSquared:
      break;  // activate_alone(): it has no gate
  }
}

void gelu(const KernelSet& kernels, float* y, const float* bias, uint64_t n) {
  kernels.ops.gelu(y, bias, n);
}
void relu_squared(const KernelSet& kernels, float* y, const float* bias, uint64_t n) {
  kernels.ops.relu_squared(y, bias, n);
}
void activate_alone(const KernelSet& kernels, Activation activation, float* y, const float* bias,
                    uint64_t n) {
  switch (activation) {
    case Activation::kGeluErf:
      return gelu(kernels, y, bias, n);
    case Activation::kReluSquared:
      return relu_squared(kernels, y, bias, n);
    case Activation::kSilu:
    case Activation::kGeluTanh:
    case Activation::kSwigluClamped:
      break;  // activate(): it has a gate
  }
}
void sigmoid(const KernelSet& kernels, float* x, uint64_t n) {
  kernels.ops.sigmoid(x, n);
}
void sigmoid_gate(const KernelSet& kernels, float* y, const float* gate, uint64_t n) {
  kernels.ops.sigmoid_gate(y, gate, n);
}
void silu_gate(const KernelSet& kernels, float* y, const float* gate, uint64_t n) {
  kernels.ops.silu_gate(y, gate, n);
}
void softcap(const KernelSet& kernels, float* y, float cap, uint64_t n) {
  kernels.ops.softcap(y, cap, n);
}
void softmax(const KernelSet& kernels, float* x, uint64_t n) {
  if (n > 0) kernels.ops.softmax(x, n);
}
float dot(const KernelSet& kernels, const float* a, const float* b, uint64_t n) {
  return kernels.ops.dot(a, b, n);
}

void top_k(const float* p, uint32_t n, uint32_t k, uint32_t* ids, float* values) {
  uint32_t held = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (held == k && !(k > 0 && p[i] > values[k - 1])) continue;
    // Insert behind equal values: those have lower indices.
    uint32_t at = held < k ? held++ : k - 1;
    for (; at > 0 && p[i] > values[at - 1]; --at) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    values[at] = p[i];
    ids[at] = i;
  }
}

}  // namespace sharpi::cpu
