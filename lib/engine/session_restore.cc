// SPDX-License-Identifier: MIT
#include "engine/session_restore.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/blob_parts.h"
#include "engine/session_state.h"

namespace sharpi {
namespace {

Status damaged(const char* what) {
  return Status::error(Code::kFormat, "the saved session is damaged: %s", what);
}

/// Reads `n` numbers, in pieces: memory is taken for what has arrived, not for what is announced.
template <class T>
Status read_list(BlobCursor* from, uint64_t n, std::vector<T>* out) {
  if (n > from->left() / sizeof(T)) return damaged("a list is longer than what is left");
  constexpr uint64_t kMost = kBlobPiece / sizeof(T);
  out->clear();
  while (out->size() < n) {
    const uint64_t had = out->size(), more = std::min(kMost, n - had);
    out->resize(had + more);
    SHARPI_TRY(from->read(out->data() + had, more * sizeof(T)));
  }
  out->shrink_to_fit();
  return Status::ok();
}

class SessionRestorer {
 public:
  SessionRestorer(SessionState* s, BlobSource* source)
      : s_(s), core_(s->core), spec_(s->core.spec()), source_(source) {}

  Status run(std::optional<uint64_t> len) {
    SHARPI_TRY(check_sum(len));
    BlobCursor in(source_, total_ - kBlobSumBytes);
    SHARPI_TRY(read_head(&in));
    if (in.left() != body_bytes()) return damaged("its parts do not add up to its length");
    const struct EndOfRestore {
      SessionCore& core;
      ~EndOfRestore() { core.drop_positions(); }
    } end{core_};
    SHARPI_TRY(take_memory());
    s_->forget_all();
    Status written = write_body(&in);
    if (written.is_ok() && in.sum() != sum_) {
      written = damaged("its source gave other bytes the second time");
    }
    if (written.is_ok()) {
      settle();
    } else {
      s_->forget_all();  // again: recurrent state may have come already
    }
    return written;
  }

 private:
  Status check_fixed(const BlobHeader& h) const {
    if (h.magic != kBlobMagic) return Status::error(Code::kFormat, "this is no saved session");
    if (h.version != kBlobVersion) {
      return Status::error(Code::kMismatch,
                           "the saved session has version %u, but this library reads version %u",
                           h.version, kBlobVersion);
    }
    if (h.total_bytes < sizeof h + sizeof(BlobSampler) + kBlobSumBytes)
      return damaged("its parts do not add up to its length");
    return Status::ok();
  }

  Status check_sum(std::optional<uint64_t> len) {
    BlobHeader h;
    if (len && *len < sizeof h + kBlobSumBytes) return damaged("too short");
    SHARPI_TRY(source_->read(0, &h, sizeof h));
    SHARPI_TRY(check_fixed(h));
    if (len && h.total_bytes != *len) return damaged("it has another length than it says");
    total_ = h.total_bytes;
    scratch_.reserve(kBlobPiece, 0);
    BlobCursor in(source_, total_ - kBlobSumBytes);
    while (in.left() != 0) SHARPI_TRY(in.read(scratch_.piece(), std::min(in.left(), kBlobPiece)));
    sum_ = in.sum();
    uint64_t said = 0;
    SHARPI_TRY(source_->read(total_ - kBlobSumBytes, &said, sizeof said));
    return said == sum_ ? Status::ok() : damaged("its checksum is wrong");
  }

