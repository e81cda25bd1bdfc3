// SPDX-License-Identifier: MIT
#include "engine/session_save.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/blob_copier.h"
#include "engine/blob_parts.h"
#include "engine/session_state.h"

namespace sharpi {
namespace {

/// Writes a session to a sink, or only counts when there is none: one code path for both.
class SessionSaver {
 public:
  SessionSaver(const SessionState& s, BlobSink* sink)
      : s_(s), core_(s.core), spec_(s.core.spec()), sink_(sink) {}

  /// `total` is what an earlier run without a sink gave.
  Status run(uint64_t total) {
    if (sink_ != nullptr) reserve(total);
    SHARPI_TRY(head(total));
    for (uint32_t l = 0; l < spec_.n_layers(); ++l) SHARPI_TRY(layer(l));
    for (uint32_t l = 0; l < spec_.n_layers(); ++l) SHARPI_TRY(queries(l));
    for (uint32_t l = 0; l < spec_.n_layers(); ++l) SHARPI_TRY(replay_scores(l));
    for (uint32_t i = 0; i < h_.n_logit_rows; ++i) SHARPI_TRY(logits(i));
    for (const uint32_t i : checkpoints_) SHARPI_TRY(checkpoint(i));
    const uint64_t sum = sum_.value();
    return put(&sum, sizeof sum);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  void reserve(uint64_t total) {
    BlobNeeds needs{uint64_t{spec_.n_vocab} * sizeof(float)};
    for (uint32_t l = 0; l < spec_.n_layers(); ++l) needs.add(spec_.layers[l], core_.store(l), l);
    scratch_.reserve(needs);
    sum_.begin(total);
    if (sink_->room(0) != nullptr || needs.changes_form) copier_.begin(total);
  }
  Status put(const void* data, uint64_t bytes) {
    if (sink_ == nullptr || bytes == 0) {
      bytes_ += bytes;
      return Status::ok();
    }
    sum_.start(data, bytes);
    const Status done = write(data, bytes);
    sum_.wait();
    return done;
  }
  Status write(const void* data, uint64_t bytes) {
    bytes_ += bytes;
    std::byte* to = sink_->room(bytes);
    if (to == nullptr) return sink_->write(data, bytes);
    copier_.copy(to, data, bytes);
    return Status::ok();
  }
  /// Rows as they are stored, which stay while they are summed unless they change form.
  Status put_rows(const RowSide& side, const std::byte* rows, uint32_t n) {
    const uint64_t bytes = n * side.row_bytes;
    if (side.changes_form()) {
      sum_.wait();
      SHARPI_TRY(copier_.change(side, BlobCopier::To::kSaved, scratch_.other_form(), rows, n));
      rows = scratch_.other_form();
    }
    sum_.start(rows, bytes);
    return write(rows, bytes);
  }
  /// The scratch's first bytes.
  Status put_piece(uint64_t bytes) { return put(scratch_.piece(), bytes); }
  bool only_counts(uint64_t bytes) {
    if (sink_ == nullptr) bytes_ += bytes;
    return sink_ == nullptr;
  }

  Status head(uint64_t total) {
    LedgerCodec::header(core_.ledger(), &h_);
    if (core_.shape.replay_every != 0) {
      h_.flags |= kBlobReplay;
      h_.n_scored = core_.ledger().scored_tokens();
    }
    const BlobAdapters adapters{core_.adapters.id(), core_.transcript.other_tokens()};
    const bool adapted = adapters.id != 0 || adapters.n_other_tokens != 0;
    if (adapted) h_.flags |= kBlobAdapters;
    h_.n_layers = spec_.n_layers();
    h_.content_id = spec_.saved_id();
    h_.total_bytes = total;
    h_.n_logit_rows = core_.transcript.logit_rows().n;
    const std::vector<Checkpoint>& all = s_.checkpoints.all();
    for (uint32_t i = 0; i < all.size(); ++i)
      if (all[i].used) checkpoints_.push_back(i);
    h_.n_checkpoints = static_cast<uint32_t>(checkpoints_.size());
    SHARPI_TRY(put(&h_, sizeof h_));
    if (adapted) SHARPI_TRY(put(&adapters, sizeof adapters));
    SHARPI_TRY(put(core_.tokens().data(), core_.tokens().size() * sizeof(int32_t)));
    SHARPI_TRY(sampler());
    for (uint32_t l = 0; l < spec_.n_layers(); ++l) SHARPI_TRY(layer_header(l));
    for (const uint32_t i : checkpoints_) {
      const Checkpoint& c = all[i];
      const auto age = std::count_if(checkpoints_.begin(), checkpoints_.end(),
                                     [&](uint32_t other) { return all[other].age <= c.age; });
      const BlobCheckpointHeader one{c.n_tokens, c.pinned, c.has_logits,
                                     static_cast<uint64_t>(age)};
      SHARPI_TRY(put(&one, sizeof one));
    }
    return Status::ok();
  }

  Status sampler() {
    const sharpi_sampler_params p = s_.drawer.sampler().params();
    BlobSampler b;
    b.temperature = p.temperature;
    b.top_p = p.top_p;
    b.min_p = p.min_p;
    b.repeat_penalty = p.repeat_penalty;
    b.top_k = p.top_k;
    b.repeat_last_n = p.repeat_last_n;
    b.n_bias = p.n_bias;
    b.seed = p.seed;
    b.random_state = s_.drawer.sampler().mark().state;
    SHARPI_TRY(put(&b, sizeof b));
    SHARPI_TRY(put(p.bias_tokens, uint64_t{p.n_bias} * sizeof(int32_t)));
    return put(p.bias_values, uint64_t{p.n_bias} * sizeof(float));
  }

  Status layer_header(uint32_t l) {
    const KvStore& kv = core_.store(l);
    BlobLayerHeader h;
    if (kv.state_bytes(l, StatePart::kState) != 0) h.kind = BlobLayer::kRecurrent;
    const int32_t group = kv.layout().group_of_layer[l];
    if (group < 0) return put(&h, sizeof h);
    const KvLayerLayout& one = *kv.layout().find(l);
    h.k_dtype = kv_saved_dtype(one.k_dtype);
    h.v_dtype = kv_saved_dtype(one.v_dtype);
    if (kv.layout().groups[static_cast<size_t>(group)].ring) {
      h.kind = BlobLayer::kRing;
      h.first_position = h_.ring_low;
      h.n_rows = h_.n_tokens - h_.ring_low;
      return put(&h, sizeof h);
    }
    const LayerRows& rows = core_.ledger().rows(l);
    h.kind = BlobLayer::kRows;
    h.n_rows = rows.n_slots;
    h.n_compacted = rows.n_compacted;
    h.tail_position = rows.tail_position;
    h.n_lists = rows.n_lists;
    SHARPI_TRY(put(&h, sizeof h));
    const uint32_t n_lags = core_.ledger().is_by_head() ? one.n_heads : 0;
    for (uint32_t i = 0; i < n_lags; ++i) {
      const uint32_t lag = core_.ledger().lag(l, i);
      SHARPI_TRY(put(&lag, sizeof lag));
    }
    for (uint32_t i = 0; i < h.n_lists; ++i) {
      const std::span<const uint32_t> list = core_.ledger().positions(l, i);
      SHARPI_TRY(put(list.data(), list.size_bytes()));
    }
    return Status::ok();
  }

  Status layer(uint32_t l) {
    const KvStore& kv = core_.store(l);
    const int32_t group = kv.layout().group_of_layer[l];
    if (group < 0) {
      for (const StatePart part : {StatePart::kState, StatePart::kConv}) {
        const uint64_t bytes = kv.state_bytes(l, part);
        if (bytes == 0 || only_counts(bytes)) continue;
        SHARPI_TRY(kv.read_state(l, part, scratch_.piece()));
        SHARPI_TRY(put_piece(bytes));
      }
      return Status::ok();
    }
    const KvGroup& g = kv.layout().groups[static_cast<size_t>(group)];
    const uint32_t first = g.ring ? h_.ring_low : 0,
                   n = g.ring ? h_.n_tokens - first : core_.ledger().n_slots(l);
    for (const bool value : kv.layout().find(l)->sides()) {
      if (!g.ring && core_.ledger().is_by_head())
        SHARPI_TRY(rows_by_head(kv, RowSide::of_head(*kv.layout().find(l), value), l));
      else
        SHARPI_TRY(rows(kv, RowSide(*kv.layout().find(l), value), l, first, n, g.ring_slots));
    }
    return Status::ok();
  }

  Status rows_by_head(const KvStore& kv, const RowSide& side, uint32_t l) {
    for (uint32_t h = 0; h < kv.layout().find(l)->n_heads; ++h) {
      const uint32_t n = core_.ledger().n_slots(l, h);
      if (only_counts(n * side.row_bytes)) continue;
      RowPieces pieces(kv, side, &scratch_, &sum_);
      for (uint32_t i = 0; i < n;) {
        const uint32_t run = std::min(n - i, pieces.n_rows());
        std::byte* at = pieces.next();
        SHARPI_TRY(kv.read_head_rows(l, h, side.value, i, run, at));
        SHARPI_TRY(put_rows(side, at, run));
        i += run;
      }
    }
    return Status::ok();
  }

  /// Rows of slots [first, first + n); in a ring (ring_slots != 0) of these positions.
  Status rows(const KvStore& kv, const RowSide& side, uint32_t l, uint32_t first, uint32_t n,
              uint32_t ring_slots) {
    if (only_counts(n * side.row_bytes)) return Status::ok();
    struct Piece {
      std::byte* at = nullptr;
      uint32_t n_rows = 0;
    };
    RowPieces pieces(kv, side, &scratch_, &sum_);
    uint32_t started = 0;
    const auto start = [&](Piece* p) {
      uint32_t slot = first + started;
      *p = {nullptr, std::min(n - started, pieces.n_rows())};
      if (p->n_rows == 0) return Status::ok();
      if (ring_slots != 0) {
        slot = static_cast<uint32_t>((h_.base + slot) % ring_slots);
        p->n_rows = std::min(p->n_rows, ring_slots - slot);
      }
      p->at = pieces.next();
      started += p->n_rows;
      return pieces.read(l, slot, p->n_rows, p->at);
    };
    Piece here, next;
    SHARPI_TRY(start(&here));
    for (; here.n_rows != 0; here = next) {
      SHARPI_TRY(pieces.wait());
      // The next piece comes to the place of the one before, which is summed by then.
      if (!side.changes_form()) sum_.start(here.at, here.n_rows * side.row_bytes);
      SHARPI_TRY(start(&next));
      if (side.changes_form())
        SHARPI_TRY(put_rows(side, here.at, here.n_rows));
      else
        SHARPI_TRY(write(here.at, here.n_rows * side.row_bytes));
    }
    return Status::ok();
  }

  Status queries(uint32_t l) {
    const uint64_t row = query_dim(spec_.layers[l]) * sizeof(float);
    if (row == 0 || only_counts(h_.n_queries * row)) return Status::ok();
    const auto most = static_cast<uint32_t>(std::max<uint64_t>(1, kBlobPiece / row));
    const uint64_t first = h_.base + h_.n_tokens - h_.n_queries;
    for (uint32_t i = 0; i < h_.n_queries;) {
      const uint32_t n = std::min(most, h_.n_queries - i);
      SHARPI_TRY(core_.tier_of(l).read_queries(l, first + i, n, scratch_.floats()));
      SHARPI_TRY(put_piece(n * row));
      i += n;
    }
    return Status::ok();
  }

  Status replay_scores(uint32_t l) {
    if ((h_.flags & kBlobReplay) == 0 || !core_.ledger().is_full_owner(l)) return Status::ok();
    const uint32_t waiting = core_.ledger().n_tokens() - h_.n_scored;
    constexpr uint32_t kMost = kBlobPiece / sizeof(float);
    for (uint32_t h = 0; h < spec_.layers[l].attention.n_kv_heads; ++h) {
      const uint32_t all = core_.ledger().n_slots(l, h), scored = all - waiting;
      if (only_counts(uint64_t{all} * sizeof(float))) continue;
      for (uint32_t i = 0, n = 0; i < scored; i += n) {
        n = std::min(kMost, scored - i);
        SHARPI_TRY(core_.tier_of(l).read_replay_scores(l, h, i, n, scratch_.floats()));
        SHARPI_TRY(put_piece(uint64_t{n} * sizeof(float)));
      }
      std::memset(scratch_.piece(), 0, waiting * sizeof(float));
      SHARPI_TRY(put_piece(waiting * sizeof(float)));
    }
    return Status::ok();
  }

  Status logits(uint32_t i) {
    const uint64_t bytes = uint64_t{spec_.n_vocab} * sizeof(float);
    if (only_counts(bytes)) return Status::ok();
    SHARPI_TRY(s_.drawer.logits(i, scratch_.floats()));
    return put_piece(bytes);
  }

  Status checkpoint(uint32_t index) {
    for (uint32_t l = 0; l < spec_.n_layers(); ++l) {
      const KvStore& kv = core_.store(l);
      for (const StatePart part : {StatePart::kState, StatePart::kConv}) {
        const uint64_t bytes = kv.state_bytes(l, part);
        if (bytes == 0 || only_counts(bytes)) continue;
        SHARPI_TRY(kv.read_checkpoint(index, l, part, scratch_.piece()));
        SHARPI_TRY(put_piece(bytes));
      }
    }
    const uint64_t bytes = uint64_t{spec_.n_vocab} * sizeof(float);
    if (!s_.checkpoints.all()[index].has_logits || only_counts(bytes)) return Status::ok();
    return put(s_.checkpoints.logits(index), bytes);
  }

  const SessionState& s_;
  const SessionCore& core_;
  const ModelSpec& spec_;
  BlobSink* sink_;
  BlobHeader h_;
  std::vector<uint32_t> checkpoints_;  // slots that are used
  BlobScratch scratch_;
  BlobCopier copier_;
  BlobSum sum_;  // behind the memory that it reads
  uint64_t bytes_ = 0;
};

}  // namespace

Result<uint64_t> saved_bytes(const SessionState& session) {
  SHARPI_TRY(session.core.check_whole());
  SessionSaver counter(session, nullptr);
  SHARPI_TRY(counter.run(0));
  return counter.bytes();
}

Status save_session(const SessionState& session, BlobSink* to, uint64_t bytes) {
  SHARPI_TRY(session.core.check_whole());
  return SessionSaver(session, to).run(bytes);
}

}  // namespace sharpi
