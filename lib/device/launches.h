// SPDX-License-Identifier: MIT
// What a pass launches, as a list: fuse() makes it of a segment's operations
// (tier/segment_program.h) from the matrices, the number of rows and what the tier's kernels say
// that they take (StepKernels) alone, and the model goes through it. In a captured step of few
// rows, products that follow each other become chains, and a mixture of experts becomes one launch
// with the products in front and behind, where the kernels take them; elsewhere each product is a
// launch. Plain C++, so that tests read the list where there is no device. Thread rule: plain
// values, pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/buffers.h"
#include "device/epilogue.h"
#include "tier/tier.h"

namespace sharpi::device {

enum class LaunchKind : uint8_t {
  kEmbed,
  kEmbedPairs,       // a token's embedding and the hidden row that came in, both normalised
  kPerLayerTable,    // rows of the per-layer table in f32
  kPerLayerCombine,  // with their projection
  kRopeTables,
  kProduct,        // one link
  kChain,          // links
  kResidual,       // a sum by itself
  kKeepRing,       // if rows wait for their ring; the layer is theirs when it is made
  kRows,           // queries, keys and values: norms, RoPE, to where they are kept
  kLatentQueries,  // heads of latent attention: the parts of queries that are not turned, to it
  kReplay,         // replay scores of the rows that were stored
  kAttention,
  kLatentOutputs,  // heads of latent attention: of sums of latents, as the output product reads
                   // them
  kDeltaNet,
  kMamba,
  kActivation,  // of hidden rows that no gate goes with, or whose product has not applied it
  kAdapters,    // what adapters add to the product in front, whose link is this one's
  kRouter,      // choice and shares of the experts, from the logits
  kSharedGate,  // of the shared expert
  kExperts,     // routed ones
  kMoeStep,     // router, routed and shared experts of few rows, products in front and behind
  kSendRows,    // to the host that computes experts
  kSlotExperts,
  kAnswers,  // the host's sum
  kPerLayerGate,
  kHeadRows,    // norm of the rows that logits are wanted of
  kLogits,      // to the sessions
  kHiddenRows,  // the head's norm of all rows, for an MTP block
  kFetchWeights,
  kReleaseWeights,
  kLayerEnd,
};

/// Matrices that one product takes at most.
inline constexpr uint32_t kMaxProductTasks = 4;

/// Up to four matrices times the same rows, by name.
struct RowProduct {
  struct Task {
    const TensorRef* w = nullptr;
    Buf y = Buf::kCount;
    const TensorRef* bias = nullptr;  // of its outputs; nullptr or absent: none
  };
  Buf x = Buf::kX;
  const TensorRef* norm = nullptr;  // of x first; nullptr or absent: none
  uint32_t n_tasks = 0;
  Task tasks[kMaxProductTasks];
  Epilogue epilogue = Epilogue::kStore;
  bool of_head = false;       // of the head's rows instead of the call's
  bool shared_scale = false;  // outputs are scaled by kSharedGate
  bool force_f32 = false;
};

/// RowSum::x where nothing is added to.
inline constexpr Buf kNoRows = Buf::kCount;

/// to = scale * (x + share * norm(kY)).
struct RowSum {
  bool adds = false;                // nothing is added: x is scaled or copied
  const TensorRef* norm = nullptr;  // nullptr or absent: none
  float scale = 1.0f, share = 1.0f;
  Buf x = Buf::kX, to = Buf::kX;
};

/// A link of a chain by name: a product, and what is added to its input before it.
/// Products around experts are links without a sum.
struct RowLink {
  RowProduct product;
  RowSum sum;  // the product reads its `to`
  uint32_t layer = 0;
};

struct Launch {
  LaunchKind kind = LaunchKind::kEmbed;
  uint32_t layer = 0;
  bool opens = false;                    // begins a block: in front of it a pass may stop
  uint32_t first_link = 0, n_links = 0;  // of the list's; kMoeStep: in front, behind
  bool has_before = false;               // kMoeStep: the first link is in front
  Buf to = Buf::kX;                      // experts and answers: where they go
  bool add = true;                       // to what is there
  RowSum sum;                            // kResidual
};

struct LaunchList {
  std::vector<Launch> launches;
  std::vector<RowLink> links;
  /// Chains, and those that went launch by launch because there is no room for them.
  uint32_t n_chains = 0, n_apart = 0;
  /// The name of an operation that this tier does not have; nullptr: it has all of them.
  const char* unknown = nullptr;
};

enum class HeadRows : uint8_t { kNone, kInOrder, kPicked };  // kInOrder: row i is head row i

/// Router, routed and shared experts of a layer, and the products in front and behind (nullptr:
/// none), that one launch may take.
struct ExpertStep {
  uint32_t layer = 0;
  Buf to = Buf::kX;
  bool add = true;
  const RowProduct* before = nullptr;
  const RowProduct* after = nullptr;
};

/// What fuse() asks a tier's kernels, for passes of one number of rows. A tier whose kernels take
/// one operation each says 0 and false.
class StepKernels {
 public:
  virtual ~StepKernels() = default;
  /// Rows of a step whose products go in chains at most, 0 = none do; links of a chain at most.
  virtual uint32_t max_chain_rows() const = 0;
  virtual uint32_t max_chain_links() const = 0;
  /// Whether a product, with the sum in front of it, can be a link of a chain.
  virtual bool chain_takes(const RowLink& link) const = 0;
  /// Whether one launch has room for these links together.
  virtual bool chain_fits(std::span<const RowLink> links) const = 0;
  virtual bool takes(const ExpertStep& step) const = 0;
};

/// All that a list depends on besides the operations and the kernels.
struct PassFacts {
  const ModelSpec* spec = nullptr;
  const Placement* placement = nullptr;
  uint32_t n_rows = 1;
  bool fuses = false;         // a captured step: launches whose blocks wait for each other
  bool streamed = false;      // what is placed elsewhere comes over for the pass
  bool rows_to_ring = false;  // of windowed layers, at once
  bool keeps_hidden = false;  // the pass leaves hidden rows for an MTP block
  HeadRows head = HeadRows::kInOrder;
  bool replays = false;       // rows of full attention get replay scores
  bool expert_slots = false;  // there are such, and calls of so many rows use them
  uint32_t n_adapters = 0;    // the most that a sequence of the pass has
  bool gates_apart = false;   // gates are applied by a launch behind the product of gate and up
};

/// How n rows of the head are taken that stand in the order of the call's rows, or do not.
HeadRows head_rows(bool deterministic, uint32_t n, bool in_order);

/// Whether a model's captured steps leave their hidden rows, in kY: it has its head here and an MTP
/// block beside it, or is such a block.
bool keeps_hidden(const ModelSpec& spec, const Placement& placement);
/// Whether the head is on the device, and not in another process.
inline bool has_head(const ModelSpec& spec, const Placement& placement) {
  return placement.head == DeviceIndex::kHere && spec.part.has_head();
}

/// What makes the hidden rows of an FFN, or of its experts, of the sums of products: a gate's
/// function, or kSquare.
Epilogue hidden_epilogue(const FfnSpec& f);

/// Whether kActivation has a gate to apply: kFfn = gate of kFfn times kUp.
bool has_gate(const FfnSpec& f);

/// Elements of a row that kActivation goes over: of a dense FFN, or of the shared expert.
uint32_t hidden_width(const FfnSpec& f);

LaunchList fuse(const SegmentProgram& program, const PassFacts& facts, const StepKernels& kernels);

/// The facts of a captured step of n_rows rows, as far as they are known without a workspace.
PassFacts step_facts(const ModelSpec& spec, const Placement& placement, bool deterministic,
                     uint32_t n_rows = 1);

/// The list for people, equal layers together; what is in brackets is one launch:
/// "layers 1-2: rows; attention; [attn_output | ffn_gate, ffn_up | ffn_down | attn_q, attn_k]".
std::vector<std::string> launch_text(const LaunchList& list);

/// Tests only, nothing in the library calls it: from now on every launch that a pass has made is
/// shown to `seen` with the list that it is of. `recorded`: of a step of one row, by the capture of
/// its graph. nullptr: to nobody. Thread rule: while no pass runs.
using LaunchWatch = void (*)(const LaunchList& list, const Launch& launch, bool recorded);
void watch_launches(LaunchWatch seen);
LaunchWatch launch_watch();

}  // namespace sharpi::device
