// SPDX-License-Identifier: MIT
// Which rows every policy keeps: those of tools/compaction_oracle.py (its sets lie in keep_sets/)
// on the models it knows, and those of a plain double-precision implementation on all others too.
#include <fstream>
#include <map>
#include <sstream>

#include "engine_case.h"
#include "support/needle.h"
#include "support/paths.h"
#include "support/plain_policies.h"

namespace sharpi::testing {
namespace {

std::vector<uint32_t> kept(const Chat& chat, uint32_t layer, uint32_t head) {
  std::vector<uint32_t> out(4096);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_kept(chat.get(), layer, head, out.data(), 4096, &n, &e), SHARPI_OK)
      << text_of(e);
  out.resize(n);
  return out;
}

void compact(Chat& chat, const sharpi_compact_params& p) {
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_compact(chat.get(), &p, nullptr, &e), SHARPI_OK) << text_of(e);
}

void keep_all(Chat& chat) {
  std::vector<uint32_t> all(chat.info().n_slots_max);
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  sharpi_compact_params p = compact_params(SHARPI_POLICY_KEEP, SHARPI_UNSET);
  p.keep = all.data();
  p.n_keep = static_cast<uint32_t>(all.size());
  compact(chat, p);
}

/// One line of a reference file.
struct Reference {
  uint32_t needle = 0, budget = 0, layer = 0, head = 0;
  std::string policy, digits;
  std::vector<uint32_t> near;
};

/// A letter from g on stands for 2 digits 0 and more, one from G on for as many f.
std::string written_out(const std::string& runs) {
  std::string out;
  for (const char c : runs) {
    if (c >= 'g')
      out.append(static_cast<size_t>(c - 'g' + 2), '0');
    else if (c >= 'G' && c <= 'Z')
      out.append(static_cast<size_t>(c - 'G' + 2), 'f');
    else
      out += c;
  }
  return out;
}

std::vector<Reference> references(const std::string& model) {
  std::ifstream in(test::source_path("tests/engine/keep_sets/" + model + ".txt"));
  std::vector<Reference> out;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    Reference r;
    std::string near;
    words >> r.needle >> r.policy >> r.budget >> r.layer >> r.head >> r.digits >> near;
    r.digits = written_out(r.digits);
    std::istringstream list(near);
    for (std::string one; std::getline(list, one, ',');)
      r.near.push_back(static_cast<uint32_t>(std::stoul(one)));
    out.push_back(std::move(r));
  }
  return out;
}

/// "snapkv-p13" and the like, as the oracle names them.
sharpi_compact_params params_of(const Reference& r) {
  const std::map<std::string, sharpi_policy> names{
      {"global", SHARPI_POLICY_GLOBAL},       {"snapkv", SHARPI_POLICY_SNAPKV},
      {"defensive", SHARPI_POLICY_DEFENSIVE}, {"value", SHARPI_POLICY_VALUE},
      {"span", SHARPI_POLICY_SPAN},           {"retrieval", SHARPI_POLICY_RETRIEVAL}};
  const size_t dash = r.policy.find('-');
  sharpi_compact_params p = compact_params(names.at(r.policy.substr(0, dash)), r.budget);
  p.sinks = 0;  // the oracle has none
  if (dash == std::string::npos) return p;
  const std::string number = r.policy.substr(r.policy.find_first_of("0123456789"));
  const bool spreads = p.policy == SHARPI_POLICY_SPAN || p.policy == SHARPI_POLICY_RETRIEVAL;
  (spreads ? p.span : p.pool_kernel) = static_cast<uint32_t>(std::stoul(number));
  return p;
}

class OracleKeepSets : public ModelTest {};

TEST_P(OracleKeepSets, AreKeptUpToScoreTies) {
  const std::vector<Reference> all = references(GetParam());
  ASSERT_EQ(all.size(), 98u);
  const Loaded l = load(path(), setup_with([](sharpi_plan_params* p, sharpi_session_params* s) {
                          p->arithmetic = SHARPI_ARITHMETIC_EXACT;
                          s->k_dtype = s->v_dtype = SHARPI_KV_F32;
                          s->capture_window = 64;
                        }));
  std::map<uint32_t, Chat> read;
  std::map<std::pair<uint32_t, std::string>, Chat> compacted;
  size_t n_rows = 0, n_near = 0;
  for (const Reference& r : all) {
    const auto& prompt = golden_.needles.at(r.needle).prompt;
    if (read.count(r.needle) == 0)
      read.emplace(r.needle, Chat(l.model.get())).first->second.prefill(prompt);
    const auto key = std::make_pair(r.needle, r.policy);
    if (compacted.count(key) == 0) {
      Chat chat = read.at(r.needle).fork();
      compact(chat, params_of(r));
      compacted.emplace(key, std::move(chat));
    }
    const auto rows = kept(compacted.at(key), r.layer, r.head);
    const size_t old = prompt.size() - 64;
    ASSERT_EQ(r.digits.size(), (old + 3) / 4);
    std::vector<bool> ours(old);
    for (const uint32_t t : rows) {
      if (t < old) ours[t] = true;
    }
    for (uint32_t t = 0; t < old; ++t) {
      const char c = r.digits[t / 4];
      const bool theirs = ((c <= '9' ? c - '0' : c - 'a' + 10) >> (t % 4) & 1) != 0;
      n_rows += theirs ? 1 : 0;
      if (theirs == ours[t]) continue;
      ++n_near;
      ASSERT_NE(std::find(r.near.begin(), r.near.end(), t), r.near.end())
          << "needle " << r.needle << ", " << r.policy << ", budget " << r.budget << ", layer "
          << r.layer << ", head " << r.head << ": row " << t << " is kept by "
          << (theirs ? "the oracle" : "the library") << " only, and its score is no tie";
    }
  }
  EXPECT_LT(n_near, n_rows / 100) << "of " << n_rows << " rows";
}

