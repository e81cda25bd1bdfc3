// SPDX-License-Identifier: MIT
// What arithmetic and KV codecs cost in quality on a real text: perplexity, and how far the
// predictions are from those of exact arithmetic with f32 rows.
//   quality_bench MODEL.gguf TEXT [--golden GOLDEN.json] [--tokens N] [--window N]
//                 [--exact K/V,K/V,...] [--fast K/V,...] [--threads N] [--isa 0..4]
// The text's first tokens go through windows that know nothing of each other (with BOS where the
// file begins texts with it), every window through all settings side by side. K and V are f32,
// bf16, q8_0 or q4. Columns, as CSV: arithmetic,k,v,perplexity, its ratio to the golden's (HF
// transformers in f32) over the same windows, mean KL in nats from exact with f32 rows, the same
// from f32 rows of the same arithmetic, and the share of positions whose best token is that of
// exact with f32 rows.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <span>
#include <sstream>
#include <thread>

#include "kv_names.h"
#include "models/real_files.h"
#include "support/golden.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kRows = 128;  // logit rows read together

using Codec = bench::KvName;
/// All but auto; f32 is the first.
constexpr auto kCodecs = std::span(bench::kKvNames).subspan<1>();
const Codec* const kF32 = &kCodecs[0];

const Codec* codec_named(const std::string& name) {
  const Codec* c = bench::kv_of_name(name);
  return c != nullptr && c->dtype != SHARPI_KV_AUTO ? c : nullptr;
}

struct Setting {
  sharpi_arithmetic arithmetic;
  const Codec *k, *v;
};

struct Options {
  std::string model, text, golden;
  uint32_t n_tokens = 20000, window = 1024, n_threads = 2;
  sharpi_cpu_isa isa = SHARPI_ISA_AUTO;
  std::string exact = "f32/f32,bf16/bf16,q8_0/q8_0,q8_0/q4,q4/q4", fast;
};

/// The settings that are compared. The first is what the others are held against.
bool settings_of(const Options& o, std::vector<Setting>* out) {
  out->push_back({SHARPI_ARITHMETIC_EXACT, kF32, kF32});
  const auto add = [&](sharpi_arithmetic arithmetic, const std::string& list) {
    const auto first = static_cast<std::ptrdiff_t>(out->size());
    std::stringstream pairs(list);
    for (std::string pair; std::getline(pairs, pair, ',');) {
      const size_t slash = pair.find('/');
      if (slash == std::string::npos) return false;
      const Codec* k = codec_named(pair.substr(0, slash));
      const Codec* v = codec_named(pair.substr(slash + 1));
      if (k == nullptr || v == nullptr) return false;
      const bool base = arithmetic == SHARPI_ARITHMETIC_EXACT && k == kF32 && v == kF32;
      if (base) continue;
      // What others of the same arithmetic are held against comes before them.
      const bool leads = k == kF32 && v == kF32;
      out->insert(leads ? out->begin() + first : out->end(), {arithmetic, k, v});
    }
    return true;
  };
  std::string fast = o.fast;
  for (const Codec& k : kCodecs) {
    for (const Codec& v : kCodecs) {
      if (o.fast.empty()) fast += std::string(fast.empty() ? "" : ",") + k.name + "/" + v.name;
    }
  }
  return add(SHARPI_ARITHMETIC_EXACT, o.exact) && add(SHARPI_ARITHMETIC_FAST, fast);
}

/// Probabilities of one row and their natural logarithms, and where the largest is.
struct Row {
  std::vector<float> p, log_p;
  int32_t best = 0;
  void set(std::vector<float> logits) {
    log_p = std::move(logits);
    best = static_cast<int32_t>(std::max_element(log_p.begin(), log_p.end()) - log_p.begin());
    const float top = log_p[static_cast<size_t>(best)];
    p.resize(log_p.size());
    double all = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      p[i] = std::exp(log_p[i] - top);
      all += static_cast<double>(p[i]);
    }
    const float log_all = top + static_cast<float>(std::log(all));
    const float scale = static_cast<float>(1 / all);
    for (float& v : log_p) v -= log_all;
    for (float& v : p) v *= scale;
  }
};

