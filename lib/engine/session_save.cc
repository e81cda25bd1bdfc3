// SPDX-License-Identifier: MIT
// Save, restore and fork of a session (format: session_blob.h). Restore reads the whole blob once
// to validate it and a second time to apply it; only the second pass changes the session.
#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "engine/session.h"
#include "engine/session_blob.h"

namespace sharpi {

/// The ledger's fields, for this file only.
class LedgerCodec {
 public:
  static void header(const KvLedger& l, BlobHeader* h) {
    h->n_tokens = l.n_tokens_;
    h->flags = l.compacted_ ? 1 : 0;
    h->ring_low = l.ring_low_;
    h->ring_high = l.ring_high_;
    h->evicted_floor = l.evicted_floor_;
    h->n_queries = l.n_tokens_ - l.capture_low_;
  }
  static void set_header(const BlobHeader& h, KvLedger* l) {
    l->n_tokens_ = h.n_tokens;
    l->compacted_ = (h.flags & 1u) != 0;
    l->ring_high_ = h.ring_high;
    l->evicted_floor_ = h.evicted_floor;
    // A smaller ring keeps only its own last rows.
    const uint32_t held =
        l->ring_slots_ != 0 && h.ring_high > l->ring_slots_ ? h.ring_high - l->ring_slots_ : 0;
    l->ring_low_ = std::max(h.ring_low, held);
    l->capture_low_ = h.n_tokens - std::min(h.n_queries, l->capture_window_);
  }
  static LayerRows& rows(KvLedger* l, uint32_t layer) { return l->rows_[layer]; }
  static void set_positions(KvLedger* l, uint32_t layer, uint32_t list, const std::byte* from,
                            uint32_t n) {
    if (n != 0) std::memcpy(l->list(layer, list), from, n * sizeof(uint32_t));
  }
  static uint32_t window(const KvLedger& l) { return l.window_; }
};

namespace {

constexpr uint32_t kPiece = 64;  // rows copied at a time where a ring wraps

/// Rows of a ring that a blob holds: positions [first, first + n).
struct RingRows {
  uint32_t first = 0, n = 0;
};

RingRows ring_rows(const KvLedger& ledger, uint32_t ring_slots) {
  const uint32_t low = ledger.ring_high() > ring_slots ? ledger.ring_high() - ring_slots : 0;
  const uint32_t first = std::max(low, ledger.ring_low());
  return first < ledger.n_tokens() ? RingRows{first, ledger.n_tokens() - first}
                                   : RingRows{first, 0};
}

uint64_t row_bytes(const KvLayerLayout& l, bool value) {
  return value ? l.v_row_bytes : l.k_row_bytes;
}

/// Ring rows by position, canonical; slots wrap, so runs end where the ring does.
template <class F>
Status each_ring_run(RingRows r, uint32_t ring_slots, F&& run) {
  for (uint32_t i = 0; i < r.n;) {
    const uint32_t slot = (r.first + i) % ring_slots;
    const uint32_t n = std::min({r.n - i, ring_slots - slot, kPiece});
    SHARPI_TRY(run(i, slot, n));
    i += n;
  }
  return Status::ok();
}

Status put_ring(const KvStore& kv, const KvLayerLayout& l, RingRows r, uint32_t slots, bool value,
                std::byte* to) {
  return each_ring_run(r, slots, [&](uint32_t i, uint32_t slot, uint32_t n) {
    return kv.read_rows(l.layer, value, slot, n, to + i * row_bytes(l, value));
  });
}

Status get_ring(KvStore* kv, const KvLayerLayout& l, RingRows r, uint32_t slots, bool value,
                const std::byte* from) {
  return each_ring_run(r, slots, [&](uint32_t i, uint32_t slot, uint32_t n) {
    return kv->write_rows(l.layer, value, slot, n, from + i * row_bytes(l, value));
  });
}

Status put_rows(const KvStore& kv, const KvLedger& ledger, const KvLayerLayout& l, const KvGroup& g,
                BlobWriter* w) {
  BlobLayerHeader h;
  h.kind = g.ring ? BlobLayer::kRing : BlobLayer::kRows;
  h.k_dtype = static_cast<uint32_t>(l.k_dtype);
  h.v_dtype = static_cast<uint32_t>(l.v_dtype);
  const LayerRows& rows = ledger.rows(l.layer);
  const RingRows ring = g.ring ? ring_rows(ledger, g.ring_slots) : RingRows{};
  h.first_position = ring.first;
  h.n_rows = g.ring ? ring.n : rows.n_slots;
  h.n_compacted = rows.n_compacted;
  h.tail_position = rows.tail_position;
  h.n_lists = rows.n_lists;
  w->put(&h, sizeof h);
  for (uint32_t i = 0; i < h.n_lists; ++i) {
    const std::span<const uint32_t> list = ledger.positions(l.layer, i);
    w->put(list.data(), list.size_bytes());
  }
  for (const bool value : {false, true}) {
    std::byte* to = w->take(h.n_rows * row_bytes(l, value));
    if (to == nullptr) continue;
    SHARPI_TRY(g.ring ? put_ring(kv, l, ring, g.ring_slots, value, to)
                      : kv.read_rows(l.layer, value, 0, h.n_rows, to));
  }
  return Status::ok();
}

Status put_layer(const KvStore& kv, const KvLedger& ledger, uint32_t layer, BlobWriter* w) {
  const int32_t group = kv.layout().group_of_layer[layer];
  if (group >= 0) {
    return put_rows(kv, ledger, *kv.layout().find(layer),
                    kv.layout().groups[static_cast<size_t>(group)], w);
  }
  BlobLayerHeader h;
  if (kv.state_bytes(layer, StatePart::kState) != 0) h.kind = BlobLayer::kRecurrent;
  w->put(&h, sizeof h);
  for (const StatePart part : {StatePart::kState, StatePart::kConv}) {
    std::byte* to = w->take(kv.state_bytes(layer, part));
    if (to != nullptr && kv.state_bytes(layer, part) != 0)
      SHARPI_TRY(kv.read_state(layer, part, to));
  }
  return Status::ok();
}

/// Elements of one captured query of a layer; 0 if it captures none.
uint64_t query_dim(const LayerSpec& l) {
  const bool full = l.mixer == MixerKind::kAttention && l.attention.window == 0;
  return full ? uint64_t{l.attention.n_heads} * l.attention.head_dim : 0;
}

Status damaged(const char* what) {
  return Status::error(Code::kFormat, "the saved session is damaged: %s", what);
}

}  // namespace

/// Walks a blob; with `apply` it also writes the content into the session's stores and ledger.
class SessionRestorer {
 public:
  SessionRestorer(Session* s, const std::byte* blob, uint64_t bytes) : s_(s), r_(blob, bytes) {}

