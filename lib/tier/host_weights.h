// SPDX-License-Identifier: MIT
// The weights that are read from host memory: copied from the file when a model is loaded
// (SHARPI_LOAD_COPY), or used in place in the mapped file (mmap, SHARPI_LOAD_MAP). Which tensors
// these are follows from the placement alone, so planner and loader agree. Thread rule: immutable
// after creation.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "plan/tier_sizer.h"
#include "tier/tier.h"

namespace sharpi {

/// First FFN on the CPU that takes a per-layer embedding although the embedding block is elsewhere;
/// -1 = none.
int64_t first_per_layer_embedding(const ModelSpec& spec, const Placement& placement);

/// The tensors that are read from host memory, each once, by what they serve.
class HostTensors {
 public:
  enum Use : uint32_t { kEmbedding, kMixers, kFfn, kExperts, kHead, kMtp, kUses };
  HostTensors(const ModelSpec& spec, const Placement& placement);
  const std::vector<const GgufTensor*>& of(Use use) const { return tensors_[use]; }
  /// Bytes of the tensors, of one use or of all.
  uint64_t bytes(Use use) const;
  uint64_t bytes() const;
  /// Bytes of a block of memory for the tensors of a use, each at a multiple of 64.
  uint64_t block_bytes(Use use) const;
  static const char* label(Use use);

 private:
  void add(const ModelSpec& spec, const Block& block);
  void add(const TensorRef& t, Use use);
  std::array<std::vector<const GgufTensor*>, kUses> tensors_;
  std::unordered_set<const GgufTensor*> seen_;
};

/// The memory rows that the copies take.
std::vector<MemoryRow> host_weight_plan_rows(const ModelSpec& spec, const Placement& placement);

/// Copies of all tensors that host memory serves. They are read, by all threads of the pool, to
/// where they stay; no mapping of the file is involved.
class HostWeights {
 public:
  /// kMismatch if the file became shorter, kCancelled by the progress, which is asked on the
  /// caller's thread.
  static Result<std::unique_ptr<HostWeights>> create(MemoryMeter& meter, ThreadPool& pool,
                                                     const ModelSpec& spec,
                                                     const Placement& placement,
                                                     const LoadProgress& progress);
  /// The model's spec with these tensors; valid as long as this object.
  const std::shared_ptr<const ModelSpec>& spec() const { return spec_; }
  std::vector<MemoryRow> memory_rows() const;

 private:
  struct Copy {
    HostTensors::Use use;
    uint64_t payload = 0;
    HostBuffer memory;
  };
  std::vector<Copy> copies_;
  std::shared_ptr<const ModelSpec> spec_;
};

}  // namespace sharpi
