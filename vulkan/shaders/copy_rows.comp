#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Rows on their way to an archive and back (device::RowCopyJob). A workgroup has 64 rows of a job.
const uint kByHead = 1, kToRows = 2;
struct Job {
  uint64_t rows, block_stride, plain, slots;
  uint row_bytes, plain_bytes, bytes, n, flags, reserved;
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Jobs { Job v[]; };
layout(push_constant) uniform P {
  uint64_t jobs, pages;
  uint n_jobs, parts;
} p;
void main() {
  const uint at = item() / p.parts, first = item() % p.parts * kBlockSlots;
  if (at >= p.n_jobs) return;
  const Job j = Jobs(p.jobs).v[at];
  if (first >= j.n) return;
  const uint n = min(kBlockSlots, j.n - first) * j.bytes;
  for (uint b = me(); b < n; b += threads()) {
    const uint i = first + b / j.bytes, slot = j.slots != 0 ? U32(j.slots).v[i] : i;
    const uint64_t row = (j.flags & kByHead) != 0 ? named_address(j.rows, j.block_stride, slot, j.row_bytes)
                                                  : j.rows + uint64_t(slot / kBlockSlots) * j.block_stride +
                                                        slot % kBlockSlots * j.row_bytes;
    U8 stored = U8(kv_address(p.pages, row + b % j.bytes));
    U8 plain = U8(j.plain + uint64_t(i) * j.plain_bytes + b % j.bytes);
    if ((j.flags & kToRows) != 0) {
      stored.v[0] = plain.v[0];
    } else {
      plain.v[0] = stored.v[0];
    }
  }
}
