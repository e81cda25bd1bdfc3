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

/// The first rank alone decides to stop. One that fails says so to the next rank, once, and takes
/// what the rank before still sends, so that nobody waits for it.
Status Prompter::read_share(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                            uint32_t* out_committed) {
  RankLink& link = *core_.model->ranks();
  const uint32_t n_chunk = params.n_chunk != 0 ? params.n_chunk : core_.limits().n_chunk;
  Reading r{
      tokens, params, n_chunk, {params, core_.spec().n_layers(), tokens.size()}, out_committed};
  Status own;
  bool told = false;  // the next rank expects nothing more
  for (size_t at = 0; at < tokens.size(); at += r.chunk_at(at)) {
    const auto n = static_cast<uint32_t>(r.chunk_at(at));
    RowsState state = RowsState::kRows;
    if (!link.is_first()) {
      SHARPI_TRY(link.receive(n, &state));
    } else if (core_.is_cancelled() || r.progress.stopped()) {
      state = RowsState::kStopped;
    }
    if (state == RowsState::kRows && own.is_ok()) own = read_rows(&r, link.is_first());
    if (!link.is_last() && !told) {
      const RowsState on = own.is_ok() ? state : RowsState::kFailed;
      SHARPI_TRY(link.send(n, on));
      told = on != RowsState::kRows;
    }
    if (state != RowsState::kRows || (link.is_first() && !own.is_ok())) break;
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
