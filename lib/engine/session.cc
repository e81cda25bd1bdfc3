// SPDX-License-Identifier: MIT
#include "engine/session.h"

#include "base/limits.h"
#include "base/no_throw.h"
#include "engine/session_batch.h"
#include "engine/session_report.h"
#include "engine/session_restore.h"
#include "engine/session_save.h"
#include "engine/session_state.h"
#include "plan/drafter_plan.h"
#include "plan/encoder_plan.h"
#include "plan/mtp_plan.h"
#include "plan/part_plan.h"
#include "plan/session_plan.h"
#include "plan/token_checks.h"

namespace sharpi {
namespace {

/// What a session of this shape takes on all tiers.
std::vector<MemoryRow> tier_rows(const Model& model, const SessionShape& shape) {
  const Plan& plan = model.plan();
  const std::vector<const TierSizer*> sizers = model.context().sizers();
  std::vector<MemoryRow> out;
  const auto add = [&](const std::vector<MemoryRow>& rows) {
    out.insert(out.end(), rows.begin(), rows.end());
  };
  for (const TierSizer* s : sizers) {
    if (plan.uses(*s)) add(plan.session_rows(*s, shape));
  }
  add(mtp_session_rows(sizers, plan, shape));
  add(draft_rows(sizers, plan, shape, true));
  return out;
}

}  // namespace

Session::Session(std::unique_ptr<SessionState> state) : state_(std::move(state)) {}

Session::~Session() = default;

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<const Model> model,
                                                 const sharpi_session_params& params) {
  const Plan& plan = model->plan();
  SHARPI_TRY_ASSIGN(SessionShape shape,
                    resolve_session(plan.spec ? *plan.spec : model->spec(), plan.placement,
                                    plan.session, params, model->context().environment()));
  return create(std::move(model), std::move(shape));
}

/// Of a model that several processes have, all have the session or none.
Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<const Model> model,
                                                 SessionShape shape, const HeldBytes* share) {
  RankLink* ranks = model->ranks();
  if (ranks == nullptr) return create_here(std::move(model), std::move(shape), share);
  const GroupCall call(ranks->group());
  SHARPI_TRY(call.entered());
  SHARPI_TRY(ranks->group().usable());
  RankWord word;
  word.call = RankCall::kCreate;
  word.session = ranks->next_session();
  word.arguments = shape.n_ctx;
  std::unique_ptr<Session> made;
  word.status = no_throw([&]() -> Status {
    SHARPI_TRY(check_part_session(shape));
    SHARPI_TRY_ASSIGN(made, create_here(std::move(model), std::move(shape), share));
    return Status::ok();
  });
  SHARPI_TRY(ranks->agree(word).status);
  made->state_->ranks.set_number(word.session);
  return made;
}

Result<std::unique_ptr<Session>> Session::create_here(std::shared_ptr<const Model> model,
                                                      SessionShape shape, const HeldBytes* share) {
  const Plan& plan = model->plan();
  SHARPI_TRY(check_has_sessions(*plan.spec));
  SHARPI_TRY(check_probe_length(shape.probe.size(), plan.model.n_chunk));
  SHARPI_TRY(check_within(plan.rows, tier_rows(*model, shape)));
  const std::vector<MemoryRow> wanted = price(*model, shape);
  auto state = std::make_unique<SessionState>(std::move(model), std::move(shape));
  SHARPI_TRY(state->create(share == nullptr ? HeldBytes::of(wanted) : *share));
  return std::unique_ptr<Session>(new Session(std::move(state)));
}

std::vector<MemoryRow> Session::price(const Model& model, const SessionShape& shape) {
  std::vector<MemoryRow> rows = tier_rows(model, shape);
  const Plan& plan = model.plan();
  const auto own = engine_session_rows(*plan.spec, plan.placement, shape, plan.model.n_chunk);
  rows.insert(rows.end(), own.begin(), own.end());
  return rows;
}

const Model& Session::model() const {
  return *state_->core.model;
}

Status Session::prefill(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                        uint32_t* out_committed) {
  if (state_->ranks.are_needed())
    return state_->end_call(state_->ranks.prefill(tokens, params, out_committed));
  return state_->end_call(
      no_throw([&] { return state_->prompter.read(tokens, params, out_committed); }));
}

Status Session::decode(int32_t token) {
  BatchRead one{this, {&token, 1}, default_sample_params(), 0, 0};
  return state_->end_call(no_throw([&] { return SessionBatch::verify_alone(&one); }));
}

Status Session::check() const {
  return state_->core.transcript.check();
}

bool Session::is_whole() const {
  const Transcript& read = state_->core.transcript;
  return read.has_state() && read.ledger().rings_are_whole();
}

Status Session::verify(std::span<const int32_t> tokens, const sharpi_sample_params& params,
                       uint32_t* out_n) {
  *out_n = 0;
  SHARPI_TRY(state_->ranks.refuse("verifying drafts"));
  if (tokens.empty()) return Status::error(Code::kInvalidArgument, "n is 0; at least 1 is needed");
  BatchRead one{this, tokens, params, 0, 0};
  const Status done = state_->end_call(no_throw([&] { return SessionBatch::verify_alone(&one); }));
  *out_n = one.n_read;
  return done;
}

