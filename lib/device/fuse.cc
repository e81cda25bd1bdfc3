// SPDX-License-Identifier: MIT
#include <algorithm>
#include <span>
#include <utility>

#include "device/fuser.h"
#include "model/adapter_file.h"

namespace sharpi::device {

/// Every operation has a case here or is named below: the compiler asks for it.
void Fuser::add(const Op& op) {
  switch (op.kind) {
    case OpKind::kEmbed:
      emit(LaunchKind::kEmbed);
      return;
    case OpKind::kEmbedPairs:
      emit(LaunchKind::kEmbedPairs);
      return emit_product(product(Buf::kPair, spec_.pair.proj, Buf::kX));
    case OpKind::kPerLayerInputs:
      return per_layer_inputs();
    case OpKind::kRopeTables:
      emit(LaunchKind::kRopeTables);
      return;
    case OpKind::kAttentionIn:
      return attention_in();
    case OpKind::kKeepRing:
      if (!facts_.rows_to_ring) emit(LaunchKind::kKeepRing);
      return;
    case OpKind::kAttentionRows:
      emit(LaunchKind::kRows);
      if (facts_.replays && layer().attends_to_all() != nullptr) emit(LaunchKind::kReplay);
      return;
    case OpKind::kAttend:
      emit(LaunchKind::kAttention);
      return;
    case OpKind::kAttentionOut:
      return attention_out();
    case OpKind::kDeltaIn:
      return delta_in();
    case OpKind::kDeltaNet:
      emit(LaunchKind::kDeltaNet);
      return;
    case OpKind::kDeltaOut:
      return mixer_out(Buf::kMix, layer().delta.out, nullptr);
    case OpKind::kMambaIn:
      return mamba_in();
    case OpKind::kMamba:
      emit(LaunchKind::kMamba);
      return;
    case OpKind::kMambaOut:
      return mixer_out(Buf::kMix, layer().mamba.out, nullptr);
    case OpKind::kHead:
      return head();
    case OpKind::kFetchWeights:
    case OpKind::kFfnIn:
    case OpKind::kFfnOut:
    case OpKind::kRoute:
    case OpKind::kExperts:
    case OpKind::kSharedExpert:
    case OpKind::kInjectPerLayer:
    case OpKind::kScaleLayer:
    case OpKind::kReleaseWeights:
    case OpKind::kLayerEnd:
      return add_ffn(op);
    case OpKind::kPerLayerInputsAgain:
      break;  // no launch computes it
  }
  list_.unknown = list_.unknown == nullptr ? op_name(op.kind) : list_.unknown;
}

void Fuser::add_ffn(const Op& op) {
  const FfnSpec& f = layer().ffn;
  switch (op.kind) {
    case OpKind::kFetchWeights:
      emit(LaunchKind::kFetchWeights);
      break;
    case OpKind::kFfnIn: {
      if (f.gate) {
        hidden_rows(f.gate, f.up, true);
      } else {
        up_alone(f.up, &f.up_bias);
      }
      break;
    }
    case OpKind::kFfnOut: {
      // Whatever ends the layer scales it.
      const float scale = layer().ple_gate ? 1.0f : layer().output_scale;
      project_back(Buf::kFfn, f.down, &f.down_bias, layer().ffn_post_norm, scale,
                   layer().residual_scale);
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
      break;  // add() has it
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

/// hidden = scale * (hidden + share * norm(kY)), now or with the next product.
void Fuser::sum_before_next(const TensorRef& norm, float scale, float share) {
  sum_ = {true, &norm, scale, share, Buf::kX, Buf::kX};
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
  if (a.latent) return latent_in(a);
  RowProduct p = product(Buf::kX, &layer().mixer_norm);
  add_task(&p, a.q, Buf::kQ);
  if (a.kv_source < 0) {
    add_task(&p, a.k, Buf::kK);
    if (!a.v_from_k) add_task(&p, a.v, Buf::kV);
  }
  mixer_in(p);
}

/// The stored row comes of the input at once, and queries too or through fewer elements.
void Fuser::latent_in(const AttentionSpec& a) {
  const LatentSpec& l = a.latent;
  RowProduct p = product(Buf::kX, &layer().mixer_norm);
  add_task(&p, l.q_a ? l.q_a : a.q, l.q_a ? Buf::kMix : Buf::kQ);
  add_task(&p, a.k, Buf::kK);
  mixer_in(p);
  if (l.q_a) {
    RowProduct queries = product(Buf::kMix, &l.q_norm);
    add_task(&queries, a.q, Buf::kQ);
    emit_product(queries);
  }
  emit(LaunchKind::kLatentQueries);
}

void Fuser::attention_out() {
  const AttentionSpec& a = layer().attention;
  if (a.latent) emit(LaunchKind::kLatentOutputs);
  mixer_out(a.latent ? Buf::kQuery : Buf::kMix, a.o, &a.o_bias);
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

void Fuser::mamba_in() {
  const Mamba2Spec& m = layer().mamba;
  RowProduct p = product(Buf::kX, &layer().mixer_norm);
  add_task(&p, m.xbc, Buf::kQkv);
  add_task(&p, m.gate, Buf::kZ);
  add_task(&p, m.dt, Buf::kAlpha);
  mixer_in(p);
}

/// The last product of a mixer: it waits where experts follow.
void Fuser::mixer_out(Buf from, const TensorRef& w, const TensorRef* bias) {
  const LayerSpec& l = layer();
  const bool chained = chain_waits() || hidden_ != Buf::kX;
  // The layer's block must follow here: what waits for it would else never be launched.
  const bool ffn_here = facts_.placement->ffn[layer_] == DeviceIndex::kHere;
  const bool plain = !l.mixer_post_norm && l.residual_scale == 1.0f;
  if (!facts_.fuses || chained || l.ffn.kind != FfnKind::kMoe || !plain || !ffn_here ||
      parts_experts(layer_))
    return project_back(from, w, bias, l.mixer_post_norm, 1.0f, l.residual_scale);
  RowProduct p = product(from, w, Buf::kX, bias);
  p.epilogue = Epilogue::kAdd;
  before_ = p;
}

/// x += share * (W y + bias), through kY when a norm or a scale comes in between.
void Fuser::project_back(Buf from, const TensorRef& w, const TensorRef* bias,
                         const TensorRef& post_norm, float scale, float share) {
  const bool direct = !post_norm && scale == 1.0f && share == 1.0f;
  RowProduct p = product(from, w, direct ? hidden_ : Buf::kY, bias);
  if (direct) p.epilogue = Epilogue::kAdd;
  chain(p);
  if (!direct) sum_before_next(post_norm, scale, share);
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
  project_back(Buf::kPleTmp, l.ple_proj, nullptr, l.ple_post_norm, l.output_scale, 1.0f);
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

/// Whether a pass with adapters may add to the product: those of weights that adapters change.
bool Fuser::takes_adapters(const RowLink& link) const {
  if (facts_.n_adapters == 0) return false;
  const LayerSpec& l = spec_.layers[link.layer];
  for (const auto& weights : {adaptable_in_mixer(l), adaptable_in_ffn(l)}) {
    for (uint32_t t = 0; t < link.product.n_tasks; ++t) {
      const TensorRef* w = link.product.tasks[t].w;
      if (std::find(weights.begin(), weights.end(), w) != weights.end()) return true;
    }
  }
  return false;
}

LaunchList fuse(const SegmentProgram& program, const PassFacts& facts, const StepKernels& kernels) {
  return Fuser(facts, kernels).run(program);
}

}  // namespace sharpi::device
