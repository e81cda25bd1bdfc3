// SPDX-License-Identifier: MIT
// Plans over lists of devices that exist on paper: which are used, and which layers go to which,
// each within its own limits to the byte.
#include <tuple>

#include "plan/over_devices.h"

namespace sharpi {
namespace {

using test::kOne, test::kTwo, test::kThree;

class DeviceList : public test::OverDevices {};

TEST_F(DeviceList, OneDeviceIsEnoughWhereItHoldsAll) {
  const auto spec = of(test::tiny_qwen3(), 8);
  const uint64_t whole = made(spec, Machine({kPlenty}))->summary().device_held_bytes;
  const auto route = [&](const std::vector<uint64_t>& bytes) {
    const auto p = made(spec, Machine(bytes));
    expect_within_limits(*p, bytes);
    EXPECT_TRUE(p->fallbacks.empty());
    return p->placement.route();
  };
  EXPECT_EQ(route({whole, whole}), std::vector{kOne});
  EXPECT_EQ(route({whole - 1, whole}), std::vector{kTwo}) << "the first that holds it";
  EXPECT_EQ(route({0, 1, whole}), std::vector{kThree});
  EXPECT_EQ(route({whole - 1, whole - 1}), (std::vector{kOne, kTwo}));
  EXPECT_EQ(route({whole - 1, whole - 1, whole - 1}), (std::vector{kOne, kTwo}))
      << "the third has nothing to hold";
  // Layers are shared out evenly, so that both are busy, and none is full before the next has some.
  const auto even = made(spec, Machine({whole - 1, whole - 1}));
  EXPECT_EQ(layers(*even), "gggghhhh");
  // A context that one does not hold takes two.
  const auto longer = made(spec, Machine({whole, whole}), [](auto*, auto* s) { s->n_ctx = 600; });
  EXPECT_EQ(longer->placement.route().size(), 2u);
  EXPECT_FALSE(longer->placement.uses(DeviceIndex::kHost));
}

/// Whatever two unlike devices hold: the plan is found where there is one, the first device could
/// not take one layer more, and each holds what its own layers take.
TEST_F(DeviceList, UnlikeDevicesAreFilledToTheByte) {
  for (const test::ModelRecipe& recipe :
       {test::tiny_qwen3(), test::tiny_qwen3moe(), test::tiny_qwen35()}) {
    const auto spec = of(recipe, 8);
    const Machine plenty({kPlenty, kPlenty});
    const auto wide = [](auto*, auto* s) {
      s->k_dtype = s->v_dtype = s->tail_k_dtype = s->tail_v_dtype = SHARPI_KV_F32;
    };
    const auto whole = made(spec, plenty, wide);
    uint32_t n_split = 0, n_short = 0;
    for (uint32_t at = 1; at < 8; ++at) {
      const uint64_t first = bytes_with(*whole, plenty.devices[0], 0, at, true, false);
      const uint64_t rest = bytes_with(*whole, plenty.devices[1], at, 8, false, true);
      for (const auto& [more, less] : {std::pair{0, 0}, std::pair{-1, 0}, std::pair{0, -1}}) {
        const std::vector<uint64_t> limits{first + static_cast<uint64_t>(more),
                                           rest + static_cast<uint64_t>(less)};
        const Machine machine(limits);
        const auto p = made(spec, machine, wide);
        expect_within_limits(*p, limits);
        const std::string what = recipe.arch + " " + std::to_string(at) + ": " + layers(*p);
        if (p->placement.route().size() < 2) continue;  // one holds all
        const auto n_first = static_cast<uint32_t>(
            std::count(p->placement.mixer.begin(), p->placement.mixer.end(), kOne));
        const bool all = !p->placement.uses(DeviceIndex::kHost);
        EXPECT_TRUE(all || more + less < 0) << what;
        n_short += all ? 0 : 1;
        if (!all) continue;
        ++n_split;
        EXPECT_EQ(p->placement.embedding, kOne) << what;
        EXPECT_EQ(p->placement.head, kTwo) << what;
        EXPECT_GT(bytes_with(*p, machine.devices[0], 0, n_first + 1, true, n_first == 8), limits[0])
            << what << ": one more fits the first";
      }
    }
    EXPECT_GT(n_split, 5u);
    EXPECT_GT(n_short, 5u);
  }
}

/// 60 and 20 GiB, and a model of 70: the shares are as unlike as the devices.
TEST_F(DeviceList, ALargeModelOnUnlikeCards) {
  test::ModelRecipe recipe = test::tiny_llama();
  recipe.n_layers = 80;
  recipe.n_embd = 8192;
  recipe.d_ff = 28672;
  recipe.n_heads = 64, recipe.n_kv_heads = 8, recipe.head_dim = 128;
  recipe.n_vocab = 32000;
  recipe.n_ctx = 131072;
  recipe.matrix_type = recipe.table_type = GgmlType::kQ8_0;
  const auto spec = spec_of(recipe, true);
  const std::vector<uint64_t> limits{60ull << 30, 20ull << 30};
  const auto p = made(spec, Machine(limits), [](auto*, auto* s) { s->n_ctx = 16384; });
  ASSERT_NE(p, nullptr);
  expect_within_limits(*p, limits);
  EXPECT_FALSE(p->placement.uses(DeviceIndex::kHost)) << layers(*p);
  const auto rows = p->device_rows();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1].n_layers + rows[2].n_layers, 80u);
  EXPECT_GT(rows[1].held_bytes, 2.9 * static_cast<double>(rows[2].held_bytes));
  const auto both = made(spec, Machine(limits), [](auto* p_, auto* s) {
    p_->split = SHARPI_SPLIT_ALL;
    s->n_ctx = 8192;
  });
  const auto shared = both->device_rows();
  const auto share = [&](size_t d) {
    return static_cast<double>(shared[d].held_bytes) / static_cast<double>(limits[d - 1]);
  };
  EXPECT_NEAR(share(1), share(2), 0.06);
}

