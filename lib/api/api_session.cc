// SPDX-License-Identifier: MIT
// Sessions: creation, reading tokens, sampling.
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_out.h"
#include "api/api_params.h"
#include "api/session_calls.h"
#include "base/limits.h"
#include "engine/session_batch.h"

namespace api = sharpi::api;
using sharpi::Code;
using sharpi::Session;
using sharpi::Status;

namespace {

/// The handles of one call on several sessions, all entered or none.
class BatchCall {
 public:
  Status enter(sharpi_session* const* sessions, uint32_t n);
  std::span<Session* const> sessions() const { return {sessions_.data(), n_}; }

 private:
  std::array<std::optional<api::SessionCall>, sharpi::kMaxBatch> calls_;
  std::array<Session*, sharpi::kMaxBatch> sessions_{};
  uint32_t n_ = 0;
};

/// That the handles of a batch fit BatchCall; the engine knows how many the plan allows.
Status check_batch(uint32_t n) {
  if (n != 0 && n <= sharpi::kMaxBatch) return Status::ok();
  return Status::error(Code::kInvalidArgument, "n %u is out of range; it must be 1 to max_batch",
                       n);
}

Status BatchCall::enter(sharpi_session* const* sessions, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    if (sessions[i] == nullptr) {
      return Status::error(Code::kInvalidArgument, "sessions[%u] is null", i);
    }
    for (uint32_t j = 0; j < i; ++j) {
      if (sessions[j] == sessions[i]) {
        return Status::error(Code::kInvalidArgument, "sessions[%u] and sessions[%u] are the same",
                             j, i);
      }
    }
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (!calls_[i].emplace(*sessions[i])) {
      return Status::error(Code::kBusy, "another call is using sessions[%u]", i);
    }
    sessions_[i] = sessions[i]->p.get();
    if (&sessions_[i]->model() != &sessions_[0]->model()) {
      return Status::error(Code::kInvalidArgument,
                           "sessions[%u] and sessions[0] belong to different models", i);
    }
  }
  n_ = n;
  return Status::ok();
}

Status create_session(const sharpi::Model& model, const std::shared_ptr<const sharpi::Model>& ref,
                      const sharpi_session_params* params, sharpi_session** out) {
  auto handle = std::make_unique<sharpi_session>();
  if (params == nullptr) {
    SHARPI_TRY_ASSIGN(handle->p, Session::create(ref, model.plan().session));
  } else {
    sharpi_session_params complete;
    SHARPI_TRY(api::read_params(params, &complete));
    SHARPI_TRY_ASSIGN(handle->p, Session::create(ref, complete));
  }
  *out = handle.release();
  return Status::ok();
}

/// Of n rows of row_size bytes this library knows the first ones; `list` is what the caller calls
/// them.
template <class Row>
class BatchRows {
 public:
  BatchRows(Row* rows, uint32_t row_size, uint32_t n, const char* list)
      : bytes_(reinterpret_cast<std::byte*>(rows)), row_size_(row_size), n_(n), list_(list) {}
  Row& operator[](uint32_t i) const {
    return *reinterpret_cast<Row*>(bytes_ + size_t{i} * row_size_);
  }
  uint32_t size() const { return n_; }
  Status check(uint32_t i) const {
    return api::check_row_tail(&(*this)[i], sizeof(Row), row_size_, list_, i);
  }
  Status read_params(uint32_t i, sharpi_sample_params* out) const {
    SHARPI_TRY(api::read_params((*this)[i].params, out));
    if (out->meanwhile == nullptr) return Status::ok();
    return Status::error(Code::kInvalidArgument,
                         "%s[%u].params has a meanwhile, but only steps of one session call it",
                         list_, i);
  }

 private:
  std::byte* bytes_;
  uint32_t row_size_, n_;
  const char* list_;
};

Status verify_batch(const BatchRows<sharpi_batch_read>& rows) {
  const uint32_t n = rows.size();
  std::array<sharpi_session*, sharpi::kMaxBatch> handles{};
  std::array<sharpi::BatchRead, sharpi::kMaxBatch> parts;
  for (uint32_t i = 0; i < n; ++i) rows[i].n_read = 0;
  SHARPI_TRY(check_batch(n));
  for (uint32_t i = 0; i < n; ++i) {
    SHARPI_TRY(rows.check(i));
    SHARPI_TRY(api::require(rows[i].tokens, "tokens"));
    handles[i] = rows[i].session;
    parts[i].tokens = {rows[i].tokens, rows[i].n};
    SHARPI_TRY(rows.read_params(i, &parts[i].params));
  }
  BatchCall call;
  SHARPI_TRY(call.enter(handles.data(), n));
  for (uint32_t i = 0; i < n; ++i) parts[i].session = call.sessions()[i];
  const Status done = sharpi::SessionBatch::verify({parts.data(), n});
  for (uint32_t i = 0; i < n; ++i) rows[i].n_read = parts[i].n_read;
  return done;
}