  Status read_head(BlobCursor* in) {
    SHARPI_TRY(in->read(&h_, sizeof h_));
    SHARPI_TRY(check_fixed(h_));
    SHARPI_TRY(check_header());
    SHARPI_TRY(read_adapters(in));
    SHARPI_TRY(read_list(in, h_.n_tokens, &tokens_));
    for (const int32_t t : tokens_) {
      if (t < 0 || static_cast<uint32_t>(t) >= spec_.n_vocab)
        return damaged("a token id is outside of the vocabulary");
    }
    SHARPI_TRY(read_sampler(in));
    layers_.resize(h_.n_layers);
    positions_.resize(h_.n_layers);
    for (uint32_t l = 0; l < h_.n_layers; ++l) {
      SHARPI_TRY(in->read(&layers_[l], sizeof(BlobLayerHeader)));
      SHARPI_TRY(check_layer(l));
      SHARPI_TRY(read_positions(in, l));
    }
    SHARPI_TRY(check_evicted());
    return read_checkpoints(in);
  }

  Status check_header() const {
    if (h_.content_id != spec_.saved_id()) {
      const bool other_angles = h_.content_id == spec_.saved_id(!spec_.has_long_rope());
      return Status::error(Code::kMismatch, "the session was saved with %s",
                           other_angles ? "other angles of RoPE: its plan's n_ctx and this one's "
                                          "lie on two sides of where LongRoPE's long ones begin"
                                        : "another model");
    }
    if (h_.n_layers != spec_.n_layers()) {
      return Status::error(Code::kMismatch, "the saved session has %u layers, but the model has %u",
                           h_.n_layers, spec_.n_layers());
    }
    if (h_.n_tokens > core_.shape.n_ctx) {
      return Status::native_error(
          Code::kKvFull, SHARPI_KV_FULL_CONTEXT,
          "the saved session has %u tokens, but this session has a context of %u", h_.n_tokens,
          core_.shape.n_ctx);
    }
    if (h_.flags > (kBlobCompacted | kBlobReplay | kBlobAdapters))
      return damaged("it has unknown flags");
    // Only a session that has evicted rows has gone on past its context.
    if (h_.base > kBlobMaxBase || (h_.base != 0 && h_.n_tokens == 0))
      return damaged("its base of positions is impossible");
    const uint32_t window = LedgerCodec::window(core_.ledger());
    if (h_.ring_low != 0 && (window == 0 || uint64_t{h_.ring_low} + window > h_.n_tokens)) {
      return damaged("the bounds of its rings are impossible");
    }
    if (h_.n_queries > h_.n_tokens) return damaged("it has more captured queries than tokens");
    SHARPI_TRY(check_replay());
    if (h_.n_logit_rows > h_.n_tokens) return damaged("it has more rows of logits than tokens");
    const uint32_t most = core_.limits().max_logit_rows;
    if (h_.n_logit_rows > most) {
      return Status::error(Code::kMismatch,
                           "the saved session has %u rows of logits, but the plan allows %u",
                           h_.n_logit_rows, most);
    }
    if (h_.n_checkpoints > s_->checkpoints.all().size()) {
      return Status::error(
          Code::kMismatch,
          "the saved session has %u checkpoints, but this session has room for %zu",
          h_.n_checkpoints, s_->checkpoints.all().size());
    }
    return Status::ok();
  }

  /// Rows are those of the adapters that read them, so the session that goes on has to have them.
  Status read_adapters(BlobCursor* in) {
    if ((h_.flags & kBlobAdapters) != 0) SHARPI_TRY(in->read(&adapters_, sizeof adapters_));
    const bool none = adapters_.id == 0 && adapters_.n_other_tokens == 0;
    if (adapters_.n_other_tokens > h_.n_tokens || adapters_.reserved != 0 ||
        none != ((h_.flags & kBlobAdapters) == 0)) {
      return damaged("what it says of adapters is impossible");
    }
    return core_.adapters.check_saved(adapters_.id);
  }

