// SPDX-License-Identifier: MIT
#include "model/rope_keys.h"

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/gguf_parse.h"

namespace sharpi {
namespace {

constexpr double kMostBase = 3.0e38;

}  // namespace

Result<uint32_t> read_n_rot(const SpecBuilder& b, const char* suffix, uint32_t fallback,
                            uint32_t head_dim) {
  const std::string key = std::string("rope.dimension_count") + suffix;
  SHARPI_TRY_ASSIGN(const uint32_t n_rot, b.uint_or(key, fallback, Range{2, limits::kHeadDim}));
  if (n_rot % 2 != 0 || n_rot > head_dim) {
    return Status::error(Code::kFormat, "%s is %u, expected an even number up to the head size %u",
                         b.full_key(key).c_str(), n_rot, head_dim);
  }
  return n_rot;
}

namespace {

/// What cos and sin are multiplied by. Usually that follows from the factor (arXiv 2309.00071,
/// section 3.4). attention_factor of a published configuration, which converters write as
/// yarn_attn_factor, replaces it; they write 1 where there is none. yarn_log_multiplier is the
/// configuration's mscale_all_dim: the usual magnitude is divided by the one with that multiplier.
/// Where nothing is extrapolated there is no such magnitude.
Status read_yarn_magnitude(const SpecBuilder& b, double factor, RopeSpec* rope) {
  SHARPI_TRY_ASSIGN(const double attn, b.float_or("rope.scaling.attn_factor", 1.0, 1e-6, 1e6));
  SHARPI_TRY_ASSIGN(const double whole,
                    b.float_or("rope.scaling.yarn_attn_factor", 1.0, 1e-6, 1e6));
  SHARPI_TRY_ASSIGN(const double all_dims,
                    b.float_or("rope.scaling.yarn_log_multiplier", 0.0, 0.0, 1e6));
  const auto magnitude = [&](double m) { return 1.0 + 0.1 * m * std::log(factor); };
  rope->magnitude = attn;
  if (whole != 1.0) {
    rope->magnitude *= whole;
  } else if (rope->yarn_ext != 0.0) {
    rope->magnitude *= magnitude(1.0) / magnitude(all_dims);
  }
  return Status::ok();
}

/// `key` is the one that the factor was read from.
Status read_yarn(const SpecBuilder& b, const char* key, double factor, RopeSpec* rope) {
  if (!(factor >= 1.0)) {
    return Status::error(Code::kFormat, "%s is %g, yarn needs 1 or more", b.full_key(key).c_str(),
                         factor);
  }
  rope->yarn = true;
  rope->yarn_factor = factor;
  SHARPI_TRY_ASSIGN(const uint32_t n_ctx,
                    b.require_uint("context_length", Range{1, limits::kContext}));
  SHARPI_TRY_ASSIGN(const uint32_t orig, b.uint_or("rope.scaling.original_context_length", n_ctx,
                                                   Range{1, limits::kContext}));
  rope->yarn_orig_ctx = orig;
  SHARPI_TRY_ASSIGN(rope->yarn_ext, b.float_or("rope.scaling.yarn_ext_factor", 1.0, 0.0, 1.0));
  SHARPI_TRY(read_yarn_magnitude(b, factor, rope));
  SHARPI_TRY_ASSIGN(rope->yarn_beta_fast,
                    b.float_or("rope.scaling.yarn_beta_fast", 32.0, 1e-6, 1e6));
  SHARPI_TRY_ASSIGN(rope->yarn_beta_slow,
                    b.float_or("rope.scaling.yarn_beta_slow", 1.0, 1e-6, 1e6));
  if (rope->yarn_beta_fast < rope->yarn_beta_slow) {
    return Status::error(Code::kFormat, "%s is %g, below %s, which is %g",
                         b.full_key("rope.scaling.yarn_beta_fast").c_str(), rope->yarn_beta_fast,
                         b.full_key("rope.scaling.yarn_beta_slow").c_str(), rope->yarn_beta_slow);
  }
  if (!(rope->freq_base > 1.0)) {  // its logarithm divides
    return Status::error(Code::kFormat, "%s is %g, yarn needs more than 1",
                         b.full_key("rope.freq_base").c_str(), rope->freq_base);
  }
  return Status::ok();
}

}  // namespace

Result<RopeSpec> read_rope(const SpecBuilder& b, uint32_t head_dim, bool allow_yarn) {
  RopeSpec rope;
  SHARPI_TRY_ASSIGN(rope.n_rot, read_n_rot(b, "", head_dim, head_dim));
  SHARPI_TRY_ASSIGN(rope.freq_base, b.float_or("rope.freq_base", 10000.0, 1.0, kMostBase));
  const std::string type_key = b.full_key("rope.scaling.type");
  SHARPI_TRY_ASSIGN(const std::optional<std::string_view> found, b.file().get_string(type_key));
  const std::string_view type = found.value_or("linear");
  const bool yarn = type == "yarn" && allow_yarn;
  // Which says no more than the tensors with the divisors, which a loader has to ask for.
  const bool long_factors = type == "longrope" && b.has_tensor("rope_factors_long.weight");
  if (type == "none" || long_factors) return rope;
  if (type != "linear" && !yarn) {
    return Status::error(Code::kUnsupported,
                         "rope scaling %s (%s) is not supported for %s, only %s",
                         gguf_quoted(type).c_str(), type_key.c_str(), b.arch().c_str(),
                         allow_yarn ? "none, linear and yarn" : "none and linear");
  }
  // scale_linear is the older name; 0 means no scaling in both.
  const char* key = b.has_key("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  SHARPI_TRY_ASSIGN(double factor, b.float_or(key, 0.0, 0.0, 1e6));
  if (factor == 0.0) factor = 1.0;
  if (yarn) {
    SHARPI_TRY(read_yarn(b, key, factor, &rope));
    return rope;
  }
  if (factor < 1e-6) {
    return Status::error(Code::kFormat, "%s is %g, expected 0 or 1e-06 to 1e+06",
                         b.full_key(key).c_str(), factor);
  }
  rope.freq_scale = 1.0 / factor;
  return rope;
}

namespace {

using Divisors = std::shared_ptr<const std::vector<float>>;

/// Of the angles of a head, one for each pair of elements; null: there are none.
Status load_divisors(SpecBuilder& b, const char* name, bool optional, uint32_t n_rot,
                     const GgufTensor** tensor, Divisors* out) {
  TensorRef factors;
  const Extent pairs{n_rot / 2, "%.rope.dimension_count / 2"};
  SHARPI_TRY(b.load({{&factors, name, WeightKind::kF32, pairs, {}, {}, optional}}));
  *tensor = factors.tensor;
  if (!factors) return Status::ok();
  std::vector<float> values(factors.n_in);
  SHARPI_TRY(b.file().read_tensor(*factors.tensor, 0, values.data(), factors.bytes()));
  for (const float value : values) {
    if (std::isfinite(value) && value > 0.0f) continue;
    return Status::error(Code::kFormat, "tensor \"%s\" holds %g, expected positive divisors", name,
                         static_cast<double>(value));
  }
  *out = std::make_shared<const std::vector<float>>(std::move(values));
  return Status::ok();
}

}  // namespace

Status load_freq_factors(SpecBuilder& b, bool optional, RopeSpec* rope) {
  return load_divisors(b, "rope_freqs.weight", optional, rope->n_rot, &rope->freq_factors,
                       &rope->freq_values);
}

Status load_long_factors(SpecBuilder& b, RopeSpec* rope) {
  constexpr const char* kLong = "rope_factors_long.weight";
  constexpr const char* kShort = "rope_factors_short.weight";
  if (!rope->yarn) {
    SHARPI_TRY_ASSIGN(rope->magnitude, b.float_or("rope.scaling.attn_factor", 1.0, 1e-6, 1e6));
  }
  if (!b.has_tensor(kLong) && !b.has_tensor(kShort)) return Status::ok();
  SHARPI_TRY(load_divisors(b, kShort, false, rope->n_rot, &rope->freq_factors, &rope->freq_values));
  SHARPI_TRY(load_divisors(b, kLong, false, rope->n_rot, &rope->long_factors, &rope->long_values));
  SHARPI_TRY_ASSIGN(rope->long_from, b.require_uint("rope.scaling.original_context_length",
                                                    Range{1, limits::kContext}));
  return Status::ok();
}

}  // namespace sharpi
