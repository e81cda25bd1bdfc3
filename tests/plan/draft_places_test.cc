// SPDX-License-Identifier: MIT
// Where drafters go: the block for multi-token prediction with the head, a second model with it
// where it fits; every byte on the device that holds it. What does not fit is refused, or `auto`
// goes without and says so.
#include "plan/paper_tier.h"

namespace sharpi {
namespace {

using DraftPlaces = test::Solving;
using test::PaperRequest;

/// Device and host bytes of a drafter's rows, by the word that their labels begin with.
std::pair<uint64_t, uint64_t> held_by(const Plan& plan, const std::string& word) {
  std::pair<uint64_t, uint64_t> held;
  for (const MemoryRow& r : plan.rows) {
    if (!std::string(r.label).starts_with(word)) continue;
    (r.tier == SHARPI_TIER_CUDA ? held.first : held.second) += r.held_bytes;
  }
  return held;
}

/// Of the hidden rows that wait, in host memory wherever the block is.
uint64_t mtp_queue_row(const Plan& plan) {
  return held_by(plan, "MTP hidden rows").second;
}

uint64_t device_bytes(const Plan& plan) {
  return plan.summary().device_held_bytes;
}

bool says(const Plan& plan, const std::string& key, const std::string& value) {
  return plan.json().find("\"" + key + "\": \"" + value + "\"") != std::string::npos;
}

std::string sentences(const Plan& plan) {
  std::string all;
  for (const std::string& text : plan.fallbacks) all += text + "\n";
  return all;
}

/// Everything on a device of so many bytes.
PaperRequest whole(const ModelSpec& spec, uint64_t device, uint32_t drafters) {
  PaperRequest r;
  r.layers = r.ffn = static_cast<int32_t>(spec.n_layers());
  r.experts = spec.layers[0].ffn.kind == FfnKind::kMoe ? r.layers : -1;
  r.ends = 1;
  r.device = 1ull << 40;
  r.device_budget = device;
  r.kv = r.tail = SHARPI_KV_BF16;
  r.drafters = drafters;
  return r;
}

TEST_F(DraftPlaces, TheMtpBlockGoesWithTheHead) {
  for (const auto& recipe : {test::tiny_qwen35(), test::tiny_qwen35moe()}) {
    SCOPED_TRACE(recipe.arch);
    const auto spec = spec_of(recipe);
    const uint32_t both = SHARPI_DRAFT_MTP | SHARPI_DRAFT_NGRAM;
    const auto plain = must(spec, {.device = kPlenty, .drafters = SHARPI_DRAFT_NGRAM});
    for (const uint32_t drafters : {both, SHARPI_DRAFT_AUTO}) {
      const auto there = must(spec, {.device = kPlenty, .drafters = drafters});
      EXPECT_TRUE(there->placement.mtp);
      EXPECT_EQ(there->placement.head, DeviceIndex::kHere);
      EXPECT_EQ(there->session.drafters, both);
      EXPECT_TRUE(says(*there, "mtp_tier", "cuda"));
      EXPECT_EQ(there->fallbacks.size(), 0u);
      const auto [device, host] = held_by(*there, "MTP ");
      EXPECT_EQ(device_bytes(*there), device_bytes(*plain) + device);
      const LayerSpec& layer = spec->mtp.layer;
      const uint64_t block = test::mixer_bytes(layer) + test::ffn_bytes(layer) +
                             test::routed_bytes(layer) + spec->mtp.pair.proj.bytes();
      EXPECT_EQ(held_by(*there, "MTP weights").first, block + 1)
          << "the model lends its embedding and its head";
      EXPECT_EQ(host, mtp_queue_row(*there)) << "hidden rows wait in the engine";
      const auto split = must(spec, {.ends = 0, .device = kPlenty, .drafters = drafters});
      EXPECT_TRUE(split->placement.mtp);
      EXPECT_TRUE(says(*split, "mtp_tier", "cpu"));
      EXPECT_TRUE(says(*split, "draft_model_tier", "none"));
      EXPECT_EQ(split->session.drafters, both);
      EXPECT_EQ(held_by(*split, "MTP ").first, 0u);
      EXPECT_GT(held_by(*split, "MTP ").second, mtp_queue_row(*split));
    }
  }
}

TEST_F(DraftPlaces, ADeviceThatHoldsTheModelButNotTheMtpBlock) {
  const auto spec = spec_of(test::tiny_qwen35());
  const uint32_t both = SHARPI_DRAFT_MTP | SHARPI_DRAFT_NGRAM;
  const uint64_t most = device_bytes(*must(spec, whole(*spec, kPlenty, both)));
  EXPECT_EQ(must(spec, whole(*spec, most, both))->fallbacks.size(), 0u);
  refused(spec, whole(*spec, most - 1, both), Code::kDoesNotFit, "more than the device_budget");
  const auto left = must(spec, whole(*spec, most - 1, SHARPI_DRAFT_AUTO));
  EXPECT_FALSE(left->placement.mtp);
  EXPECT_EQ(left->session.drafters, SHARPI_DRAFT_NGRAM);
  EXPECT_NE(sentences(*left).find("the MTP drafter is left out: the plan takes"), std::string::npos)
      << sentences(*left);
  EXPECT_EQ(held_by(*left, "MTP "), std::make_pair(uint64_t{0}, uint64_t{0}));
}

TEST_F(DraftPlaces, ADraftModelGoesWithTheHead) {
  const auto spec = spec_of(test::tiny_qwen3()), draft = spec_of(test::tiny_qwen3moe());
  for (const uint32_t drafters : {SHARPI_DRAFT_MODEL, SHARPI_DRAFT_AUTO}) {
    const auto there = must(spec, {.device = kPlenty, .drafters = drafters, .draft = draft});
    EXPECT_EQ(there->placement.draft, DeviceIndex::kHere);
    EXPECT_TRUE(says(*there, "draft_model_tier", "cuda"));
    EXPECT_EQ(sentences(*there).find("draft model"), std::string::npos) << sentences(*there);
    const auto [device, host] = held_by(*there, "drafter ");
    const auto alone = must(spec, {.device = kPlenty, .drafters = SHARPI_DRAFT_NGRAM});
    EXPECT_EQ(device_bytes(*there), device_bytes(*alone) + device);
    const auto here =
        must(spec, {.ends = 0, .device = kPlenty, .drafters = drafters, .draft = draft});
    EXPECT_EQ(here->placement.draft, DeviceIndex::kHost);
    EXPECT_EQ(held_by(*here, "drafter ").first, 0u);
    EXPECT_GT(held_by(*here, "drafter ").second, host);
    EXPECT_EQ(sentences(*here).find("the draft model is on the CPU"), std::string::npos)
        << "that is where the head is";
  }
}

/// Blocks of the model give way to a drafter, but not the head; pinned blocks stay, and then it is
/// on the CPU.
TEST_F(DraftPlaces, ADeviceThatHoldsTheModelButNotTheDraftModel) {
  const auto spec = spec_of(test::tiny_qwen3()), draft = spec_of(test::tiny_qwen3moe());
  PaperRequest r = whole(*spec, kPlenty, SHARPI_DRAFT_MODEL);
  r.draft = draft;
  const uint64_t most = device_bytes(*must(spec, r));
  r.device_budget = most - 1;
  const auto apart = must(spec, r);
  EXPECT_EQ(apart->placement.draft, DeviceIndex::kHost);
  EXPECT_EQ(held_by(*apart, "drafter ").first, 0u);
  EXPECT_GT(held_by(*apart, "drafter ").second, 0u);
  EXPECT_NE(sentences(*apart).find("the draft model is on the CPU: the plan takes"),
            std::string::npos)
      << sentences(*apart);

  r.layers = r.ffn = r.ends = -1;
  const auto gives = must(spec, r);
  EXPECT_EQ(gives->placement.draft, DeviceIndex::kHere);
  EXPECT_EQ(gives->placement.head, DeviceIndex::kHere);
  EXPECT_LT(gives->summary().n_gpu_ffn, spec->n_layers());

  r.device_budget = held_by(*gives, "drafter ").first;  // the drafter, or most of the model
  const auto kept = must(spec, r);
  EXPECT_EQ(kept->placement.head, DeviceIndex::kHere);
  EXPECT_EQ(kept->placement.draft, DeviceIndex::kHost);
  EXPECT_NE(sentences(*kept).find("beside it the head would not fit the GPU"), std::string::npos)
      << sentences(*kept);
}

TEST_F(DraftPlaces, NoMemoryHoldsTheDraftModel) {
  const auto spec = spec_of(test::tiny_qwen3()), draft = spec_of(test::tiny_qwen3moe());
  PaperRequest r = whole(*spec, kPlenty, SHARPI_DRAFT_NGRAM);
  const auto alone = must(spec, r);
  r.device_budget = device_bytes(*alone);
  r.host_budget = alone->summary().host_peak_bytes;
  EXPECT_EQ(must(spec, r)->fallbacks.size(), 0u);
  r.draft = draft;
  r.drafters = SHARPI_DRAFT_MODEL;
  refused(spec, r, Code::kDoesNotFit, "the plan takes");
  r.drafters = SHARPI_DRAFT_AUTO;
  const auto left = must(spec, r);
  EXPECT_EQ(left->session.drafters, SHARPI_DRAFT_NGRAM);
  EXPECT_NE(sentences(*left).find("the MODEL drafter is left out: the plan takes"),
            std::string::npos)
      << sentences(*left);
  EXPECT_EQ(held_by(*left, "drafter "), std::make_pair(uint64_t{0}, uint64_t{0}));
}

}  // namespace
}  // namespace sharpi
