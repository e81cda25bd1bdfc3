// SPDX-License-Identifier: MIT
// Perplexity of 20 000 tokens of a book in `fast`, for every codec of KV rows, against the number
// that HF transformers has for the same file in f32 (tools/models/make_goldens.py). Every case
// computes on one thread: CTest runs as many of them side by side as there are cores.
#include <string>

#include "models/real_files.h"
#include "models/text_reader.h"
#include "support/golden.h"
#include "support/turn.h"

namespace sharpi::testing {
namespace {

/// K and V rows, and between which bounds the perplexity lies in units of the reference's. Values
/// in four bits cost more than half a percent: 1.0055 to 1.0064 are measured.
struct Codec {
  const char* name;
  sharpi_kv_dtype k, v;
  double least, most;
};
constexpr Codec kCodecs[] = {
    {"f32", SHARPI_KV_F32, SHARPI_KV_F32, 0.995, 1.005},
    {"bf16", SHARPI_KV_BF16, SHARPI_KV_BF16, 0.995, 1.005},
    {"q8_0", SHARPI_KV_Q8_0, SHARPI_KV_Q8_0, 0.995, 1.005},
    {"q8_0_q4", SHARPI_KV_Q8_0, SHARPI_KV_Q4, 0.995, 1.008},
};

struct Row {
  RealFile file;
  Codec codec;
  uint64_t at = 0;  // in its file's turns, where each commit has one codec
};
void PrintTo(const Row& row, std::ostream* out) {
  *out << row.file.file << ", " << row.codec.name;
}
std::vector<Row> all_rows() {
  std::vector<Row> rows;
  uint64_t at = 0;
  for (const RealFile& file : {kGemma3, kSmolLm2}) {
    for (const Codec& codec : kCodecs) rows.push_back({file, codec, at++});
    at += 2;
  }
  return rows;
}

class BookPerplexity : public ::testing::TestWithParam<Row> {
 protected:
  static Loaded open(const std::string& path) {
    ModelSetup setup;
    setup.n_threads = 1;
    setup.edit = [](sharpi_plan_params* p, sharpi_session_params* s) {
      p->arithmetic = SHARPI_ARITHMETIC_FAST;
      p->max_logit_rows = kLogitRows;
      p->n_chunk = kLogitRows;
      s->n_ctx = 2048;
      s->k_dtype = GetParam().codec.k;
      s->v_dtype = GetParam().codec.v;
    };
    return load(path, setup);
  }
};

TEST_P(BookPerplexity, OfFastArithmeticIsTheReferences) {
  const auto& [file, codec, at_turn] = GetParam();
  if (!Turn(0, std::size(kCodecs)).has(at_turn)) GTEST_SKIP() << not_this_turn();
  const std::string folder = SHARPI_TEST_MODELS, path = find_real_file(file);
  if (path.empty()) GTEST_SKIP() << absent_text(file);
  auto golden = load_golden(folder + "/" + file.name + ".golden.json");
  ASSERT_TRUE(golden.is_ok()) << golden.status().text();
  const GoldenPerplexity& want = golden.value().perplexity;
  ASSERT_EQ(want.n_tokens, 20000u);
  const Loaded loaded = open(path);
  ASSERT_TRUE(loaded.model);
  const std::vector<int32_t> tokens =
      tokens_of(loaded.model.get(), read_text(folder + "/alice.txt"));
  ASSERT_GE(tokens.size(), want.n_tokens);
  // A file that begins texts with BOS begins each window with it, as the reference did.
  const bool bos = golden.value().arch == "gemma3";
  TextReader reader(loaded);
  for (uint32_t at = 0; at < want.n_tokens; at += want.window) {
    const uint32_t end = std::min(at + want.window, want.n_tokens);
    std::vector<int32_t> window(tokens.begin() + at, tokens.begin() + end);
    if (bos) window.insert(window.begin(), loaded.info.bos);
    ASSERT_NO_FATAL_FAILURE(reader.read(window));
  }
  const uint32_t n_windows = (want.n_tokens + want.window - 1) / want.window;
  ASSERT_EQ(reader.n_predicted(), want.n_tokens - (bos ? 0 : n_windows));
  const double ratio = std::exp(reader.mean() - want.nll);
  RecordProperty("perplexity", std::to_string(std::exp(reader.mean())));
  RecordProperty("ratio", std::to_string(ratio));
  EXPECT_GE(ratio, codec.least);
  EXPECT_LE(ratio, codec.most);
}

INSTANTIATE_TEST_SUITE_P(Files, BookPerplexity, ::testing::ValuesIn(all_rows()),
                         [](const auto& row) {
                           std::string name =
                               std::string(row.param.file.name) + "_" + row.param.codec.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sharpi::testing
