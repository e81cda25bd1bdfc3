// SPDX-License-Identifier: MIT
// Needle accuracy against KV budget, as CSV: which policy keeps the answer, and which rows are
// they?
//   needle_curve FIXTURE.gguf GOLDEN.json [--kv f32|bf16|q8_0|q4] [--budgets 64,128,...] [--needles
//   N]
//                [--first I] [--modes in,after,recall,probe,bounded,bounded-probe,blind]
//                [--policies a,b]
//                [--pool K] [--span F] [--sinks N] [--recency N] [--layers 0|1|2|3] [--csv FILE]
//                [--rows FILE]
// Modes: in = the question is in the captured window; after = it is read after compaction; recall =
// the same, with rows that it recalls from an archive; probe = it is read after compaction, which
// looks through it; bounded = kv_budget with look-ahead, chunk 128;
// bounded-probe = with the question as the session's probe instead; blind = with neither.
// Columns: model,kv,mode,policy,budget,found,needles; --csv appends to a file instead of stdout.
// --rows: the rows kept of the first needle, in --modes in: model,policy,budget,layer,head and runs
// of positions; a line of the policy "needle" has the prompt's length and the answer's place in it.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "kv_names.h"
#include "support/needle.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kQuestion = 24;  // tokens at a prompt's end that ask

struct Options {
  std::string model, golden, modes = "in,after,probe,bounded,bounded-probe,blind", csv, rows;
  std::vector<uint32_t> budgets = {64, 128, 256, 512, 1024};
  sharpi_kv_dtype kv = SHARPI_KV_F32;
  const char* kv_name = "f32";
  size_t needles = 24, first = 0;
  uint32_t pool = 0, span = 0;  // 0 = the library's default
  uint32_t sinks = SHARPI_UNSET, recency = SHARPI_UNSET;
  std::string policies;  // empty = all but those that need replay scores
  sharpi_layer_budget layers = SHARPI_LAYER_BUDGET_EQUAL;
};

struct Named {
  sharpi_policy policy;
  const char* name;
};
constexpr Named kPolicies[] = {
    {SHARPI_POLICY_GLOBAL, "global"},       {SHARPI_POLICY_SNAPKV, "snapkv"},
    {SHARPI_POLICY_DEFENSIVE, "defensive"}, {SHARPI_POLICY_VALUE, "value"},
    {SHARPI_POLICY_SPAN, "span"},           {SHARPI_POLICY_RETRIEVAL, "retrieval"},
    {SHARPI_POLICY_REPLAY, "replay"},       {SHARPI_POLICY_MIXED, "mixed"}};

enum class Watch { kLookAhead, kProbe, kNothing };

ModelSetup setup_for(const Options& o, sharpi_policy policy, uint32_t kv_budget, Watch watch,
                     const std::vector<int32_t>& question) {
  ModelSetup setup;
  setup.edit = [=](sharpi_plan_params* p, sharpi_session_params* s) {
    s->k_dtype = s->v_dtype = o.kv;
    s->capture_window = 64;
    s->replay = o.policies.find("replay") != std::string::npos ||
                        o.policies.find("mixed") != std::string::npos
                    ? 1
                    : 0;
    if (kv_budget == 0) s->archive_rows = o.modes.find("recall") != std::string::npos ? 4096 : 0;
    if (kv_budget == 0) return;
    p->n_chunk = 128;
    s->kv_budget = kv_budget;
    s->policy = policy;
    s->lookahead = watch == Watch::kLookAhead ? 1 : 0;
    s->sinks = o.sinks;
    if (watch != Watch::kProbe) return;
    s->probe = question.data();
    s->n_probe = kQuestion;
  };
  return setup;
}

std::vector<int32_t> question_of(const GoldenNeedle& n) {
  return {n.prompt.end() - kQuestion, n.prompt.end()};
}

Chat fork_of(const Chat& chat) {
  sharpi_session* out = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_fork(chat.get(), &out, &e), SHARPI_OK) << text_of(e);
  return Chat(SessionPtr(out), chat.n_vocab());
}

/// Where one needle stands: the curve's programs, one after the other.
class Curve {
 public:
  Curve(const Options& o, const Golden& golden) : o_(o), golden_(golden) {
    n_ = golden.needles.size() - std::min(golden.needles.size(), o.first);
    n_ = std::min(n_, o.needles);
    csv_ = o.csv.empty() ? stdout : std::fopen(o.csv.c_str(), "a");
    rows_ = o.rows.empty() ? nullptr : std::fopen(o.rows.c_str(), "a");
    if (csv_ == nullptr || (!o.rows.empty() && rows_ == nullptr)) std::perror("needle_curve");
  }
  ~Curve() {
    if (csv_ != nullptr && csv_ != stdout) std::fclose(csv_);
    if (rows_ != nullptr) std::fclose(rows_);
  }
  Curve(const Curve&) = delete;
  Curve& operator=(const Curve&) = delete;
  bool is_open() const { return csv_ != nullptr && (o_.rows.empty() || rows_ != nullptr); }