  /// Every row of a session that captures replay scores has one, or its query.
  Status check_replay() const {
    const bool has = (h_.flags & kBlobReplay) != 0;
    if (h_.n_scored > (has ? h_.n_tokens : 0)) return damaged("its replay scores are impossible");
    const uint32_t waiting = h_.n_tokens - h_.n_scored;
    if (has && waiting > h_.n_queries) return damaged("its replay scores are impossible");
    if (core_.shape.replay_every == 0) return Status::ok();
    if (!has) {
      return Status::error(Code::kMismatch,
                           "the session was saved without replay scores, which this one captures");
    }
    if (waiting <= core_.shape.capture_window) return Status::ok();
    return Status::error(Code::kMismatch,
                         "%u rows of the saved session wait for replay scores, but this session's "
                         "capture_window is %u",
                         waiting, core_.shape.capture_window);
  }

  Status read_sampler(BlobCursor* in) {
    BlobSampler b;
    SHARPI_TRY(in->read(&b, sizeof b));
    SHARPI_TRY(read_list(in, b.n_bias, &bias_tokens_));
    SHARPI_TRY(read_list(in, b.n_bias, &bias_values_));
    sampler_ = default_sampler_params();
    sampler_.temperature = b.temperature;
    sampler_.top_p = b.top_p;
    sampler_.min_p = b.min_p;
    sampler_.repeat_penalty = b.repeat_penalty;
    sampler_.top_k = b.top_k;
    sampler_.repeat_last_n = b.repeat_last_n;
    sampler_.n_bias = b.n_bias;
    sampler_.seed = b.seed;
    sampler_.bias_tokens = bias_tokens_.data();
    sampler_.bias_values = bias_values_.data();
    random_ = {b.random_state};
    const bool good = b.reserved == 0 && Sampler::check(sampler_, spec_.n_vocab).is_ok();
    return good ? Status::ok() : damaged("its sampler settings are impossible");
  }

  static Status check_dtype(uint32_t saved, KvDtype here, uint32_t l) {
    const uint32_t want = kv_saved_dtype(here);
    if (saved == want) return Status::ok();
    if ((saved & 0xFFFFu) != (want & 0xFFFFu)) {
      return Status::error(Code::kMismatch, "layer %u was saved with other KV dtypes", l);
    }
    return Status::error(
        Code::kMismatch,
        "layer %u was saved with version %u of the levels of %s, but this library has version %u",
        l, saved >> 16, kv_dtype_name(here), want >> 16);
  }

  Status check_layer(uint32_t l) const {
    const BlobLayerHeader& h = layers_[l];
    const KvStore& kv = core_.store(l);
    const int32_t group = kv.layout().group_of_layer[l];
    if (group < 0) {
      BlobLayerHeader want;
      if (kv.state_bytes(l, StatePart::kState) != 0) want.kind = BlobLayer::kRecurrent;
      return h == want ? Status::ok() : damaged("a layer is of another kind than the model's");
    }
    const KvGroup& g = kv.layout().groups[static_cast<size_t>(group)];
    const KvLayerLayout& one = *kv.layout().find(l);
    if (h.kind != (g.ring ? BlobLayer::kRing : BlobLayer::kRows))
      return damaged("a layer is of another kind than the model's");
    SHARPI_TRY(check_dtype(h.k_dtype, one.k_dtype, l));
    SHARPI_TRY(check_dtype(h.v_dtype, one.v_dtype, l));
    return g.ring ? check_ring(h, l, g)
                  : check_rows(h, one, kv.capacity(static_cast<uint32_t>(group)));
  }

  Status check_ring(const BlobLayerHeader& h, uint32_t l, const KvGroup& g) const {
    if (h.n_lists != 0 || h.n_compacted != 0 || h.tail_position != 0) {
      return damaged("a ring has compacted rows");
    }
    if (h.first_position != h_.ring_low || h.n_rows != h_.n_tokens - h_.ring_low) {
      return damaged("the rows of a ring do not fit its bounds");
    }
    if (h_.ring_low != 0 && h.n_rows < g.window) {
      return Status::error(Code::kMismatch, "the saved ring of layer %u does not cover its window",
                           l);
    }
    return Status::ok();
  }

