// SPDX-License-Identifier: MIT
// What a file says of rotary embedding: keys of its size and scaling, and tensors with divisors of
// the angles. Thread rule: as SpecBuilder.
#pragma once

#include <cstdint>

#include "model/spec_builder.h"

namespace sharpi {

/// rope.dimension_count<suffix>: even, at most head_dim, by default `fallback`.
Result<uint32_t> read_n_rot(const SpecBuilder& b, const char* suffix, uint32_t fallback,
                            uint32_t head_dim);

/// n_rot, rope.freq_base and rope.scaling.*. Scaling types other than none and linear (and yarn, if
/// `allow_yarn`) are refused by name.
Result<RopeSpec> read_rope(const SpecBuilder& b, uint32_t head_dim, bool allow_yarn);

/// The divisors of a head's angles in rope_freqs.weight, for `rope`. Absent ones are refused unless
/// `optional`.
Status load_freq_factors(SpecBuilder& b, bool optional, RopeSpec* rope);

/// The divisors of short and of long contexts in rope_factors_short.weight and
/// rope_factors_long.weight, if the file has them, where the latter begin, and what cosines and
/// sines are multiplied by.
Status load_long_factors(SpecBuilder& b, RopeSpec* rope);

}  // namespace sharpi
