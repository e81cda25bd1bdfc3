// SPDX-License-Identifier: MIT
#include "engine/session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "base/host_info.h"
#include "base/limits.h"
#include "base/no_throw.h"
#include "engine/seconds.h"
#include "plan/draft_model.h"
#include "plan/draft_mtp.h"

namespace sharpi {
namespace {

/// The narrowest sliding window of a model and its ring; {0, 0} without one.
struct RingSize {
  uint32_t window = 0, slots = 0;
};

RingSize narrowest_ring(const ModelSpec& spec, const SessionShape& shape) {
  RingSize r;
  for (const LayerSpec& l : spec.layers) {
    const uint32_t w = l.mixer == MixerKind::kAttention ? l.attention.window : 0;
    if (w != 0 && (r.window == 0 || w < r.window)) r.window = w;
  }
  if (r.window != 0) {
    r.slots =
        static_cast<uint32_t>(std::min<uint64_t>(shape.n_ctx, uint64_t{r.window} + shape.rewind));
  }
  return r;
}

}  // namespace

Session::Session(std::shared_ptr<const Model> model, SessionShape shape)
    : model_(std::move(model)),
      shape_(std::move(shape)),
      share_(model_->allowance()),
      sampler_(model_->spec().n_vocab,
               model_->text()->tokenizer() == nullptr
                   ? std::span<const int32_t>()
                   : std::span<const int32_t>(model_->text()->tokenizer()->never_sample())) {}

Session::~Session() = default;

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<const Model> model,
                                                 const sharpi_session_params& params) {
  const Plan& plan = model->plan();
  SHARPI_TRY_ASSIGN(SessionShape shape,
                    resolve_session(plan.spec ? *plan.spec : model->spec(), plan.placement,
                                    plan.session, params, model->context().environment()));
  return create(std::move(model), std::move(shape));
}

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<const Model> model,
                                                 SessionShape shape, const HeldBytes* share) {
  const Plan& plan = model->plan();
  std::vector<MemoryRow> wanted;
  for (const TierSizer* s : model->context().sizers()) {
    if (!plan.uses(*s)) continue;
    for (MemoryRow& r : s->session_rows(*plan.spec, plan.placement, plan.model, shape)) {
      wanted.push_back(r);
    }
  }
  for (MemoryRow& r : mtp_session_rows(model->context().sizers(), *plan.spec, plan.model, shape)) {
    wanted.push_back(r);
  }
  for (MemoryRow& r : draft_rows(model->context().sizers(), plan, shape, true)) wanted.push_back(r);
  SHARPI_TRY(check_within(plan.rows, wanted));
  if (shape.probe.size() > plan.model.n_chunk) {
    return Status::error(Code::kInvalidArgument,
                         "the probe has %zu tokens, more than a chunk of %u", shape.probe.size(),
                         plan.model.n_chunk);
  }
  const auto own = engine_session_rows(*plan.spec, shape, plan.model.n_chunk);
  wanted.insert(wanted.end(), own.begin(), own.end());
  std::unique_ptr<Session> s(new Session(std::move(model), std::move(shape)));
  SHARPI_TRY(s->share_.take(share == nullptr ? HeldBytes::of(wanted) : *share));
  for (const auto& tier : s->model_->tiers()) {
    SHARPI_TRY_ASSIGN(std::unique_ptr<TierSession> t, tier->create_session(s->shape_));
    s->tier_list_.push_back(t.get());
    s->tiers_.push_back(std::move(t));
  }
  const RingSize ring = narrowest_ring(s->model_->spec(), s->shape_);
  s->ledger_ = KvLedger(s->model_->spec(), ring.window, ring.slots);
  s->ledger_.set_capture_window(s->shape_.capture_window);
  s->scratch_queries_ = score_queries(s->shape_);
  s->scratch_values_ = policy_needs_values(s->shape_.policy);
  for (const auto& tier : s->model_->tiers()) {
    if (s->scratch_queries_ == 0) break;
    SHARPI_TRY_ASSIGN(
        std::unique_ptr<ScoreScratch> scratch,
        tier->create_score_scratch({s->shape_.capacity(s->model_->plan().model.n_chunk),
                                    s->scratch_queries_, s->shape_.n_ctx, s->scratch_values_}));
    s->score_scratch_.push_back(std::move(scratch));
  }
  if (s->scratch_queries_ != 0) s->take_tables();
  SHARPI_TRY(s->set_sampler(default_sampler_params()));
  s->history_.reserve(s->shape_.n_ctx);
  if (s->why_it_ends().empty()) s->turner_.reserve(s->model_->spec(), s->shape_.n_ctx);
  if ((s->shape_.drafters & SHARPI_DRAFT_NGRAM) != 0)
    s->ngram_ = std::make_unique<NgramDrafter>(s->shape_.n_ctx);
  if ((s->shape_.drafters & SHARPI_DRAFT_MTP) != 0) {
    SHARPI_TRY_ASSIGN(
        s->mtp_, MtpDrafter::create(*s->model_->mtp(), s->shape_, s->model_->plan().model.n_chunk));
  }
  if (has_draft_model(plan, s->shape_)) {
    SHARPI_TRY_ASSIGN(s->draft_model_, ModelDrafter::create(*s->model_, s->shape_));
  }
  s->draft_stats_.drafters = s->shape_.drafters;
  s->logits_row_.resize(s->model_->spec().n_vocab);
  s->checkpoints_.resize(s->shape_.n_checkpoints);
  s->checkpoint_logits_.resize(uint64_t{s->shape_.n_checkpoints} * s->model_->spec().n_vocab);
  return s;
}

