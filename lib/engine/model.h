// SPDX-License-Identifier: MIT
// Model: loaded weights on every tier, the text side, and the workspaces that calls in flight
// share. Thread rule: immutable; acquire() blocks until one of max_concurrent workspaces is free.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "engine/context.h"
#include "plan/plan.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "tier/tier.h"

namespace sharpi {

/// One call's scratch on every tier.
struct CallSlot {
  std::vector<std::unique_ptr<Workspace>> workspaces;  // parallel to Model::tiers()
  std::unique_ptr<ExpertHost> experts;  // of the CPU's workspace, for routed experts of GPU layers
  std::vector<float> handover;          // [max_rows][n_embd] when there are two tiers
};

class Model {
 public:
  static Result<std::shared_ptr<Model>> load(std::shared_ptr<Context> context,
                                             std::shared_ptr<const Plan> plan,
                                             const LoadProgress& progress);
  const Context& context() const { return *context_; }
  const Plan& plan() const { return *plan_; }
  const ModelSpec& spec() const { return *plan_->spec; }
  /// Null when the file's tokenizer is unknown; tokenizer_status() says why.
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  const Status& tokenizer_status() const { return tokenizer_status_; }
  ChatFormat chat() const { return chat_; }
  const std::vector<std::unique_ptr<TierModel>>& tiers() const { return tiers_; }
  const std::vector<TierId>& tier_ids() const { return tier_ids_; }
  const std::vector<Segment>& segments() const { return segments_; }
  size_t tier_index(TierId id) const;
  std::vector<MemoryRow> memory_rows() const;
  std::string paths() const;
  /// Of layers whose experts are on another tier than their router; all zero without any.
  ExpertStats expert_stats() const;
  std::vector<uint64_t> expert_uses(uint32_t layer) const;
  Status pin_experts(std::span<const ExpertId> experts) const;

  /// Runs all segments for a submission whose sequences hold one TierSession list each
  /// ([sequence][tier]); waits for a workspace. Nothing is committed.
  Status run(const Submission& rows,
             std::span<const std::span<TierSession* const>> tier_sessions) const;

 private:
  Model() = default;
  Status connect_experts(CallSlot* slot) const;
  CallSlot* acquire() const;
  void release(CallSlot* slot) const;
  std::shared_ptr<Context> context_;
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Status tokenizer_status_;
  ChatFormat chat_ = ChatFormat::kUnknown;
  std::vector<std::unique_ptr<TierModel>> tiers_;
  std::vector<TierId> tier_ids_;
  std::vector<Segment> segments_;
  mutable std::mutex slots_mutex_;
  mutable std::condition_variable slots_free_;
  mutable std::vector<std::unique_ptr<CallSlot>> slots_;
  mutable std::vector<CallSlot*> free_;
};

}  // namespace sharpi
