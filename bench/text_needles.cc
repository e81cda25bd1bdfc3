// SPDX-License-Identifier: MIT
// What compaction keeps of a real text that a real model reads, as CSV: is a number that was hidden
// in it still known, and how well does the text go on?
//   text_needles MODEL.gguf TEXT|CASES [--kinds a,b] [--lengths 1024,2048] [--depths 10,50,90]
//   [--shares 50,25,12.5,6]
//                [--modes in,probe,after,text,bounded] [--policies a,b] [--needles N] [--kv
//                f32|bf16|q8_0]
//                [--span N] [--pool N] [--sinks N] [--recency N] [--layers 0|1|2|3] [--threads N]
//                [--others N] [--replay N]
// A needle is a sentence between two paragraphs, "The secret number of Oslo is 48213."; --others of
// its kind, of other cities, stand elsewhere (0 to 2). --replay: every so many-th query gives
// replay scores; 0 = none does. Modes: in = the question is in the captured window; probe = it is
// read after compaction, which was aimed at it; after = it is read after compaction, which knew
// nothing of it; text = no question, the text goes on; bounded = the session never holds more rows
// than the share and a chunk of 128, and looks ahead. Columns:
// model,kv,kind,mode,policy,layer_budget,length,share,found,n,nll. length is what --lengths said,
// share the rows kept in percent, nll the mean of -ln p over the answer's tokens, or over those of
// the text that goes on. Lines of the policy "whole" are of the session without compaction.
// CASES is a file that tools/compare_compaction.py writes: texts with questions and answers, by
// kinds (one, four, answers, dictionary); --lengths, --depths and --others do not matter then.
// --layers takes several, as 0,3.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>
#include <tuple>

#include "kv_names.h"
#include "models/real_files.h"
#include "support/needle.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kGoesOn = 96;  // tokens of the text that are read behind a compacted session
constexpr uint32_t kCaseGoesOn = 256;            // the same of a case
constexpr char kEndOfCase = 0x1e, kPart = 0x1f;  // of a file of cases, and between its fields

struct Named {
  sharpi_policy policy;
  const char* name;
};
constexpr Named kPolicies[] = {
    {SHARPI_POLICY_REPLAY, "replay"},       {SHARPI_POLICY_MIXED, "mixed"},
    {SHARPI_POLICY_RETRIEVAL, "retrieval"}, {SHARPI_POLICY_SPAN, "span"},
    {SHARPI_POLICY_DEFENSIVE, "defensive"}, {SHARPI_POLICY_VALUE, "value"},
    {SHARPI_POLICY_SNAPKV, "snapkv"},       {SHARPI_POLICY_GLOBAL, "global"}};

struct Options {
  std::string model, text, policies, kinds, modes = "in,probe,after,text";
  std::vector<double> lengths = {1024, 2048}, depths = {10, 50, 90}, shares = {50, 25, 12.5, 6};
  uint32_t n_needles = 1, span = 0, pool = 0, n_threads = 2, n_others = 0, every = 1;
  uint32_t n_ctx = 6144;  // of cases
  uint32_t sinks = SHARPI_UNSET, recency = SHARPI_UNSET;
  sharpi_kv_dtype kv = SHARPI_KV_F32;
  std::string kv_name = "f32";
  std::vector<double> layers = {SHARPI_LAYER_BUDGET_EQUAL};
  bool does(const char* mode) const { return modes.find(mode) != std::string::npos; }
};

constexpr const char* kCities[] = {"Oslo",  "Lisbon", "Cairo", "Dublin", "Quito", "Hanoi",
                                   "Tunis", "Vienna", "Lima",  "Athens", "Bern",  "Seoul"};
constexpr size_t kNumCities = std::size(kCities);

std::string number_of(size_t city) {
  return std::to_string(10000 + (city * 48271u + 38119u) % 90000u);
}
std::string said_of(size_t city) {
  return std::string("The secret number of ") + kCities[city] + " is";
}

/// A text with its questions and answers, in tokens.
struct Ask {
  std::vector<int32_t> question, answer;
};
struct Case {
  std::string kind = "needle";
  std::vector<int32_t> text, goes_on;
  std::vector<Ask> asks;
};

Ask ask_of(const sharpi_model* model, const std::string& question, const std::string& answer) {
  Ask a;
  a.question = tokens_of(model, question);
  a.answer = tokens_of(model, question + answer);
  a.answer.erase(a.answer.begin(),
                 a.answer.begin() + static_cast<std::ptrdiff_t>(a.question.size()));
  return a;
}

