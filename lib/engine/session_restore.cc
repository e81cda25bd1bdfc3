// SPDX-License-Identifier: MIT
#include "engine/session_restore.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "engine/blob_copier.h"
#include "engine/blob_head.h"
#include "engine/blob_parts.h"
#include "engine/session_state.h"

namespace sharpi {
namespace {

class SessionRestorer : private BlobHead {
 public:
  SessionRestorer(SessionState* s, BlobSource* source)
      : BlobHead(*s), s_(s), core_(s->core), source_(source) {}

  ~SessionRestorer() {
    if (!took_memory_) return;
    core_.drop_positions();
    s_->memory.drop_head_tables();
  }
  SessionRestorer(const SessionRestorer&) = delete;
  SessionRestorer& operator=(const SessionRestorer&) = delete;

  Status run(std::optional<uint64_t> len) {
    SHARPI_TRY(read_header(len));
    return end(s_->is_empty() ? run_once() : run_twice());
  }

 private:
  bool is_memory() const { return source_->memory() != nullptr; }
  uint64_t body_end() const { return total_ - kBlobSumBytes; }

  Status read_header(std::optional<uint64_t> len) {
    if (len && *len < sizeof h_ + kBlobSumBytes) return damaged("too short");
    SHARPI_TRY(source_->read(0, &h_, sizeof h_));
    SHARPI_TRY(check_fixed(h_));
    if (len && h_.total_bytes != *len) return damaged("it has another length than it says");
    total_ = h_.total_bytes;
    return Status::ok();
  }

  Status run_twice() {
    SHARPI_TRY_ASSIGN(const uint64_t sum, check_sum());
    if (!is_memory()) sum_.begin(total_);
    BlobCursor in(source_, 0, body_end(), is_memory() ? nullptr : &sum_);
    SHARPI_TRY(in.read(&h_, sizeof h_));
    SHARPI_TRY(apply(&in));
    if (is_memory() || sum_.value() == sum) return Status::ok();
    return damaged("its source gave other bytes the second time");
  }

  Result<uint64_t> check_sum() {  // may throw std::bad_alloc
    BlobSum sum;
    sum.begin(total_);
    if (is_memory()) {
      sum.start(source_->memory(), body_end());
    } else {
      scratch_.reserve({});
      BlobCursor in(source_, 0, body_end(), &sum);
      SHARPI_TRY(read_rest(&in));
    }
    SHARPI_TRY(compare(&sum));
    return sum.value();
  }

  /// Nothing can be lost, so a blob is read once: it is checked and applied while its checksum is
  /// made. Damage is what is told of, whatever else it looked like.
  Status run_once() {
    BlobCursor in(source_, sizeof h_, body_end(), is_memory() ? nullptr : &sum_);
    sum_.begin(total_);
    if (is_memory())
      sum_.start(source_->memory(), body_end());
    else
      sum_.add(&h_, sizeof h_);
    const Status done = apply(&in);
    if (done.code() == Code::kIo) return done;
    if (!is_memory() && in.left() != 0) {
      if (!writes_) scratch_.reserve({});
      SHARPI_TRY(read_rest(&in));
    }
    SHARPI_TRY(compare(&sum_));
    return done;
  }

  /// Pre: the scratch is there.
  Status read_rest(BlobCursor* in) {
    for (bool second = false; in->left() != 0; second = !second)
      SHARPI_TRY(in->read_ahead(scratch_.rows(second), std::min(in->left(), kBlobPiece)));
    return Status::ok();
  }

  Status compare(BlobSum* sum) {
    uint64_t said = 0;
    SHARPI_TRY(source_->read(body_end(), &said, sizeof said));
    return said == sum->value() ? Status::ok() : damaged("its checksum is wrong");
  }

  /// Everything but what settle() does.
  Status apply(BlobCursor* in) {
    SHARPI_TRY(read_head(in));
    if (in->left() != body_bytes()) return damaged("its parts do not add up to its length");
    SHARPI_TRY(take_memory());
    writes_ = true;
    if (by_head()) {
      s_->forget_contents();
      for (const GroupLags& g : group_lags_) g.store->lay_out_empty(g.group, g.lags);
    } else {
      s_->forget_all();
    }
    return write_body(in);
  }

  Status end(Status done) {
    if (done.is_ok())
      settle();
    else if (writes_)
      s_->forget_all();  // again: recurrent state may have come already
    return done;
  }

