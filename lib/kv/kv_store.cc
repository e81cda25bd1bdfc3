// SPDX-License-Identifier: MIT
#include "kv/kv_store.h"

#include <algorithm>
#include <cassert>
#include <functional>

#include "kv/ledger.h"

namespace sharpi {

Status KvStore::check_rows(uint32_t layer, uint32_t first, uint32_t n) const {
  const KvLayout& l = layout();
  const int32_t g = layer < l.group_of_layer.size() ? l.group_of_layer[layer] : -1;
  if (g < 0)
    return Status::error(Code::kInternal, "layer %u stores no KV rows on this tier", layer);
  const uint32_t slots = capacity(static_cast<uint32_t>(g));
  if (uint64_t{first} + n > slots) {
    return Status::error(Code::kInternal, "KV rows %u to %u of layer %u exceed its capacity of %u",
                         first, first + n, layer, slots);
  }
  return Status::ok();
}

Result<uint32_t> KvStore::append_slot(uint32_t layer, const KvLedger& ledger,
                                      uint32_t n_rows) const {
  const int32_t at = layout().group_of_layer[layer];
  const auto group = static_cast<uint32_t>(at);
  // By head, slots of a group are those of its fullest head.
  const uint32_t first =
      at >= 0 && is_by_head(group) ? ledger.fullest(layout().groups[group]) : ledger.n_slots(layer);
  Status fits = check_rows(layer, first, n_rows);
  assert(fits.is_ok() && "rows would be written past committed memory");
  if (fits.is_ok() && first < read_only_slots(group)) {
    fits = Status::error(Code::kInternal, "row %u of layer %u is shared with a fork", first, layer);
  }
  assert(fits.is_ok() && "rows would be written into what a fork reads");
  if (!fits.is_ok()) return fits;
  return ledger.n_slots(layer);
}

Status KvStore::no_heads(uint32_t layer) const {
  return Status::error(Code::kInternal, "the rows of layer %u are not in blocks of one head",
                       layer);
}
Status KvStore::read_head_rows(uint32_t layer, uint32_t, bool, uint32_t, uint32_t, void*) const {
  return no_heads(layer);
}
Status KvStore::write_head_rows(uint32_t layer, uint32_t, bool, uint32_t, uint32_t, const void*) {
  return no_heads(layer);
}

Status KvStore::check_moves(std::span<const KvMove> moves) const {
  for (const KvMove& m : moves) {
    for (size_t h = 0; h < m.keep.size(); ++h) {
      const std::span<const uint32_t> keep = m.keep[h];
      if (std::adjacent_find(keep.begin(), keep.end(), std::greater_equal<>()) != keep.end()) {
        return Status::error(Code::kInternal, "the rows to keep of layer %u do not ascend",
                             m.layer);
      }
      if (!keep.empty()) SHARPI_TRY(check_rows(m.layer, keep.back(), 1));
    }
  }
  return Status::ok();
}

}  // namespace sharpi