TEST_F(DeviceList, AllAreUsedWhereTheHostSaysSo) {
  const auto spec = of(test::tiny_qwen3(), 12);
  const uint64_t whole = made(spec, Machine({kPlenty}))->summary().device_held_bytes;
  const auto p = made(spec, Machine({whole, whole, whole}),
                      [](auto* q, auto*) { q->split = SHARPI_SPLIT_ALL; });
  EXPECT_EQ(p->placement.route(), (std::vector{kOne, kTwo, kThree}));
  EXPECT_EQ(p->summary().split, SHARPI_SPLIT_ALL);
  for (const sharpi_plan_device& d : p->device_rows()) {
    EXPECT_NEAR(d.n_layers, d.device == 0 ? 0 : 4, 1) << d.device;
  }
  // One device is all of them, too.
  EXPECT_EQ(made(spec, Machine({whole}), [](auto* q, auto*) { q->split = SHARPI_SPLIT_ALL; })
                ->placement.route(),
            std::vector{kOne});
  const std::string text = refusal(spec, Machine({whole, whole}), Code::kUnsupported,
                                   [](auto* q, auto*) { q->split = SHARPI_SPLIT_TENSOR; });
  EXPECT_NE(text.find("split is 2 (TENSOR)"), std::string::npos) << text;
}

TEST_F(DeviceList, WhatNoDeviceHoldsIsOnTheHost) {
  const auto spec = of(test::tiny_qwen3(), 8);
  const uint64_t whole = made(spec, Machine({kPlenty}))->summary().device_held_bytes;
  for (const uint64_t share : {3u, 4u, 6u, 9u}) {
    const std::vector<uint64_t> limits{whole / share, whole / (share + 1)};
    const auto p = made(spec, Machine(limits),
                        [](auto*, auto* s) { s->k_dtype = s->v_dtype = SHARPI_KV_F32; });
    expect_within_limits(*p, limits);
    EXPECT_TRUE(p->placement.uses(DeviceIndex::kHost)) << share;
    EXPECT_FALSE(p->placement.route().empty()) << share;
    ASSERT_EQ(p->fallbacks.size(), 1u);
    // More on the devices does not fit: two hold more than the better of them alone.
    const auto alone = made(spec, Machine({limits[0]}),
                            [](auto*, auto* s) { s->k_dtype = s->v_dtype = SHARPI_KV_F32; });
    EXPECT_GE(p->summary().device_held_bytes, alone->summary().device_held_bytes) << share;
  }
}

