// SPDX-License-Identifier: MIT
#include <optional>
#include <span>
#include <utility>

#include "device/launches.h"

namespace sharpi::device {
namespace {

/// Goes through the operations and keeps back what may join what follows: links of a chain, sums in
/// front of them, the product in front of experts, and experts until what follows them is known.
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
  }
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
  static void add_task(RowProduct* p, const TensorRef& w, Buf y) {
    p->tasks[p->n_tasks++] = {&w, y};
  }
  RowProduct product(Buf x, const TensorRef& w, Buf y) const {
    RowProduct p = product(x, nullptr);
    add_task(&p, w, y);
    return p;
  }

  // Chains. The hidden row moves between kX and kOtherX, because blocks that are ahead must not
  // overwrite what others still read; between chains it is in kX.
  void chain(const RowProduct& p);
  void sum_before_next(const TensorRef& norm, float scale);
  void launch_chain();
  void begin_apart();
  void end_chain();
  bool chain_waits() const { return !waiting_.empty() || sum_.adds; }

  void mixer_in(const RowProduct& p);
  void mixer_out(const TensorRef& w);
  void project_back(Buf from, const TensorRef& w, const TensorRef& post_norm, float scale);
  void attention_in();
  void delta_in();
  RowProduct gate_up(const TensorRef& gate, const TensorRef& up) const;