TierSession& Session::head() const {
  return *tiers_[model_->tier_index(model_->plan().placement.head)];
}

TierSession& Session::tier_of(uint32_t layer) const {
  return *tiers_[model_->tier_index(model_->plan().placement.mixer[layer])];
}

KvStore& Session::store(uint32_t layer) const {
  return tier_of(layer).store();
}

uint32_t Session::full_capacity() const {
  uint32_t most = 0;
  for (const auto& tier : tiers_) {
    const KvLayout& layout = tier->store().layout();
    for (uint32_t g = 0; g < layout.groups.size(); ++g) {
      if (!layout.groups[g].ring) most = std::max(most, tier->store().capacity(g));
    }
  }
  return most != 0 ? most : shape_.n_ctx;
}

uint32_t Session::free_slots() const {
  uint32_t least = shape_.n_ctx;
  for (const auto& tier : tiers_) {
    const KvStore& kv = tier->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      const KvGroup& group = kv.layout().groups[g];
      if (group.ring) continue;
      const uint32_t used = ledger_.fullest(group), room = kv.capacity(g);
      least = std::min(least, used < room ? room - used : 0);
    }
  }
  return least;
}

Status Session::check_tokens(std::span<const int32_t> tokens, size_t first) const {
  const auto n_vocab = static_cast<int64_t>(model_->spec().n_vocab);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= n_vocab) {
      return Status::error(Code::kInvalidArgument, "token %zu is %d, the vocabulary has %lld ids",
                           first + i, tokens[i], static_cast<long long>(n_vocab));
    }
  }
  return Status::ok();
}

Status Session::check_room(uint64_t n) const {
  if (ledger_.n_tokens() + n > shape_.n_ctx) {
    const std::string why = why_it_ends();
    if (why.empty()) return Status::ok();
    return Status::native_error(Code::kKvFull, SHARPI_KV_FULL_CONTEXT,
                                "%llu tokens after %u exceed the session's context of %u: truncate "
                                "it, or take a larger n_ctx%s",
                                static_cast<unsigned long long>(n), ledger_.n_tokens(),
                                shape_.n_ctx, why.c_str());
  }
  return shape_.kv_budget == 0 && n > free_slots() ? no_room(n) : Status::ok();
}

Status Session::no_room(uint64_t n) const {
  return Status::native_error(Code::kKvFull, SHARPI_KV_FULL_SLOTS,
                              "%llu rows do not fit: %u slots are free of a capacity of %u slots; "
                              "compact to fewer rows, or "
                              "sharpi_session_reserve() commits more, up to %u",
                              static_cast<unsigned long long>(n), free_slots(), full_capacity(),
                              shape_.capacity(model_->plan().model.n_chunk));
}

void Session::commit(std::span<const int32_t> tokens) {
  changed_ = false;
  for (const auto& tier : tiers_) tier->store().commit_state();
  ledger_.commit(static_cast<uint32_t>(tokens.size()));
  history_.insert(history_.end(), tokens.begin(), tokens.end());
  if (mtp_ != nullptr) mtp_->committed(tokens);
}

Status Session::run_chunk(std::span<const int32_t> tokens, uint32_t rows_to_end, uint32_t want_rows,
                          Meanwhile* meanwhile, bool drafted, PassProgress* progress) {
  SequenceRows q;
  q.drafted = drafted;
  q.ledger = &ledger_;
  q.n_rows = static_cast<uint32_t>(tokens.size());
  q.position = ledger_.next_position();
  q.last_logit_row = rows_to_end;
  const uint32_t here = want_rows > rows_to_end ? want_rows - rows_to_end : 0;
  q.first_logit_row = here >= q.n_rows ? 0 : q.n_rows - here;
  SHARPI_TRY(take_hidden(&q));
  Submission rows;
  rows.tokens = tokens.data();
  rows.n_rows = q.n_rows;
  rows.sequences = {&q, 1};
  rows.cancel = stop_flag();
  rows.meanwhile = meanwhile;
  rows.progress = progress;
  const std::span<TierSession* const> list(tier_list_);
  Status done = no_throw([&] { return model_->run(rows, {&list, 1}); });
  if (done.is_ok()) first_logit_row_ = 0;
  pass_failed(done, q.n_rows);
  return done;
}

