// SPDX-License-Identifier: MIT
#include "engine/engine_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sharpi::testing {

std::string short_name(const std::string& model) {
  std::string name = model.substr(5);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string model_name(const ::testing::TestParamInfo<std::string>& info) {
  return short_name(info.param);
}

std::string recipe_name(const ::testing::TestParamInfo<test::ModelRecipe>& info) {
  std::string name = info.param.arch + "_" + std::to_string(info.index);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

const char* dtype_text(sharpi_kv_dtype d) {
  switch (d) {
    case SHARPI_KV_F32:
      return "f32";
    case SHARPI_KV_BF16:
      return "bf16";
    case SHARPI_KV_Q8_0:
      return "q8_0";
    case SHARPI_KV_Q4:
      return "q4";
    default:
      return "auto";
  }
}

std::vector<sharpi_kv_dtype> stored_dtypes() {
  return {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0, SHARPI_KV_Q4};
}

bool same_bits(const Logits& a, const Logits& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double distance(const Logits& a, const Logits& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most;
}

size_t best_of(const Logits& l) {
  return static_cast<size_t>(std::max_element(l.begin(), l.end()) - l.begin());
}

float gap_of(const Logits& l) {
  const size_t best = best_of(l);
  float second = -INFINITY;
  for (size_t i = 0; i < l.size(); ++i) {
    if (i != best) second = std::max(second, l[i]);
  }
  return l[best] - second;
}

void expect_same_rows(const std::vector<Logits>& got, const std::vector<Logits>& want,
                      const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t p = 0; p < want.size(); ++p) {
    ASSERT_TRUE(same_bits(got[p], want[p]))
        << what << ": row " << p << " differs by " << distance(got[p], want[p]);
  }
}

void expect_same_argmax(const std::vector<Logits>& got, const std::vector<Logits>& want,
                        const std::string& what, float least_gap) {
  ASSERT_EQ(got.size(), want.size()) << what;
  size_t n_wide = 0;
  for (size_t p = 0; p < want.size(); ++p) {
    if (gap_of(want[p]) <= least_gap) continue;
    ++n_wide;
    ASSERT_EQ(best_of(got[p]), best_of(want[p])) << what << ": row " << p;
  }
  EXPECT_GT(n_wide, want.size() / 4) << "the prompt says too little";
}

double rms_of(const std::vector<Logits>& rows, const std::vector<Logits>* other) {
  double sum = 0;
  size_t n = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < rows[r].size(); ++i, ++n) {
      const double x = double{rows[r][i]} - (other != nullptr ? (*other)[r][i] : 0.0f);
      sum += x * x;
    }
  }
  return std::sqrt(sum / static_cast<double>(n));
}

std::vector<Logits> rows_of(const Chat& chat, uint32_t n) {
  std::vector<Logits> out;
  for (uint32_t i = n; i-- > 0;) out.push_back(chat.logits(i));
  return out;
}

std::vector<uint32_t> reachable(const Chat& chat) {
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  std::vector<uint32_t> out(1100);
  EXPECT_EQ(sharpi_session_reachable(chat.get(), out.data(), 1100, &n, &e), SHARPI_OK)
      << text_of(e);
  out.resize(n);
  return out;
}

std::vector<char> saved(const Chat& chat) {
  uint64_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_save(chat.get(), nullptr, 0, &n, &e), SHARPI_E_BUFFER_TOO_SMALL)
      << text_of(e);
  std::vector<char> blob(n);
  EXPECT_EQ(sharpi_session_save(chat.get(), blob.data(), n, &n, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(n, blob.size());
  return blob;
}

std::vector<int32_t> slice(const std::vector<int32_t>& v, size_t from, size_t to) {
  return {v.begin() + static_cast<std::ptrdiff_t>(from),
          v.begin() + static_cast<std::ptrdiff_t>(to)};
}

ModelSetup setup_with(Edit edit, uint32_t n_threads) {
  ModelSetup s;
  s.n_threads = n_threads;
  s.edit = std::move(edit);
  return s;
}

test::ModelRecipe for_tier(test::ModelRecipe recipe) {
  if (!on_gpu()) return recipe;
  recipe.head_dim = recipe.head_dim_swa = 64;
  recipe.delta_dim = 32;
  return recipe;
}

void ModelTest::open(const std::string& name) {
  fixture_ = find_fixture(name);
  if (!fixture_) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
  auto golden = load_golden(fixture_->golden_path);
  ASSERT_TRUE(golden.is_ok()) << golden.status().text();
  golden_ = golden.take();
}

std::vector<int32_t> ModelTest::tokens(size_t n) const {
  const std::vector<int32_t>& from = golden_.cases.back().tokens;
  std::vector<int32_t> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = from[i % from.size()];
  return out;
}

MadeModel::MadeModel(const test::ModelRecipe& recipe) : n_vocab_(recipe.n_vocab) {
  EXPECT_TRUE(test::ModelFile(for_tier(recipe)).write(file_.path()));
}

std::vector<int32_t> MadeModel::tokens(size_t n, uint32_t seed) const {
  std::vector<int32_t> out(n);
  uint64_t x = seed * 0x9E3779B97F4A7C15ull;
  for (int32_t& t : out) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    t = static_cast<int32_t>((x >> 33) % n_vocab_);
  }
  return out;
}

void spoil(const std::string& path, uint32_t n_embd) {
  const auto file = GgufFile::open(path);
  ASSERT_TRUE(file.is_ok()) << file.status().text();
  const GgufTensor* norm = file.value()->find_tensor("output_norm.weight");
  ASSERT_NE(norm, nullptr);
  const std::vector<float> nan(n_embd, NAN);
  std::FILE* f = std::fopen(path.c_str(), "r+b");
  ASSERT_NE(f, nullptr);
  ASSERT_EQ(std::fseek(f, static_cast<long>(norm->file_offset), SEEK_SET), 0);
  ASSERT_EQ(std::fwrite(nan.data(), sizeof(float), n_embd, f), n_embd);
  std::fclose(f);
}

}  // namespace sharpi::testing
