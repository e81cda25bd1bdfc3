// SPDX-License-Identifier: MIT
#include "engine/blob_head.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "engine/blob_parts.h"
#include "engine/session_state.h"

namespace sharpi {
namespace {

/// Reads `n` numbers, in pieces: memory is taken for what has arrived, not for what is announced.
template <class T>
Status read_list(BlobCursor* from, uint64_t n, std::vector<T>* out) {
  if (n > from->left() / sizeof(T)) return BlobHead::damaged("a list is longer than what is left");
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

}  // namespace

Status BlobHead::damaged(const char* what) {
  return Status::error(Code::kFormat, "the saved session is damaged: %s", what);
}

BlobHead::BlobHead(const SessionState& s) : spec_(s.core.spec()), session_(s) {}

Status BlobHead::check_fixed(const BlobHeader& h) {
  if (h.magic != kBlobMagic) return Status::error(Code::kFormat, "this is no saved session");
  if (h.version != kBlobVersion && h.version != kBlobVersionByHead) {
    return Status::error(
        Code::kMismatch,
        "the saved session has version %u, but this library reads versions %u and %u", h.version,
        kBlobVersion, kBlobVersionByHead);
  }
  if (h.total_bytes < sizeof h + sizeof(BlobSampler) + kBlobSumBytes)
    return damaged("its parts do not add up to its length");
  return Status::ok();
}

Status BlobHead::read_head(BlobCursor* in) {
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
  lags_.resize(h_.n_layers);
  for (uint32_t l = 0; l < h_.n_layers; ++l) {
    SHARPI_TRY(in->read(&layers_[l], sizeof(BlobLayerHeader)));
    SHARPI_TRY(check_layer(l));
    SHARPI_TRY(read_lags(in, l));
    SHARPI_TRY(read_positions(in, l));
  }
  SHARPI_TRY(check_evicted());
  SHARPI_TRY(lay_out_heads());
  return read_checkpoints(in);
}

Status BlobHead::check_header() const {
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
  if (h_.n_tokens > session_.core.shape.n_ctx) {
    return Status::native_error(
        Code::kKvFull, SHARPI_KV_FULL_CONTEXT,
        "the saved session has %u tokens, but this session has a context of %u", h_.n_tokens,
        session_.core.shape.n_ctx);
  }
  if (h_.flags > (kBlobCompacted | kBlobReplay | kBlobAdapters | kBlobByHead))
    return damaged("it has unknown flags");
  if (by_head() != (h_.version == kBlobVersionByHead))
    return damaged("its version is another than that of its rows");
  // Only a session that has evicted rows has gone on past its context.
  if (h_.base > kBlobMaxBase || (h_.base != 0 && h_.n_tokens == 0))
    return damaged("its base of positions is impossible");
  const uint32_t window = LedgerCodec::window(session_.core.ledger());
  if (h_.ring_low != 0 && (window == 0 || uint64_t{h_.ring_low} + window > h_.n_tokens)) {
    return damaged("the bounds of its rings are impossible");
  }
  if (h_.n_queries > h_.n_tokens) return damaged("it has more captured queries than tokens");
  SHARPI_TRY(check_replay());
  if (h_.n_logit_rows > h_.n_tokens) return damaged("it has more rows of logits than tokens");
  const uint32_t most = session_.core.limits().max_logit_rows;
  if (h_.n_logit_rows > most) {
    return Status::error(Code::kMismatch,
                         "the saved session has %u rows of logits, but the plan allows %u",
                         h_.n_logit_rows, most);
  }
  if (h_.n_checkpoints > session_.checkpoints.all().size()) {
    return Status::error(Code::kMismatch,
                         "the saved session has %u checkpoints, but this session has room for %zu",
                         h_.n_checkpoints, session_.checkpoints.all().size());
  }
  return Status::ok();
}

/// Rows are those of the adapters that read them, so the session that goes on has to have them.
Status BlobHead::read_adapters(BlobCursor* in) {
  if ((h_.flags & kBlobAdapters) != 0) SHARPI_TRY(in->read(&adapters_, sizeof adapters_));
  const bool none = adapters_.id == 0 && adapters_.n_other_tokens == 0;
  if (adapters_.n_other_tokens > h_.n_tokens || adapters_.reserved != 0 ||
      none != ((h_.flags & kBlobAdapters) == 0)) {
    return damaged("what it says of adapters is impossible");
  }
  return session_.core.adapters.check_saved(adapters_.id);
}

/// Every row of a session that captures replay scores has one, or its query.
Status BlobHead::check_replay() const {
  const bool has = (h_.flags & kBlobReplay) != 0;
  if (h_.n_scored > (has ? h_.n_tokens : 0)) return damaged("its replay scores are impossible");
  const uint32_t waiting = h_.n_tokens - h_.n_scored;
  if (has && waiting > h_.n_queries) return damaged("its replay scores are impossible");
  if (session_.core.shape.replay_every == 0) return Status::ok();
  if (!has) {
    return Status::error(Code::kMismatch,
                         "the session was saved without replay scores, which this one captures");
  }
  if (waiting <= session_.core.shape.capture_window) return Status::ok();
  return Status::error(Code::kMismatch,
                       "%u rows of the saved session wait for replay scores, but this session's "
                       "capture_window is %u",
                       waiting, session_.core.shape.capture_window);
}

Status BlobHead::read_sampler(BlobCursor* in) {
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

Status BlobHead::check_dtype(uint32_t saved, KvDtype here, uint32_t l) {
  const uint32_t want = kv_saved_dtype(here);
  if (saved == want) return Status::ok();
  if ((saved & 0xFFFFu) != (want & 0xFFFFu)) {
    return Status::error(Code::kMismatch, "layer %u was saved with other KV dtypes", l);
  }
  return Status::error(
      Code::kMismatch,
      "layer %u was saved with version %u of the levels of %s, but this library has version %u", l,
      saved >> 16, kv_dtype_name(here), want >> 16);
}

Status BlobHead::check_layer(uint32_t l) const {
  const BlobLayerHeader& h = layers_[l];
  const KvStore& kv = session_.core.store(l);
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
  if (g.ring) return check_ring(h, l, g);
  const auto at = static_cast<uint32_t>(group);
  return check_rows(h, one, by_head() ? kv.capacity(at) : kv.slots_by_head(at, {}));
}

Status BlobHead::check_ring(const BlobLayerHeader& h, uint32_t l, const KvGroup& g) const {
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

Status BlobHead::check_rows(const BlobLayerHeader& h, const KvLayerLayout& one,
                            uint32_t committed) const {
  const uint32_t capacity = std::min(committed, session_.core.priced_slots());
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
  if (h.tail_position > h_.n_tokens || h.n_rows - h.n_compacted != h_.n_tokens - h.tail_position) {
    return damaged("the rows of a layer do not fit its tokens");
  }
  return Status::ok();
}

/// One of a layer's heads is its fullest, and all have rows.
Status BlobHead::read_lags(BlobCursor* in, uint32_t l) {
  const BlobLayerHeader& h = layers_[l];
  if (!by_head() || h.kind != BlobLayer::kRows) return Status::ok();
  if (!session_.core.store(l).can_keep_by_head()) {
    return Status::error(Code::kUnsupported,
                         "the saved session keeps rows by head, which is done on the CPU alone, "
                         "but layer %u is on a device",
                         l);
  }
  SHARPI_TRY(read_list(in, n_kv_heads(l), &lags_[l]));
  const auto [least, most] = std::minmax_element(lags_[l].begin(), lags_[l].end());
  const bool apart = h.n_lists == lags_[l].size();
  const bool good = *least == 0 && (*most == 0 || (apart && *most < h.n_compacted));
  return good ? Status::ok() : damaged("the counts of rows of its heads are impossible");
}

/// What the heads of every group lag behind its fullest one; there has to be memory for them.
Status BlobHead::lay_out_heads() {
  if (!by_head()) return Status::ok();
  for (const auto& tier : session_.core.tiers) {
    KvStore& kv = tier->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      const KvGroup& group = kv.layout().groups[g];
      if (group.ring) continue;
      uint32_t most = 0;
      for (const KvLayerLayout& l : group.layers) most = std::max(most, layers_[l.layer].n_rows);
      GroupLags one{&kv, g, {}};
      for (const KvLayerLayout& l : group.layers) {
        for (const uint32_t lag : lags_[l.layer])
          one.lags.push_back(most - layers_[l.layer].n_rows + lag);
      }
      const uint32_t room = kv.slots_by_head(g, one.lags);
      if (room < most) {
        return Status::native_error(
            Code::kKvFull, SHARPI_KV_FULL_SLOTS,
            "the fullest head was saved with %u rows, but this session has memory for %u", most,
            room);
      }
      group_lags_.push_back(std::move(one));
    }
  }
  return Status::ok();
}

Status BlobHead::read_positions(BlobCursor* in, uint32_t l) {
  const BlobLayerHeader& h = layers_[l];
  uint64_t n = uint64_t{h.n_lists} * h.n_compacted;
  for (uint32_t i = 0; i < h.n_lists; ++i) n -= lag(l, i);
  SHARPI_TRY(read_list(in, n, &positions_[l]));
  const uint32_t* at = positions_[l].data();
  for (uint32_t i = 0; i < h.n_lists; ++i) {
    const std::span<const uint32_t> list(at, h.n_compacted - lag(l, i));
    const bool ascend =
        std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) == list.end();
    if (!ascend || (!list.empty() && list.back() >= h.tail_position))
      return damaged("positions of rows do not ascend");
    at += list.size();
  }
  return Status::ok();
}

/// The header's facts about compaction follow from the layers'.
Status BlobHead::check_evicted() const {
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

Status BlobHead::read_checkpoints(BlobCursor* in) {
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
uint64_t BlobHead::body_bytes() const {
  uint64_t bytes = 0, state = 0;
  for (uint32_t l = 0; l < h_.n_layers; ++l) {
    const KvStore& kv = session_.core.store(l);
    const KvLayerLayout* one = kv.layout().find(l);
    if (one != nullptr)
      bytes += rows_of_heads(l) * ((uint64_t{one->k_row_bytes} + one->v_row_bytes) / one->n_heads);
    state += kv.state_bytes(l, StatePart::kState) + kv.state_bytes(l, StatePart::kConv);
    bytes += h_.n_queries * query_dim(spec_.layers[l]) * sizeof(float);
    bytes += n_replay_scores(l) * sizeof(float);
  }
  uint64_t logit_rows = h_.n_logit_rows;
  for (const BlobCheckpointHeader& c : checkpoints_) logit_rows += c.has_logits;
  return bytes + state * (1 + h_.n_checkpoints) + logit_rows * spec_.n_vocab * sizeof(float);
}

uint64_t BlobHead::n_replay_scores(uint32_t l) const {
  if ((h_.flags & kBlobReplay) == 0 || layers_[l].kind != BlobLayer::kRows) return 0;
  return rows_of_heads(l);
}

/// Rows of all KV heads of a layer.
uint64_t BlobHead::rows_of_heads(uint32_t l) const {
  uint64_t n = 0;
  for (uint32_t h = 0; h < n_kv_heads(l); ++h) n += layers_[l].n_rows - lag(l, h);
  return n;
}

}  // namespace sharpi
