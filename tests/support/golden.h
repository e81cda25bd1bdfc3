// SPDX-License-Identifier: MIT
// Reads the golden files of the tiny trained models (token ids, logits and greedy continuations
// that another implementation computed from the same weights), and says which models are at hand.
// Use: add ../support/golden.cc to the sources of a sharpi_test.
// Thread rule: plain values, pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sharpi::testing {

struct GoldenCase {
  std::vector<int32_t> tokens;
  std::vector<std::array<int32_t, 5>> top5;       // [n_tokens], best first
  std::vector<std::array<float, 5>> top5_logits;  // [n_tokens]
  double nll = 0;                                 // mean over tokens 1.., natural log
  std::vector<int32_t> greedy;                    // continues `tokens`
  // Models with an MTP head only (else empty): its prediction from the last pair of hidden state
  // and next token, and the share of positions where its argmax equals the trunk's.
  std::vector<int32_t> mtp_top5_last;
  std::vector<float> mtp_top5_logits_last;
  std::optional<double> mtp_agrees;
};

struct GoldenNeedle {
  std::vector<int32_t> prompt;  // ends where the answer begins
  std::vector<int32_t> answer;  // ends with the end-of-turn token
};

/// Of a real model on tests/models/alice.txt, in windows (tools/models/make_goldens.py).
struct GoldenPerplexity {
  uint32_t n_tokens = 0, window = 0;
  uint64_t hash = 0;                // FNV-1a of the tokens as 32-bit numbers
  double nll = 0;                   // mean over the predicted tokens, natural log
  std::vector<double> window_sums;  // of each window
};

struct Golden {
  std::string arch;
  std::string model;  // file name of the GGUF
  std::vector<GoldenCase> cases;
  std::vector<GoldenNeedle> needles;
  GoldenPerplexity perplexity;  // real models only
};

/// kNotFound or kIo if the file cannot be read; kFormat names the byte where the text goes wrong.
Result<Golden> load_golden(const std::string& path);
/// The same from text in memory.
Result<Golden> parse_golden(std::string_view json);

struct Fixture {
  std::string name;  // "tiny-qwen3"
  std::string gguf_path;
  std::string golden_path;
};

struct FixtureList {
  std::vector<Fixture> available;
  std::vector<std::string> missing;  // names of the known models of which a file is absent
};

/// The names of the tiny models, in one place. Trained ones answer needles. Random ones
/// (tools/models/make_tiny.py) are of architectures without a trained one and of what else those do
/// not cover: kinds of rope scaling, biases, one window for all layers.
const std::vector<std::string>& trained_models();
const std::vector<std::string>& random_models();
/// Both, all of which the room of GPU tiers has launches for.
const std::vector<std::string>& all_models();
/// Whether a model's stored rows are keys and values in one, which have one codec.
bool stores_one_row(std::string_view name);
/// Those with rows that compaction can evict: not the one whose layers all have a window.
const std::vector<std::string>& compactable_models();

/// All known models, looked for in tests/fixtures and then in the folder that the environment
/// variable SHARPI_FIXTURES names; some with a golden in the former are made (made_models.h). A
/// model is available if both its files are there.
FixtureList list_fixtures();
std::optional<Fixture> find_fixture(std::string_view name);
/// One line for GTEST_SKIP: which models are not at hand, and how to provide them. Empty if none.
std::string missing_fixtures_text(const FixtureList& list);

}  // namespace sharpi::testing