  // Experts.
  struct Experts {
    uint32_t layer = 0;
    Buf to = Buf::kX;
    bool add = true;
    std::optional<RowProduct> before;
  };
  bool takes(const Experts& e, const RowProduct* after) const {
    if (facts_.n_rows != 1 && !facts_.fuses) return false;  // no turn for blocks that wait
    const RowProduct* before = e.before ? &*e.before : nullptr;
    return kernels_.takes({e.layer, e.to, e.add, before, after});
  }
  void launch_experts(const Experts& e, const RowProduct* after);
  void end_experts();
  void experts();
  void expert_launches(const Experts& e, bool parted, bool joins);
  void shared_expert_out(bool joins);
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

void Fuser::add(const Op& op) {
  switch (op.kind) {
    case OpKind::kEmbed:
      emit(LaunchKind::kEmbed);
      break;
    case OpKind::kEmbedPairs:
      emit(LaunchKind::kEmbedPairs);
      emit_product(product(Buf::kPair, spec_.pair.proj, Buf::kX));
      break;
    case OpKind::kPerLayerInputs:
      per_layer_inputs();
      break;
    case OpKind::kRopeTables:
      emit(LaunchKind::kRopeTables);
      break;
    case OpKind::kAttentionIn:
      attention_in();
      break;
    case OpKind::kKeepRing:
      if (!facts_.rows_to_ring) emit(LaunchKind::kKeepRing);
      break;
    case OpKind::kAttentionRows:
      emit(LaunchKind::kRows);
      break;
    case OpKind::kAttend:
      emit(LaunchKind::kAttention);
      break;
    case OpKind::kAttentionOut:
      mixer_out(layer().attention.o);
      break;
    case OpKind::kDeltaIn:
      delta_in();
      break;
    case OpKind::kDeltaNet:
      emit(LaunchKind::kDeltaNet);
      break;
    case OpKind::kDeltaOut:
      mixer_out(layer().delta.out);
      break;
    case OpKind::kHead:
      head();
      break;
    default:
      add_ffn(op);
      break;
  }
}

void Fuser::add_ffn(const Op& op) {
  const FfnSpec& f = layer().ffn;
  switch (op.kind) {
    case OpKind::kFetchWeights:
      emit(LaunchKind::kFetchWeights);
      break;
    case OpKind::kFfnIn: {
      RowProduct p = gate_up(f.gate, f.up);
      p.norm = &layer().ffn_norm;
      chain(p);
      break;
    }
    case OpKind::kFfnOut: {
      // Whatever ends the layer scales it.
      const float scale = layer().ple_gate ? 1.0f : layer().output_scale;
      project_back(Buf::kFfn, f.down, layer().ffn_post_norm, scale);
      break;
    }
    case OpKind::kRoute:
      experts();
      break;
    case OpKind::kExperts:
    case OpKind::kSharedExpert:
      break;  // went with the router
    case OpKind::kInjectPerLayer:
      inject_per_layer();
      break;
    case OpKind::kScaleLayer:
      break;  // what was before it has done it
    case OpKind::kReleaseWeights:
      emit(LaunchKind::kReleaseWeights);
      break;
    case OpKind::kLayerEnd:
      emit(LaunchKind::kLayerEnd);
      break;
    default:
      list_.unknown = list_.unknown == nullptr ? op_name(op.kind) : list_.unknown;
      break;
  }
}

// --- chains ---

/// A product that may wait.
void Fuser::chain(const RowProduct& p) {
  if (!chains_) {
    RowSum sum;
    if (p.x == hidden_) sum = std::exchange(sum_, {});
    end_chain();
    return emit_link({p, sum, layer_});
  }
  RowLink link{p, {}, layer_};
  if (sum_.adds) {
    link.sum = sum_;
    link.sum.x = hidden_;
    link.sum.to = hidden_ == Buf::kX ? Buf::kOtherX : Buf::kX;
  }
  if ((sum_.adds && p.x != hidden_) || !kernels_.chain_takes(link)) {
    const Buf row = hidden_;
    end_chain();  // the hidden row may move
    RowProduct alone = p;
    if (alone.x == row) alone.x = hidden_;
    for (RowProduct::Task& t : alone.tasks) {
      if (t.y == row) t.y = hidden_;
    }
    return emit_product(alone);
  }
  if (waiting_.size() == kernels_.max_chain_links()) launch_chain();
  waiting_.push_back(link);
  if (!sum_.adds) return;
  hidden_ = link.sum.to;
  sum_ = {};
}

/// hidden = scale * (hidden + norm(kY)), now or with the next product.
void Fuser::sum_before_next(const TensorRef& norm, float scale) {
  sum_ = {true, &norm, scale, Buf::kX, Buf::kX};
  sum_layer_ = layer_;
  if (!sums_wait_ && waiting_.empty()) end_chain();
}

/// As many links as have room are a chain, and those behind them another, or launches of their own.
void Fuser::launch_chain() {
  if (waiting_.size() > 1) sum_layer_ = sum_.adds ? sum_layer_ : waiting_.back().layer;
  bool cut = false;
  while (!waiting_.empty()) {
    size_t n = waiting_.size();
    while (n > 1 && !kernels_.chain_fits({waiting_.data(), n})) --n;
    cut = cut || n < waiting_.size();
    begin_apart();
    list_.n_chains += n > 1 ? 1 : 0;
    emit_links({waiting_.data(), n});
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(n));
  }
  list_.n_apart += cut ? 1 : 0;
}

/// The sum that a launch would begin with is one of its own.
void Fuser::begin_apart() {
  RowLink& l = waiting_[0];
  if (!l.sum.adds) return;
  emit_sum(l.sum, l.layer);
  l.product.x = l.sum.to;
  l.sum = {};
}

/// Launches all that waits; the hidden row is in kX after it.
void Fuser::end_chain() {
  launch_chain();
  if (!sum_.adds && hidden_ == Buf::kX) return;
  RowSum sum = std::exchange(sum_, {});
  sum.x = std::exchange(hidden_, Buf::kX);
  sum.to = Buf::kX;
  emit_sum(sum, sum_layer_);
}

// --- mixers ---

/// The first products of a mixer, together with experts that wait.
void Fuser::mixer_in(const RowProduct& p) {
  if (experts_ && takes(*experts_, &p)) {
    launch_experts(*experts_, &p);
    experts_.reset();
    return;
  }
  end_experts();
  chain(p);
  end_chain();
}

