// SPDX-License-Identifier: MIT
#include "vulkan/recurrent_launches.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/limits.h"
#include "vulkan/pass_launches.h"

namespace sharpi::vulkan {
namespace {

/// Rows of a sequence that one dispatch of a recurrence takes: no thread's loops go round too
/// often (shaders/common.glsl), and no driver takes a long chunk for a kernel that hangs. Kept rows
/// of a draft, which leave the state as it was, are never that many.
constexpr uint32_t kRows = 256;
static_assert(kMaxDraft < kRows);
/// Elements of B, and of C, that a workgroup of Mamba-2 has at once, rows of them at most, and its
/// threads at least, which bring them.
constexpr uint32_t kHeldElements = 1024, kHeldRows = 8, kLeastThreads = 64;

}  // namespace

RecurrentRun::Parameters RecurrentRun::parameters(std::span<const TensorRef* const> weights) const {
  Parameters p;
  for (size_t i = 0; i < weights.size(); ++i)
    p.weights[i] = reinterpret_cast<uint64_t>(m.floats(*weights[i]));
  if (own != nullptr) p.sequence = *own;
  return p;
}

uint64_t RecurrentRun::where() const {
  return own == nullptr ? reinterpret_cast<uint64_t>(sequences)
                        : parameters_at() + offsetof(Parameters, sequence);
}

uint64_t RecurrentRun::plane(uint32_t input) const {
  if (m.draft_layout.n_rows == 0) return 0;
  const auto index = static_cast<size_t>(m.state_layout.index_of_layer[layer]);
  return m.draft_layout.layers[index].planes[input] / m.draft_layout.n_rows;
}

Kernel RecurrentRun::tail(bool replay, uint32_t conv_dim, uint32_t taps, uint32_t heads,
                          uint32_t n_planes) const {
  const uint32_t threads = device.driver().profile().threads;
  Kernel k{Shader::conv_tail,
           {replay ? 1u : 0u, taps},
           Args(),
           uint64_t{n_sequences} * ((conv_dim + threads - 1) / threads)};
  k.args.at(where())
      .at(x)
      .at(alpha)
      .at(beta)
      .u(n_sequences)
      .u(conv_dim)
      .u(heads)
      .u(state().conv_offset)
      .u(plane(0))
      .u(plane(1))
      .u(n_planes > 2 ? plane(2) : 0);
  return k;
}

/// Only a sequence that is not the device's is in the parameters.
Status RecurrentRun::remember(const Queue& queue, const Kernel& tail, const Parameters& p) const {
  return own == nullptr ? queue.dispatch(tail) : queue.dispatch(tail, &p, sizeof p);
}

Status DeltaRun::run(const Queue& queue, bool replay) const {
  const DeltaNetSpec& d = m.spec().layers[layer].delta;
  const TensorRef* const weights[] = {&d.conv1d, &d.dt_bias, &d.a, &d.norm};
  const Parameters p = parameters(weights);
  for (uint32_t from = 0; from == 0 || (!replay && from < n_rows); from += kRows)
    SHARPI_TRY(queue.dispatch(recurrence(replay, from), &p, sizeof p));
  return remember(queue, tail(replay, d.conv_dim(), d.conv_kernel, d.n_v_heads, 3), p);
}

Kernel DeltaRun::recurrence(bool replay, uint32_t from) const {
  const DeltaNetSpec& d = m.spec().layers[layer].delta;
  const Profile& f = device.driver().profile();
  const uint32_t parts = f.recurrent_parts * d.head_dim <= f.most_threads ? f.recurrent_parts : 1;
  Kernel k{Shader::delta,
           {replay ? 1u : 0u, d.head_dim, d.conv_kernel, parts},
           Args(),
           uint64_t{n_sequences} * d.n_v_heads,
           1,
           std::min(parts * d.head_dim, f.most_threads)};
  k.args.at(where())
      .at(x)
      .at(z)
      .at(alpha)
      .at(beta)
      .at(parameters_at())
      .at(y)
      .u(n_sequences)
      .u(d.n_k_heads)
      .u(d.n_v_heads)
      .u(state().state_offset)
      .u(state().conv_offset)
      .u(plane(DeltaNetSpec::kQkv))
      .u(plane(DeltaNetSpec::kAlpha))
      .u(plane(DeltaNetSpec::kBeta))
      .f(m.spec().rms_eps)
      .u(d.grouped ? 1u : 0u)
      .u(from)
      .u(kRows);
  return k;
}

Status MambaRun::run(const Queue& queue, bool replay) const {
  const Mamba2Spec& s = m.spec().layers[layer].mamba;
  const TensorRef* const weights[] = {&s.conv1d, &s.conv_bias, &s.dt_bias, &s.a, &s.d};
  const Parameters p = parameters(weights);
  for (uint32_t from = 0; from == 0 || (!replay && from < n_rows); from += kRows)
    SHARPI_TRY(queue.dispatch(recurrence(replay, from), &p, sizeof p));
  SHARPI_TRY(remember(queue, tail(replay, s.conv_dim(), s.conv_kernel, s.n_heads, 2), p));
  return replay ? Status::ok() : queue.dispatch(gate());
}

Kernel MambaRun::recurrence(bool replay, uint32_t from) const {
  const Mamba2Spec& s = m.spec().layers[layer].mamba;
  const Profile& f = device.driver().profile();
  const bool parted =
      f.recurrent_parts * s.head_dim <= f.most_threads && s.state_dim % f.recurrent_parts == 0;
  const uint32_t parts = parted ? f.recurrent_parts : 1;
  const uint32_t rows = std::clamp(kHeldElements / s.state_dim, 1u, kHeldRows);
  Kernel k{Shader::mamba,
           {replay ? 1u : 0u, s.state_dim, s.conv_kernel, parts, rows, s.conv_bias ? 1u : 0u},
           Args(),
           uint64_t{n_sequences} * s.n_heads,
           1,
           std::min(std::max(parts * s.head_dim, kLeastThreads), f.most_threads)};
  k.args.at(where())
      .at(x)
      .at(alpha)
      .at(parameters_at())
      .at(y)
      .u(n_sequences)
      .u(s.n_heads)
      .u(s.head_dim)
      .u(s.n_groups)
      .u(state().state_offset)
      .u(state().conv_offset)
      .u(plane(Mamba2Spec::kXbc))
      .u(plane(Mamba2Spec::kDt))
      .u(from)
      .u(kRows);
  return k;
}

/// Of what the recurrence wrote, which no convolution reads: beside what it has to remember.
Kernel MambaRun::gate() const {
  const Mamba2Spec& s = m.spec().layers[layer].mamba;
  Kernel k{Shader::mamba_gate, {}, Args(), uint64_t{n_rows} * s.n_groups};
  k.args.at(y)
      .at(z)
      .at(m.floats(s.norm))
      .u(s.inner() / s.n_groups)
      .u(s.n_groups)
      .f(m.spec().rms_eps)
      .u(n_rows);
  k.threads = device.driver().profile().row_threads;
  k.beside = true;
  return k;
}

Status replay_rows(const Device& device, const device::LoadedModel& model, uint32_t layer,
                   const device::BatchSequence& pending) {
  const auto replay = [&](auto run) {
    run.own = &pending;
    run.n_sequences = 1;
    return run.run(static_cast<const Queue&>(*model.stream), true);
  };
  switch (model.spec().layers[layer].mixer) {
    case MixerKind::kGatedDeltaNet:
      return replay(DeltaRun(device, model, layer));
    case MixerKind::kMamba2:
      return replay(MambaRun(device, model, layer));
    case MixerKind::kAttention:
    case MixerKind::kNone:
      break;  // they carry no state
  }
  return Status::error(Code::kInternal, "layer %u has no rows to replay", layer);
}

/// Rows that an earlier pass left pending come first.
template <class Run>
Status PassLaunches::recurrent(Run r) const {
  r.sequences = p_.batch.table.sequences;
  r.n_sequences = p_.batch.n_sequences;
  r.n_rows = n();
  r.x = buf(Buf::kQkv);
  r.z = buf(Buf::kZ);
  r.alpha = buf(Buf::kAlpha);
  r.y = buf(Buf::kMix);
  if (m_.draft_layout.n_rows != 0) SHARPI_TRY(r.run(queue_, true));
  return r.run(queue_, false);
}

Status PassLaunches::delta() const {
  DeltaRun r(device_, m_, l_.layer);
  r.beta = buf(Buf::kBeta);
  return recurrent(r);
}

Status PassLaunches::mamba() const {
  return recurrent(MambaRun(device_, m_, l_.layer));
}

}  // namespace sharpi::vulkan
