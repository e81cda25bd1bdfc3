// SPDX-License-Identifier: MIT
// The launches of mixers that are no products: attention over stored rows (full or windowed, own or
// shared KV), the gated delta net and Mamba-2. Thread rule: as the pass.
#pragma once

#include "cuda/kernels/attention/qkv.h"
#include "cuda/kernels/delta/delta_net.h"
#include "cuda/kernels/mamba/mamba2.h"
#include "cuda/settings.h"
#include "device/latent.h"
#include "device/loaded_model.h"
#include "device/session.h"

namespace sharpi::cuda {

class MixerLaunches {
 public:
  MixerLaunches(const LoadedModel& model, const Settings& settings) : m_(model), s_(settings) {}
  /// Queries, keys and values of a layer: norms, RoPE, to where they are kept.
  Status store_rows(Pass& p, uint32_t layer) const;
  Status attend(Pass& p, uint32_t layer) const;
  /// A head after the other: its own matrix times its part of every row.
  Status heads(Pass& p, const device::HeadProduct& h) const;
  /// Rows of a windowed layer that wait in the chunk scratch go to their rings.
  Status flush_ring(Pass& p, uint32_t layer) const;
  Status delta_net(Pass& p, uint32_t layer) const;
  Status mamba(Pass& p, uint32_t layer) const;
  /// Applies the rows that a session has accepted since its committed state, and leaves the result
  /// in its working state.
  Status replay(const DeviceSession& session, uint32_t layer) const;

 private:
  KvLayer kv_layer(Pass& p, uint32_t layer) const;
  Status latent_rows(Pass& p, uint32_t layer) const;
  QkvParams describe_rows(Pass& p, uint32_t layer) const;
  DeltaNetParams delta_params(uint32_t layer) const;
  Mamba2Params mamba_params(uint32_t layer) const;
  /// Floats of a row of the kept planes of the recurrent layers before this one.
  uint64_t kept_unit(uint32_t layer) const;

  const LoadedModel& m_;
  const Settings& s_;
};

}  // namespace sharpi::cuda
