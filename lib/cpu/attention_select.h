// SPDX-License-Identifier: MIT
// Chooses the attention kernels for a call by its arithmetic, the codecs of its rows and how many
// query rows it has.
// Thread rule: pure functions.
#pragma once

#include <array>
#include <span>

#include "cpu/attention.h"
#include "cpu/kernel_set.h"

namespace sharpi::cpu {

/// The kernels for blocks of query rows. exact = f32 throughout. Rows that are stored in f32 are
/// never rounded to bf16.
const Named<AttentionTable>& attention_kernels(const KernelSet& kernels, bool exact,
                                               const KvView& kv);
/// The kernels for chunks whose rows' bits need not be those of other calls. Never for exact
/// arithmetic.
const Named<AttentionTable>& attention_chunk_kernels(const KernelSet& kernels, const KvView& kv);
/// The kernels for tasks of one row each, whose bits need not be those of a chunk. Never for exact
/// arithmetic.
const Named<AttentionTable>& attention_row_kernels(const KernelSet& kernels, const KvView& kv,
                                                   uint32_t group);

/// Which of them serve a call: those for one row, for chunks, or the usual. Never for exact
/// arithmetic.
const Named<AttentionTable>& attention_call_kernels(const KernelSet& kernels,
                                                    std::span<const AttentionTask> tasks);
/// All tables of a set; some may be the same.
std::array<const AttentionTable*, 7> attention_tables(const KernelSet& kernels);

/// Writes the rotated queries of row `row` of the tasks to where its results will be: whoever
/// writes results of a head has read its queries before.
void rotate_query(const KernelSet& kernels, std::span<const AttentionTask> tasks, uint64_t row,
                  uint32_t rotation);
/// kInternal unless all tasks (at least one) have one layout that the kernels know.
Status check_attention(const AttentionTable& table, std::span<const AttentionTask> tasks);

}  // namespace sharpi::cpu
