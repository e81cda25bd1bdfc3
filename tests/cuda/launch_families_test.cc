// SPDX-License-Identifier: MIT
// What each family of kernels asks of a block, by the function that its launch uses, on every known
// card, for every pair of codecs and the published models' layers. Host code alone: this runs where
// there is neither a device nor a CUDA compiler. What the compiled kernels have of their own is
// kernel_limits.h, which tools/ci/cuda_images.py holds against the images.
#include <filesystem>
#include <fstream>
#include <set>

#include "cuda/kernels/attention/attention_f32_plan.h"
#include "cuda/kernels/attention/attention_flash_plan.h"
#include "cuda/kernels/attention/attention_ring_plan.h"
#include "cuda/kernels/attention/attention_step_plan.h"
#include "cuda/kernels/attention/attention_wide_plan.h"
#include "cuda/kernels/attention/qkv_plan.h"
#include "cuda/kernels/delta/delta_plan.h"
#include "cuda/kernels/kernel_limits.h"
#include "cuda/kernels/kv/kv_replay_plan.h"
#include "cuda/kernels/kv/kv_score_plan.h"
#include "cuda/kernels/latent/latent_plan.h"
#include "cuda/kernels/moe/moe_step_plan.h"
#include "cuda/kernels/products/chain_launch.h"
#include "cuda/kernels/products/gemm_plan.h"
#include "cuda/kernels/products/matvec_plan.h"
#include "cuda/kernels/sampling/sampling_plan.h"
#include "cuda/published_models.h"
#include "cuda/support.h"
#include "kv/codec.h"
#include "support/paths.h"

