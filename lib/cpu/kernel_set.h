// SPDX-License-Identifier: MIT
// All kernels of one instruction set, one member for each family. A set names its own kernels or
// those of another set for every family; a set that leaves a family out does not compile. Code that
// computes gets the set that its context chose (cpu/isa.h). Matrix products are reached through a
// function, because what else stands in its file decides which loops the compiler unrolls. Owner:
// static tables.
// Thread rule: immutable.
#pragma once

#include <span>

#include "cpu/attention_table.h"
#include "cpu/delta_net_table.h"
#include "cpu/isa.h"
#include "cpu/mamba2_table.h"
#include "cpu/matmul_kernels.h"
#include "cpu/ops_table.h"

namespace sharpi::cpu {

/// A table of kernels and what sharpi_model_json() calls them.
template <class Table>
struct Named {
  const Table& table;
  const char* name;
};

/// Which attention kernels serve what; cpu/attention_select.h says when. Several may be the same.
struct AttentionKernels {
  Named<AttentionTable> exact;        // f32 throughout
  Named<AttentionTable> wide;         // K or V stored in f32, which is never rounded to bf16
  Named<AttentionTable> narrow;       // other rows
  Named<AttentionTable> wide_chunk;   // wide rows for many rows, with bits of their own
  Named<AttentionTable> chunk;        // narrow rows for many rows, likewise
  Named<AttentionTable> wide_row;     // wide rows for tasks of one row, with bits of their own
  Named<AttentionTable> integer_row;  // codecs that it has, for tasks of one row, likewise

  /// Of a set that has one table for all.
  static constexpr AttentionKernels all(const Named<AttentionTable>& one) {
    return {one, one, one, one, one, one, one};
  }
};

struct KernelSet {
  const char* name;  // of its InstructionSet
  Isa isa;
  const KernelSet* narrower;  // takes heads that `delta` and `mamba2` do not; null: there are none
  const MatmulKernels& (&matmul)();
  const OpsTable& ops;
  AttentionKernels attention;
  Named<DeltaTable> delta;    // for heads of a multiple of its width
  Named<Mamba2Table> mamba2;  // likewise, and for such states
};

/// Plain C++: the reference.
extern const KernelSet kScalarKernels;
/// The sets of this processor besides, defined beside processor().
std::span<const KernelSet* const> processor_kernel_sets();

/// The kernels of a set of processor().sets.
const KernelSet& kernel_set(const InstructionSet& set);

}  // namespace sharpi::cpu
