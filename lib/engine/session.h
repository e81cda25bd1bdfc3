// SPDX-License-Identifier: MIT
// Session: one conversation. Drives the tiers chunk by chunk, commits the ledger when every tier
// has done a chunk, and owns the sampler. All orchestration of KV (truncate, fork, save,
// compaction) is here; bytes are in the tiers' stores. Thread rule: one call at a time (the
// boundary holds SessionLock); cancel() from anywhere.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/limits.h"
#include "base/status.h"
#include "engine/compaction.h"
#include "engine/draft_model.h"
#include "engine/draft_mtp.h"
#include "engine/draft_ngram.h"
#include "engine/draft_pace.h"
#include "engine/model.h"
#include "engine/sampler.h"
#include "kv/ledger.h"
#include "sharpi.h"
#include "tier/compact_tables.h"
#include "tier/turn_keys.h"

namespace sharpi {

class BlobSink;
class BlobSource;

class Session {
 public:
  static Result<std::unique_ptr<Session>> create(std::shared_ptr<const Model> model,
                                                 const sharpi_session_params& params);
  /// Without a `share` it is what the shape's rows take.
  static Result<std::unique_ptr<Session>> create(std::shared_ptr<const Model> model,
                                                 SessionShape shape,
                                                 const HeldBytes* share = nullptr);
  ~Session();
  const Model& model() const { return *model_; }

  Status prefill(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                 uint32_t* out_committed);
  Status decode(int32_t token, Meanwhile* meanwhile = nullptr);
  static Status decode_batch(std::span<Session* const> sessions, std::span<const int32_t> tokens);
  /// Pre: cap checked by the caller against spec().n_vocab.
  Status logits(uint32_t row, float* out) const;
  /// sharpi_session_verify(): tokens[0] is read, those behind it as far as the sampler draws them.
  Status verify(std::span<const int32_t> tokens, const sharpi_sample_params& params,
                uint32_t* out_n);
  void draft_stats(sharpi_draft_stats* out) const { *out = draft_stats_; }
  std::span<const DraftPlace> draft_places() const {
    return {draft_places_.data(), shape_.n_draft};
  }

  Status set_sampler(const sharpi_sampler_params& params);
  /// `params` as sharpi_sample_params says; logprobs of a step are those of its tokens.
  Status sample(const sharpi_sample_params& params, int32_t* out);
  Status step(const sharpi_sample_params& params, int32_t* out_tokens, uint32_t cap,
              uint32_t* out_n);

  Status reserve(uint32_t n_slots);
  Status truncate(uint32_t n_tokens);
  Status checkpoint(bool pin);
  std::vector<uint32_t> reachable() const;
  Result<std::unique_ptr<Session>> fork() const;
  std::span<const int32_t> tokens() const { return history_; }
  /// The block that reads along, the smaller model that drafts; null where the session has none.
  MtpDrafter* mtp() const { return mtp_.get(); }
  ModelDrafter* draft_model() const { return draft_model_.get(); }
  /// Of tokens()[0], as RoPE counts.
  uint64_t first_position() const { return ledger_.base(); }
  Result<uint64_t> save_bytes() const;
  /// Pre: `bytes` is what save_bytes() gave and the session has not changed since.
  Status save(BlobSink* to, uint64_t bytes) const;
  /// Of `len` bytes, or of as many as it says. Nothing changes unless the whole blob is good and
  /// everything it needs has been taken; from then on only a source that answers differently, or a
  /// device, can fail, and leaves an empty session.
  Status restore(BlobSource* from, std::optional<uint64_t> len);

  Status compact(const sharpi_compact_params& params, sharpi_compact_report* report);
  Status kept(uint32_t layer, uint32_t kv_head, std::vector<uint32_t>* out) const;

  void info(sharpi_session_summary* out) const;
  Status layer_info(uint32_t layer, sharpi_layer_info* out) const;
  std::vector<MemoryRow> memory_rows() const;
  /// Stays set until a call has returned kCancelled for it, or resume().
  void cancel() noexcept;
  void resume() noexcept;

  /// False when another call holds the session.
  bool try_lock() const noexcept { return !busy_.exchange(true, std::memory_order_acquire); }
  void unlock() const noexcept { busy_.store(false, std::memory_order_release); }

