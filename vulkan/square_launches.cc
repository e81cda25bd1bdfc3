// SPDX-License-Identifier: MIT
// FFNs of squares, which have no gate, and routers whose scores are not shares alone.
#include "vulkan/pass_launches.h"

namespace sharpi::vulkan {

Status PassLaunches::activation() const {
  const uint64_t all = uint64_t{n()} * device::hidden_width(layer().ffn);
  return run(Shader::square, {}, Args().at(buf(Buf::kFfn)).u(all), groups_of(all));
}

/// Whether shares are a softmax of the logits, and experts are chosen by them.
bool PassLaunches::routes_by_shares() const {
  const FfnSpec& f = layer().ffn;
  return f.scores == RouterScores::kSoftmax && !f.choice_bias && f.share_scale == 1.0f;
}

Status PassLaunches::choose_experts() const {
  const FfnSpec& f = layer().ffn;
  const Args args = Args()
                        .at(buf(Buf::kRouter))
                        .at(ws_.get<int32_t>(Buf::kMoeIds))
                        .at(buf(Buf::kMoeWeight))
                        .at(m_.floats(f.choice_bias))
                        .at(m_.floats(f.expert_scale))
                        .u(n())
                        .u(f.n_experts)
                        .u(f.n_used)
                        .u(f.renormalize ? 1 : 0)
                        .f(f.share_scale);
  return run(Shader::choose_experts, {f.scores == RouterScores::kSigmoid ? 1u : 0u}, args, n());
}

/// Rows are floats, whatever the model's arithmetic is.
Status PassLaunches::square_experts(bool slots) const {
  const FfnSpec& f = layer().ffn;
  const uint32_t e = s_.n_embd, pairs = n() * f.n_used;
  const int32_t* table = slots ? m_.experts->table(l_.layer) : nullptr;
  const device::SlotLayout::Layer at =
      slots ? m_.experts->layout().layers[l_.layer] : device::SlotLayout::Layer{};
  const ExpertMatrix up = matrix_of(f.up, slots, at.up), down = matrix_of(f.down, slots, at.down);
  float* x = buf(Buf::kKernel);
  float* h = x + uint64_t{n()} * e;
  SHARPI_TRY(norm(buf(Buf::kX), m_.floats(layer().expert_norm()), x, e, n(), e));
  const Args in = Args()
                      .at(up.data)
                      .at(up.stride)
                      .at(ws_.get<int32_t>(Buf::kMoeIds))
                      .at(table)
                      .at(x)
                      .at(h)
                      .at(m_.floats(f.up_bias))
                      .u(e)
                      .u(f.d_ff)
                      .u(f.n_used)
                      .u(f.up.row_bytes())
                      .u(pairs);
  SHARPI_TRY(
      run(Shader::square_experts, {static_cast<uint32_t>(f.up.tensor->type)}, in, f.d_ff, pairs));
  const Args out = Args()
                       .at(down.data)
                       .at(down.stride)
                       .at(ws_.get<int32_t>(Buf::kMoeIds))
                       .at(table)
                       .at(buf(Buf::kMoeWeight))
                       .at(h)
                       .at(buf(l_.to))
                       .at(m_.floats(f.down_bias))
                       .u(f.d_ff)
                       .u(e)
                       .u(f.n_used)
                       .u(f.down.row_bytes())
                       .u(n())
                       .u(l_.add ? 1 : 0);
  return run(Shader::expert_down, {static_cast<uint32_t>(f.down.tensor->type)}, out, e, n());
}

}  // namespace sharpi::vulkan