INSTANTIATE_TEST_SUITE_P(Engine, OracleKeepSets,
                         ::testing::Values("tiny-qwen3", "tiny-qwen3moe", "tiny-olmoe"),
                         model_name);

class PlainKeepSets : public ModelTest {
 protected:
  /// The beginning of a needle's prompt, or of what a random model has instead.
  std::vector<int32_t> prompt(size_t needle, size_t n) const {
    return golden_.needles.empty() ? tokens(n) : slice(golden_.needles[needle].prompt, 0, n);
  }
  /// The library's keep sets of forks of `chat` against those of the plain implementation.
  void expect_equal(const Chat& chat, const std::vector<PlainRequest>& requests) {
    const auto spec = spec_of(path());
    ASSERT_TRUE(spec);
    Chat settled = chat.fork();
    keep_all(settled);  // rows that wait for their replay scores get them
    const SessionRows rows = session_rows(*spec, saved(settled));
    ASSERT_EQ(rows.n_queries, 64u);
    const std::vector<PlainScores> scores = plain_scores(*spec, rows);
    for (const PlainRequest& r : requests) expect_equal(chat, *spec, rows, scores, r);
  }

 private:
  void expect_equal(const Chat& chat, const ModelSpec& spec, const SessionRows& rows,
                    const std::vector<PlainScores>& scores, const PlainRequest& r) {
    Chat one = chat.fork();
    sharpi_compact_params p = compact_params(r.policy, r.budget);
    p.recency = r.recency;
    p.sinks = r.sinks;
    const bool replays = r.policy == SHARPI_POLICY_REPLAY || r.policy == SHARPI_POLICY_MIXED;
    const bool marks = r.policy == SHARPI_POLICY_SPAN || r.policy == SHARPI_POLICY_RETRIEVAL;
    if (marks) p.span = r.span;
    if (!marks && !replays && r.policy != SHARPI_POLICY_GLOBAL) p.pool_kernel = r.pool_kernel;
    compact(one, p);
    const auto want = plain_keep_sets(spec, rows, scores, r);
    ASSERT_FALSE(want.empty());
    for (const PlainLayer& layer : want) {
      for (uint32_t h = 0; h < layer.slots.size(); ++h) {
        const auto& positions = rows.layers[layer.layer].positions[h];
        std::vector<uint32_t> got;  // slots of the positions that stayed
        for (const uint32_t at : kept(one, layer.layer, h))
          got.push_back(static_cast<uint32_t>(
              std::lower_bound(positions.begin(), positions.end(), at) - positions.begin()));
        ASSERT_EQ(got.size(), r.budget);
        EXPECT_EQ(beyond_ties(layer.scores[h], layer.slots[h], got, r, 1e-3),
                  std::vector<uint32_t>())
            << "policy " << r.policy << ", layer " << layer.layer << ", head " << h;
      }
    }
  }
};

std::vector<PlainRequest> requests() {
  std::vector<PlainRequest> out;
  for (sharpi_policy p = SHARPI_POLICY_GLOBAL; p <= SHARPI_POLICY_RETRIEVAL; ++p) {
    out.push_back(PlainRequest{p, 200, 64, 0, 13, 12});
    out.push_back(PlainRequest{p, 100, 20, 4, 7, 21});
  }
  for (const sharpi_policy p : {SHARPI_POLICY_REPLAY, SHARPI_POLICY_MIXED})
    out.push_back(PlainRequest{p, 180, 20, 4, 13, 12});
  return out;
}

TEST_P(PlainKeepSets, AreKeptUpToScoreTies) {
  for (const sharpi_kv_dtype kv : stored_dtypes()) {
    const Loaded l = load(path(), setup_with([=](sharpi_plan_params*, sharpi_session_params* s) {
                            s->k_dtype = s->v_dtype = kv;
                            s->capture_window = 64;
                            s->replay = 1;
                          }));
    Chat chat(l.model.get());
    chat.prefill(prompt(0, 500));
    expect_equal(chat, requests());
  }
}

/// Heads that hold different positions, rows that queries may not see, and rows that were decoded.
TEST_P(PlainKeepSets, AlsoAfterACompactionAndDecoding) {
  const Loaded l = load(path(), setup_with([](sharpi_plan_params*, sharpi_session_params* s) {
                          s->capture_window = 64;
                          s->replay = 1;
                        }));
  Chat chat(l.model.get());
  chat.prefill(prompt(1, 600));
  compact(chat, compact_params(SHARPI_POLICY_SNAPKV, 300));
  for (int i = 0; i < 20; ++i) chat.decode(chat.argmax());
  std::vector<PlainRequest> by_head = requests();
  std::erase_if(by_head, [](const auto& r) { return r.policy == SHARPI_POLICY_GLOBAL; });
  expect_equal(chat, by_head);
  std::set<std::vector<uint32_t>> lists;
  const auto spec = spec_of(path());
  const SessionRows rows = session_rows(*spec, saved(chat));
  for (const OwnerRows& layer : rows.layers)
    lists.insert(layer.positions.begin(), layer.positions.end());
  if (lists.size() == 1) return expect_equal(chat, {requests()[0]});  // one layer with one KV head
  const sharpi_compact_params p = compact_params(SHARPI_POLICY_GLOBAL, 100);
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_compact(chat.get(), &p, nullptr, &e), SHARPI_E_STATE);
  EXPECT_NE(std::string(e.text).find("rows that line up"), std::string::npos) << e.text;
}

INSTANTIATE_TEST_SUITE_P(Engine, PlainKeepSets, ::testing::ValuesIn(compactable_models()),
                         model_name);

}  // namespace
}  // namespace sharpi::testing
