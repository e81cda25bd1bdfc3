// SPDX-License-Identifier: MIT
// Adapters of a call's sequences, as device/batch.h has them: the pair that the k-th adapter of row r has for a weight.
struct Low {
  uint64_t a, b;  // [rank][n_in], [rank][n_out]
  uint rank;
  float scale;
};
const uint kMostAdapters = 16;
// False: there is none.
bool find_low(uint64_t rows, uint64_t adapters, uint r, uint k, uint weight, out Low low) {
  const uint sequence = U32(rows + uint64_t(r) * 16).v[0];
  if (sequence == 0xFFFFFFFFu) return false;
  const uint64_t use = adapters + (uint64_t(sequence) * kMostAdapters + k) * 16;
  const uint64_t table = U64(use).v[0];
  if (table == 0) return false;
  const uint64_t entry = table + uint64_t(weight) * 24;
  low = Low(U64(entry).v[0], U64(entry).v[1], U32(entry).v[4], F32(use).v[2] * F32(entry).v[5]);
  return low.a != 0;
}
