// SPDX-License-Identifier: MIT
// Sampler: from logits to a token. Order: logit bias, repetition penalty, mask, temperature, top-k,
// top-p, min-p, draw. Equal seeds and logits give equal draws on every platform (own generator:
// PCG32, Melissa O'Neill 2014; no <random> distributions). Thread rule: one owner (the session).
// Allocates only in the constructor, and in configure() the bias list.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/draw.h"
#include "sharpi.h"

namespace sharpi {

/// Random state to put back when a step fails.
struct SamplerMark {
  uint64_t state = 0;
};

/// What a session starts with; sharpi_sampler_params_init() writes the same.
sharpi_sampler_params default_sampler_params() noexcept;

class Sampler {
 public:
  /// `never`: tokens that must not be drawn (unused vocabulary rows, the file's suppress list),
  /// ascending; outlives the sampler.
  Sampler(uint32_t n_vocab, std::span<const int32_t> never);
  /// kInvalidArgument names the field that no sampler can have.
  static Status check(const sharpi_sampler_params& params, uint32_t n_vocab);
  /// Checks the settings (check()) and then uses them. Restarts the random sequence from the seed.
  Status configure(const sharpi_sampler_params& params);
  /// The settings in use; the bias lists that they point to are the sampler's own.
  sharpi_sampler_params params() const;
  /// `logits` [n_vocab] is used as scratch; `recent` = the tokens read so far, oldest first (the
  /// last repeat_last_n count). kState when bias or mask forbid what has a logit, kFormat when
  /// nothing has one.
  Status sample(float* logits, std::span<const int32_t> recent, const Draw& draw, int32_t* out);
  /// How many of the best logits of a row usually decide a draw with these settings; 0 = the whole
  /// row is needed (a bias, a penalty, no top-k).
  uint32_t n_best(const Draw& draw) const;
  /// sample() from the n best logits of a row alone, descending, equal ones by id: the same token
  /// and the same random numbers. Tokens that a mask forbids have -inf; if one is among the n, no
  /// token outside of them is allowed. `row` [n_vocab] is scratch. *enough = false: n were too few
  /// (some are forbidden or no numbers); nothing was drawn, and sample() must see the row.
  void sample_best(const float* values, const int32_t* ids, uint32_t n, float* row, int32_t* out,
                   bool* enough);
  SamplerMark mark() const;
  void restore(SamplerMark mark);
  uint32_t repeat_last_n() const;
  /// Bytes of its own buffers without the bias list: 4 bytes and a bit per token, and 16 KiB.
  uint64_t bytes() const;
  /// Those of the bias list: 8 an entry.
  uint64_t bias_bytes() const;
  static uint64_t bias_bytes(uint32_t n_bias) { return uint64_t{n_bias} * 8; }
  /// Takes over settings that passed check(), their bias lists (those pointed to are not read) and
  /// a random state.
  void adopt(const sharpi_sampler_params& params, std::vector<int32_t>* bias_tokens,
             std::vector<float>* bias_values, SamplerMark random) noexcept;
  /// Takes over another sampler's settings and random state. Pre: same vocabulary.
  void copy_from(const Sampler& other);
  ~Sampler();
  Sampler(Sampler&&) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sharpi
