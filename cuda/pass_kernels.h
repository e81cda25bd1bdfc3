// SPDX-License-Identifier: MIT
// What the CUDA tier's kernels do of a pass: device/pass_kernels.h.
// Thread rule: immutable after prepare().
#pragma once

#include "cuda/settings.h"
#include "device/pass_kernels.h"

namespace sharpi::cuda {

/// The kernels' settings of a model: what its plan asks for on this device.
KernelConfig matmul_config(const Device& device, const ModelShape& model);

class CudaPassKernels final : public PassKernels {
 public:
  CudaPassKernels(const Device& device, const ModelShape& model);
  const Settings& settings() const { return s_; }

  PassScratch scratch(const ModelSpec& spec, const ModelShape& model, const WorkspaceWidths& widths,
                      uint32_t rows, uint32_t head_rows) const override;
  uint32_t max_sorted_experts() const override;
  bool takes_slots(uint32_t n_slots, uint32_t n_rows) const override;
  bool fuses(uint32_t n_rows) const override;
  bool blocks_meet(const ModelSpec& spec) const override;
  Status prepare() override;
  LaunchList fuse(const LoadedModel& model, const SegmentProgram& program, const PassFacts& facts,
                  bool step) const override;
  Status launch(Pass& p, const LaunchList& list, const Launch& l) const override;
  Status replay(const LoadedModel& model, const DeviceSession& session,
                uint32_t layer) const override;
  std::string paths(const LoadedModel& model) const override;

 private:
  Settings s_;
};

}  // namespace sharpi::cuda