Status Session::begin_call() {
  changed_ = false;
  look_ahead_ = 0;  // a prompt that ended early may have left them
  prompt_end_ = 0;
  if (!is_cancelled()) return Status::ok();
  return Status::error(Code::kCancelled, "cancelled before it began; nothing changed");
}

Status Session::end_call(Status done) {
  if (done.code() == Code::kCancelled) resume();
  return done;
}

/// The drafter's session is cancelled, too, for it computes within this one's calls.
void Session::cancel() noexcept {
  cancel_.store(true, std::memory_order_relaxed);
  if (draft_model_ != nullptr) draft_model_->cancel();
}

void Session::resume() noexcept {
  cancel_.store(false, std::memory_order_relaxed);
  if (draft_model_ != nullptr) draft_model_->resume();
}

/// What a pass may poll to stop half way. A ring of captured queries that was written over cannot
/// be brought back, so with one the chunk is finished; tiers do the same for rings of rows.
const std::atomic<bool>* Session::stop_flag() const {
  return changed_ || shape_.capture_window != 0 ? nullptr : &cancel_;
}

/// A pass that stopped where it was asked to has written nothing that is read later; one that
/// failed may have reached captured queries and logits.
void Session::pass_failed(const Status& why, uint32_t n_rows) {
  if (why.is_ok() || why.code() == Code::kCancelled) return;
  ledger_.spoil_capture(n_rows);
  n_logit_rows_ = 0;
}

Status Session::decode(int32_t token, Meanwhile* meanwhile) {
  return end_call(no_throw([&] { return read_token(token, meanwhile); }));
}

Status Session::read_token(int32_t token, Meanwhile* meanwhile) {
  uint32_t n = 0;
  return read_drafts({&token, 1}, default_sample_params(), meanwhile, &n);
}

namespace {

Status batch_cancelled(uint32_t i) {
  return Status::native_error(Code::kCancelled, static_cast<int32_t>(i),
                              "sessions[%u] was cancelled; no session read a token", i);
}

}  // namespace

Status Session::decode_batch(std::span<Session* const> sessions, std::span<const int32_t> tokens) {
  constexpr size_t kMost = kMaxBatch;
  const Model& model = *sessions[0]->model_;
  const uint32_t most = model.plan().model.max_batch;
  if (sessions.size() > most || sessions.size() > kMost) {
    return Status::error(Code::kInvalidArgument,
                         "%zu sessions in one batch, the plan's max_batch is %u", sessions.size(),
                         most);
  }
  std::array<SequenceRows, kMost> rows;
  std::array<std::span<TierSession* const>, kMost> lists;
  for (uint32_t i = 0; i < sessions.size(); ++i) {
    Session& s = *sessions[i];
    if (s.model_.get() != &model) {
      return Status::error(Code::kInvalidArgument, "session %u belongs to another model", i);
    }
    Status cancelled = s.end_call(s.begin_call());
    if (!cancelled.is_ok()) return batch_cancelled(i);
    SHARPI_TRY(s.check_tokens(tokens.subspan(i, 1), i));
    SHARPI_TRY(s.check_room(1));
    rows[i] = SequenceRows{nullptr, &s.ledger_, i, 1, s.ledger_.next_position(), 0, 0};
    lists[i] = s.tier_list_;
    SHARPI_TRY(s.take_hidden(&rows[i]));
  }
  bool changed = false;  // from the first one that made room on, no cancel ends the call
  for (uint32_t i = 0; i < sessions.size(); ++i) {  // after every check that can refuse
    sessions[i]->changed_ = changed;
    const Status room = sessions[i]->end_call(no_throw([&] { return sessions[i]->make_room(1); }));
    if (room.code() == Code::kCancelled) return batch_cancelled(i);
    SHARPI_TRY(room);
    changed = sessions[i]->changed_;
  }
  Submission all;
  all.tokens = tokens.data();
  all.n_rows = static_cast<uint32_t>(sessions.size());
  all.sequences = {rows.data(), sessions.size()};
  const auto start = std::chrono::steady_clock::now();
  const Status read = no_throw([&] { return model.run(all, {lists.data(), sessions.size()}); });
  const double seconds = seconds_since(start);
  for (Session* s : sessions) s->pass_failed(read, 1);
  SHARPI_TRY(read);
  for (size_t i = 0; i < sessions.size(); ++i) {
    sessions[i]->commit(tokens.subspan(i, 1));
    sessions[i]->n_logit_rows_ = 1;
    sessions[i]->first_logit_row_ = 0;
    ++sessions[i]->n_decode_;
    sessions[i]->decode_seconds_ += seconds;
  }
  return Status::ok();
}