  Status check_rows(const BlobLayerHeader& h, const KvLayerLayout& one, uint32_t committed) const {
    const uint32_t capacity = std::min(committed, core_.priced_slots());
    if (h.n_rows > capacity) {
      return Status::native_error(
          Code::kKvFull, SHARPI_KV_FULL_SLOTS,
          "layer %u was saved with %u rows, but this session has a capacity of %u", one.layer,
          h.n_rows, capacity);
    }
    const bool none = h.n_lists == 0 && h.n_compacted == 0 && h.tail_position == 0;
    const bool some = (h.n_lists == 1 || h.n_lists == one.n_heads) && h.n_compacted != 0;
    if (!(none || some) || h.n_compacted > h.n_rows || h.first_position != 0) {
      return damaged("the compacted rows of a layer are impossible");
    }
    // Rows that no compaction placed belong to the tokens from tail_position on, one each.
    if (h.tail_position > h_.n_tokens ||
        h.n_rows - h.n_compacted != h_.n_tokens - h.tail_position) {
      return damaged("the rows of a layer do not fit its tokens");
    }
    return Status::ok();
  }

  Status read_positions(BlobCursor* in, uint32_t l) {
    const BlobLayerHeader& h = layers_[l];
    SHARPI_TRY(read_list(in, uint64_t{h.n_lists} * h.n_compacted, &positions_[l]));
    for (size_t i = 0; i < positions_[l].size(); ++i) {
      const uint32_t at = positions_[l][i];
      const bool first = i % h.n_compacted == 0;
      if (at >= h.tail_position || (!first && at <= positions_[l][i - 1])) {
        return damaged("positions of rows do not ascend");
      }
    }
    return Status::ok();
  }

  /// The header's facts about compaction follow from the layers'.
  Status check_evicted() const {
    uint32_t floor = 0;
    bool compacted = false;
    for (const BlobLayerHeader& h : layers_) {
      if (h.n_lists == 0) continue;
      compacted = true;
      floor = std::max(floor, h.tail_position);
    }
    return (h_.flags & kBlobCompacted) == (compacted ? kBlobCompacted : 0u) &&
                   h_.evicted_floor == floor
               ? Status::ok()
               : damaged("its evicted rows do not follow from its layers");
  }

  Status read_checkpoints(BlobCursor* in) {
    SHARPI_TRY(read_list(in, h_.n_checkpoints, &checkpoints_));
    for (size_t i = 0; i < checkpoints_.size(); ++i) {
      const BlobCheckpointHeader& c = checkpoints_[i];
      bool good = c.n_tokens <= h_.n_tokens && c.pinned <= 1 && c.has_logits <= 1 && c.age >= 1 &&
                  c.age <= h_.n_checkpoints;
      for (size_t j = 0; j < i; ++j) {
        good = good && checkpoints_[j].n_tokens != c.n_tokens && checkpoints_[j].age != c.age;
      }
      if (!good) return damaged("a checkpoint is impossible");
    }
    return Status::ok();
  }

  /// Every number in it is bounded by now.
  uint64_t body_bytes() const {
    uint64_t bytes = 0, state = 0;
    for (uint32_t l = 0; l < h_.n_layers; ++l) {
      const KvStore& kv = core_.store(l);
      const KvLayerLayout* one = kv.layout().find(l);
      if (one != nullptr)
        bytes += layers_[l].n_rows * (uint64_t{one->k_row_bytes} + one->v_row_bytes);
      state += kv.state_bytes(l, StatePart::kState) + kv.state_bytes(l, StatePart::kConv);
      bytes += h_.n_queries * query_dim(spec_.layers[l]) * sizeof(float);
      bytes += n_replay_scores(l) * sizeof(float);
    }
    uint64_t logit_rows = h_.n_logit_rows;
    for (const BlobCheckpointHeader& c : checkpoints_) logit_rows += c.has_logits;
    return bytes + state * (1 + h_.n_checkpoints) + logit_rows * spec_.n_vocab * sizeof(float);
  }

