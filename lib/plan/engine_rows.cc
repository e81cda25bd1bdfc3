// SPDX-License-Identifier: MIT
// What the engine itself takes, as rows.
#include <utility>

#include "base/checked.h"
#include "base/limits.h"
#include "kv/row_archive.h"
#include "plan/context_shift.h"
#include "plan/encoder_plan.h"
#include "plan/mtp_plan.h"
#include "plan/plan.h"
#include "plan/session_plan.h"

namespace sharpi {

uint64_t compaction_table_bytes(const ModelSpec& spec, const SessionShape& session,
                                uint32_t n_chunk) {
  uint64_t lists = 0;
  for (const LayerSpec& l : spec.layers) {
    if (l.owns_kv() && l.attention.window == 0) lists += l.attention.n_kv_heads;
  }
  const uint64_t rows = session.capacity(n_chunk);
  const uint64_t by_position = session.replay_every == 0 ? 1 : 2;
  return (3 * lists * rows + lists + 3 * rows + by_position * session.n_ctx) * sizeof(uint32_t);
}

uint64_t ngram_index_bytes(uint32_t n_ctx) {
  return (ngram_buckets(n_ctx) + n_ctx) * sizeof(uint32_t);
}

std::vector<MemoryRow> engine_rows(const EngineBytes& b) {
  const std::pair<const char*, uint64_t> all[] = {{"token history", b.history},
                                                  {"sampler", b.sampler},
                                                  {"logits of checkpoints", b.checkpoint_logits},
                                                  {"compaction tables", b.compaction_tables},
                                                  {"n-gram index", b.ngram_index},
                                                  {"MTP hidden rows", b.mtp_queue},
                                                  {"key shift", b.key_shift},
                                                  {"archive of evicted rows", b.archive}};
  std::vector<MemoryRow> rows;
  for (const auto& [label, bytes] : all) {
    if (bytes == 0) continue;
    rows.push_back(
        make_row(TierId::kCpu, 0, SHARPI_ROW_TABLES, SHARPI_ROW_ANONYMOUS, label, bytes, bytes));
    rows.back().per_session = 1;
  }
  return rows;
}

std::vector<MemoryRow> engine_session_rows(const ModelSpec& spec, const Placement& placement,
                                           const SessionShape& session, uint32_t n_chunk) {
  if (spec.is_encoder()) return embedder_rows(spec, n_chunk);
  EngineBytes b;
  b.history = uint64_t{session.n_ctx} * sizeof(int32_t);
  // A copy of the logits, a list of ids, a bit per token, and 2048 sums.
  b.sampler = uint64_t{spec.n_vocab} * (sizeof(float) + sizeof(uint32_t)) +
              div_up(spec.n_vocab, 64) * sizeof(uint64_t) + 2048 * sizeof(uint64_t);
  b.checkpoint_logits = uint64_t{session.n_checkpoints} * spec.n_vocab * sizeof(float);
  if (score_queries(session) != 0) {
    b.compaction_tables = compaction_table_bytes(spec, session, n_chunk);
  }
  if ((session.drafters & SHARPI_DRAFT_NGRAM) != 0) {
    b.ngram_index = ngram_index_bytes(session.n_ctx);
  }
  if ((session.drafters & SHARPI_DRAFT_MTP) != 0) {
    b.mtp_queue = mtp_queue_bytes(spec, session, n_chunk);
  }
  b.key_shift = key_shift_bytes(spec, session, n_chunk);
  b.archive =
      RowArchive::bytes_for(spec, session.dtypes, session.archive_rows, session.capacity(n_chunk),
                            [&](uint32_t layer) { return !is_host(placement.mixer[layer]); });
  return engine_rows(b);
}

uint64_t capture_bytes(const std::vector<const TierSizer*>& sizers, const Plan& plan) {
  const auto held = [&](uint32_t window) {
    SessionShape session = plan.session;
    session.capture_window = window;
    uint64_t bytes = 0;
    const auto add = [&](const std::vector<MemoryRow>& rows) {
      for (const MemoryRow& r : rows) bytes += r.held_bytes;
    };
    for (const TierSizer* s : sizers) {
      if (plan.uses(*s)) add(plan.session_rows(*s, session));
    }
    add(engine_session_rows(*plan.spec, plan.placement, session, plan.model.n_chunk));
    return bytes;
  };
  const uint32_t window = plan.session.capture_window;
  return held(window == 0 ? kDefaultCaptureWindow : window) - held(0);
}

}  // namespace sharpi
