// SPDX-License-Identifier: MIT
#include "device/recall.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "device/flat_rows.h"
#include "device/kernels.h"
#include "device/recall_desk.h"
#include "kv/codec.h"

namespace sharpi::device {
namespace {

using Layer = DeviceScoreScratch::Layer;

constexpr uint64_t kAlign = Pieces::kAlign;

/// Own keys have planes, archived ones lie as they are wanted.
uint32_t key_jobs(uint32_t n_heads) {
  return n_heads * (kMostKvPlanes + 1);
}
uint64_t words(uint64_t n) {
  return round_up(n * sizeof(uint32_t), kAlign);
}

template <class T>
T* as(std::byte* at) {
  return reinterpret_cast<T*>(at);
}

Status too_small(uint32_t layer) {
  return Status::error(Code::kInternal, "the scratch of a recall is too small for layer %u", layer);
}

/// A list of which the `take` best are chosen, as they are.
SelectList list_of(float* terms, uint32_t* keys, uint32_t n, uint32_t take, float scale) {
  SelectList l;
  l.terms = terms;
  l.keys = keys;
  l.scale = scale;
  l.n_slots = n;
  l.parts = {0, n, take};
  return l;
}

}  // namespace

RecallBytes recall_bytes(const ScoreShape& shape, uint32_t n_kv_heads, uint32_t n_lists) {
  if (shape.key_bytes == 0) return {};
  const uint64_t heads = n_kv_heads, own = shape.n_slots - shape.n_archived,
                 all = uint64_t{shape.n_blocks} * kArchiveBlock;
  const uint64_t lists = round_up(2 * heads * sizeof(SelectList), kAlign);
  const uint64_t blocks = lists + 2 * words(heads * shape.n_blocks);
  const uint64_t jobs =
                     round_up(RowCopies::bytes_of(key_jobs(n_kv_heads), heads * shape.n_archived),
                              kAlign) +
                     words(heads * shape.n_slots),
                 keys = heads * round_up(uint64_t{shape.n_slots} * shape.key_bytes, kAlign);
  const uint64_t rows = lists + words(heads * own), terms = 2 * words(heads * (all + own));
  const uint64_t found =
      std::max<uint64_t>(shape.n_archived / kArchiveBlock, 2 * uint64_t{shape.n_exchanged});
  return {
      round_up(std::max({blocks, jobs + keys, rows + terms, exchange_bytes(shape, heads)}), kAlign),
      round_up(std::max({lists, jobs, rows, exchange_desk_bytes(shape, heads)}), kAlign),
      words(n_lists * found)};
}

Status Recalls::select(const DeviceScoreScratch& s, const SelectList* lists, uint32_t n) const {
  SelectParams p;
  p.lists = lists;
  p.n_lists = n;
  p.smooth = Smooth::kPool;  // of one term: itself
  p.reach = 1;
  return s.device->kernels().select(p, *s.stream);
}

Status Recalls::score_bounds(const DeviceSession& own, const ScoreRequest& request,
                             DeviceScoreScratch& s, const Layer& layer, float* out,
                             uint32_t n_blocks) const {
  ScoreParams t;
  SHARPI_TRY(scoring_.send_queries(own, request, s, layer, nullptr, &t));
  BoundsParams p;
  p.stride = own.archive_rows().blocks_of_head();
  p.bounds = as<const uint16_t>(own.archive_rows().bounds(request.layer));
  p.n_blocks = n_blocks;
  p.n_kv = layer.n_heads;
  p.head_dim = own.layout().find(request.layer)->head_dim;
  p.query_rows = t.query_rows;
  p.first_query = t.first_query;
  p.n_queries = t.n_queries;
  p.weight = t.weight;
  p.out = out;
  for (uint32_t l = request.layer; l < m_.spec().n_layers(); ++l) {
    if (!scoring_.reads(l, request.layer)) continue;
    SHARPI_TRY(scoring_.take_reader(own, request, l, &t));
    p.queries = t.queries;
    p.n_heads = t.n_heads;
    p.scale = t.scale;
    SHARPI_TRY(m_.device->kernels().score_bounds(p, *m_.stream));
    p.add = true;
  }
  return Status::ok();
}

Status Recalls::find_blocks(TierSession& session, const ScoreRequest& request,
                            const RowArchive& archive, ScoreScratch& scratch,
                            RecallTables& tables) const {
  auto& s = static_cast<DeviceScoreScratch&>(scratch);
  auto& own = static_cast<DeviceSession&>(session);
  const Layer* layer = s.find(request.layer);
  const uint32_t stride = tables.all_blocks, best = tables.n_blocks;
  if (layer == nullptr || stride > s.shape.n_blocks || request.n_queries > s.shape.n_queries ||
      best * kArchiveBlock > s.shape.n_archived)
    return too_small(request.layer);
  SHARPI_TRY(m_.device->usable());
  const DeviceScope scope(*m_.device);
  Desk desk(s);
  SHARPI_TRY(desk.wait());
  Pieces pieces = desk.pieces();
  const uint32_t heads = layer->n_heads;
  const Pieces::Piece lists = pieces.take(heads * sizeof(SelectList));
  const uint64_t sent = pieces.taken();
  auto* terms = as<float>(pieces.take(uint64_t{heads} * stride * sizeof(float)).device);
  auto* keys = as<uint32_t>(pieces.take(uint64_t{heads} * stride * sizeof(float)).device);
  uint32_t n_lists = 0;
  for (uint32_t h = 0; h < heads; ++h) {
    const uint32_t n = archived_blocks(archive, request.layer, h);
    const uint64_t at = uint64_t{h} * stride;
    *tables.blocks(request.layer, h).n = std::min(best, n);
    if (n != 0)
      as<SelectList>(lists.pinned)[n_lists++] =
          list_of(terms + at, keys + at, n, std::min(best, n), 1.0f);
  }
  SHARPI_TRY(desk.send(sent));
  SHARPI_TRY(score_bounds(own, request, s, *layer, terms, stride));
  SHARPI_TRY(select(s, as<const SelectList>(lists.device), n_lists));
  const uint64_t row = uint64_t{best} * sizeof(uint32_t);
  return m_.stream->copy_rows({s.found() + layer->first_list * row, row},
                              {terms, stride * sizeof(float)}, row, heads, Way::kToHost,
                              "reading the best blocks");
}

/// Keys of a layer's heads in flat memory, archived ones first. Heads that have as many as each
/// other lie side by side and are scored together, where a key is of one piece; otherwise one
/// behind the other.
struct Recalls::Keys {
  std::byte* data = nullptr;
  bool together = false;
  uint32_t bytes = 0, row_bytes = 0;  // of a key; from key to key of a head
  uint64_t stride = 0;                // from head to head
  uint32_t most = 0;                  // keys of a head, in results, too
};

Recalls::Keys Recalls::keys_of(const DeviceSession& own, const ScoreRequest& request,
                               const RecallTables& tables, uint32_t most) const {
  const KvLayerLayout& layout = *own.layout().find(request.layer);
  const auto first = tables.n_listed.begin(), end = first + layout.n_heads;
  Keys keys;
  keys.bytes = layout.k_row_bytes / layout.n_heads;
  keys.together = !own.is_layer_by_head(request.layer) &&
                  kv_codec(layout.k_dtype)->planes.size() == 1 &&
                  std::all_of(first, end, [&](uint32_t n) { return n == *first; });
  keys.most = keys.together ? *first + request.ledger->n_slots(request.layer) : most;
  keys.row_bytes = keys.bytes * (keys.together ? layout.n_heads : 1);
  keys.stride = keys.together ? keys.bytes : round_up(uint64_t{most} * keys.bytes, kAlign);
  return keys;
}

Status Recalls::score_keys(DeviceSession& own, const ScoreRequest& request, DeviceScoreScratch& s,
                           const Layer& layer, const uint32_t* n_listed, const Keys& keys) const {
  const KvLayerLayout& layout = *own.layout().find(request.layer);
  const ScoreOut out = s.result_rows();
  ScoreParams t;
  SHARPI_TRY(scoring_.send_queries(own, request, s, layer, n_listed, &t));
  t.kv.block_stride = uint64_t{kKvBlockSlots} * keys.row_bytes;
  t.kv.k_row_bytes = t.kv.v_row_bytes = keys.row_bytes;
  t.kv.k_dtype = t.kv.v_dtype = layout.k_dtype;
  t.kv.head_dim = layout.head_dim;
  t.kv.one_row = true;
  const uint32_t n_launches = keys.together ? 1 : layout.n_heads;
  t.kv.n_heads = layout.n_heads / n_launches;
  for (uint32_t l = request.layer; l < m_.spec().n_layers(); ++l) {
    if (!scoring_.reads(l, request.layer)) continue;
    SHARPI_TRY(scoring_.take_reader(own, request, l, &t));
    const uint32_t group = t.n_heads / n_launches;
    for (uint32_t h = 0; h < n_launches; ++h) {
      ScoreParams one = t;
      one.kv.k = one.kv.v = keys.data + h * keys.stride;
      one.n_slots = n_listed[h] + request.ledger->n_slots(request.layer, h);
      one.n_heads = group;
      one.query_stride = uint64_t{t.n_heads} * layout.head_dim;
      one.queries = t.queries + uint64_t{h} * group * layout.head_dim;
      if (t.sinks != nullptr) one.sinks = t.sinks + uint64_t{h} * group;
      one.visible = t.visible + uint64_t{h} * t.n_queries;
      one.sum = out.sum + uint64_t{h} * keys.most;
      one.max = out.max + uint64_t{h} * keys.most;
      SHARPI_TRY(m_.device->kernels().score(one, *m_.stream));
    }
    t.add = true;
  }
  return Status::ok();
}

/// Keys of the best blocks, and behind them the session's own; their terms go to their positions.
Status Recalls::score_blocks(TierSession& session, const ScoreRequest& request,
                             const RowArchive& archive, ScoreScratch& scratch,
                             RecallTables& tables) const {
  auto& s = static_cast<DeviceScoreScratch&>(scratch);
  auto& own = static_cast<DeviceSession&>(session);
  const Layer* layer = s.find(request.layer);
  const uint32_t stride = s.shape.n_slots;
  if (layer == nullptr || tables.n_keys() != stride) return too_small(request.layer);
  SHARPI_TRY(m_.device->usable());
  const DeviceScope scope(*m_.device);
  SHARPI_TRY(own.send_tables());
  Desk desk(s);
  SHARPI_TRY(desk.wait());
  const uint32_t heads = layer->n_heads, most_jobs = key_jobs(heads);
  uint64_t n_listed = 0;
  for (uint32_t h = 0; h < heads; ++h) n_listed += tables.list_rows(archive, request.layer, h);
  Keys keys = keys_of(own, request, tables, stride);
  Pieces pieces = desk.pieces();
  const Pieces::Piece jobs = pieces.take(RowCopies::bytes_of(most_jobs, n_listed)),
                      positions = pieces.take(uint64_t{heads} * stride * sizeof(uint32_t));
  const uint64_t sent = pieces.taken();
  keys.data = pieces.take(0).device;
  RowCopies copies(jobs.pinned, jobs.device, most_jobs);
  for (uint32_t h = 0; h < heads; ++h) {
    const uint32_t n = tables.n_listed[h], n_own = request.ledger->n_slots(request.layer, h);
    const std::span<const uint32_t> slots{tables.listed.data() + uint64_t{h} * tables.n_archived(),
                                          n};
    const std::byte* rows = archive.row(request.layer, h, false, 0);
    std::byte* const to = keys.data + h * keys.stride;
    copies.add(own.archive_rows().seen(request.layer, rows), keys.bytes, to,
               {n, copies.list(slots), false, keys.row_bytes});
    copies.add(stored_head(own, request.layer, h), false, to + uint64_t{n} * keys.row_bytes,
               {n_own, nullptr, false, keys.row_bytes});
    auto* at = as<uint32_t>(positions.pinned) + uint64_t{h} * stride;
    const std::span<const uint32_t> archived = archive.positions(request.layer, h);
    for (uint32_t i = 0; i < n; ++i) at[i] = archived[slots[i]];
    copy_positions(*request.ledger, request.layer, h, 0, n_own, at + n);
    std::fill(at + n + n_own, at + stride, kNoPosition);
  }
  SHARPI_TRY(desk.send(sent));
  const DeviceKernels& kernels = m_.device->kernels();
  SHARPI_TRY(kernels.copy_rows(copies.params(), *m_.stream));
  SHARPI_TRY(score_keys(own, request, s, *layer, tables.n_listed.data(), keys));
  return kernels.share_hits({s.result_rows().max, heads, keys.most},
                            {as<const uint32_t>(positions.device), stride, keys.most, 0},
                            s.shared(), *m_.stream);
}

/// What rows count by position, to lists of a layer's archived rows and of its own.
Status Recalls::take_hits(const DeviceSession& own, const ScoreRequest& request,
                          const RowArchive& archive, DeviceScoreScratch& s, const HeldTerms& in,
                          const HeldTerms& out, const uint32_t* positions) const {
  const DeviceKernels& kernels = m_.device->kernels();
  const uint32_t* first = archive.positions(request.layer, 0).data();
  const uint32_t stride =
      in.n_heads == 1 ? in.n_slots
                      : static_cast<uint32_t>(archive.positions(request.layer, 1).data() - first);
  const auto* lists = as<const uint32_t>(own.archive_rows().seen(request.layer, first));
  const uint64_t bytes = (uint64_t{in.n_heads} * in.n_slots) * sizeof(float);
  SHARPI_TRY(m_.stream->clear(in.terms, bytes, "clearing terms"));
  SHARPI_TRY(m_.stream->clear(out.terms, uint64_t{out.n_heads} * out.n_slots * sizeof(float),
                              "clearing terms"));
  SHARPI_TRY(kernels.take_hits(in, {lists, stride, in.n_slots, 0}, s.shared(), *m_.stream));
  return kernels.take_hits(out, {positions, out.n_slots, out.n_slots, 0}, s.shared(), *m_.stream);
}

Status Recalls::choose_rows(TierSession& session, const ScoreRequest& request,
                            const RowArchive& archive, ScoreScratch& scratch,
                            RecallTables& tables) const {
  auto& s = static_cast<DeviceScoreScratch&>(scratch);
  auto& own = static_cast<DeviceSession&>(session);
  const Layer* layer = s.find(request.layer);
  const uint32_t all = tables.all_blocks * kArchiveBlock, n_own = tables.n_slots,
                 most = tables.n_exchanged;
  if (layer == nullptr || tables.all_blocks > s.shape.n_blocks || most > s.shape.n_exchanged ||
      n_own != s.shape.n_slots - s.shape.n_archived)
    return too_small(request.layer);
  SHARPI_TRY(m_.device->usable());
  const DeviceScope scope(*m_.device);
  if (!s.has_scores) {
    std::copy(tables.by_position.begin(), tables.by_position.end(), s.host_shared());
    SHARPI_TRY(m_.stream->copy(s.shared(), s.host_shared(),
                               tables.by_position.size() * sizeof(float), Way::kToDevice,
                               "upload of scores by position"));
    s.has_scores = true;
  }
  Desk desk(s);
  SHARPI_TRY(desk.wait());
  Pieces pieces = desk.pieces();
  const uint32_t heads = layer->n_heads;
  const Pieces::Piece lists = pieces.take(2 * heads * sizeof(SelectList)),
                      positions = pieces.take(uint64_t{heads} * n_own * sizeof(uint32_t));
  const uint64_t sent = pieces.taken();
  const auto words_of = [&](uint64_t n) { return pieces.take(n * sizeof(float)).device; };
  const HeldTerms in{as<float>(words_of(uint64_t{heads} * all)), heads, all},
      out{as<float>(words_of(uint64_t{heads} * n_own)), heads, n_own};
  auto* keys = as<uint32_t>(words_of(uint64_t{heads} * (all + n_own)));
  uint32_t n_lists = 0;
  for (uint32_t h = 0; h < heads; ++h) {
    const ExchangeParts p = exchange_parts(tables, *request.ledger, archive, request.layer, h);
    const uint32_t n_out = p.last - p.first;
    *tables.in(request.layer, h).n = p.most;
    tables.first_out(request.layer, h) = p.first;
    auto* at = as<uint32_t>(positions.pinned) + uint64_t{h} * n_own;
    copy_positions(*request.ledger, request.layer, h, p.first, n_out, at);
    std::fill(at + n_out, at + n_own, kNoPosition);
    if (p.most == 0) continue;
    const auto end = static_cast<uint32_t>(archive.positions(request.layer, h).size());
    uint32_t* own_keys = keys + uint64_t{h} * (all + n_own);
    auto* next = as<SelectList>(lists.pinned) + n_lists;
    next[0] = list_of(in.terms + uint64_t{h} * all, own_keys, end, p.most, 1.0f);
    next[1] = list_of(out.terms + uint64_t{h} * n_own, own_keys + all, n_out, p.most, -1.0f);
    n_lists += 2;
  }
  if (n_lists == 0) return Status::ok();
  SHARPI_TRY(desk.send(sent));
  SHARPI_TRY(take_hits(own, request, archive, s, in, out, as<const uint32_t>(positions.device)));
  SHARPI_TRY(select(s, as<const SelectList>(lists.device), n_lists));
  const uint64_t row = uint64_t{most} * sizeof(uint32_t);
  std::byte* to = s.found() + 2 * layer->first_list * row;
  SHARPI_TRY(m_.stream->copy_rows({to, 2 * row}, {in.terms, all * sizeof(float)},
                                  std::min<uint64_t>(row, all * sizeof(float)), heads, Way::kToHost,
                                  "reading rows that may come"));
  return m_.stream->copy_rows({to + row, 2 * row}, {out.terms, n_own * sizeof(float)},
                              std::min<uint64_t>(row, n_own * sizeof(float)), heads, Way::kToHost,
                              "reading rows that may go");
}

Status Recalls::take(RecallStep step, ScoreScratch& scratch, RecallTables& tables) const {
  auto& s = static_cast<DeviceScoreScratch&>(scratch);
  const DeviceScope scope(*m_.device);
  const uint64_t n = tables.shared.size();
  if (step == RecallStep::kTerms)
    SHARPI_TRY(m_.stream->copy(s.host_shared(), s.shared(), n * sizeof(float), Way::kToHost,
                               "reading terms by position"));
  SHARPI_TRY(m_.stream->wait());
  if (step == RecallStep::kTerms) {
    for (uint64_t i = 0; i < n; ++i)
      tables.shared[i] = std::max(tables.shared[i], s.host_shared()[i]);
    return Status::ok();
  }
  const bool blocks = step == RecallStep::kBlocks;
  const uint64_t row = blocks ? tables.n_blocks : tables.n_exchanged;
  const auto* found = as<const uint32_t>(s.found());
  for (const Layer& l : s.layers) {
    for (uint32_t h = 0; h < l.n_heads; ++h) {
      const uint32_t* at = found + (l.first_list + h) * row * (blocks ? 1 : 2);
      const auto take = [&](const RecallTables::List& to, const uint32_t* from) {
        std::copy_n(from, *to.n, to.at);
      };
      if (blocks) {
        take(tables.blocks(l.layer, h), at);
        continue;
      }
      take(tables.in(l.layer, h), at);
      take(tables.out(l.layer, h), at + row);
      for (uint32_t& slot : tables.out(l.layer, h).span()) slot += tables.first_out(l.layer, h);
    }
  }
  return Status::ok();
}

}  // namespace sharpi::device
