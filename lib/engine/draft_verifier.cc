// SPDX-License-Identifier: MIT
#include "engine/draft_verifier.h"

#include <algorithm>
#include <new>

#include "engine/seconds.h"

namespace sharpi {
namespace {

/// What the draw after tokens[i] takes: row i of the masks and of the log-probabilities.
sharpi_sample_params of_draw(const sharpi_sample_params& params, size_t i) {
  sharpi_sample_params p = params;
  if (p.allowed_mask != nullptr) p.allowed_mask += i * p.mask_words;
  if (p.logprobs != nullptr) p.logprobs += i * p.n_logprobs;
  return p;
}

constexpr int32_t kNoToken = -1;

}  // namespace

Status DraftVerifier::check(std::span<const int32_t> tokens,
                            const sharpi_sample_params& params) const {
  if (tokens.size() - 1 > core_.shape.n_draft) {
    return Status::error(
        Code::kInvalidArgument,
        "there are %zu drafts behind the first token, but the session was made for n_draft %u",
        tokens.size() - 1, core_.shape.n_draft);
  }
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    Draw draw;  // refused before anything is read
    SHARPI_TRY(read_draw(of_draw(params, i), core_.spec().n_vocab, &draw));
  }
  return Status::ok();
}

/// No draft makes a session compact or move its context on before it would without, and none is
/// read behind the end of a generation.
std::span<const int32_t> DraftVerifier::fitting(std::span<const int32_t> tokens) const {
  size_t n = std::max<size_t>(1, std::min<size_t>(tokens.size(), core_.room_of_pass()));
  const Tokenizer* text = core_.model->text()->tokenizer();
  for (size_t i = 1; i < n && text != nullptr; ++i) {
    if (text->is_end_of_generation(tokens[i])) n = i;
  }
  return tokens.first(n);
}

Status DraftVerifier::settle(std::span<const int32_t> tokens, const sharpi_sample_params& params,
                             std::chrono::steady_clock::time_point start, uint32_t* out_n) {
  if (tokens.size() == 1) {
    *out_n = 1;
    runner_.commit(tokens, 1);
  } else {
    SHARPI_TRY(accept(tokens, params, out_n));
    const auto n_drafts = static_cast<uint32_t>(tokens.size()) - 1;
    drafters_.count(n_drafts, *out_n - 1, seconds_since(start));
  }
  n_read_ += *out_n;
  seconds_ += seconds_since(start);
  return Status::ok();
}

/// Draws behind a row of a pass. kNoToken where nothing may be drawn, or where there was no memory:
/// the next call for one says so.
Status DraftVerifier::draw_behind(const sharpi_sample_params& params, int32_t* out) {
  int32_t drawn = kNoToken;
  *out = kNoToken;
  Status status;
  try {
    status = drawer_.sample(params, &drawn);
  } catch (const std::bad_alloc&) {
    return Status::ok();
  }
  const Code code = status.code();
  if (code == Code::kState || code == Code::kFormat || code == Code::kMismatch) return Status::ok();
  if (status.is_ok()) *out = drawn;
  return status;
}

/// A draw that gives no token ends the beginning.
Status DraftVerifier::accept(std::span<const int32_t> tokens, const sharpi_sample_params& params,
                             uint32_t* out_n) {
  const auto n = static_cast<uint32_t>(tokens.size());
  Sampler& sampler = drawer_.sampler();
  const SamplerMark first = sampler.mark();
  uint32_t read = 1;
  core_.transcript.try_token(tokens[0], n - 1);
  for (; read < n; ++read) {
    const SamplerMark mark = sampler.mark();
    int32_t drawn = kNoToken;
    const Status status = draw_behind(of_draw(params, read - 1), &drawn);
    if (!status.is_ok()) {  // the device: as if the pass had failed
      sampler.restore(first);
      runner_.failed(status, n, true);
      return status;
    }
    if (drawn != tokens[read]) {
      sampler.restore(mark);
      break;
    }
    core_.transcript.try_token(drawn, n - read - 1);
  }
  runner_.commit_tried(tokens.first(read));
  *out_n = read;
  return Status::ok();
}

}  // namespace sharpi
