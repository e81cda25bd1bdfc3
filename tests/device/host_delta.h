// SPDX-License-Identifier: MIT
// Recurrent layers on the tests' device: the CPU's plain recurrence over a session's state there.
// Thread rule: pure functions.
#pragma once

#include <vector>

#include "cpu/delta_net.h"
#include "device/loaded_model.h"

namespace sharpi::testing {

using device::BatchSequence;
using device::LoadedModel;

/// A recurrent layer's rows of one sequence.
struct DeltaRows {
  const LoadedModel& m;
  uint32_t layer = 0;
  cpu::DeltaNetTask task(const BatchSequence& q) const {
    const DeltaNetSpec& d = m.spec().layers[layer].delta;
    const StateLayout::Layer& at = *m.state_layout.find(layer);
    cpu::DeltaNetTask t;
    t.shape = {d.n_k_heads, d.n_v_heads, d.head_dim, d.conv_kernel, d.grouped};
    t.conv1d = m.floats(d.conv1d);
    t.dt_bias = m.floats(d.dt_bias);
    t.a = m.floats(d.a);
    t.norm = m.floats(d.norm);
    t.eps = m.spec().rms_eps;
    const auto in = [&](uint64_t o) { return reinterpret_cast<const float*>(q.state_in + o); };
    const auto out = [&](uint64_t o) { return reinterpret_cast<float*>(q.state_out + o); };
    t.state_in = in(at.state_offset), t.conv_in = in(at.conv_offset);
    t.state_out = out(at.state_offset), t.conv_out = out(at.conv_offset);
    return t;
  }
  /// First float of a kept plane of this layer.
  uint64_t plane(const BatchSequence& q, DeltaNetSpec::Input input) const {
    const auto i = static_cast<size_t>(m.state_layout.index_of_layer[layer]);
    return m.draft_layout.layers[i].planes[input] / m.draft_layout.n_rows * q.kept_rows;
  }
  static void run(const cpu::DeltaNetTask& t) {
    std::vector<std::byte> scratch(cpu::delta_net_scratch_bytes(t.shape, 1, t.n_rows));
    cpu::delta_net_alone(cpu::kScalarKernels, t, true, scratch.data(), scratch.size());
  }
  /// The pending rows, to the working copy.
  void replay(const BatchSequence& q) const {
    cpu::DeltaNetTask t = task(q);
    const float* kept = q.kept + plane(q, DeltaNetSpec::kQkv);
    std::vector<float> qkv(kept, kept + uint64_t{q.n_pending} * t.shape.conv_dim());
    std::vector<float> out(uint64_t{q.n_pending} * t.shape.value_dim());
    t.qkv = qkv.data();
    t.alpha = q.kept + plane(q, DeltaNetSpec::kAlpha);
    t.beta = q.kept + plane(q, DeltaNetSpec::kBeta);
    t.out = out.data();
    t.n_rows = q.n_pending;
    run(t);
  }
};

}  // namespace sharpi::testing