Status step_batch(const BatchRows<sharpi_batch_step>& rows) {
  const uint32_t n = rows.size();
  std::array<sharpi_session*, sharpi::kMaxBatch> handles{};
  std::array<sharpi::BatchStep, sharpi::kMaxBatch> parts;
  for (uint32_t i = 0; i < n; ++i) rows[i].n_tokens = 0;
  SHARPI_TRY(check_batch(n));
  for (uint32_t i = 0; i < n; ++i) {
    SHARPI_TRY(rows.check(i));
    SHARPI_TRY(api::require(rows[i].out_tokens, "out_tokens"));
    handles[i] = rows[i].session;
    parts[i].out = {rows[i].out_tokens, rows[i].cap};
    SHARPI_TRY(rows.read_params(i, &parts[i].params));
  }
  BatchCall call;
  SHARPI_TRY(call.enter(handles.data(), n));
  for (uint32_t i = 0; i < n; ++i) parts[i].session = call.sessions()[i];
  const Status done = sharpi::SessionBatch::step({parts.data(), n});
  for (uint32_t i = 0; i < n; ++i) rows[i].n_tokens = parts[i].n;
  return done;
}

}  // namespace

sharpi_status sharpi_session_create(const sharpi_model* model, const sharpi_session_params* params,
                                    sharpi_session** out, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(out, "out"));
    *out = nullptr;
    SHARPI_TRY(api::require_weights(model));
    return create_session(*model->p, model->p, params, out);
  });
}

void sharpi_session_destroy(sharpi_session* session) SHARPI_NOEXCEPT {
  const sharpi::CallEnvironment environment;
  delete session;
}

void sharpi_session_cancel(sharpi_session* session) SHARPI_NOEXCEPT {
  if (session != nullptr) session->p->cancel();
}

void sharpi_session_resume(sharpi_session* session) SHARPI_NOEXCEPT {
  if (session != nullptr) session->p->resume();
}

sharpi_status sharpi_session_prefill(sharpi_session* session, const int32_t* tokens, uint32_t n,
                                     const sharpi_prefill_params* params, uint32_t* out_committed,
                                     sharpi_error* err) SHARPI_NOEXCEPT {
  if (out_committed != nullptr) *out_committed = 0;
  return api::change_session(session, err, [&](Session& s) -> Status {
    SHARPI_TRY(api::require(tokens, "tokens"));
    if (n == 0) return Status::error(Code::kInvalidArgument, "n is 0; there is nothing to read");
    sharpi_prefill_params complete;
    SHARPI_TRY(api::read_params(params, &complete));
    uint32_t committed = 0;
    Status status = s.prefill({tokens, n}, complete, &committed);
    if (out_committed != nullptr) *out_committed = committed;
    return status;
  });
}

sharpi_status sharpi_session_decode(sharpi_session* session, int32_t token,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) { return s.decode(token); });
}

sharpi_status sharpi_decode_batch(sharpi_session* const* sessions, const int32_t* tokens,
                                  uint32_t n, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(sessions, "sessions"));
    SHARPI_TRY(api::require(tokens, "tokens"));
    SHARPI_TRY(check_batch(n));
    BatchCall call;
    SHARPI_TRY(call.enter(sessions, n));
    return sharpi::SessionBatch::decode(call.sessions(), {tokens, n});
  });
}

sharpi_status sharpi_session_logits(const sharpi_session* session, uint32_t row, float* out,
                                    uint32_t cap, uint32_t* out_n,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return api::read_session(session, err, [&](const Session& s) -> Status {
    SHARPI_TRY(api::check_out(out, cap, out_n));
    const uint32_t n_vocab = s.model().spec().n_vocab;
    *out_n = n_vocab;
    if (cap < n_vocab) return api::too_small(cap, n_vocab, "floats");
    return s.logits(row, out);
  });
}

sharpi_status sharpi_session_set_sampler(sharpi_session* session,
                                         const sharpi_sampler_params* params,
                                         sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) -> Status {
    sharpi_sampler_params complete;
    SHARPI_TRY(api::read_params(params, &complete));
    return s.set_sampler(complete);
  });
}