double divergence(const Row& from, const Row& to) {
  double sum = 0;
  for (size_t i = 0; i < from.log_p.size(); ++i) {
    sum += static_cast<double>(from.p[i]) * static_cast<double>(from.log_p[i] - to.log_p[i]);
  }
  return sum;
}

struct Sums {
  double nll = 0, kl_exact = 0, kl_same = 0;
  uint64_t same_best = 0;
  void add(const Sums& s) {
    nll += s.nll;
    kl_exact += s.kl_exact;
    kl_same += s.kl_same;
    same_best += s.same_best;
  }
};

class Quality {
 public:
  Quality(const Options& o, std::vector<Setting> settings)
      : o_(o), settings_(std::move(settings)), sums_(settings_.size()) {}

  bool run() {
    for (const Setting& s : settings_) {
      models_.push_back(load(o_.model, setup_for(s)));
      if (!models_.back().model) return false;
    }
    const sharpi_model* model = models_[0].model.get();
    std::vector<int32_t> tokens = tokens_of(model, read_text(o_.text));
    tokens.resize(std::min<size_t>(tokens.size(), o_.n_tokens));
    const bool bos = tokens_of(model, "a", SHARPI_TOKENIZE_ADD_SPECIAL)[0] == models_[0].info.bos;
    for (size_t at = 0; at < tokens.size(); at += o_.window) {
      const size_t end = std::min(tokens.size(), at + o_.window);
      std::vector<int32_t> window(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                                  tokens.begin() + static_cast<std::ptrdiff_t>(end));
      if (bos) window.insert(window.begin(), models_[0].info.bos);
      run_window(window);
      std::fprintf(stderr, "\r%zu of %zu tokens", end, tokens.size());
    }
    std::fprintf(stderr, "\n");
    return true;
  }

  void print(const GoldenPerplexity* golden) const {
    double want = 0;
    const bool whole = golden != nullptr && golden->window == o_.window &&
                       golden->window_sums.size() >= n_windows_;
    for (size_t w = 0; whole && w < n_windows_; ++w) want += golden->window_sums[w];
    const auto n = static_cast<double>(n_predicted_);
    if (golden != nullptr && !whole && golden->window == o_.window && golden->nll > 0 &&
        golden->n_tokens == o_.n_tokens) {
      want = golden->nll * n;
    }
    std::printf("arithmetic,k,v,perplexity,ratio,kl_exact,kl_same,same_best\n");
    for (size_t i = 0; i < settings_.size(); ++i) {
      const Setting& s = settings_[i];
      std::printf("%s,%s,%s,%.4f,", s.arithmetic == SHARPI_ARITHMETIC_EXACT ? "exact" : "fast",
                  s.k->name, s.v->name, std::exp(sums_[i].nll / n));
      if (want > 0) std::printf("%.5f", std::exp((sums_[i].nll - want) / n));
      std::printf(",%.6f,%.6f,%.5f\n", sums_[i].kl_exact / n, sums_[i].kl_same / n,
                  static_cast<double>(sums_[i].same_best) / n);
    }
  }

 private:
  ModelSetup setup_for(const Setting& s) const {
    ModelSetup setup;
    setup.n_threads = o_.n_threads;
    setup.isa = o_.isa;
    const uint32_t n_ctx = o_.window + 1;
    setup.edit = [=](sharpi_plan_params* p, sharpi_session_params* session) {
      p->arithmetic = s.arithmetic;
      p->max_logit_rows = kRows;
      p->n_chunk = kRows;
      session->n_ctx = n_ctx;
      session->k_dtype = s.k->dtype;
      session->v_dtype = s.v->dtype;
    };
    return setup;
  }

