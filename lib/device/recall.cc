// SPDX-License-Identifier: MIT
#include "device/recall.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/checked.h"
#include "device/flat_rows.h"
#include "device/kernels.h"

namespace sharpi::device {
namespace {

constexpr uint64_t kAlign = Pieces::kAlign;

/// Jobs of an exchange's launches: rows that come in, that go out, and that stay and move.
uint64_t exchange_jobs(uint64_t n_heads) {
  return n_heads * 3 * RowCopies::kJobsOfHead;
}
/// Of keys: own ones have planes, archived ones lie as they are wanted.
uint32_t key_jobs(uint32_t n_heads) {
  return n_heads * (kMostKvPlanes + 1);
}

}  // namespace

RecallBytes recall_bytes(const ScoreShape& shape, uint32_t n_kv_heads, uint32_t head_dim) {
  if (shape.key_bytes == 0) return {};
  const uint64_t heads = n_kv_heads, own = shape.n_slots - shape.n_archived,
                 moved = shape.n_exchanged;
  const uint64_t bounds = round_up(heads * shape.n_blocks * sizeof(float), kAlign);
  const uint64_t jobs = round_up(RowCopies::bytes_of(key_jobs(n_kv_heads), heads * shape.n_archived), kAlign),
                 keys = heads * round_up(uint64_t{shape.n_slots} * shape.key_bytes, kAlign);
  const uint64_t lists =
      2 * round_up(RowCopies::bytes_of(exchange_jobs(heads), heads * (own + moved)), kAlign) +
      round_up(KeyBounds::bytes_of(heads * moved), kAlign);
  const uint64_t flat = heads * (2 * FlatHead::bytes_of(moved, shape.row_bytes) +
                                 FlatHead::bytes_of(own, shape.row_bytes));
  (void)head_dim;
  return {round_up(std::max({bounds, jobs + keys, lists + flat}), kAlign),
          round_up(std::max({bounds, jobs, lists}), kAlign)};
}

Status Recalls::score_bounds(TierSession& session, const ScoreRequest& request, RowArchive&,
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
  ScoreParams t;
  SHARPI_TRY(scoring_.send_queries(own, request, s, *layer, nullptr, &t));
  const uint64_t bytes = uint64_t{layer->n_heads} * stride * sizeof(float);
  BoundsParams p;
  p.stride = own.archive_rows().blocks_of_head();
  p.bounds = reinterpret_cast<const uint16_t*>(own.archive_rows().bounds(request.layer));
  p.n_blocks = stride;
  p.n_kv = layer->n_heads;
  p.head_dim = own.layout().find(request.layer)->head_dim;
  p.query_rows = t.query_rows;
  p.first_query = t.first_query;
  p.n_queries = t.n_queries;
  p.weight = t.weight;
  p.out = reinterpret_cast<float*>(s.recall());
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
      m_.stream->copy(s.host_recall(), p.out, bytes, Way::kToHost, "reading bounds"));
  SHARPI_TRY(m_.stream->wait());
  std::memcpy(out, s.host_recall(), bytes);
  return Status::ok();
}

/// Keys of a layer's heads in flat memory, archived ones first.
struct Recalls::Keys {
  std::byte* data = nullptr;
  uint64_t stride = 0;  // from head to head
  uint32_t bytes = 0;   // of a key
};