  void run() {
    plain_ = load(o_.model, setup_for(o_, SHARPI_POLICY_SPAN, 0, Watch::kNothing, {}));
    std::stringstream modes(o_.modes);
    for (std::string mode; std::getline(modes, mode, ',');) {
      if (mode == "bounded" || mode == "blind" || mode == "bounded-probe") {
        bounded(mode);
      } else {
        one_shot(mode);
      }
    }
  }

 private:
  const GoldenNeedle& needle(size_t i) const { return golden_.needles[o_.first + i]; }
  void line(const std::string& mode, const char* policy, uint32_t budget, size_t found) const {
    std::fprintf(csv_, "%s,%s,%s,%s,%u,%zu,%zu\n", golden_.arch.c_str(), o_.kv_name, mode.c_str(),
                 policy, budget, found, n_);
    std::fflush(csv_);
  }
  std::vector<Named> policies() const {
    std::vector<Named> out;
    for (const Named& p : kPolicies) {
      const bool replays = p.policy == SHARPI_POLICY_REPLAY || p.policy == SHARPI_POLICY_MIXED;
      const bool named = o_.policies.find(p.name) != std::string::npos;
      if (o_.policies.empty() ? !replays : named) out.push_back(p);
    }
    return out;
  }

  /// One prefill a needle; every policy and budget starts from a fork of it.
  void one_shot(const std::string& mode) {
    const bool late = mode != "in";
    const auto list = policies();
    std::vector<size_t> found(list.size() * o_.budgets.size());
    size_t full = 0;
    if (rows_ != nullptr && !late) write_needle();
    for (size_t i = 0; i < n_; ++i) {
      const auto& prompt = needle(i).prompt;
      const auto question = question_of(needle(i));
      Chat chat(plain_.model.get());
      chat.prefill({prompt.begin(), prompt.end() - (late ? kQuestion : 0)});
      for (size_t j = 0; j < found.size(); ++j) {
        Chat one = fork_of(chat);
        const Named& policy = list[j / o_.budgets.size()];
        const uint32_t budget = o_.budgets[j % o_.budgets.size()];
        if (!compact(one, policy.policy, budget, mode == "probe" ? &question : nullptr)) continue;
        if (i == 0 && rows_ != nullptr && !late) write_rows(one, policy, budget);
        if (mode == "recall") recall(one, budget, question);
        if (late) one.prefill(question);
        found[j] += answers(plain_.model.get(), one, needle(i)) ? 1 : 0;
      }
      if (late) chat.prefill(question);
      full += answers(plain_.model.get(), chat, needle(i)) ? 1 : 0;
    }
    line(mode, "full", 0, full);
    for (size_t j = 0; j < found.size(); ++j) {
      line(mode, list[j / o_.budgets.size()].name, o_.budgets[j % o_.budgets.size()], found[j]);
    }
  }

  bool compact(Chat& chat, sharpi_policy policy, uint32_t budget,
               const std::vector<int32_t>* probe) const {
    sharpi_compact_params p = compact_params(policy, budget);
    p.sinks = o_.sinks;
    p.recency = o_.recency;
    const bool pools = policy >= SHARPI_POLICY_SNAPKV && policy <= SHARPI_POLICY_VALUE;
    const bool marks = !pools && policy != SHARPI_POLICY_GLOBAL;
    if (o_.pool != 0 && pools) p.pool_kernel = o_.pool;
    if (o_.span != 0 && marks) p.span = o_.span;
    p.layer_budget = o_.layers;
    if (probe != nullptr && policy != SHARPI_POLICY_REPLAY) {
      p.probe = probe->data();
      p.n_probe = kQuestion;
    }
    sharpi_error e = SHARPI_ERROR_INIT;
    const sharpi_status s = sharpi_session_compact(chat.get(), &p, nullptr, &e);
    if (s != SHARPI_OK) std::fprintf(stderr, "%s\n", text_of(e).c_str());
    return s == SHARPI_OK;
  }

  /// Of an archive that has what the compaction evicted: half as many rows as it left come back.
  static void recall(const Chat& chat, uint32_t budget, const std::vector<int32_t>& question) {
    sharpi_recall_params p;
    sharpi_recall_params_init(&p, sizeof p);
    p.budget = budget / 2;
    p.probe = question.data();
    p.n_probe = kQuestion;
    sharpi_error e = SHARPI_ERROR_INIT;
    const sharpi_status s = sharpi_session_recall(chat.get(), &p, nullptr, &e);
    if (s != SHARPI_OK) std::fprintf(stderr, "%s\n", text_of(e).c_str());
  }

