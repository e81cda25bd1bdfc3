// SPDX-License-Identifier: MIT
#include "engine/kept_state.h"

namespace sharpi {

/// rows(store, layer, value, n_rows, bytes) for both sides of every ring, state(store, layer, part,
/// bytes) for every part of a recurrent layer, in one order.
template <class Rows, class State>
Status KeptState::each(Rows&& rows, State&& state) const {
  for (uint32_t l = 0; l < core_.spec().n_layers(); ++l) {
    KvStore& kv = core_.store(l);
    for (const StatePart part : {StatePart::kState, StatePart::kConv}) {
      if (const uint64_t n = kv.state_bytes(l, part); n != 0) SHARPI_TRY(state(kv, l, part, n));
    }
    const KvLayerLayout* one = kv.layout().find(l);
    if (one == nullptr) continue;
    const KvGroup& g = kv.layout().groups[static_cast<size_t>(kv.layout().group_of_layer[l])];
    if (!g.ring) continue;
    for (const bool value : one->sides())
      SHARPI_TRY(
          rows(kv, l, value, g.ring_slots, uint64_t{g.ring_slots} * kv.view(l).row_bytes(value)));
  }
  return Status::ok();
}

uint64_t KeptState::bytes() const {
  uint64_t sum = 0;
  const Status counted = each(
      [&](KvStore&, uint32_t, bool, uint32_t, uint64_t n) {
        sum += n;
        return Status::ok();
      },
      [&](KvStore&, uint32_t, StatePart, uint64_t n) {
        sum += n;
        return Status::ok();
      });
  return counted.is_ok() ? sum : 0;
}

Status KeptState::save() {
  copy_.resize(bytes());
  std::byte* at = copy_.data();
  const auto next = [&](uint64_t n) {
    std::byte* to = at;
    at += n;
    return to;
  };
  return each([&](KvStore& kv, uint32_t l, bool value, uint32_t rows,
                  uint64_t n) { return kv.read_rows(l, value, 0, rows, next(n)); },
              [&](KvStore& kv, uint32_t l, StatePart part, uint64_t n) {
                return kv.read_state(l, part, next(n));
              });
}

Status KeptState::restore() {
  const std::byte* at = copy_.data();
  const auto next = [&](uint64_t n) {
    const std::byte* from = at;
    at += n;
    return from;
  };
  const Status written = each([&](KvStore& kv, uint32_t l, bool value, uint32_t rows,
                                  uint64_t n) { return kv.write_rows(l, value, 0, rows, next(n)); },
                              [&](KvStore& kv, uint32_t l, StatePart part, uint64_t n) {
                                return kv.write_state(l, part, next(n));
                              });
  if (written.is_ok()) return written;
  if (core_.spec().is_hybrid()) core_.transcript.lose_state();
  core_.transcript.fail(core_.shape.n_ctx, true, 0);
  return written;
}

}  // namespace sharpi
