// SPDX-License-Identifier: MIT
// Archives of sessions whose rows are on devices, whatever tier these are of: what is brought back
// is what the CPU brings back, with its own bits. Thread rule: as sharpi.h.
#pragma once

#include <string>
#include <vector>

#include "device/by_head_ways.h"
#include "engine/recall_case.h"

namespace sharpi::testing {

inline Edit archived_rows(sharpi_kv_dtype kv, bool replay) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    exact_rows(kv)(p, s);
    s->archive_rows = 200;  // some of the rows that are evicted below
    s->capture_window = replay ? 64 : 16;
    s->replay = replay ? 1 : 0;
  };
}

/// What recalls leave, and say.
struct Recalled {
  std::vector<std::vector<std::vector<uint32_t>>> kept;
  std::vector<uint32_t> archived, n_blocks;
  uint64_t total_rows = 0;
  std::vector<Logits> logits;
};

inline Recalled live_with_archive(const Loaded& l, const std::string& path,
                                  const std::vector<int32_t>& text) {
  Recalled out;
  Chat chat(l.model.get());
  chat.prefill(slice(text, 0, 240));
  const Chat whole = chat.fork();
  const auto bring_back = [&](const sharpi_recall_params& p) {
    const sharpi_recall_report r = recall(chat, p);
    out.kept.push_back(all_kept(chat));
    out.archived.push_back(r.archived);
    out.n_blocks.push_back(r.n_blocks);
    out.total_rows += r.total_rows;
  };
  compact(chat, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_SNAPKV, 70));
  const std::vector<int32_t> question = slice(text, 20, 32);
  bring_back(wanted(question, 24));
  expect_rows_of(path, chat, whole);
  chat.prefill(slice(text, 240, 300));
  const Chat twin = chat.fork();
  bring_back(wanted({}, 30));  // by the queries that were captured
  EXPECT_EQ(recall(twin, wanted({}, 30)).archived, out.archived.back());
  EXPECT_TRUE(saved(twin) == saved(chat));
  // Heads with counts of their own, in blocks of one head.
  compact(chat, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 50));
  const std::vector<uint32_t> before = counts(chat);
  bring_back(wanted(slice(text, 100, 110), 40));
  EXPECT_EQ(counts(chat), before);
  bring_back(wanted(question, 9));
  for (size_t i = 300; i < 303; ++i) {
    chat.decode(text[i]);
    out.logits.push_back(chat.logits());
  }
  return out;
}

/// On `ladder` as on the host.
inline void check_recalls(const LadderMachine& machine, const MadeModel& file, const Ladder& ladder,
                          sharpi_kv_dtype kv, bool replay, const std::string& what) {
  const std::vector<int32_t> text = file.tokens(310);
  const Edit edit = archived_rows(kv, replay);
  const Loaded host = machine.load(file.path(), {}, edit),
               there = machine.load(file.path(), ladder, edit);
  ASSERT_TRUE(host.model && there.model) << what;
  const Recalled want = live_with_archive(host, file.path(), text),
                 got = live_with_archive(there, file.path(), text);
  EXPECT_GT(want.total_rows, 0u) << what;
  EXPECT_EQ(got.archived, want.archived) << what;
  EXPECT_EQ(got.n_blocks, want.n_blocks) << what;
  if (kv == SHARPI_KV_F32) {  // others are rounded here and there to other values, seldom
    EXPECT_TRUE(got.kept == want.kept) << what;
    for (size_t i = 0; i < want.logits.size(); ++i)
      EXPECT_LE(distance(got.logits[i], want.logits[i]), kNearTheCpu) << what << i;
  }
}

/// With more archived blocks than are scored row by row, so that bounds decide; again after some
/// have changed, and in a fork.
inline void check_bounds(const LadderMachine& machine, const MadeModel& file,
                         const Ladder& ladder) {
  const std::vector<int32_t> text = file.tokens(1450);
  const Edit edit = [](sharpi_plan_params* p, sharpi_session_params* s) {
    archived_rows(SHARPI_KV_F32, false)(p, s);
    p->n_chunk = 256;
    s->n_ctx = 1500;
    s->archive_rows = 1400;
  };
  const Loaded host = machine.load(file.path(), {}, edit),
               there = machine.load(file.path(), ladder, edit);
  ASSERT_TRUE(host.model && there.model);
  std::vector<std::vector<std::vector<uint32_t>>> kept[2];
  for (const bool device : {false, true}) {
    Chat chat((device ? there : host).model.get());
    chat.prefill(text);
    compact(chat, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_SNAPKV, 100));
    for (const size_t at : {400u, 900u}) {
      const sharpi_recall_report r = recall(chat, wanted(slice(text, at, at + 12), 40));
      EXPECT_EQ(r.n_blocks, 64u);
      EXPECT_EQ(r.archived, 1350u);
      kept[device].push_back(all_kept(chat));
    }
    const Chat twin = chat.fork();
    recall(twin, wanted(slice(text, 100, 112), 40));
    kept[device].push_back(all_kept(twin));
  }
  EXPECT_TRUE(kept[0] == kept[1]);
}

}  // namespace sharpi::testing
