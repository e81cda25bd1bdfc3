// SPDX-License-Identifier: MIT
// A backend whose sessions fail when they are told to: scoring, staging rows, committing memory and
// reading logits, each at a chosen call. Everything else goes to the backend that it wraps.
// Thread rule: as tier.h; the counters belong to one test.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "tier/host_weights.h"
#include "tier/tier.h"

namespace sharpi::testing {

struct Faults {
  // Counted down; the call at 1 fails.
  int fail_score = 0, fail_stage = 0, fail_reserve = 0, fail_read = 0;
  int n_staged = 0, n_applied = 0, n_discarded = 0;
  bool formats = false;  // sessions are of one format only when their first layers' K dtypes agree
  static Status hit(int* countdown, const char* what) {
    if (*countdown == 0 || --*countdown != 0) return Status::ok();
    return Status::error(Code::kOutOfMemory, "injected failure of %s", what);
  }
};

class FaultyStore final : public KvStore {
 public:
  FaultyStore(KvStore* inner, Faults* faults) : in_(inner), faults_(faults) {}
  const KvLayout& layout() const override { return in_->layout(); }
  KvView view(uint32_t layer) const override { return in_->view(layer); }
  uint32_t capacity(uint32_t group) const override { return in_->capacity(group); }
  uint64_t held_bytes(uint32_t group) const override { return in_->held_bytes(group); }
  uint64_t held_bytes_of(uint32_t group, uint32_t n_slots) const override {
    return in_->held_bytes_of(group, n_slots);
  }
  Status reserve(uint32_t group, uint32_t n_slots) override {
    SHARPI_TRY(Faults::hit(&faults_->fail_reserve, "reserve"));
    return in_->reserve(group, n_slots);
  }
  void shrink(uint32_t group, uint32_t n_slots) noexcept override { in_->shrink(group, n_slots); }
  Status stage_moves(std::span<const KvMove> moves) override {
    SHARPI_TRY(in_->stage_moves(moves));
    ++faults_->n_staged;
    return Faults::hit(&faults_->fail_stage, "staging");
  }
  void apply_moves() noexcept override {
    ++faults_->n_applied;
    in_->apply_moves();
  }
  void discard_moves() noexcept override {
    ++faults_->n_discarded;
    in_->discard_moves();
  }
  Status read_rows(uint32_t l, bool value, uint32_t first, uint32_t n, void* out) const override {
    return in_->read_rows(l, value, first, n, out);
  }
  Status write_rows(uint32_t l, bool value, uint32_t first, uint32_t n, const void* p) override {
    return in_->write_rows(l, value, first, n, p);
  }
  uint64_t state_bytes(uint32_t l, StatePart part) const override {
    return in_->state_bytes(l, part);
  }
  Status read_state(uint32_t l, StatePart part, void* out) const override {
    return in_->read_state(l, part, out);
  }
  Status write_state(uint32_t l, StatePart part, const void* p) override {
    return in_->write_state(l, part, p);
  }
  void commit_state() noexcept override { in_->commit_state(); }
  void commit_rows(uint32_t n) noexcept override { in_->commit_rows(n); }
  void clear_state() noexcept override { in_->clear_state(); }
  Status save_checkpoint(uint32_t i) override { return in_->save_checkpoint(i); }
  Status load_checkpoint(uint32_t i) override { return in_->load_checkpoint(i); }
  Status read_checkpoint(uint32_t i, uint32_t l, StatePart part, void* out) const override {
    return in_->read_checkpoint(i, l, part, out);
  }
  Status write_checkpoint(uint32_t i, uint32_t l, StatePart part, const void* p) override {
    return in_->write_checkpoint(i, l, part, p);
  }

