// SPDX-License-Identifier: MIT
// Rotary embedding as numbers per pair: scaling, interpolation and YaRN folded into frequencies.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model_spec.h"

namespace sharpi {

/// Rope settings that differ between layers: each distinct one has its own tables.
struct RopeTable {
  RopeSpec spec;
  std::vector<double> inv_freq;  // [n_rot/2], angle per position, scaling included
  float mscale = 1.0f;
};
/// The n_rot / 2 angles per position of such a table.
void fill_inv_freq(const RopeSpec& rope, std::span<double> inv_freq);
/// Whether two layers' angles are the same.
bool same_rope(const RopeSpec& a, const RopeSpec& b);
/// Distinct tables of a model and which one each layer uses (-1: no attention).
std::vector<RopeTable> make_rope_tables(const ModelSpec& spec,
                                        std::vector<int32_t>* table_of_layer);
/// cos/sin tables [n_rot/2] for one position; inv_freq[j] in double, mscale multiplies both.
void rope_angles(const double* inv_freq, uint32_t n_half, uint64_t position, float mscale,
                 float* cos, float* sin);

}  // namespace sharpi
