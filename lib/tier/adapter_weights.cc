// SPDX-License-Identifier: MIT
#include "tier/adapter_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/ggml_type.h"
#include "plan/adapter_plan.h"

namespace sharpi {

Status read_adapter_rows(
    const GgufFile& file, const GgufTensor& half, uint64_t first, uint64_t n,
    const std::function<Status(uint64_t row, const std::vector<float>& values)>& take) {
  const uint64_t width = half.ne[0], row_bytes = ggml_row_bytes(half.type, width);
  std::vector<std::byte> stored(row_bytes);
  std::vector<float> row(width);
  for (uint64_t r = 0; r < n; ++r) {
    SHARPI_TRY(file.read_tensor(half, (first + r) * row_bytes, stored.data(), row_bytes));
    dequantize_row(half.type, stored.data(), row.data(), width);
    for (const float v : row) {
      if (std::isfinite(v)) continue;
      return Status::error(Code::kFormat,
                           "the adapter's %.*s has an element that is no finite "
                           "number",
                           static_cast<int>(std::min<size_t>(half.name.size(), 64)),
                           half.name.data());
    }
    SHARPI_TRY(take(r, row));
  }
  return Status::ok();
}

Result<std::unique_ptr<AdapterWeights>> AdapterWeights::create(MemoryMeter& meter,
                                                               const AdapterFile& adapter,
                                                               const Placement& placement) {
  const std::vector<MemoryRow> rows = host_adapter_rows(adapter, placement);
  if (rows.empty()) return std::unique_ptr<AdapterWeights>();
  std::unique_ptr<AdapterWeights> w(new AdapterWeights);
  w->row_ = rows[0];
  SHARPI_TRY_ASSIGN(w->memory_, HostBuffer::allocate(meter, w->row_.held_bytes, "an adapter"));
  std::byte* at = w->memory_.data();
  for (const AdapterPair* of : adapter_pairs_on(adapter, placement, DeviceIndex::kHost)) {
    const AdapterPair& p = *of;
    auto* a = reinterpret_cast<float*>(at);
    auto* b = reinterpret_cast<float*>(at + adapter_half_bytes(p.n_in, p.rank));
    at += adapter_half_bytes(p.n_in, p.rank) + adapter_half_bytes(p.n_out, p.rank);
    SHARPI_TRY(read_adapter_rows(*adapter.file, *p.a, 0, p.rank, [&](uint64_t j, const auto& row) {
      std::memcpy(a + j * p.n_in, row.data(), p.n_in * sizeof(float));
      return Status::ok();
    }));
    SHARPI_TRY(read_adapter_rows(*adapter.file, *p.b, p.first_row, p.n_out,
                                 [&](uint64_t o, const auto& row) {
                                   for (uint64_t j = 0; j < p.rank; ++j)
                                     b[j * p.n_out + o] = row[j];
                                   return Status::ok();
                                 }));
    if (w->of_tensor_.size() <= p.tensor) w->of_tensor_.resize(p.tensor + size_t{1}, -1);
    w->of_tensor_[p.tensor] = static_cast<int32_t>(w->products_.size());
    w->products_.push_back({a, b, p.n_in, p.n_out, p.rank, p.scale});
  }
  return w;
}

MemoryRow AdapterWeights::memory_row() const {
  MemoryRow row = row_;
  row.held_bytes = memory_.bytes();
  return row;
}

}  // namespace sharpi