TEST_F(DeviceList, AutomaticContextsGrowWithTheDevices) {
  const auto spec = of(test::tiny_qwen3(), 8);
  const auto automatic = [](auto*, auto* s) {
    s->n_ctx = SHARPI_UNSET;
    s->k_dtype = s->v_dtype = SHARPI_KV_F32;
  };
  const uint64_t bytes = 32ull << 20;
  const auto one = made(spec, Machine({bytes}), automatic);
  const auto two = made(spec, Machine({bytes, bytes}), automatic);
  EXPECT_GE(two->session.n_ctx, one->session.n_ctx);
  expect_within_limits(*two, {bytes, bytes});
  EXPECT_GE(two->placement.route().size(), 1u);
  // The least more does not fit, unless all of the context fits.
  if (two->session.n_ctx < 32768) {
    const auto more = ask(spec, Machine({bytes, bytes}), [&](auto* p, auto* s) {
      automatic(p, s);
      s->n_ctx = two->session.n_ctx + 64;
      p->n_gpu_layers = 8;
      p->n_gpu_ffn = 8;
      p->gpu_ends = 1;
    });
    EXPECT_FALSE(more.is_ok());
  }
}

/// A device that has to hold layers gets them, although one before it would hold all; without room
/// for them the plan is refused by its name.
TEST_F(DeviceList, PinsHoldBesideDevicesWithoutOne) {
  const auto spec = of(test::tiny_qwen3(), 8);
  const Machine plenty({kPlenty, kPlenty, kPlenty});
  const auto with = [&](const std::vector<sharpi_device_request>& list) {
    return layers(*made(spec, plenty, listed(list)));
  };
  EXPECT_EQ(with({request(1), request(2, 3)}), "ggggghhh");
  EXPECT_EQ(with({request(1), request(2, 3), request(3)}), "ggggghhh");
  EXPECT_EQ(with({request(1, 2), request(2), request(3, 1)}), "gghhhhhi");
  EXPECT_EQ(with({request(1), request(2, 8)}), "gggggggg") << "the first has none";
  const std::vector<sharpi_device_request> list{request(1), request(2, 3)};
  const std::string text = refusal(spec, Machine({kPlenty, 1000}), Code::kDoesNotFit, listed(list));
  EXPECT_NE(text.find("Card Two (device 2)"), std::string::npos) << text;
}

/// Each device has slots of its own for experts that are on the host.
TEST_F(DeviceList, SlotsForExpertsAreOfEachDevice) {
  const auto spec = of(test::tiny_qwen3moe(), 8);
  const auto without = [](auto* p, auto* s) {
    p->n_gpu_layers = p->n_gpu_ffn = 8;
    p->n_gpu_experts = 0;
    p->gpu_ends = 1;
    p->split = SHARPI_SPLIT_ALL;
    s->k_dtype = s->v_dtype = SHARPI_KV_F32;
  };
  const auto bare = made(spec, Machine({kPlenty, kPlenty}), [&](auto* p, auto* s) {
    without(p, s);
    p->n_expert_slots = 0;
  });
  const auto bytes = bare->device_rows();
  const uint64_t slot = bare->expert_slot_bytes;
  ASSERT_GT(slot, 0u);
  const std::vector<uint64_t> limits{bytes[1].held_bytes + 5 * slot + slot / 2,
                                     bytes[2].held_bytes + 3 * slot};
  const auto p = made(spec, Machine(limits), without);
  expect_within_limits(*p, limits);
  const auto rows = p->device_rows();
  EXPECT_EQ(p->summary().n_expert_slots, rows[1].n_expert_slots + rows[2].n_expert_slots);
  EXPECT_GE(rows[1].n_expert_slots + rows[2].n_expert_slots, 7u) << layers(*p);
  for (const auto& [d, limit] : {std::pair{rows[1], limits[0]}, std::pair{rows[2], limits[1]}}) {
    EXPECT_GT(d.held_bytes + slot, limit) << "one more fits device " << d.device;
  }
  const auto pinned = made(spec, Machine({kPlenty, kPlenty}), [&](auto* q, auto* s) {
    without(q, s);
    q->n_expert_slots = 9;
  });
  EXPECT_EQ(pinned->summary().n_expert_slots, 9u);
  EXPECT_EQ(pinned->device_rows()[1].n_expert_slots + pinned->device_rows()[2].n_expert_slots, 9u);
  EXPECT_GT(pinned->device_rows()[2].n_expert_slots, 2u) << layers(*pinned);
}

