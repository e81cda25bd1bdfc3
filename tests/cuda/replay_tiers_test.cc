// SPDX-License-Identifier: MIT
// Replay scores on a CUDA device: of every codec and every head that its kernels take, layers that
// share rows, windows and delta nets beside; what they keep is what the CPU keeps. Skipped where
// there is no CUDA device.
#include <string>
#include <vector>

#include "cuda/device_test.h"
#include "device/replay_ways.h"

namespace sharpi::testing {
namespace {

test::ModelRecipe heads_of(uint32_t dim, test::ModelRecipe recipe = deep(test::tiny_qwen3(), 2)) {
  recipe.head_dim = recipe.head_dim_swa = dim;
  recipe.delta_dim = 32;
  return recipe;
}

class ReplayTiers : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    context_ = make_context({});
    if (const std::string why = why_no_gpu(context_.get()); !why.empty()) GTEST_SKIP() << why;
    gpu_ = gpu_index(context_.get());
  }
  LadderMachine machine() const { return {context_.get()}; }
  ContextPtr context_;
  uint32_t gpu_ = 0;
};

TEST_P(ReplayTiers, ScoresAreThoseOfThePlainForm) {
  const MadeModel file(GetParam().recipe);
  const auto n = static_cast<int32_t>(GetParam().recipe.n_layers);
  uint32_t every = 3;
  for (const sharpi_kv_dtype kv : GetParam().dtypes) {
    every = 4 - every;
    check_scores(machine(), file.path(), {{gpu_, n}}, file.tokens(300), kv, every,
                 dtype_text(kv) + (", every " + std::to_string(every)));
  }
}

TEST_P(ReplayTiers, KeepWhatTheCpuKeeps) {
  const MadeModel file(GetParam().recipe);
  const auto n = static_cast<int32_t>(GetParam().recipe.n_layers);
  uint32_t tried = 0;
  for (const int32_t layers : {n / 2, n}) {
    sharpi_error why = SHARPI_ERROR_INIT;
    if (!machine().try_load(file.path(), {{gpu_, layers}}, &why).model) continue;
    check_lives(machine(), file.path(), {{gpu_, layers}}, file.tokens(570),
                {SHARPI_LAYER_BUDGET_EQUAL, SHARPI_LAYER_BUDGET_SHARED},
                "layers: " + std::to_string(layers));
    ++tried;
  }
  EXPECT_GT(tried, 0u);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"qwen3", heads_of(64), stored_dtypes()});
  all.push_back({"windows", heads_of(64, deep(test::tiny_gemma4(), 8)), {SHARPI_KV_BF16}});
  all.back().recipe.n_shared_kv = 3;
  all.push_back(
      {"keys_that_are_values", heads_of(64, deep(test::tiny_gemma4kv(), 8)), {SHARPI_KV_Q8_0}});
  all.push_back({"delta_nets_beside",
                 heads_of(64, deep(test::tiny_qwen35(), 4)),
                 {SHARPI_KV_F32, SHARPI_KV_Q4}});
  all.push_back({"heads_of_80", heads_of(80)});
  all.push_back({"heads_of_96", heads_of(96), {SHARPI_KV_BF16}});
  all.push_back({"heads_of_128", heads_of(128), {SHARPI_KV_Q8_0}});
  all.push_back({"heads_of_256", heads_of(256), {SHARPI_KV_BF16, SHARPI_KV_Q4}});
  all.push_back({"heads_of_512", heads_of(512), {SHARPI_KV_Q4}});
  all.push_back({"a_layer_without_rope", heads_of(64, deep(test::tiny_smollm3(), 4))});
  all.push_back({"neighbours", heads_of(64, deep(test::tiny_llama(), 2))});
  all.push_back({"learned_sinks", heads_of(64, deep(test::tiny_gpt_oss(), 2))});
  return all;
}
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Kinds, ReplayTiers, ::testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace sharpi::testing