/// The session's own come to stand behind those of the archive.
Status Recalls::gather_keys(DeviceSession& own, const ScoreRequest& request,
                            const ArchivedRows& archived, DeviceScoreScratch& s,
                            Keys* keys) const {
  const KvLayerLayout& layout = *own.layout().find(request.layer);
  keys->bytes = layout.k_row_bytes / layout.n_heads;
  keys->stride = round_up(uint64_t{s.shape.n_slots} * keys->bytes, kAlign);
  const uint32_t most_jobs = key_jobs(layout.n_heads);
  const uint64_t n_listed = std::accumulate(archived.n, archived.n + layout.n_heads, uint64_t{0});
  Pieces pieces(s.recall(), s.host_recall());
  const Pieces::Piece jobs = pieces.take(RowCopies::bytes_of(most_jobs, n_listed));
  keys->data = pieces.take(layout.n_heads * keys->stride).device;
  SHARPI_TRY(own.send_tables());
  RowCopies copies(jobs.pinned, jobs.device, most_jobs);
  for (uint32_t h = 0; h < layout.n_heads; ++h) {
    std::byte* const to = keys->data + h * keys->stride;
    const uint32_t n = archived.n[h];
    const uint32_t* rows = copies.list({archived.rows + uint64_t{h} * archived.stride, n});
    copies.add(own.archive_rows().seen(request.layer,
                                       archived.archive->row(request.layer, h, false, 0)),
               keys->bytes, to, {n, rows, false});
    copies.add(stored_head(own, request.layer, h), false, to + uint64_t{n} * keys->bytes,
               {request.ledger->n_slots(request.layer, h), nullptr, false});
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
  SHARPI_TRY(gather_keys(own, request, archived, s, &keys));
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

/// Memory of one layer's exchange: what is sent, and the heads' rows in the order of `heads`: those
/// that come in, those that go out, and those that stay and move.
struct ExchangeDesk {
  ExchangeDesk(const KvLayerLayout& l, std::span<const HeadExchange> heads, DeviceScoreScratch& s)
      : layout(l), pieces(s.recall(), s.host_recall()) {
    uint64_t n_listed = 0, n_out = 0;
    for (const HeadExchange& m : heads) {
      n_listed += m.n_rows + m.slots_out.size();
      n_out += m.slots_out.size();
    }
    for (Pieces::Piece* lists : {&reads, &writes})
      *lists = pieces.take(RowCopies::bytes_of(exchange_jobs(heads.size()), n_listed));
    keys = pieces.take(KeyBounds::bytes_of(n_out));
    sent = pieces.taken();
  }
  FlatHead take(size_t n) { return FlatHead::take(&pieces, layout, n); }
  const KvLayerLayout& layout;
  Pieces pieces;
  Pieces::Piece reads, writes, keys;  // lists of the launches
  uint64_t sent = 0;
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

/// A head's rows that change places, and those that move in between.
void add_exchange(const DeviceSession& own, uint32_t layer, const HeadExchange& m,
                  const RowArchive& archive, ExchangeDesk* desk, RowCopies* reads,
                  RowCopies* writes, KeyBounds* keys) {
  const auto n = static_cast<uint32_t>(m.archived.size()), n_moved = MovedRows::count(m);
  const FlatHead in = desk->take(n), out = desk->take(n), stay = desk->take(n_moved);
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
  add_archived(reads, own, archive, layer, m.head, in, {n, reads->list(m.archived), false});
  add_rows(reads, own, layer, m.head, out, {n, reads->list(m.slots_out), false});
  add_rows(reads, own, layer, m.head, stay, {n_moved, reads->list(n_moved, next_from), false});
  add_rows(writes, own, layer, m.head, in, {n, writes->list(m.slots_in), true});
  add_rows(writes, own, layer, m.head, stay, {n_moved, writes->list(n_moved, next_place), true});
  add_archived(writes, own, archive, layer, m.head, out,
               {n, writes->list_of_places(m.places), true});
  keys->add(out.sides[0], m.places, own.archive_rows().bounds(layer, m.head));
}

}  // namespace

Status exchange_rows(DeviceSession& own, uint32_t layer, std::span<const HeadExchange> heads,
                     const RowArchive& archive, DeviceScoreScratch& s) {
  SHARPI_TRY(s.device->usable());
  const DeviceScope scope(*s.device);
  SHARPI_TRY(own.send_tables());
  const KvLayerLayout& layout = *own.layout().find(layer);
  ExchangeDesk desk(layout, heads, s);
  const auto most_jobs = static_cast<uint32_t>(exchange_jobs(heads.size()));
  RowCopies reads(desk.reads.pinned, desk.reads.device, most_jobs),
      writes(desk.writes.pinned, desk.writes.device, most_jobs);
  KeyBounds keys(desk.keys, layout);
  for (const HeadExchange& m : heads)
    add_exchange(own, layer, m, archive, &desk, &reads, &writes, &keys);
  const DeviceKernels& kernels = s.device->kernels();
  SHARPI_TRY(s.stream->copy(s.recall(), s.host_recall(), desk.sent, Way::kToDevice,
                            "upload of lists of rows"));
  SHARPI_TRY(kernels.copy_rows(reads.params(), *s.stream));
  SHARPI_TRY(kernels.copy_rows(writes.params(), *s.stream));
  SHARPI_TRY(kernels.bound_keys(keys.params(), *s.stream));
  return s.stream->wait();
}

}  // namespace sharpi::device
