// SPDX-License-Identifier: MIT
// The tensor table of a recipe: which tensors a model of its family has, and how they are filled.
// Written from the families' descriptions, apart from the code under test.
// Thread rule: pure functions.
#pragma once

#include <vector>

#include "support/tiny_model.h"

namespace sharpi::test {

std::vector<ModelTensor> recipe_tensors(const ModelRecipe& recipe);

}  // namespace sharpi::test
