// SPDX-License-Identifier: MIT
// Hidden rows of FFNs that no product has activated: squares, which have no gate, and gates that
// something comes in front of; experts of squares, and routers whose scores are not shares alone.
#include "vulkan/pass_launches.h"

namespace sharpi::vulkan {

Status PassLaunches::activation() const {
  const FfnSpec& f = layer().ffn;
  const uint64_t all = uint64_t{n()} * device::hidden_width(f);
  const bool gates = device::has_gate(f);
  const Args args = Args().at(buf(Buf::kFfn)).at(gates ? buf(Buf::kUp) : nullptr).u(all);
  return run(Shader::activation, {gates ? static_cast<uint32_t>(device::hidden_epilogue(f)) : 0u},
             args, groups_of(all));
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
  const ExpertRun r = expert_run(slots);
  const FfnSpec& f = r.f;
  const uint32_t e = s_.n_embd;
  SHARPI_TRY(norm(buf(Buf::kX), m_.floats(layer().expert_norm()), r.x, e, n(), e));
  const Args in = Args()
                      .at(r.up.data)
                      .at(r.up.stride)
                      .at(r.ids)
                      .at(r.table)
                      .at(r.x)
                      .at(r.h)
                      .at(m_.floats(f.up_bias))
                      .u(e)
                      .u(f.d_ff)
                      .u(f.n_used)
                      .u(f.up.row_bytes())
                      .u(r.pairs);
  SHARPI_TRY(
      run(Shader::square_experts, {static_cast<uint32_t>(f.up.tensor->type)}, in, f.d_ff, r.pairs));
  return expert_sums(r, false);
}

}  // namespace sharpi::vulkan
