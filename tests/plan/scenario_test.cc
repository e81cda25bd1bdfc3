// SPDX-License-Identifier: MIT
// The published geometries on a device of 12 GiB, and of the 10 854 MiB that such a card has free:
// KV payloads to the byte, what gives way and by how much, what is refused. Weights and KV rows
// only; tests/cuda/budget_test prices the same with everything that the CUDA tier takes.
#include "plan/paper_tier.h"
#include "plan/placement.h"
#include "support/real_models.h"

namespace sharpi {
namespace {

using test::ffn_bytes;
using test::routed_bytes;
using Request = test::PaperRequest;

constexpr uint64_t kMiB = 1ull << 20, kGiB = 1ull << 30;
constexpr uint64_t kBudgets[] = {12 * kGiB, 10854 * kMiB};

class Scenario : public test::Solving {
 protected:
  static Request request(uint64_t budget, uint32_t n_ctx, sharpi_kv_dtype kv) {
    return {.device = 80 * kGiB, .device_budget = budget, .n_ctx = n_ctx, .kv = kv};
  }
};

TEST_F(Scenario, Gemma12BHoldsALongContextWhole) {
  const auto spec = test::real_spec(test::real_gemma4_12b(), GgmlType::kQ4_0);
  uint64_t held[3] = {};
  for (const sharpi_kv_dtype kv : {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0}) {
    const auto p = must(spec, request(12 * kGiB, 131072, kv));
    const sharpi_plan_summary s = p->summary();
    EXPECT_EQ(s.n_gpu_layers, 48u);
    EXPECT_EQ(s.n_gpu_ffn, 48u);
    EXPECT_EQ(p->placement.head, DeviceIndex::kHere);
    EXPECT_EQ(p->placement.embedding, DeviceIndex::kHere);
    EXPECT_TRUE(p->fallbacks.empty());
    held[kv - SHARPI_KV_F32] = s.device_held_bytes;
    // 8 global layers of 2 x 512 elements, 40 rings of 1088 slots of 2 x 2048.
    const uint64_t elements = 8ull * 131072 * 1024 + 40ull * 1088 * 4096;
    const uint64_t bytes = kv == SHARPI_KV_F32    ? elements * 4
                           : kv == SHARPI_KV_BF16 ? elements * 2
                                                  : elements / 32 * 34;
    EXPECT_EQ(s.kv_payload_bytes, bytes);
  }
  EXPECT_GT(held[0], held[1]);
  EXPECT_GT(held[1], held[2]);
  Request whole = request(0, 131072, SHARPI_KV_F32);
  whole.layers = whole.ffn = 48;
  whole.ends = 1;
  whole.device_budget = held[0] - 5;
  refused(spec, whole, Code::kDoesNotFit, "5 more than the device_budget");
  whole.device_budget = 12 * kGiB;
  whole.n_ctx = 262144;
  refused(spec, whole, Code::kDoesNotFit, "or n_ctx ");
  whole.kv = SHARPI_KV_AUTO;
  const auto narrowed = must(spec, whole);
  EXPECT_TRUE(narrowed->narrowed);
  ASSERT_EQ(narrowed->fallbacks.size(), 1u);
  EXPECT_NE(narrowed->fallbacks[0].find("bf16, not f32"), std::string::npos);
}

TEST_F(Scenario, Coder30BTurnsNarrowRowsIntoExpertSlots) {
  const auto spec = test::real_spec(test::real_qwen3_coder_30b_a3b());
  for (const uint64_t budget : kBudgets) {
    const auto wide = must(spec, request(budget, 32768, SHARPI_KV_F32))->summary();
    const auto narrow = must(spec, request(budget, 32768, SHARPI_KV_Q8_0))->summary();
    EXPECT_EQ(wide.kv_payload_bytes, 6144 * kMiB);
    EXPECT_EQ(narrow.kv_payload_bytes, 1632 * kMiB);
    for (const sharpi_plan_summary& s : {wide, narrow}) {
      EXPECT_EQ(s.n_gpu_layers, 48u);
      EXPECT_EQ(s.n_gpu_ffn, 48u);
      EXPECT_EQ(s.n_gpu_experts, 0u);
      EXPECT_LE(s.device_held_bytes, budget);
      EXPECT_GT(s.device_held_bytes + s.expert_slot_bytes, budget) << "one more slot would fit";
    }
    const uint64_t slot = wide.expert_slot_bytes;
    EXPECT_EQ(slot, routed_bytes(spec->layers[0]) / 128);
    const uint64_t rest = wide.device_held_bytes - wide.n_expert_slots * slot;
    EXPECT_EQ(narrow.n_expert_slots, (budget - (rest - 6144 * kMiB + 1632 * kMiB)) / slot);
    EXPECT_GE(narrow.n_expert_slots - wide.n_expert_slots, 4512 * kMiB / slot);
    EXPECT_LE(narrow.n_expert_slots - wide.n_expert_slots, 4512 * kMiB / slot + 1);
  }
}

TEST_F(Scenario, RowsOfFourBitsHoldAllOfGemma12BsContext) {
  const auto spec = test::real_spec(test::real_gemma4_12b(), GgmlType::kQ4_0);
  const auto p = must(spec, request(10854 * kMiB, 262144, SHARPI_KV_Q4));
  const sharpi_plan_summary s = p->summary();
  EXPECT_EQ(s.n_gpu_layers, 48u);
  EXPECT_EQ(s.n_gpu_ffn, 48u);
  EXPECT_EQ(p->placement.head, DeviceIndex::kHere);
  EXPECT_EQ(p->placement.embedding, DeviceIndex::kHere);
  EXPECT_TRUE(p->fallbacks.empty());
  EXPECT_LE(s.device_held_bytes, 10854 * kMiB);
  const uint64_t elements = 8ull * 262144 * 1024 + 40ull * 1088 * 4096;
  EXPECT_EQ(s.kv_payload_bytes, elements / 32 * 18);
}

TEST_F(Scenario, RowsOfFourBitsAreExpertSlotsOfCoder30B) {
  const auto spec = test::real_spec(test::real_qwen3_coder_30b_a3b());
  for (const uint64_t budget : kBudgets) {
    const auto wide = must(spec, request(budget, 32768, SHARPI_KV_Q8_0))->summary();
    const auto narrow = must(spec, request(budget, 32768, SHARPI_KV_Q4))->summary();
    EXPECT_EQ(narrow.kv_payload_bytes, 6144 * kMiB / 64 * 9);  // 4.5 of 32 bits
    EXPECT_EQ(narrow.n_gpu_layers, 48u);
    EXPECT_LE(narrow.device_held_bytes, budget);
    const uint64_t slot = narrow.expert_slot_bytes, less = 1632 * kMiB - narrow.kv_payload_bytes;
    EXPECT_GT(narrow.device_held_bytes + slot, budget) << "one more slot would fit";
    EXPECT_GE(narrow.n_expert_slots - wide.n_expert_slots, less / slot);
    EXPECT_LE(narrow.n_expert_slots - wide.n_expert_slots, less / slot + 1);
  }
}

TEST_F(Scenario, Hybrid27BTurnsNarrowRowsIntoFfnBlocks) {
  const auto spec = test::real_spec(test::real_qwen36_27b());
  const uint64_t block = ffn_bytes(spec->layers[0]);
  for (const uint64_t budget : kBudgets) {
    const auto wide = must(spec, request(budget, 4096, SHARPI_KV_F32))->summary();
    const auto narrow = must(spec, request(budget, 4096, SHARPI_KV_BF16))->summary();
    EXPECT_EQ(wide.kv_payload_bytes, 512 * kMiB);
    EXPECT_EQ(narrow.kv_payload_bytes, 256 * kMiB);
    EXPECT_EQ(wide.n_gpu_layers, 64u) << "all mixers stay";
    EXPECT_EQ(narrow.n_gpu_layers, 64u);
    EXPECT_GE(256 * kMiB / block, 1u);
    EXPECT_GE(narrow.n_gpu_ffn - wide.n_gpu_ffn, 256 * kMiB / block);
    EXPECT_LE(narrow.n_gpu_ffn - wide.n_gpu_ffn, 256 * kMiB / block + 1);
    EXPECT_LT(narrow.n_gpu_ffn, 64u);
    for (const auto& s : {wide, narrow}) EXPECT_GT(s.device_held_bytes + block, budget);
  }
}

TEST_F(Scenario, OlmoeIsSplitInHalf) {
  const auto spec = test::real_spec(test::real_olmoe_1b_7b());
  for (const uint64_t budget : kBudgets) {
    for (const sharpi_kv_dtype kv : {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0}) {
      Request r = request(budget, 4096, kv);
      r.layers = 8;
      const auto p = must(spec, r);
      EXPECT_EQ(p->summary().n_gpu_layers, 8u);
      EXPECT_EQ(p->summary().k_dtype, kv);
      EXPECT_EQ(p->summary().tail_k_dtype, SHARPI_KV_F32);
      uint64_t payload[2] = {};
      for (const MemoryRow& row : p->rows) {
        if (row.purpose == SHARPI_ROW_KV) payload[row.tier - SHARPI_TIER_CPU] = row.payload_bytes;
      }
      const uint64_t elements = 8ull * 4096 * 4096;
      EXPECT_EQ(payload[0], elements * 4);
      EXPECT_EQ(payload[1], kv == SHARPI_KV_F32    ? elements * 4
                            : kv == SHARPI_KV_BF16 ? elements * 2
                                                   : elements / 32 * 34);
    }
  }
}

TEST_F(Scenario, GemmaE4BIsSplitOutsideItsSharingGroupOnly) {
  const auto spec = test::real_spec(test::real_gemma4_e4b());
  std::vector<uint32_t> outside;
  for (uint32_t n = 1; n <= spec->n_layers(); ++n) {
    Request r = request(12 * kGiB, 8192, SHARPI_KV_AUTO);
    r.layers = static_cast<int32_t>(n);
    if (is_layer_split(*spec, n)) {
      outside.push_back(n);
      const auto p = must(spec, r);
      for (uint32_t l = 0; l < spec->n_layers(); ++l) {
        const int32_t from = spec->layers[l].attention.kv_source;
        if (from < 0) continue;
        ASSERT_EQ(p->placement.mixer[l], p->placement.mixer[static_cast<size_t>(from)]);
      }
    } else {
      const std::string text = refused(spec, r, Code::kUnsupported, "share KV rows");
      EXPECT_NE(text.find("would not"), std::string::npos) << "the nearest splits are named";
    }
  }
  // The last 18 layers read the rows of layers 22 and 23.
  ASSERT_EQ(outside.size(), 23u);
  EXPECT_EQ(outside[21], 22u);
  EXPECT_EQ(outside[22], 42u);
}

TEST_F(Scenario, Hybrid35BKeepsItsMixersAndFillsSlots) {
  const auto spec = test::real_spec(test::real_qwen36_35b_a3b());
  for (const uint64_t budget : kBudgets) {
    const auto wide = must(spec, request(budget, 4096, SHARPI_KV_F32))->summary();
    const auto narrow = must(spec, request(budget, 4096, SHARPI_KV_BF16))->summary();
    const auto automatic = must(spec, request(budget, 4096, SHARPI_KV_AUTO))->summary();
    EXPECT_EQ(wide.kv_payload_bytes, 160 * kMiB);
    EXPECT_EQ(narrow.kv_payload_bytes, 80 * kMiB);
    EXPECT_EQ(automatic.k_dtype, SHARPI_KV_BF16);
    EXPECT_EQ(wide.n_gpu_layers, 40u);
    EXPECT_EQ(wide.n_gpu_ffn, 40u);
    EXPECT_EQ(wide.n_gpu_experts, 0u);
    EXPECT_GT(wide.n_expert_slots, 0u);
    EXPECT_GE(narrow.n_expert_slots - wide.n_expert_slots, 80 * kMiB / wide.expert_slot_bytes);
  }
}

}  // namespace
}  // namespace sharpi
