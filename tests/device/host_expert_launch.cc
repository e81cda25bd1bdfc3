// SPDX-License-Identifier: MIT
// Routers, routed experts, and the way to a host that computes some of them.
#include <limits>

#include "device/host_launch.h"

namespace sharpi::testing {

void HostLaunch::route() const {
  const FfnSpec& f = layer().ffn;
  for (uint64_t r = 0; r < n(); ++r) {
    std::vector<float> prob(buf(Buf::kRouter) + r * f.n_experts,
                            buf(Buf::kRouter) + (r + 1) * f.n_experts);
    if (f.beside_dense()) {
      for (float& p : prob) p /= std::sqrt(static_cast<float>(s_.n_embd));
    }
    const float most = *std::max_element(prob.begin(), prob.end());
    float all = 0.0f, sum = 0.0f;
    if (f.scores == RouterScores::kSigmoid) {
      for (float& p : prob) p = sigmoid(p);
      all = 1.0f;
    } else {
      for (float& p : prob) all += p = std::exp(p - most);
    }
    std::vector<float> choice;
    for (uint64_t i = 0; i < f.n_experts; ++i)
      choice.push_back(prob[i] / all + (f.choice_bias ? m_.floats(f.choice_bias)[i] : 0.0f));
    auto* ids = ws_.get<int32_t>(Buf::kMoeIds) + r * f.n_used;
    float* w = buf(Buf::kMoeWeight) + r * f.n_used;
    for (uint32_t j = 0; j < f.n_used; ++j) {
      const auto best = std::max_element(choice.begin(), choice.end());
      ids[j] = static_cast<int32_t>(best - choice.begin());
      w[j] = prob[static_cast<size_t>(ids[j])] / all;
      sum += w[j];
      *best = -std::numeric_limits<float>::infinity();
    }
    for (uint32_t j = 0; f.renormalize && j < f.n_used; ++j) w[j] /= std::max(sum, 0x1p-14f);
    for (uint32_t j = 0; j < f.n_used; ++j) w[j] *= f.share_scale;
    for (uint32_t j = 0; f.expert_scale && j < f.n_used; ++j)
      w[j] *= m_.floats(f.expert_scale)[ids[j]];
  }
}

/// Of all experts, or of those that have a slot.
void HostLaunch::experts(bool slots) const {
  const FfnSpec& f = layer().ffn;
  const uint64_t e = s_.n_embd;
  const int32_t* table = slots ? m_.experts->table(l_.layer) : nullptr;
  const auto matrix_of = [&](const TensorRef& w, uint64_t at) {
    if (!slots) return matrix(w);
    return HostMatrix(w, m_.experts->pool().data() + at, m_.experts->layout().bytes);
  };
  const SlotLayout::Layer at = slots ? m_.experts->layout().layers[l_.layer] : SlotLayout::Layer{};
  const TensorRef& up_ref = f.fused_gate_up ? f.gate : f.up;
  const HostMatrix up = matrix_of(up_ref, f.fused_gate_up ? 0 : at.up),
                   gate = f.gate ? matrix_of(f.gate, 0) : up, down = matrix_of(f.down, at.down);
  std::vector<float> x(e), h(f.d_ff), y(e);
  for (uint64_t r = 0; r < n(); ++r) {
    norm(buf(Buf::kX) + r * e, m_.floats(layer().expert_norm()), s_.rms_eps, e, x.data());
    std::fill(y.begin(), y.end(), 0.0f);
    for (uint32_t j = 0; j < f.n_used; ++j) {
      const int32_t id = ws_.get<int32_t>(Buf::kMoeIds)[r * f.n_used + j];
      const int32_t place = id >= 0 && table != nullptr ? table[id] : id;
      if (place < 0) continue;
      const auto expert = static_cast<uint64_t>(place);
      const auto bias = [&](const TensorRef& b, uint64_t i) {
        return b ? m_.floats(b)[static_cast<uint64_t>(id) * b.n_in + i] : 0.0f;
      };
      for (uint64_t i = 0; i < f.d_ff; ++i) {
        const std::vector<float> u = up.row(expert, f.fused_gate_up ? f.d_ff + i : i);
        if (!f.gate) {
          const float v = std::max(dot(u.data(), x.data(), e) + bias(f.up_bias, i), 0.0f);
          h[i] = v * v;
          continue;
        }
        const std::vector<float> g = gate.row(expert, i);
        h[i] = act(hidden_epilogue(f), dot(g.data(), x.data(), e) + bias(f.gate_bias, i),
                   dot(u.data(), x.data(), e) + bias(f.up_bias, i));
      }
      for (uint64_t i = 0; i < e; ++i) {
        y[i] += buf(Buf::kMoeWeight)[r * f.n_used + j] *
                (dot(down.row(expert, i).data(), h.data(), f.d_ff) + bias(f.down_bias, i));
      }
    }
    float* to = buf(l_.to) + r * e;
    for (uint64_t i = 0; i < e; ++i) to[i] = (l_.add ? to[i] : 0.0f) + y[i];
  }
}

/// A recorded step's way to the experts' host: by pinned memory, while both run.
void HostLaunch::send_rows() const {
  const ExpertHandover& h = ws_.experts;
  const uint32_t n_used = layer().ffn.n_used;
  const int32_t* table = m_.uses_slots(n()) ? m_.experts->table(l_.layer) : nullptr;
  const auto* ids = ws_.get<int32_t>(Buf::kMoeIds);
  auto* state = ws_.get<HandoverState>(Buf::kHandover);
  state->waits = 0;
  for (uint32_t i = 0; i < n() * n_used; ++i) {
    h.layer_ids(l_.layer)[i] = ids[i];
    h.layer_weights(l_.layer)[i] = buf(Buf::kMoeWeight)[i];
    state->waits |= table == nullptr || table[ids[i]] < 0 ? 1u : 0u;
  }
  std::copy_n(buf(Buf::kX), uint64_t{n()} * s_.n_embd, h.at<float>(h.layout.x));
  std::atomic_ref<uint32_t>(*h.at<uint32_t>(h.layout.sent))
      .store(++state->sent, std::memory_order_release);
}

void HostLaunch::answers() const {
  const ExpertHandover& h = ws_.experts;
  const auto* state = ws_.get<HandoverState>(Buf::kHandover);
  float* y = buf(l_.to);
  const uint64_t all = uint64_t{n()} * s_.n_embd;
  if (recorded_ && state->waits == 0) {
    if (!l_.add) std::fill_n(y, all, 0.0f);
    return;
  }
  const std::atomic_ref<uint32_t> done(*h.at<uint32_t>(h.layout.done));
  while (recorded_ &&
         static_cast<int32_t>(done.load(std::memory_order_acquire) - state->sent) < 0) {
    cpu_relax();
  }
  for (uint64_t i = 0; i < all; ++i) y[i] = (l_.add ? y[i] : 0.0f) + h.at<float>(h.layout.y)[i];
}

}  // namespace sharpi::testing
