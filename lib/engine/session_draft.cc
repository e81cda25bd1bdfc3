// SPDX-License-Identifier: MIT
// Reading tokens that may turn out wrong: one pass over a token and the drafts behind it, then the
// longest beginning of them that the sampler itself would have drawn. A draft is a guess of one
// token, so drawing by the model's own distribution and comparing is the exact rule of speculative
// sampling (arXiv 2211.17192): it is accepted with the probability that the model gives it, and
// what is drawn instead has the distribution without it. The random numbers are those of decoding
// token by token, and so are the tokens.
#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <utility>

#include "base/no_throw.h"
#include "engine/seconds.h"
#include "engine/session.h"

namespace sharpi {
namespace {

/// What the draw after tokens[i] takes: row i of the masks and of the log-probabilities.
sharpi_sample_params of_draw(const sharpi_sample_params& params, size_t i) {
  sharpi_sample_params p = params;
  if (p.allowed_mask != nullptr) p.allowed_mask += i * p.mask_words;
  if (p.logprobs != nullptr) p.logprobs += i * p.n_logprobs;
  return p;
}

/// Draws behind a row of a pass. Without a token where nothing may be drawn, or where there was no
/// memory: the next call for one says so.
Status draw_behind(Session* s, const sharpi_sample_params& params, std::optional<int32_t>* out) {
  int32_t drawn = -1;
  Status status;
  try {
    status = s->sample(params, &drawn);
  } catch (const std::bad_alloc&) {
    return Status::ok();
  }
  const Code code = status.code();
  if (code == Code::kState || code == Code::kFormat || code == Code::kMismatch) return Status::ok();
  if (status.is_ok()) *out = drawn;
  return status;
}

}  // namespace

uint64_t Session::room_of_pass() const {
  const uint64_t context = shape_.n_ctx - ledger_.n_tokens();
  return std::min<uint64_t>({context, free_slots(), model_->plan().model.n_chunk});
}

/// How many of the tokens one pass may read: no draft makes a session compact or move its context
/// on before it would without, and none is read behind the end of a generation.
size_t Session::most_rows(std::span<const int32_t> tokens) const {
  size_t n = std::max<size_t>(1, std::min<size_t>(tokens.size(), room_of_pass()));
  const Tokenizer* text = model_->text()->tokenizer();
  for (size_t i = 1; i < n && text != nullptr; ++i) {
    if (text->is_end_of_generation(tokens[i])) n = i;
  }
  return n;
}

Status Session::verify(std::span<const int32_t> tokens, const sharpi_sample_params& params,
                       uint32_t* out_n) {
  *out_n = 0;
  if (tokens.empty()) return Status::error(Code::kInvalidArgument, "n is 0; 1 or more is expected");
  SHARPI_TRY(check_reads(tokens, params));
  Meanwhile meanwhile{params.meanwhile, params.user_data, tokens[0]};
  return end_call(no_throw([&] { return read_drafts(tokens, params, &meanwhile, out_n); }));
}

/// That so many drafts were priced, and what their draws take.
Status Session::check_reads(std::span<const int32_t> tokens,
                            const sharpi_sample_params& params) const {
  if (tokens.size() - 1 > shape_.n_draft) {
    return Status::error(Code::kInvalidArgument,
                         "%zu drafts behind the first token, the session was made for n_draft %u",
                         tokens.size() - 1, shape_.n_draft);
  }
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    Draw draw;  // refused before anything is read
    SHARPI_TRY(read_draw(of_draw(params, i), model_->spec().n_vocab, &draw));
  }
  return Status::ok();
}

/// Reads the first token, and the others as far as they are accepted. Commits what was read.
Status Session::read_drafts(std::span<const int32_t> tokens, const sharpi_sample_params& params,
                            Meanwhile* meanwhile, uint32_t* out_n) {
  *out_n = 0;
  SHARPI_TRY(begin_call());
  SHARPI_TRY(check_tokens(tokens));
  SHARPI_TRY(check_room(1));
  const auto start = std::chrono::steady_clock::now();
  SHARPI_TRY(make_room(1));
  tokens = tokens.first(most_rows(tokens));
  const auto n = static_cast<uint32_t>(tokens.size());
  SHARPI_TRY(run_chunk(tokens, 0, n, meanwhile, n > 1));
  if (meanwhile != nullptr) meanwhile->run();  // unless it ran while a device computed
  if (n == 1) {
    *out_n = 1;
    commit(tokens);
  } else {
    SHARPI_TRY(accept(tokens, params, out_n));
    count_drafts(n - 1, *out_n - 1);
    draft_stats_.verify_seconds += seconds_since(start);
  }
  n_decode_ += *out_n;
  decode_seconds_ += seconds_since(start);
  n_logit_rows_ = 1;
  return Status::ok();
}

