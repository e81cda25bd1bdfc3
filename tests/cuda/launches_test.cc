// SPDX-License-Identifier: MIT
// What the kernels' launches ask of a device, held against what devices have. Host code alone: this
// runs where there is neither a device nor a CUDA compiler.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/kernels/attention/attention_f32_plan.h"
#include "cuda/kernels/attention/attention_flash_plan.h"
#include "cuda/kernels/attention/attention_ring_plan.h"
#include "cuda/kernels/products/gemm_plan.h"
#include "cuda/kernels/products/matvec_plan.h"
#include "cuda/published_models.h"
#include "cuda/support.h"
#include "kv/codec.h"
#include "tier/block_tensors.h"

namespace sharpi::testing {
namespace {

using cuda::split::ring_form;
using cuda::split::RingForm;

constexpr auto& kCodecs = kAllKvCodecs;
constexpr uint32_t kHeadDims[] = {64, 80, 96, 128, 256, 512};

const cuda::DeviceProfile& profile_of(const char* name) {
  return cuda::find_card(name)->profile;
}

/// f32 rows of heads of 128 and more did not fit in 99 KiB: two stages are 128 KiB.
TEST(Launches, RingsOfAttentionFitEveryDevice) {
  for (int i = 0; i < cuda::kNamedCards; ++i) {
    const cuda::NamedCard& card = cuda::named_card(i);
    const auto block = static_cast<uint32_t>(card.profile.shared_per_block),
               sm = static_cast<uint32_t>(card.profile.shared_per_sm);
    for (const uint32_t dim : kHeadDims) {
      for (const KvDtype k : kCodecs) {
        for (const KvDtype v : kCodecs) {
          SCOPED_TRACE(std::string(card.name) + ", heads of " + std::to_string(dim) + ", " +
                       kv_dtype_name(k) + ", " + kv_dtype_name(v));
          const RingForm f = ring_form(card.profile, k, v, dim);
          EXPECT_GE(f.n_stages, 1u);
          EXPECT_LE(f.all_bytes(), block);
          EXPECT_LE(f.blocks_per_sm * (f.all_bytes() + cuda::kReservedShared), sm);
        }
      }
    }
  }
}

/// What the compiler takes for the kernel of such a layer (cuobjdump, CUDA 13.0, 9.0): it aligns
/// the ring behind to 128 bytes.
TEST(Launches, StaticMemoryOfRingsIsAsCompiled) {
  using cuda::split::ring_static_bytes;
  EXPECT_EQ(ring_static_bytes(KvDtype::kF32, KvDtype::kF32, 512), 9344u);
  EXPECT_EQ(ring_static_bytes(KvDtype::kF32, KvDtype::kBf16, 256), 9344u);
}

TEST(Launches, RingsKeepTheirStagesWhereThereIsRoom) {
  const auto stages = [](const char* card, KvDtype k, KvDtype v, uint32_t dim) {
    return ring_form(profile_of(card), k, v, dim).n_stages;
  };
  EXPECT_EQ(stages("9.0", KvDtype::kF32, KvDtype::kF32, 128), 3u);
  EXPECT_EQ(stages("9.0", KvDtype::kBf16, KvDtype::kBf16, 128), 3u);
  EXPECT_EQ(stages("9.0", KvDtype::kQ8_0, KvDtype::kQ8_0, 256), 4u);
  EXPECT_EQ(stages("8.9", KvDtype::kF32, KvDtype::kF32, 128), 1u);
  EXPECT_EQ(stages("8.9", KvDtype::kBf16, KvDtype::kBf16, 256), 2u);
  EXPECT_EQ(stages("12.0", KvDtype::kF32, KvDtype::kQ8_0, 512), 2u);
  const RingForm two = ring_form(profile_of("9.0"), KvDtype::kBf16, KvDtype::kBf16, 128);
  EXPECT_EQ(two.blocks_per_sm, 2u);
  cuda::DeviceProfile little = profile_of("8.9");
  little.shared_per_block = 48 << 10;
  EXPECT_EQ(ring_form(little, KvDtype::kF32, KvDtype::kF32, 128).n_stages, 0u);
}

TEST(Launches, AttentionOfManyRowsAndOfF32FitEveryDevice) {
  for (int i = 0; i < cuda::kNamedCards; ++i) {
    const cuda::NamedCard& card = cuda::named_card(i);
    const auto block = static_cast<uint32_t>(card.profile.shared_per_block);
    for (const uint32_t dim : kHeadDims) {
      EXPECT_LE(cuda::attention_f32_bytes(dim), block) << card.name << ", heads of " << dim;
      for (const KvDtype k : kCodecs) {
        for (const KvDtype v : kCodecs) {
          SCOPED_TRACE(std::string(card.name) + ", heads of " + std::to_string(dim) + ", " +
                       kv_dtype_name(k) + ", " + kv_dtype_name(v));
          const cuda::flash::FlashChoice c = cuda::flash::choose_flash(card.profile, k, v, dim);
          EXPECT_NE(c.keys, 0u);
          EXPECT_LE(c.bytes, block);
        }
      }
    }
  }
  EXPECT_EQ(
      cuda::flash::choose_flash(profile_of("9.0"), KvDtype::kF32, KvDtype::kF32, 96 + 16).keys, 0u);
}

/// Q6_K, which half of the matrices of a Q4_K_M file are, did not fit beside 128 rows in 99 KiB:
/// "gemm: 102912 bytes", whenever a product of so many rows went this way (deterministic models,
/// experts with more than 64 rows each, machines without cuBLASLt).
TEST(Launches, TilesOfManyRowsFitEveryDevice) {
  for (int i = 0; i < cuda::kNamedCards; ++i) {
    const auto block = static_cast<uint32_t>(cuda::named_card(i).profile.shared_per_block);
    for (const GgmlType type :
         {GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kQ8_0, GgmlType::kQ4_0,
          GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kF16}) {
      for (const uint64_t rows : {25u, 33u, 64u, 65u, 128u, 2048u}) {
        const uint32_t tile = cuda::gemm_tile_rows(cuda::named_card(i).profile, rows, type);
        EXPECT_LE(cuda::gemm_shared_bytes(tile, type), block);
        const uint32_t any =
            cuda::gemm_tile_rows(cuda::named_card(i).profile, rows, cuda::kWidestGemmType);
        EXPECT_LE(cuda::gemm_shared_bytes(any, type), block);
      }
      EXPECT_LE(cuda::gemm_shared_bytes(64, type),
                cuda::gemm_shared_bytes(64, cuda::kWidestGemmType));
    }
  }
}

// --- the six architectures, as published ---

/// One row through a matrix of so many columns (segments of so many), as matmul.cu describes it.
cuda::StreamParams row_through(GgmlType type, uint64_t n_in, uint64_t n_out, uint32_t n_segments) {
  cuda::StreamParams p = {};
  p.n_rows = p.n_used = p.n_tasks = 1;
  p.n_segments = n_segments;
  p.n_in = static_cast<uint32_t>(n_in);
  p.units = (p.n_in + cuda::kUnitColumns - 1) / cuda::kUnitColumns;
  p.n_groups = static_cast<uint32_t>(n_out / cuda::kPanelRows);
  cuda::StreamTask& t = p.tasks[0];
  t.panel_bytes = cuda::panel_bytes_of(type, n_in);
  t.unit_bytes = cuda::unit_bytes_of(type);
  return p;
}

/// Kernels read every type that the library computes with, as rows of the file or in tiles, and
/// launchers name the type that they refuse.
TEST(Launches, KernelsHaveEveryComputableTypeAndRefuseTheOthersByName) {
  uint32_t n_refused = 0;
  for (uint32_t id = 0; id < 64; ++id) {
    const GgmlTypeTraits* traits = ggml_type_traits(id);
    if (traits == nullptr) continue;
    const auto type = static_cast<GgmlType>(id);
    const Status rows = cuda::check_weights("matvec_f32", type, cuda::WeightLayout::kRows),
                 tiles = cuda::check_weights("matvec", type, cuda::WeightLayout::kTiles);
    EXPECT_EQ(rows.is_ok(), traits->computable) << traits->name;
    if (!rows.is_ok()) {
      ++n_refused;
      EXPECT_EQ(rows.code(), Code::kUnsupported);
      EXPECT_EQ(rows.text(),
                std::string("kernel matvec_f32: no weights of type ") + traits->name + " in rows");
    }
    // What is laid out in tiles has kernels for them.
    EXPECT_EQ(tiles.is_ok(), cuda::weight_layout(type, 256, 16) == cuda::WeightLayout::kTiles);
    if (tiles.is_ok()) continue;
    EXPECT_EQ(tiles.text(),
              std::string("kernel matvec: no weights of type ") + traits->name + " in tiles");
  }
  EXPECT_GT(n_refused, 0u);
}

/// visit(experts, used, matrix, type, card) for every product of the published models, on every
/// card, with weights of each of the types that fit its columns: whether it is of routed experts,
/// how many of which a row uses.
template <class F>
void each_product(std::initializer_list<GgmlType> types, F&& visit) {
  for (const PublishedModel& model : published_models()) {
    const auto& spec = model.spec;
    each_block(*spec, Placement::all(*spec, DeviceIndex::kHere),
               [&](const Block& block, DeviceIndex) {
                 const bool experts = block.kind == BlockKind::kExperts;
                 const uint32_t used = experts ? spec->layers[block.layer].ffn.n_used : 1;
                 for (const TensorRef& w : block_products(*spec, block)) {
                   for (const GgmlType type : types) {
                     if (w.n_in % ggml_traits(type).block_elements != 0 || w.n_out % 16 != 0)
                       continue;
                     for (int i = 0; i < cuda::kNamedCards; ++i) {
                       const cuda::NamedCard& card = cuda::named_card(i);
                       SCOPED_TRACE(std::string(model.name) + ", " + card.name + ", columns " +
                                    std::to_string(w.n_in));
                       visit(experts, used, w, type, card.profile);
                     }
                   }
                 }
               });
  }
}

/// Every product of every published model, with weights of every type that lies in tiles: the
/// launch fits, or the device says that it does not and the row goes to the kernel that stages
/// nothing, which is so for 16-bit weights of very long rows and 99 KiB only.
TEST(Launches, RowsOfEveryModelFitEveryDeviceOrAreReadInF32) {
  uint32_t n_in_f32 = 0;
  each_product(
      {GgmlType::kQ4_K, GgmlType::kQ6_K, GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kF16},
      [&](bool, uint32_t used, const TensorRef& w, GgmlType type, const cuda::DeviceProfile& card) {
        for (const uint32_t segments : {1u, used}) {
          cuda::StreamParams p = row_through(type, w.n_in, w.n_out, segments);
          uint32_t bytes = 0;
          const auto room = static_cast<uint32_t>(card.shared_per_block);
          if (cuda::matvec::plan_matvec(card, &p, &bytes) == 0) {
            ++n_in_f32;
            EXPECT_EQ(type, GgmlType::kF16);
            EXPECT_EQ(room, 101376u);
            continue;
          }
          EXPECT_LE(bytes, room);
          EXPECT_LE(p.n_warps, cuda::matvec::kMaxWarps);
          EXPECT_GE(p.n_stages, 2u);
        }
      });
  EXPECT_GT(n_in_f32, 0u);  // else that way is not tested here
}

/// Plans a launch of several rows; whether there is one that a block has room for, which then reads
/// all columns and stages no more than the workspace holds.
bool fits(const cuda::DeviceProfile& card, cuda::StreamParams* p) {
  const uint32_t all = p->units;
  uint32_t bytes = 0;
  if (cuda::matvec::plan_matvec(card, p, &bytes) == 0) return false;
  EXPECT_LE(bytes, static_cast<uint32_t>(card.shared_per_block));
  EXPECT_EQ(p->units * p->n_parts - p->n_absent, all);
  EXPECT_LT(p->n_absent, p->units);
  EXPECT_TRUE(p->n_parts == 1 || p->n_in % cuda::kUnitColumns == 0);
  EXPECT_LE(p->buffers, card.bulk_copies ? 2u : 1u);
  EXPECT_GE(p->n_stages, 2u);
  EXPECT_LE(cuda::image_map(p->n_rows, p->units, p->n_parts).bytes,
            cuda::stream_workspace_bytes(p->n_rows, p->n_in));
  // What fill_ring() relies on: a warp's first copies are of equal parts.
  const uint32_t least = std::max(std::min(p->share[0], p->share[1]), 1u);
  EXPECT_TRUE(p->n_absent == 0 || p->n_stages < (p->n_parts - 1) * least);
  return true;
}

/// Few rows of every model with weights of four types: the columns of long rows are taken in parts,
/// so that each weight is read once, for up to eight rows on cards with 99 KiB too, which read some
/// twice for more. Before, those that had no room were read once for every half of the rows: `down`
/// of the 27B eight times for eight rows there. What is staged has room in the workspace.
TEST(Launches, FewRowsReadEveryWeightOnceOnEveryDevice) {
  uint32_t n_parted = 0, n_whole = 0, n_halved = 0;
  each_product({GgmlType::kQ4_K, GgmlType::kQ6_K, GgmlType::kQ8_0, GgmlType::kQ4_0},
               [&](bool experts, uint32_t, const TensorRef& w, GgmlType type,
                   const cuda::DeviceProfile& card) {
                 for (uint32_t n_rows = 2; n_rows <= cuda::kMatvecRows && !experts; ++n_rows) {
                   SCOPED_TRACE("rows " + std::to_string(n_rows));
                   cuda::StreamParams p = row_through(type, w.n_in, w.n_out, 1);
                   p.n_rows = n_rows;
                   if (!fits(card, &p)) {
                     // Rows that end within a unit (gpt-oss) are not taken in parts.
                     const bool whole_units = w.n_in % cuda::kUnitColumns == 0;
                     n_halved += whole_units ? 1 : 0;
                     EXPECT_LE(card.shared_per_block, whole_units ? 101376 : 166912);
                     EXPECT_GT(n_rows, whole_units ? 8u : 6u);
                     continue;
                   }
                   (p.n_parts == 1 ? n_whole : n_parted) += 1;
                 }
               });
  EXPECT_GT(n_parted, 1000u);
  EXPECT_GT(n_whole, 1000u);
  EXPECT_LT(n_halved, n_whole / 20);
}

/// Columns that few numbers divide: `down` of Qwen2.5 0.5B (19 units of 256), Gemma 3 1B (27),
/// Qwen3 4B (38), Llama 2 7B and Qwen2.5 3B (43), Qwen2.5 7B (74) and Gemma 3 27B (84). The last
/// part is shorter than the others; with equal parts, eight rows of the 7B were read four times on
/// cards with 99 KiB, and those of Qwen3 4B twice.
TEST(Launches, FewRowsOfAnyNumberOfUnitsReadEveryWeightOnce) {
  uint32_t n_short = 0, n_twice = 0;
  for (const uint32_t units : {19u, 27u, 38u, 43u, 74u, 84u}) {
    for (int i = 0; i < cuda::kNamedCards; ++i) {
      for (const GgmlType type :
           {GgmlType::kQ4_K, GgmlType::kQ6_K, GgmlType::kQ8_0, GgmlType::kQ4_0}) {
        for (uint32_t n_rows = 2; n_rows <= cuda::kMatvecRows; ++n_rows) {
          const cuda::NamedCard& card = cuda::named_card(i);
          SCOPED_TRACE(std::string(card.name) + ", units " + std::to_string(units) + ", rows " +
                       std::to_string(n_rows));
          cuda::StreamParams p = row_through(type, units * cuda::kUnitColumns, 3584, 1);
          p.n_rows = n_rows;
          const bool once = fits(card.profile, &p);
          EXPECT_TRUE(once || n_rows > 12);
          n_twice += once ? 0 : 1;
          n_short += p.n_absent != 0 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(n_short, 500u);
  EXPECT_LE(n_twice, 1u);  // 16 rows of the last one, where a block has many panels
}

/// As the kernels divide (stream.cuh).
uint32_t divided(uint32_t n, const cuda::Divider& d) {
  return d.divisor == 1 ? n : static_cast<uint32_t>(uint64_t{n} * d.multiplier >> 32);
}

/// Units that the warps of all blocks multiply in a planned launch of first matrices of experts, by
/// [expert of the row][matrix, gate first][panel][unit], as matvec.cu finds them.
std::vector<uint32_t> units_read(const cuda::StreamParams& p, uint32_t blocks) {
  const uint32_t members = cuda::panels_per_group(p), panels = p.by_panels.divisor;
  std::vector<uint32_t> n(uint64_t{p.n_used} * members * panels * p.units);
  for (uint32_t b = 0; b < blocks; ++b) {
    const uint32_t extra = b < p.more_groups ? 1 : 0, n_groups = p.groups + extra;
    const uint32_t first = b * p.groups + std::min(b, p.more_groups);
    EXPECT_LE(n_groups * members, p.max_panels);
    for (uint32_t w = 0; w < p.n_warps; ++w) {
      const uint32_t begin = w * p.share[extra] + std::min(w, p.more_share[extra]);
      const uint32_t count = p.share[extra] + (w < p.more_share[extra] ? 1 : 0);
      for (uint32_t i = begin; i < begin + count; ++i) {
        const uint32_t v = divided(i, p.by_units), member = v / n_groups;
        const uint32_t group = first + v - member * n_groups, slot = divided(group, p.by_panels);
        const uint32_t panel = group - slot * panels, unit = i - v * p.units;
        ++n.at(((slot * members + member) * panels + panel) * p.units + unit);
      }
    }
  }
  return n;
}

/// Experts with a gate and those of squares, of published sizes (Qwen3-30B-A3B, gpt-oss, Nemotron
/// 3 Nano) and of the tests': every unit of every matrix that a row uses is multiplied once, and
/// nothing else.
TEST(Launches, ExpertsWithAndWithoutAGateReadEveryUnitOnce) {
  struct Size {
    uint32_t n_embd, d_ff, used;
  };
  for (const Size s : {Size{2048, 768, 8}, Size{2880, 2880, 4}, Size{2688, 1856, 6},
                       Size{672, 448, 6}, Size{160, 96, 1}}) {
    for (int i = 0; i < cuda::kNamedCards; ++i) {
      for (const bool gated : {true, false}) {
        SCOPED_TRACE(std::string(cuda::named_card(i).name) + ", " + std::to_string(s.n_embd) +
                     (gated ? ", a gate" : ", squares"));
        cuda::StreamParams p = row_through(GgmlType::kQ8_0, s.n_embd, s.d_ff, 1);
        p.mode = cuda::StreamMode::kExpertsUp;
        p.epilogue = gated ? device::Epilogue::kSwiGlu : device::Epilogue::kSquare;
        p.n_tasks = gated ? 2 : 1;
        p.tasks[1] = p.tasks[0];
        p.n_used = s.used;
        p.by_panels = cuda::make_divider(s.d_ff / cuda::kPanelRows);
        p.n_groups = p.by_panels.divisor * s.used;
        uint32_t bytes = 0;
        const uint32_t blocks = cuda::matvec::plan_matvec(cuda::named_card(i).profile, &p, &bytes);
        ASSERT_NE(blocks, 0u);
        EXPECT_EQ(cuda::panels_per_group(p), gated ? 2u : 1u);
        const std::vector<uint32_t> n = units_read(p, blocks);
        EXPECT_EQ(std::count(n.begin(), n.end(), 1u), static_cast<std::ptrdiff_t>(n.size()));
      }
    }
  }
}

/// gpt-oss on a card with much shared memory: experts of one row have two blocks a multiprocessor,
/// which have room beside each other, with their biases.
TEST(Launches, TwoBlocksOfARowsExpertsFitBesideEachOther) {
  const cuda::DeviceProfile& card = profile_of("9.0");
  for (const uint32_t segments : {1u, 4u}) {
    cuda::StreamParams p = row_through(GgmlType::kMXFP4, 2880, 2880 * 4 / segments, segments);
    p.mode = segments == 1 ? cuda::StreamMode::kExpertsUp : cuda::StreamMode::kExpertsDown;
    p.epilogue = segments == 1 ? device::Epilogue::kSwiGluClamped : device::Epilogue::kAdd;
    p.biased = true;
    uint32_t bytes = 0;
    const uint32_t blocks = cuda::matvec::plan_matvec(card, &p, &bytes);
    EXPECT_EQ(blocks, segments == 1 ? 2u * static_cast<uint32_t>(card.n_sm) : 180u);
    EXPECT_EQ(bytes, cuda::matvec::row_map(p).bytes);
    EXPECT_EQ(p.n_warps, cuda::matvec::kMaxWarps);
    EXPECT_LE(2 * (bytes + cuda::kReservedShared), static_cast<uint32_t>(card.shared_per_sm));
  }
}

TEST(Launches, EveryModelIsTakenByEveryCard) {
  for (const PublishedModel& model : published_models()) {
    const auto& spec = model.spec;
    for (int i = 0; i < cuda::kNamedCards; ++i) {
      const cuda::NamedCard& card = cuda::named_card(i);
      const Status can = cuda::check_support(card.profile, card.card, *spec,
                                             Placement::all(*spec, DeviceIndex::kHere));
      EXPECT_TRUE(can.is_ok()) << model.name << ": " << can.text();
    }
  }
}

TEST(Launches, ADeviceWithoutRoomIsRefusedByNameWhenPlanned) {
  ASSERT_EQ(published_models().size(), 8u);
  const auto& spec = published_models()[4].spec;
  const Placement all = Placement::all(*spec, DeviceIndex::kHere);
  cuda::DeviceProfile little = profile_of("8.6");
  little.shared_per_block = 48 << 10;
  Status can = cuda::check_support(little, "Small Card", *spec, all);
  EXPECT_EQ(can.code(), Code::kUnsupported);
  EXPECT_EQ(
      can.text(),
      "a product of many rows takes 78336 bytes of shared memory a block, but Small Card (compute "
      "capability 8.6) has 49152");
  const auto& heads = published_models()[5].spec;
  little.shared_per_block = 80000;
  can =
      cuda::check_support(little, "Small Card", *heads, Placement::all(*heads, DeviceIndex::kHere));
  EXPECT_EQ(can.code(), Code::kUnsupported);
  EXPECT_NE(can.text().find(": attention with heads of 256 takes "), std::string::npos)
      << can.text();
  EXPECT_TRUE(
      cuda::check_support(little, "Small Card", *spec, Placement::all(*spec, DeviceIndex::kHost))
          .is_ok());
}

}  // namespace
}  // namespace sharpi::testing