  Status walk(bool apply) {
    apply_ = apply;
    if (!r_.get(&h_, sizeof h_)) return damaged("header");
    const std::byte* tokens = r_.take(uint64_t{h_.n_tokens} * sizeof(int32_t));
    if (tokens == nullptr) return damaged("tokens");
    if (apply_) {
      s_->history_.resize(h_.n_tokens);
      if (h_.n_tokens != 0) std::memcpy(s_->history_.data(), tokens, h_.n_tokens * sizeof(int32_t));
      LedgerCodec::set_header(h_, &s_->ledger_);
    } else {
      SHARPI_TRY(check_header(tokens));
    }
    for (uint32_t l = 0; l < h_.n_layers; ++l) SHARPI_TRY(layer(l));
    for (uint32_t l = 0; l < h_.n_layers; ++l) SHARPI_TRY(queries(l));
    SHARPI_TRY(logits());
    SHARPI_TRY(checkpoints());
    return r_.left() == sizeof(uint64_t) ? Status::ok() : damaged("length");
  }

 private:
  Status check_header(const std::byte* tokens) const {
    const ModelSpec& spec = s_->model_->spec();
    if (h_.n_layers != spec.n_layers()) {
      return Status::error(Code::kMismatch, "the saved session has %u layers, the model %u",
                           h_.n_layers, spec.n_layers());
    }
    if (h_.n_tokens > s_->shape_.n_ctx) {
      return Status::error(Code::kKvFull,
                           "the saved session has %u tokens, this one a context of %u", h_.n_tokens,
                           s_->shape_.n_ctx);
    }
    for (uint32_t i = 0; i < h_.n_tokens; ++i) {
      int32_t token;
      std::memcpy(&token, tokens + i * sizeof token, sizeof token);
      if (token < 0 || static_cast<uint32_t>(token) >= spec.n_vocab) return damaged("token id");
    }
    if (h_.ring_high < h_.n_tokens || h_.ring_low > h_.ring_high) return damaged("ring bounds");
    if (h_.n_queries > h_.n_tokens) return damaged("captured queries");
    return Status::ok();
  }

