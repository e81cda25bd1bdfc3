// SPDX-License-Identifier: MIT
// Draws tokens from the session's logits. Owns the sampler and one row of logits, [n_vocab] f32, as
// scratch, which others of the session may use between draws.
// Thread rule: as Session. Nothing allocates after create() but the sampler's list of biases.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/sampler.h"
#include "engine/session_core.h"

namespace sharpi {

class TokenDrawer {
 public:
  explicit TokenDrawer(SessionCore& core);
  /// Default settings with a seed of its own. May throw std::bad_alloc.
  Status create();
  Status set_sampler(const sharpi_sampler_params& params);
  /// Room in the session's share for a bias list of so many entries, beside that of the present
  /// one.
  Status take_bias(uint32_t n_bias, Lease* lease) const;
  /// Sampler::adopt(). Pre: take_bias(); its lease is kept.
  void adopt(const sharpi_sampler_params& params, std::vector<int32_t>* bias_tokens,
             std::vector<float>* bias_values, SamplerMark random, Lease* lease) noexcept;
  Sampler& sampler() { return sampler_; }
  const Sampler& sampler() const { return sampler_; }
  std::vector<float>& scratch() { return row_; }

  /// One row of the last call, to out[n_vocab].
  Status logits(uint32_t row, float* out) const;
  /// `params` as sharpi_sample_params says; logprobs are those of row 0. What fails draws nothing.
  Status sample(const sharpi_sample_params& params, int32_t* out);

  /// Of the sampler and the scratch.
  uint64_t bytes() const {
    return row_.capacity() * sizeof(float) + sampler_.bytes() + sampler_.bias_bytes();
  }

 private:
  void settle_bias(uint64_t had, Lease* lease) noexcept;
  Status check_row(uint32_t row) const;
  Status draw(const Draw& draw, int32_t* out);

  SessionCore& core_;
  Sampler sampler_;
  std::vector<float> row_;
};

}  // namespace sharpi