 private:
  KvStore* in_;
  Faults* faults_;
};

class FaultySession final : public TierSession {
 public:
  FaultySession(std::unique_ptr<TierSession> inner, Faults* faults, uint32_t format = 0)
      : in_(std::move(inner)), faults_(faults), store_(&in_->store(), faults), format_(format) {}
  uint32_t format() const override { return format_ != 0 ? format_ : in_->format(); }
  TierSession* inner() const { return in_.get(); }
  uint32_t query_rows(Capture which) const override { return in_->query_rows(which); }
  Status reserve_observer(uint32_t n) override { return in_->reserve_observer(n); }
  uint64_t observer_bytes(uint32_t n) const override { return in_->observer_bytes(n); }
  void release_observer() noexcept override { in_->release_observer(); }
  Status read_queries(uint32_t l, uint64_t first, uint32_t n, float* out) const override {
    return in_->read_queries(l, first, n, out);
  }
  Status write_queries(uint32_t l, uint64_t first, uint32_t n, const float* p) override {
    return in_->write_queries(l, first, n, p);
  }
  bool has_replay_scores(uint32_t l) const override { return in_->has_replay_scores(l); }
  float* host_replay_scores(uint32_t l, uint64_t* stride) const override {
    return in_->host_replay_scores(l, stride);
  }
  Status read_replay_scores(uint32_t l, uint32_t head, uint32_t first, uint32_t n,
                            float* out) const override {
    return in_->read_replay_scores(l, head, first, n, out);
  }
  Status write_replay_scores(uint32_t l, uint32_t head, uint32_t first, uint32_t n,
                             const float* p) override {
    return in_->write_replay_scores(l, head, first, n, p);
  }
  KvStore& store() override { return store_; }
  Status read_logits(uint32_t row, float* out) const override {
    SHARPI_TRY(Faults::hit(&faults_->fail_read, "reading logits"));
    return in_->read_logits(row, out);
  }
  Status write_logits(uint32_t row, const float* p) override { return in_->write_logits(row, p); }
  Status copy_from(const TierSession& from, uint32_t n_slots) override {
    return in_->copy_from(*static_cast<const FaultySession&>(from).in_, n_slots);
  }
  std::vector<MemoryRow> memory_rows() const override { return in_->memory_rows(); }

 private:
  std::unique_ptr<TierSession> in_;
  Faults* faults_;
  FaultyStore store_;
  uint32_t format_ = 0;
};

class FaultyModel final : public TierModel {
 public:
  FaultyModel(std::unique_ptr<TierModel> inner, Faults* faults)
      : in_(std::move(inner)), faults_(faults) {}
  Result<std::unique_ptr<TierSession>> create_session(const SessionShape& shape) override {
    SHARPI_TRY_ASSIGN(std::unique_ptr<TierSession> s, in_->create_session(shape));
    const uint32_t format = faults_->formats ? static_cast<uint32_t>(shape.dtypes[0].k) : 0;
    return std::unique_ptr<TierSession>(new FaultySession(std::move(s), faults_, format));
  }
  Result<std::unique_ptr<Workspace>> create_workspace(float* handover) override {
    return in_->create_workspace(handover);
  }
  Status run(const Segment& segment, const Submission& rows, Workspace& workspace) override {
    std::array<SequenceRows, 64> unwrapped;
    for (size_t i = 0; i < rows.sequences.size(); ++i) {
      unwrapped.at(i) = rows.sequences[i];
      unwrapped[i].session = static_cast<FaultySession*>(rows.sequences[i].session)->inner();
    }
    Submission here = rows;
    here.sequences = {unwrapped.data(), rows.sequences.size()};
    return in_->run(segment, here, workspace);
  }
  Status score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
               LayerScores* out) const override {
    SHARPI_TRY(Faults::hit(&faults_->fail_score, "scoring"));
    return in_->score(*static_cast<FaultySession&>(session).inner(), request, scratch, out);
  }
  Status score_waiting(TierSession& session, const KvLedger& ledger, uint32_t layer,
                       ScoreScratch& scratch) const override {
    SHARPI_TRY(Faults::hit(&faults_->fail_score, "scoring"));
    return in_->score_waiting(*static_cast<FaultySession&>(session).inner(), ledger, layer,
                              scratch);
  }
  Result<std::unique_ptr<ScoreScratch>> create_score_scratch(
      const ScoreShape& shape) const override {
    return in_->create_score_scratch(shape);
  }
  std::vector<MemoryRow> score_scratch_rows(const ScoreShape& shape) const override {
    return in_->score_scratch_rows(shape);
  }
  std::vector<MemoryRow> memory_rows() const override { return in_->memory_rows(); }
  std::string paths() const override { return in_->paths(); }

 private:
  std::unique_ptr<TierModel> in_;
  Faults* faults_;
};

class FaultyBackend final : public Backend {
 public:
  FaultyBackend(std::unique_ptr<Backend> inner, Faults* faults)
      : in_(std::move(inner)), faults_(faults) {}
  const TierSizer& sizer() const override { return in_->sizer(); }
  Status describe(uint32_t flags, sharpi_device* out) const override {
    return in_->describe(flags, out);
  }
  Result<std::unique_ptr<TierModel>> load(std::shared_ptr<const Plan> plan,
                                          const LoadProgress& progress) override {
    SHARPI_TRY_ASSIGN(std::unique_ptr<TierModel> m, in_->load(std::move(plan), progress));
    return std::unique_ptr<TierModel>(new FaultyModel(std::move(m), faults_));
  }
  Result<std::unique_ptr<HostWeights>> copy_weights(const Plan& plan,
                                                    const LoadProgress& progress) override {
    return in_->copy_weights(plan, progress);
  }

 private:
  std::unique_ptr<Backend> in_;
  Faults* faults_;
};

}  // namespace sharpi::testing
