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

}  // namespace

const Named<AttentionTable>& attention_kernels(const KernelSet& kernels, bool exact,
                                               const KvView& kv) {
  const AttentionKernels& all = kernels.attention;
  return exact ? all.exact : is_wide(kv) ? all.wide : all.narrow;
}

// Who stores f32 rows wants them as they are.
const Named<AttentionTable>& attention_chunk_kernels(const KernelSet& kernels, const KvView& kv) {
  return is_wide(kv) ? kernels.attention.wide_chunk : kernels.attention.chunk;
}

// With more than kRowGroup query heads to a KV head (GQA), arithmetic costs more than reading the
// rows, even for a single query row.
const Named<AttentionTable>& attention_row_kernels(const KernelSet& kernels, const KvView& kv,
                                                   uint32_t group) {
  constexpr uint32_t kRowGroup = 8;
  const AttentionKernels& all = kernels.attention;
  if (group > kRowGroup) return attention_kernels(kernels, false, kv);
  if (is_wide(kv)) return all.wide_row;
  const uint32_t d = kv.head_dim;
  const bool whole = d == 64 || d == 128 || d == 256 || d == 512;
  const AttentionTable& integers = all.integer_row.table;
  const bool fits = whole && integers.has_codec(kv.k_dtype) && integers.has_codec(kv.v_dtype);
  return fits ? all.integer_row : all.narrow;
}

const Named<AttentionTable>& attention_call_kernels(const KernelSet& kernels,
                                                    std::span<const AttentionTask> tasks) {
  // Rows of a sequence, on average, from which the kernels for chunks pay.
  constexpr uint64_t kChunkRows = 16;
  const KvView& kv = tasks[0].kv;
  uint64_t n_rows = 0;
  bool alone = true;
  for (const AttentionTask& t : tasks) {
    n_rows += t.n_rows;
    alone = alone && t.n_rows == 1;
  }
  if (alone) return attention_row_kernels(kernels, kv, tasks[0].n_heads / kv.n_heads);
  return n_rows >= tasks.size() * kChunkRows ? attention_chunk_kernels(kernels, kv)
                                             : attention_kernels(kernels, false, kv);
}

std::array<const AttentionTable*, 7> attention_tables(const KernelSet& kernels) {
  const AttentionKernels& all = kernels.attention;
  return {&all.exact.table, &all.wide.table,     &all.narrow.table,     &all.wide_chunk.table,
          &all.chunk.table, &all.wide_row.table, &all.integer_row.table};
}

void rotate_query(const KernelSet& kernels, std::span<const AttentionTask> tasks, uint64_t row,
                  uint32_t rotation) {
  const AttentionTask* t = tasks.data();
  while (row >= t->n_rows) row -= t++->n_rows;
  const uint64_t n = uint64_t{t->n_heads} * t->kv.head_dim;
  float* to = t->o + row * t->o_stride;
  std::memmove(to, t->q + row * t->q_stride, n * sizeof(float));
  rotate(kernels, to, n, rotation);
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
    const bool ring = t.window != 0 && t.causal;
    if (t.n_heads != first.n_heads || !same_layout(t.kv, first.kv) ||
        (ring && !same_layout(t.chunk, t.kv)) || (ring && t.pos0 != 0 && t.ring_slots == 0)) {
      return Status::error(Code::kInternal, "the attention tasks of one call differ in layout");
    }
  }
  return {};
}

}  // namespace sharpi::cpu