/// Of a file of cases, one after the other: kind, name, text, what follows it, and pairs of a
/// question and its answer.
std::vector<Case> cases_of(const sharpi_model* model, const std::string& file) {
  std::vector<Case> out;
  std::stringstream all(file);
  for (std::string one; std::getline(all, one, kEndOfCase);) {
    std::vector<std::string> parts;
    std::stringstream fields(one);
    for (std::string part; std::getline(fields, part, kPart);) parts.push_back(part);
    if (parts.size() < 4) continue;
    Case c;
    c.kind = parts[0];
    c.text = tokens_of(model, parts[2], SHARPI_TOKENIZE_ADD_SPECIAL);
    c.goes_on = tokens_of(model, parts[3]);
    c.goes_on.resize(std::min<size_t>(c.goes_on.size(), kCaseGoesOn));
    for (size_t i = 4; i + 1 < parts.size(); i += 2)
      c.asks.push_back(ask_of(model, parts[i], parts[i + 1]));
    out.push_back(std::move(c));
  }
  return out;
}

/// Paragraphs of the text with their lengths in tokens.
struct Book {
  std::vector<std::string> paragraphs;
  std::vector<uint32_t> lengths;
};

Book book_of(const sharpi_model* model, const std::string& text) {
  Book b;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find("\n\n", at), text.size() - 2) + 2;
    b.paragraphs.push_back(text.substr(at, end - at));
    b.lengths.push_back(static_cast<uint32_t>(tokens_of(model, b.paragraphs.back()).size()));
    at = end;
  }
  return b;
}

Case case_of(const sharpi_model* model, const Book& book, uint32_t length, double depth,
             size_t city, size_t n_others) {
  const size_t others[2] = {(city + 5) % kNumCities, (city + 7) % kNumCities};
  const double places[3] = {depth, depth < 40 ? 65.0 : 20.0, depth < 80 ? 85.0 : 50.0};
  const size_t cities[3] = {city, others[0], others[1]};
  bool there[3] = {};
  std::string text, rest;
  uint32_t n = 0;
  for (size_t i = 0; i < book.paragraphs.size(); ++i) {
    if (n >= length) {
      rest += book.paragraphs[i];
      if (rest.size() > 16 * kGoesOn) break;
      continue;
    }
    for (size_t j = 0; j <= n_others; ++j) {
      if (there[j] || n < places[j] / 100 * length) continue;
      text += said_of(cities[j]) + " " + number_of(cities[j]) + ".\n\n";
      there[j] = true;
    }
    text += book.paragraphs[i];
    n += book.lengths[i];
  }
  Case c;
  c.text = tokens_of(model, text, SHARPI_TOKENIZE_ADD_SPECIAL);
  c.goes_on = tokens_of(model, rest);
  c.goes_on.resize(std::min<size_t>(c.goes_on.size(), kGoesOn));
  c.asks = {ask_of(model, said_of(city), " " + number_of(city))};
  return c;
}

struct Score {
  uint32_t found = 0, n = 0;
  double nll = 0;
};

/// What the session expects of the tokens, the first by the logits that it has: all of them said
/// greedily, and -ln p of each on average. Reads them.
void expect(Chat& chat, const std::vector<int32_t>& tokens, Score* score) {
  const auto n = static_cast<uint32_t>(tokens.size());
  std::vector<std::vector<float>> logits = {chat.logits()};
  chat.prefill(tokens, n);
  for (uint32_t i = n - 1; i > 0; --i) logits.push_back(chat.logits(i));
  bool all = true;
  double sum = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const auto& l = logits[i];
    const auto best = std::max_element(l.begin(), l.end());
    double mass = 0;
    for (const float v : l) mass += static_cast<double>(std::exp(v - *best));
    sum += std::log(mass) + static_cast<double>(*best - l[static_cast<size_t>(tokens[i])]);
    all = all && best - l.begin() == tokens[i];
  }
  score->found += all ? 1 : 0;
  score->n += 1;
  score->nll += sum / n;
}

class Needles {
 public:
  explicit Needles(const Options& o) : o_(o) {}

