// SPDX-License-Identifier: MIT
// Recipes with the geometry of published models, to be written as sparse files: real headers
// without real bytes.
// Thread rule: pure functions.
#pragma once

#include "support/tiny_model.h"

namespace sharpi::test {

ModelRecipe real_qwen3_8b();
ModelRecipe real_qwen3_coder_30b_a3b();
ModelRecipe real_olmoe_1b_7b();
ModelRecipe real_gemma4_e4b();  // with the unused K and V weights that its files carry
ModelRecipe real_gemma4_12b();
ModelRecipe real_qwen36_27b();  // with its MTP block
ModelRecipe real_qwen36_35b_a3b();

}  // namespace sharpi::test
