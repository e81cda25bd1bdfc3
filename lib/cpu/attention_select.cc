// SPDX-License-Identifier: MIT
#include "cpu/attention_select.h"

#include <cstring>

#include "cpu/ops.h"

namespace sharpi::cpu {
namespace {

bool same_layout(const KvView& a, const KvView& b) {
  return a.k_dtype == b.k_dtype && a.v_dtype == b.v_dtype && a.n_heads == b.n_heads &&
         a.head_dim == b.head_dim;
}

bool is_wide(const KvView& kv) {
  return kv.k_dtype == KvDtype::kF32 || kv.v_dtype == KvDtype::kF32;
}

/// The kernels of an instruction set for rows that may be rounded to bf16.
const AttentionTable& narrow_table(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return kAttentionAvx2;
    case Isa::kAvx512:
      return kAttentionAvx512;
    case Isa::kAmx:
      return kAttentionAmx;
    case Isa::kAuto:
    case Isa::kScalar:
      break;
  }
  return kAttentionScalar;
}

/// The kernels that only chunks take, or the usual ones.
const AttentionTable& pairs_table(Isa isa) {
  return isa == Isa::kAvx512 && has_bf16_dots() ? kAttentionBf16 : narrow_table(isa);
}

}  // namespace

const AttentionTable& attention_table(Isa isa, bool exact, const KvView& kv) {
  if (isa != Isa::kAmx) return narrow_table(isa);
  if (exact) return kAttentionAvx512;
  return is_wide(kv) ? kAttentionAmxWide : kAttentionAmx;
}

// Dot products of pairs do twice as much as f32's. Who stores f32 rows wants them as they are.
const AttentionTable& attention_chunk_table(Isa isa, const KvView& kv) {
  return is_wide(kv) ? attention_table(isa, false, kv) : pairs_table(isa);
}

// Reading is what a single row costs, and tiles of bf16 have it wait for conversions; with more
// query heads to a KV head than kRowGroup the tiles' arithmetic is worth it.
const AttentionTable& attention_row_table(Isa isa, const KvView& kv, uint32_t group) {
  constexpr uint32_t kRowGroup = 8;
  const AttentionTable& usual = attention_table(isa, false, kv);
  if (isa != Isa::kAmx || group > kRowGroup) return usual;
  if (is_wide(kv)) return kAttentionAvx512;
  const uint32_t d = kv.head_dim;
  const bool whole = d == 64 || d == 128 || d == 256 || d == 512;
  const bool integers =
      kAttentionQ8Row.has_codec(kv.k_dtype) && kAttentionQ8Row.has_codec(kv.v_dtype);
  return integers && whole ? kAttentionQ8Row : usual;
}

const AttentionTable& attention_call_table(Isa isa, std::span<const AttentionTask> tasks) {
  // Rows of a sequence, on average, from which the kernels for chunks pay.
  constexpr uint64_t kChunkRows = 16;
  const KvView& kv = tasks[0].kv;
  uint64_t n_rows = 0;
  bool alone = true;
  for (const AttentionTask& t : tasks) {
    n_rows += t.n_rows;
    alone = alone && t.n_rows == 1;
  }
  if (alone) return attention_row_table(isa, kv, tasks[0].n_heads / kv.n_heads);
  return n_rows >= tasks.size() * kChunkRows ? attention_chunk_table(isa, kv)
                                             : attention_table(isa, false, kv);
}

std::array<const AttentionTable*, 5> attention_tables(Isa isa) {
  const AttentionTable& usual = narrow_table(isa);
  const bool tiles = isa == Isa::kAmx;
  return {&usual, &pairs_table(isa), tiles ? &kAttentionAvx512 : &usual,
          tiles ? &kAttentionAmxWide : &usual, tiles ? &kAttentionQ8Row : &usual};
}

void rotate_query(Isa isa, std::span<const AttentionTask> tasks, uint64_t row, uint32_t rotation) {
  const AttentionTask* t = tasks.data();
  while (row >= t->n_rows) row -= t++->n_rows;
  const uint64_t n = uint64_t{t->n_heads} * t->kv.head_dim;
  float* to = t->o + row * t->o_stride;
  std::memmove(to, t->q + row * t->q_stride, n * sizeof(float));
  rotate(isa, to, n, rotation);
}

Status check_attention(const AttentionTable& table, std::span<const AttentionTask> tasks) {
  const AttentionTask& first = tasks[0];
  for (const KvDtype dtype : {first.kv.k_dtype, first.kv.v_dtype}) {
    if (!table.has_codec(dtype)) {
      return Status::error(Code::kInternal, "attention has no kernel for KV codec %u",
                           static_cast<uint32_t>(dtype));
    }
  }
  const uint32_t n_kv = first.kv.n_heads;
  if (n_kv == 0 || first.n_heads == 0 || first.n_heads % n_kv != 0 || first.kv.head_dim == 0 ||
      first.kv.head_dim > kMaxHeadDim) {
    return Status::error(Code::kInternal,
                         "attention cannot compute %u query heads over %u KV heads of %u elements",
                         first.n_heads, n_kv, first.kv.head_dim);
  }
  for (const AttentionTask& t : tasks) {
    if (t.n_heads != first.n_heads || !same_layout(t.kv, first.kv) ||
        (t.window != 0 && !same_layout(t.chunk, t.kv)) ||
        (t.window != 0 && t.pos0 != 0 && t.ring_slots == 0)) {
      return Status::error(Code::kInternal, "the attention tasks of one call differ in layout");
    }
  }
  return {};
}

}  // namespace sharpi::cpu
