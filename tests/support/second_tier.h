// SPDX-License-Identifier: MIT
// A GPU tier without a GPU: a CPU backend that takes the blocks placed on the GPU, and says so. A
// split model of both computes the bits that the CPU computes alone, whatever blocks it gets.
// Thread rule: as tier.h.
#pragma once

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "tier/host_weights.h"
#include "tier/tier.h"

namespace sharpi::testing {

/// The placement as the inner backend sees it: what is on the device that is posed, streamed blocks
/// too, is its own, and what is on the host is elsewhere.
inline Placement inside_out(const ModelSpec& spec, const Placement& placement,
                            const ModelShape& model) {
  Placement p = streamed_placement(spec, placement, model);
  const auto flip = [](DeviceIndex* d) {
    if (*d == DeviceIndex::kHost || *d == DeviceIndex::kHere)
      *d = is_host(*d) ? DeviceIndex::kHere : DeviceIndex::kHost;
  };
  flip(&p.embedding);
  flip(&p.head);
  for (size_t l = 0; l < p.mixer.size(); ++l) {
    flip(&p.mixer[l]), flip(&p.ffn[l]), flip(&p.experts[l]);
  }
  return p;
}

class SecondWorkspace final : public Workspace {
 public:
  SecondWorkspace(std::unique_ptr<Workspace> inner, uint64_t n_floats)
      : in_(std::move(inner)), rows_(n_floats) {}
  float* handover() const override { return rows_.data(); }
  Workspace& inner() const { return *in_; }

 private:
  std::unique_ptr<Workspace> in_;
  mutable std::vector<float> rows_;
};

class SecondModel final : public TierModel {
 public:
  SecondModel(std::unique_ptr<TierModel> inner, std::shared_ptr<const Plan> plan,
              std::shared_ptr<const GgufFile> memory)
      : in_(std::move(inner)), plan_(std::move(plan)), memory_(std::move(memory)) {}
  Result<std::unique_ptr<TierSession>> create_session(const SessionShape& shape) override {
    return in_->create_session(shape);
  }
  Result<std::unique_ptr<Workspace>> create_workspace(float* handover) override {
    SHARPI_TRY_ASSIGN(std::unique_ptr<Workspace> w, in_->create_workspace(handover));
    const uint64_t n = (plan_->spec->pair.table_on_host ? 2 : 1) * n_floats();
    return std::unique_ptr<Workspace>(new SecondWorkspace(std::move(w), n));
  }
  Status run(const Segment& segment, const Submission& rows, Workspace& workspace) override {
    if (plan_->spec->pair.table_on_host && !brings_embeddings(rows, workspace.handover())) {
      return Status::error(Code::kInternal, "the embeddings of the tokens did not come in");
    }
    return in_->run(segment, rows, static_cast<SecondWorkspace&>(workspace).inner());
  }
  Status score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
               LayerScores* out) const override {
    return in_->score(session, request, scratch, out);
  }
  Result<std::unique_ptr<ScoreScratch>> create_score_scratch(
      const ScoreShape& shape) const override {
    return in_->create_score_scratch(shape);
  }
  std::vector<MemoryRow> score_scratch_rows(const ScoreShape& shape) const override {
    return in_->score_scratch_rows(shape);
  }
  std::vector<MemoryRow> memory_rows() const override { return in_->memory_rows(); }
  std::string paths() const override { return "second: " + in_->paths(); }

 private:
  uint64_t n_floats() const { return uint64_t{plan_->model.max_rows()} * plan_->spec->n_embd; }
  /// The inner backend has the table all the same; a GPU has these rows alone.
  bool brings_embeddings(const Submission& rows, const float* handover) const {
    std::vector<float> want(plan_->spec->n_embd);
    for (uint64_t r = 0; r < rows.n_rows; ++r) {
      embed_token(*plan_->spec, rows.tokens[r], want.data());
      const float* got = handover + n_floats() + r * want.size();
      if (!std::equal(want.begin(), want.end(), got)) return false;
    }
    return true;
  }
  std::unique_ptr<TierModel> in_;
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const GgufFile> memory_;
};

class SecondBackend final : public Backend, public TierSizer {
 public:
  explicit SecondBackend(std::unique_ptr<Backend> inner, uint32_t index = 1)
      : in_(std::move(inner)), index_(index) {}
  const TierSizer& sizer() const override { return *this; }
  TierId tier() const override { return TierId::kCuda; }
  uint32_t device_index() const override { return index_; }
  uint64_t free_bytes() const override { return in_->sizer().free_bytes(); }
  uint64_t total_bytes() const override { return in_->sizer().total_bytes(); }
  std::string device_name() const override { return index_ == 1 ? "second" : "third"; }
  std::string device_id() const override { return "posed-" + std::to_string(index_); }
  std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& placement,
                                    const ModelShape& model,
                                    const SessionShape& session) const override {
    return mine(in_->sizer().model_rows(spec, inside_out(spec, placement, model), model, session));
  }
  std::vector<MemoryRow> session_rows(const ModelSpec& spec, const Placement& placement,
                                      const ModelShape& model,
                                      const SessionShape& session) const override {
    return mine(
        in_->sizer().session_rows(spec, inside_out(spec, placement, model), model, session));
  }
  Status describe(uint32_t flags, sharpi_device* out) const override {
    SHARPI_TRY(in_->describe(flags, out));
    std::snprintf(out->name, sizeof out->name, "%s", device_name().c_str());
    std::snprintf(out->id, sizeof out->id, "%s", device_id().c_str());
    return Status::ok();
  }
  Result<std::unique_ptr<TierModel>> load(std::shared_ptr<const Plan> plan,
                                          const LoadProgress& progress) override {
    SHARPI_TRY_ASSIGN(auto memory, plan->spec->file->map_tensors());
    use_as_own(*memory, *plan->spec->file);
    auto turned = std::make_shared<Plan>(*plan);
    turned->placement = inside_out(*plan->spec, plan->placement, plan->model);
    SHARPI_TRY_ASSIGN(std::unique_ptr<TierModel> m, in_->load(std::move(turned), progress));
    return std::unique_ptr<TierModel>(
        new SecondModel(std::move(m), std::move(plan), std::move(memory)));
  }

 private:
  /// What a device would have copied to itself, the one that it poses on computes with in place:
  /// the tensors that no host memory serves get mapped data.
  static void use_as_own(const GgufFile& memory, const GgufFile& file) {
    for (size_t i = 0; i < file.tensors().size(); ++i) {
      auto& t = const_cast<GgufTensor&>(file.tensors()[i]);
      if (t.data == nullptr) t.data = memory.tensors()[i].data;
    }
  }
  std::vector<MemoryRow> mine(std::vector<MemoryRow> rows) const {
    for (MemoryRow& r : rows) {
      r.tier = SHARPI_TIER_CUDA;
      r.device = index_;
    }
    return rows;
  }
  std::unique_ptr<Backend> in_;
  uint32_t index_;
};

}  // namespace sharpi::testing
