// SPDX-License-Identifier: MIT
// Rows of a session and of its archive change places (RemoteRows::exchange()).
#include <cstring>

#include "base/checked.h"
#include "device/flat_rows.h"
#include "device/kernels.h"
#include "device/recall.h"
#include "device/recall_desk.h"

namespace sharpi::device {
namespace {

/// Jobs of an exchange's launches: rows that come in, that go out, and that stay and move.
uint64_t exchange_jobs(uint64_t n_heads) {
  return n_heads * 3 * RowCopies::kJobsOfHead;
}

/// Memory of one layer's exchange: what is sent, and the heads' rows in the order of `heads`: those
/// that come in, those that go out, and those that stay and move.
struct ExchangeDesk {
  ExchangeDesk(const KvLayerLayout& l, std::span<const HeadExchange> heads, const Pieces& from)
      : layout(l), pieces(from) {
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

uint64_t exchange_desk_bytes(const ScoreShape& shape, uint64_t heads) {
  const uint64_t own = shape.n_slots - shape.n_archived, moved = shape.n_exchanged;
  return 2 * round_up(RowCopies::bytes_of(exchange_jobs(heads), heads * (own + moved)),
                      Pieces::kAlign) +
         round_up(KeyBounds::bytes_of(heads * moved), Pieces::kAlign);
}

uint64_t exchange_bytes(const ScoreShape& shape, uint64_t heads) {
  const uint64_t own = shape.n_slots - shape.n_archived;
  return exchange_desk_bytes(shape, heads) +
         heads * (2 * FlatHead::bytes_of(shape.n_exchanged, shape.row_bytes) +
                  FlatHead::bytes_of(own, shape.row_bytes));
}

Status exchange_rows(DeviceSession& own, uint32_t layer, std::span<const HeadExchange> heads,
                     const RowArchive& archive, DeviceScoreScratch& s) {
  SHARPI_TRY(s.device->usable());
  const DeviceScope scope(*s.device);
  SHARPI_TRY(own.send_tables());
  const KvLayerLayout& layout = *own.layout().find(layer);
  Desk at(s);
  SHARPI_TRY(at.wait());
  ExchangeDesk desk(layout, heads, at.pieces());
  const auto most_jobs = static_cast<uint32_t>(exchange_jobs(heads.size()));
  RowCopies reads(desk.reads.pinned, desk.reads.device, most_jobs),
      writes(desk.writes.pinned, desk.writes.device, most_jobs);
  KeyBounds keys(desk.keys, layout);
  for (const HeadExchange& m : heads)
    add_exchange(own, layer, m, archive, &desk, &reads, &writes, &keys);
  const DeviceKernels& kernels = s.device->kernels();
  SHARPI_TRY(at.send(desk.sent));
  SHARPI_TRY(kernels.copy_rows(reads.params(), *s.stream));
  SHARPI_TRY(kernels.copy_rows(writes.params(), *s.stream));
  return kernels.bound_keys(keys.params(), *s.stream);
}

}  // namespace sharpi::device
