// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "base/checked.h"
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

ExpertRun PassLaunches::expert_run(bool slots) const {
  const FfnSpec& f = layer().ffn;
  const device::SlotLayout::Layer at =
      slots ? m_.experts->layout().layers[l_.layer] : device::SlotLayout::Layer{};
  ExpertRun e{f, f.fused_gate_up ? f.gate : f.up, {}, {}, {}};
  if (f.gate) e.gate = matrix_of(f.gate, slots, 0);
  e.down = matrix_of(f.down, slots, at.down);
  e.up = matrix_of(e.up_ref, slots, f.fused_gate_up ? 0 : at.up);
  if (f.fused_gate_up) e.up.data += uint64_t{f.d_ff} * f.gate.row_bytes();
  e.ids = ws_.get<int32_t>(Buf::kMoeIds);
  e.table = slots ? m_.experts->table(l_.layer) : nullptr;
  e.x = buf(Buf::kKernel);
  e.h = e.x + uint64_t{n()} * s_.n_embd;
  e.pairs = n() * f.n_used;
  return e;
}

Status PassLaunches::experts(bool slots) const {
  ExpertRun e = expert_run(slots);
  if (!experts_in_tiles(m_.plan->model, e.f.n_experts, e.f.n_used, n())) return experts_by_pairs(e);
  e.made = e.h + uint64_t{e.pairs} * e.f.d_ff;
  e.order = e.made + uint64_t{e.pairs} * std::min(s_.n_embd, kJoinedOutputs);
  e.tiles = round_up(reinterpret_cast<uint64_t>(e.order + e.pairs), 16);
  e.matrices = experts_by_matrices(profile(), m_.plan->model, e.f, n());
  e.rows_of_matrix = profile().matrix.n;
  return experts_by_tiles(e);
}

/// The second matrices of a few rows' experts; `h` in 8 bits, or as floats.
Status PassLaunches::expert_sums(const ExpertRun& r, bool dots) const {
  const FfnSpec& f = r.f;
  const Args out = Args()
                       .at(r.down.data)
                       .at(r.down.stride)
                       .at(r.ids)
                       .at(r.table)
                       .at(buf(Buf::kMoeWeight))
                       .at(dots ? static_cast<const void*>(bytes_of(r.pairs, f.d_ff)) : r.h)
                       .at(buf(l_.to))
                       .at(m_.floats(f.down_bias))
                       .u(f.d_ff)
                       .u(s_.n_embd)
                       .u(f.n_used)
                       .u(f.down.row_bytes())
                       .u(n())
                       .u(l_.add ? 1 : 0);
  return run(dots ? Shader::expert_down_dots : Shader::expert_down,
             {static_cast<uint32_t>(f.down.tensor->type)}, out, s_.n_embd, n());
}

Status PassLaunches::experts_by_pairs(const ExpertRun& r) const {
  const FfnSpec& f = r.f;
  const uint32_t e = s_.n_embd;
  const TensorRef& gate = f.gate ? f.gate : r.up_ref;  // of squares there is none
  const auto dotted = [&](const TensorRef& w) { return form_of(w, 1) == RowForm::kBytes; };
  const bool dots = dotted(gate) && dotted(r.up_ref) && dotted(f.down);
  const std::byte* bytes = dots ? bytes_of(n(), e) : nullptr;
  SHARPI_TRY(norm(buf(Buf::kX), m_.floats(layer().expert_norm()), r.x, e, n(), e, nullptr, bytes));
  const Args in = Args()
                      .at(r.gate.data)
                      .at(r.up.data)
                      .at(r.gate.stride)
                      .at(r.up.stride)
                      .at(r.ids)
                      .at(r.table)
                      .at(dots ? static_cast<const void*>(bytes) : r.x)
                      .at(r.h)
                      .at(m_.floats(f.gate_bias))
                      .at(m_.floats(f.up_bias))
                      .u(e)
                      .u(f.d_ff)
                      .u(f.n_used)
                      .u(gate.row_bytes())
                      .u(r.up_ref.row_bytes())
                      .u(r.pairs);
  SHARPI_TRY(
      run(dots ? Shader::expert_up_dots : Shader::expert_up,
          {static_cast<uint32_t>(gate.tensor->type), static_cast<uint32_t>(r.up_ref.tensor->type),
           static_cast<uint32_t>(device::hidden_epilogue(f))},
          in, f.d_ff, r.pairs));
  if (dots) SHARPI_TRY(quantise(r.h, r.pairs, f.d_ff));
  return expert_sums(r, dots);
}

