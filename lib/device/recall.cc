// SPDX-License-Identifier: MIT
#include "device/recall.h"

#include <algorithm>
#include <cstring>
#include <utility>

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

/// A list of which the `take` best are chosen, as they are, with the lists that wait.
void add_list(DeviceScoreScratch* s, float* terms, uint32_t* keys, uint32_t n, uint32_t take,
              float scale) {
  SelectList& l = as<SelectList>(s->host_lists())[s->n_lists++];
  l = {};
  l.terms = terms;
  l.keys = keys;
  l.scale = scale;
  l.n_slots = n;
  l.parts = {0, n, take};
}

/// What is found of a list in a step: bytes, and how many lists a head has.
struct FoundRows {
  FoundRows(RecallStep step, const RecallTables& t)
      : bytes((step == RecallStep::kBlocks ? t.n_blocks : t.n_exchanged) * sizeof(uint32_t)),
        lists(step == RecallStep::kBlocks ? 1 : 2) {}
  uint64_t bytes;
  uint32_t lists;
};

}  // namespace

RecallBytes recall_bytes(const ScoreShape& shape, uint32_t n_kv_heads, uint32_t n_lists) {
  if (shape.key_bytes == 0) return {};
  const uint64_t heads = n_kv_heads, own = shape.n_slots - shape.n_archived,
                 all = uint64_t{shape.n_blocks} * kArchiveBlock;
  const uint64_t blocks = 2 * words(heads * shape.n_blocks);
  const uint64_t jobs =
                     round_up(RowCopies::bytes_of(key_jobs(n_kv_heads), heads * shape.n_archived),
                              kAlign) +
                     words(heads * shape.n_slots),
                 keys = heads * round_up(uint64_t{shape.n_slots} * shape.key_bytes, kAlign);
  const uint64_t rows = words(heads * own), terms = 2 * words(heads * (all + own));
  const uint64_t found =
      std::max<uint64_t>(shape.n_archived / kArchiveBlock, 2 * uint64_t{shape.n_exchanged});
  return {
      round_up(std::max({blocks, jobs + keys, rows + terms, exchange_bytes(shape, heads)}), kAlign),
      round_up(std::max({jobs, rows, exchange_desk_bytes(shape, heads)}), kAlign),
      words(n_lists * found)};
}

/// Room of a layer's lists in recall(), behind `front` bytes that are not for lists. Where there is
/// none beside those that wait, these are chosen from first.
Status Recalls::room_of_lists(RecallStep step, DeviceScoreScratch& s, const RecallTables& tables,
                              uint64_t front, uint64_t bytes, std::byte** room) const {
  if (std::max(s.waiting_end, front) + bytes > s.sizes.recall)
    SHARPI_TRY(choose_waiting(step, s, tables));
  const uint64_t at = std::max(s.waiting_end, front);
  *room = s.recall() + at;
  s.waiting_end = at + bytes;
  return Status::ok();
}