  Status take_memory() {  // may throw std::bad_alloc
    took_memory_ = true;
    bool has_room = false;
    BlobNeeds needs{uint64_t{spec_.n_vocab} * sizeof(float)};
    for (uint32_t l = 0; l < h_.n_layers; ++l) {
      needs.add(spec_.layers[l], core_.store(l), l);
      has_room = has_room || !core_.store(l).copy_room().bytes().empty();
    }
    scratch_.reserve(needs);
    if ((is_memory() && has_room) || needs.changes_form) copier_.begin(total_);
    if ((h_.flags & kBlobCompacted) != 0) SHARPI_TRY(core_.take_positions());
    if (by_head()) SHARPI_TRY(s_->memory.take_head_tables());
    SHARPI_TRY(s_->drawer.take_bias(sampler_.n_bias, &bias_share_));
    return s_->memory.own_rows([](uint32_t) { return 0; });
  }

  Status write_body(BlobCursor* in) {
    for (uint32_t l = 0; l < h_.n_layers; ++l) SHARPI_TRY(layer(in, l));
    for (uint32_t l = 0; l < h_.n_layers; ++l) SHARPI_TRY(queries(in, l));
    for (uint32_t l = 0; l < h_.n_layers; ++l) SHARPI_TRY(replay_scores(in, l));
    for (uint32_t i = 0; i < h_.n_logit_rows; ++i) {
      SHARPI_TRY(in->read(scratch_.piece(), uint64_t{spec_.n_vocab} * sizeof(float)));
      SHARPI_TRY(core_.head().write_logits(i, scratch_.floats()));
    }
    for (uint32_t i = 0; i < h_.n_checkpoints; ++i) SHARPI_TRY(checkpoint(in, i));
    return Status::ok();
  }

  Status layer(BlobCursor* in, uint32_t l) {
    KvStore& kv = core_.store(l);
    const int32_t group = kv.layout().group_of_layer[l];
    if (group < 0) {
      for (const StatePart part : {StatePart::kState, StatePart::kConv}) {
        const uint64_t bytes = kv.state_bytes(l, part);
        if (bytes == 0) continue;
        SHARPI_TRY(in->read(scratch_.piece(), bytes));
        SHARPI_TRY(kv.write_state(l, part, scratch_.piece()));
      }
      return Status::ok();
    }
    const KvGroup& g = kv.layout().groups[static_cast<size_t>(group)];
    for (const bool value : kv.layout().find(l)->sides()) {
      if (!g.ring && by_head())
        SHARPI_TRY(rows_by_head(in, &kv, RowSide::of_head(*kv.layout().find(l), value), l));
      else
        SHARPI_TRY(rows(in, &kv, RowSide(*kv.layout().find(l), value), l, g));
    }
    return Status::ok();
  }

  /// The next n rows as they are stored here; they stay until the next but one are asked for.
  Result<const std::byte*> next_rows(BlobCursor* in, const RowSide& side, RowPieces* pieces,
                                     uint32_t n) {
    const uint64_t bytes = n * side.row_bytes;
    const std::byte* memory = nullptr;
    if (is_memory()) {
      SHARPI_TRY_ASSIGN(memory, in->pass(bytes));
    }
    if (memory != nullptr && !pieces->runs_ahead() && !side.changes_form()) return memory;
    std::byte* at = pieces->next();
    std::byte* to = side.changes_form() ? scratch_.other_form() : at;
    if (memory == nullptr) {
      if (to != at) sum_.wait();  // the rows before, which lay there
      SHARPI_TRY(in->read_ahead(to, bytes));
    }
    if (side.changes_form())
      SHARPI_TRY(
          copier_.change(side, BlobCopier::To::kStored, at, memory != nullptr ? memory : to, n));
    else if (memory != nullptr)
      copier_.copy(at, memory, bytes);
    return at;
  }

  Status rows_by_head(BlobCursor* in, KvStore* kv, const RowSide& side, uint32_t l) {
    for (uint32_t h = 0; h < n_kv_heads(l); ++h) {
      const uint32_t all = layers_[l].n_rows - lag(l, h);
      RowPieces pieces(*kv, side, &scratch_, is_memory() ? nullptr : &sum_);
      for (uint32_t i = 0; i < all;) {
        const uint32_t n = std::min(all - i, pieces.n_rows());
        SHARPI_TRY_ASSIGN(const std::byte* at, next_rows(in, side, &pieces, n));
        SHARPI_TRY(kv->write_head_rows(l, h, side.value, i, n, at));
        i += n;
      }
    }
    return Status::ok();
  }

  /// A ring takes as many of the last rows as it has slots.
  Status rows(BlobCursor* in, KvStore* kv, const RowSide& side, uint32_t l, const KvGroup& g) {
    const BlobLayerHeader& h = layers_[l];
    const uint32_t skipped = g.ring && h.n_rows > g.ring_slots ? h.n_rows - g.ring_slots : 0;
    RowPieces pieces(*kv, side, &scratch_, is_memory() ? nullptr : &sum_);
    for (uint32_t i = 0; i < h.n_rows;) {
      uint32_t slot = h.first_position + i, n = std::min(h.n_rows - i, pieces.n_rows());
      if (g.ring) {
        slot = static_cast<uint32_t>((h_.base + slot) % g.ring_slots);
        n = std::min(n, g.ring_slots - slot);
      }
      if (i < skipped) n = std::min(n, skipped - i);
      // What was read before is on its way meanwhile.
      SHARPI_TRY_ASSIGN(const std::byte* at, next_rows(in, side, &pieces, n));
      if (i >= skipped) {
        SHARPI_TRY(pieces.wait());
        SHARPI_TRY(pieces.write(kv, l, slot, n, at));
      }
      i += n;
    }
    return pieces.wait();
  }

