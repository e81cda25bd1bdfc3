// SPDX-License-Identifier: MIT
#include "device/row_copies.h"

#include <algorithm>

namespace sharpi::device {

void RowCopies::put(const RowCopyJob& job) {
  std::memcpy(to_ + params_.n_jobs++ * sizeof job, &job, sizeof job);
  params_.most_rows = std::max(params_.most_rows, job.n);
  params_.most_bytes = std::max(params_.most_bytes, job.bytes);
}

void RowCopies::add(const StoredHead& of, bool value, std::byte* flat, const Rows& rows) {
  if (rows.n == 0) return;
  const KvView& v = of.view;
  RowCopyJob job;
  job.flags = rows.to_rows ? RowCopyJob::kToRows : 0;
  if (v.table != nullptr) {
    job.table = v.table;
    job.flags |= RowCopyJob::kByHead;
  } else {
    job.block_stride = v.block_stride;
  }
  job.slots = rows.slots;
  job.row_bytes = v.row_bytes(value);
  job.flat_bytes = rows.flat_bytes != 0 ? rows.flat_bytes : job.row_bytes / v.n_heads;
  job.n = rows.n;
  for (const KvPart& part : KvHeadParts(v, value, of.head)) {
    job.rows = (value ? v.v : v.k) + part.offset;
    job.flat = flat;
    job.bytes = part.bytes;
    put(job);
    flat += part.bytes;
  }
}

void RowCopies::add(std::byte* stored, uint32_t row_bytes, std::byte* flat, const Rows& rows) {
  if (rows.n == 0) return;
  RowCopyJob job;
  job.flags = rows.to_rows ? RowCopyJob::kToRows : 0;
  job.rows = stored;
  job.block_stride = uint64_t{kKvBlockSlots} * row_bytes;
  job.slots = rows.slots;
  job.flat = flat;
  job.row_bytes = job.bytes = row_bytes;
  job.flat_bytes = rows.flat_bytes != 0 ? rows.flat_bytes : row_bytes;
  job.n = rows.n;
  put(job);
}

}  // namespace sharpi::device
