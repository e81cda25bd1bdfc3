#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Compaction's moves (device::KvMoveJob). A workgroup has a job, whose rows it moves in order.
layout(constant_id = 1) const uint BY_HEAD = 0;  // block_stride is the address of a table of blocks
struct Job {
  uint64_t rows, keep, block_stride;
  uint row_bytes, offset, bytes, n_keep;
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Jobs { Job v[]; };
layout(push_constant) uniform P {
  uint64_t jobs, pages;
  uint n_jobs;
} p;
uint64_t row_of(Job j, uint slot) {
  if (BY_HEAD != 0) return named_address(j.rows, j.block_stride, slot, j.row_bytes) + j.offset;
  return j.rows + uint64_t(slot / kBlockSlots) * j.block_stride + slot % kBlockSlots * j.row_bytes +
         j.offset;
}
void main() {
  const uint at = item();
  if (at >= p.n_jobs) return;
  const Job j = Jobs(p.jobs).v[at];
  for (uint i = 0; i < j.n_keep; ++i) {  // keep[i] >= i: each thread moves its own bytes
    const Stored from = stored(p.pages, row_of(j, U32(j.keep).v[i])), to = stored(p.pages, row_of(j, i));
    for (uint b = me(); b < j.bytes; b += threads())
      U8(byte_of(p.pages, to, b)).v[0] = U8(byte_of(p.pages, from, b)).v[0];
  }
}