  /// Of the saved queries, those that this session's own window holds.
  Status queries(uint32_t l) {
    const uint64_t dim = query_dim(s_->model_->spec().layers[l]);
    const std::byte* p = r_.take(h_.n_queries * dim * sizeof(float));
    if (p == nullptr) return damaged("captured queries");
    const uint32_t n = std::min(h_.n_queries, s_->shape_.capture_window);
    if (!apply_ || n == 0 || dim == 0) return Status::ok();
    std::vector<float> rows(n * dim);
    std::memcpy(rows.data(), p + (h_.n_queries - n) * dim * sizeof(float),
                rows.size() * sizeof(float));
    return s_->tier_of(l).write_queries(l, h_.n_tokens - n, n, rows.data());
  }

  Status layer(uint32_t l) {
    BlobLayerHeader h;
    if (!r_.get(&h, sizeof h)) return damaged("layer header");
    KvStore& kv = s_->store(l);
    const int32_t group = kv.layout().group_of_layer[l];
    if (group < 0) return recurrent(kv, l, h);
    const KvGroup& g = kv.layout().groups[static_cast<size_t>(group)];
    const KvLayerLayout& one = *kv.layout().find(l);
    if (h.kind != (g.ring ? BlobLayer::kRing : BlobLayer::kRows)) return damaged("layer kind");
    if (h.k_dtype != static_cast<uint32_t>(one.k_dtype) ||
        h.v_dtype != static_cast<uint32_t>(one.v_dtype)) {
      return Status::error(Code::kMismatch, "layer %u was saved with other KV dtypes", l);
    }
    if (g.ring) {
      if (h.n_lists != 0 || h.n_compacted != 0) return damaged("compacted rows");
    } else {
      SHARPI_TRY(check_rows(h, one, kv.capacity(static_cast<uint32_t>(group))));
    }
    SHARPI_TRY(read_positions(l, h));
    const std::byte* k = r_.take(h.n_rows * row_bytes(one, false));
    const std::byte* v = k == nullptr ? nullptr : r_.take(h.n_rows * row_bytes(one, true));
    if (v == nullptr) return damaged("KV rows");
    if (g.ring) return ring(kv, one, g, h, k, v);
    if (!apply_) return Status::ok();
    LedgerCodec::rows(&s_->ledger_, l) =
        LayerRows{h.n_rows, h.n_compacted, h.tail_position, h.n_lists};
    SHARPI_TRY(kv.write_rows(l, false, 0, h.n_rows, k));
    return kv.write_rows(l, true, 0, h.n_rows, v);
  }

  Status check_rows(const BlobLayerHeader& h, const KvLayerLayout& one, uint32_t capacity) const {
    if (h.n_rows > capacity) {
      return Status::error(Code::kKvFull, "layer %u was saved with %u rows, the capacity is %u",
                           one.layer, h.n_rows, capacity);
    }
    const bool lists_ok =
        h.n_lists == 0 ? h.n_compacted == 0 : h.n_lists == 1 || h.n_lists == one.n_heads;
    if (!lists_ok || h.n_compacted > h.n_rows) return damaged("compacted rows");
    // Rows that no compaction placed belong to the tokens from tail_position on, one each.
    if (h.tail_position > h_.n_tokens ||
        h.n_rows - h.n_compacted != h_.n_tokens - h.tail_position) {
      return damaged("rows of a layer");
    }
    return Status::ok();
  }

  Status read_positions(uint32_t layer, const BlobLayerHeader& h) {
    if (h.n_lists != 0) s_->take_tables();
    for (uint32_t i = 0; i < h.n_lists; ++i) {
      const std::byte* p = r_.take(uint64_t{h.n_compacted} * sizeof(uint32_t));
      if (p == nullptr) return damaged("positions");
      if (apply_) {
        LedgerCodec::set_positions(&s_->ledger_, layer, i, p, h.n_compacted);
        continue;
      }
      uint32_t last = 0;
      for (uint32_t j = 0; j < h.n_compacted; ++j) {
        uint32_t at;
        std::memcpy(&at, p + j * sizeof at, sizeof at);
        if (at >= h_.n_tokens || (j > 0 && at <= last)) return damaged("positions");
        last = at;
      }
    }
    return Status::ok();
  }

