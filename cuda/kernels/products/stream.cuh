// SPDX-License-Identifier: MIT
// Where a launch's panels lie and what becomes of their sums: shared by matvec.cu and
// matvec_f32.cu. Thread rule: device code.
#pragma once

#include <cstdint>

#include "cuda/kernels/products/matvec.h"

namespace sharpi::cuda {

__device__ __forceinline__ uint32_t divide(uint32_t n, const Divider& d) {
  return d.divisor == 1 ? n : __umulhi(n, d.multiplier);
}

namespace matvec {

/// Where a warp's arithmetic is: unit u of panel v, `left` units to go in this part.
struct Position {
  uint32_t v, u, left;
};
/// Where a warp begins, in every part alike.
__device__ __forceinline__ Position first_position(const StreamParams& p, uint32_t warp) {
  const uint32_t extra = blockIdx.x < p.more_groups ? 1 : 0;
  const uint32_t begin = warp * p.share[extra] + min(warp, p.more_share[extra]);
  Position at;
  at.left = p.share[extra] + (warp < p.more_share[extra] ? 1 : 0);
  at.v = divide(begin, p.by_units);
  at.u = begin - at.v * p.units;
  return at;
}

}  // namespace matvec

/// act(gate) * up. All activations are gate * sigmoid(a): a = gate, twice the inner of gelu's tanh,
/// or of what is clamped 1.702 gate.
__device__ __forceinline__ float gated_value(Epilogue e, float gate, float up) {
  float inner = 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate);
  if (e == Epilogue::kSwiGluClamped) {
    gate = fminf(gate, 7.0f);
    up = fminf(fmaxf(up, -7.0f), 7.0f) + 1.0f;
    inner = 1.702f * gate;
  }
  return __fdividef(gate, 1.0f + __expf(e == Epilogue::kSwiGlu ? -gate : -inner)) * up;
}

/// What kSquare makes of a sum; what is no number stays so.
__device__ __forceinline__ float square_value(float v) {
  const float h = v < 0.0f ? 0.0f : v;
  return h * h;
}

/// The matrix of the slabs that entry `at` of the ids means; negative: none.
__device__ __forceinline__ int32_t expert_slot(const int32_t* ids, const int32_t* slot_of_expert,
                                               uint32_t at) {
  const int32_t id = ids[at];
  return slot_of_expert == nullptr || id < 0 ? id : slot_of_expert[id];
}
__device__ __forceinline__ int32_t expert_slot(const StreamParams& p, uint32_t j) {
  return expert_slot(p.ids, p.slot_of_expert, blockIdx.y * p.n_used + j);
}

/// One panel of a launch: group `group`, member `which` (gate 0, up 1).
struct PanelRef {
  const StreamTask* task;
  const uint8_t* data;  // of the panel, expert of kExpertsUp included
  uint32_t panel;       // in its matrix
  uint32_t slot;        // kExpertsUp: j
};

template <bool kMoe>
__device__ __forceinline__ PanelRef find_panel(const StreamParams& p, uint32_t group,
                                               uint32_t which) {
  PanelRef r;
  uint32_t t = which;
  r.panel = group;
  r.slot = 0;
  if (kMoe && p.mode == StreamMode::kExpertsUp) {
    r.slot = divide(group, p.by_panels);
    r.panel = group - r.slot * p.by_panels.divisor;
  } else if (!is_gated_epilogue(p.epilogue)) {
#pragma unroll
    for (uint32_t k = 1; k < kMaxMatmulTasks; ++k) {
      if (k < p.n_tasks && group >= p.tasks[k].first_group) t = k;
    }
    r.panel = group - p.tasks[t].first_group;
  }
  r.task = &p.tasks[t];
  r.data = r.task->data + uint64_t{r.panel} * r.task->panel_bytes;
  if (kMoe && p.mode == StreamMode::kExpertsUp) {
    r.data += static_cast<uint64_t>(max(expert_slot(p, r.slot), 0)) * r.task->expert_bytes;
  }
  return r;
}

/// Offset of a segment's slab (kExpertsDown); 0 otherwise.
__device__ __forceinline__ uint64_t segment_offset(const StreamParams& p, const StreamTask& t,
                                                   uint32_t segment) {
  if (p.mode != StreamMode::kExpertsDown) return 0;
  return static_cast<uint64_t>(max(expert_slot(p, segment), 0)) * t.expert_bytes;
}
/// What a segment's input is multiplied by.
__device__ __forceinline__ float segment_weight(const StreamParams& p, uint32_t segment) {
  if (p.mode != StreamMode::kExpertsDown) return 1.0f;
  return expert_slot(p, segment) < 0 ? 0.0f : p.weights[blockIdx.y * p.n_used + segment];
}

__device__ __forceinline__ const float* input_row(const StreamParams& p, uint32_t r) {
  return p.x + (p.mode == StreamMode::kDense ? r : blockIdx.y) * p.x_stride;
}

/// Row of y that output row r of panel `ref` goes to.
__device__ __forceinline__ uint32_t output_row(const StreamParams& p, const PanelRef& ref,
                                               uint32_t r) {
  if (p.mode == StreamMode::kDense) return r;
  return p.mode == StreamMode::kExpertsUp ? blockIdx.y * p.n_used + ref.slot : blockIdx.y;
}

/// What is added to output row i of group `group`, to the gate and to the up of gated launches.
/// Not inlined, because most models have no biases.
static __device__ __noinline__ float2 biases_of(const StreamParams& p, uint32_t group, uint32_t i) {
  const PanelRef ref = find_panel<true>(p, group, 0);
  const uint32_t o = ref.panel * kPanelRows + i, n_out = ref.task->n_out;
  if (p.mode == StreamMode::kExpertsDown) {
    float sum = 0.0f;
    for (uint32_t j = 0; j < p.n_segments; ++j) {
      if (expert_slot(p, j) < 0) continue;
      const auto id = static_cast<uint64_t>(p.ids[blockIdx.y * p.n_used + j]);
      sum = fmaf(segment_weight(p, j), ref.task->bias[id * n_out + o], sum);
    }
    return {sum, 0.0f};
  }
  uint64_t at = o;
  if (p.mode == StreamMode::kExpertsUp) {
    const int32_t id = p.ids[blockIdx.y * p.n_used + ref.slot];
    at += static_cast<uint64_t>(max(id, 0)) * n_out;
  }
  const float* second = is_gated_epilogue(p.epilogue) ? p.tasks[1].bias : nullptr;
  return {ref.task->bias != nullptr ? ref.task->bias[at] : 0.0f,
          second != nullptr ? second[at] : 0.0f};
}

/// The epilogue of one output; `second` is the up sum of gated launches, `row` the row of x, `old`
/// where kAdd finds what it adds to.
__device__ __forceinline__ void store_output(const StreamParams& p, float* y, uint32_t row,
                                             float first, float second, const float* old) {
  if (is_gated_epilogue(p.epilogue)) {
    *y = gated_value(p.epilogue, first, second);
    return;
  }
  if (p.epilogue == Epilogue::kSquare) {
    *y = square_value(first);
    return;
  }
  const float v = p.row_scale != nullptr ? first * p.row_scale[row] : first;
  *y = p.epilogue == Epilogue::kAdd ? *old + v : v;
}

}  // namespace sharpi::cuda