  void write_rows(const Chat& chat, const Named& policy, uint32_t budget) const {
    std::vector<uint32_t> kept(chat.info().n_tokens);
    for (uint32_t l = 0; l < plain_.info.n_layers; ++l) {
      sharpi_layer_info layer{};
      layer.struct_size = sizeof layer;
      sharpi_error e = SHARPI_ERROR_INIT;
      EXPECT_EQ(sharpi_session_layer(chat.get(), l, &layer, &e), SHARPI_OK) << text_of(e);
      if (layer.mixer != SHARPI_MIXER_ATTENTION || layer.kv_source != static_cast<int32_t>(l)) {
        continue;
      }
      for (uint32_t h = 0; h < layer.n_kv_heads; ++h) {
        uint32_t n = 0;
        EXPECT_EQ(sharpi_session_kept(chat.get(), l, h, kept.data(),
                                      static_cast<uint32_t>(kept.size()), &n, &e),
                  SHARPI_OK)
            << text_of(e);
        std::fprintf(rows_, "%s,%s,%u,%u,%u,", golden_.arch.c_str(), policy.name, budget, l, h);
        for (uint32_t i = 0, last = 0; i < n; i = last + 1) {
          for (last = i; last + 1 < n && kept[last + 1] == kept[last] + 1;) ++last;
          std::fprintf(rows_, "%s%u-%u", i == 0 ? "" : " ", kept[i], kept[last]);
        }
        std::fprintf(rows_, "\n");
      }
    }
  }

  /// Where the answer stands in the prompt, and how long the prompt is.
  void write_needle() const {
    const GoldenNeedle& n = needle(0);
    // Its first token may be another one within the text, its last one ends the turn.
    const auto at =
        std::search(n.prompt.begin(), n.prompt.end(), n.answer.begin() + 1, n.answer.end() - 2);
    const auto first = static_cast<size_t>(at - n.prompt.begin());
    std::fprintf(rows_, "%s,needle,%zu,0,0,%zu-%zu\n", golden_.arch.c_str(), n.prompt.size(), first,
                 first + n.answer.size() - 4);
  }

  void bounded(const std::string& mode) {
    const Watch watch = mode == "bounded"         ? Watch::kLookAhead
                        : mode == "bounded-probe" ? Watch::kProbe
                                                  : Watch::kNothing;
    for (const Named& policy : policies()) {
      for (const uint32_t budget : o_.budgets) {
        Loaded own;
        size_t found = 0;
        for (size_t i = 0; i < n_; ++i) {
          const auto question = question_of(needle(i));
          const bool late = watch == Watch::kProbe;
          if (i == 0 || late) {
            own = Loaded{};
            own = load(o_.model, setup_for(o_, policy.policy, budget, watch, question));
          }
          Chat chat(own.model.get());
          const auto& prompt = needle(i).prompt;
          chat.prefill({prompt.begin(), prompt.end() - (late ? kQuestion : 0)});
          if (late) chat.prefill(question);
          found += answers(own.model.get(), chat, needle(i)) ? 1 : 0;
        }
        line(mode, policy.name, budget, found);
      }
    }
  }

  const Options& o_;
  const Golden& golden_;
  Loaded plain_;
  size_t n_ = 0;
  std::FILE *csv_ = nullptr, *rows_ = nullptr;
};

}  // namespace
}  // namespace sharpi::testing

namespace {

bool parse(int argc, char** argv, sharpi::testing::Options* o) {
  if (argc < 3 || argc % 2 == 0) return false;
  o->model = argv[1];
  o->golden = argv[2];
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    const auto count = [&] { return static_cast<uint32_t>(std::stoul(value)); };
    if (flag == "--needles")
      o->needles = count();
    else if (flag == "--first")
      o->first = count();
    else if (flag == "--modes")
      o->modes = value;
    else if (flag == "--pool")
      o->pool = count();
    else if (flag == "--span")
      o->span = count();
    else if (flag == "--sinks")
      o->sinks = count();
    else if (flag == "--recency")
      o->recency = count();
    else if (flag == "--policies")
      o->policies = value;
    else if (flag == "--layers")
      o->layers = static_cast<sharpi_layer_budget>(count());
    else if (flag == "--csv")
      o->csv = value;
    else if (flag == "--rows")
      o->rows = value;
    else if (flag == "--kv") {
      o->kv_name = argv[i + 1];
      const auto* known = sharpi::bench::kv_of_name(value);
      if (known == nullptr) return false;
      o->kv = known->dtype;
    } else if (flag == "--budgets") {
      o->budgets.clear();
      std::stringstream list(value);
      for (std::string one; std::getline(list, one, ',');) {
        o->budgets.push_back(static_cast<uint32_t>(std::stoul(one)));
      }
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  sharpi::testing::Options o;
  if (!parse(argc, argv, &o)) {
    std::fprintf(stderr,
                 "usage: needle_curve FIXTURE.gguf GOLDEN.json [--kv T] [--budgets a,b] "
                 "[--needles N] [--modes in,after,recall,probe,bounded,bounded-probe,blind] ...\n");
    return 2;
  }
  auto golden = sharpi::testing::load_golden(o.golden);
  if (!golden.is_ok()) {
    std::fprintf(stderr, "%s\n", golden.status().text().c_str());
    return 1;
  }
  sharpi::testing::Curve curve(o, golden.value());
  if (!curve.is_open()) return 1;
  curve.run();
  return 0;
}