  Status ring(KvStore& kv, const KvLayerLayout& one, const KvGroup& g, const BlobLayerHeader& h,
              const std::byte* k, const std::byte* v) {
    if (uint64_t{h.first_position} + h.n_rows != h_.n_tokens) return damaged("ring rows");
    RingRows r{h.first_position, h.n_rows};
    const uint32_t drop = r.n > g.ring_slots ? r.n - g.ring_slots : 0;
    r.first += drop;
    r.n -= drop;
    if (r.first != 0 && r.n + 1 < g.window && !apply_) {
      return Status::error(Code::kMismatch, "the saved ring of layer %u does not cover its window",
                           one.layer);
    }
    if (!apply_) return Status::ok();
    SHARPI_TRY(get_ring(&kv, one, r, g.ring_slots, false, k + drop * row_bytes(one, false)));
    return get_ring(&kv, one, r, g.ring_slots, true, v + drop * row_bytes(one, true));
  }

  Status recurrent(KvStore& kv, uint32_t l, const BlobLayerHeader& h) {
    const uint64_t state = kv.state_bytes(l, StatePart::kState),
                   conv = kv.state_bytes(l, StatePart::kConv);
    if (h.kind != (state != 0 ? BlobLayer::kRecurrent : BlobLayer::kNone))
      return damaged("layer kind");
    const std::byte* s = r_.take(state);
    const std::byte* c = s == nullptr ? nullptr : r_.take(conv);
    if (c == nullptr) return damaged("recurrent state");
    if (!apply_ || state == 0) return Status::ok();
    SHARPI_TRY(kv.write_state(l, StatePart::kState, s));
    return kv.write_state(l, StatePart::kConv, c);
  }

  Status logits() {
    const uint64_t bytes = uint64_t{s_->model_->spec().n_vocab} * sizeof(float);
    if (h_.n_logit_rows > s_->model_->plan().model.max_logit_rows && !apply_) {
      return Status::error(Code::kMismatch,
                           "the saved session has %u logit rows, the plan allows %u",
                           h_.n_logit_rows, s_->model_->plan().model.max_logit_rows);
    }
    for (uint32_t i = 0; i < h_.n_logit_rows; ++i) {
      const std::byte* p = r_.take(bytes);
      if (p == nullptr) return damaged("logits");
      if (!apply_) continue;
      std::memcpy(s_->logits_row_.data(), p, bytes);
      SHARPI_TRY(s_->head().write_logits(i, s_->logits_row_.data()));
    }
    if (apply_) s_->n_logit_rows_ = h_.n_logit_rows;
    return Status::ok();
  }

  Status checkpoints() {
    if (h_.n_checkpoints > s_->checkpoints_.size()) {
      return Status::error(Code::kMismatch,
                           "the saved session has %u checkpoints, this one room for %zu",
                           h_.n_checkpoints, s_->checkpoints_.size());
    }
    if (apply_) std::fill(s_->checkpoints_.begin(), s_->checkpoints_.end(), Session::Checkpoint{});
    for (uint32_t i = 0; i < h_.n_checkpoints; ++i) {
      BlobCheckpointHeader c;
      if (!r_.get(&c, sizeof c) || c.n_tokens > h_.n_tokens) return damaged("checkpoint");
      for (const auto& tier : s_->tiers_) {
        const std::byte* p = r_.take(tier->store().checkpoint_bytes());
        if (p == nullptr) return damaged("checkpoint");
        if (apply_) SHARPI_TRY(tier->store().write_checkpoint(i, p));
      }
      if (!apply_) continue;
      s_->checkpoints_[i] = Session::Checkpoint{c.n_tokens, true, c.pinned != 0, c.age};
      s_->checkpoint_clock_ = std::max(s_->checkpoint_clock_, c.age);
    }
    return Status::ok();
  }

