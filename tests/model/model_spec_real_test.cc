// SPDX-License-Identifier: MIT
// The published geometries, as headers over sparse files, have the published tensor and parameter
// counts, KV sizes and recurrent state sizes.
#include <gtest/gtest.h>

#include <ostream>

#include "model/model_spec.h"
#include "support/real_models.h"

namespace sharpi {
namespace {

struct Published {
  const char* name;
  test::ModelRecipe (*recipe)();
  uint64_t n_tensors;     // in the file, with MTP
  double parameters_1e9;  // that the trunk reads
  double mtp_parameters_1e9;
  uint64_t kv_elements;      // per token, full-attention layers
  uint64_t window_elements;  // per token, sliding-window layers
  double state_mib;          // recurrent state of one sequence, f32
};

void PrintTo(const Published& p, std::ostream* os) {
  *os << p.name;
}

// Gemma 4 E4B: 7.518e9 in the file; the K and V weights of the 15 sliding-window and 3 global
// layers that share KV (2560 x 512 and 2560 x 1024, twice each, and their norms) are not read.
constexpr double kE4bUnread = (15.0 * (2 * 2560 * 512 + 256) + 3.0 * (2 * 2560 * 1024 + 512)) / 1e9;

const Published kModels[] = {
    {"qwen3_8b", test::real_qwen3_8b, 399, 8.191, 0, 73728, 0, 0},
    {"qwen3_coder_30b_a3b", test::real_qwen3_coder_30b_a3b, 579, 30.532, 0, 49152, 0, 0},
    {"olmoe_1b_7b", test::real_olmoe_1b_7b, 195, 6.919, 0, 65536, 0, 0},
    {"gemma4_e4b", test::real_gemma4_e4b, 720, 7.518 - kE4bUnread, 0, 8192, 20480, 0},
    {"gemma4_12b", test::real_gemma4_12b, 667, 11.907, 0, 8192, 163840, 0},
    {"qwen36_27b", test::real_qwen36_27b, 866, 26.896, 0.425, 32768, 0, 149.625},
    {"qwen36_35b_a3b", test::real_qwen36_35b_a3b, 753, 34.661, 0.845, 10240, 0, 62.8125},
    {"glm47_flash", test::real_glm47_flash, 844, 29.943, 0, 27072, 0, 0},
};

class PublishedModels : public ::testing::TestWithParam<Published> {
 protected:
  void SetUp() override {
    test::ModelRecipe recipe = GetParam().recipe();
    recipe.tokenizer = false;  // the vocabulary's size is that of the table
    auto loaded = test::load_model(test::ModelFile(recipe), /*sparse=*/true);
    ASSERT_TRUE(loaded.is_ok()) << loaded.status().text();
    spec_ = loaded.take();
  }
  std::shared_ptr<const ModelSpec> spec_;
};

TEST_P(PublishedModels, HaveThePublishedTensorCount) {
  EXPECT_EQ(spec_->file->tensors().size(), GetParam().n_tensors);
}

TEST_P(PublishedModels, HaveThePublishedParameterCount) {
  EXPECT_NEAR(static_cast<double>(spec_->parameter_count()) / 1e9, GetParam().parameters_1e9,
              0.0005);
}

TEST_P(PublishedModels, KeepMtpBlocksApart) {
  const std::string prefix = "blk." + std::to_string(spec_->n_layers()) + ".";
  uint64_t elements = 0, bytes = 0;
  for (const GgufTensor& t : spec_->file->tensors()) {
    if (!t.name.starts_with(prefix)) continue;
    elements += t.elements();
    bytes += t.bytes;
  }
  EXPECT_NEAR(static_cast<double>(elements) / 1e9, GetParam().mtp_parameters_1e9, 0.0005);
  EXPECT_EQ(spec_->mtp_bytes, bytes);
  EXPECT_EQ(spec_->n_mtp_layers, GetParam().mtp_parameters_1e9 > 0 ? 1u : 0u);
}

TEST_P(PublishedModels, StoreThePublishedKvPerToken) {
  uint64_t full = 0, windowed = 0;
  for (const LayerSpec& l : spec_->layers) {
    if (!l.owns_kv()) continue;
    const AttentionSpec& a = l.attention;
    const uint64_t rows = a.one_row() ? 1 : 2;
    (a.window > 0 ? windowed : full) += rows * a.n_kv_heads * a.head_dim;
  }
  EXPECT_EQ(full, GetParam().kv_elements);
  EXPECT_EQ(windowed, GetParam().window_elements);
}

TEST_P(PublishedModels, KeepThePublishedRecurrentState) {
  uint64_t floats = 0;
  for (const LayerSpec& l : spec_->layers) {
    const DeltaNetSpec& d = l.delta;
    if (l.mixer != MixerKind::kGatedDeltaNet) continue;
    floats += uint64_t{d.value_dim()} * d.head_dim + (d.conv_kernel - 1) * d.conv_dim();
  }
  EXPECT_EQ(static_cast<double>(floats) * 4 / (1 << 20), GetParam().state_mib);
}

INSTANTIATE_TEST_SUITE_P(ModelSpec, PublishedModels, ::testing::ValuesIn(kModels),
                         [](const auto& info) { return info.param.name; });

TEST(ModelSpecReal, Gemma4E4bFileHasThePublishedParameterCount) {
  auto file = test::open_model(test::ModelFile(test::real_gemma4_e4b()), /*sparse=*/true);
  ASSERT_TRUE(file.is_ok()) << file.status().text();
  uint64_t elements = 0;
  for (const GgufTensor& t : file.value()->tensors()) elements += t.elements();
  EXPECT_NEAR(static_cast<double>(elements) / 1e9, 7.518, 0.0005);
}

}  // namespace
}  // namespace sharpi
