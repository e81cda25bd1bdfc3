// SPDX-License-Identifier: MIT
// KV rows of a CUDA session in canonical bytes, and the moves of compaction.
#include <algorithm>
#include <cstring>

#include "cuda/cuda_store.h"

namespace sharpi::cuda {

Status CudaSession::check_rows(uint32_t layer, uint32_t first, uint32_t n) const {
  const int32_t g = layer < layout_.group_of_layer.size() ? layout_.group_of_layer[layer] : -1;
  if (g < 0) return Status::error(Code::kInternal, "layer %u stores no KV rows here", layer);
  if (uint64_t{first} + n > capacity_[static_cast<size_t>(g)]) {
    return Status::error(Code::kInternal, "KV rows %u to %u of layer %u exceed its capacity %u",
                         first, first + n, layer, capacity_[static_cast<size_t>(g)]);
  }
  return Status::ok();
}

Status CudaSession::copy_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                              std::byte* host, Way way) const {
  SHARPI_TRY(device_->usable());
  const DeviceScope scope(*device_);
  const KvView v = view(layer);
  const uint64_t row = value ? v.v_row_bytes : v.k_row_bytes;
  const bool out = way == Way::kToHost;
  const cudaMemcpyKind kind = out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  for (uint32_t done = 0; done < n;) {
    const uint32_t slot = first + done;
    const uint32_t in_block = slot % kKvBlockSlots;
    // Whole blocks at once, the rest block by block.
    const bool whole = in_block == 0 && n - done >= kKvBlockSlots;
    const uint32_t blocks = whole ? (n - done) / kKvBlockSlots : 1;
    const uint32_t rows = whole ? kKvBlockSlots : std::min(kKvBlockSlots - in_block, n - done);
    const uint64_t width = rows * row;
    std::byte* there = value ? v.v_row(slot) : v.k_row(slot);
    std::byte* here = host + done * row;
    SHARPI_TRY(device_->check(
        cudaMemcpy2DAsync(out ? here : there, out ? width : v.block_stride, out ? there : here,
                          out ? v.block_stride : width, width, blocks, kind, stream_->get()),
        "copying KV rows"));
    done += blocks * rows;
  }
  return stream_->wait();
}

Status CudaSession::read_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                              void* out) const {
  SHARPI_TRY(check_rows(layer, first, n));
  auto* to = static_cast<std::byte*>(out);
  SHARPI_TRY(copy_rows(layer, value, first, n, to, Way::kToHost));
  const KvView v = view(layer);
  const KvDtype dtype = value ? v.v_dtype : v.k_dtype;
  if (dtype != KvDtype::kQ8_0) return Status::ok();  // stored as they are
  const uint64_t bytes = value ? v.v_row_bytes : v.k_row_bytes;
  std::vector<std::byte> row(bytes);
  for (uint32_t i = 0; i < n; ++i) {
    std::memcpy(row.data(), to + i * bytes, bytes);
    SHARPI_TRY(kv_row_to_canonical(dtype, row.data(), uint64_t{v.n_heads} * v.head_dim,
                                   to + i * bytes));
  }
  return Status::ok();
}

Status CudaSession::write_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                               const void* in) {
  SHARPI_TRY(check_rows(layer, first, n));
  const KvView v = view(layer);
  const KvDtype dtype = value ? v.v_dtype : v.k_dtype;
  const uint64_t bytes = value ? v.v_row_bytes : v.k_row_bytes;
  const auto* from = static_cast<const std::byte*>(in);
  std::vector<std::byte> rows(n * bytes);
  for (uint32_t i = 0; i < n; ++i) {
    SHARPI_TRY(kv_row_from_canonical(dtype, from + i * bytes, uint64_t{v.n_heads} * v.head_dim,
                                     rows.data() + i * bytes));
  }
  return copy_rows(layer, value, first, n, rows.data(), Way::kToDevice);
}