/// Layers that read the KV rows of another are on its device, also where limits part the others.
TEST_F(DeviceList, LayersThatShareRowsStayTogether) {
  const auto spec = of(test::tiny_gemma4(), 12);
  uint32_t first = 12;
  for (uint32_t l = 0; l < 12; ++l) {
    const int32_t source = spec->layers[l].kv_source();
    if (source >= 0) first = std::min(first, static_cast<uint32_t>(source));
  }
  ASSERT_LT(first, 11u);
  const uint64_t whole = made(spec, Machine({kPlenty}))->summary().device_held_bytes;
  uint32_t n_split = 0;
  for (uint64_t part = 1; part < 8; ++part) {
    const std::vector<uint64_t> limits{whole / 8 * part, whole};
    std::vector<sharpi_device_request> list{request(1), request(2)};
    const auto p = made(spec, Machine(limits), [](auto* q, auto*) { q->split = SHARPI_SPLIT_ALL; });
    expect_within_limits(*p, limits);
    n_split += p->placement.route().size() > 1 ? 1 : 0;
    for (uint32_t l = 0; l < 12; ++l) {
      const int32_t source = spec->layers[l].kv_source();
      const size_t owner = source >= 0 ? static_cast<size_t>(source) : l;
      EXPECT_EQ(p->placement.mixer[l], p->placement.mixer[owner]) << l;
    }
  }
  EXPECT_GT(n_split, 0u);
  const std::vector<sharpi_device_request> parted{request(1, 11), request(2, 1)};
  const std::string text =
      refusal(spec, Machine({kPlenty, kPlenty}), Code::kUnsupported, listed(parted));
  EXPECT_NE(text.find("layer 11 reads the KV rows of layer"), std::string::npos) << text;
}

/// A tier that cannot share a model: refused where it was asked to, else the plan is that of one
/// device, and says so.
TEST_F(DeviceList, ATokenTakesWhatEachDeviceReadsAndTheWayBetween) {
  const auto spec = of(test::tiny_qwen3(), 8);
  auto list = std::vector{request(1, 2), request(2, 3), request(0)};
  list[0].rate = 4e9, list[0].link_rate = 5e8;
  list[1].rate = 1e9, list[1].link_rate = 2e8;
  list[2].rate = 3e8;
  const auto p = made(spec, Machine({kPlenty, kPlenty}), listed(list));
  const auto rows = p->device_rows();
  double want = 0, full = 0;
  for (const sharpi_plan_device& d : rows) {
    EXPECT_GT(d.token_bytes, 0u);
    want += static_cast<double>(d.token_bytes) / d.rate;
    full += static_cast<double>(d.token_bytes + d.token_row_bytes) / d.rate;
  }
  const double row = static_cast<double>(spec->n_embd) * 4, hop = row / 5e8 + row / 2e8;
  const sharpi_plan_summary s = p->summary();
  EXPECT_DOUBLE_EQ(s.token_seconds, want + hop);
  EXPECT_DOUBLE_EQ(s.full_token_seconds, full + hop);
  EXPECT_EQ(s.device_token_bytes, rows[1].token_bytes + rows[2].token_bytes);
  EXPECT_EQ(s.host_token_bytes, rows[0].token_bytes);
  EXPECT_EQ(rows[2].link_rate, 2e8);
}