  Session* s_;
  BlobReader r_;
  BlobHeader h_;
  bool apply_ = false;
};

Status Session::write_blob(std::byte* out, uint64_t* bytes) const {
  BlobWriter w(out);
  BlobHeader h;
  LedgerCodec::header(ledger_, &h);
  h.n_layers = model_->spec().n_layers();
  h.content_id = model_->spec().file->content_id();
  h.n_logit_rows = n_logit_rows_;
  for (const Checkpoint& c : checkpoints_) h.n_checkpoints += c.used ? 1 : 0;
  h.total_bytes = *bytes;
  w.put(&h, sizeof h);
  w.put(history_.data(), history_.size() * sizeof(int32_t));
  for (uint32_t l = 0; l < h.n_layers; ++l) SHARPI_TRY(put_layer(store(l), ledger_, l, &w));
  for (uint32_t l = 0; l < h.n_layers; ++l) SHARPI_TRY(write_queries(h, l, &w));
  std::vector<float> row(
      model_->spec().n_vocab);  // not the session's: several saves may run at once
  for (uint32_t i = 0; i < n_logit_rows_; ++i) {
    std::byte* to = w.take(row.size() * sizeof(float));
    if (to == nullptr) continue;
    SHARPI_TRY(head().read_logits(i, row.data()));
    std::memcpy(to, row.data(), row.size() * sizeof(float));
  }
  for (uint32_t i = 0; i < checkpoints_.size(); ++i) {
    if (!checkpoints_[i].used) continue;
    const BlobCheckpointHeader c{checkpoints_[i].n_tokens, checkpoints_[i].pinned,
                                 checkpoints_[i].age};
    w.put(&c, sizeof c);
    for (const auto& tier : tiers_) {
      std::byte* to = w.take(tier->store().checkpoint_bytes());
      if (to != nullptr && tier->store().checkpoint_bytes() != 0) {
        SHARPI_TRY(tier->store().read_checkpoint(i, to));
      }
    }
  }
  const uint64_t sum = out == nullptr ? 0 : hash64(out, w.bytes());
  w.put(&sum, sizeof sum);
  *bytes = w.bytes();
  return Status::ok();
}

Status Session::write_queries(const BlobHeader& h, uint32_t layer, BlobWriter* w) const {
  const uint64_t n = h.n_queries * query_dim(model_->spec().layers[layer]);
  std::byte* to = w->take(n * sizeof(float));
  if (to == nullptr || n == 0) return Status::ok();
  std::vector<float> rows(n);
  SHARPI_TRY(
      tier_of(layer).read_queries(layer, h.n_tokens - h.n_queries, h.n_queries, rows.data()));
  std::memcpy(to, rows.data(), n * sizeof(float));
  return Status::ok();
}

Result<uint64_t> Session::save_bytes() const {
  uint64_t bytes = 0;
  SHARPI_TRY(write_blob(nullptr, &bytes));
  return bytes;
}

Status Session::save(std::byte* out, uint64_t bytes) const {
  return write_blob(out, &bytes);
}

Status Session::restore(const std::byte* blob, uint64_t len) {
  BlobHeader h;
  if (len < sizeof h + sizeof(uint64_t)) return damaged("too short");
  std::memcpy(&h, blob, sizeof h);
  if (h.magic != kBlobMagic) return Status::error(Code::kFormat, "this is no saved session");
  if (h.version != kBlobVersion) {
    return Status::error(Code::kMismatch, "saved session of version %u, this library reads %u",
                         h.version, kBlobVersion);
  }
  if (h.total_bytes != len) return damaged("it has another length than it says");
  uint64_t sum;
  std::memcpy(&sum, blob + len - sizeof sum, sizeof sum);
  if (hash64(blob, len - sizeof sum) != sum) return damaged("checksum");
  if (h.content_id != model_->spec().file->content_id()) {
    return Status::error(Code::kMismatch, "the session was saved with another model");
  }
  SHARPI_TRY(SessionRestorer(this, blob, len).walk(false));
  return SessionRestorer(this, blob, len).walk(true);
}

Result<std::unique_ptr<Session>> Session::fork() const {
  SessionShape shape = shape_;  // a compacted session may hold less than a new one
  for (const auto& tier : tiers_) {
    const KvStore& kv = tier->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g)
      if (!kv.layout().groups[g].ring)
        shape.first_slots = std::min(shape.first_slots, kv.capacity(g));
  }
  SHARPI_TRY_ASSIGN(std::unique_ptr<Session> to, create(model_, std::move(shape), &share_.held()));
  to->shape_.first_slots = SHARPI_UNSET;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    const KvStore& from = tiers_[t]->store();
    for (uint32_t g = 0; g < from.layout().groups.size(); ++g)
      SHARPI_TRY(to->tiers_[t]->store().reserve(g, from.capacity(g)));
  }
  SHARPI_TRY_ASSIGN(const uint64_t bytes, save_bytes());
  std::vector<std::byte> blob(bytes);
  SHARPI_TRY(save(blob.data(), bytes));
  SHARPI_TRY(to->restore(blob.data(), bytes));
  to->sampler_.copy_from(sampler_);
  return to;
}

}  // namespace sharpi
