// SPDX-License-Identifier: MIT
// Recurrent mixers as dispatches: gated delta nets and Mamba-2, of the rows of a pass and of those
// that an earlier one left pending. Thread rule: of the call that runs.
#pragma once

#include <cstdint>
#include <span>

#include "device/loaded_model.h"
#include "device/session.h"
#include "vulkan/queue.h"
#include "vulkan/vulkan_device.h"

namespace sharpi::vulkan {

/// A layer's rows. `replay` of run(): the pending rows instead, of which only the state is wanted.
class RecurrentRun {
 public:
  RecurrentRun(const Device& of, const device::LoadedModel& model, uint32_t of_layer)
      : device(of), m(model), layer(of_layer) {}
  const Device& device;
  const device::LoadedModel& m;
  uint32_t layer = 0;
  const device::BatchSequence* sequences = nullptr;  // on the device
  uint32_t n_sequences = 0;
  uint32_t n_rows = 0;  // of all sequences
  /// What the convolution and the recurrence read, as planes of Recurrence::inputs; the gate.
  const float *x = nullptr, *alpha = nullptr, *beta = nullptr, *z = nullptr;
  float* y = nullptr;
  /// The sequence of a replay outside of passes; null: `sequences` are the device's.
  const device::BatchSequence* own = nullptr;

 protected:
  /// What the kernels find at Driver::parameters(): addresses of the layer's vectors in an order of
  /// its kind, and the sequence of a replay.
  struct Parameters {
    uint64_t weights[6] = {};
    device::BatchSequence sequence;
  };
  Parameters parameters(std::span<const TensorRef* const> weights) const;
  uint64_t parameters_at() const { return device.driver().parameters().address; }
  /// Where the sequences are.
  uint64_t where() const;
  /// Floats of a plane of kept rows, for one row.
  uint64_t plane(uint32_t input) const;
  const StateLayout::Layer& state() const { return *m.state_layout.find(layer); }
  /// What the convolution has to remember; n_planes: 3 with beta, 2 without.
  Kernel tail(bool replay, uint32_t conv_dim, uint32_t taps, uint32_t heads,
              uint32_t n_planes) const;
  Status remember(const Queue& queue, const Kernel& tail, const Parameters& p) const;
};

class DeltaRun : public RecurrentRun {
 public:
  using RecurrentRun::RecurrentRun;
  Status run(const Queue& queue, bool replay) const;

 private:
  Kernel recurrence(bool replay, uint32_t from) const;
};

class MambaRun : public RecurrentRun {
 public:
  using RecurrentRun::RecurrentRun;
  Status run(const Queue& queue, bool replay) const;

 private:
  Kernel recurrence(bool replay, uint32_t from) const;
  Kernel gate() const;
};

/// PassKernels::replay() of a layer, whose pending rows `pending` describes.
Status replay_rows(const Device& device, const device::LoadedModel& model, uint32_t layer,
                   const device::BatchSequence& pending);

}  // namespace sharpi::vulkan