/// One launch for all lists that wait: a list has one block of a launch, and a layer has few.
Status Recalls::choose_waiting(RecallStep step, DeviceScoreScratch& s,
                               const RecallTables& tables) const {
  const FoundRows found(step, tables);
  SelectParams p;
  const uint32_t first = std::exchange(s.first_waiting, s.n_lists);
  const uint64_t at = first * sizeof(SelectList);
  p.lists = as<const SelectList>(s.lists() + at);
  p.n_lists = s.n_lists - first;
  p.smooth = Smooth::kPool;  // of one term: itself
  p.reach = 1;
  s.waiting_end = 0;
  if (p.n_lists == 0) return Status::ok();
  SHARPI_TRY(m_.stream->copy(s.lists() + at, s.host_lists() + at, p.n_lists * sizeof(SelectList),
                             Way::kToDevice, "upload of a recall's lists"));
  SHARPI_TRY(m_.device->kernels().select(p, *m_.stream));
  for (Layer& l : s.layers) {
    std::byte* to = s.found() + l.first_list * found.lists * found.bytes;
    for (uint32_t i = 0; i < found.lists; ++i, to += found.bytes) {
      const Layer::Waiting from = std::exchange(l.waiting[i], {});
      if (from.from == nullptr) continue;
      SHARPI_TRY(m_.stream->copy_rows({to, found.lists * found.bytes}, {from.from, from.stride},
                                      std::min<uint64_t>(found.bytes, from.stride), l.n_heads,
                                      Way::kToHost, "reading what was chosen"));
    }
  }
  return Status::ok();
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
  Layer* layer = s.find(request.layer);
  const uint32_t stride = tables.all_blocks, best = tables.n_blocks;
  if (layer == nullptr || stride > s.shape.n_blocks || request.n_queries > s.shape.n_queries ||
      best * kArchiveBlock > s.shape.n_archived)
    return too_small(request.layer);
  SHARPI_TRY(m_.device->usable());
  const DeviceScope scope(*m_.device);
  const uint32_t heads = layer->n_heads;
  const uint64_t bytes = words(uint64_t{heads} * stride);
  std::byte* room = nullptr;
  SHARPI_TRY(room_of_lists(RecallStep::kBlocks, s, tables, 0, 2 * bytes, &room));
  auto* terms = as<float>(room);
  auto* keys = as<uint32_t>(room + bytes);
  for (uint32_t h = 0; h < heads; ++h) {
    const uint32_t n = archived_blocks(archive, request.layer, h);
    const uint64_t at = uint64_t{h} * stride;
    *tables.blocks(request.layer, h).n = std::min(best, n);
    if (n == 0) continue;
    add_list(&s, terms + at, keys + at, n, std::min(best, n), 1.0f);
    layer->waiting[0] = {room, static_cast<uint32_t>(stride * sizeof(float))};
  }
  return score_bounds(own, request, s, *layer, terms, stride);
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
  Layer* layer = s.find(request.layer);
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
  const Pieces::Piece positions = pieces.take(uint64_t{heads} * n_own * sizeof(uint32_t));
  const uint64_t sent = pieces.taken(), in_bytes = words(uint64_t{heads} * all),
                 out_bytes = words(uint64_t{heads} * n_own);
  std::byte* room = nullptr;
  SHARPI_TRY(room_of_lists(RecallStep::kRows, s, tables, sent, 2 * (in_bytes + out_bytes), &room));
  const HeldTerms in{as<float>(room), heads, all}, out{as<float>(room + in_bytes), heads, n_own};
  auto* keys = as<uint32_t>(room + in_bytes + out_bytes);
  bool chooses = false;
  for (uint32_t h = 0; h < heads; ++h) {
    const ExchangeParts p = exchange_parts(tables, *request.ledger, archive, request.layer, h);
    const uint32_t n_out = p.last - p.first;
    *tables.in(request.layer, h).n = p.most;
    tables.first_out(request.layer, h) = p.first;
    auto* at = as<uint32_t>(positions.pinned) + uint64_t{h} * n_own;
    copy_positions(*request.ledger, request.layer, h, p.first, n_out, at);
    std::fill(at + n_out, at + n_own, kNoPosition);
    if (p.most == 0) continue;
    chooses = true;
    const auto end = static_cast<uint32_t>(archive.positions(request.layer, h).size());
    uint32_t* own_keys = keys + uint64_t{h} * (all + n_own);
    add_list(&s, in.terms + uint64_t{h} * all, own_keys, end, p.most, 1.0f);
    add_list(&s, out.terms + uint64_t{h} * n_own, own_keys + all, n_out, p.most, -1.0f);
  }
  if (!chooses) return Status::ok();
  layer->waiting[0] = {room, static_cast<uint32_t>(all * sizeof(float))};
  layer->waiting[1] = {room + in_bytes, static_cast<uint32_t>(n_own * sizeof(float))};
  SHARPI_TRY(desk.send(sent));
  return take_hits(own, request, archive, s, in, out, as<const uint32_t>(positions.device));
}

Status Recalls::take(RecallStep step, ScoreScratch& scratch, RecallTables& tables) const {
  auto& s = static_cast<DeviceScoreScratch&>(scratch);
  const DeviceScope scope(*m_.device);
  const uint64_t n = tables.shared.size();
  if (step != RecallStep::kTerms) SHARPI_TRY(choose_waiting(step, s, tables));
  if (step == RecallStep::kTerms)
    SHARPI_TRY(m_.stream->copy(s.host_shared(), s.shared(), n * sizeof(float), Way::kToHost,
                               "reading terms by position"));
  SHARPI_TRY(m_.stream->wait());
  s.n_lists = s.first_waiting = 0;
  if (step == RecallStep::kTerms) {
    for (uint64_t i = 0; i < n; ++i)
      tables.shared[i] = std::max(tables.shared[i], s.host_shared()[i]);
    return Status::ok();
  }
  const bool blocks = step == RecallStep::kBlocks;
  const FoundRows rows(step, tables);
  const uint64_t row = rows.bytes / sizeof(uint32_t);
  const auto* found = as<const uint32_t>(s.found());
  for (const Layer& l : s.layers) {
    for (uint32_t h = 0; h < l.n_heads; ++h) {
      const uint32_t* at = found + (l.first_list + h) * row * rows.lists;
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
