// SPDX-License-Identifier: MIT
// Chains of products in the captured steps of one row: a product waits here for the ones that
// follow it, until something else has to be launched, and all go in one launch
// (kernels/products/chain.h). A norm of an output before the residual add waits as well and becomes
// part of the next product's input; meanwhile the hidden row moves between kX and kOtherX, because
// blocks that are ahead must not overwrite what others still read. Between chains it is in kX.
#include "cuda/cuda_model.h"

namespace sharpi::cuda {

float* CudaModel::hidden(Pass& p) const {
  return p.ws.get(p.chain.moved ? Buf::kOtherX : Buf::kX);
}

/// A product that may wait. Its parameters come from product() and hidden().
Status CudaModel::chain(Pass& p, const MatmulParams& m) const {
  PendingChain& c = p.chain;
  if (!c.on) return launch_matmul(p.config, m, p.ws.lane());
  ChainStep step{m, {}};
  if (c.has_branch) {
    step.branch = c.branch;
    step.branch.x_out = p.ws.get(c.moved ? Buf::kX : Buf::kOtherX);
  }
  const float* row = hidden(p);
  if ((c.has_branch && m.x != row) || !chain_takes(p.config, step)) {
    SHARPI_TRY(flush(p));  // the hidden row may move
    MatmulParams alone = m;
    if (alone.x == row) alone.x = hidden(p);
    for (MatmulTask& t : alone.tasks) {
      if (t.y == row) t.y = hidden(p);
    }
    return launch_matmul(p.config, alone, p.ws.lane());
  }
  if (c.n == kMaxChainSteps) SHARPI_TRY(launch_pending(p));
  c.steps[c.n++] = step;
  if (c.has_branch) {
    c.has_branch = false;
    c.moved = !c.moved;
  }
  return Status::ok();
}

/// hidden = scale * (hidden + norm(kY)), now or with the next product.
Status CudaModel::chain_branch(Pass& p, const TensorRef& post_norm, float scale) const {
  PendingChain& c = p.chain;
  c.has_branch = true;
  c.branch = {p.ws.get(Buf::kY), floats(post_norm), spec().rms_eps, scale, nullptr};
  return c.on && c.n != 0 ? Status::ok() : flush(p);
}

Status CudaModel::launch_pending(Pass& p) const {
  PendingChain& c = p.chain;
  if (c.n == 0) return Status::ok();
  const uint32_t n = c.n;
  c.n = 0;
  if (n == 1 && c.steps[0].branch.y == nullptr) {
    return launch_matmul(p.config, c.steps[0].product, p.ws.lane());
  }
  ChainTuning tuning;
  tuning.shared_bytes = device_->chain_bytes();
  if (!chain_fits(p.config, c.steps, n, tuning)) {
    chains_apart_.fetch_add(1, std::memory_order_relaxed);
    return launch_apart(p, n);
  }
  chains_launched_.fetch_add(1, std::memory_order_relaxed);
  return launch_chain(p.config, c.steps, n, p.ws.get<std::byte>(Buf::kChainSync), p.ws.lane(),
                      tuning);
}

/// The first n steps that wait, each in a launch of its own.
Status CudaModel::launch_apart(Pass& p, uint32_t n) const {
  for (uint32_t k = 0; k < n; ++k) {
    MatmulParams m = p.chain.steps[k].product;
    const ChainBranch& branch = p.chain.steps[k].branch;
    if (branch.y != nullptr) {
      // The row is read only: the sum goes elsewhere.
      SHARPI_TRY(add_branch(p, const_cast<float*>(m.x), branch, branch.x_out));
      m.x = branch.x_out;
    }
    SHARPI_TRY(launch_matmul(p.config, m, p.ws.lane()));
  }
  return Status::ok();
}

/// to = scale * (x + norm(y)); without y a copy.
Status CudaModel::add_branch(Pass& p, float* x, const ChainBranch& branch, float* to) const {
  ResidualParams r;
  r.x = x;
  r.to = to;
  r.y = branch.y;
  r.n_rows = p.n_rows();
  r.width = spec().n_embd;
  r.weight = branch.weight;
  r.eps = branch.eps;
  r.scale = branch.scale;
  return launch_residual(r, lane(p));
}

/// Launches all that waits; the hidden row is in kX after it.
Status CudaModel::flush(Pass& p) const {
  PendingChain& c = p.chain;
  SHARPI_TRY(launch_pending(p));
  if (!c.has_branch && !c.moved) return Status::ok();
  float* row = hidden(p);
  const ChainBranch branch = c.has_branch ? c.branch : ChainBranch{};
  c.has_branch = c.moved = false;
  return add_branch(p, row, branch, p.ws.get(Buf::kX));
}

/// Whether steps of one row go in chains, in words.
std::string CudaModel::chain_path() const {
  const bool launched = chains_launched_.load(std::memory_order_relaxed) != 0,
             apart = chains_apart_.load(std::memory_order_relaxed) != 0;
  if (!launched && !apart) return {};
  const std::string text = "; steps of one row: ";
  if (!launched) return text + "launch by launch, no room for chains";
  return text + "fixed point, chained" +
         (apart ? ", in part launch by launch for want of room" : "");
}

}  // namespace sharpi::cuda
