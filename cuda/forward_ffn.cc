// SPDX-License-Identifier: MIT
// The FFN blocks of the CUDA tier: dense, mixture of experts with its router on the device, the
// shared expert, and what ends a layer (per-layer embedding injection, output scale).
#include "cuda/cuda_model.h"
#include "cuda/kernels/moe/router.h"

namespace sharpi::cuda {
namespace {

Epilogue gated(const FfnSpec& f) {
  return f.activation == Activation::kSilu ? Epilogue::kSwiGlu : Epilogue::kGeGlu;
}

}  // namespace

Status CudaModel::ffn_block(Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec().layers[layer];
  const FfnSpec& f = l.ffn;
  const float scale = l.ple_gate ? 1.0f : l.output_scale;  // whatever ends the layer applies it
  if (f.kind == FfnKind::kDense) {
    SHARPI_TRY(gated_ffn(p, f, f.gate, f.up, l.ffn_norm));
    SHARPI_TRY(project_back(p, Buf::kFfn, f.d_ff, f.down, l.ffn_post_norm, scale));
  } else {
    SHARPI_TRY(moe_ffn(p, layer, scale));
  }
  return l.ple_gate ? per_layer_injection(p, layer) : Status::ok();
}

Status CudaModel::gated_ffn(Pass& p, const FfnSpec& f, const TensorRef& gate, const TensorRef& up,
                            const TensorRef& norm) const {
  MatmulParams m = product(p, Buf::kX, spec().n_embd, norm);
  m.n_tasks = 2;
  m.tasks[0] = {matrix(gate), p.ws.get(Buf::kFfn), gate.n_out};
  m.tasks[1] = {matrix(up), p.ws.get(Buf::kFfn), gate.n_out};
  m.epilogue = gated(f);
  return f.kind == FfnKind::kDense ? chain(p, m) : multiply(p, m);
}

Status CudaModel::route(Pass& p, const LayerSpec& l) const {
  const FfnSpec& f = l.ffn;
  MatmulParams m = product(p, Buf::kX, spec().n_embd, l.ffn_norm);
  m.n_tasks = 1;
  m.tasks[0] = {matrix(f.router), p.ws.get(Buf::kRouter), f.n_experts};
  m.force_f32 = true;
  SHARPI_TRY(multiply(p, m));
  RouterParams r;
  r.logits = p.ws.get(Buf::kRouter);
  r.stride = f.n_experts;
  r.n_rows = p.n_rows();
  r.n_experts = f.n_experts;
  r.n_used = f.n_used;
  r.renormalize = f.renormalize;
  r.ids = p.ws.get<int32_t>(Buf::kMoeIds);
  r.weights = p.ws.get(Buf::kMoeWeight);
  r.pdl = p.config.pdl;
  return launch_router(r, p.ws.lane());
}

/// The part of the shared expert that reads the block's input: its gate and its hidden rows.
Status CudaModel::shared_expert_in(Pass& p, const LayerSpec& l) const {
  const FfnSpec& f = l.ffn;
  if (f.shared_gate_inp) {
    SigmoidGateParams g;
    g.x = p.ws.get(Buf::kX);
    g.x_stride = spec().n_embd;
    g.n_rows = p.n_rows();
    g.n_in = spec().n_embd;
    g.norm_weight = floats(l.ffn_norm);
    g.norm_eps = spec().rms_eps;
    g.w = floats(f.shared_gate_inp);
    g.y = p.ws.get(Buf::kSharedGate);
    g.pdl = p.config.pdl;
    SHARPI_TRY(launch_sigmoid_gate(g, p.ws.lane()));
  }
  return gated_ffn(p, f, f.shared_gate, f.shared_up, l.ffn_norm);
}

Status CudaModel::shared_expert_out(Pass& p, const FfnSpec& f) const {
  MatmulParams down = product(p, Buf::kFfn, f.d_shared, {});
  down.n_tasks = 1;
  down.tasks[0] = {matrix(f.shared_down), p.ws.get(Buf::kX), spec().n_embd};
  down.epilogue = Epilogue::kAdd;
  down.row_scale = f.shared_gate_inp ? p.ws.get(Buf::kSharedGate) : nullptr;
  return multiply(p, down);
}

/// Everything but the matrices.
MoeParams CudaModel::expert_params(Pass& p, uint32_t layer, Buf to, bool add) const {
  const LayerSpec& l = spec().layers[layer];
  MoeParams m;
  m.x = p.ws.get(Buf::kX);
  m.x_stride = spec().n_embd;
  m.n_rows = p.n_rows();
  m.norm_weight = floats(l.ffn_norm);
  m.norm_eps = spec().rms_eps;
  m.n_used = l.ffn.n_used;
  m.ids = p.ws.get<int32_t>(Buf::kMoeIds);
  m.weights = p.ws.get(Buf::kMoeWeight);
  m.activation = gated(l.ffn);
  m.add = add;
  m.y = p.ws.get(to);
  m.y_stride = spec().n_embd;
  m.workspace = p.ws.get<std::byte>(Buf::kKernel);
  m.workspace_bytes = p.ws.size(Buf::kKernel);
  return m;
}

void CudaModel::add_experts(uint32_t layer, MoeParams* m) const {
  const FfnSpec& f = spec().layers[layer].ffn;
  const DeviceMatrix first = matrix(f.gate);
  m->gate = f.fused_gate_up ? row_slice(first, 0, f.d_ff) : first;
  m->up = f.fused_gate_up ? row_slice(first, f.d_ff, f.d_ff) : matrix(f.up);
  m->down = matrix(f.down);
}

/// The whole block up to its post norm in one launch.
MoeStepParams CudaModel::moe_step(Pass& p, uint32_t layer, Buf to, bool add) const {
  MoeStepParams m = moe_step(layer, expert_params(p, layer, to, add));
  m.ids = p.ws.get<int32_t>(Buf::kMoeIds);
  m.weights = p.ws.get(Buf::kMoeWeight);
  m.sync = p.ws.get<std::byte>(Buf::kMoeSync);
  return m;
}

bool CudaModel::takes_moe_step(uint32_t layer) const {
  const LayerSpec& l = spec().layers[layer];
  MoeParams m;
  m.n_rows = 1;
  m.n_used = l.ffn.n_used;
  m.activation = gated(l.ffn);
  m.add = !l.ffn_post_norm;
  return (m.add || l.ffn.d_shared == 0) && moe_step_takes(config_, moe_step(layer, m));
}

MoeStepParams CudaModel::moe_step(uint32_t layer, const MoeParams& experts) const {
  const FfnSpec& f = spec().layers[layer].ffn;
  MoeStepParams m;
  m.moe = experts;
  add_experts(layer, &m.moe);
  m.router = matrix(f.router);
  m.renormalize = f.renormalize;
  m.sync_bytes = workspace_layout_.size_of(Buf::kMoeSync);
  // A post norm is of the routed experts' sum alone.
  if (f.d_shared == 0 || !m.moe.add) return m;
  m.shared_gate = matrix(f.shared_gate);
  m.shared_up = matrix(f.shared_up);
  m.shared_down = matrix(f.shared_down);
  m.shared_gate_inp = floats(f.shared_gate_inp);
  return m;
}

/// Everything that reads the block's input runs before the first add to it. Experts on the CPU:
/// they are asked for first and added last, so that the host and the device work at the same time.
Status CudaModel::moe_ffn(Pass& p, uint32_t layer, float scale) const {
  const LayerSpec& l = spec().layers[layer];
  const FfnSpec& f = l.ffn;
  const bool parted = parts_experts(layer) && !p.streamed;
  SHARPI_TRY(flush(p));
  const bool add = !l.ffn_post_norm;
  const Buf to = add ? Buf::kX : Buf::kY;
  MoeStepParams step;
  if (!parted) step = moe_step(p, layer, to, add);
  std::swap(step.before, p.moe.step.before);
  if (step.before.n_tasks != 0 && !moe_step_takes(p.config, step)) {
    SHARPI_TRY(multiply(p, step.before));
    step.before = {};
  }
  const bool at_once = !parted && (add || f.d_shared == 0) && moe_step_takes(p.config, step);
  if (at_once && p.moe.on && add && scale == 1.0f && !l.ple_gate) {
    p.moe.step = step;
    p.moe.waits = true;
    return Status::ok();
  }
  if (at_once) {
    SHARPI_TRY(launch_moe_step(p.config, step, p.ws.lane()));
  } else {
    SHARPI_TRY(route(p, l));
    if (parted) SHARPI_TRY(send_rows(p, layer));
    if (f.d_shared != 0) SHARPI_TRY(shared_expert_in(p, l));
    SHARPI_TRY(parted ? resident_experts(p, layer, to, add)
                      : launch_moe(p.config, step.moe, p.ws.lane()));
  }
  if (parted && !add) SHARPI_TRY(answered_experts(p, layer, to, uses_slots(p.n_rows())));
  const bool scale_last = f.d_shared != 0 || add;  // otherwise the residual add takes it along
  ResidualParams r;
  r.x = p.ws.get(Buf::kX);
  r.n_rows = p.n_rows();
  r.width = spec().n_embd;
  r.eps = spec().rms_eps;
  if (!add) {
    r.y = p.ws.get(Buf::kY);
    r.weight = floats(l.ffn_post_norm);
    r.scale = scale_last ? 1.0f : scale;
    SHARPI_TRY(launch_residual(r, lane(p)));
  }
  if (f.d_shared != 0 && !at_once) SHARPI_TRY(shared_expert_out(p, f));
  if (parted && add) SHARPI_TRY(answered_experts(p, layer, to, true));
  if (!scale_last || scale == 1.0f) return Status::ok();
  r.y = r.weight = nullptr;
  r.scale = scale;
  return launch_residual(r, lane(p));
}

Status CudaModel::per_layer_injection(Pass& p, uint32_t layer) const {
  const LayerSpec& l = spec().layers[layer];
  const uint32_t width = spec().d_ple;
  SHARPI_TRY(flush(p));
  MatmulParams m = product(p, Buf::kX, spec().n_embd, {});
  m.n_tasks = 1;
  m.tasks[0] = {matrix(l.ple_gate), p.ws.get(Buf::kPleTmp), width};
  SHARPI_TRY(multiply(p, m));
  PleGateParams g;
  g.t = p.ws.get(Buf::kPleTmp);
  g.c = p.ws.get(Buf::kPle) + uint64_t{layer} * width;
  g.stride = uint64_t{spec().n_layers()} * width;
  g.n_rows = p.n_rows();
  g.width = width;
  SHARPI_TRY(launch_ple_gate(g, lane(p)));
  return project_back(p, Buf::kPleTmp, width, l.ple_proj, l.ple_post_norm, l.output_scale);
}

}  // namespace sharpi::cuda