  uint64_t n_replay_scores(uint32_t l) const {
    if ((h_.flags & kBlobReplay) == 0 || layers_[l].kind != BlobLayer::kRows) return 0;
    return uint64_t{layers_[l].n_rows} * spec_.layers[l].attention.n_kv_heads;
  }

  Status take_memory() {  // may throw std::bad_alloc
    uint64_t piece = uint64_t{spec_.n_vocab} * sizeof(float), row = 0;
    for (uint32_t l = 0; l < h_.n_layers; ++l) {
      const KvStore& kv = core_.store(l);
      for (const StatePart part : {StatePart::kState, StatePart::kConv})
        piece = std::max(piece, kv.state_bytes(l, part));
      piece = std::max(piece, query_dim(spec_.layers[l]) * sizeof(float));
      const KvLayerLayout* one = kv.layout().find(l);
      if (one != nullptr) row = std::max<uint64_t>({row, one->k_row_bytes, one->v_row_bytes});
    }
    scratch_.reserve(std::max(piece, row), row);
    if ((h_.flags & kBlobCompacted) != 0) SHARPI_TRY(core_.take_positions());
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
    for (const bool value : {false, true})
      SHARPI_TRY(rows(in, &kv, RowSide(*kv.layout().find(l), value), l, g));
    return Status::ok();
  }

  /// A ring takes as many of the last rows as it has slots.
  Status rows(BlobCursor* in, KvStore* kv, const RowSide& side, uint32_t l, const KvGroup& g) {
    const BlobLayerHeader& h = layers_[l];
    const uint32_t skipped = g.ring && h.n_rows > g.ring_slots ? h.n_rows - g.ring_slots : 0;
    for (uint32_t i = 0; i < h.n_rows;) {
      uint32_t slot = h.first_position + i, n = std::min(h.n_rows - i, side.piece_rows());
      if (g.ring) {
        slot = static_cast<uint32_t>((h_.base + slot) % g.ring_slots);
        n = std::min(n, g.ring_slots - slot);
      }
      if (i < skipped) n = std::min(n, skipped - i);
      SHARPI_TRY(in->read(scratch_.piece(), n * side.row_bytes));
      if (i >= skipped) {
        SHARPI_TRY(scratch_.convert(side, n, false));
        SHARPI_TRY(kv->write_rows(l, side.value, slot, n, scratch_.piece()));
      }
      i += n;
    }
    return Status::ok();
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
    uint64_t stride = 0;
    float* scores = core_.tier_of(l).replay_scores(l, &stride);
    for (uint32_t h = 0; h < n_heads; ++h) {
      uint64_t left = layers_[l].n_rows * sizeof(float);
      if (scores != nullptr) SHARPI_TRY(in->read(scores + h * stride, left));
      for (uint64_t n = 0; scores == nullptr && left != 0; left -= n) {
        n = std::min(left, kBlobPiece);
        SHARPI_TRY(in->read(scratch_.piece(), n));
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
                              positions_[l]);
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
  const ModelSpec& spec_;
  BlobSource* source_;
  uint64_t total_ = 0, sum_ = 0;
  BlobHeader h_;
  BlobAdapters adapters_;
  std::vector<int32_t> tokens_;
  sharpi_sampler_params sampler_{};
  std::vector<int32_t> bias_tokens_;
  std::vector<float> bias_values_;
  SamplerMark random_;
  Lease bias_share_{core_.share};
  std::vector<BlobLayerHeader> layers_;
  std::vector<std::vector<uint32_t>> positions_;  // per layer, list after list
  std::vector<BlobCheckpointHeader> checkpoints_;
  BlobScratch scratch_;
};

}  // namespace

Status restore_session(SessionState* session, BlobSource* from, std::optional<uint64_t> len) {
  return SessionRestorer(session, from).run(len);
}

}  // namespace sharpi
