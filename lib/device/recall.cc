// SPDX-License-Identifier: MIT
#include "device/recall.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "device/kernels.h"

namespace sharpi::device {
namespace {

constexpr uint64_t kAlign = 256;

/// Memory that is given away piece by piece, on the device and, as far as it is there, pinned: the
/// same places in both.
class Pieces {
 public:
  Pieces(std::byte* device, std::byte* pinned) : device_(device), pinned_(pinned) {}
  struct Piece {
    std::byte *device = nullptr, *pinned = nullptr;
  };
  Piece take(uint64_t bytes) {
    const Piece p{device_ + at_, pinned_ + at_};
    at_ += round_up(bytes, kAlign);
    return p;
  }
  uint64_t taken() const { return at_; }

 private:
  std::byte *device_, *pinned_;
  uint64_t at_ = 0;
};

/// Rows of a head in flat memory: K, V and scores.
uint64_t flat_bytes(uint64_t n, uint64_t row_bytes) {
  return n * (row_bytes + sizeof(float)) + 3 * kAlign;
}

/// Lists and jobs of an exchange's launches: those that stay are read and written, too.
uint64_t exchange_jobs(uint64_t n_heads) {
  return n_heads * 2 * RowCopies::kJobsOfHead;
}
uint64_t exchange_lists(uint64_t n_heads, uint64_t n_slots) {
  return 2 * (RowCopies::bytes_of(exchange_jobs(n_heads), n_heads * n_slots) + kAlign);
}

}  // namespace

RecallBytes recall_bytes(const ScoreShape& shape, uint32_t n_kv_heads, uint32_t head_dim) {
  if (shape.key_bytes == 0) return {};
  const uint64_t heads = n_kv_heads, own = shape.n_slots - shape.n_archived;
  const uint64_t blocks = heads * shape.n_blocks;
  const uint64_t bounds = round_up(RowCopies::bytes_of(heads, blocks), kAlign) +
                          round_up(blocks * bounds_bytes(head_dim), kAlign) +
                          round_up(blocks * sizeof(float), kAlign);
  const uint64_t jobs = round_up(RowCopies::bytes_of(heads * kMostKvPlanes, 0), kAlign),
                 keys = heads * round_up(uint64_t{shape.n_slots} * shape.key_bytes, kAlign),
                 archived = heads * uint64_t{shape.n_archived} * shape.key_bytes;
  const uint64_t exchange = exchange_lists(heads, own) +
                            2 * heads * flat_bytes(shape.n_exchanged, shape.row_bytes),
                 stay = heads * flat_bytes(own, shape.row_bytes);
  return {round_up(std::max({bounds, jobs + keys, exchange + stay}), kAlign),
          round_up(std::max({bounds, jobs + archived, exchange}), kAlign)};
}

StoredHead stored_head(const DeviceSession& session, uint32_t layer, uint32_t head) {
  if (session.is_layer_by_head(layer)) return {session.kernel_view(layer, head), 0};
  return {session.view(layer), head};
}

/// Bounds that have changed since the last recall, to where the device keeps them.
Status Recalls::send_bounds(const DeviceSession& own, uint32_t layer, RowArchive& archive,
                            uint32_t n_blocks, const DeviceScoreScratch& s) const {
  const KvLayerLayout& layout = *own.layout().find(layer);
  const auto bytes = static_cast<uint32_t>(bounds_bytes(layout.head_dim));
  const uint32_t n_heads = layout.n_heads, of_head = archive.capacity() / kArchiveBlock;
  Pieces pieces(s.recall(), s.host_recall());
  const Pieces::Piece lists =
      pieces.take(RowCopies::bytes_of(n_heads, uint64_t{n_heads} * n_blocks));
  const uint64_t begin = pieces.taken();
  const Pieces::Piece flat = pieces.take(uint64_t{n_heads} * n_blocks * bytes);
  RowCopies copies(lists.pinned, lists.device, n_heads);
  uint64_t at = 0;
  for (uint32_t h = 0; h < n_heads; ++h) {
    const std::span<uint8_t> changed = archive.changed(layer, h).first(n_blocks);
    const auto n = static_cast<uint32_t>(std::count(changed.begin(), changed.end(), 1));
    uint32_t block = 0;
    const uint64_t first = at;
    const uint32_t* list = copies.list(n, [&] {
      while (changed[block] == 0) ++block;
      std::memcpy(flat.pinned + at, archive.bounds(layer, h, block).data(), bytes);
      at += bytes;
      return block++;
    });
    copies.add(own.archive_rows().bounds(layer, of_head) + uint64_t{h} * of_head * bytes, bytes,
               flat.device + first, {n, list, true});
    std::fill(changed.begin(), changed.end(), uint8_t{0});
  }
  if (at == 0) return Status::ok();
  SHARPI_TRY(
      m_.stream->copy(s.recall(), s.host_recall(), begin + at, Way::kToDevice, "upload of bounds"));
  return m_.device->kernels().copy_rows(copies.params(), *m_.stream);
}

Status Recalls::score_bounds(TierSession& session, const ScoreRequest& request, RowArchive& archive,
                             ScoreScratch& scratch, float* out, uint32_t stride) const {
  auto& s = static_cast<DeviceScoreScratch&>(scratch);
  auto& own = static_cast<DeviceSession&>(session);
  const DeviceScoreScratch::Layer* layer = s.find(request.layer);
  if (layer == nullptr || stride > s.shape.n_blocks || request.n_queries > s.shape.n_queries)
    return Status::error(Code::kInternal, "the scratch of scoring is too small for %u blocks",
                         stride);
  if (stride == 0) return Status::ok();
  SHARPI_TRY(m_.device->usable());
  const DeviceScope scope(*m_.device);
  SHARPI_TRY(send_bounds(own, request.layer, archive, stride, s));
  ScoreParams t;
  SHARPI_TRY(scoring_.send_queries(own, request, s, *layer, nullptr, &t));
  const uint64_t bytes = uint64_t{layer->n_heads} * stride * sizeof(float),
                 place = s.sizes.recall_host - round_up(bytes, kAlign);  // behind what is sent
  BoundsParams p;
  p.stride = archive.capacity() / kArchiveBlock;
  p.bounds = reinterpret_cast<const uint16_t*>(own.archive_rows().bounds(request.layer, p.stride));
  p.n_blocks = stride;
  p.n_kv = layer->n_heads;
  p.head_dim = own.layout().find(request.layer)->head_dim;
  p.query_rows = t.query_rows;
  p.first_query = t.first_query;
  p.n_queries = t.n_queries;
  p.weight = t.weight;
  p.out = reinterpret_cast<float*>(s.recall() + place);
  for (uint32_t l = request.layer; l < m_.spec().n_layers(); ++l) {
    if (!scoring_.reads(l, request.layer)) continue;
    SHARPI_TRY(scoring_.take_reader(own, request, l, &t));
    p.queries = t.queries;
    p.n_heads = t.n_heads;
    p.scale = t.scale;
    SHARPI_TRY(m_.device->kernels().score_bounds(p, *m_.stream));
    p.add = true;
  }
  SHARPI_TRY(
      m_.stream->copy(s.host_recall() + place, p.out, bytes, Way::kToHost, "reading bounds"));
  SHARPI_TRY(m_.stream->wait());
  std::memcpy(out, s.host_recall() + place, bytes);
  return Status::ok();
}

/// Keys of a layer's heads in flat memory, archived ones first.
struct Recalls::Keys {
  std::byte* data = nullptr;
  uint64_t stride = 0;  // from head to head
  uint32_t bytes = 0;   // of a key
};

/// Archived keys cross as one block, the session's own come to stand behind them.
Status Recalls::send_keys(DeviceSession& own, const ScoreRequest& request,
                          const ArchivedRows& archived, DeviceScoreScratch& s, Keys* keys) const {
  const KvLayerLayout& layout = *own.layout().find(request.layer);
  const uint32_t most = *std::max_element(archived.n, archived.n + layout.n_heads);
  keys->bytes = layout.k_row_bytes / layout.n_heads;
  keys->stride = round_up(uint64_t{s.shape.n_slots} * keys->bytes, kAlign);
  Pieces pieces(s.recall(), s.host_recall());
  const uint32_t most_jobs = layout.n_heads * kMostKvPlanes;
  const Pieces::Piece jobs = pieces.take(RowCopies::bytes_of(most_jobs, 0)),
                      rows = pieces.take(layout.n_heads * keys->stride);
  keys->data = rows.device;
  const uint64_t width = uint64_t{most} * keys->bytes;
  for (uint32_t h = 0; h < layout.n_heads; ++h) {
    std::byte* to = rows.pinned + h * width;
    const uint32_t* list = archived.rows + uint64_t{h} * archived.stride;
    for (uint32_t i = 0; i < archived.n[h]; ++i, to += keys->bytes)
      std::memcpy(to, archived.archive->row(request.layer, h, false, list[i]), keys->bytes);
  }
  if (width != 0)
    SHARPI_TRY(m_.stream->copy_rows({rows.device, keys->stride}, {rows.pinned, width}, width,
                                    layout.n_heads, Way::kToDevice, "upload of archived keys"));
  SHARPI_TRY(own.send_tables());
  RowCopies copies(jobs.pinned, jobs.device, most_jobs);
  for (uint32_t h = 0; h < layout.n_heads; ++h) {
    RowCopies::Rows of;
    of.n = request.ledger->n_slots(request.layer, h);
    copies.add(stored_head(own, request.layer, h), false,
               rows.device + h * keys->stride + uint64_t{archived.n[h]} * keys->bytes, of);
  }
  SHARPI_TRY(m_.stream->copy(jobs.device, jobs.pinned, copies.bytes(), Way::kToDevice,
                             "upload of lists of rows"));
  return m_.device->kernels().copy_rows(copies.params(), *m_.stream);
}

/// Head by head, as rows by head are scored.
Status Recalls::score_keys(DeviceSession& own, const ScoreRequest& request,
                           const ArchivedRows& archived, DeviceScoreScratch& s, const Keys& keys,
                           ScoreParams t) const {
  const KvLayerLayout& layout = *own.layout().find(request.layer);
  const uint64_t stride = s.shape.n_slots;
  const ScoreOut out = s.result_rows();
  bool add = false;
  for (uint32_t l = request.layer; l < m_.spec().n_layers(); ++l) {
    if (!scoring_.reads(l, request.layer)) continue;
    SHARPI_TRY(scoring_.take_reader(own, request, l, &t));
    const uint32_t group = t.n_heads / layout.n_heads;
    for (uint32_t h = 0; h < layout.n_heads; ++h) {
      ScoreParams one = t;
      one.kv.k = one.kv.v = keys.data + h * keys.stride;
      one.kv.block_stride = uint64_t{kKvBlockSlots} * keys.bytes;
      one.kv.k_row_bytes = one.kv.v_row_bytes = keys.bytes;
      one.kv.k_dtype = one.kv.v_dtype = layout.k_dtype;
      one.kv.n_heads = 1;
      one.kv.head_dim = layout.head_dim;
      one.kv.one_row = true;
      one.n_slots = archived.n[h] + request.ledger->n_slots(request.layer, h);
      one.n_heads = group;
      one.query_stride = uint64_t{t.n_heads} * layout.head_dim;
      one.queries = t.queries + uint64_t{h} * group * layout.head_dim;
      if (t.sinks != nullptr) one.sinks = t.sinks + uint64_t{h} * group;
      one.visible = t.visible + uint64_t{h} * t.n_queries;
      one.add = add;
      one.sum = out.sum + h * stride;
      one.max = out.max + h * stride;
      SHARPI_TRY(m_.device->kernels().score(one, *m_.stream));
    }
    add = true;
  }
  return Status::ok();
}

Status Recalls::score_beside(TierSession& session, const ScoreRequest& request,
                             const ArchivedRows& archived, ScoreScratch& scratch, float* out,
                             uint32_t stride) const {
  auto& s = static_cast<DeviceScoreScratch&>(scratch);
  auto& own = static_cast<DeviceSession&>(session);
  const DeviceScoreScratch::Layer* layer = s.find(request.layer);
  bool fits =
      layer != nullptr && request.n_queries <= s.shape.n_queries && stride == s.shape.n_slots;
  for (uint32_t h = 0; fits && h < layer->n_heads; ++h) {
    fits = archived.n[h] <= s.shape.n_archived &&
           archived.n[h] + request.ledger->n_slots(request.layer, h) <= s.shape.n_slots;
  }
  if (!fits)
    return Status::error(Code::kInternal, "the scratch of scoring is too small for %u keys",
                         stride);
  SHARPI_TRY(m_.device->usable());
  const DeviceScope scope(*m_.device);
  Keys keys;
  SHARPI_TRY(send_keys(own, request, archived, s, &keys));
  ScoreParams t;
  SHARPI_TRY(scoring_.send_queries(own, request, s, *layer, archived.n, &t));
  SHARPI_TRY(score_keys(own, request, archived, s, keys, t));
  const uint64_t bytes = uint64_t{layer->n_heads} * stride * sizeof(float);
  std::byte* to = s.host.data() + s.sizes.row;
  SHARPI_TRY(m_.stream->copy(to, s.result_rows().max, bytes, Way::kToHost, "reading scores"));
  SHARPI_TRY(m_.stream->wait());
  std::memcpy(out, to, bytes);
  return Status::ok();
}

namespace {

/// Rows of a head in flat memory.
struct FlatHead {
  Pieces::Piece sides[2], scores;