namespace sharpi::testing {
namespace {

using cuda::DeviceProfile;
using cuda::KernelLimit;

const KernelLimit& limit_of(std::string_view kernel) {
  for (const KernelLimit& k : cuda::kKernelLimits) {
    if (kernel == k.kernel) return k;
  }
  ADD_FAILURE() << "no limit of " << kernel;
  return cuda::kKernelLimits[0];
}

/// A launch of so many threads and bytes of shared memory in all: a block has them, and so has a
/// multiprocessor that runs as many blocks as the launch counts on.
void expect_all_fits(const DeviceProfile& device, const char* kernel, uint32_t threads,
                     uint32_t bytes, uint32_t blocks) {
  const KernelLimit& k = limit_of(kernel);
  EXPECT_LE(threads, k.threads) << kernel;
  EXPECT_LE(threads, cuda::kMostThreads) << kernel;
  EXPECT_LE(blocks * threads, static_cast<uint32_t>(device.threads_per_sm)) << kernel;
  EXPECT_LE(blocks, k.blocks) << kernel;
  EXPECT_LE(bytes, static_cast<uint32_t>(device.shared_per_block)) << kernel;
  EXPECT_LE(blocks * (bytes + cuda::kReservedShared), static_cast<uint32_t>(device.shared_per_sm))
      << kernel;
}
/// The same of dynamic memory, beside the most that the kernel has of its own.
void expect_fits(const DeviceProfile& device, const char* kernel, uint32_t threads,
                 uint32_t bytes) {
  expect_all_fits(device, kernel, threads, bytes + limit_of(kernel).static_bytes, 1);
}

template <class F>
void each_pair(F&& visit) {
  for (const KvDtype k : kAllKvCodecs) {
    for (const KvDtype v : kAllKvCodecs) {
      SCOPED_TRACE(std::string(kv_dtype_name(k)) + ", " + kv_dtype_name(v));
      visit(k, v);
    }
  }
}

constexpr uint32_t kHeadDims[] = {64, 80, 96, 128, 256, 512};

/// Heads that plans let through: every width, up to so many query heads a KV head.
template <class F>
void each_heads(F&& visit) {
  for (const uint32_t dim : kHeadDims) {
    for (uint32_t group = 1; group <= cuda::kSplitVectors; ++group) {
      SCOPED_TRACE("heads of " + std::to_string(dim) + ", groups of " + std::to_string(group));
      visit(dim, group);
    }
  }
}

TEST(Families, PublishedModelsHaveHeadsThatAreWalked) {
  std::set<std::pair<uint32_t, uint32_t>> walked;
  each_heads([&](uint32_t dim, uint32_t group) { walked.emplace(dim, group); });
  each_attention([&](const AttentionSpec& a) {
    EXPECT_TRUE(walked.contains({a.head_dim, a.n_heads / a.n_kv_heads}));
  });
}

TEST(Families, CardsHaveWhatAnyBlockMayHave) {
  each_card([](const cuda::NamedCard&, const DeviceProfile& p) {
    EXPECT_EQ(p.shared_per_sm - p.shared_per_block, static_cast<int>(cuda::kReservedShared));
    for (const KernelLimit& k : cuda::kKernelLimits) {
      EXPECT_LE(k.threads, cuda::kMostThreads) << k.kernel;
      EXPECT_LE(k.blocks * k.threads, static_cast<uint32_t>(p.threads_per_sm)) << k.kernel;
      // Else the compiler cannot give a thread even a quarter of the registers it may have.
      EXPECT_GE(p.registers_per_sm / static_cast<int>(k.blocks * k.threads),
                static_cast<int>(cuda::kMostRegisters / 4))
          << k.kernel;
    }
  });
}

/// A kernel with dynamic memory whose file nobody has here would be launched unseen.
TEST(Families, EveryKernelWithDynamicMemoryHasALimit) {
  uint32_t n = 0;
  const std::filesystem::path root = test::source_path("cuda/kernels");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string file = entry.path().filename().string();
    const bool device = file.ends_with(".cu") || file.ends_with(".cuh");
    if (!device || file.find("check") != std::string::npos) continue;
    std::ifstream in(entry.path());
    std::string kernel;
    bool declares = false;
    for (std::string line; std::getline(in, line);) {
      if (line.find("__global__") != std::string::npos) declares = true;
      const size_t end = declares ? line.find("_kernel(") : std::string::npos;
      if (end != std::string::npos) {
        const size_t begin = line.find_last_of(' ', end) + 1;
        kernel = line.substr(begin, end + 7 - begin);
        declares = false;
      }
      if (line.find("extern __shared__") == std::string::npos) continue;
      EXPECT_STREQ(limit_of(kernel).kernel, kernel.c_str()) << file;
      ++n;
    }
  }
  EXPECT_EQ(n, std::size(cuda::kKernelLimits));
}

TEST(Families, AttentionFitsEveryDevice) {
  each_card([](const cuda::NamedCard&, const DeviceProfile& p) {
    each_heads([&](uint32_t dim, uint32_t group) {
      expect_fits(p, "attention_f32_kernel", 128, cuda::attention_f32_bytes(dim));
      each_pair([&](KvDtype k, KvDtype v) {
        const cuda::split::RingForm ring = cuda::split::ring_form(p, k, v, dim);
        EXPECT_LE(ring.static_bytes, limit_of("attention_ring_kernel").static_bytes);
        expect_all_fits(p, "attention_ring_kernel", cuda::split::kThreads, ring.all_bytes(),
                        ring.blocks_per_sm);
        const cuda::flash::FlashChoice tiles = cuda::flash::choose_flash(p, k, v, dim);
        EXPECT_NE(tiles.keys, 0u);
        expect_fits(p, "attention_flash_kernel", cuda::flash::kFlashWarps * 32, tiles.bytes);
        const cuda::wide::WideShape wide = cuda::wide::choose_wide(p, k, v, dim);
        EXPECT_EQ(wide.dim != 0, (dim == 128 || dim == 256) && cuda::wide::wide_codecs(k, v));
        if (wide.dim != 0)
          expect_all_fits(p, "attention_wide_kernel", static_cast<uint32_t>(wide.threads),
                          cuda::wide::make_wide_plan(wide, k, v).bytes, 1);
        const cuda::flash::FlashChoice hopper = cuda::flash::choose_warpgroups(p, k, v, dim);
        EXPECT_EQ(hopper.keys != 0, p.wgmma && dim == 512);
        if (hopper.keys != 0)
          expect_fits(p, "attention_flash_sm90_kernel", cuda::flash::kWarpgroupThreads,
                      hopper.bytes);
        const bool specialized = cuda::flash::takes_specialized(p, dim);
        EXPECT_EQ(specialized, p.wgmma && (dim == 64 || dim == 128 || dim == 256));
        if (specialized)
          expect_fits(p, "attention_specialized_sm90_kernel", cuda::flash::kSpecializedThreads,
                      cuda::flash::specialized_bytes(dim));
        if (!cuda::step_takes(k, v, dim)) return;
        const uint32_t room = cuda::step_room(p);
        EXPECT_NE(room, 0u);
        const cuda::StepForm f = cuda::step_form(k, v, dim, group <= cuda::kStepPairs, room);
        EXPECT_GE(f.stages, 1u);
        EXPECT_LE(f.static_bytes, limit_of("attention_step_kernel").static_bytes);
        expect_all_fits(p, "attention_step_kernel", cuda::kStepThreads,
                        f.shared_bytes + f.static_bytes, 1);
      });
    });
  });
}

/// The pairs that a step's attention takes; all others go through rings. docs/cuda.md names them.
TEST(Families, StepTakesTheseCodecs) {
  std::set<std::pair<KvDtype, KvDtype>> taken;
  each_pair([&](KvDtype k, KvDtype v) {
    for (const uint32_t dim : kHeadDims) {
      const bool takes = cuda::step_takes(k, v, dim);
      if (takes) taken.emplace(k, v);
      EXPECT_TRUE(!takes || dim == 128 || dim == 256) << dim;
    }
  });
  const std::set<std::pair<KvDtype, KvDtype>> expected = {{KvDtype::kBf16, KvDtype::kBf16},
                                                          {KvDtype::kQ8_0, KvDtype::kQ8_0},
                                                          {KvDtype::kQ4, KvDtype::kQ4},
                                                          {KvDtype::kQ8_0, KvDtype::kQ4}};
  EXPECT_EQ(taken, expected);
  // Values in q4 leave room for as many stages as keys and values in q8_0, or more.
  for (const bool pairs : {false, true}) {
    const auto form = [&](KvDtype k, KvDtype v) {
      return cuda::step_form(k, v, 128, pairs, cuda::kSmallStepRoom);
    };
    const cuda::StepForm mixed = form(KvDtype::kQ8_0, KvDtype::kQ4);
    EXPECT_EQ(2 * mixed.ring_bytes, form(KvDtype::kQ8_0, KvDtype::kQ8_0).ring_bytes +
                                        form(KvDtype::kQ4, KvDtype::kQ4).ring_bytes);
    EXPECT_GE(mixed.stages, form(KvDtype::kQ8_0, KvDtype::kQ8_0).stages);
  }
}

TEST(Families, HeadsOfARowAreInRegistersOrFit) {
  each_attention([](const AttentionSpec& a) {
    if (a.kv_source >= 0 || cuda::qkv_in_registers(a.head_dim, a.rope.n_rot / 2)) return;
    EXPECT_LE(cuda::qkv_bytes(a.n_kv_heads, a.head_dim), cuda::kMostQkvBytes);
  });
  // Without asking a block has 48 KiB, of which the kernel itself has some.
  EXPECT_LE(cuda::kMostQkvBytes + limit_of("qkv_kernel").static_bytes, 48u << 10);
  EXPECT_LE(cuda::kQkvThreads, limit_of("qkv_kernel").threads);
  EXPECT_FALSE(cuda::qkv_in_registers(80, 40));
  EXPECT_EQ(cuda::qkv_bytes(2, 80), 8 * 80 * 4u);
}

/// Rows of latents, as published models have them and as the tests' small ones do.
TEST(Families, LatentsFitEveryDevice) {
  each_card([](const cuda::NamedCard&, const DeviceProfile& p) {
    for (const uint32_t dim : {64u, 96u, 160u, 576u}) {
      expect_fits(p, "latent_attention_kernel", cuda::kLatentThreads, cuda::latent_bytes(dim));
      EXPECT_LE(cuda::latent_bytes(dim), cuda::kLatentBytes);
      EXPECT_NE(cuda::choose_scores(p, false, dim).n_stages, 0u);
      EXPECT_LE(cuda::least_score_bytes(dim), static_cast<uint32_t>(p.shared_per_block));
      // Latents of published models are wider than replay scores take in 99 KiB: such plans are
      // refused (cuda/support.cc).
      const uint32_t room = static_cast<uint32_t>(p.shared_per_block);
      EXPECT_EQ(cuda::least_replay_bytes(dim) <= room, dim < 576 || room > (100u << 10));
    }
    for (uint32_t rows = 1; rows <= 2 * cuda::kLatentSplitRows; ++rows) {
      for (const uint32_t heads : {4u, 16u, 20u, 128u}) {
        const auto n_sm = static_cast<uint32_t>(p.n_sm);
        const uint64_t splits = cuda::latent_splits(n_sm, rows, heads, false);
        EXPECT_EQ(cuda::latent_splits(n_sm, rows, heads, true), 1u);
        if (splits == 1) continue;
        EXPECT_LE(rows * splits * heads * cuda::latent_part(576) * sizeof(float),
                  cuda::latent_part_bytes(n_sm, heads, 576));
      }
    }
  });
  EXPECT_EQ(cuda::latent_keys(576), 12u);
  EXPECT_TRUE(cuda::takes_value_map(16, 576, 128, 512));  // DeepSeek-V2-Lite
  EXPECT_TRUE(cuda::takes_value_map(20, 576, 256, 512));  // GLM-4.7-Flash
  EXPECT_FALSE(cuda::takes_value_map(1, 64, 1024, 48));
}

TEST(Families, ScoresFitEveryDevice) {
  each_card([](const cuda::NamedCard& card, const DeviceProfile& p) {
    for (const uint32_t dim : kHeadDims) {
      SCOPED_TRACE("heads of " + std::to_string(dim));
      for (const bool exact : {false, true}) {
        const cuda::ScoreChoice c = cuda::choose_scores(p, exact, dim);
        EXPECT_NE(c.n_stages, 0u);
        expect_fits(p, "score_kernel", cuda::kScoreThreads, c.bytes);
        EXPECT_LE(c.bytes, cuda::score_room(p));
        EXPECT_LE(c.tile.slots, cuda::kScoreThreads);
        EXPECT_GE(16 * c.tile.row_tiles, cuda::score_part_slots(dim));
        const cuda::ReplayChoice replay = cuda::choose_replay(p, dim, exact);
        EXPECT_NE(replay.groups, 0u);
        EXPECT_LE(replay.bytes, cuda::score_room(p));
        // Only what fits in no other way is tight: `exact` scores of the widest heads where a
        // block has 99 KiB.
        EXPECT_EQ(replay.tight, exact && dim == 512 && p.shared_per_block < 118 * 1024);
        if (!replay.tight) {
          EXPECT_EQ(replay.key_rows, cuda::replay_keys(replay.groups));
          EXPECT_EQ(replay.bytes, cuda::replay_bytes(dim, replay.groups, exact, replay.columns));
        }
        expect_fits(p, "replay_kernel", 32 * cuda::kReplayWarps, replay.bytes);
        if (cuda::replay_warpgroups_fit(p, dim)) {
          expect_fits(p, "replay_warpgroup_kernel", 128 * cuda::kReplayWarpgroups,
                      cuda::replay_warpgroup_bytes(dim));
        }
        if (!cuda::score_warpgroups_fit(p, dim)) continue;
        EXPECT_STREQ(card.name, "9.0");
        expect_fits(p, "score_warpgroup_kernel", cuda::score_warpgroup_threads(exact),
                    cuda::score_warpgroup_bytes(dim));
        EXPECT_LE(cuda::score_warpgroup_bytes(dim), cuda::score_warpgroup_room(p));
      }
      EXPECT_LE(cuda::least_score_bytes(dim), static_cast<uint32_t>(p.shared_per_block));
      EXPECT_LE(cuda::least_replay_bytes(dim), static_cast<uint32_t>(p.shared_per_block));
    }
  });
  EXPECT_LE(limit_of("score_kernel").static_bytes, cuda::kScoreReserve);
  EXPECT_LE(limit_of("score_warpgroup_kernel").static_bytes, cuda::kScoreStaticBytes);
  const DeviceProfile& ada = cuda::find_card("8.9")->profile;
  EXPECT_EQ(cuda::choose_scores(ada, false, 128).tile, cuda::kWideScoresFew);
  EXPECT_EQ(cuda::choose_scores(ada, false, 512).tile, cuda::kDeepScoresFew);
  EXPECT_EQ(ada.shared_per_block, 99 * 1024);
  EXPECT_TRUE(cuda::choose_replay(ada, 512, true).tight);
  EXPECT_EQ(cuda::choose_replay(ada, 512, false).columns, 32u);
  const DeviceProfile& hopper = cuda::find_card("9.0")->profile;
  EXPECT_EQ(cuda::choose_scores(hopper, false, 256).tile, cuda::kWideScores);
  EXPECT_TRUE(cuda::score_warpgroups_fit(hopper, 256));
  EXPECT_FALSE(cuda::score_warpgroups_fit(hopper, 512));
  EXPECT_TRUE(cuda::replay_warpgroups_fit(hopper, 64) && cuda::replay_warpgroups_fit(hopper, 128));
  EXPECT_FALSE(cuda::replay_warpgroups_fit(ada, 128) || cuda::replay_warpgroups_fit(hopper, 96));
}

TEST(Families, ChunksOfDeltaNetsFitWhereTheyAreTaken) {
  each_card([](const cuda::NamedCard& card, const DeviceProfile& p) {
    const bool fit = cuda::delta_chunks_fit(p);
    EXPECT_EQ(fit, p.shared_per_block > 150 << 10) << card.name;
    if (!fit) return;  // token by token, with static memory alone
    expect_fits(p, "delta_prepare_kernel", cuda::kDeltaChunkThreads, cuda::kDeltaPrepareBytes);
    expect_fits(p, "delta_scan_kernel", cuda::kDeltaChunkThreads, cuda::kDeltaScanBytes);
  });
  DeviceProfile exactly = cuda::find_card("9.0")->profile;
  exactly.shared_per_block = cuda::kDeltaScanBytes;
  EXPECT_TRUE(cuda::delta_chunks_fit(exactly));
  --exactly.shared_per_block;
  EXPECT_FALSE(cuda::delta_chunks_fit(exactly));
}

TEST(Families, ProductsOnWarpgroupsFitWhereTheyAreTaken) {
  each_card([](const cuda::NamedCard&, const DeviceProfile& p) {
    EXPECT_EQ(cuda::warpgroup_gemm_fits(p), p.wgmma);
    if (!p.wgmma) return;
    for (const GgmlType type :
         {GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kQ8_0, GgmlType::kQ4_0,
          GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kF16}) {
      EXPECT_LE(cuda::panel_ring_bytes(type), cuda::panel_ring_bytes(cuda::kWidestGemmType));
      for (uint32_t rows = 32; rows <= cuda::kWarpgroupRowTile; rows += 32) {
        for (const bool gated : {false, true}) {
          const cuda::WarpgroupGemm g =
              cuda::warpgroup_gemm(p, rows, cuda::panel_ring_bytes(type), gated);
          EXPECT_GE(g.x_stages, 2u);
          EXPECT_LE(g.x_stages, cuda::kMostXStages);
          expect_fits(p, "gemm_sm90_kernel", cuda::kWarpgroupGemmThreads, g.shared_bytes);
        }
      }
    }
  });
  // A card with these instructions and little memory goes the other way.
  DeviceProfile little = cuda::find_card("9.0")->profile;
  little.shared_per_block = 101376;
  EXPECT_FALSE(cuda::warpgroup_gemm_fits(little));
}

TEST(Families, ThreadsOfProductsAreWhatTheirKernelsAreCompiledFor) {
  EXPECT_EQ(limit_of("gemm_kernel").threads, cuda::kGemmWarps * 32);
  EXPECT_EQ(limit_of("gemm_sm90_kernel").threads, cuda::kWarpgroupGemmThreads);
  EXPECT_EQ(limit_of("stream_kernel").threads, cuda::matvec::kMaxThreads);
  EXPECT_EQ(limit_of("row_kernel").threads, cuda::matvec::kMaxThreads);
  EXPECT_EQ(limit_of("chain_kernel").threads, (cuda::kShareWarps + cuda::kFeeders) * 32);
  EXPECT_EQ(limit_of("chain_registers_kernel").threads, cuda::kShareWarps * 32);
  EXPECT_EQ(limit_of("chain_rows_registers_kernel").threads, cuda::kShareWarps * 32);
  EXPECT_EQ(limit_of("moe_step_kernel").threads, cuda::kShareThreads + 32 * cuda::kMaxMoeStepRows);
}

TEST(Families, TheBestOfEveryVocabularyAreFound) {
  const KernelLimit& k = limit_of("top_k_part_kernel");
  EXPECT_LE(cuda::kMostKeyBytes + k.static_bytes, 48u << 10);
  EXPECT_EQ(k.threads, cuda::kSamplingThreads);
  for (const PublishedModel& model : published_models()) {
    EXPECT_EQ(cuda::most_best(model.spec->n_vocab), cuda::kMaxTopK) << model.name;
  }
  for (const uint32_t n : {1u, 255u, 4097u, 262144u, cuda::kMostTopKTokens}) {
    const cuda::SamplingSlices s = cuda::sampling_slices(n);
    EXPECT_GE(s.n_parts * s.length, n);
    EXPECT_LE(s.length * cuda::kSamplingKeyBytes, cuda::kMostKeyBytes);
  }
  // One token more, and a slice has no room: the host looks for them.
  EXPECT_GT(cuda::sampling_slices(cuda::kMostTopKTokens + 1).length * cuda::kSamplingKeyBytes,
            cuda::kMostKeyBytes);
  EXPECT_EQ(cuda::most_best(cuda::kMostTopKTokens + 1), 1u);
  EXPECT_EQ(cuda::most_best(cuda::kMostArgmaxTokens + 1), 0u);
  EXPECT_EQ(cuda::most_best(100), 100u);
}

/// Columns that no product takes are refused when planned, by what has them.
TEST(Families, WidthsThatNoProductTakesAreRefusedWhenPlanned) {
  const DeviceProfile& card = cuda::find_card("8.9")->profile;
  ModelSpec spec = *published_models()[0].spec;
  const auto refusal = [&](DeviceIndex tier) {
    const Status can = cuda::check_support(card, "Some Card", spec, Placement::all(spec, tier));
    EXPECT_EQ(can.code(), can.is_ok() ? Code::kOk : Code::kUnsupported);
    return can.text();
  };
  EXPECT_EQ(refusal(DeviceIndex::kHere), "");
  spec.layers[2].ffn.d_ff += 4;
  const std::string width = std::to_string(spec.layers[2].ffn.d_ff);
  EXPECT_EQ(refusal(DeviceIndex::kHere),
            "layer 2 has an FFN of " + width + " elements; the GPU takes multiples of 8");
  EXPECT_EQ(refusal(DeviceIndex::kHost), "");
  spec.layers[2].ffn.d_ff -= 4;
  spec.layers[1].ffn.d_shared = 12;
  EXPECT_EQ(refusal(DeviceIndex::kHere),
            "layer 1 has a shared expert of 12 elements; the GPU takes multiples of 8");
  spec.layers[1].ffn.d_shared = 0;
  spec.d_ple = 4;
  EXPECT_EQ(refusal(DeviceIndex::kHere), "") << "no layer has any";
  spec.layers[3].ple_proj = spec.layers[3].ffn.down;
  EXPECT_EQ(refusal(DeviceIndex::kHere),
            "layer 3 has per-layer embeddings of 4 elements; the GPU takes multiples of 8");
  EXPECT_EQ(refusal(DeviceIndex::kHost), "");
  spec.d_ple = 8;
  EXPECT_EQ(refusal(DeviceIndex::kHere), "");
  spec.n_embd = 1020;
  EXPECT_EQ(refusal(DeviceIndex::kHere),
            "the model has embeddings of 1020 elements; the GPU takes multiples of 8");
}

/// Plans refuse what no kernel takes, by name.
TEST(Families, WhatDoesNotFitIsRefusedWhenPlanned) {
  const auto& models = published_models();
  ASSERT_EQ(models.size(), 8u);
  const DeviceProfile& card = cuda::find_card("8.9")->profile;
  ModelSpec spec = *models[0].spec;
  AttentionSpec& a = spec.layers[3].attention;
  a.head_dim = 80;
  a.rope.n_rot = 80;
  a.n_heads = a.n_kv_heads = 150;
  const Placement all = Placement::all(spec, DeviceIndex::kHere);
  EXPECT_TRUE(cuda::check_support(card, "Some Card", spec, all).is_ok());
  a.n_heads = a.n_kv_heads = 151;  // 320 bytes more than 47 KiB
  Status can = cuda::check_support(card, "Some Card", spec, all);
  EXPECT_EQ(can.code(), Code::kUnsupported);
  EXPECT_EQ(
      can.text(),
      "layer 3 has 151 KV heads of 80 elements, of which 80 are rotated: 48320 bytes, but the "
      "GPU takes at most 48128");
  // Enough for attention and too little for scores of its rows.
  DeviceProfile little = card;
  little.shared_per_block = 85000;
  const ModelSpec& gemma = *models[4].spec;
  can = cuda::check_support(little, "Small Card", gemma, Placement::all(gemma, DeviceIndex::kHere));
  EXPECT_EQ(can.code(), Code::kUnsupported);
  EXPECT_EQ(can.text(),
            "layer 0: scoring for compaction with heads of 256 takes 90624 bytes of shared memory "
            "a block, but Small Card (compute capability 8.9) has 85000");
}

TEST(Families, PartsThatHaveNoKernelAreRefusedByName) {
  const DeviceProfile& card = cuda::find_card("8.9")->profile;
  const ModelSpec& whole = *published_models()[0].spec;
  const auto refusal = [&](const auto& change, DeviceIndex tier = DeviceIndex::kHere) {
    ModelSpec spec = whole;
    change(&spec);
    return cuda::check_support(card, "Some Card", spec, Placement::all(spec, tier)).text();
  };
  const auto mamba = [](ModelSpec* s) {
    s->layers[2].mixer = MixerKind::kMamba2;
    s->layers[2].mamba.n_heads = 64, s->layers[2].mamba.n_groups = 8;
    s->layers[2].mamba.head_dim = 64, s->layers[2].mamba.state_dim = 128;
    s->layers[2].mamba.conv_kernel = 4;
  };
  const auto odd = [&](ModelSpec* s) {
    mamba(s);
    s->layers[2].mamba.state_dim = 96;
  };
  EXPECT_EQ(refusal(mamba), "");
  EXPECT_EQ(refusal(odd),
            "layer 2 is of Mamba-2 with states of 96 elements and a convolution of 4 taps; the GPU "
            "takes 16, 32, 64, 128 or 256 elements and 2 to 4 taps");
  EXPECT_EQ(refusal(odd, DeviceIndex::kHost), "");
  EXPECT_EQ(refusal([](ModelSpec* s) {
              s->layers[3].ffn.kind = FfnKind::kMoe;
              s->layers[3].ffn.scores = RouterScores::kSigmoid;
            }),
            "");
  EXPECT_EQ(refusal([](ModelSpec* s) {
              s->layers[3].ffn.kind = FfnKind::kMoe;
              s->layers[3].ffn.gate = {};
            }),
            "");
  const auto latents = [](ModelSpec* s) {
    AttentionSpec& a = s->layers[0].attention;
    a.n_kv_heads = 1;
    a.head_dim = 576;
    a.rope.n_rot = 64;
    a.latent.rank = 512;
    a.latent.key_dim = 192;
    a.latent.value_dim = 256;
  };
  EXPECT_EQ(refusal(latents), "");
  const auto odd_latents = [&](ModelSpec* s) {
    latents(s);
    s->layers[0].attention.latent.key_dim = 100;
  };
  EXPECT_EQ(refusal(odd_latents),
            "layer 0 has rows of 64 + 512 elements and heads of 100 and 256; the GPU takes "
            "multiples of 8, in all of 16 and at most 1024");
  EXPECT_EQ(refusal([](ModelSpec* s) { s->layers[0].mixer = MixerKind::kNone; }), "");
}

}  // namespace
}  // namespace sharpi::testing