  void run_window(const std::vector<int32_t>& window) {
    std::vector<Chat> chats;
    for (const Loaded& l : models_) chats.emplace_back(l.model.get());
    for (size_t at = 0; at < window.size(); at += kRows) {
      const auto n = static_cast<uint32_t>(std::min<size_t>(kRows, window.size() - at));
      const int32_t* next = window.data() + at + 1;
      const uint32_t n_next = at + n == window.size() ? n - 1 : n;
      for (size_t i = 0; i < chats.size(); ++i) {
        chats[i].prefill(window.data() + at, n, n);
        compare(i, chats[i], n, {next, next + n_next});
      }
      n_predicted_ += n_next;
    }
    ++n_windows_;
  }

  /// Row r of a call of n predicts next[r].
  void compare(size_t i, const Chat& chat, uint32_t n, const std::vector<int32_t>& next) {
    const bool base = settings_[i].k == kF32 && settings_[i].v == kF32;
    std::vector<Row>& same = settings_[i].arithmetic == SHARPI_ARITHMETIC_EXACT ? exact_ : fast_;
    if (base) same.resize(kRows);
    const auto part = [&](uint32_t first, Sums* sums) {
      Row own;
      for (uint32_t r = first; r < next.size(); r += o_.n_threads) {
        Row& row = base ? same[r] : own;
        row.set(chat.logits(n - 1 - r));
        sums->nll -= static_cast<double>(row.log_p[static_cast<size_t>(next[r])]);
        sums->same_best += row.best == exact_[r].best ? 1 : 0;
        if (i == 0) continue;
        sums->kl_exact += divergence(exact_[r], row);
        if (!base && same.size() == kRows) sums->kl_same += divergence(same[r], row);
      }
    };
    std::vector<Sums> sums(o_.n_threads);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < o_.n_threads; ++t) threads.emplace_back(part, t, &sums[t]);
    for (std::thread& t : threads) t.join();
    for (const Sums& s : sums) sums_[i].add(s);
  }

  const Options& o_;
  std::vector<Setting> settings_;
  std::vector<Sums> sums_;
  std::vector<Loaded> models_;
  std::vector<Row> exact_, fast_;  // of f32 rows, in the call under way
  uint64_t n_predicted_ = 0;
  size_t n_windows_ = 0;
};

bool parse(int argc, char** argv, Options* o) {
  if (argc < 3 || argc % 2 == 0) return false;
  o->model = argv[1];
  o->text = argv[2];
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    const auto count = [&] { return static_cast<uint32_t>(std::stoul(value)); };
    if (flag == "--golden")
      o->golden = value;
    else if (flag == "--tokens")
      o->n_tokens = count();
    else if (flag == "--window")
      o->window = count();
    else if (flag == "--exact")
      o->exact = value;
    else if (flag == "--fast")
      o->fast = value;
    else if (flag == "--threads")
      o->n_threads = count();
    else if (flag == "--isa")
      o->isa = count();
    else
      return false;
  }
  return o->n_threads != 0 && o->window > 1;
}

}  // namespace
}  // namespace sharpi::testing

int main(int argc, char** argv) {
  using namespace sharpi::testing;
  Options o;
  std::vector<Setting> settings;
  if (!parse(argc, argv, &o) || !settings_of(o, &settings)) {
    std::fprintf(stderr,
                 "usage: quality_bench MODEL.gguf TEXT [--golden GOLDEN.json] [--tokens N] "
                 "[--window N] [--exact K/V,...] [--fast K/V,...] [--threads N] [--isa N]\n");
    return 2;
  }
  GoldenPerplexity golden;
  if (!o.golden.empty()) {
    auto read = load_golden(o.golden);
    if (!read.is_ok()) {
      std::fprintf(stderr, "%s\n", read.status().text().c_str());
      return 1;
    }
    golden = read.value().perplexity;
  }
  Quality quality(o, settings);
  if (!quality.run()) return 1;
  quality.print(o.golden.empty() ? nullptr : &golden);
  return 0;
}
