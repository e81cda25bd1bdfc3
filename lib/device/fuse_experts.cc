// SPDX-License-Identifier: MIT
// Mixtures of experts as launches.
#include <utility>

#include "device/fuser.h"

namespace sharpi::device {

RowProduct Fuser::gate_up(const TensorRef& gate, const TensorRef& up) const {
  RowProduct p = product(Buf::kX, &layer().ffn_norm);
  add_task(&p, gate, Buf::kFfn);
  add_task(&p, up, Buf::kFfn);
  p.epilogue = hidden_epilogue(layer().ffn);
  return p;
}

/// Hidden rows of an FFN with a gate, which the product applies unless something comes in between.
void Fuser::hidden_rows(const TensorRef& gate, const TensorRef& up, bool chained) {
  RowProduct p = gate_up(gate, up);
  if (facts_.gates_apart) {
    p.epilogue = Epilogue::kStore;
    p.tasks[1].y = Buf::kUp;
  }
  chained ? chain(p) : emit_product(p);
  if (!facts_.gates_apart) return;
  end_chain();
  emit(LaunchKind::kActivation);
}

/// Hidden rows of an FFN without a gate.
void Fuser::up_alone(const TensorRef& up, const TensorRef* bias) {
  RowProduct p = product(Buf::kX, &layer().ffn_norm);
  add_task(&p, up, Buf::kFfn, bias);
  chain(p);
  end_chain();
  emit(LaunchKind::kActivation);
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
/// device work at the same time. What is added in a share goes through kY, all of it together.
void Fuser::experts() {
  const LayerSpec& l = layer();
  const FfnSpec& f = l.ffn;
  if (f.beside_dense()) {
    experts_beside_dense();
    return;
  }
  const float scale = l.ple_gate ? 1.0f : l.output_scale;
  const bool parted = parts_experts(layer_) && !facts_.streamed;
  end_chain();
  Experts e;
  e.layer = layer_;
  const bool shares = l.residual_scale != 1.0f;
  e.add = !l.ffn_post_norm && !shares;
  e.to = e.add ? Buf::kX : Buf::kY;
  e.before = std::exchange(before_, std::nullopt);
  // Several rows: the shared expert's products are in chains with the mixers' in front and behind.
  const bool apart = parted || !takes(e, nullptr), plain = e.add && scale == 1.0f && !l.ple_gate;
  const bool joins = apart && !parted && chains_ && facts_.n_rows > 1 && plain && f.shared_gate;
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
  const bool shared = f.d_shared != 0 && !at_once;
  // Otherwise the residual add takes it along.
  const bool scale_last = (f.d_shared != 0 && !shares) || e.add;
  if (shared && shares) shared_expert_out(Buf::kY, joins);
  if (!e.add) {
    const float last = scale_last ? 1.0f : scale;
    emit_sum({true, &l.ffn_post_norm, last, l.residual_scale, Buf::kX, Buf::kX}, layer_);
  }
  if (shared && !shares) shared_expert_out(Buf::kX, joins);
  if (parted && e.add) emit(LaunchKind::kAnswers);
  if (scale_last && scale != 1.0f)
    emit_sum({false, nullptr, scale, 1.0f, Buf::kX, Buf::kX}, layer_);
}

/// What reads the block's input, kernel by kernel; joins: the shared expert's products in chains.
void Fuser::expert_launches(const Experts& e, bool parted, bool joins) {
  const FfnSpec& f = layer().ffn;
  if (joins) {
    hidden_rows(f.shared_gate, f.shared_up, true);
    end_chain();
  }
  RowProduct logits = product(Buf::kX, &layer().ffn_norm);
  add_task(&logits, f.router, Buf::kRouter, &f.router_bias);
  logits.force_f32 = true;
  emit_product(logits);
  emit(LaunchKind::kRouter);
  if (parted) emit(LaunchKind::kSendRows);
  if (f.shared_gate_inp) emit(LaunchKind::kSharedGate);
  if (f.d_shared != 0 && !f.shared_gate) {
    up_alone(f.shared_up, nullptr);
  } else if (f.d_shared != 0 && !joins) {
    hidden_rows(f.shared_gate, f.shared_up, false);
  }
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

/// A dense path and routed experts, each with norms of its own, kernel by kernel: the norms stand
/// between their sums. Experts on the CPU are asked for before the dense path runs.
void Fuser::experts_beside_dense() {
  const LayerSpec& l = layer();
  const FfnSpec& f = l.ffn;
  const bool parted = parts_experts(layer_) && !facts_.streamed;
  end_chain();
  if (before_) emit_product(*std::exchange(before_, std::nullopt));
  RowProduct logits = product(Buf::kX, &f.router_scale);
  add_task(&logits, f.router, Buf::kRouter, &f.router_bias);
  logits.force_f32 = true;
  emit_product(logits);
  emit(LaunchKind::kRouter);
  if (parted) emit(LaunchKind::kSendRows);

  hidden_rows(f.shared_gate, f.shared_up, false);
  emit_product(product(Buf::kFfn, f.shared_down, Buf::kY));
  emit_sum({true, &f.shared_post_norm, 1.0f, 1.0f, kNoRows, Buf::kMoeSum}, layer_);

  const auto to_y = [&](LaunchKind kind, bool add) {
    Launch& launch = emit(kind);
    launch.to = Buf::kY;
    launch.add = add;
  };
  const bool here = !parted || facts_.expert_slots;
  if (here) to_y(parted ? LaunchKind::kSlotExperts : LaunchKind::kExperts, false);
  if (parted) to_y(LaunchKind::kAnswers, here);
  emit_sum({true, &f.expert_post_norm, 1.0f, 1.0f, Buf::kMoeSum, Buf::kY}, layer_);
  const float scale = l.ple_gate ? 1.0f : l.output_scale;
  emit_sum({true, &l.ffn_post_norm, scale, l.residual_scale, Buf::kX, Buf::kX}, layer_);
}

void Fuser::shared_expert_out(Buf to, bool joins) {
  const FfnSpec& f = layer().ffn;
  RowProduct p = product(Buf::kFfn, f.shared_down, to);
  p.epilogue = Epilogue::kAdd;
  p.shared_scale = static_cast<bool>(f.shared_gate_inp);
  joins ? chain(p) : emit_product(p);
}

}  // namespace sharpi::device