  /// Of the saved queries, those that this session's own window holds.
  Status queries(BlobCursor* in, uint32_t l) {
    const uint64_t row = query_dim(spec_.layers[l]) * sizeof(float);
    if (row == 0) return Status::ok();
    const auto most = static_cast<uint32_t>(std::max<uint64_t>(1, kBlobPiece / row));
    const uint32_t kept = std::min(h_.n_queries, core_.shape.capture_window),
                   skipped = h_.n_queries - kept;
    const uint64_t first = h_.base + h_.n_tokens - h_.n_queries;
    for (uint32_t i = 0; i < h_.n_queries;) {
      uint32_t n = std::min(most, h_.n_queries - i);
      if (i < skipped) n = std::min(n, skipped - i);
      SHARPI_TRY(in->read(scratch_.piece(), n * row));
      if (i >= skipped) {
        SHARPI_TRY(core_.tier_of(l).write_queries(l, first + i, n, scratch_.floats()));
      }
      i += n;
    }
    return Status::ok();
  }

  /// A session that captures none reads over them.
  Status replay_scores(BlobCursor* in, uint32_t l) {
    const uint32_t n_heads = spec_.layers[l].attention.n_kv_heads;
    if (n_replay_scores(l) == 0) return Status::ok();
    constexpr uint32_t kMost = kBlobPiece / sizeof(float);
    TierSession& tier = core_.tier_of(l);
    for (uint32_t h = 0; h < n_heads; ++h) {
      const uint32_t all = layers_[l].n_rows - lag(l, h);
      for (uint32_t i = 0, n = 0; i < all; i += n) {
        n = std::min(kMost, all - i);
        SHARPI_TRY(in->read(scratch_.piece(), uint64_t{n} * sizeof(float)));
        if (tier.has_replay_scores(l))
          SHARPI_TRY(tier.write_replay_scores(l, h, i, n, scratch_.floats()));
      }
    }
    return Status::ok();
  }

  Status checkpoint(BlobCursor* in, uint32_t index) {
    for (uint32_t l = 0; l < h_.n_layers; ++l) {
      KvStore& kv = core_.store(l);
      for (const StatePart part : {StatePart::kState, StatePart::kConv}) {
        const uint64_t bytes = kv.state_bytes(l, part);
        if (bytes == 0) continue;
        SHARPI_TRY(in->read(scratch_.piece(), bytes));
        SHARPI_TRY(kv.write_checkpoint(index, l, part, scratch_.piece()));
      }
    }
    if (checkpoints_[index].has_logits == 0) return Status::ok();
    return in->read(s_->checkpoints.logits(index), uint64_t{spec_.n_vocab} * sizeof(float));
  }

  void settle() noexcept {
    core_.transcript.restore(tokens_, h_.n_logit_rows, [&](KvLedger* ledger) {
      for (uint32_t l = 0; l < h_.n_layers; ++l) {
        const BlobLayerHeader& h = layers_[l];
        if (h.kind != BlobLayer::kRows) continue;
        LedgerCodec::set_rows(ledger, l,
                              LayerRows{h.n_rows, h.n_compacted, h.tail_position, h.n_lists},
                              lags_[l], positions_[l]);
      }
      LedgerCodec::set_header(h_, ledger);
    });
    core_.transcript.note_other_adapters(adapters_.n_other_tokens);
    s_->drafters.restart(core_.ledger().next_position());
    for (uint32_t i = 0; i < h_.n_checkpoints; ++i) {
      const BlobCheckpointHeader& c = checkpoints_[i];
      s_->checkpoints.adopt(i, {c.n_tokens, true, c.pinned != 0, c.has_logits != 0, c.age});
    }
    s_->drawer.adopt(sampler_, &bias_tokens_, &bias_values_, random_, &bias_share_);
  }

  SessionState* s_;
  SessionCore& core_;
  BlobSource* source_;
  uint64_t total_ = 0;
  bool took_memory_ = false, writes_ = false;
  Lease bias_share_{core_.share};
  BlobScratch scratch_;
  BlobCopier copier_;
  BlobSum sum_;  // behind the memory that it reads
};

}  // namespace

Status restore_session(SessionState* session, BlobSource* from, std::optional<uint64_t> len) {
  return SessionRestorer(session, from).run(len);
}

}  // namespace sharpi
