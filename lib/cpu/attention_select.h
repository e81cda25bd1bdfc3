// SPDX-License-Identifier: MIT
// Which attention kernels serve a call, and whether they can.
// Thread rule: pure functions.
#pragma once

#include <span>

#include "cpu/attention.h"
#include "cpu/attention_table.h"

namespace sharpi::cpu {

/// exact = f32 throughout.
const AttentionTable& attention_table(Isa isa, bool exact);
/// For tasks of one row each, whose bits need not be those of a chunk; not exact.
const AttentionTable& attention_row_table(Isa isa, const KvView& kv, uint32_t group);

/// kInternal unless all tasks (at least one) have one layout that the kernels know.
/// Row `row` of the tasks, rotated, to where its results will be: whoever writes a head's results
/// has read its queries, and so has everybody else who does.
void rotate_query(Isa isa, std::span<const AttentionTask> tasks, uint64_t row, uint32_t rotation);
Status check_attention(const AttentionTable& table, std::span<const AttentionTask> tasks);

}  // namespace sharpi::cpu
