// SPDX-License-Identifier: MIT
#include "tier/tier.h"

#include <cmath>

#include "kv/ledger.h"
#include "tier/host_weights.h"

namespace sharpi {

void describe_queries(const ScoreRequest& request, uint32_t n_heads, uint32_t* visible,
                      float* weights) {
  const uint64_t first = request.first_position - request.ledger->base();
  for (uint32_t h = 0; h < n_heads; ++h) {
    for (uint32_t i = 0; i < request.n_queries; ++i) {
      visible[h * request.n_queries + i] = request.ledger->rows_up_to(request.layer, h, first + i);
    }
  }
  for (uint32_t i = 0; i < request.n_queries; ++i) {
    const auto age = static_cast<float>(request.n_queries - 1 - i);
    weights[i] = request.half_life == 0.0f ? 1.0f : std::exp2(-age / request.half_life);
  }
}

Status TierSession::read_best(uint32_t, uint32_t k, const std::span<const uint32_t>*, float*,
                              int32_t*) const {
  return Status::error(Code::kInternal, "this tier cannot find the %u best logits", k);
}

Status TierModel::product(const TensorRef&, const float*, uint32_t, float*, Workspace&) const {
  return Status::error(Code::kUnsupported,
                       "the tier of the head does not compute what comes behind pooling");
}

Result<std::unique_ptr<ExpertHost>> TierModel::create_expert_host(Workspace&) {
  return Status::error(Code::kInternal, "this tier computes no experts for another");
}

namespace {

Status no_archive(const ScoreRequest& request) {
  return Status::error(Code::kInternal, "this tier scores no archived rows of layer %u",
                       request.layer);
}

}  // namespace

Status TierModel::score_bounds(TierSession&, const ScoreRequest& request, const RowArchive&,
                               ScoreScratch&, float*, uint32_t) const {
  return no_archive(request);
}

Status TierModel::score_beside(TierSession&, const ScoreRequest& request, const ArchivedRows&,
                               ScoreScratch&, float*, uint32_t) const {
  return no_archive(request);
}

Status TierModel::score_waiting(TierSession&, const KvLedger&, uint32_t layer,
                                ScoreScratch&) const {
  return Status::error(Code::kInternal, "this tier captures no replay scores of layer %u", layer);
}

Result<std::unique_ptr<const AdapterPart>> TierModel::load_adapter(const AdapterFile&) {
  return Status::error(Code::kInternal, "this tier loads no adapters");
}

Status TierModel::pin_experts(std::span<const ExpertId> experts) {
  return Status::error(Code::kUnsupported,
                       "%zu experts cannot be pinned: the plan has no expert slots",
                       experts.size());
}

std::vector<std::string> TierModel::step_text(const Segment& segment) const {
  return program_text(segment.program);
}

Status TierSession::read_queries(uint32_t layer, uint64_t, uint32_t, float*) const {
  return Status::error(Code::kInternal, "this tier captures no queries of layer %u", layer);
}

Status TierSession::write_queries(uint32_t layer, uint64_t, uint32_t, const float*) {
  return Status::error(Code::kInternal, "this tier captures no queries of layer %u", layer);
}

Status TierSession::read_replay_scores(uint32_t layer, uint32_t, uint32_t, uint32_t, float*) const {
  return Status::error(Code::kInternal, "this tier captures no replay scores of layer %u", layer);
}

Status TierSession::write_replay_scores(uint32_t layer, uint32_t, uint32_t, uint32_t,
                                        const float*) {
  return Status::error(Code::kInternal, "this tier captures no replay scores of layer %u", layer);
}

Result<std::unique_ptr<TierModel>> Backend::load_beside(TierModel&,
                                                        std::shared_ptr<const Plan> plan) {
  return load(std::move(plan), nullptr);
}

Result<std::unique_ptr<HostWeights>> Backend::copy_weights(const Plan&, const LoadProgress&) {
  return std::unique_ptr<HostWeights>();
}

}  // namespace sharpi