/// After a pass over all of them: draws behind each token, commits those that were right. A draw
/// that gives none ends the beginning.
Status Session::accept(std::span<const int32_t> tokens, const sharpi_sample_params& params,
                       uint32_t* out_n) {
  const auto n = static_cast<uint32_t>(tokens.size());
  const size_t before = history_.size();
  const SamplerMark first = sampler_.mark();
  uint32_t read = 1;
  history_.push_back(tokens[0]);
  for (; read < n; ++read) {
    first_logit_row_ = n - read;
    n_logit_rows_ = 1;
    const SamplerMark mark = sampler_.mark();
    std::optional<int32_t> drawn;
    const Status status = draw_behind(this, of_draw(params, read - 1), &drawn);
    if (!status.is_ok()) {  // the device: as if the pass had failed
      history_.resize(before);
      sampler_.restore(first);
      n_logit_rows_ = 0;
      return status;
    }
    if (drawn != tokens[read]) {
      sampler_.restore(mark);
      break;
    }
    history_.push_back(*drawn);
  }
  first_logit_row_ = n - read;
  changed_ = false;
  for (const auto& tier : tiers_) tier->store().commit_rows(read);
  ledger_.commit(read);
  if (mtp_ != nullptr) mtp_->committed(tokens.first(read));
  *out_n = read;
  return Status::ok();
}

void Session::count_drafts(uint32_t n_drafts, uint32_t n_accepted) {
  ++draft_stats_.n_passes;
  draft_stats_.n_drafted += n_drafts;
  draft_stats_.n_accepted += n_accepted;
  for (uint32_t i = 0; i < n_drafts; ++i) {
    ++draft_places_[i].drafted;
    if (i < n_accepted) ++draft_places_[i].accepted;
  }
}

/// Drafts behind `next`, which is drawn but not read. None where masks are set: they are the first
/// token's alone.
Status Session::propose(int32_t next, const sharpi_sample_params& params, uint32_t most,
                        int32_t* drafts, Drafted* out) {
  most = std::min(most, shape_.n_draft);
  if (most == 0 || params.allowed_mask != nullptr) return Status::ok();
  if (ngram_ == nullptr && mtp_ == nullptr && draft_model_ == nullptr) return Status::ok();
  const auto start = std::chrono::steady_clock::now();
  const Status done = no_throw([&] { return propose_any(next, most, drafts, out); });
  draft_stats_.draft_seconds += seconds_since(start);
  return done;
}

/// The first drafter that has something to offer that pays.
Status Session::propose_any(int32_t next, uint32_t most, int32_t* drafts, Drafted* out) {
  if (ngram_ != nullptr) {
    uint32_t match = 0;
    uint32_t n = ngram_->propose(history_, next, most, drafts, &match);
    if (n != 0) n = pace_.choose(match, n);
    *out = {n, SHARPI_DRAFT_NGRAM, match};
    if (n != 0) return Status::ok();
  }
  return propose_by_model(next, most, drafts, out);
}

/// Drafts of a model cost time before anybody sees them, so their number is chosen first.
Status Session::propose_by_model(int32_t next, uint32_t most, int32_t* drafts, Drafted* out) {
  const uint64_t room = room_of_pass();
  most = static_cast<uint32_t>(std::min<uint64_t>(most, room > 1 ? room - 1 : 0));
  if (most == 0) return Status::ok();
  if (mtp_ != nullptr) {
    const uint32_t n = mtp_pace_.choose(DraftPace::kOfModel, most);
    *out = {0, SHARPI_DRAFT_MTP, DraftPace::kOfModel};
    SHARPI_TRY(
        mtp_->propose(history_, ledger_.base(), next, n, logits_row_.data(), drafts, &out->n));
    if (out->n != 0) return Status::ok();
  }
  if (draft_model_ == nullptr) return Status::ok();
  const uint64_t lag = history_.size() - std::min(history_.size(), draft_model_->n_tokens());
  const uint32_t n = model_pace_.choose(DraftPace::kOfModel, most, lag);
  *out = {0, SHARPI_DRAFT_MODEL, DraftPace::kOfModel};
  if (n == 0) return Status::ok();
  return draft_model_->propose(history_, ledger_.base(), next, n, drafts, out);
}

/// After a step of n_sessions, this one with these drafts, that read so many tokens of it, at this
/// price in seconds besides those in which the drafter caught up. A step without any is what all
/// drafters are held against.
void Session::learn(const Drafted& drafts, uint32_t n_read, double seconds, uint32_t n_sessions) {
  const std::pair<uint32_t, DraftPace&> all[] = {{SHARPI_DRAFT_NGRAM, pace_},
                                                 {SHARPI_DRAFT_MTP, mtp_pace_},
                                                 {SHARPI_DRAFT_MODEL, model_pace_}};
  const double factor = shared_pass_.enter(n_sessions);
  for (const auto& [by, pace] : all) {
    pace.rescale(factor);
    if ((shape_.drafters & by) == 0) continue;
    if (drafts.n != 0 && drafts.by != by) continue;
    if (drafts.n != 0) pace.verified(drafts.match, drafts.n, n_read - 1);
    pace.took(drafts, n_read, seconds);
  }
}

/// The MTP block reads what the session has read.
Status Session::catch_up() {
  if (mtp_ == nullptr) return Status::ok();
  return no_throw([&] { return mtp_->catch_up(history_, ledger_.base()); });
}

/// Has the hidden rows of a pass kept for the MTP block, whose queue has room for a chunk then.
Status Session::take_hidden(SequenceRows* rows) {
  if (mtp_ == nullptr) return Status::ok();
  if (mtp_->is_behind()) SHARPI_TRY(catch_up());
  rows->hidden = mtp_->hidden_rows();
  return Status::ok();
}

}  // namespace sharpi
