// SPDX-License-Identifier: MIT
#include "cuda/kernels/products/weight_layout.h"
#include "cuda/kernels/products/weight_types.h"

namespace sharpi::cuda {

WeightLayout weight_layout(GgmlType type, uint64_t n_in, uint64_t n_out) {
  const bool tiles =
      TiledTypes::has(type) && n_out % kPanelRows == 0 && n_in % 32 == 0 && n_in < (1u << 24);
  return tiles ? WeightLayout::kTiles : WeightLayout::kRows;
}

Status check_weights(const char* kernel, GgmlType type, WeightLayout layout) {
  const bool tiles = layout == WeightLayout::kTiles;
  if (tiles ? TiledTypes::has(type) : RowTypes::has(type)) return Status::ok();
  return Status::error(Code::kUnsupported, "kernel %s: no weights of type %s in %s", kernel,
                       ggml_traits(type).name, tiles ? "tiles" : "rows");
}

DeviceMatrix make_device_matrix(GgmlType type, uint64_t n_in, uint64_t n_out, uint64_t n_experts,
                                const void* data) {
  DeviceMatrix m;
  m.type = type;
  m.layout = weight_layout(type, n_in, n_out);
  m.data = static_cast<const std::byte*>(data);
  m.n_in = static_cast<uint32_t>(n_in);
  m.n_out = static_cast<uint32_t>(n_out);
  m.n_experts = static_cast<uint32_t>(n_experts);
  m.expert_bytes = n_experts > 1 ? n_out * ggml_row_bytes(type, n_in) : 0;
  return m;
}

DeviceMatrix output_slice(const DeviceMatrix& m, uint32_t first, uint32_t n) {
  const bool tiles = m.layout == WeightLayout::kTiles;
  if (!m || first + n > m.n_out || (tiles && (first % kPanelRows != 0 || n % kPanelRows != 0)))
    return {};
  DeviceMatrix s = m;
  s.data += first * ggml_row_bytes(m.type, m.n_in);
  s.n_out = n;
  return s;
}

}  // namespace sharpi::cuda