  static FlatHead take(Pieces* from, const KvLayerLayout& l, uint64_t n) {
    FlatHead f;
    for (const bool value : l.sides())
      f.sides[value] = from->take(n * (value ? l.v_row_bytes : l.k_row_bytes) / l.n_heads);
    f.scores = from->take(n * sizeof(float));
    return f;
  }
};

/// Memory of one layer's exchange. The heads' rows lie in the order of `heads`: those that come in,
/// those that go out, and those that stay and move.
class ExchangeDesk {
 public:
  ExchangeDesk(const KvLayerLayout& layout, std::span<const HeadExchange> heads,
               DeviceScoreScratch& s)
      : layout_(layout), heads_(heads), in_(s.recall(), s.host_recall()), out_(in_), stay_(in_) {
    uint64_t n_rows = 0;
    for (const HeadExchange& m : heads) n_rows += m.n_rows;
    for (Pieces::Piece* lists : {&reads, &writes})
      *lists = in_.take(RowCopies::bytes_of(n_jobs(), n_rows));
    out_ = in_;
    for (const HeadExchange& m : heads) take(&out_, m.slots_in.size());
    stay_ = out_;
    for (const HeadExchange& m : heads) take(&stay_, m.slots_out.size());
  }
  uint32_t n_jobs() const { return static_cast<uint32_t>(exchange_jobs(heads_.size())); }
  uint64_t out_begin() const { return out_.taken(); }
  uint64_t out_end() const { return stay_.taken(); }
  /// body(index, rows that come in, go out, stay).
  template <class Body>
  void each_head(const Body& body) const {
    Pieces in = in_, out = out_, stay = stay_;
    for (size_t i = 0; i < heads_.size(); ++i) {
      const FlatHead a = take(&in, heads_[i].slots_in.size()),
                     b = take(&out, heads_[i].slots_out.size());
      body(i, a, b, take(&stay, heads_[i].n_rows));
    }
  }
  Pieces::Piece reads, writes;  // lists of the two launches

