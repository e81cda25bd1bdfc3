// SPDX-License-Identifier: MIT
// The operations of a pass: every fixture's list, and what splits over tiers change in it.
#include "tier/segment_program.h"

#include <gtest/gtest.h>

#include <map>

#include "model/model_spec.h"
#include "support/golden.h"
#include "tier/tier.h"

namespace sharpi::testing {
namespace {

std::shared_ptr<const ModelSpec> load(const std::string& name) {
  const auto fixture = find_fixture(name);
  if (!fixture) return nullptr;
  auto file = GgufFile::open(fixture->gguf_path);
  EXPECT_TRUE(file.is_ok()) << file.status().text();
  auto spec = load_model_spec(file.take());
  EXPECT_TRUE(spec.is_ok()) << spec.status().text();
  return spec.is_ok() ? spec.take() : nullptr;
}

using Lines = std::vector<std::string>;
Lines text_of(const std::vector<Segment>& segments) {
  Lines out;
  for (const Segment& s : segments) {
    for (const std::string& line : program_text(s.program))
      out.push_back((s.device == DeviceIndex::kHost ? "c " : "g ") + line);
  }
  return out;
}

const std::string kFull = "attention in, attention rows, attend, attention out";
const std::string kWindowed = "attention in, keep ring, attention rows, attend, attention out";
const std::string kDelta = "delta in, delta net, delta out";
const std::string kMamba = "mamba in, mamba, mamba out";
const std::string kDense = ", ffn in, ffn out";
const std::string kRouted = ", route, experts";
const std::string kScaled = ", scale";
const std::string kInjected = ", ffn in, ffn out, inject per-layer input";

const std::map<std::string, Lines>& lists() {
  const std::string shared = kRouted + ", shared expert";
  const std::string beside = shared + kScaled;
  const Lines two = {"c embed, rope tables", "c layers 0-1: " + kFull + kDense, "c head"};
  static const std::map<std::string, Lines> lists = {
      {"tiny-qwen3", {"c embed, rope tables", "c layers 0-3: " + kFull + kDense, "c head"}},
      {"tiny-qwen3moe", {"c embed, rope tables", "c layers 0-3: " + kFull + kRouted, "c head"}},
      {"tiny-olmoe", {"c embed, rope tables", "c layers 0-3: " + kFull + kRouted, "c head"}},
      {"tiny-gemma4",
       {"c embed, per-layer inputs, rope tables", "c layers 0-2: " + kWindowed + kInjected,
        "c layers 3-6: " + kFull + kInjected, "c layer 7: " + kFull + ", keep ring" + kInjected,
        "c head"}},
      {"tiny-gemma4kv",
       {"c embed, rope tables", "c layers 0-2: " + kWindowed + kDense,
        "c layer 3: " + kFull + ", keep ring" + kDense, "c head"}},
      {"tiny-qwen35",
       {"c embed", "c layers 0-2, 4-6: " + kDelta + kDense, "c rope tables",
        "c layers 3, 7: " + kFull + kDense, "c head"}},
      {"tiny-qwen35moe",
       {"c embed", "c layers 0-2: " + kDelta + shared, "c rope tables",
        "c layer 3: " + kFull + shared, "c head"}},
      {"rand-llama3", two},
      {"rand-llama-linear", two},
      {"rand-llama-yarn", two},
      {"rand-mistral",
       {"c embed, rope tables", "c layer 0: " + kWindowed + kDense,
        "c layer 1: " + kWindowed + ", keep ring" + kDense, "c head"}},
      {"rand-mistral3", two},
      {"rand-phi3", {"c embed, rope tables", "c layers 0-2: " + kFull + kDense, "c head"}},
      {"rand-qwen2", two},
      {"rand-qwen3next",
       {"c embed", "c layers 0-1: " + kDelta + shared, "c rope tables",
        "c layer 2: " + kFull + shared, "c head"}},
      {"rand-smollm3", {"c embed, rope tables", "c layers 0-4: " + kFull + kDense, "c head"}},
      {"rand-gpt-oss",
       {"c embed, rope tables", "c layer 0: " + kWindowed + kRouted,
        "c layer 1: " + kFull + kRouted, "c layer 2: " + kWindowed + ", keep ring" + kRouted,
        "c head"}},
      {"rand-gemma4-moe",
       {"c embed, rope tables", "c layers 0-1: " + kWindowed + beside,
        "c layer 2: " + kFull + ", keep ring" + beside, "c head"}},
      {"rand-gemma4-e2b",
       {"c embed, per-layer inputs, rope tables", "c layer 0: " + kWindowed + kInjected + kScaled,
        "c layers 1-2: " + kFull + kInjected + kScaled,
        "c layer 3: " + kFull + ", keep ring" + kInjected + kScaled, "c head"}},
      {"rand-granite-moe",
       {"c embed", "c layers 0, 2: " + kMamba + shared, "c rope tables",
        "c layer 1: " + kFull + shared, "c head"}},
      {"rand-granite",
       {"c embed", "c layers 0, 2: " + kMamba + kDense, "c rope tables",
        "c layer 1: " + kFull + kDense, "c head"}},
      {"rand-nemotron-moe",
       {"c embed", "c layers 0, 3, 5: " + kMamba, "c layers 1, 4: " + shared.substr(2),
        "c rope tables", "c layer 2: " + kFull, "c head"}},
      {"rand-nemotron",
       {"c embed", "c layers 0, 2: " + kMamba, "c layers 1, 4: " + kDense.substr(2),
        "c rope tables", "c layer 3: " + kFull, "c head"}},
      {"rand-deepseek2",
       {"c embed, rope tables", "c layer 0: " + kFull + kDense, "c layers 1-2: " + kFull + shared,
        "c head"}},
      {"rand-glm-flash",
       {"c embed, rope tables", "c layer 0: " + kFull + kDense, "c layers 1-2: " + kFull + shared,
        "c head"}},
      {"rand-gemma3",
       {"c embed, rope tables", "c layers 0-4: " + kWindowed + kDense,
        "c layer 5: " + kFull + ", keep ring" + kDense, "c head"}},
  };
  return lists;
}

TEST(SegmentProgram, EveryFixturesList) {
  for (const std::string& name : all_models()) {
    ASSERT_TRUE(lists().contains(name)) << name << ": say what its list is";
    const auto spec = load(name);
    if (spec == nullptr) continue;  // a fixture that is not at hand
    const auto segments = make_segments(*spec, Placement::all(*spec, DeviceIndex::kHost));
    EXPECT_EQ(text_of(segments), lists().at(name)) << name;
  }
}

/// Every block begins with an operation that says so, in front of which a pass may stop.
TEST(SegmentProgram, EveryBlockOpens) {
  for (const std::string& name : all_models()) {
    const auto spec = load(name);
    if (spec == nullptr) continue;
    for (const Segment& s : make_segments(*spec, Placement::all(*spec, DeviceIndex::kHost))) {
      size_t opening = 0, blocks = 0;
      for (const Op& op : s.program) opening += op.opens ? 1 : 0;
      for (const Block& b : s.blocks) {
        const bool none =
            b.kind == BlockKind::kMixer && spec->layers[b.layer].mixer == MixerKind::kNone;
        blocks += b.kind == BlockKind::kExperts || none ? 0 : 1;
      }
      EXPECT_EQ(opening, blocks) << name;
      EXPECT_TRUE(s.program.front().opens) << name;
    }
  }
}

/// The first n layers on the GPU, embedding and head where `ends` says.
Placement split(const ModelSpec& spec, uint32_t n, DeviceIndex ends) {
  Placement p = Placement::all(spec, DeviceIndex::kHost);
  p.embedding = p.head = ends;
  for (uint32_t l = 0; l < n; ++l) p.mixer[l] = p.ffn[l] = p.experts[l] = DeviceIndex::kHere;
  return p;
}

/// Per-layer inputs are made where they are read: of the rows in front of the first layer,
/// elsewhere of tokens that are embedded again, once. Rings are kept behind the last mixer of each
/// tier.
TEST(SegmentProgram, SplitsMakePerLayerInputsOnBothSides) {
  const auto spec = load("tiny-gemma4");
  if (spec == nullptr) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
  const std::string again = "c per-layer inputs of tokens embedded again";
  const std::string layer3 = kFull + ", keep ring" + kInjected;
  EXPECT_EQ(
      text_of(make_segments(*spec, split(*spec, 4, DeviceIndex::kHere))),
      (Lines{"g embed, per-layer inputs, rope tables", "g layers 0-2: " + kWindowed + kInjected,
             "g layer 3: " + layer3, "c rope tables", "c layer 4: " + kFull, again,
             "c layer 4: ffn in, ffn out, inject per-layer input",
             "c layers 5-6: " + kFull + kInjected,
             "c layer 7: " + kFull + ", keep ring" + kInjected, "g head"}));
  EXPECT_EQ(text_of(make_segments(*spec, split(*spec, 4, DeviceIndex::kHost)))[1],
            "g per-layer inputs, rope tables");
}

/// FFN blocks whose weights are elsewhere have them brought and given back; whoever else has his
/// own keeps them.
TEST(SegmentProgram, StreamedBlocksFetchTheirWeights) {
  const auto spec = load("tiny-qwen3");
  if (spec == nullptr) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
  Placement home = split(*spec, 4, DeviceIndex::kHere), runs = home;
  home.ffn[2] = home.ffn[3] = DeviceIndex::kHost;
  const std::string fetched = ", fetch weights" + kDense + ", release weights";
  EXPECT_EQ(text_of(make_segments(*spec, runs, &home)),
            (Lines{"g embed, rope tables", "g layers 0-3: " + kFull + fetched, "g head"}));
  EXPECT_EQ(text_of(make_segments(*spec, home))[1], "g layers 0-1: " + kFull + kDense);
}

/// The block for multi-token prediction starts from pairs.
TEST(SegmentProgram, TheMtpBlockStartsFromPairs) {
  const auto spec = load("tiny-qwen35");
  if (spec == nullptr) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
  const auto mtp = make_mtp_spec(*spec);
  EXPECT_EQ(text_of(make_segments(*mtp, Placement::all(*mtp, DeviceIndex::kHost))),
            (Lines{"c embed pairs, rope tables", "c layer 0: " + kFull + kDense, "c head"}));
}

}  // namespace
}  // namespace sharpi::testing
