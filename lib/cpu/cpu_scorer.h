// SPDX-License-Identifier: MIT
// Scoring of a session's rows on the CPU tier: gathers the observed queries of every layer that
// reads an owner's rows, and runs the kernels of score.h. Thread rule: immutable; one call at a
// time per scratch.
#pragma once

#include <memory>
#include <vector>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "cpu/kernel_set.h"
#include "cpu/replay.h"
#include "tier/tier.h"

namespace sharpi::cpu {

class CpuScoreScratch;
class CpuSession;

class CpuScorer {
 public:
  /// All of it outlives the scorer.
  CpuScorer(MemoryMeter& meter, ThreadPool& pool, const KernelSet& kernels, const Plan& plan)
      : meter_(meter), pool_(pool), kernels_(kernels), plan_(plan), turns_(*plan.spec) {}
  /// The memory rows of a scratch.
  static std::vector<MemoryRow> plan_rows(const ModelSpec& spec, const Placement& placement,
                                          uint32_t n_threads, const ScoreShape& shape);

  Result<std::unique_ptr<ScoreScratch>> create_scratch(const ScoreShape& shape) const;
  std::vector<MemoryRow> scratch_rows(const ScoreShape& shape) const {
    return plan_rows(*plan_.spec, plan_.placement, pool_.size(), shape);
  }
  /// TierModel::score().
  Status score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
               LayerScores* out) const;
  /// TierModel::score_bounds() and score_beside().
  Status score_bounds(TierSession& session, const ScoreRequest& request, const RowArchive& archive,
                      ScoreScratch& scratch, float* out, uint32_t stride) const;
  Status score_beside(TierSession& session, const ScoreRequest& request,
                      const ArchivedRows& archived, ScoreScratch& scratch, float* out,
                      uint32_t stride) const;
  /// TierModel::score_waiting().
  Status score_waiting(TierSession& session, const KvLedger& ledger, uint32_t layer,
                       ScoreScratch& scratch) const;

 private:
  Status score_by(const CpuSession& session, const ScoreRequest& request,
                  const AttentionSpec& reader, CpuScoreScratch& s) const;
  Status score_head_beside(const CpuSession& session, const ScoreRequest& request,
                           const ArchivedRows& archived, uint32_t head, CpuScoreScratch& s,
                           float* out) const;
  Status norms_of(const CpuSession& session, const ScoreRequest& request, CpuScoreScratch& s) const;
  MemoryMeter& meter_;
  ThreadPool& pool_;
  const KernelSet& kernels_;
  const Plan& plan_;
  const ReplayTurns turns_;
};

}  // namespace sharpi::cpu
