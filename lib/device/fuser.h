// SPDX-License-Identifier: MIT
// How fuse() makes a list of launches (launches.h): it goes through the operations of a segment and
// keeps back what may join what follows. fuse.cc has chains, mixers and ends, fuse_experts.cc the
// mixtures of experts. Thread rule: one owner.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/launches.h"

namespace sharpi::device {

/// What is kept back: links of a chain, sums in front of them, the product in front of experts, and
/// experts until what follows them is known.
class Fuser {
 public:
  Fuser(const PassFacts& facts, const StepKernels& kernels)
      : facts_(facts),
        kernels_(kernels),
        spec_(*facts.spec),
        chains_(facts.fuses && facts.n_rows <= kernels.max_chain_rows()),
        sums_wait_(facts.fuses && facts.n_rows > 1 && !chains_) {}

  LaunchList run(const SegmentProgram& program) {
    for (const Op& op : program) {
      opens_ = opens_ || op.opens;
      layer_ = op.layer;
      add(op);
    }
    end_experts();
    end_chain();
    return std::move(list_);
  }

 private:
  const LayerSpec& layer() const { return spec_.layers[layer_]; }

  Launch& emit(LaunchKind kind) {
    Launch l;
    l.kind = kind;
    l.layer = layer_;
    l.opens = std::exchange(opens_, false);
    list_.launches.push_back(l);
    return list_.launches.back();
  }
  /// All of them in one launch.
  void emit_links(std::span<const RowLink> links) {
    Launch& l = emit(links.size() > 1 ? LaunchKind::kChain : LaunchKind::kProduct);
    l.layer = links[0].layer;
    l.first_link = static_cast<uint32_t>(list_.links.size());
    l.n_links = static_cast<uint32_t>(links.size());
    list_.links.insert(list_.links.end(), links.begin(), links.end());
    if (links.size() == 1 && takes_adapters(links[0])) emit_adapters(l);
  }
  void emit_adapters(const Launch& product) {
    Launch l = product;
    l.kind = LaunchKind::kAdapters;
    l.opens = false;
    list_.launches.push_back(l);
  }
  bool takes_adapters(const RowLink& link) const;
  void emit_link(const RowLink& link) { emit_links({&link, 1}); }
  void emit_product(const RowProduct& p, uint32_t layer) { emit_link({p, {}, layer}); }
  void emit_product(const RowProduct& p) { emit_product(p, layer_); }
  void emit_sum(const RowSum& sum, uint32_t layer) {
    Launch& l = emit(LaunchKind::kResidual);
    l.layer = layer;
    l.sum = sum;
  }

  void add(const Op& op);
  void add_ffn(const Op& op);

  RowProduct product(Buf x, const TensorRef* norm) const {
    RowProduct p;
    p.x = x == Buf::kX ? hidden_ : x;
    p.norm = norm;
    return p;
  }
  static void add_task(RowProduct* p, const TensorRef& w, Buf y, const TensorRef* bias = nullptr) {
    p->tasks[p->n_tasks++] = {&w, y, bias};
  }
  RowProduct product(Buf x, const TensorRef& w, Buf y, const TensorRef* bias = nullptr) const {
    RowProduct p = product(x, nullptr);
    add_task(&p, w, y, bias);
    return p;
  }

  // Chains. The hidden row moves between kX and kOtherX, because blocks that are ahead must not
  // overwrite what others still read; between chains it is in kX.
  void chain(const RowProduct& p);
  void sum_before_next(const TensorRef& norm, float scale, float share);
  void launch_chain();
  void begin_apart();
  void end_chain();
  bool chain_waits() const { return !waiting_.empty() || sum_.adds; }

  void mixer_in(const RowProduct& p);
  void mixer_out(Buf from, const TensorRef& w, const TensorRef* bias);
  void project_back(Buf from, const TensorRef& w, const TensorRef* bias, const TensorRef& post_norm,
                    float scale, float share);
  void attention_in();
  void latent_in(const AttentionSpec& a);
  void attention_out();
  void delta_in();
  void mamba_in();
  RowProduct gate_up(const TensorRef& gate, const TensorRef& up) const;
  void hidden_rows(const TensorRef& gate, const TensorRef& up, bool chained);
  void up_alone(const TensorRef& up, const TensorRef* bias);

  // Experts.
  struct Experts {
    uint32_t layer = 0;
    Buf to = Buf::kX;
    bool add = true;
    std::optional<RowProduct> before;
  };
  bool takes(const Experts& e, const RowProduct* after) const {
    if (facts_.n_rows != 1 && !facts_.fuses) return false;  // the launch mutex is not held
    if (facts_.gates_apart && spec_.layers[e.layer].ffn.d_shared != 0) return false;
    const RowProduct* before = e.before ? &*e.before : nullptr;
    return kernels_.takes({e.layer, e.to, e.add, before, after});
  }
  void launch_experts(const Experts& e, const RowProduct* after);
  void end_experts();
  void experts();
  void experts_beside_dense();
  void expert_launches(const Experts& e, bool parted, bool joins);
  void shared_expert_out(Buf to, bool joins);
  bool parts_experts(uint32_t layer) const { return facts_.placement->parts_experts(spec_, layer); }

  void per_layer_inputs();
  void inject_per_layer();
  void head();

  const PassFacts& facts_;
  const StepKernels& kernels_;
  const ModelSpec& spec_;
  const bool chains_;     // products wait for those that follow
  const bool sums_wait_;  // and where none do, sums of several rows for the product that reads them
  LaunchList list_;
  uint32_t layer_ = 0;
  bool opens_ = false;

  std::vector<RowLink> waiting_;  // of a chain
  RowSum sum_;                    // waits to be added to the hidden row
  uint32_t sum_layer_ = 0;
  Buf hidden_ = Buf::kX;

  std::optional<RowProduct> before_;  // waits for the experts behind it
  std::optional<Experts> experts_;    // wait for the products behind them
};

}  // namespace sharpi::device
