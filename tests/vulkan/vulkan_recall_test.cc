// SPDX-License-Identifier: MIT
// Archives of evicted rows on a Vulkan device: recalls bring back what they bring back on the CPU,
// with its bits, for every codec, keys that are values, layers that share rows and hybrids, and
// with a tail on the host.
#include <string>

#include "device/recall_ways.h"
#include "vulkan/vulkan_ladders.h"

namespace sharpi::testing {
namespace {

class VulkanRecall : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { SHARPI_NEEDS_VULKAN(); }
};

TEST_P(VulkanRecall, BringsBackWhatTheCpuBringsBack) {
  const MadeModel file(GetParam().recipe);
  const auto n = static_cast<int32_t>(GetParam().recipe.n_layers);
  for (const Ladder& ladder : {Ladder{{1, n}}, Ladder{{1, n / 2}}}) {
    for (const sharpi_kv_dtype kv : GetParam().dtypes) {
      for (const bool replay : {false, true}) {
        sharpi_error why = SHARPI_ERROR_INIT;
        const Edit edit = archived_rows(kv, replay);
        if (!vulkan_machine().try_load(file.path(), ladder, &why, edit).model) continue;
        check_recalls(vulkan_machine(), file, ladder, kv, replay,
                      std::string(dtype_text(kv)) + " " + text_of(ladder));
      }
    }
  }
}

TEST(VulkanRecallBounds, ChooseWhatTheyChooseOnTheCpu) {
  SHARPI_NEEDS_VULKAN();
  check_bounds(vulkan_machine(), MadeModel(heads_of(32)), {{1, 2}});
}

std::vector<Case> recalled_kinds() {
  std::vector<Case> all = device_cases();
  const char* names[] = {"qwen3", "shared_layers", "keys_that_are_values", "hybrid", "one_kv_head"};
  for (size_t i = 0; i < all.size(); ++i) all[i].name = names[i];
  all.push_back({"latents", test::tiny_deepseek2(), {SHARPI_KV_F32}});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Kinds, VulkanRecall, ::testing::ValuesIn(recalled_kinds()), case_name);

}  // namespace
}  // namespace sharpi::testing
