// SPDX-License-Identifier: MIT
#include "tier/head_moves.h"

#include <algorithm>

namespace sharpi {
namespace {

bool is_of(const KvStore& store, uint32_t group, const KvMove& m) {
  return store.layout().group_of_layer[m.layer] == static_cast<int32_t>(group);
}

}  // namespace

bool ends_by_head(const KvStore& store, uint32_t group, std::span<const KvMove> moves) {
  return std::any_of(moves.begin(), moves.end(), [&](const KvMove& m) {
    return is_of(store, group, m) && (m.by_head || store.is_by_head(group));
  });
}

Status check_by_head(const KvStore& store, std::span<const KvMove> moves) {
  for (uint32_t g = 0; g < store.layout().groups.size(); ++g) {
    if (!ends_by_head(store, g, moves)) continue;
    const auto n = static_cast<size_t>(std::count_if(
        moves.begin(), moves.end(), [&](const KvMove& m) { return is_of(store, g, m); }));
    const size_t all = store.layout().groups[g].layers.size();
    if (n == all && store.has_head_tables()) continue;
    return Status::error(Code::kInternal, "rows by head: %zu of %zu layers move, with%s tables", n,
                         all, store.has_head_tables() ? "" : "out");
  }
  return Status::ok();
}

void count_heads(const KvStore& store, uint32_t group, std::span<const KvMove> moves,
                 std::vector<uint32_t>* out) {
  out->clear();
  for (const KvLayerLayout& l : store.layout().groups[group].layers) {
    const auto m = std::find_if(moves.begin(), moves.end(),
                                [&](const KvMove& one) { return one.layer == l.layer; });
    for (uint32_t h = 0; h < l.n_heads; ++h)
      out->push_back(static_cast<uint32_t>(m->keep[m->keep.size() == 1 ? 0 : h].size()));
  }
}

}  // namespace sharpi
