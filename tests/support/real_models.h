// SPDX-License-Identifier: MIT
// Recipes with the geometry of published models, to be written as sparse files: real headers
// without real bytes.
// Thread rule: pure functions.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "support/tiny_model.h"

namespace sharpi::test {

ModelRecipe real_qwen3_8b();
ModelRecipe real_qwen3_coder_30b_a3b();
ModelRecipe real_olmoe_1b_7b();
ModelRecipe real_gemma4_e4b();  // with the unused K and V weights that its files carry
ModelRecipe real_gemma4_12b();
ModelRecipe real_qwen36_27b();  // with its MTP block
ModelRecipe real_qwen36_35b_a3b();
ModelRecipe real_glm47_flash();  // latent attention
ModelRecipe real_gpt_oss_20b();  // all in MXFP4

/// The spec of such a file, whose vocabulary's size is that of the table. Empty where it cannot be
/// read, which fails the test.
inline std::shared_ptr<const ModelSpec> real_spec(ModelRecipe recipe,
                                                  GgmlType matrices = GgmlType::kQ4_K) {
  recipe.tokenizer = false;
  recipe.matrix_type = matrices;
  auto spec = load_model(ModelFile(recipe), /*sparse=*/true);
  EXPECT_TRUE(spec.is_ok()) << spec.status().text();
  return spec.is_ok() ? spec.take() : nullptr;
}

}  // namespace sharpi::test
