// SPDX-License-Identifier: MIT
// Session: one conversation, as the boundary and tests see it. Drives the parts that it is made of
// (session_state.h), each of which stands in one pair of files. Bytes are in the tiers' stores.
// Thread rule: one call at a time (the boundary holds SessionLock); cancel() and resume() from
// anywhere, and const calls together.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/adapter.h"
#include "engine/draft_model.h"
#include "engine/draft_mtp.h"
#include "engine/draft_pace.h"
#include "engine/model.h"
#include "engine/row_memory.h"
#include "engine/sampler.h"
#include "sharpi.h"

namespace sharpi {

class BlobSink;
class BlobSource;
struct SessionState;

class Session {
 public:
  static Result<std::unique_ptr<Session>> create(std::shared_ptr<const Model> model,
                                                 const sharpi_session_params& params);
  /// Without a `share` it is what the shape's rows take.
  static Result<std::unique_ptr<Session>> create(std::shared_ptr<const Model> model,
                                                 SessionShape shape,
                                                 const HeldBytes* share = nullptr);
  /// What create() takes.
  static std::vector<MemoryRow> price(const Model& model, const SessionShape& shape);
  ~Session();
  const Model& model() const;

  Status prefill(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                 uint32_t* out_committed);
  Status decode(int32_t token);
  /// kInternal: what it knows of its tokens and its rows does not agree (transcript.h).
  Status check() const;
  /// Whether it can read on: a failed call may have cost it rows of a sliding window.
  bool is_whole() const;
  /// Pre: cap checked by the caller against spec().n_vocab.
  Status logits(uint32_t row, float* out) const;
  /// sharpi_session_verify(): tokens[0] is read, those behind it as far as the sampler draws them.
  Status verify(std::span<const int32_t> tokens, const sharpi_sample_params& params,
                uint32_t* out_n);
  void draft_stats(sharpi_draft_stats* out) const;
  std::span<const DraftPlace> draft_places() const;

  Status set_sampler(const sharpi_sampler_params& params);
  /// Of what is read from now on.
  Status set_adapters(std::span<const AdapterChoice> choices);
  /// `params` as sharpi_sample_params says; logprobs of a step are those of its tokens.
  Status sample(const sharpi_sample_params& params, int32_t* out);
  Status step(const sharpi_sample_params& params, std::span<int32_t> out, uint32_t* out_n);

  Status reserve(uint32_t n_slots);
  Status truncate(uint32_t n_tokens);
  Status checkpoint(bool pin);
  std::vector<uint32_t> reachable() const;
  Result<std::unique_ptr<Session>> fork() const;
  std::span<const int32_t> tokens() const;
  /// The block that reads along, the smaller model that drafts; null where the session has none.
  MtpDrafter* mtp() const;
  ModelDrafter* draft_model() const;
  /// Of tokens()[0], as RoPE counts.
  uint64_t first_position() const;
  Result<uint64_t> save_bytes() const;
  /// Pre: `bytes` is what save_bytes() gave and the session has not changed since.
  Status save(BlobSink* to, uint64_t bytes) const;
  /// Of `len` bytes, or of as many as it says. Nothing changes unless the whole blob is good and
  /// everything it needs has been taken; from then on only a source that answers differently, or a
  /// device, can fail, and leaves an empty session.
  Status restore(BlobSource* from, std::optional<uint64_t> len);

  Status compact(const sharpi_compact_params& params, sharpi_compact_report* report);
  Status recall(const sharpi_recall_params& params, sharpi_recall_report* report);
  Status kept(uint32_t layer, uint32_t kv_head, std::vector<uint32_t>* out) const;

  void info(sharpi_session_summary* out) const;
  Status layer_info(uint32_t layer, sharpi_layer_info* out) const;
  std::vector<MemoryRow> memory_rows() const;
  KvTotals kv_totals() const;
  /// Stays set until a call has returned kCancelled for it, or resume().
  void cancel() noexcept;
  void resume() noexcept;

  /// False when another call holds the session.
  bool try_lock() const noexcept { return !busy_.exchange(true, std::memory_order_acquire); }
  void unlock() const noexcept { busy_.store(false, std::memory_order_release); }

 private:
  friend class SessionBatch;
  friend class SessionReader;
  explicit Session(std::unique_ptr<SessionState> state);
  static Result<std::unique_ptr<Session>> create_here(std::shared_ptr<const Model> model,
                                                      SessionShape shape, const HeldBytes* share);

  std::unique_ptr<SessionState> state_;
  mutable std::mutex fork_mutex_;  // forks share rows, and several may be made at once
  mutable std::atomic<bool> busy_{false};
};

}  // namespace sharpi
