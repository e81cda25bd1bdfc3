// SPDX-License-Identifier: MIT
// What tests of archives share: recalls, and rows against those of a session that has read the same
// and evicted nothing. Thread rule: as sharpi.h.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine/by_head_case.h"
#include "support/needle.h"
#include "support/session_rows.h"

namespace sharpi::testing {

inline sharpi_recall_params wanted(const std::vector<int32_t>& probe, uint32_t budget) {
  sharpi_recall_params p;
  sharpi_recall_params_init(&p, sizeof p);
  p.budget = budget;
  p.recency = 8;
  p.sinks = 4;
  p.probe = probe.data();
  p.n_probe = static_cast<uint32_t>(probe.size());
  return p;
}

inline sharpi_status try_recall(const Chat& chat, const sharpi_recall_params& p, sharpi_error* e,
                                sharpi_recall_report* report = nullptr) {
  return sharpi_session_recall(chat.get(), &p, report, e);
}

inline sharpi_recall_report recall(const Chat& chat, const sharpi_recall_params& p) {
  sharpi_recall_report r{};
  r.struct_size = sizeof r;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(try_recall(chat, p, &e, &r), SHARPI_OK) << text_of(e);
  return r;
}

/// Every row that `chat` holds is, bit for bit, that of the same position in `whole`.
inline void expect_rows_of(const std::string& path, const Chat& chat, const Chat& whole) {
  const auto spec = spec_of(path);
  const SessionRows have = session_rows(*spec, saved(chat)),
                    want = session_rows(*spec, saved(whole));
  for (uint32_t l = 0; l < spec->n_layers(); ++l) {
    const OwnerRows &a = have.layers[l], &b = want.layers[l];
    if (a.n_rows == 0) continue;
    const uint32_t dim = spec->layers[l].attention.head_dim;
    const size_t row = a.positions.size() * dim;
    for (size_t h = 0; h < a.positions.size(); ++h) {
      ASSERT_TRUE(std::is_sorted(a.positions[h].begin(), a.positions[h].end())) << l;
      for (uint32_t i = 0; i < a.n_rows; ++i) {
        const size_t at = a.positions[h][i];
        for (uint32_t e = 0; e < dim; ++e) {
          ASSERT_EQ(a.k[i * row + h * dim + e], b.k[at * row + h * dim + e]) << l << ", row " << i;
          if (a.v.empty()) continue;
          ASSERT_EQ(a.v[i * row + h * dim + e], b.v[at * row + h * dim + e]) << l << ", row " << i;
        }
        if (a.replay.empty() || at >= want.n_scored) continue;  // others wait for theirs
        ASSERT_EQ(a.replay[h][i], b.replay[h][at]) << l << ", row " << i;
      }
    }
  }
}

}  // namespace sharpi::testing