 private:
  FlatHead take(Pieces* from, size_t n) const { return FlatHead::take(from, layout_, n); }
  const KvLayerLayout& layout_;
  std::span<const HeadExchange> heads_;
  Pieces in_, out_, stay_;
};

/// Where a head's rows that stay are and where they will be, for those that move.
class MovedRows {
 public:
  explicit MovedRows(const HeadExchange& m) : m_(m) {}
  /// False: there is no other.
  bool next(uint32_t* from, uint32_t* to) {
    for (; from_ < m_.n_rows; ++from_, ++to_) {
      while (out_ < m_.slots_out.size() && m_.slots_out[out_] == from_) ++out_, ++from_;
      while (in_ < m_.slots_in.size() && m_.slots_in[in_] == to_) ++in_, ++to_;
      if (from_ >= m_.n_rows || from_ == to_) continue;
      *from = from_++;
      *to = to_++;
      return true;
    }
    return false;
  }
  static uint32_t count(const HeadExchange& m) {
    uint32_t n = 0, from = 0, to = 0;
    for (MovedRows rows(m); rows.next(&from, &to);) ++n;
    return n;
  }

 private:
  const HeadExchange& m_;
  size_t in_ = 0, out_ = 0;
  uint32_t from_ = 0, to_ = 0;
};

/// Archived rows, to where they cross.
void put_rows(const RowArchive& archive, uint32_t layer, const HeadExchange& m,
              const KvLayerLayout& layout, const FlatHead& to) {
  for (const bool value : layout.sides()) {
    const uint64_t bytes = archive.row_bytes(layer, value);
    for (size_t i = 0; i < m.archived.size(); ++i)
      std::memcpy(to.sides[value].pinned + i * bytes,
                  archive.row(layer, m.head, value, m.archived[i]), bytes);
  }
  for (size_t i = 0; i < m.archived.size(); ++i) {
    const float score = archive.score(layer, m.head, m.archived[i]);
    std::memcpy(to.scores.pinned + i * sizeof score, &score, sizeof score);
  }
}

/// Rows of a head between where they are stored and flat memory, their scores with them.
void add_rows(RowCopies* to, const DeviceSession& own, uint32_t layer, uint32_t head,
              const FlatHead& flat, const RowCopies::Rows& rows) {
  const StoredHead stored = stored_head(own, layer, head);
  for (const bool value : own.layout().find(layer)->sides())
    to->add(stored, value, flat.sides[value].device, rows);
  uint64_t stride = 0;
  if (float* scores = own.replay_scores(layer, &stride); scores != nullptr)
    to->add(reinterpret_cast<std::byte*>(scores + head * stride), sizeof(float), flat.scores.device,
            rows);
}

}  // namespace

Status exchange_rows(DeviceSession& own, uint32_t layer, std::span<const HeadExchange> heads,
                     const RowArchive& archive, DeviceScoreScratch& s, RowTaker& to) {
  SHARPI_TRY(s.device->usable());
  const DeviceScope scope(*s.device);
  SHARPI_TRY(own.send_tables());
  const KvLayerLayout& layout = *own.layout().find(layer);
  const ExchangeDesk desk(layout, heads, s);
  RowCopies reads(desk.reads.pinned, desk.reads.device, desk.n_jobs()),
      writes(desk.writes.pinned, desk.writes.device, desk.n_jobs());
  desk.each_head([&](size_t i, const FlatHead& in, const FlatHead& out, const FlatHead& stay) {
    const HeadExchange& m = heads[i];
    const auto n = static_cast<uint32_t>(m.archived.size()), n_moved = MovedRows::count(m);
    put_rows(archive, layer, m, layout, in);
    MovedRows from(m), place(m);
    uint32_t a = 0, b = 0;
    const auto next_from = [&] {
      from.next(&a, &b);
      return a;
    };
    const auto next_place = [&] {
      place.next(&a, &b);
      return b;
    };
    add_rows(&reads, own, layer, m.head, out, {n, reads.list(m.slots_out), false});
    add_rows(&reads, own, layer, m.head, stay, {n_moved, reads.list(n_moved, next_from), false});
    add_rows(&writes, own, layer, m.head, in, {n, writes.list(m.slots_in), true});
    add_rows(&writes, own, layer, m.head, stay, {n_moved, writes.list(n_moved, next_place), true});
  });
  const DeviceKernels& kernels = s.device->kernels();
  SHARPI_TRY(s.stream->copy(s.recall(), s.host_recall(), desk.out_begin(), Way::kToDevice,
                            "upload of archived rows"));
  SHARPI_TRY(kernels.copy_rows(reads.params(), *s.stream));
  SHARPI_TRY(kernels.copy_rows(writes.params(), *s.stream));
  SHARPI_TRY(s.stream->copy(s.host_recall() + desk.out_begin(), s.recall() + desk.out_begin(),
                            desk.out_end() - desk.out_begin(), Way::kToHost,
                            "reading rows that go to the archive"));
  SHARPI_TRY(s.stream->wait());
  desk.each_head([&](size_t i, const FlatHead&, const FlatHead& out, const FlatHead&) {
    const ArrivedRows rows{{out.sides[0].pinned, out.sides[1].pinned},
                           reinterpret_cast<const float*>(out.scores.pinned)};
    to.take(static_cast<uint32_t>(i), 0, static_cast<uint32_t>(heads[i].slots_out.size()), rows);
  });
  return Status::ok();
}

}  // namespace sharpi::device