/// One product of sorted pairs, of one matrix or of a gate's two.
struct PassLaunches::PairProduct {
  const TensorRef &w, &up_ref;
  ExpertMatrix first, up;
  const void* x;
  const float *bias, *up_bias;
  float* y;
  device::Epilogue epilogue;
  uint32_t n_out, shared_by, bias_stride;
};

Status PassLaunches::pair_product(const ExpertRun& r, const PairProduct& p) const {
  const MatrixShape& m = profile().matrix;
  const uint32_t outputs = r.matrices ? 8 * m.m : kExpertTile;
  Kernel k{r.matrices ? Shader::expert_matrix : Shader::expert_tile,
           {static_cast<uint32_t>(p.w.tensor->type), static_cast<uint32_t>(p.up_ref.tensor->type),
            static_cast<uint32_t>(p.epilogue)},
           Args(),
           div_up(p.n_out, device::is_gated(p.epilogue) ? outputs / 2 : outputs),
           static_cast<uint32_t>(r.pairs / r.side() + r.f.n_experts),
           r.matrices ? profile().matrix_threads : kExpertTile};
  if (r.matrices) k.constants.append({m.m, m.n, m.k});
  k.args.at(p.first.data)
      .at(p.up.data)
      .at(p.first.stride)
      .at(p.up.stride)
      .at(p.x)
      .at(p.y)
      .at(r.order)
      .at(r.tiles)
      .at(p.bias)
      .at(p.up_bias)
      .u(p.w.n_in)
      .u(p.n_out)
      .u(p.w.row_bytes())
      .u(p.up_ref.row_bytes())
      .u(p.shared_by)
      .u(p.bias_stride)
      .u(p.shared_by == 1 ? r.pairs : n());
  return queue_.dispatch(k);
}

/// Sorted by expert. Second matrices go some outputs at a time, whose sums of a row's experts then
/// go to it.
Status PassLaunches::experts_by_tiles(const ExpertRun& r) const {
  const FfnSpec& f = r.f;
  const uint32_t e = s_.n_embd, width = std::min(e, kJoinedOutputs);
  SHARPI_TRY(norm(buf(Buf::kX), m_.floats(layer().expert_norm()), r.x, e, n(), e));
  const Args sort =
      Args().at(r.ids).at(r.table).at(r.order).at(r.tiles).u(r.pairs).u(f.n_experts).u(r.side());
  SHARPI_TRY(run_rows(Shader::expert_sort, {}, sort, 1));
  if (r.matrices) SHARPI_TRY(halve(r.x, n(), e, true));
  const bool gates = static_cast<bool>(f.gate);
  const float *gate_bias = m_.floats(f.gate_bias), *up_bias = m_.floats(f.up_bias);
  SHARPI_TRY(pair_product(r, {gates ? f.gate : r.up_ref, r.up_ref, gates ? r.gate : r.up, r.up,
                              r.matrices ? static_cast<const void*>(bytes_of(n(), e)) : r.x,
                              gates ? gate_bias : up_bias, gates ? up_bias : nullptr, r.h,
                              device::hidden_epilogue(f), f.d_ff, f.n_used, f.d_ff}));
  if (r.matrices) SHARPI_TRY(halve(r.h, r.pairs, f.d_ff, true));
  const void* h = r.matrices ? static_cast<const void*>(bytes_of(r.pairs, f.d_ff)) : r.h;
  const float* bias = m_.floats(f.down_bias);
  constexpr auto kStore = device::Epilogue::kStore;
  for (uint32_t from = 0; from < e; from += width) {
    const uint32_t some = std::min(width, e - from);
    const ExpertMatrix down{r.down.data + from * f.down.row_bytes(), r.down.stride};
    const float* some_bias = bias == nullptr ? nullptr : bias + from;
    SHARPI_TRY(pair_product(
        r, {f.down, f.down, down, {}, h, some_bias, nullptr, r.made, kStore, some, 1, e}));
    const Args join = Args()
                          .at(r.ids)
                          .at(r.table)
                          .at(buf(Buf::kMoeWeight))
                          .at(r.made)
                          .at(buf(l_.to))
                          .u(e)
                          .u(from)
                          .u(some)
                          .u(f.n_used)
                          .u(n())
                          .u(l_.add ? 1 : 0);
    SHARPI_TRY(run(Shader::expert_join, {}, join, groups_of(uint64_t{n()} * some)));
  }
  return Status::ok();
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
