// SPDX-License-Identifier: MIT
// What a table of angles is made of, and which layers have one in common.
#include "tier/rope_tables.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace sharpi {
namespace {

RopeSpec yarn_rope() {
  RopeSpec r;
  r.n_rot = 8;
  r.yarn = true;
  r.yarn_factor = 8.0;
  r.yarn_orig_ctx = 1024.0;
  r.magnitude = 1.25;
  return r;
}

std::vector<RopeTable> tables_of(const std::vector<RopeSpec>& ropes) {
  ModelSpec spec;
  spec.layers.resize(ropes.size());
  for (size_t l = 0; l < ropes.size(); ++l) {
    spec.layers[l].mixer = MixerKind::kAttention;
    spec.layers[l].attention.rope = ropes[l];
  }
  std::vector<int32_t> table_of_layer;
  return make_rope_tables(spec, &table_of_layer);
}

/// A file may name another one than its factor gives.
TEST(RopeTables, MagnitudesAreThoseOfTheSpec) {
  RopeSpec plain;
  plain.n_rot = 8;
  const std::vector<RopeTable> tables = tables_of({yarn_rope(), plain});
  ASSERT_EQ(tables.size(), 2u);
  EXPECT_EQ(tables[0].mscale, 1.25f);
  EXPECT_EQ(tables[1].mscale, 1.0f);
}

TEST(RopeTables, LayersShareOneOnlyWhereNothingDiffers) {
  EXPECT_EQ(tables_of({yarn_rope(), yarn_rope()}).size(), 1u);
  const GgufTensor divisors{};
  const std::function<void(RopeSpec*)> changes[] = {
      [](RopeSpec* r) { r->n_rot = 4; },
      [](RopeSpec* r) { r->freq_base = 1e6; },
      [](RopeSpec* r) { r->freq_scale = 0.5; },
      [&](RopeSpec* r) { r->freq_factors = &divisors; },
      [&](RopeSpec* r) { r->long_factors = &divisors; },
      [](RopeSpec* r) { r->is_long = true; },
      [](RopeSpec* r) { r->yarn = false; },
      [](RopeSpec* r) { r->yarn_factor = 4.0; },
      [](RopeSpec* r) { r->yarn_orig_ctx = 2048.0; },
      [](RopeSpec* r) { r->yarn_ext = 0.5; },
      [](RopeSpec* r) { r->magnitude = 1.5; },
      [](RopeSpec* r) { r->yarn_beta_fast = 16.0; },
      [](RopeSpec* r) { r->yarn_beta_slow = 2.0; },
      [](RopeSpec* r) { r->yarn_whole_pairs = false; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    RopeSpec other = yarn_rope();
    changes[i](&other);
    EXPECT_EQ(tables_of({yarn_rope(), other}).size(), 2u) << i;
  }
}

}  // namespace
}  // namespace sharpi
