// SPDX-License-Identifier: MIT
// attention_bf16.h with AMX tiles: keys are the left operand of scores, weights of values.
#include "cpu/x86/vec_avx512.h"
// The vectors come first: the kernels are written over them.
#include "cpu/x86/attention_bf16_avx512.h"
#include "cpu/x86/kernel_tables.h"
#include "cpu/x86/tiles_amx.h"

namespace sharpi::cpu {
namespace {

struct Tiles {
  static constexpr bool kWeightsByVector = true;

  static void begin(uint32_t n_vectors) {
    TileConfig config;
    if (n_vectors % kGroup != 0) {
      config.rows[6] = config.rows[7] = static_cast<uint8_t>(n_vectors % kGroup);
    }
    configure_tiles(config);
  }
  static void end() { release_tiles(); }

  /// S^T of 16 keys with up to four groups. Tiles: 0-3 sums, 4 keys, 5 and 6 queries.
  static void scores(const std::byte* k, uint64_t k_pitch, const std::byte* q, uint32_t groups,
                     uint32_t padded, float* scores) {
    const uint64_t q_group = uint64_t{kGroup} * padded * sizeof(uint16_t);
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
    for (uint32_t d = 0; d < padded; d += kDepth, k += 64, q += kTileBytes) {
      load_tile<4>(k, k_pitch);
      load_tile<5>(q, 64);
      add_bf16_products<0, 4, 5>();
      if (groups < 2) continue;
      load_tile<5>(q + q_group, 64);
      add_bf16_products<1, 4, 5>();
      if (groups < 3) continue;
      load_tile<5>(q + 2 * q_group, 64);
      add_bf16_products<2, 4, 5>();
      if (groups < 4) continue;
      load_tile<5>(q + 3 * q_group, 64);
      add_bf16_products<3, 4, 5>();
    }
    store_tile<0>(scores, 64);
    if (groups > 1) store_tile<1>(scores + kScoreFloats, 64);
    if (groups > 2) store_tile<2>(scores + 2 * kScoreFloats, 64);
    if (groups > 3) store_tile<3>(scores + 3 * kScoreFloats, 64);
  }

  /// O of one group. Tiles: 0 sums, 2 and 3 weights, 4 and 5 values; the last group may have fewer
  /// than 16 vectors, whose tiles are 6 and 7.
  static void weigh(const AttentionTile& a, uint32_t v0, const std::byte* weights,
                    const uint32_t* v) {
    const uint64_t o_pitch = a.padded * sizeof(float), v_pitch = a.padded * sizeof(uint32_t);
    const bool first = a.v.begin<kDepth, second = a.v.end> kDepth;
    float* o = a.state.o + uint64_t{v0} * a.padded;
    const bool full = a.n_vectors - v0 >= kGroup;
    if (full) {
      load_tile<2>(weights, 64);
      load_tile<3>(weights + kTileBytes, 64);
    }
    for (uint32_t d = 0; d < a.padded; d += V::kWidth) {
      if (full) {
        load_tile<0>(o + d, o_pitch);
        if (first) {
          load_tile<4>(v + d, v_pitch);
          add_bf16_products<0, 2, 4>();
        }
        if (second) {
          load_tile<5>(v + uint64_t{kDepth} / 2 * a.padded + d, v_pitch);
          add_bf16_products<0, 3, 5>();
        }
        store_tile<0>(o + d, o_pitch);
        continue;
      }
      load_tile<6>(o + d, o_pitch);
      if (first) {
        load_tile<4>(v + d, v_pitch);
        load_tile<7>(weights, 64);
        add_bf16_products<6, 7, 4>();
      }
      if (second) {
        load_tile<5>(v + uint64_t{kDepth} / 2 * a.padded + d, v_pitch);
        load_tile<7>(weights + kTileBytes, 64);
        add_bf16_products<6, 7, 5>();
      }
      store_tile<6>(o + d, o_pitch);
    }
  }
};

}  // namespace

const AttentionTable kAttentionAmx = make_bf16_table<Tiles, false>();
const AttentionTable kAttentionAmxWide = make_bf16_table<Tiles, true>();

}  // namespace sharpi::cpu
