// SPDX-License-Identifier: MIT
// From the names in a list of launches to the parameters of kernels. The same functions serve
// twice: with the addresses of a workspace when kernels are launched, and with made-up ones when
// planning only asks what a launch would take. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/kernels/moe/moe_step.h"
#include "cuda/kernels/products/chain.h"
#include "device/launches.h"

namespace sharpi::cuda {

using namespace device;  // this tier's launches are the room's

/// Where buffers and weights are.
class Binding {
 public:
  Binding(const ModelSpec& spec, uint32_t n_rows, uint32_t n_head_rows)
      : spec_(spec), n_rows_(n_rows), n_head_rows_(n_head_rows) {}
  virtual ~Binding() = default;
  virtual std::byte* at(Buf b) const = 0;
  virtual uint64_t size(Buf b) const = 0;
  virtual DeviceMatrix matrix(const TensorRef& w) const = 0;
  /// Empty: the file has none.
  DeviceMatrix matrix_if(const TensorRef& w) const { return w ? matrix(w) : DeviceMatrix{}; }
  /// nullptr: the file has none.
  virtual const float* floats(const TensorRef& w) const = 0;
  const float* floats(const TensorRef* w) const { return w == nullptr ? nullptr : floats(*w); }
  float* row(Buf b) const { return reinterpret_cast<float*>(at(b)); }

  MatmulParams product(const RowProduct& p) const;
  ChainLink link(const RowLink& l) const;
  /// Without y where nothing is added.
  ChainBranch branch(const RowSum& sum) const;
  /// Everything but the matrices.
  MoeParams expert_rows(uint32_t layer, Buf to, bool add) const;
  MoeParams experts(uint32_t layer, Buf to, bool add) const;
  /// nullptr: no product there.
  MoeStepParams moe_step(uint32_t layer, Buf to, bool add, const RowProduct* before,
                         const RowProduct* after) const;

 private:
  const ModelSpec& spec_;
  uint32_t n_rows_, n_head_rows_;
};

/// Made-up addresses that nobody reads: buffers do not overlap, and no weight is missing.
class PaperBinding final : public Binding {
 public:
  PaperBinding(const ModelSpec& spec, uint32_t n_rows, uint64_t moe_sync_bytes)
      : Binding(spec, n_rows, n_rows), moe_sync_bytes_(moe_sync_bytes) {}
  std::byte* at(Buf b) const override;
  uint64_t size(Buf b) const override { return b == Buf::kMoeSync ? moe_sync_bytes_ : 0; }
  DeviceMatrix matrix(const TensorRef& w) const override;
  const float* floats(const TensorRef& w) const override;

 private:
  uint64_t moe_sync_bytes_;
};

/// The facts of a pass, and what its kernels are asked with.
struct StepFacts : PassFacts {
  KernelConfig config;
  int chain_bytes = 1 << 30;    // of a chain's shared memory at most (tests)
  uint64_t moe_sync_bytes = 0;  // size of kMoeSync
};
/// The facts of a captured step of n_rows rows, as far as they are known without a workspace.
StepFacts step_facts(const ModelSpec& spec, const Placement& placement, const KernelConfig& config,
                     uint32_t n_rows = 1);
LaunchList fuse(const SegmentProgram& program, const StepFacts& facts);

}  // namespace sharpi::cuda
