// SPDX-License-Identifier: MIT
#include <cmath>

#include "vulkan/pass_launches.h"

namespace sharpi::vulkan {

Status PassLaunches::route() const {
  const FfnSpec& f = layer().ffn;
  const Args args = Args()
                        .at(buf(Buf::kRouter))
                        .at(ws_.get<int32_t>(Buf::kMoeIds))
                        .at(buf(Buf::kMoeWeight))
                        .at(f.expert_scale ? m_.floats(f.expert_scale) : nullptr)
                        .u(n())
                        .u(f.n_experts)
                        .u(f.n_used)
                        .u(f.renormalize ? 1 : 0)
                        .f(f.beside_dense() ? std::sqrt(static_cast<float>(s_.n_embd)) : 1.0f);
  return run(Shader::router, {}, args, n());
}

Status PassLaunches::shared_gate() const {
  const Args args = Args()
                        .at(buf(Buf::kX))
                        .at(m_.floats(layer().ffn_norm))
                        .at(m_.floats(layer().ffn.shared_gate_inp))
                        .at(buf(Buf::kSharedGate))
                        .u(s_.n_embd)
                        .u(n())
                        .f(s_.rms_eps);
  return run(Shader::shared_gate, {}, args, n());
}

/// Of all experts side by side, or of those in slots, `at` bytes into each.
ExpertMatrix PassLaunches::matrix_of(const TensorRef& w, bool slots, uint64_t at) const {
  if (!slots) return {m_.weight(w), (w.n_out + w.n_left_out) * w.row_bytes()};
  return {m_.experts->pool().data() + at, m_.experts->layout().bytes};
}

Status PassLaunches::experts(bool slots) const {
  const FfnSpec& f = layer().ffn;
  const uint32_t e = s_.n_embd, pairs = n() * f.n_used;
  const int32_t* table = slots ? m_.experts->table(l_.layer) : nullptr;
  const device::SlotLayout::Layer at =
      slots ? m_.experts->layout().layers[l_.layer] : device::SlotLayout::Layer{};
  const TensorRef& up_ref = f.fused_gate_up ? f.gate : f.up;
  const ExpertMatrix gate = matrix_of(f.gate, slots, 0), down = matrix_of(f.down, slots, at.down);
  ExpertMatrix up = matrix_of(up_ref, slots, f.fused_gate_up ? 0 : at.up);
  if (f.fused_gate_up) up.data += uint64_t{f.d_ff} * f.gate.row_bytes();
  float* x = buf(Buf::kKernel);
  float* h = x + uint64_t{n()} * e;
  const auto dotted = [&](const TensorRef& w) { return form_of(w, 1) == RowForm::kBytes; };
  const bool dots = dotted(f.gate) && dotted(up_ref) && dotted(f.down);
  const std::byte* bytes = dots ? bytes_of(n(), e) : nullptr;
  SHARPI_TRY(norm(buf(Buf::kX), m_.floats(layer().expert_norm()), x, e, n(), e, nullptr, bytes));
  const Args in = Args()
                      .at(gate.data)
                      .at(up.data)
                      .at(gate.stride)
                      .at(up.stride)
                      .at(ws_.get<int32_t>(Buf::kMoeIds))
                      .at(table)
                      .at(dots ? static_cast<const void*>(bytes) : x)
                      .at(h)
                      .at(m_.floats(f.gate_bias))
                      .at(m_.floats(f.up_bias))
                      .u(e)
                      .u(f.d_ff)
                      .u(f.n_used)
                      .u(f.gate.row_bytes())
                      .u(up_ref.row_bytes())
                      .u(pairs);
  SHARPI_TRY(
      run(dots ? Shader::expert_up_dots : Shader::expert_up,
          {static_cast<uint32_t>(f.gate.tensor->type), static_cast<uint32_t>(up_ref.tensor->type),
           static_cast<uint32_t>(device::gated(f))},
          in, f.d_ff, pairs));
  if (dots) SHARPI_TRY(quantise(h, pairs, f.d_ff));
  const Args out = Args()
                       .at(down.data)
                       .at(down.stride)
                       .at(ws_.get<int32_t>(Buf::kMoeIds))
                       .at(table)
                       .at(buf(Buf::kMoeWeight))
                       .at(dots ? static_cast<const void*>(bytes_of(pairs, f.d_ff)) : h)
                       .at(buf(l_.to))
                       .at(m_.floats(f.down_bias))
                       .u(f.d_ff)
                       .u(e)
                       .u(f.n_used)
                       .u(f.down.row_bytes())
                       .u(n())
                       .u(l_.add ? 1 : 0);
  return run(dots ? Shader::expert_down_dots : Shader::expert_down,
             {static_cast<uint32_t>(f.down.tensor->type)}, out, e, n());
}

/// Of a recording: to pinned memory, where the host finds them when the part has ended.
Status PassLaunches::send_rows() const {
  const device::ExpertHandover& h = ws_.experts;
  const Args args = Args()
                        .at(buf(Buf::kX))
                        .at(pinned(h.at<float>(h.layout.x)))
                        .at(ws_.get<int32_t>(Buf::kMoeIds))
                        .at(buf(Buf::kMoeWeight))
                        .at(pinned(h.layer_ids(l_.layer)))
                        .at(pinned(h.layer_weights(l_.layer)))
                        .at(m_.uses_slots(n()) ? m_.experts->table(l_.layer) : nullptr)
                        .at(&ws_.get<device::HandoverState>(Buf::kHandover)->waits)
                        .u(s_.n_embd)
                        .u(layer().ffn.n_used)
                        .u(n());
  SHARPI_TRY(run(Shader::send_rows, {}, args, n()));
  return queue_.end_with_question();
}

/// The host's sum. Of a recording only where send_rows() found an expert without a slot.
Status PassLaunches::answers() const {
  const device::ExpertHandover& h = ws_.experts;
  if (p_.recorded) SHARPI_TRY(queue_.begin_with_answer());
  const uint32_t all = n() * s_.n_embd;
  const Args args =
      Args()
          .at(pinned(h.at<float>(h.layout.y)))
          .at(buf(l_.to))
          .at(p_.recorded ? &ws_.get<device::HandoverState>(Buf::kHandover)->waits : nullptr)
          .u(all)
          .u(l_.add ? 1 : 0);
  return run(Shader::answers, {}, args, groups_of(all));
}

}  // namespace sharpi::vulkan