void Session::draft_stats(sharpi_draft_stats* out) const {
  *out = state_->drafters.stats();
}

std::span<const DraftPlace> Session::draft_places() const {
  return state_->drafters.places();
}

Status Session::logits(uint32_t row, float* out) const {
  SHARPI_TRY(state_->ranks.check_has_logits());
  return state_->drawer.logits(row, out);
}

Status Session::set_sampler(const sharpi_sampler_params& params) {
  return state_->drawer.set_sampler(params);
}

Status Session::set_adapters(std::span<const AdapterChoice> choices) {
  SHARPI_TRY(state_->ranks.refuse("adapters"));
  return no_throw([&]() -> Status {
    SessionCore& core = state_->core;
    const uint64_t before = core.adapters.id();
    SHARPI_TRY(core.adapters.choose(*core.model, choices));
    if (core.adapters.id() != before) core.transcript.note_other_adapters(core.ledger().n_tokens());
    return Status::ok();
  });
}

Status Session::sample(const sharpi_sample_params& params, int32_t* out) {
  if (state_->ranks.are_needed()) return state_->ranks.sample(params, out);
  return state_->drawer.sample(params, out);
}

Status Session::step(const sharpi_sample_params& params, std::span<int32_t> out, uint32_t* out_n) {
  BatchStep one{this, params, out, 0};
  const Status done = state_->end_call(SessionBatch::step_alone(&one));
  *out_n = one.n;
  return done;
}

Status Session::reserve(uint32_t n_slots) {
  return state_->memory.reserve(n_slots);
}

Status Session::truncate(uint32_t n_tokens) {
  if (state_->ranks.are_needed()) return state_->ranks.truncate(n_tokens);
  return state_->checkpoints.truncate(n_tokens);
}

Status Session::checkpoint(bool pin) {
  SHARPI_TRY(state_->ranks.refuse("a checkpoint"));
  return state_->checkpoints.make(pin);
}

std::vector<uint32_t> Session::reachable() const {
  return state_->checkpoints.reachable();
}

/// A fork takes below what it does not share, for this session may hold less than a new one.
Result<std::unique_ptr<Session>> Session::fork() const {
  SHARPI_TRY(state_->ranks.refuse("a fork"));
  const std::lock_guard<std::mutex> lock(fork_mutex_);
  SHARPI_TRY(state_->memory.share_rows());
  SessionShape shape = state_->core.shape;
  shape.first_slots = 0;
  const HeldBytes share = state_->memory.fork_share();
  SHARPI_TRY_ASSIGN(std::unique_ptr<Session> to,
                    create(state_->core.model, std::move(shape), &share));
  to->state_->core.shape.first_slots = SHARPI_UNSET;
  SHARPI_TRY(to->state_->copy_from(*state_));
  return to;
}

std::span<const int32_t> Session::tokens() const {
  return state_->core.tokens();
}

MtpDrafter* Session::mtp() const {
  return state_->drafters.mtp();
}

ModelDrafter* Session::draft_model() const {
  return state_->drafters.model();
}

uint64_t Session::first_position() const {
  return state_->core.ledger().base();
}

Result<uint64_t> Session::save_bytes() const {
  SHARPI_TRY(state_->ranks.refuse("saving a session"));
  return saved_bytes(*state_);
}

Status Session::save(BlobSink* to, uint64_t bytes) const {
  return save_session(*state_, to, bytes);
}

Status Session::restore(BlobSource* from, std::optional<uint64_t> len) {
  SHARPI_TRY(state_->ranks.refuse("restoring a session"));
  return restore_session(state_.get(), from, len);
}

Status Session::compact(const sharpi_compact_params& params, sharpi_compact_report* report) {
  SHARPI_TRY(state_->ranks.refuse("compaction"));
  return state_->end_call(state_->compactor.compact(params, report));
}

Status Session::recall(const sharpi_recall_params& params, sharpi_recall_report* report) {
  SHARPI_TRY(state_->ranks.refuse("recall"));
  return state_->end_call(state_->recaller.recall(params, report));
}

Status Session::kept(uint32_t layer, uint32_t kv_head, std::vector<uint32_t>* out) const {
  return kept_positions(state_->core, layer, kv_head, out);
}

void Session::info(sharpi_session_summary* out) const {
  summarise(*state_, out);
}

Status Session::layer_info(uint32_t layer, sharpi_layer_info* out) const {
  return describe_session_layer(state_->core, layer, out);
}

std::vector<MemoryRow> Session::memory_rows() const {
  return session_memory(*state_);
}

KvTotals Session::kv_totals() const {
  return state_->compactor.totals();
}

void Session::cancel() noexcept {
  state_->cancel();
}

void Session::resume() noexcept {
  state_->resume();
}

}  // namespace sharpi
