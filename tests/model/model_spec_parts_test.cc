// SPDX-License-Identifier: MIT
// Files that have several matrices in one: parts of it are tensors like others, and what does not
// fit is refused by name.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "model/model_spec.h"
#include "refusal.h"
#include "support/tiny_model.h"

namespace sharpi {
namespace {

using test::ModelFile;

std::shared_ptr<const ModelSpec> spec_of(const ModelFile& file) {
  auto spec = test::load_model(file, /*sparse=*/true);
  if (spec.is_ok()) return spec.take();
  ADD_FAILURE() << spec.status().text();
  return nullptr;
}

TEST(ModelSpecParts, Phi3IsTakenApartAndKnowsTwoKindsOfAngles) {
  ModelFile file(test::tiny_phi3());
  const auto s = spec_of(file);
  ASSERT_NE(s, nullptr);
  const AttentionSpec& a = s->layers[1].attention;
  EXPECT_EQ(a.q.n_out, 128u);
  EXPECT_EQ(a.k.n_out, 64u);
  EXPECT_EQ(a.k.tensor->data - a.q.tensor->data, static_cast<ptrdiff_t>(128 * 64 * sizeof(float)));
  EXPECT_EQ(a.v.tensor->data - a.k.tensor->data, static_cast<ptrdiff_t>(64 * 64 * sizeof(float)));
  const FfnSpec& f = s->layers[1].ffn;
  EXPECT_EQ(f.gate.tensor->name, "blk.1.ffn_gate.weight");
  EXPECT_EQ(f.up.tensor->data - f.gate.tensor->data,
            static_cast<ptrdiff_t>(96 * 64 * sizeof(float)));
  EXPECT_EQ(a.rope.magnitude, 1.25);
  EXPECT_FALSE(s->has_long_rope());
  // The same object up to the length that the file says, and back.
  EXPECT_EQ(spec_for_context(s, 512), s);
  const auto beyond = spec_for_context(s, 513);
  ASSERT_TRUE(beyond->has_long_rope());
  EXPECT_NE(beyond->saved_id(), s->saved_id());
  EXPECT_EQ(beyond->layers[0].attention.rope.divisors(),
            s->layers[0].attention.rope.long_values.get());
  EXPECT_EQ(spec_for_context(beyond, 512)->saved_id(), s->saved_id());
  EXPECT_TRUE(reload_spec(*beyond, beyond->file).value()->has_long_rope());
}

TEST(ModelSpecParts, Phi3ReadsAWindowThatLeavesRowsOutAndMatricesOfTheirOwn) {
  ModelFile file(test::tiny_phi3());
  file.set("attention.sliding_window", 4095u);
  const auto windowed = spec_of(file);
  ASSERT_NE(windowed, nullptr);
  EXPECT_EQ(windowed->layers[0].attention.window, 4095u);
  file.set("attention.sliding_window", 4096u);  // the context
  file.erase_tensor("blk.0.attn_qkv.weight").erase_tensor("rope_factors_long.weight");
  file.erase_tensor("rope_factors_short.weight");
  file.add_tensor("blk.0.attn_q.weight", GgmlType::kF32, {64, 128});
  file.add_tensor("blk.0.attn_k.weight", GgmlType::kF32, {64, 64});
  file.add_tensor("blk.0.attn_v.weight", GgmlType::kF32, {64, 64});
  const auto apart = spec_of(file);
  ASSERT_NE(apart, nullptr);
  EXPECT_EQ(apart->layers[0].attention.window, 0u);
  EXPECT_EQ(apart->layers[0].attention.rope.divisors(), nullptr);
  EXPECT_EQ(spec_for_context(apart, 4096), apart);
}

/// Values of rows of a matrix, by which rows can be told apart.
std::vector<float> numbered(uint64_t n_in, uint64_t n_rows) {
  std::vector<float> v(n_in * n_rows);
  for (uint64_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / n_in);
  return v;
}

std::vector<uint32_t> rows_in(const TensorRef& t) {
  std::vector<uint32_t> rows;
  for (uint64_t r = 0; r < t.n_out; ++r) {
    float value = 0;
    std::memcpy(&value, t.tensor->data + r * t.row_bytes(), sizeof value);
    rows.push_back(static_cast<uint32_t>(value));
  }
  return rows;
}

/// Two key heads with two value heads each, of sixteen elements: of each key head come its query,
/// its key, its values and their gates, and of the small projections its betas, then its alphas.
TEST(ModelSpecParts, Qwen3NextIsSortedByWhatItsRowsAre) {
  ModelFile file(test::tiny_qwen3next());
  file.tensor("blk.0.ssm_in.weight").values = numbered(64, 192);
  file.tensor("blk.1.ssm_ba.weight").values = numbered(64, 8);
  const auto spec = spec_of(file);
  ASSERT_NE(spec, nullptr);
  const DeltaNetSpec& old = spec->layers[0].delta;
  EXPECT_TRUE(old.grouped);
  std::vector<uint32_t> qkv, gate;
  const auto add = [](std::vector<uint32_t>* to, uint32_t first, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) to->push_back(first + i);
  };
  for (const uint32_t at : {0u, 16u}) add(&qkv, at, 16), add(&qkv, at + 96, 16);
  add(&qkv, 32, 32), add(&qkv, 128, 32);
  add(&gate, 64, 32), add(&gate, 160, 32);
  EXPECT_EQ(rows_in(old.qkv), qkv);
  EXPECT_EQ(rows_in(old.gate), gate);
  EXPECT_EQ(rows_in(spec->layers[1].delta.beta), (std::vector<uint32_t>{0, 1, 4, 5}));
  EXPECT_EQ(rows_in(spec->layers[1].delta.alpha), (std::vector<uint32_t>{2, 3, 6, 7}));
  EXPECT_FALSE(spec->layers[3].is_recurrent());
  EXPECT_EQ(spec->layers[2].ffn.d_shared, 32u);
}

const Refusal kQwen3Next[] = {
    {"AllInOne",
     test::tiny_qwen3next,
     [](ModelFile& f) {
       f.reshape("blk.0.ssm_in.weight", {64, 190});
     },
     Code::kFormat,
     {"\"blk.0.ssm_in.weight\" has shape {64, 190}, expected {64, 192}",
      "2 * qwen3next.ssm.group_count * qwen3next.ssm.state_size + 2 * qwen3next.ssm.inner_size"}},
    {"BetaAndAlpha",
     test::tiny_qwen3next,
     [](ModelFile& f) {
       f.reshape("blk.2.ssm_ba.weight", {64, 4});
     },
     Code::kFormat,
     {"\"blk.2.ssm_ba.weight\" has shape {64, 4}, expected {64, 8}",
      "2 * qwen3next.ssm.time_step_rank"}},
    {"InOneAndApart",
     test::tiny_qwen3next,
     [](ModelFile& f) {
       f.add_tensor("blk.0.attn_gate.weight", GgmlType::kF32, {64, 64});
     },
     Code::kFormat,
     {"repeats the name \"blk.0.attn_gate.weight\""}},
    {"NoBetaAndAlpha",
     test::tiny_qwen3next,
     [](ModelFile& f) { f.erase_tensor("blk.1.ssm_ba.weight"); },
     Code::kFormat,
     {"\"blk.1.ssm_alpha.weight\" is missing"}},
};

const Refusal kPhi3[] = {
    {"FusedRows",
     test::tiny_phi3,
     [](ModelFile& f) {
       f.reshape("blk.1.attn_qkv.weight", {64, 255});
     },
     Code::kFormat,
     {"\"blk.1.attn_qkv.weight\" has shape {64, 255}, expected {64, 256}",
      "(phi3.attention.head_count + 2 * phi3.attention.head_count_kv) * "
      "phi3.attention.key_length"}},
    {"GateAndUp",
     test::tiny_phi3,
     [](ModelFile& f) {
       f.reshape("blk.0.ffn_up.weight", {64, 96});
     },
     Code::kFormat,
     {"\"blk.0.ffn_up.weight\" has shape {64, 96}, expected {64, 192}",
      "2 * phi3.feed_forward_length"}},
    {"FusedAndApart",
     test::tiny_phi3,
     [](ModelFile& f) {
       f.add_tensor("blk.0.attn_k.weight", GgmlType::kF32, {64, 64});
     },
     Code::kFormat,
     {"repeats the name \"blk.0.attn_k.weight\""}},
    {"FusedMissing",
     test::tiny_phi3,
     [](ModelFile& f) { f.erase_tensor("blk.1.attn_qkv.weight"); },
     Code::kFormat,
     {"\"blk.1.attn_q.weight\" is missing"}},
    {"LongAlone",
     test::tiny_phi3,
     [](ModelFile& f) { f.erase_tensor("rope_factors_short.weight"); },
     Code::kFormat,
     {"\"rope_factors_short.weight\" is missing"}},
    {"WrongNumberOfDivisors",
     test::tiny_phi3,
     [](ModelFile& f) { f.reshape("rope_factors_long.weight", {16}); },
     Code::kFormat,
     {"\"rope_factors_long.weight\" has shape {16}, expected {12}"}},
    {"DivisorOfZero",
     test::tiny_phi3,
     [](ModelFile& f) { f.tensor("rope_factors_long.weight").values[3] = 0.0f; },
     Code::kFormat,
     {"\"rope_factors_long.weight\" holds 0"}},
    {"NoLengthOfShortContexts",
     test::tiny_phi3,
     [](ModelFile& f) { f.erase_key("rope.scaling.original_context_length"); },
     Code::kFormat,
     {"phi3.rope.scaling.original_context_length"}},
    {"Experts",
     test::tiny_phi3,
     [](ModelFile& f) { f.set("expert_count", 16u); },
     Code::kUnsupported,
     {"phi3 with a mixture of experts"}},
};

class Parts : public ::testing::TestWithParam<Refusal> {};

TEST_P(Parts, NamesWhatIsWrong) {
  expect_refused(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Qwen3Next, Parts, ::testing::ValuesIn(kQwen3Next), refusal_name);
INSTANTIATE_TEST_SUITE_P(Phi3, Parts, ::testing::ValuesIn(kPhi3), refusal_name);

}  // namespace
}  // namespace sharpi
