// SPDX-License-Identifier: MIT
// Scratch of one call in flight on the CPU tier: every buffer a forward pass needs, at fixed
// offsets of one block. The layout is computed from the spec alone, so the planner prices it
// exactly. Thread rule: one call at a time.
#pragma once

#include <memory>
#include <vector>

#include "base/memory.h"
#include "cpu/matmul.h"
#include "tier/buffer_layout.h"
#include "tier/rope_tables.h"
#include "tier/tier.h"

namespace sharpi::cpu {

/// Names of the buffers; `kCount` last.
enum class Buf : uint32_t {
  kX,     // [rows][E] hidden
  kNorm,  // [rows][E] normalised input of a mixer or FFN
  kQ,     // [rows][H*D (*2 with output gate)]
  kGate,  // [rows][H*D] output gate of attention; delta net: z; latent attention: queries, outputs
  kK,
  kV,      // [rows][Hk*D]
  kMix,    // [rows][H*D] attention output; delta net, Mamba-2: output
  kQkv,    // [rows][conv_dim] projections of a delta net or of Mamba-2 that are convolved
  kAlpha,  // [rows][heads] of a delta net; Mamba-2: steps
  kBeta,
  kY,  // [rows][E] block output before the residual add
  kFfnGate,
  kFfnUp,   // [rows * max(1, k)][F]
  kMoeOut,  // [rows * k][E]
  kMoeSum,  // [rows][E] what routed experts give, where it waits for the dense path beside them
  kRouter,  // [rows][n_experts]
  kScores,  // [rows][n_experts] what experts are chosen by, where that is not their share
  kMoeIds,
  kMoeWeights,  // [rows][k]
  kMoeRows,     // [rows * k] row of each slot, grouped by expert
  kMoeSlot,     // [rows][k] slot of each (row, choice)
  kMoeIota,     // [rows * k] 0, 1, 2, ...
  kMoeFirst,    // [n_experts + 1] first slot of each expert
  kMoeTasks,    // MatmulTask[2 * n_experts]
  kHeadRows,    // [heads][rows] of latent attention: which row of all heads' a head's own is
  kHeadTasks,   // MatmulTask[heads]
  kPair,        // [rows][2E] normalised embedding and hidden row of an MTP block
  kPle,         // [rows][n_layers * P]
  kPleTmp,      // [rows][P], or a slice's blocks
  kCos,
  kSin,      // [rope tables][rows][max n_rot / 2]
  kKvChunk,  // chunk scratch of windowed layers, in codec rows
  kLogits,   // [head_rows()][V] when several sessions share a call
  kActE,     // prepared inputs of width E
  kActWide,  // prepared inputs of the widest other width
  kMatmul,   // scratch of the kernels
  kAttention,
  kDelta,    // of delta nets and Mamba-2
  kReplay,   // scratch of replay scores
  kAdapter,  // [rows][kMaxProducts][rank] A x of adapters
  kCount,
};

/// Offsets in cache lines.
struct WorkspaceLayout : BufferLayout<Buf, 64> {
  uint32_t max_rows = 0;
  uint32_t chunk_blocks = 0;  // blocks of 64 rows in kKvChunk
  uint64_t chunk_slot_bytes = 0;
};

/// Floats of a row for one layer's slice of the table of per-layer embeddings: the slice, or the
/// blocks that hold it where it need not begin or end with one.
uint64_t ple_slice_floats(const ModelSpec& spec);

/// Bytes of a workspace that the low-rank products of adapters take.
uint64_t adapter_scratch_bytes(const WorkspaceLayout& layout);

WorkspaceLayout make_workspace_layout(const ModelSpec& spec, const Placement& placement,
                                      const ModelShape& model, const SessionShape& session,
                                      const MatmulConfig& matmul, uint32_t n_threads);

class CpuWorkspace final : public Workspace {
 public:
  static Result<std::unique_ptr<CpuWorkspace>> create(MemoryMeter* meter,
                                                      const WorkspaceLayout& layout,
                                                      const MatmulConfig& config, ThreadPool* pool);
  template <class T = float>
  T* get(Buf b) const {
    return reinterpret_cast<T*>(memory_.data() + layout_.offset_of(b));
  }
  uint64_t size(Buf b) const { return layout_.size_of(b); }
  const WorkspaceLayout& layout() const { return layout_; }
  const Matmul& matmul() const { return *matmul_; }
  uint64_t bytes() const { return memory_.bytes(); }

  /// Layer whose chunk rows wait in kKvChunk for their ring, -1 = none. Rows go to the ring only
  /// when the scratch is needed again or the pass ends: layers that share KV read both until then.
  int32_t pending_ring = -1;

 private:
  CpuWorkspace() = default;
  WorkspaceLayout layout_;
  HostBuffer memory_;
  std::unique_ptr<Matmul> matmul_;
};

}  // namespace sharpi::cpu
