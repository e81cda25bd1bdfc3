// SPDX-License-Identifier: MIT
// Hidden rows of FFNs that no product has activated: squares, which have no gate, and gates that
// something comes in front of; and routers whose scores are not shares alone.
#include "vulkan/pass_launches.h"

namespace sharpi::vulkan {

Status PassLaunches::activation() const {
  const FfnSpec& f = layer().ffn;
  const uint64_t all = uint64_t{n()} * device::hidden_width(f);
  const bool gates = device::has_gate(f);
  const Args args = Args().at(buf(Buf::kFfn)).at(gates ? buf(Buf::kUp) : nullptr).u(all);
  return run(Shader::activation, {static_cast<uint32_t>(device::hidden_epilogue(f))}, args,
             groups_of(all));
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

}  // namespace sharpi::vulkan