 private:
  friend class SessionBatch;
  friend class SessionSaver;
  friend class SessionRestorer;
  struct Checkpoint {
    uint32_t n_tokens = 0;
    bool used = false, pinned = false, has_logits = false;
    uint64_t age = 0;
  };
  Session(std::shared_ptr<const Model> model, SessionShape shape);
  Status check_takes_checkpoints(uint64_t n_tokens) const;
  size_t checkpoint_slot(uint64_t n_tokens) const;
  int32_t checkpoint_at(uint32_t n_tokens) const;
  /// Of a call that computes: a cancel that came while nothing ran ends it at once.
  Status begin_call();
  Status end_call(Status done);  // a cancel that is answered is over
  bool is_cancelled() const { return !changed_ && cancel_.load(std::memory_order_relaxed); }
  const std::atomic<bool>* stop_flag() const;
  void pass_failed(const Status& why, uint32_t n_rows);
  Status read_prompt(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                     uint32_t* out_committed);
  Status read_token(int32_t token, Meanwhile* meanwhile);
  Status compact_now(const sharpi_compact_params& params, sharpi_compact_report* report);
  Status read_chunks(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                     uint32_t* out_committed);
  Status run_chunk(std::span<const int32_t> tokens, uint32_t rows_to_end, uint32_t want_rows,
                   Meanwhile* meanwhile = nullptr, bool drafted = false,
                   PassProgress* progress = nullptr);
  Status draw_token(const Draw& draw, int32_t* out);
  /// `first`: what the caller calls token 0.
  Status check_tokens(std::span<const int32_t> tokens, size_t first = 0) const;
  Status check_logits(uint32_t row) const;
  Status check_room(uint64_t n) const;
  Status no_room(uint64_t n) const;
  std::string why_it_ends() const;  // at its context; empty = it goes on
  Status go_on(uint64_t n);
  void commit(std::span<const int32_t> tokens);
  // session_draft.cc: tokens that may turn out wrong.
  size_t most_rows(std::span<const int32_t> tokens) const;
  Status read_drafts(std::span<const int32_t> tokens, const sharpi_sample_params& params,
                     Meanwhile* meanwhile, uint32_t* out_n);
  Status check_reads(std::span<const int32_t> tokens, const sharpi_sample_params& params) const;
  Status accept(std::span<const int32_t> tokens, const sharpi_sample_params& params,
                uint32_t* out_n);
  void count_drafts(uint32_t n_drafts, uint32_t n_accepted);
  uint64_t room_of_pass() const;
  Status propose(int32_t next, const sharpi_sample_params& params, uint32_t most, int32_t* drafts,
                 Drafted* out);
  Status propose_any(int32_t next, uint32_t most, int32_t* drafts, Drafted* out);
  Status propose_by_model(int32_t next, uint32_t most, int32_t* drafts, Drafted* out);
  void learn(const Drafted& drafts, uint32_t n_read, double seconds, uint32_t n_sessions = 1);
  Status catch_up();
  Status take_hidden(SequenceRows* rows);
  TierSession& tier_of(uint32_t layer) const;  // that runs the layer's mixer
  KvStore& store(uint32_t layer) const;
  TierSession& head() const;
  uint32_t full_capacity() const;  // of the full-attention layer that has most
  uint32_t free_slots() const;     // rows that every full-attention layer still takes
  Status check_state_at(uint32_t n_tokens) const;
  Status load_state_at(uint32_t n_tokens);
  float* logits_of(size_t checkpoint) {
    return checkpoint_logits_.data() + checkpoint * model_->spec().n_vocab;
  }
  void bring_logits_back() noexcept;
  // session_compact.cc: one compaction.
  std::vector<uint32_t> compactable_layers() const;
  uint64_t full_cache_bytes() const;
  Status check_sight(std::span<const int32_t> tokens) const;
  Status observe(std::span<const int32_t> tokens, uint64_t position, bool no_context);
  Result<ScoreScratch*> scratch_for(const CompactRequest& r, size_t tier);
  size_t mixer_tier(uint32_t layer) const;
  ScoreRequest score_request(const CompactRequest& r, uint32_t layer) const;
  Status score_layer(const CompactRequest& r, uint32_t layer, LayerScores* out);
  Status layer_budgets(const CompactRequest& r, std::span<const uint32_t> layers,
                       std::vector<uint32_t>* out);
  Status select_global(const CompactRequest& r, std::span<const uint32_t> layers,
                       std::vector<KvMove>* moves);
  std::vector<uint32_t> layers_of(size_t tier, std::span<const uint32_t> layers) const;
  Status hold_all_terms(const CompactRequest& r, std::span<const uint32_t> layers);
  Status choose_rows(const CompactRequest& r, std::span<const uint32_t> layers,
                     std::span<const uint32_t> budgets);
  Status check_heads_apart(std::span<const uint32_t> layers) const;
  Status select_per_head(const CompactRequest& r, std::span<const uint32_t> layers,
                         std::vector<KvMove>* moves);
  Status keep_going(const CompactRequest& r, size_t done, size_t total) const;
  Status select(const CompactRequest& r, std::vector<KvMove>* moves);
  Status move_rows(const CompactRequest& r, const std::vector<KvMove>& moves);
  void shrink_to(uint32_t headroom) noexcept;
  HeldBytes kv_held() const;
  HeldBytes kv_growth(uint32_t n_slots) const;
  uint32_t shareable_slots(const KvGroup& group) const;
  Status share_rows() const;
  HeldBytes fork_share() const;
  Status own_rows(const std::function<uint32_t(uint32_t layer)>& first_written);
  void settle_share(const HeldBytes& kv_before) noexcept;
  void take_tables();  // may throw std::bad_alloc
  Status run_compaction(const CompactRequest& r, sharpi_compact_report* report);
  // session_bounded.cc: who asks for one.
  KvTotals kv_totals() const;
  Status check_budget(const sharpi_compact_params& p, CompactRequest* r) const;
  Status use_captured(uint32_t window, CompactRequest* r) const;
  Status use_probe(std::span<const int32_t> probe, CompactRequest* r);
  CompactRequest standing_request(uint32_t budget) const;
  Status compact_after_prompt();
  Status prepare_look_ahead(std::span<const int32_t> prompt);
  Status compact_to_budget();
  Status make_room(uint64_t n);
  void forget_all() noexcept;  // an empty session