sharpi_status sharpi_session_sample(sharpi_session* session, const sharpi_sample_params* params,
                                    int32_t* out_token, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) -> Status {
    SHARPI_TRY(api::require(out_token, "out_token"));
    sharpi_sample_params complete;
    SHARPI_TRY(api::read_params(params, &complete));
    if (complete.meanwhile != nullptr) {
      return Status::error(Code::kInvalidArgument,
                           "meanwhile is set, but only steps call it: drawing a token reads none");
    }
    return s.sample(complete, out_token);
  });
}

sharpi_status sharpi_session_step(sharpi_session* session, const sharpi_sample_params* params,
                                  int32_t* out_tokens, uint32_t cap, uint32_t* out_n,
                                  sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) -> Status {
    SHARPI_TRY(api::check_out(out_tokens, cap, out_n));
    if (cap == 0) {
      *out_n = 1;
      return api::too_small(cap, 1, "tokens");
    }
    *out_n = 0;
    sharpi_sample_params complete;
    SHARPI_TRY(api::read_params(params, &complete));
    return s.step(complete, {out_tokens, cap}, out_n);
  });
}

sharpi_status sharpi_session_verify(sharpi_session* session, const int32_t* tokens, uint32_t n,
                                    const sharpi_sample_params* params, uint32_t* out_n,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) -> Status {
    SHARPI_TRY(api::require(tokens, "tokens"));
    SHARPI_TRY(api::require(out_n, "out_n"));
    *out_n = 0;
    sharpi_sample_params complete;
    SHARPI_TRY(api::read_params(params, &complete));
    return s.verify({tokens, n}, complete, out_n);
  });
}

sharpi_status sharpi_verify_batch(sharpi_batch_read* reads, uint32_t read_size, uint32_t n,
                                  sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(reads, "reads"));
    SHARPI_TRY(api::check_row_size(read_size, sizeof *reads, "sharpi_batch_read"));
    return verify_batch({reads, read_size, n, "reads"});
  });
}

sharpi_status sharpi_step_batch(sharpi_batch_step* steps, uint32_t step_size, uint32_t n,
                                sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(steps, "steps"));
    SHARPI_TRY(api::check_row_size(step_size, sizeof *steps, "sharpi_batch_step"));
    return step_batch({steps, step_size, n, "steps"});
  });
}

sharpi_status sharpi_session_drafts(const sharpi_session* session, sharpi_draft_stats* out,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return api::watch_session(session, err, [&](const Session& s) -> Status {
    SHARPI_TRY(api::check_out_struct(out, 48, "sharpi_draft_stats"));
    sharpi_draft_stats stats{};
    s.draft_stats(&stats);
    api::write_out(stats, out);
    return Status::ok();
  });
}

sharpi_status sharpi_session_draft_places(const sharpi_session* session, uint64_t* drafted,
                                          uint64_t* accepted, uint32_t cap, uint32_t* out_n,
                                          sharpi_error* err) SHARPI_NOEXCEPT {
  return api::watch_session(session, err, [&](const Session& s) -> Status {
    SHARPI_TRY(api::check_out(drafted, cap, out_n));
    SHARPI_TRY(api::check_out(accepted, cap, out_n));
    const std::span<const sharpi::DraftPlace> places = s.draft_places();
    *out_n = static_cast<uint32_t>(places.size());
    if (cap < places.size()) return api::too_small(cap, places.size(), "entries");
    for (size_t i = 0; i < places.size(); ++i) {
      drafted[i] = places[i].drafted;
      accepted[i] = places[i].accepted;
    }
    return Status::ok();
  });
}

sharpi_status sharpi_session_info(const sharpi_session* session, sharpi_session_summary* out,
                                  sharpi_error* err) SHARPI_NOEXCEPT {
  return api::watch_session(session, err, [&](const Session& s) -> Status {
    SHARPI_TRY(api::check_out_struct(out, 376, "sharpi_session_summary"));
    sharpi_session_summary summary{};
    s.info(&summary);
    api::write_out(summary, out);
    return Status::ok();
  });
}

sharpi_status sharpi_session_layer(const sharpi_session* session, uint32_t layer,
                                   sharpi_layer_info* out, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::read_session(session, err, [&](const Session& s) -> Status {
    SHARPI_TRY(api::check_out_struct(out, 48, "sharpi_layer_info"));
    sharpi_layer_info info{};
    SHARPI_TRY(s.layer_info(layer, &info));
    api::write_out(info, out);
    return Status::ok();
  });
}

sharpi_status sharpi_session_memory(const sharpi_session* session, sharpi_memory_row* rows,
                                    uint32_t row_size, uint32_t cap, uint32_t* out_n,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return api::read_session(session, err, [&](const Session& s) -> Status {
    return api::copy_rows(s.memory_rows(), rows, row_size, cap, out_n);
  });
}
