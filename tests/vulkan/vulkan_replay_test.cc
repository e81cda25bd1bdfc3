// SPDX-License-Identifier: MIT
// Replay scores on a Vulkan device: of every codec, heads of 32 to 512 elements, layers that share
// rows, windows and delta nets beside; what they keep is what the CPU keeps.
#include <string>
#include <utility>
#include <vector>

#include "device/replay_ways.h"
#include "vulkan/vulkan_ladders.h"

namespace sharpi::testing {
namespace {

class VulkanReplayScores : public ::testing::TestWithParam<Case> {};

TEST_P(VulkanReplayScores, AreThoseOfThePlainForm) {
  SHARPI_NEEDS_VULKAN();
  const MadeModel file(GetParam().recipe);
  const auto n = static_cast<int32_t>(GetParam().recipe.n_layers);
  uint32_t every = 3;
  for (const sharpi_kv_dtype kv : GetParam().dtypes) {
    every = 4 - every;
    check_scores(vulkan_machine(), file.path(), {{1, n}}, file.tokens(300), kv, every,
                 dtype_text(kv) + (", every " + std::to_string(every)));
  }
}

std::vector<Case> few_layers() {
  std::vector<Case> all;
  all.push_back({"qwen3", heads_of(32), stored_dtypes()});
  all.push_back({"shared_layers_beside_windows", deep(test::tiny_gemma4(), 8), {SHARPI_KV_BF16}});
  all.back().recipe.n_shared_kv = 3;
  all.push_back({"keys_that_are_values", deep(test::tiny_gemma4kv(), 8), {SHARPI_KV_Q8_0}});
  all.push_back({"delta_nets_beside", deep(test::tiny_qwen35(), 4), {SHARPI_KV_F32, SHARPI_KV_Q4}});
  all.push_back({"heads_of_80", heads_of(80)});
  all.push_back({"heads_of_128", heads_of(128), {SHARPI_KV_Q8_0}});
  all.push_back({"heads_of_512", heads_of(512), {SHARPI_KV_Q4}});
  all.push_back({"a_layer_without_rope", deep(test::tiny_smollm3(), 4)});
  all.push_back({"neighbours", deep(test::tiny_llama(), 2)});
  all.push_back({"latents", test::tiny_deepseek2(), stored_dtypes()});
  all.push_back({"wide_latents", wide_latents(), {SHARPI_KV_Q4}});
  all.push_back({"learned_sinks", deep(test::tiny_gpt_oss(), 2)});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Kinds, VulkanReplayScores, ::testing::ValuesIn(few_layers()), case_name);

class VulkanReplayLives : public ::testing::TestWithParam<Case> {};

TEST_P(VulkanReplayLives, KeepWhatTheCpuKeeps) {
  SHARPI_NEEDS_VULKAN();
  const MadeModel file(GetParam().recipe);
  const auto n = static_cast<int32_t>(GetParam().recipe.n_layers);
  for (const int32_t layers : {n / 2, n}) {
    sharpi_error why = SHARPI_ERROR_INIT;
    if (!vulkan_machine().try_load(file.path(), {{1, layers}}, &why).model) continue;
    check_lives(vulkan_machine(), file.path(), {{1, layers}}, file.tokens(570),
                {SHARPI_LAYER_BUDGET_EQUAL, SHARPI_LAYER_BUDGET_SHARED},
                "layers: " + std::to_string(layers));
  }
}

std::vector<Case> lives() {
  return {{"qwen3", heads_of(32)},
          few_layers()[1],
          few_layers()[2],
          few_layers()[3],
          {"latents", test::tiny_deepseek2()}};
}
INSTANTIATE_TEST_SUITE_P(Kinds, VulkanReplayLives, ::testing::ValuesIn(lives()), case_name);

}  // namespace
}  // namespace sharpi::testing
