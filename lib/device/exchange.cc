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

/// Lists of an exchange of so many heads, of which rows come in, and rows in all.
uint64_t read_bytes(uint64_t heads, uint64_t n_in, uint64_t n_rows) {
  return RowCopies::bytes_of(heads * 3 * RowCopies::kJobsOfHead, 2 * n_in + n_rows);
}
uint64_t write_bytes(uint64_t heads, uint64_t n_in) {
  return RowCopies::bytes_of(heads * 2 * RowCopies::kJobsOfHead, n_in);
}
uint64_t arrival_bytes(uint64_t heads, uint64_t n_in) {
  return RowCopies::bytes_of(heads * RowCopies::kJobsOfHead, n_in);
}

/// Memory of one layer's exchange: what is sent, and behind it the heads' rows in the order of
/// `heads`: those that come in, those that go out, and all as they will be.
struct ExchangeDesk {
  ExchangeDesk(const KvLayerLayout& l, std::span<const HeadExchange> heads, const Pieces& from)
      : layout(l), pieces(from) {
    uint64_t n_in = 0, n_rows = 0;
    for (const HeadExchange& m : heads) {
      n_in += m.archived.size();
      n_rows += m.from.size();
    }
    reads = pieces.take(read_bytes(heads.size(), n_in, n_rows));
    writes = pieces.take(write_bytes(heads.size(), n_in));
    arrivals = pieces.take(arrival_bytes(heads.size(), n_in));
    keys = pieces.take(KeyBounds::bytes_of(n_in));
    sent = pieces.taken();
  }
  FlatHead take(size_t n) { return FlatHead::take(&pieces, layout, n); }
  static RowCopies copies(const Pieces::Piece& p, size_t most_jobs) {
    return {p.pinned, p.device, static_cast<uint32_t>(most_jobs)};
  }
  const KvLayerLayout& layout;
  Pieces pieces;
  Pieces::Piece reads, writes, arrivals, keys;
  uint64_t sent = 0;
};

/// What the launches of an exchange do, one after the other: rows go to flat memory; from there to
/// every slot of a head, and to the archive; and those that came in, to theirs.
struct Launches {
  RowCopies reads, writes, arrivals;
  KeyBounds keys;
};

void add_exchange(const DeviceSession& own, uint32_t layer, const HeadExchange& m,
                  const RowArchive& archive, ExchangeDesk* desk, Launches* l) {
  const auto n = static_cast<uint32_t>(m.archived.size()),
             n_rows = static_cast<uint32_t>(m.from.size());
  const FlatHead in = desk->take(n), out = desk->take(n), all = desk->take(n_rows);
  add_archived(&l->reads, own, archive, layer, m.head, in, {n, l->reads.list(m.archived), false});
  add_rows(&l->reads, own, layer, m.head, out, {n, l->reads.list(m.slots_out), false});
  add_rows(&l->reads, own, layer, m.head, all, {n_rows, l->reads.list(m.from), false});
  add_rows(&l->writes, own, layer, m.head, all, {n_rows, nullptr, true});
  add_archived(&l->writes, own, archive, layer, m.head, out,
               {n, l->writes.list_of_places(m.places), true});
  l->keys.add(out.sides[0], m.places, own.archive_rows().bounds(layer, m.head));
  add_rows(&l->arrivals, own, layer, m.head, in, {n, l->arrivals.list(m.slots_in), true});
}

}  // namespace

uint64_t exchange_desk_bytes(const ScoreShape& shape, uint64_t heads) {
  const uint64_t n_rows = heads * (shape.n_slots - shape.n_archived),
                 n_in = heads * shape.n_exchanged;
  const auto whole = [](uint64_t bytes) { return round_up(bytes, Pieces::kAlign); };
  return whole(read_bytes(heads, n_in, n_rows)) + whole(write_bytes(heads, n_in)) +
         whole(arrival_bytes(heads, n_in)) + whole(KeyBounds::bytes_of(n_in));
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
  const Desk at(s);
  SHARPI_TRY(at.wait());
  const KvLayerLayout& layout = *own.layout().find(layer);
  ExchangeDesk desk(layout, heads, at.pieces());
  const size_t jobs = heads.size() * RowCopies::kJobsOfHead;
  Launches l{ExchangeDesk::copies(desk.reads, 3 * jobs),
             ExchangeDesk::copies(desk.writes, 2 * jobs), ExchangeDesk::copies(desk.arrivals, jobs),
             KeyBounds(desk.keys, layout)};
  for (const HeadExchange& m : heads) add_exchange(own, layer, m, archive, &desk, &l);
  const DeviceKernels& kernels = s.device->kernels();
  SHARPI_TRY(at.send(desk.sent));
  SHARPI_TRY(kernels.copy_rows(l.reads.params(), *s.stream));
  SHARPI_TRY(kernels.copy_rows(l.writes.params(), *s.stream));
  SHARPI_TRY(kernels.copy_rows(l.arrivals.params(), *s.stream));
  return kernels.bound_keys(l.keys.params(), *s.stream);
}

}  // namespace sharpi::device
