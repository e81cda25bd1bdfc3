#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// 64 rows of all heads of a layer become rows of the first head, of the next one and so on, where they are
// (device::ApartParams). A workgroup has a layer's part of a block, and a desk.
layout(constant_id = 1) const uint GRANULE = 2;  // bytes that stay together
struct Layer {
  uint64_t offset;
  uint row_bytes[2], part_bytes[4];  // of K and V rows; of a head in each plane of these
  uint n_heads, n_blocks;
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Layers { Layer v[]; };
layout(push_constant) uniform P {
  uint64_t base, layers, desks, pages;
  uint n_layers, first, n_parts, desk_bytes, block_stride;
} p;
void copy(uint64_t to, uint64_t from) {
  if (GRANULE == 16) U32x4(to).v[0] = U32x4(from).v[0];
  if (GRANULE == 8) U32x2(to).v[0] = U32x2(from).v[0];
  if (GRANULE == 4) U32(to).v[0] = U32(from).v[0];
  if (GRANULE == 2) U16(to).v[0] = U16(from).v[0];
}
// Where a byte of the layer's 64 rows of K, then of V, belongs, counted from the same place.
uint place(Layer l, uint byte) {
  const uint k_bytes = kBlockSlots * l.row_bytes[0];
  const uint value = byte < k_bytes ? 0 : 1, row_bytes = value != 0 ? l.row_bytes[1] : l.row_bytes[0];
  const uint at = byte - value * k_bytes, row = at / row_bytes, in_row = at % row_bytes;
  const uint first = value != 0 ? l.part_bytes[2] : l.part_bytes[0],
             second = value != 0 ? l.part_bytes[3] : l.part_bytes[1];
  const uint plane = in_row < first * l.n_heads ? 0 : 1, part = plane != 0 ? second : first;
  const uint in_plane = in_row - plane * first * l.n_heads;
  const uint block = kBlockSlots * (l.row_bytes[0] + l.row_bytes[1]) / l.n_heads;
  return in_plane / part * block + value * (k_bytes / l.n_heads) + row * (row_bytes / l.n_heads) + plane * first +
         in_plane % part;
}
void main() {
  const uint part = p.first + item();
  if (part >= p.n_parts) return;
  const Layer l = Layers(p.layers).v[part % p.n_layers];
  const uint block = part / p.n_layers, n = kBlockSlots * (l.row_bytes[0] + l.row_bytes[1]) / GRANULE;
  if (block >= l.n_blocks) return;
  const uint64_t rows = p.base + uint64_t(block) * p.block_stride + l.offset, desk = p.desks + item() * p.desk_bytes;
  // A thread takes from the desk what it has put there itself.
  for (uint i = me(); i < n; i += threads()) copy(desk + i * GRANULE, kv_address(p.pages, rows + i * GRANULE));
  memoryBarrierBuffer();
  barrier();
  for (uint i = me(); i < n; i += threads())
    copy(kv_address(p.pages, rows + place(l, i * GRANULE)), desk + i * GRANULE);
}