void Fuser::attention_in() {
  const AttentionSpec& a = layer().attention;
  RowProduct p = product(Buf::kX, &layer().mixer_norm);
  add_task(&p, a.q, Buf::kQ);
  if (a.kv_source < 0) {
    add_task(&p, a.k, Buf::kK);
    if (!a.v_from_k) add_task(&p, a.v, Buf::kV);
  }
  mixer_in(p);
}

void Fuser::delta_in() {
  const DeltaNetSpec& d = layer().delta;
  RowProduct p = product(Buf::kX, &layer().mixer_norm);
  add_task(&p, d.qkv, Buf::kQkv);
  add_task(&p, d.gate, Buf::kZ);
  add_task(&p, d.alpha, Buf::kAlpha);
  add_task(&p, d.beta, Buf::kBeta);
  mixer_in(p);
}

/// The last product of a mixer: it waits where experts follow.
void Fuser::mixer_out(const TensorRef& w) {
  const LayerSpec& l = layer();
  const bool chained = chain_waits() || hidden_ != Buf::kX;
  // The layer's block must follow here: what waits for it would else never be launched.
  const bool ffn_here = facts_.placement->ffn[layer_] == TierId::kCuda;
  if (!facts_.fuses || chained || l.ffn.kind != FfnKind::kMoe || l.mixer_post_norm || !ffn_here ||
      parts_experts(layer_))
    return project_back(Buf::kMix, w, l.mixer_post_norm, 1.0f);
  RowProduct p = product(Buf::kMix, w, Buf::kX);
  p.epilogue = Epilogue::kAdd;
  before_ = p;
}

/// x += W y, through kY when a norm or a scale comes in between.
void Fuser::project_back(Buf from, const TensorRef& w, const TensorRef& post_norm, float scale) {
  const bool direct = !post_norm && scale == 1.0f;
  RowProduct p = product(from, w, direct ? hidden_ : Buf::kY);
  if (direct) p.epilogue = Epilogue::kAdd;
  chain(p);
  if (!direct) sum_before_next(post_norm, scale);
}

// --- experts ---

RowProduct Fuser::gate_up(const TensorRef& gate, const TensorRef& up) const {
  RowProduct p = product(Buf::kX, &layer().ffn_norm);
  add_task(&p, gate, Buf::kFfn);
  add_task(&p, up, Buf::kFfn);
  p.epilogue = gated(layer().ffn);
  return p;
}

void Fuser::launch_experts(const Experts& e, const RowProduct* after) {
  const auto first = static_cast<uint32_t>(list_.links.size());
  if (e.before) list_.links.push_back({*e.before, {}, e.layer});
  if (after != nullptr) list_.links.push_back({*after, {}, layer_});
  Launch& l = emit(LaunchKind::kMoeStep);
  l.layer = e.layer;
  l.to = e.to;
  l.add = e.add;
  l.has_before = e.before.has_value();
  l.first_link = first;
  l.n_links = static_cast<uint32_t>(list_.links.size()) - first;
}

void Fuser::end_experts() {
  if (experts_) launch_experts(*std::exchange(experts_, std::nullopt), nullptr);
}

/// Router, routed and shared experts. Everything that reads the block's input runs before the first
/// add to it. Experts on the CPU: they are asked for first and added last, so that the host and the
/// device work at the same time.
void Fuser::experts() {
  const LayerSpec& l = layer();
  const FfnSpec& f = l.ffn;
  const float scale = l.ple_gate ? 1.0f : l.output_scale;
  const bool parted = parts_experts(layer_) && !facts_.streamed;
  end_chain();
  Experts e;
  e.layer = layer_;
  e.add = !l.ffn_post_norm;
  e.to = e.add ? Buf::kX : Buf::kY;
  e.before = std::exchange(before_, std::nullopt);
  // Several rows: the shared expert's products are in chains with the mixers' in front and behind.
  const bool apart = parted || !takes(e, nullptr), plain = e.add && scale == 1.0f && !l.ple_gate;
  const bool joins = apart && !parted && chains_ && facts_.n_rows > 1 && plain && f.d_shared != 0;
  if (e.before && apart) {
    const RowProduct before = *std::exchange(e.before, {});
    joins ? chain(before) : emit_product(before);
  }
  const bool at_once = !apart && (e.add || f.d_shared == 0);
  if (at_once && facts_.fuses && plain) {
    experts_ = e;
    return;
  }
  if (at_once) {
    launch_experts(e, nullptr);
  } else {
    expert_launches(e, parted, joins);
  }
  const bool scale_last = f.d_shared != 0 || e.add;  // otherwise the residual add takes it along
  if (!e.add)
    emit_sum({true, &l.ffn_post_norm, scale_last ? 1.0f : scale, Buf::kX, Buf::kX}, layer_);
  if (f.d_shared != 0 && !at_once) shared_expert_out(joins);
  if (parted && e.add) emit(LaunchKind::kAnswers);
  if (scale_last && scale != 1.0f) emit_sum({false, nullptr, scale, Buf::kX, Buf::kX}, layer_);
}