  void run() {
    const std::string text = read_text(o_.text);
    const bool has_cases = text.find(kEndOfCase) != std::string::npos;
    const double longest = *std::max_element(o_.lengths.begin(), o_.lengths.end());
    const auto n_ctx = has_cases ? o_.n_ctx : static_cast<uint32_t>(longest + 512);
    load_model(n_ctx);
    if (!loaded_.model) return;
    if (has_cases) return all(cases_of(loaded_.model.get(), text));
    const Book book = book_of(loaded_.model.get(), text);
    for (const double length : o_.lengths) {
      for (const double depth : o_.depths) {
        for (uint32_t i = 0; i < o_.n_needles; ++i, ++n_cases_) {
          length_ = static_cast<uint32_t>(length);
          one(case_of(loaded_.model.get(), book, length_, depth, n_cases_ % kNumCities,
                      o_.n_others));
        }
      }
      print();
    }
  }

 private:
  // kind, mode, policy, layer_budget, share
  using Key = std::tuple<std::string, std::string, std::string, int, double>;

  void load_model(uint32_t n_ctx) {
    ModelSetup setup;
    setup.n_threads = o_.n_threads;
    setup.edit = [this, n_ctx](sharpi_plan_params* p, sharpi_session_params* s) {
      p->max_logit_rows = kCaseGoesOn;
      s->n_ctx = n_ctx;
      s->k_dtype = s->v_dtype = o_.kv;
      s->capture_window = 64;
      s->replay = o_.every == 0 ? 0 : 1;
      s->replay_every = std::max(o_.every, 1u);
      if (o_.does("bounded")) p->n_chunk = 128;
      params_ = *s;
    };
    loaded_ = load(o_.model, setup);
  }

  void all(const std::vector<Case>& cases) {
    for (const Case& c : cases) {
      if (!o_.kinds.empty() && o_.kinds.find(c.kind) == std::string::npos) continue;
      std::fprintf(stderr, "%s: %zu tokens\n", c.kind.c_str(), c.text.size());
      one(c);
    }
    print();
  }

  void one(const Case& c) {
    Chat chat(loaded_.model.get());
    chat.prefill(c.text);
    const bool goes_on = o_.does("text") && !c.goes_on.empty();
    if (goes_on) {
      Chat whole = chat.fork();
      expect(whole, c.goes_on, &scores_[{"goes_on", "text", "whole", 0, 100}]);
    }
    each_policy([&](const Named& p, sharpi_layer_budget layers, double share) {
      if (!goes_on) return;
      Chat kept = chat.fork();
      compact(kept, p, layers, share, nullptr);
      expect(kept, c.goes_on, &scores_[{"goes_on", "text", p.name, layers, share}]);
    });
    each_policy([&](const Named& p, sharpi_layer_budget layers, double share) {
      if (!o_.does("after")) return;
      Chat kept = chat.fork();
      compact(kept, p, layers, share, nullptr);
      for (const Ask& a : c.asks) {
        Chat asked = kept.fork();
        asked.prefill(a.question);
        expect(asked, a.answer, &scores_[{c.kind, "after", p.name, layers, share}]);
      }
    });
    for (const Ask& a : c.asks) known(c, chat, a);
  }

  template <class Body>
  void each_policy(Body&& body) const {
    for (const Named& p : kPolicies) {
      if (!o_.policies.empty() && o_.policies.find(p.name) == std::string::npos) continue;
      for (const double layers : o_.layers) {
        const bool one_set = p.policy == SHARPI_POLICY_GLOBAL;
        if (one_set && layers != 0) continue;
        for (const double share : o_.shares)
          body(p, static_cast<sharpi_layer_budget>(layers), share);
      }
    }
  }

  /// A question that the compaction knows, and the whole cache's answer.
  void known(const Case& c, const Chat& chat, const Ask& a) {
    Chat asked = chat.fork();
    asked.prefill(a.question);
    Chat whole = asked.fork();
    expect(whole, a.answer, &scores_[{c.kind, "whole", "whole", 0, 100}]);
    each_policy([&](const Named& p, sharpi_layer_budget layers, double share) {
      if (o_.does("bounded")) bounded(c, a, p, share);
      if (o_.does("in")) {
        Chat kept = asked.fork();
        compact(kept, p, layers, share, nullptr);
        expect(kept, a.answer, &scores_[{c.kind, "in", p.name, layers, share}]);
      }
      if (o_.does("probe")) {
        Chat kept = chat.fork();
        compact(kept, p, layers, share, &a.question);
        kept.prefill(a.question);
        expect(kept, a.answer, &scores_[{c.kind, "probe", p.name, layers, share}]);
      }
    });
  }

