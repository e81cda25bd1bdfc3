// SPDX-License-Identifier: MIT
#include "cuda/pass_kernels.h"

#include <algorithm>

#include "cuda/delta_shape.h"
#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/latent/latent.h"
#include "cuda/kernels/moe/moe_step.h"
#include "cuda/kernels/moe/router.h"
#include "cuda/kernels/products/chain.h"
#include "cuda/kernels/products/gemm.h"
#include "cuda/kernels/products/matmul.h"
#include "cuda/pass_launches.h"
#include "cuda/paths.h"
#include "cuda/step_binding.h"

namespace sharpi::cuda {
namespace {

bool has_experts(const ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const LayerSpec& l) { return l.ffn.kind == FfnKind::kMoe; });
}

bool has_latents(const ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const LayerSpec& l) { return static_cast<bool>(l.attention.latent); });
}

uint64_t kernel_bytes(const ModelSpec& spec, const ModelShape& model, const KernelConfig& config,
                      const WorkspaceWidths& w, uint32_t rows, uint32_t head_rows) {
  const auto in = static_cast<uint32_t>(w.widest_in);
  uint64_t n = matmul_workspace_bytes(config, rows, in, static_cast<uint32_t>(w.widest_out));
  n = std::max(n, matmul_workspace_bytes(config, head_rows, spec.n_embd, spec.n_vocab));
  if (w.n_experts != 0) {
    n = std::max(n,
                 moe_workspace_bytes(config, rows, spec.n_embd, w.d_expert, w.n_slabs, w.n_used));
  }
  for (const DeltaNetSpec* d : w.deltas)
    n = std::max(n, delta_net_workspace_bytes(delta_shape(*d), model.max_rows()));
  return n;
}

}  // namespace

KernelConfig matmul_config(const Device& device, const ModelShape& model) {
  KernelConfig c;
  c.exact = model.exact;
  c.deterministic = model.deterministic;
  c.device = device.profile();
  c.pdl = c.device.pdl;
  c.cublas_lt = device.cublas_lt();
  return c;
}

/// Where products of many rows are not by warpgroups, blocks that come early crowd a few
/// multiprocessors: a mixture of experts lost a third, dense models nothing.
CudaPassKernels::CudaPassKernels(const Device& device, const ModelShape& model)
    : s_{device, matmul_config(device, model), matmul_config(device, model)} {
  s_.call.pdl = s_.step.pdl && have_gemm_sm90(s_.step);
}

PassScratch CudaPassKernels::scratch(const ModelSpec& spec, const ModelShape& model,
                                     const WorkspaceWidths& w, uint32_t rows,
                                     uint32_t head_rows) const {
  PassScratch out;
  out.kernel = kernel_bytes(spec, model, s_.step, w, rows, head_rows);
  out.attention =
      w.attn_heads == 0 ? 0 : attention_workspace_bytes(s_.step, w.attn_heads, w.attn_dim);
  if (has_latents(spec)) {
    out.attention =
        std::max(out.attention, latent_workspace_bytes(s_.step, w.attn_heads, w.attn_dim));
  }
  if (w.n_experts != 0) {
    out.moe_sync = moe_step_sync_bytes(spec.n_embd, w.n_used * w.d_expert, w.d_shared);
  }
  if (has_chains(s_.step)) {
    out.chain_rows = max_chain_rows(s_.step);
    out.chain_sync = kChainSyncBytes;
  }
  return out;
}

uint32_t CudaPassKernels::max_sorted_experts() const {
  return kMaxExperts;
}

/// Products of many rows (deterministic: of any) sort rows by matrix, and sort no more than
/// kMaxExperts.
bool CudaPassKernels::takes_slots(uint32_t n_slots, uint32_t n_rows) const {
  return n_slots < kMaxExperts || (n_rows <= kStreamedRows && !s_.step.deterministic);
}

bool CudaPassKernels::fuses(uint32_t n_rows) const {
  return n_rows == 1 || n_rows <= max_fused_rows(s_.step);
}

bool CudaPassKernels::blocks_meet(const ModelSpec& spec) const {
  return has_chains(s_.step) || (has_experts(spec) && max_moe_step_rows(s_.step) != 0);
}

Status CudaPassKernels::prepare() {
  SHARPI_TRY(s_.device.settle(prepare_matmul(s_.step)));
  SHARPI_TRY(s_.device.settle(prepare_attention(s_.step)));
  return s_.device.settle(prepare_delta_net(s_.step));
}

LaunchList CudaPassKernels::fuse(const LoadedModel& model, const SegmentProgram& program,
                                 const PassFacts& facts, bool step) const {
  StepFacts f;
  static_cast<PassFacts&>(f) = facts;
  f.config = step ? s_.step : s_.call;
  f.chain_bytes = s_.device.chain_bytes();
  f.moe_sync_bytes = model.workspace_layout.size_of(Buf::kMoeSync);
  return cuda::fuse(program, f);
}

Status CudaPassKernels::launch(Pass& p, const LaunchList& list, const Launch& l) const {
  return PassLaunches(p.model, s_).make(p, list, l);
}

Status CudaPassKernels::replay(const LoadedModel& model, const DeviceSession& session,
                               uint32_t layer) const {
  return MixerLaunches(model, s_).replay(session, layer);
}

std::string CudaPassKernels::paths(const LoadedModel& model) const {
  return "cuda sm_" + std::to_string(s_.device.capability()) + block_paths(model, s_.step) + "; " +
         s_.device.library();
}

}  // namespace sharpi::cuda
