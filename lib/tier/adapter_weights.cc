// SPDX-License-Identifier: MIT
#include "tier/adapter_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/ggml_type.h"
#include "plan/adapter_plan.h"

namespace sharpi {
namespace {

/// Rows of a tensor as f32, one at a time.
template <class Take>
Status read_rows(const GgufFile& file, const GgufTensor& t, uint64_t first, uint64_t n,
                 const Take& take) {
  const uint64_t width = t.ne[0], row_bytes = ggml_row_bytes(t.type, width);
  std::vector<std::byte> stored(row_bytes);
  std::vector<float> row(width);
  for (uint64_t r = 0; r < n; ++r) {
    SHARPI_TRY(file.read_tensor(t, (first + r) * row_bytes, stored.data(), row_bytes));
    dequantize_row(t.type, stored.data(), row.data(), width);
    for (const float v : row) {
      if (std::isfinite(v)) continue;
      return Status::error(Code::kFormat,
                           "the adapter's %.*s has an element that is no finite "
                           "number",
                           static_cast<int>(std::min<size_t>(t.name.size(), 64)), t.name.data());
    }
    take(r, row);
  }
  return Status::ok();
}

}  // namespace

Result<std::unique_ptr<AdapterWeights>> AdapterWeights::create(MemoryMeter& meter,
                                                               const AdapterFile& adapter) {
  std::unique_ptr<AdapterWeights> w(new AdapterWeights);
  w->row_ = adapter_row(adapter);
  SHARPI_TRY_ASSIGN(w->memory_, HostBuffer::allocate(meter, w->row_.held_bytes, "an adapter"));
  std::byte* at = w->memory_.data();
  for (const AdapterPair& p : adapter.pairs) {
    auto* a = reinterpret_cast<float*>(at);
    auto* b = reinterpret_cast<float*>(at + adapter_half_bytes(p.n_in, p.rank));
    at += adapter_half_bytes(p.n_in, p.rank) + adapter_half_bytes(p.n_out, p.rank);
    SHARPI_TRY(
        read_rows(*adapter.file, *p.a, 0, p.rank, [&](uint64_t j, const std::vector<float>& row) {
          std::memcpy(a + j * p.n_in, row.data(), p.n_in * sizeof(float));
        }));
    SHARPI_TRY(read_rows(*adapter.file, *p.b, p.first_row, p.n_out,
                         [&](uint64_t o, const std::vector<float>& row) {
                           for (uint64_t j = 0; j < p.rank; ++j) b[j * p.n_out + o] = row[j];
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