  std::shared_ptr<const Model> model_;
  SessionShape shape_;
  mutable Share share_;            // of the model's allowance; outlives what it counts
  mutable std::mutex fork_mutex_;  // forks share rows, and several may be made at once
  std::vector<std::unique_ptr<TierSession>> tiers_;  // parallel to model_->tiers()
  std::vector<TierSession*> tier_list_;              // the same, as the model wants it
  KvLedger ledger_;
  Sampler sampler_;
  std::vector<int32_t> history_;   // tokens read; capacity n_ctx from the start
  std::vector<float> logits_row_;  // scratch of sample()
  std::vector<std::unique_ptr<ScoreScratch>> score_scratch_;  // per tier, priced by the template
  std::vector<std::unique_ptr<ScoreScratch>> call_scratch_;  // per tier, of a compaction not priced
  CompactTables tables_;  // priced by the template, else taken by the first compaction
  uint32_t scratch_queries_ = 0;
  bool scratch_values_ = false;
  uint32_t look_ahead_ = 0;  // observer rows of the prompt being read
  uint64_t look_ahead_position_ = 0;
  uint64_t prompt_end_ = 0;      // the position after the prompt being read; 0 = none is
  KeyTurner turner_;             // of a bounded session
  bool probe_seen_ = false;      // the observer rows hold the session's probe
  uint64_t probe_position_ = 0;  // where that one was looked at
  // The call has changed something that only its next commit makes good: rows that made room, or
  // observer rows. It goes on to that commit before it answers a cancel.
  bool changed_ = false;
  std::vector<Checkpoint> checkpoints_;
  std::vector<float> checkpoint_logits_;  // [n_checkpoints][n_vocab]: logits row 0 at each
  uint64_t checkpoint_clock_ = 0;
  uint32_t n_logit_rows_ = 0, first_logit_row_ = 0;  // the first is not 0 after rejected drafts
  std::unique_ptr<NgramDrafter> ngram_;
  std::unique_ptr<MtpDrafter> mtp_;
  std::unique_ptr<ModelDrafter> draft_model_;
  DraftPace pace_, mtp_pace_, model_pace_;
  SharedPass shared_pass_;
  sharpi_draft_stats draft_stats_{};
  std::array<DraftPlace, kMaxDraft> draft_places_{};
  uint64_t n_prefill_ = 0, n_decode_ = 0;
  double prefill_seconds_ = 0, decode_seconds_ = 0;
  std::atomic<bool> cancel_{false};
  mutable std::atomic<bool> busy_{false};
};

}  // namespace sharpi