/// What reads the block's input, kernel by kernel; joins: the shared expert's products in chains.
void Fuser::expert_launches(const Experts& e, bool parted, bool joins) {
  const FfnSpec& f = layer().ffn;
  if (joins) {
    chain(gate_up(f.shared_gate, f.shared_up));
    end_chain();
  }
  RowProduct logits = product(Buf::kX, &layer().ffn_norm);
  add_task(&logits, f.router, Buf::kRouter);
  logits.force_f32 = true;
  emit_product(logits);
  emit(LaunchKind::kRouter);
  if (parted) emit(LaunchKind::kSendRows);
  if (f.shared_gate_inp) emit(LaunchKind::kSharedGate);
  if (f.d_shared != 0 && !joins) emit_product(gate_up(f.shared_gate, f.shared_up));
  if (!parted || facts_.expert_slots) {
    Launch& l = emit(parted ? LaunchKind::kSlotExperts : LaunchKind::kExperts);
    l.to = e.to;
    l.add = e.add;
  }
  if (!parted || e.add) return;
  Launch& l = emit(LaunchKind::kAnswers);
  l.to = e.to;
  l.add = facts_.expert_slots;
}

void Fuser::shared_expert_out(bool joins) {
  const FfnSpec& f = layer().ffn;
  RowProduct p = product(Buf::kFfn, f.shared_down, Buf::kX);
  p.epilogue = Epilogue::kAdd;
  p.shared_scale = static_cast<bool>(f.shared_gate_inp);
  joins ? chain(p) : emit_product(p);
}

// --- per-layer inputs, the head ---

void Fuser::per_layer_inputs() {
  emit(LaunchKind::kPerLayerTable);
  emit_product(product(Buf::kX, spec_.ple_model_proj, Buf::kPle));
  emit(LaunchKind::kPerLayerCombine);
}

void Fuser::inject_per_layer() {
  const LayerSpec& l = layer();
  end_chain();
  emit_product(product(Buf::kX, l.ple_gate, Buf::kPleTmp));
  emit(LaunchKind::kPerLayerGate);
  project_back(Buf::kPleTmp, l.ple_proj, l.ple_post_norm, l.output_scale);
}

void Fuser::head() {
  end_experts();
  if (facts_.head != HeadRows::kInOrder) end_chain();
  if (facts_.head != HeadRows::kNone) {  // transient: nothing is wanted
    const bool picked = facts_.head == HeadRows::kPicked;
    if (picked) emit(LaunchKind::kHeadRows);
    RowProduct p = picked ? product(Buf::kHead, nullptr) : product(Buf::kX, &spec_.output_norm);
    p.of_head = true;
    add_task(&p, spec_.output, Buf::kLogits);
    chain(p);
    end_chain();
    emit(LaunchKind::kLogits);
  }
  if (facts_.keeps_hidden) emit(LaunchKind::kHiddenRows);
}

}  // namespace

LaunchList fuse(const SegmentProgram& program, const PassFacts& facts, const StepKernels& kernels) {
  return Fuser(facts, kernels).run(program);
}

}  // namespace sharpi::device
