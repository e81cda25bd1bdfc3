// SPDX-License-Identifier: MIT
// Which attention kernels serve a call.
#include "cpu/attention_table.h"
#include "kv/kv_view.h"

namespace sharpi::cpu {

const AttentionTable& attention_table(Isa isa, bool exact) {
  switch (isa) {
    case Isa::kAvx2:
      return kAttentionAvx2;
    case Isa::kAvx512:
      return kAttentionAvx512;
    case Isa::kAmx:
      return exact ? kAttentionAvx512 : kAttentionAmx;
    case Isa::kAuto:
    case Isa::kScalar:
      break;
  }
  return kAttentionScalar;
}

// Reading is what a single row costs, and tiles of bf16 have it wait for conversions; with more
// query heads to a KV head than kRowGroup the tiles' arithmetic is worth it.
const AttentionTable& attention_row_table(Isa isa, const KvView& kv, uint32_t group) {
  constexpr uint32_t kRowGroup = 8;
  const AttentionTable& usual = attention_table(isa, false);
  if (isa != Isa::kAmx || kv.k_dtype != kv.v_dtype || group > kRowGroup) return usual;
  if (kv.k_dtype == KvDtype::kF32) return kAttentionAvx512;
  const uint32_t d = kv.head_dim;
  const bool whole = d == 64 || d == 128 || d == 256 || d == 512;
  return kv.k_dtype == KvDtype::kQ8_0 && whole ? kAttentionQ8Row : usual;
}

}  // namespace sharpi::cpu
