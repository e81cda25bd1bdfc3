// SPDX-License-Identifier: MIT
// The launches of a decode step on every known card: the lists of all fixtures and of the published
// models as recorded (step_launches.txt), and what every list must have. Host code alone: this runs
// where there is neither a device nor a CUDA compiler.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "cuda/published_models.h"
#include "cuda/step_binding.h"
#include "support/golden.h"
#include "support/paths.h"

namespace sharpi::testing {
namespace {

using namespace cuda;
using namespace device;

struct NamedSpec {
  std::string name;
  std::shared_ptr<const ModelSpec> spec;
};

/// All fixtures that are at hand with their MTP blocks, and the published models, made once.
const std::vector<NamedSpec>& specs() {
  static const std::vector<NamedSpec> specs = [] {
    std::vector<NamedSpec> made;
    std::vector<std::string> names = trained_models();
    names.insert(names.end(), random_models().begin(), random_models().end());
    for (const std::string& name : names) {
      const auto fixture = find_fixture(name);
      if (!fixture) continue;
      auto file = GgufFile::open(fixture->gguf_path);
      EXPECT_TRUE(file.is_ok()) << file.status().text();
      auto spec = load_model_spec(file.take());
      EXPECT_TRUE(spec.is_ok()) << spec.status().text();
      made.push_back({name, spec.take()});
      const ModelSpec& whole = *made.back().spec;
      if (whole.mtp) made.push_back({name + ", MTP block", make_mtp_spec(whole)});
    }
    for (const PublishedModel& m : published_models()) made.push_back({m.name, m.spec});
    return made;
  }();
  return specs;
}

KernelConfig config_of(const DeviceProfile& device) {
  KernelConfig c;
  c.device = device;
  return c;
}

/// Placements that a plan can have: all, without the ends, without FFN blocks of the second half,
/// without its layers, without routed experts, without the embedding.
std::vector<Placement> placements(const ModelSpec& spec) {
  const uint32_t n = spec.n_layers();
  const Placement all = Placement::all(spec, DeviceIndex::kHere);
  std::vector<Placement> out(6, all);
  out[1].embedding = out[1].head = DeviceIndex::kHost;
  for (uint32_t l = 0; l < n; ++l) {
    if (l >= n / 2) out[2].ffn[l] = out[2].experts[l] = DeviceIndex::kHost;
    if (l >= n / 2) out[3].mixer[l] = out[3].ffn[l] = out[3].experts[l] = DeviceIndex::kHost;
    out[4].experts[l] = DeviceIndex::kHost;
  }
  for (Placement& p : out) p.mtp = static_cast<bool>(spec.mtp);
  out[5].embedding = DeviceIndex::kHost;
  return out;
}

/// The ways in which lists are made: captured steps and calls, of how many rows, with how much room
/// for chains.
struct Way {
  bool fuses;
  uint32_t n_rows;
  int chain_bytes;
  bool deterministic;
};
constexpr int kAllRoom = 1 << 30;
constexpr Way kWays[] = {
    {true, 1, kAllRoom, false},  {true, 1, kAllRoom, true},   {true, 1, 1 << 10, false},
    {false, 1, kAllRoom, false}, {false, 3, kAllRoom, false}, {true, 2, kAllRoom, false},
    {true, 3, kAllRoom, true},   {true, 3, 48 << 10, false},  {true, 4, kAllRoom, false},
    {true, 4, 1 << 10, false},   {true, 7, kAllRoom, false},
};

/// visit(list, facts, segment) for every model, card, placement and way.
template <class F>
void each_list(F&& visit) {
  each_card([&](const NamedCard&, const DeviceProfile& device) {
    for (const NamedSpec& m : specs()) {
      for (const Placement& place : placements(*m.spec)) {
        for (const Way& way : kWays) {
          SCOPED_TRACE(m.name + ", way " + std::to_string(&way - kWays));
          KernelConfig config = config_of(device);
          config.deterministic = way.deterministic;
          StepFacts f = step_facts(*m.spec, place, config, way.n_rows);
          f.chain_bytes = way.chain_bytes;
          f.fuses = way.fuses;
          for (const Segment& s : make_segments(*m.spec, place)) {
            if (s.device == DeviceIndex::kHere) visit(fuse(s.program, f), f, s);
          }
        }
      }
    }
  });
}

// --- the lists as recorded ---

std::string recorded_path() {
  return test::source_path("tests/cuda/step_launches.txt");
}

/// Cards with equal lists are named together, and so are numbers of rows for which all cards of
/// such a group have one list.
std::string lists_text() {
  std::string text;
  for (const NamedSpec& m : specs()) {
    std::vector<std::array<std::string, 3>> lists;  // cards, rows, list
    for (const uint32_t n_rows : {1u, 2u, 4u, 8u}) {
      std::vector<std::pair<std::string, std::string>> of_rows;  // cards, list
      each_card([&](const NamedCard& card, const DeviceProfile& device) {
        const Placement all = Placement::all(*m.spec, DeviceIndex::kHere);
        std::string list;
        for (const Segment& s : make_segments(*m.spec, all)) {
          const LaunchList made =
              fuse(s.program, step_facts(*m.spec, all, config_of(device), n_rows));
          for (const std::string& line : launch_text(made)) list += "  " + line + "\n";
        }
        const auto same =
            std::ranges::find(of_rows, list, &std::pair<std::string, std::string>::second);
        if (same == of_rows.end()) {
          of_rows.push_back({card.name, list});
        } else {
          same->first += std::string(", ") + card.name;
        }
      });
      for (const auto& [cards, list] : of_rows) {
        const auto same = std::ranges::find_if(
            lists, [&](const auto& l) { return l[0] == cards && l[2] == list; });
        if (same == lists.end()) {
          lists.push_back({cards, std::to_string(n_rows), list});
        } else {
          (*same)[1] += ", " + std::to_string(n_rows);
        }
      }
    }
    for (const auto& [cards, rows, list] : lists)
      text += m.name + " on " + cards + ", rows " + rows + "\n" + list;
  }
  return text;
}

/// SHARPI_RENEW_LISTS=1 records them anew, to be read with git diff.
TEST(StepLaunches, AreTheRecordedOnes) {
  const std::string made = lists_text();
  if (std::getenv("SHARPI_RENEW_LISTS") != nullptr) std::ofstream(recorded_path()) << made;
  std::ifstream file(recorded_path());
  ASSERT_TRUE(file.good()) << recorded_path();
  std::stringstream recorded;
  recorded << file.rdbuf();
  // Lists of fixtures that are not at hand are recorded and not made.
  std::map<std::string, std::string> want, have;
  const auto split = [](std::istream&& in, std::map<std::string, std::string>* out) {
    std::string line, head;
    while (std::getline(in, line)) {
      if (line.starts_with("  ")) {
        (*out)[head] += line + "\n";
      } else {
        head = line;
      }
    }
  };
  split(std::istringstream(recorded.str()), &want);
  split(std::istringstream(made), &have);
  for (const auto& [head, list] : have) EXPECT_EQ(list, want[head]) << head;
  if (list_fixtures().missing.empty()) {
    EXPECT_EQ(have.size(), want.size());
  }
}

// --- what every list must have ---

void add_product(const RowProduct& p, std::multiset<const GgufTensor*>* out) {
  for (uint32_t t = 0; t < p.n_tasks; ++t) out->insert(p.tasks[t].w->tensor);
}

/// Matrices that a list multiplies with, those inside launches of experts included.
std::multiset<const GgufTensor*> multiplied(const LaunchList& list, const StepFacts& facts) {
  std::multiset<const GgufTensor*> out;
  for (const Launch& l : list.launches) {
    for (uint32_t i = 0; i < l.n_links; ++i)
      add_product(list.links[l.first_link + i].product, &out);
    if (l.kind != LaunchKind::kMoeStep && l.kind != LaunchKind::kExperts) continue;
    const FfnSpec& f = facts.spec->layers[l.layer].ffn;
    std::vector<TensorRef> inside = {f.gate, f.up, f.down};
    if (l.kind == LaunchKind::kMoeStep) {
      inside.push_back(f.router);
      if (l.add) inside.insert(inside.end(), {f.shared_gate, f.shared_up, f.shared_down});
    }
    for (const TensorRef& w : inside) {
      if (w) out.insert(w.tensor);
    }
  }
  return out;
}

/// What the operations want multiplied, by the specification alone.
std::multiset<const GgufTensor*> wanted(const Segment& segment, const StepFacts& facts) {
  std::multiset<const GgufTensor*> out;
  const ModelSpec& s = *facts.spec;
  const auto add = [&](std::initializer_list<const TensorRef*> refs) {
    for (const TensorRef* w : refs) {
      if (*w) out.insert(w->tensor);
    }
  };
  for (const Op& op : segment.program) {
    const LayerSpec& l = s.layers[op.layer];
    const FfnSpec& f = l.ffn;
    if (op.kind == OpKind::kPerLayerInputs) add({&s.ple_model_proj});
    if (op.kind == OpKind::kEmbedPairs) add({&s.pair.proj});
    if (op.kind == OpKind::kHead) add({&s.output});
    if (op.kind == OpKind::kAttentionIn) {
      add({&l.attention.q, &l.attention.latent.q_a});
      if (l.attention.kv_source < 0) add({&l.attention.k, &l.attention.v});
    }
    if (op.kind == OpKind::kAttentionOut) add({&l.attention.o});
    if (op.kind == OpKind::kDeltaIn)
      add({&l.delta.qkv, &l.delta.gate, &l.delta.alpha, &l.delta.beta});
    if (op.kind == OpKind::kDeltaOut) add({&l.delta.out});
    if (op.kind == OpKind::kMambaIn) add({&l.mamba.xbc, &l.mamba.gate, &l.mamba.dt});
    if (op.kind == OpKind::kMambaOut) add({&l.mamba.out});
    if (op.kind == OpKind::kFfnIn) add({&f.gate, &f.up});
    if (op.kind == OpKind::kFfnOut) add({&f.down});
    if (op.kind == OpKind::kRoute) add({&f.router});
    if (op.kind == OpKind::kExperts && !facts.placement->parts_experts(s, op.layer))
      add({&f.gate, &f.up, &f.down});
    if (op.kind == OpKind::kSharedExpert) add({&f.shared_gate, &f.shared_up, &f.shared_down});
    if (op.kind == OpKind::kInjectPerLayer) add({&l.ple_gate, &l.ple_proj});
  }
  return out;
}

TEST(StepLaunches, MultiplyWithEveryMatrixOnce) {
  uint32_t n = 0;
  each_list([&](const LaunchList& list, const StepFacts& facts, const Segment& segment) {
    EXPECT_EQ(list.unknown, nullptr);
    EXPECT_EQ(multiplied(list, facts), wanted(segment, facts));
    ++n;
  });
  EXPECT_GT(n, 1000u);
}

/// What the kernels take of a list: a chain takes all its links and has room for them; experts of
/// few rows are taken; nothing waits for anything in calls that take no turn on the device.
void expect_taken(const LaunchList& list, const StepFacts& facts) {
  const PaperBinding paper(*facts.spec, facts.n_rows, facts.moe_sync_bytes);
  ChainTuning tuning;
  tuning.shared_bytes = facts.chain_bytes;
  for (const Launch& l : list.launches) {
    const RowLink* at = list.links.data() + l.first_link;
    if (l.kind == LaunchKind::kProduct) {
      EXPECT_EQ(l.n_links, 1u);
      // A sum is staged with the rows of a step that is not chained.
      const bool staged = facts.fuses && facts.n_rows > max_chain_rows(facts.config);
      EXPECT_TRUE(staged || !at->sum.adds);
      if (at->sum.adds) {
        EXPECT_EQ(at->sum.x, Buf::kX);
        EXPECT_EQ(at->sum.to, Buf::kX);
      }
    }
    if (l.kind == LaunchKind::kChain) {
      EXPECT_TRUE(facts.fuses);
      std::vector<ChainLink> links;
      for (uint32_t i = 0; i < l.n_links; ++i) links.push_back(paper.link(at[i]));
      for (const ChainLink& s : links) EXPECT_TRUE(chain_takes(facts.config, s));
      EXPECT_TRUE(chain_fits(facts.config, links.data(), l.n_links, tuning));
    }
    if (l.kind == LaunchKind::kMoeStep) {
      EXPECT_LE(facts.n_rows, max_moe_step_rows(facts.config));
      EXPECT_TRUE(facts.fuses || (facts.n_rows == 1 && l.n_links == 0));
      const RowProduct* before = l.has_before ? &at->product : nullptr;
      const RowProduct* after =
          l.n_links > (l.has_before ? 1u : 0u) ? &at[l.has_before].product : nullptr;
      EXPECT_TRUE(
          moe_step_takes(facts.config, paper.moe_step(l.layer, l.to, l.add, before, after)));
    }
  }
}

TEST(StepLaunches, AreOnesThatTheKernelsTake) {
  each_list([](const LaunchList& list, const StepFacts& facts, const Segment&) {
    expect_taken(list, facts);
  });
}

/// The MTP block of a model with heads of that many rows.
std::shared_ptr<const ModelSpec> mtp_block(uint32_t n_vocab, GgmlType type, uint32_t n_draft) {
  test::ModelRecipe r = test::tiny_qwen35();
  r.n_embd = 256;  // a row of every type
  r.n_vocab = n_vocab;
  r.table_type = type;
  const auto whole = test::load_model(test::ModelFile(r), false);
  EXPECT_TRUE(whole.is_ok()) << whole.status().text();
  return make_mtp_spec(*whole.value(), n_draft);
}

/// A head that drafts with its first rows lies as the whole tensor does, which was stored by its
/// height: 312 rows are no panels, 144 of them would be. Its launches are those of the whole head.
TEST(StepLaunches, APartOfTheHeadLiesAsTheWholeDoes) {
  for (const GgmlType type : {GgmlType::kQ4_K, GgmlType::kQ8_0, GgmlType::kF32}) {
    for (const uint32_t n_vocab : {320u, 312u}) {
      const auto whole = mtp_block(n_vocab, type, 0), part = mtp_block(n_vocab, type, 144);
      const PaperBinding of_whole(*whole, 1, 0), of_part(*part, 1, 0);
      const DeviceMatrix all = of_whole.matrix(whole->output), few = of_part.matrix(part->output);
      EXPECT_EQ(few.layout, all.layout);
      EXPECT_EQ(few.layout == WeightLayout::kTiles, n_vocab == 320 && type != GgmlType::kF32);
      EXPECT_EQ(few.data, all.data);
      EXPECT_EQ(all.n_out, n_vocab);
      EXPECT_EQ(few.n_out, 144u);
      EXPECT_EQ(of_part.matrix(part->token_embd).n_out, n_vocab) << "it reads all tokens";
      each_card([&](const NamedCard&, const DeviceProfile& device) {
        const Placement place = Placement::all(*part, DeviceIndex::kHere);
        const auto lists = [&](const ModelSpec& spec) {
          std::vector<std::string> text;
          const StepFacts facts = step_facts(spec, place, config_of(device), 1);
          for (const Segment& s : make_segments(spec, place)) {
            const LaunchList made = fuse(s.program, facts);
            expect_taken(made, facts);
            for (const std::string& line : launch_text(made)) text.push_back(line);
          }
          return text;
        };
        EXPECT_EQ(lists(*part), lists(*whole));
      });
    }
  }
}

/// Who reads the hidden row reads where it is, and it is in kX when a list ends. A row that moved
/// back without a sum is copied as it is: once it was scaled by what had been added before.
TEST(StepLaunches, FollowTheHiddenRow) {
  uint32_t n_moved = 0;
  each_list([&](const LaunchList& list, const StepFacts&, const Segment&) {
    Buf row = Buf::kX;
    const auto sum = [&](const RowSum& s) {
      if (s.to == Buf::kMoeSum || s.to == Buf::kY) {  // beside the hidden row
        EXPECT_EQ(s.x, s.to == Buf::kMoeSum ? kNoRows : Buf::kMoeSum);
        return;
      }
      EXPECT_EQ(s.x, row);
      if (!s.adds) {
        EXPECT_EQ(s.norm, nullptr);
      }
      if (!s.adds && s.to != s.x) {
        EXPECT_EQ(s.scale, 1.0f);
      }
      n_moved += s.to != s.x ? 1 : 0;
      row = s.to;
    };
    for (const Launch& l : list.launches) {
      if (l.kind == LaunchKind::kResidual) sum(l.sum);
      for (uint32_t i = 0; i < l.n_links; ++i) {
        const RowLink& s = list.links[l.first_link + i];
        EXPECT_TRUE(s.product.x != (row == Buf::kX ? Buf::kOtherX : Buf::kX));
        if (s.sum.adds) sum(s.sum);
        for (uint32_t t = 0; t < s.product.n_tasks; ++t)
          EXPECT_NE(s.product.tasks[t].y, row == Buf::kX ? Buf::kOtherX : Buf::kX);
      }
      if (l.kind != LaunchKind::kProduct && l.kind != LaunchKind::kChain &&
          l.kind != LaunchKind::kResidual && l.kind != LaunchKind::kLayerEnd &&
          l.kind != LaunchKind::kRows && l.kind != LaunchKind::kAttention &&
          l.kind != LaunchKind::kRopeTables && l.kind != LaunchKind::kDeltaNet) {
        EXPECT_EQ(row, Buf::kX);
      }
    }
    EXPECT_EQ(row, Buf::kX);
  });
  EXPECT_GT(n_moved, 0u);
}

/// Deterministic models take every row of the head by itself, and nothing goes together.
TEST(StepLaunches, OfDeterministicModelsAreKernelByKernel) {
  for (const NamedSpec& m : specs()) {
    KernelConfig config = config_of(named_card(3).profile);
    config.deterministic = true;
    const Placement all = Placement::all(*m.spec, DeviceIndex::kHere);
    const LaunchList list =
        fuse(make_segments(*m.spec, all)[0].program, step_facts(*m.spec, all, config));
    uint32_t n_picked = 0;
    for (const Launch& l : list.launches) {
      EXPECT_NE(l.kind, LaunchKind::kChain) << m.name;
      EXPECT_NE(l.kind, LaunchKind::kMoeStep) << m.name;
      n_picked += l.kind == LaunchKind::kHeadRows ? 1 : 0;
    }
    EXPECT_EQ(n_picked, 1u) << m.name;
  }
}

/// Without room for a chain its products are launches, in the same order.
TEST(StepLaunches, WithoutRoomLinksGoOneByOne) {
  uint32_t n_apart = 0;
  each_card([&](const NamedCard&, const DeviceProfile& device) {
    for (const NamedSpec& m : specs()) {
      const Placement all = Placement::all(*m.spec, DeviceIndex::kHere);
      const SegmentProgram program = make_segments(*m.spec, all)[0].program;
      StepFacts f = step_facts(*m.spec, all, config_of(device));
      const LaunchList chained = fuse(program, f);
      f.chain_bytes = 1 << 10;
      const LaunchList apart = fuse(program, f);
      EXPECT_EQ(apart.n_chains, 0u);
      EXPECT_EQ(apart.n_apart, chained.n_chains + chained.n_apart) << m.name;
      ASSERT_EQ(apart.links.size(), chained.links.size()) << m.name;
      for (size_t i = 0; i < apart.links.size(); ++i) {
        EXPECT_EQ(apart.links[i].product.tasks[0].w, chained.links[i].product.tasks[0].w);
      }
      n_apart += apart.n_apart;
    }
  });
  EXPECT_GT(n_apart, 0u);
}

/// What an MTP block starts from is left last, with and without logits, and by nobody else.
TEST(StepLaunches, LeaveHiddenRowsLast) {
  uint32_t n_left = 0;
  each_list([&](const LaunchList& with, const StepFacts& facts, const Segment& segment) {
    StepFacts silent = facts;
    silent.head = HeadRows::kNone;
    const LaunchList without = fuse(segment.program, silent);
    const bool ends = segment.blocks.back().kind == BlockKind::kHead;
    for (const LaunchList* list : {&with, &without}) {
      uint32_t n = 0;
      for (const Launch& l : list->launches) n += l.kind == LaunchKind::kHiddenRows ? 1 : 0;
      EXPECT_EQ(n, ends && facts.keeps_hidden ? 1u : 0u);
      if (n == 0) continue;
      EXPECT_EQ(list->launches.back().kind, LaunchKind::kHiddenRows);
      ++n_left;
    }
  });
  const bool any = std::any_of(specs().begin(), specs().end(),
                               [](const NamedSpec& m) { return m.spec->mtp || m.spec->pair; });
  EXPECT_EQ(n_left != 0, any);
}

TEST(StepLaunches, NameAnOperationThatTheTierDoesNotHave) {
  const NamedSpec& m = specs().back();
  const StepFacts f = step_facts(*m.spec, Placement::all(*m.spec, DeviceIndex::kHere),
                                 config_of(named_card(0).profile));
  const LaunchList list = fuse({{OpKind::kPerLayerInputsAgain, 0, true}}, f);
  ASSERT_NE(list.unknown, nullptr);
  EXPECT_STREQ(list.unknown, "per-layer inputs of tokens embedded again");
}

}  // namespace
}  // namespace sharpi::testing
