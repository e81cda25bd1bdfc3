// SPDX-License-Identifier: MIT
// What a scenario checks: the rows that were planned against those that were taken. Thread rule:
// one thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "must.h"
#include "sharpi.h"

namespace sharpi::bench {

inline int n_failed = 0;

inline void check(bool holds, const std::string& what) {
  if (holds) return;
  ++n_failed;
  std::printf("  FAILED: %s\n", what.c_str());
}

using Rows = std::vector<sharpi_memory_row>;

template <class Call, class Handle>
Rows fetch(Call call, const Handle* handle) {
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  Rows rows(256);
  must(call(handle, rows.data(), sizeof rows[0], 256, &n, &e), e, "rows");
  rows.resize(n);
  return rows;
}

using Key = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, std::string>;
using Table = std::map<Key, std::pair<uint64_t, uint64_t>>;

inline void add(const Rows& rows, Table* to) {
  for (const sharpi_memory_row& r : rows) {
    if (r.transient != 0) continue;
    auto& at =
        (*to)[Key{r.tier, r.purpose, r.kind, r.first_layer, r.n_layers, r.per_session, r.label}];
    at.first += r.payload_bytes;
    at.second += r.held_bytes;
  }
}

/// Every row that was planned was taken, with the same bytes, and no other.
inline void compare_rows(const sharpi_plan* plan, const sharpi_model* model,
                         const sharpi_session* session) {
  Table planned, taken;
  add(fetch(sharpi_plan_rows, plan), &planned);
  add(fetch(sharpi_model_memory, model), &taken);
  add(fetch(sharpi_session_memory, session), &taken);
  check(planned.size() > 3, "rows are planned");
  for (const auto& [key, bytes] : planned) {
    const auto it = taken.find(key);
    const bool same = it != taken.end() && it->second == bytes;
    check(same, "row \"" + std::get<6>(key) + "\": planned " + std::to_string(bytes.second) +
                    ", taken " + std::to_string(it == taken.end() ? 0 : it->second.second));
  }
  for (const auto& [key, bytes] : taken)
    check(planned.contains(key), "row \"" + std::get<6>(key) + "\" was not planned");
}

}  // namespace sharpi::bench
