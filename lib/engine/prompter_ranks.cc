// SPDX-License-Identifier: MIT
// A prompt of a model whose layers are spread over the processes of a group. Chunks go from rank to
// rank, and each computes one while the next one computes that before: nothing of a chunk comes
// back, so none is waited for but by the rank behind.
#include "engine/prompt_reading.h"
#include "engine/rank_link.h"
#include "engine/seconds.h"

namespace sharpi {

/// A chunk whose rows are there.
Status Prompter::read_rows(Reading* r, bool first) {
  PassRequest pass = r->pass_at(r->done);
  r->progress.begin_chunk(r->done, pass.tokens.size());
  if (first) pass.progress = r->progress.hook();
  const Status ran = runner_.run(pass);
  if (ran.code() == Code::kCancelled && r->progress.stopped())
    return r->progress.cancelled(r->done);
  SHARPI_TRY(ran);
  commit(r, pass.tokens.size());
  (void)r->progress.report(r->done);
  return Status::ok();
}

Status Prompter::read_share(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                            uint32_t* out_committed) {
  RankLink& link = *core_.model->ranks();
  const uint32_t n_chunk = params.n_chunk != 0 ? params.n_chunk : core_.limits().n_chunk;
  Reading r{
      tokens, params, n_chunk, {params, core_.spec().n_layers(), tokens.size()}, out_committed};
  Status own;
  RankLine line(link);
  bool compute = false, more = true;
  for (size_t at = 0; more && at < tokens.size(); at += r.chunk_at(at)) {
    const auto n = static_cast<uint32_t>(r.chunk_at(at));
    SHARPI_TRY(line.take(n, core_.is_cancelled() || r.progress.stopped(), &compute));
    if (compute) own = read_rows(&r, link.is_first());
    SHARPI_TRY(line.give(n, own, &more));
  }
  // A callback that asks to stop where nobody can: the next call answers it.
  if (!link.is_first() && r.progress.stopped()) core_.cancelled.store(true);
  if (!own.is_ok() || r.done == tokens.size() || !link.is_first()) return own;
  return r.progress.stopped()
             ? r.progress.cancelled(r.done)
             : Status::error(Code::kCancelled, "the call was cancelled after %zu of %zu tokens",
                             r.done, tokens.size());
}

}  // namespace sharpi
