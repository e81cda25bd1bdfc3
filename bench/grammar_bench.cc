// SPDX-License-Identifier: MIT
// How long grammars take to compile, and their masks to make:
//   grammar_bench MODEL.gguf SCHEMAS [TEXTS]
// SCHEMAS: a JSON Schema on each line. Of each grammar TEXTS texts (8) are written with tokens of
// chance. Prints median, 99th percentile and the worst of both in microseconds of this thread, and
// the places whose masks took longest.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "handles.h"

namespace {

using GrammarPtr = std::unique_ptr<sharpi_grammar, decltype(&sharpi_grammar_destroy)>;
using MatcherPtr = std::unique_ptr<sharpi_matcher, decltype(&sharpi_matcher_destroy)>;

constexpr size_t kShown = 12;
constexpr int kMaxTokens = 120;

struct Mask {
  double us = 0.0, again = 0.0;
  size_t schema = 0;
  bool was_made = false;
  std::string behind;
};

// Of this thread alone: others may be at work on the machine.
double thread_us() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

void print(const char* what, std::vector<double> us) {
  if (us.empty()) return;
  std::sort(us.begin(), us.end());
  std::printf("%s: %zu, median %.1f us, 99th percentile %.1f us, worst %.1f us\n", what, us.size(),
              us[us.size() / 2], us[us.size() * 99 / 100], us.back());
}

// Writes texts and takes the time of their masks.
class Writer {
 public:
  Writer(const sharpi_model* model, std::vector<Mask>* masks) : model_(model), masks_(masks) {
    sharpi_model_summary info{};
    info.struct_size = sizeof info;
    (void)sharpi_model_info(model, &info, nullptr);
    bits_.resize((info.n_vocab + 31) / 32);
  }

  void write(const sharpi_grammar* grammar, size_t schema) {
    sharpi_matcher* raw = nullptr;
    if (sharpi_matcher_create(grammar, &raw, nullptr) != SHARPI_OK) return;
    const MatcherPtr matcher(raw, &sharpi_matcher_destroy);
    std::string text;
    for (int i = 0; i < kMaxTokens && sharpi_matcher_progress(raw) != SHARPI_MATCH_COMPLETE; ++i) {
      const double us = mask(raw), again = mask(raw);
      if (us < 0) return;
      // One that was made before takes as long as the same once more.
      masks_->push_back({us, again, schema, us > 2 * again, text});
      // What closes a string, an array or an object, now and then: chance alone seldom does.
      static constexpr const char* kClosing[] = {"\"", "]", "}"};
      const char* closing = kClosing[chance_() % 3];
      if (chance_() % 3 == 0 && sharpi_matcher_accept_text(raw, closing, 1, nullptr) == SHARPI_OK) {
        text += closing;
        continue;
      }
      if (!go_on(raw, &text)) return;
    }
  }

 private:
  double mask(sharpi_matcher* matcher) {
    const double start = thread_us();
    uint32_t words = 0;
    const auto n = static_cast<uint32_t>(bits_.size());
    const sharpi_status status = sharpi_matcher_mask(matcher, bits_.data(), n, &words, nullptr);
    return status == SHARPI_OK ? thread_us() - start : -1.0;
  }

  bool go_on(sharpi_matcher* matcher, std::string* text) {
    std::vector<int32_t> allowed;
    for (size_t i = 0; i < bits_.size() * 32; ++i) {
      if ((bits_[i / 32] >> (i % 32) & 1u) != 0) allowed.push_back(static_cast<int32_t>(i));
    }
    if (allowed.empty()) return false;
    const int32_t token = allowed[chance_() % allowed.size()];
    char piece[512];
    size_t length = 0;
    const uint32_t flags = SHARPI_DETOKENIZE_SPECIAL;
    (void)sharpi_detokenize(model_, &token, 1, flags, piece, sizeof piece, &length, nullptr);
    text->append(piece, length);
    return sharpi_matcher_accept(matcher, token, nullptr) == SHARPI_OK;
  }

  const sharpi_model* model_;
  std::vector<Mask>* masks_;
  std::vector<uint32_t> bits_;
  std::mt19937 chance_{7};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    return std::fprintf(stderr, "usage: grammar_bench MODEL.gguf SCHEMAS [TEXTS]\n"), 2;
  }
  sharpi_error e = SHARPI_ERROR_INIT;
  sharpi_model* raw = nullptr;
  if (sharpi_model_open_text(argv[1], &raw, &e) != SHARPI_OK) {
    return std::fprintf(stderr, "%s\n", e.text), 1;
  }
  const sharpi::bench::ModelPtr model(raw);
  const int n_texts = argc > 3 ? std::atoi(argv[3]) : 8;
  std::vector<Mask> masks;
  std::vector<double> compiled;
  Writer writer(raw, &masks);
  std::ifstream lines(argv[2]);
  size_t n_refused = 0, schema = 0;
  for (std::string line; std::getline(lines, line); ++schema) {
    sharpi_grammar_params p;
    sharpi_grammar_params_init(&p, sizeof p);
    p.kind = SHARPI_GRAMMAR_JSON_SCHEMA;
    p.flags = SHARPI_GRAMMAR_LENIENT;
    p.text = line.data();
    p.text_len = line.size();
    sharpi_grammar* made = nullptr;
    const double start = thread_us();
    if (sharpi_grammar_compile(raw, &p, &made, &e) != SHARPI_OK) {
      ++n_refused;
      continue;
    }
    // The first one of a model sorts its vocabulary.
    if (schema != 0) compiled.push_back(thread_us() - start);
    const GrammarPtr grammar(made, &sharpi_grammar_destroy);
    for (int i = 0; i < n_texts; ++i) writer.write(made, schema);
  }
  std::printf("%zu schemas, %zu refused\n", schema, n_refused);
  print("compiled", compiled);
  std::vector<double> us, of_new, again;
  for (const Mask& mask : masks) {
    us.push_back(mask.us);
    again.push_back(mask.again);
    if (mask.was_made) of_new.push_back(mask.us);
  }
  print("masks", us);
  print("masks of states that were not seen", of_new);
  print("masks once more", again);
  std::sort(masks.begin(), masks.end(), [](const Mask& a, const Mask& b) { return a.us > b.us; });
  for (size_t i = 0; i < std::min(kShown, masks.size()); ++i) {
    std::printf("%8.1f us: line %zu behind %s\n", masks[i].us, masks[i].schema + 1,
                masks[i].behind.c_str());
  }
  return 0;
}