  void bounded(const Case& c, const Ask& a, const Named& p, double share) {
    sharpi_session_params params = params_;
    params.kv_budget = static_cast<uint32_t>(static_cast<double>(c.text.size()) * share / 100);
    params.policy = p.policy;
    params.lookahead = 1;
    params.sinks = o_.sinks;
    params.recency = o_.recency;
    Chat chat(loaded_.model.get(), &params);
    std::vector<int32_t> all = c.text;
    all.insert(all.end(), a.question.begin(), a.question.end());
    chat.prefill(all);
    expect(chat, a.answer, &scores_[{c.kind, "bounded", p.name, 0, share}]);
  }

  void compact(Chat& chat, const Named& p, sharpi_layer_budget layers, double share,
               const std::vector<int32_t>* probe) const {
    const uint32_t rows = chat.info().n_tokens;
    sharpi_compact_params params =
        compact_params(p.policy, static_cast<uint32_t>(rows * share / 100));
    const bool pools = p.policy >= SHARPI_POLICY_SNAPKV && p.policy <= SHARPI_POLICY_VALUE;
    if (o_.span != 0 && !pools && p.policy != SHARPI_POLICY_GLOBAL) params.span = o_.span;
    if (o_.pool != 0 && pools) params.pool_kernel = o_.pool;
    params.sinks = o_.sinks;
    params.recency = o_.recency;
    if (p.policy != SHARPI_POLICY_GLOBAL) params.layer_budget = layers;
    if (probe != nullptr && p.policy != SHARPI_POLICY_REPLAY) {
      params.probe = probe->data();
      params.n_probe = static_cast<uint32_t>(probe->size());
    }
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_compact(chat.get(), &params, nullptr, &e), SHARPI_OK) << text_of(e);
  }

  void print() {
    for (const auto& [key, s] : scores_) {
      const auto& [kind, mode, policy, layers, share] = key;
      std::printf("%s,%s,%s,%s,%s,%d,%u,%g,%u,%u,%.4f\n", loaded_.info.architecture,
                  o_.kv_name.c_str(), kind.c_str(), mode.c_str(), policy.c_str(), layers, length_,
                  share, s.found, s.n, s.nll / s.n);
    }
    std::fflush(stdout);
    scores_.clear();
  }

  const Options& o_;
  Loaded loaded_;
  sharpi_session_params params_ = {};
  std::map<Key, Score> scores_;
  uint32_t length_ = 0;
  size_t n_cases_ = 0;
};

bool parse(int argc, char** argv, Options* o) {
  if (argc < 3 || argc % 2 == 0) return false;
  o->model = argv[1];
  o->text = argv[2];
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    const auto numbers = [&] {
      std::vector<double> out;
      std::stringstream list(value);
      for (std::string one; std::getline(list, one, ',');) out.push_back(std::stod(one));
      return out;
    };
    const auto count = [&] { return static_cast<uint32_t>(std::stoul(value)); };
    if (flag == "--lengths")
      o->lengths = numbers();
    else if (flag == "--depths")
      o->depths = numbers();
    else if (flag == "--shares")
      o->shares = numbers();
    else if (flag == "--modes")
      o->modes = value;
    else if (flag == "--policies")
      o->policies = value;
    else if (flag == "--needles")
      o->n_needles = count();
    else if (flag == "--span")
      o->span = count();
    else if (flag == "--pool")
      o->pool = count();
    else if (flag == "--sinks")
      o->sinks = count();
    else if (flag == "--recency")
      o->recency = count();
    else if (flag == "--layers")
      o->layers = numbers();
    else if (flag == "--kinds")
      o->kinds = value;
    else if (flag == "--replay")
      o->every = count();
    else if (flag == "--threads")
      o->n_threads = count();
    else if (flag == "--others")
      o->n_others = std::min(count(), 2u);
    else if (flag == "--kv" && bench::kv_of_name(value) != nullptr) {
      o->kv_name = value;
      o->kv = bench::kv_of_name(value)->dtype;
    } else {
      return false;
    }
  }
  return !o->lengths.empty() && !o->layers.empty();
}

}  // namespace
}  // namespace sharpi::testing

int main(int argc, char** argv) {
  sharpi::testing::Options o;
  if (!parse(argc, argv, &o)) {
    std::fprintf(
        stderr,
        "usage: text_needles MODEL.gguf TEXT|CASES [--lengths N,...] [--depths PERCENT,...] "
        "[--shares PERCENT,...] [--modes in,probe,after,text] [--policies a,b] ...\n");
    return 2;
  }
  sharpi::testing::Needles(o).run();
  return 0;
}
