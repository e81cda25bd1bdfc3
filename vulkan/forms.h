// SPDX-License-Identifier: MIT
// Which form of a kernel work takes on a device: how products take rows, and how attention is
// divided. Launches follow it, and what a model says of its kernels. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "device/kernel_params.h"
#include "device/loaded_model.h"
#include "vulkan/profile.h"

namespace sharpi::vulkan {

/// What products take rows as: floats; 8 bits with scales (shaders/quantise.glsl), a few rows of
/// quantised weights in `fast`; or 16 bits (shaders/halves.comp), many rows.
enum class RowForm : uint8_t { kFloats, kBytes, kHalves };

/// Elements that shaders/newer/product_matrix.comp multiplies at a time.
inline constexpr uint32_t kMatrixDeep = 64;

/// Calls of so many rows in tiles: sums have another order than a single row's then.
bool in_tiles(const ModelShape& model, uint32_t rows);
RowForm row_form(const Profile& f, const ModelShape& model, const TensorRef& w, uint32_t rows,
                 bool as_floats = false);
/// Whether a few rows that this matrix takes stay floats, because 8 bits would leave too little:
/// what Mamba-2 makes has single elements far larger than the others of their 32; and what
/// attention adds decides which experts are chosen where the router reads the residual row itself
/// (Gemma 4's mixture).
bool takes_floats(const ModelSpec& spec, const TensorRef& w);
/// Routed experts by tiles of rows that chose the same one: where it has several, for then its
/// weights are unpacked once for them.
bool experts_in_tiles(const ModelShape& model, uint32_t n_experts, uint32_t n_used, uint32_t rows);
/// Outputs of second matrices at a time: what each pair of a row and an expert makes waits for the
/// sum.
inline constexpr uint32_t kJoinedOutputs = 512;
/// Pairs of a tile of f32, at least of any, and bytes of the tiles of so many pairs, with their
/// number in front.
inline constexpr uint32_t kExpertTile = 64, kLeastExpertTile = 32;
constexpr uint64_t expert_tile_bytes(uint64_t pairs, uint64_t n_experts) {
  return (1 + pairs / kLeastExpertTile + n_experts) * 16;
}
/// Whether these tiles are multiplied as matrices, all of an expert's.
bool experts_by_matrices(const Profile& f, const ModelShape& model, const FfnSpec& ffn,
                         uint32_t rows);
/// Few rows in shares of their stored rows.
bool attends_in_shares(const Profile& f, const ModelShape& model, uint32_t head_dim, uint32_t rows);
/// Subgroups that have sixteen queries of attention by matrices together; 0: it is not taken. Rows
/// by head are read without matrices.
uint32_t matrix_split(const Profile& f, const ModelShape& model, const device::KvLayer& kv,
                      uint32_t rows);
/// Of the blocks on the device: every kind of work, few rows and many (sharpi_model_json()).
std::string block_paths(const device::LoadedModel& model, const Profile& f);

}  // namespace sharpi::vulkan
