// SPDX-License-Identifier: MIT
// Layers of Mamba-2 on the tests' device: the CPU's plain recurrence over a session's state there.
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/mamba2.h"
#include "cpu/mamba2_shape.h"
#include "device/loaded_model.h"

namespace sharpi::testing {

using device::BatchSequence;
using device::LoadedModel;

/// A layer's rows of one sequence.
struct MambaRows {
  const LoadedModel& m;
  uint32_t layer = 0;
  cpu::Mamba2Task task(const BatchSequence& q) const {
    const Mamba2Spec& s = m.spec().layers[layer].mamba;
    const StateLayout::Layer& at = *m.state_layout.find(layer);
    cpu::Mamba2Task t;
    t.shape = cpu::mamba2_shape(s);
    t.conv1d = m.floats(s.conv1d);
    t.conv_bias = m.floats(s.conv_bias);
    t.dt_bias = m.floats(s.dt_bias);
    t.a = m.floats(s.a);
    t.d = m.floats(s.d);
    t.norm = m.floats(s.norm);
    t.eps = m.spec().rms_eps;
    const auto in = [&](uint64_t o) { return reinterpret_cast<const float*>(q.state_in + o); };
    const auto out = [&](uint64_t o) { return reinterpret_cast<float*>(q.state_out + o); };
    t.state_in = in(at.state_offset), t.conv_in = in(at.conv_offset);
    t.state_out = out(at.state_offset), t.conv_out = out(at.conv_offset);
    return t;
  }
  /// First float of a kept plane of this layer.
  uint64_t plane(const BatchSequence& q, Mamba2Spec::Input input) const {
    const auto i = static_cast<size_t>(m.state_layout.index_of_layer[layer]);
    return m.draft_layout.layers[i].planes[input] / m.draft_layout.n_rows * q.kept_rows;
  }
  static void run(const cpu::Mamba2Task& t) {
    std::vector<std::byte> scratch(cpu::mamba2_scratch_bytes(t.shape, 1, t.n_rows));
    cpu::mamba2_alone(cpu::kScalarKernels, t, true, scratch.data(), scratch.size());
  }
  /// The pending rows, to the working copy.
  void replay(const BatchSequence& q) const {
    cpu::Mamba2Task t = task(q);
    const auto kept = [&](Mamba2Spec::Input input, uint64_t width) {
      const float* from = q.kept + plane(q, input);
      return std::vector<float>(from, from + q.n_pending * width);
    };
    std::vector<float> xbc = kept(Mamba2Spec::kXbc, t.shape.conv_dim()),
                       dt = kept(Mamba2Spec::kDt, t.shape.n_heads),
                       out(uint64_t{q.n_pending} * t.shape.inner());
    t.xbc = xbc.data();
    t.dt = dt.data();
    t.out = out.data();
    t.n_rows = q.n_pending;
    run(t);
  }
  /// The rows of a pass, whose inputs begin at these addresses; those that are pending first.
  void rows(const BatchSequence& q, float* xbc, const float* z, float* dt, float* out) const {
    cpu::Mamba2Task t = task(q);
    if (q.n_pending != 0) {
      replay(q);
      t.state_in = t.state_out, t.conv_in = t.conv_out;
    }
    const uint64_t first = q.first_row, conv = t.shape.conv_dim(), heads = t.shape.n_heads;
    t.xbc = xbc + first * conv;
    t.z = z + first * t.shape.inner();
    t.dt = dt + first * heads;
    t.out = out + first * t.shape.inner();
    t.n_rows = q.n_rows;
    if ((q.flags & device::kSequenceDrafted) != 0) {
      std::copy_n(t.xbc, q.n_rows * conv, q.keep + plane(q, Mamba2Spec::kXbc));
      std::copy_n(t.dt, q.n_rows * heads, q.keep + plane(q, Mamba2Spec::kDt));
      t.state_out = t.conv_out = nullptr;
    }
    run(t);
  }
};

}  // namespace sharpi::testing
