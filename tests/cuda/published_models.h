// SPDX-License-Identifier: MIT
// The published models whose launches are planned on paper: their geometry.
// Thread rule: one thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cuda/kernels/device_profile.h"
#include "support/real_models.h"

namespace sharpi::testing {

struct PublishedModel {
  const char* name;
  std::shared_ptr<const ModelSpec> spec;
};

/// Made once a program. Empty specs fail the test that asks first.
inline const std::vector<PublishedModel>& published_models() {
  static const std::vector<PublishedModel> models = [] {
    std::vector<PublishedModel> made;
    const auto add = [&](const char* name, test::ModelRecipe recipe) {
      recipe.tokenizer = false;
      auto spec = test::load_model(test::ModelFile(recipe), /*sparse=*/true);
      EXPECT_TRUE(spec.is_ok()) << name << ": " << spec.status().text();
      if (spec.is_ok()) made.push_back({name, spec.take()});
    };
    add("qwen3 8B", test::real_qwen3_8b());
    add("qwen3moe 30B-A3B", test::real_qwen3_coder_30b_a3b());
    add("olmoe 1B-7B", test::real_olmoe_1b_7b());
    add("gemma4 E4B", test::real_gemma4_e4b());
    add("gemma4 12B", test::real_gemma4_12b());
    add("qwen35 27B", test::real_qwen36_27b());
    add("qwen35moe 35B-A3B", test::real_qwen36_35b_a3b());
    add("gpt-oss 20B", test::real_gpt_oss_20b());
    return made;
  }();
  return models;
}

/// visit(card, its profile) of every card that is known.
template <class F>
void each_card(F&& visit) {
  for (int i = 0; i < cuda::kNamedCards; ++i) {
    const cuda::NamedCard& card = cuda::named_card(i);
    SCOPED_TRACE(card.name);
    visit(card, card.profile);
  }
}

/// visit(layer) of every attention layer of every model, told by its name in failures.
template <class F>
void each_attention(F&& visit) {
  for (const PublishedModel& model : published_models()) {
    for (uint32_t l = 0; l < model.spec->n_layers(); ++l) {
      const LayerSpec& layer = model.spec->layers[l];
      if (layer.mixer != MixerKind::kAttention) continue;
      SCOPED_TRACE(std::string(model.name) + ", layer " + std::to_string(l));
      visit(layer.attention);
    }
  }
}

}  // namespace sharpi::testing