/// Whoever drafts is where the head is, and is priced there.
TEST_F(DeviceList, DraftersAreWithTheHead) {
  const auto spec = of(test::tiny_qwen35(), 8);
  const auto wants = [](auto* p, auto* s) {
    p->split = SHARPI_SPLIT_ALL;
    s->n_draft = 4;
    s->drafters = SHARPI_DRAFT_MTP;
  };
  const std::vector<uint64_t> limits{kPlenty, kPlenty};
  const auto p = made(spec, Machine(limits), wants);
  expect_within_limits(*p, limits);
  EXPECT_EQ(p->placement.head, kTwo);
  uint32_t n = 0;
  for (const MemoryRow& r : p->rows) {
    if (std::string(r.label).rfind("MTP ", 0) != 0 || r.kind != SHARPI_ROW_DEVICE) continue;
    EXPECT_EQ(r.device, 2u) << r.label;
    ++n;
  }
  EXPECT_GT(n, 0u);
}

/// How a device sees a placement: itself first, slots its own, and what others ask of the host is
/// theirs.
/// A card of Vulkan and one of CUDA, and the rest on the host: rows, layers and texts say which is
/// which.
TEST_F(DeviceList, TiersAreCalledByTheirNames) {
  const auto spec = of(test::tiny_qwen3(), 8);
  const Machine machine({kPlenty, kPlenty}, kPlenty, {TierId::kVulkan, TierId::kCuda});
  const auto p = made(spec, machine, [](sharpi_plan_params* params, auto*) {
    params->n_gpu_layers = 6;
    params->split = SHARPI_SPLIT_ALL;
  });
  ASSERT_EQ(p->placement.route(), (std::vector{kOne, kTwo}));
  ASSERT_TRUE(p->placement.uses(DeviceIndex::kHost)) << layers(*p);
  const uint32_t tiers[] = {SHARPI_TIER_CPU, SHARPI_TIER_VULKAN, SHARPI_TIER_CUDA};
  for (const sharpi_plan_device& d : p->device_rows()) EXPECT_EQ(d.tier, tiers[d.device]);
  for (const MemoryRow& r : p->rows) EXPECT_EQ(r.tier, tiers[r.device]) << r.label;
  for (uint32_t l = 0; l < 8; ++l) {
    sharpi_layer_info info{};
    ASSERT_TRUE(describe_layer(*p, l, &info).is_ok());
    EXPECT_EQ(info.tier, tiers[info.device]) << l;
    EXPECT_EQ(info.ffn_tier, tiers[info.ffn_device]) << l;
  }
  const std::string json = p->json();
  EXPECT_NE(json.find("\"embedding_tier\": \"vulkan\""), std::string::npos) << json;
  for (const char* name : {"cpu", "vulkan", "cuda"})
    EXPECT_NE(json.find("\"tier\": \"" + std::string(name) + "\""), std::string::npos) << json;
}

TEST_F(DeviceList, APlacementIsSeenFromEveryDevice) {
  const auto spec = of(test::tiny_qwen3moe(), 6);
  Placement p = Placement::all(*spec, DeviceIndex::kHost);
  for (uint32_t l = 0; l < 5; ++l) p.mixer[l] = p.ffn[l] = l < 2 ? kOne : l < 4 ? kThree : kTwo;
  p.embedding = kOne, p.head = kTwo;
  p.slots_of.assign(kMaxDevices, 0);
  p.slots_of[1] = 4, p.slots_of[2] = 5, p.slots_of[3] = 6;
  p.n_expert_slots = 15;
  EXPECT_EQ(p.seen_from(DeviceIndex::kHost), p);
  for (const DeviceIndex d : {kOne, kTwo, kThree}) {
    const Placement own = p.seen_from(d);
    EXPECT_EQ(own.n_expert_slots, p.slots_of[index_of(d)]);
    EXPECT_EQ(own.n_parted_experts(*spec), p.n_parted_experts(*spec, d));
    EXPECT_EQ(own.embedding == DeviceIndex::kHere, d == kOne);
    EXPECT_EQ(own.head == DeviceIndex::kHere, d == kTwo);
    for (uint32_t l = 0; l < 6; ++l) {
      EXPECT_EQ(own.mixer[l] == DeviceIndex::kHere, p.mixer[l] == d) << l;
      EXPECT_EQ(is_host(own.mixer[l]), is_host(p.mixer[l])) << l;
      EXPECT_EQ(own.parts_experts(*spec, l), p.ffn[l] == d) << l;
    }
    EXPECT_EQ(own.route().size(), 3u) << "others stay apart";
  }
}
}  // namespace
}  // namespace sharpi
