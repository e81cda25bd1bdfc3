// SPDX-License-Identifier: MIT
#include "device/session_copies.h"

#include <algorithm>

namespace sharpi::device {

Status SessionCopies::bytes(void* to, const void* from, uint64_t n, Way way,
                            const char* what) const {
  if (n == 0) return Status::ok();
  SHARPI_TRY(device_->usable());
  const DeviceScope scope(*device_);
  SHARPI_TRY(stream_->copy(to, from, n, way, what));
  return stream_->wait();
}

Status SessionCopies::wait() const {
  SHARPI_TRY(device_->usable());
  const DeviceScope scope(*device_);
  return stream_->wait();
}

Status SessionCopies::rows(const KvView& v, bool value, uint32_t first, uint32_t n, std::byte* host,
                           Way way) const {
  SHARPI_TRY(start_rows(v, value, first, n, host, way));
  return wait();
}

Status SessionCopies::start_rows(const KvView& v, bool value, uint32_t first, uint32_t n,
                                 std::byte* host, Way way) const {
  SHARPI_TRY(device_->usable());
  const DeviceScope scope(*device_);
  const uint64_t row = value ? v.v_row_bytes : v.k_row_bytes;
  const bool out = way == Way::kToHost;
  for (uint32_t done = 0; done < n;) {
    const uint32_t slot = first + done;
    const uint32_t in_block = slot % kKvBlockSlots;
    // Whole blocks at once where they lie at equal distances, the rest block by block.
    const bool whole = v.table == nullptr && in_block == 0 && n - done >= kKvBlockSlots;
    const uint32_t blocks = whole ? (n - done) / kKvBlockSlots : 1;
    const uint32_t rows = whole ? kKvBlockSlots : std::min(kKvBlockSlots - in_block, n - done);
    const uint64_t width = rows * row;
    std::byte* there = value ? v.v_row(slot) : v.k_row(slot);
    std::byte* here = host + done * row;
    SHARPI_TRY(stream_->copy_rows({out ? here : there, out ? width : v.block_stride},
                                  {out ? there : here, out ? v.block_stride : width}, width, blocks,
                                  way, "copying KV rows"));
    done += blocks * rows;
  }
  return Status::ok();
}

Status SessionCopies::queries(const QueryRing& ring, uint64_t first, uint32_t n, std::byte* host,
                              Way way) const {
  SHARPI_TRY(device_->usable());
  const DeviceScope scope(*device_);
  const bool out = way == Way::kToHost;
  for (uint64_t done = 0; done < n;) {
    const uint64_t slot = (first + done) % ring.rows,
                   rows = std::min<uint64_t>(n - done, ring.rows - slot);
    std::byte* there = ring.base + slot * ring.row_bytes;
    std::byte* here = host + done * ring.row_bytes;
    SHARPI_TRY(stream_->copy(out ? here : there, out ? there : here, rows * ring.row_bytes, way,
                             "copying captured queries"));
    done += rows;
  }
  return stream_->wait();
}

}  // namespace sharpi::device