Status Session::check_logits(uint32_t row) const {
  if (n_logit_rows_ == 0) {
    return Status::error(Code::kState,
                         "no logits: no tokens were read since creation, truncate or cancel");
  }
  if (row >= n_logit_rows_) {
    return Status::error(Code::kInvalidArgument, "logits row %u of %u", row, n_logit_rows_);
  }
  return Status::ok();
}

Status Session::logits(uint32_t row, float* out) const {
  SHARPI_TRY(check_logits(row));
  return head().read_logits(first_logit_row_ + row, out);
}

Status Session::set_sampler(const sharpi_sampler_params& params) {
  sharpi_sampler_params own = params;
  if (own.seed == SHARPI_SEED_RANDOM) own.seed = host_random();
  return sampler_.configure(own);
}

/// Draws from logits row 0, from the best of it where those decide.
Status Session::draw_token(const Draw& draw, int32_t* out) {
  const uint32_t n = sampler_.n_best(draw);
  if (n != 0 && n <= head().max_best()) {
    std::array<float, 256> values;
    std::array<int32_t, 256> ids;
    SHARPI_TRY(check_logits(0));
    SHARPI_TRY(head().read_best(first_logit_row_, n, draw.has_mask ? &draw.allowed : nullptr,
                                values.data(), ids.data()));
    bool enough = false;
    sampler_.sample_best(values.data(), ids.data(), n, logits_row_.data(), out, &enough);
    if (enough) return Status::ok();
  }
  SHARPI_TRY(logits(0, logits_row_.data()));
  Status drawn = sampler_.sample(logits_row_.data(), history_, draw, out);
  // Weights that are no numbers: the file's, or what somebody made of them meanwhile.
  if (drawn.code() == Code::kFormat) SHARPI_TRY(model_->check_unchanged());
  return drawn;
}

Status Session::sample(const sharpi_sample_params& params, int32_t* out) {
  Draw draw;
  SHARPI_TRY(read_draw(params, model_->spec().n_vocab, &draw));
  const SamplerMark mark = sampler_.mark();
  int32_t token = 0;
  SHARPI_TRY(draw_token(draw, &token));
  if (params.n_logprobs != 0) {
    // The draw used the row as scratch, so it is read again.
    const Status read = logits(0, logits_row_.data());
    if (!read.is_ok()) {
      sampler_.restore(mark);
      return read;
    }
    write_logprobs(logits_row_, token, {params.logprobs, params.n_logprobs});
  }
  *out = token;
  return Status::ok();
}

Status Session::step(const sharpi_sample_params& params, int32_t* out_tokens, uint32_t cap,
                     uint32_t* out_n) {
  *out_n = 0;
  if (cap == 0)
    return Status::error(Code::kBufferTooSmall, "a step gives at least one token, cap is 0");
  SHARPI_TRY(end_call(begin_call()));
  const auto start = std::chrono::steady_clock::now();
  const SamplerMark mark = sampler_.mark();
  std::array<int32_t, kMaxDraft + 1> tokens{};
  SHARPI_TRY(sample(params, &tokens[0]));
  out_tokens[0] = tokens[0];
  *out_n = 1;
  const Tokenizer* text = model_->text()->tokenizer();
  if (text != nullptr && text->is_end_of_generation(tokens[0])) return Status::ok();
  Drafted drafts;
  Status read = end_call(propose(tokens[0], params, cap - 1, &tokens[1], &drafts));
  // Those that the pass will not try say nothing about their drafter.
  drafts.n = static_cast<uint32_t>(most_rows({tokens.data(), drafts.n + 1})) - 1;
  Meanwhile meanwhile{params.meanwhile, params.user_data, tokens[0]};
  sharpi_sample_params rest = params;  // of the tokens behind the first
  if (rest.logprobs != nullptr) rest.logprobs += rest.n_logprobs;
  if (read.is_ok()) {
    read = end_call(no_throw([&] {
      return read_drafts({tokens.data(), drafts.n + 1}, rest, &meanwhile, out_n);
    }));
  }
  if (!read.is_ok()) {
    *out_n = 0;
    sampler_.restore(mark);
    return read;
  }
  std::copy_n(tokens.begin(), *out_n, out_tokens);
  learn(drafts, *out_n, seconds_since(start) - drafts.behind);
  return Status::ok();
}

}  // namespace sharpi
