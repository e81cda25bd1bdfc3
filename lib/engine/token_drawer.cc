// SPDX-License-Identifier: MIT
#include "engine/token_drawer.h"

#include <array>
#include <span>

#include "base/host_info.h"

namespace sharpi {
namespace {

std::span<const int32_t> never_sampled(const Model& model) {
  const Tokenizer* text = model.text()->tokenizer();
  if (text == nullptr) return {};
  return text->never_sample();
}

}  // namespace

TokenDrawer::TokenDrawer(SessionCore& core)
    : core_(core), sampler_(core.spec().n_vocab, never_sampled(*core.model)) {}

Status TokenDrawer::create() {
  row_.resize(core_.spec().n_vocab);
  return set_sampler(default_sampler_params());
}

Status TokenDrawer::set_sampler(const sharpi_sampler_params& params) {
  sharpi_sampler_params own = params;
  if (own.seed == SHARPI_SEED_RANDOM) own.seed = host_random();
  SHARPI_TRY(Sampler::check(own, core_.spec().n_vocab));
  const uint64_t had = sampler_.bias_bytes();
  Lease lease(core_.share);
  SHARPI_TRY(take_bias(own.n_bias, &lease));
  SHARPI_TRY(sampler_.configure(own));
  settle_bias(had, &lease);
  return Status::ok();
}

Status TokenDrawer::take_bias(uint32_t n_bias, Lease* lease) const {
  const uint64_t had = sampler_.bias_bytes(), want = Sampler::bias_bytes(n_bias);
  return want <= had ? Status::ok() : lease->take(HeldBytes::of_host(want - had));
}

/// After the list of `had` bytes was replaced.
void TokenDrawer::settle_bias(uint64_t had, Lease* lease) noexcept {
  const uint64_t now = sampler_.bias_bytes();
  lease->keep();
  if (now < had) core_.share.give(HeldBytes::of_host(had - now));
}

void TokenDrawer::adopt(const sharpi_sampler_params& params, std::vector<int32_t>* bias_tokens,
                        std::vector<float>* bias_values, SamplerMark random,
                        Lease* lease) noexcept {
  const uint64_t had = sampler_.bias_bytes();
  sampler_.adopt(params, bias_tokens, bias_values, random);
  settle_bias(had, lease);
}

Status TokenDrawer::check_row(uint32_t row) const {
  const uint32_t n = core_.transcript.logit_rows().n;
  if (n == 0) {
    return Status::error(
        Code::kState,
        "there are no logits: no tokens were read since creation, truncate or cancel");
  }
  if (row >= n)
    return Status::error(Code::kInvalidArgument,
                         "row %u of the logits does not exist; there are %u", row, n);
  return Status::ok();
}

Status TokenDrawer::logits(uint32_t row, float* out) const {
  SHARPI_TRY(check_row(row));
  return core_.head().read_logits(core_.transcript.logit_rows().first + row, out);
}

/// Draws from logits row 0, from the best of it where those decide.
Status TokenDrawer::draw(const Draw& draw, int32_t* out) {
  const uint32_t n = sampler_.n_best(draw);
  core_.n_best = 0;
  if (n != 0 && n <= core_.head().max_best()) {
    core_.n_best = draw.has_mask ? 0 : n;  // the next draw is probably one like this
    std::array<float, 256> values;
    std::array<int32_t, 256> ids;
    SHARPI_TRY(check_row(0));
    SHARPI_TRY(core_.head().read_best(core_.transcript.logit_rows().first, n,
                                      draw.has_mask ? &draw.allowed : nullptr, values.data(),
                                      ids.data()));
    bool enough = false;
    sampler_.sample_best(values.data(), ids.data(), n, row_.data(), out, &enough);
    if (enough) return Status::ok();
  }
  SHARPI_TRY(logits(0, row_.data()));
  Status drawn = sampler_.sample(row_.data(), core_.tokens(), draw, out);
  // Weights that are no numbers: the file's, or what somebody made of them meanwhile.
  if (drawn.code() == Code::kFormat) SHARPI_TRY(core_.model->check_unchanged());
  return drawn;
}

Status TokenDrawer::sample(const sharpi_sample_params& params, int32_t* out) {
  Draw how;
  SHARPI_TRY(read_draw(params, core_.spec().n_vocab, &how));
  const SamplerMark mark = sampler_.mark();
  int32_t token = 0;
  SHARPI_TRY(draw(how, &token));
  if (params.n_logprobs != 0) {
    // The draw used the row as scratch, so it is read again.
    const Status read = logits(0, row_.data());
    if (!read.is_ok()) {
      sampler_.restore(mark);
      return read;
    }
    write_logprobs(row_, token, {params.logprobs, params.n_logprobs});
  }
  *out = token;
  return Status::ok();
}

}  // namespace sharpi
