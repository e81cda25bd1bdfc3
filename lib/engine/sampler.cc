// SPDX-License-Identifier: MIT
#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "engine/pcg32.h"

namespace sharpi {
namespace {

// Logits are looked at in blocks of this many: one compare tells whether any can matter.
constexpr uint32_t kBlock = 32;
// Of the best token's weight; 2^21 tokens as heavy still sum below 2^63.
constexpr double kUnits = 0x1p42;

/// e^x for x <= 0, to a relative error below 1e-12; 0 below -700. Own code because libm's differs
/// in the last bits between platforms, and draws must not. Plain multiplies and adds: no call in
/// the way of vectorisation.
inline double exp_negative(double x) {
  constexpr double kLog2e = 1.4426950408889634074;
  constexpr double kLn2High = 6.93147180369123816490e-01;  // 32 bits: n * kLn2High is exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer
  const double clamped = x > -700.0 ? x : -700.0;
  const double shifted = clamped * kLog2e + kRound;
  const double n = shifted - kRound;
  const double r = (clamped - n * kLn2High) - n * kLn2Low;  // |r| <= ln2 / 2
  double p = 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // The integer sits in the low bits of `shifted`; moved up it becomes the exponent of 2^n.
  const auto scale = std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
  return x > -700.0 ? p * scale : 0.0;
}

/// The order of every selection: highest logit first, ties to the lowest id.
struct Better {
  const float* values;
  bool operator()(uint32_t a, uint32_t b) const {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  }
};

/// Unsigned numbers in the order of the logits; both zeros are one.
uint32_t order_key(float value) {
  const auto bits = std::bit_cast<uint32_t>(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
float value_of_key(uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

float largest(const float* values, uint32_t n) {
  std::array<float, kBlock> lanes;
  lanes.fill(kForbiddenLogit);
  uint32_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    for (uint32_t j = 0; j < kBlock; ++j) {
      lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
    }
  }
  for (; i < n; ++i) lanes[0] = std::max(lanes[0], values[i]);
  return *std::max_element(lanes.begin(), lanes.end());
}

Status out_of_range(const char* name, double value, const char* range) {
  return Status::error(Code::kInvalidArgument, "%s is %g; allowed is %s", name, value, range);
}

Status check_own_bias(const sharpi_sampler_params& p, uint32_t n_vocab) {
  if (p.n_bias == 0) return Status::ok();
  if (p.bias_tokens == nullptr || p.bias_values == nullptr) {
    return Status::error(Code::kInvalidArgument, "%s is null but n_bias is %u",
                         p.bias_tokens == nullptr ? "bias_tokens" : "bias_values", p.n_bias);
  }
  return check_bias({p.bias_tokens, p.n_bias}, {p.bias_values, p.n_bias}, n_vocab);
}

/// The ways to find a token, of which the settings choose one; earlier ones take precedence.
enum class Method { kGreedy, kTopK, kByMass, kAny };

Method method_of(const sharpi_sampler_params& p, uint32_t n_vocab) {
  if (p.temperature == 0.0f) return Method::kGreedy;
  if (p.top_k > 0 && p.top_k < n_vocab) return Method::kTopK;
  return p.top_p < 1.0f || p.min_p > 0.0f ? Method::kByMass : Method::kAny;
}

}  // namespace

sharpi_sampler_params default_sampler_params() noexcept {
  sharpi_sampler_params p{};
  p.struct_size = sizeof p;
  p.temperature = 0.7f;
  p.top_k = 40;
  p.top_p = 0.95f;
  p.min_p = 0.05f;
  p.repeat_penalty = 1.0f;
  p.repeat_last_n = 256;
  p.seed = SHARPI_SEED_RANDOM;
  return p;
}

struct Sampler::Impl {
  Impl(uint32_t n, std::span<const int32_t> forbidden)
      : n_vocab(n), never(forbidden), seen((n + 63) / 64) {}

  /// Order key of the lightest token that stays, and how many with this key do, by id.
  struct Boundary {
    uint32_t key;
    uint64_t n_equal;
  };

  void prepare(std::span<const int32_t> recent, const Draw& draw);
  void add_bias(std::span<const int32_t> tokens, std::span<const float> worth);
  void penalise(std::span<const int32_t> recent);
  int32_t greedy(float top) const;
  size_t select_top_k();
  size_t take_best(const float* best, const int32_t* ids, size_t n);
  /// Of the best tokens, how many matter; 0 = all may.
  uint32_t n_wanted() const {
    const Method method = method_of(params, n_vocab);
    return method == Method::kGreedy ? 1 : method == Method::kTopK ? params.top_k : 0;
  }
  Boundary find_boundary(float top);
  double mass(size_t n, float top) const;
  size_t cut(size_t n, float top, double total) const;
  int32_t draw_selected(size_t n, float top);
  int32_t draw_by_mass(float top);
  int32_t draw_any(float top);
  /// Share of the draw, relative to the best token's, whose weight is exactly 1.
  double weight(float value, float top) const {
    return exp_negative((static_cast<double>(value) - static_cast<double>(top)) * coldness);
  }
  /// The same in whole units: such sums are exact, whatever their order.
  uint64_t units(float value, float top) const {
    return static_cast<uint64_t>(weight(value, top) * kUnits);
  }

  uint32_t n_vocab;
  std::span<const int32_t> never;     // ascending
  float* values = nullptr;            // [n_vocab] the caller's logits, for the time of one call
  std::vector<uint32_t> chosen;       // [n_vocab] ids that passed top-k so far
  std::array<uint64_t, 2048> bins{};  // mass by digit of the order key
  std::vector<uint64_t> seen;         // bit per token: already penalised in this call
  sharpi_sampler_params params = default_sampler_params();
  double coldness = 1.0 / static_cast<double>(params.temperature);  // finite for every float but 0
  std::vector<int32_t> bias_tokens;
  std::vector<float> bias_values;
  Pcg32 random{0};
};

/// Cleans the logits (NaN can never win, +inf stays comparable) and applies everything that comes
/// before temperature.
void Sampler::Impl::prepare(std::span<const int32_t> recent, const Draw& draw) {
  for (uint32_t i = 0; i < n_vocab; ++i) {
    const float x = values[i];
    const float finite =
        x < kLargestLogit ? x : kLargestLogit;  // also for NaN, which the next line drops
    values[i] = x == x ? finite : kForbiddenLogit;
  }
  add_bias(bias_tokens, bias_values);
  add_bias(draw.bias_tokens, draw.bias_values);
  penalise(recent);
  apply_mask(draw, {values, n_vocab});
  for (const int32_t token : never) {
    if (token >= 0 && static_cast<uint32_t>(token) < n_vocab) {
      values[static_cast<size_t>(token)] = kForbiddenLogit;
    }
  }
}

void Sampler::Impl::add_bias(std::span<const int32_t> tokens, std::span<const float> worth) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    float& value = values[static_cast<size_t>(tokens[i])];
    value = std::min(value + worth[i], kLargestLogit);
  }
}

/// Divides positive logits and multiplies negative ones by the penalty, once for each distinct
/// token (arXiv 1909.05858).
void Sampler::Impl::penalise(std::span<const int32_t> recent) {
  if (params.repeat_penalty == 1.0f) return;
  const size_t n = std::min<size_t>(recent.size(), params.repeat_last_n);
  const auto last = recent.last(n);
  for (const int32_t token : last) {
    if (token < 0 || static_cast<uint32_t>(token) >= n_vocab) continue;
    const auto id = static_cast<size_t>(token);
    const uint64_t bit = uint64_t{1} << (id % 64);
    if ((seen[id / 64] & bit) != 0) continue;
    seen[id / 64] |= bit;
    float& value = values[id];
    if (value == kForbiddenLogit) continue;
    value = value > 0.0f ? value / params.repeat_penalty : value * params.repeat_penalty;
    value = std::clamp(value, -kLargestLogit, kLargestLogit);
  }
  for (const int32_t token : last) {
    if (token >= 0 && static_cast<uint32_t>(token) < n_vocab) {
      seen[static_cast<size_t>(token) / 64] = 0;
    }
  }
}

int32_t Sampler::Impl::greedy(float top) const {
  return static_cast<int32_t>(std::find(values, values + n_vocab, top) - values);
}

/// The top_k best, in front of `chosen`, sorted. One pass: whatever does not beat the k-th best so
/// far is skipped a block at a time; an equal logit with a higher id loses anyway.
size_t Sampler::Impl::select_top_k() {
  const size_t k = params.top_k;
  const Better better{values};
  const auto begin = chosen.begin();
  size_t n = 0;
  float threshold = kForbiddenLogit;
  const auto keep_best = [&] {
    if (n <= k) return;
    std::nth_element(begin, begin + static_cast<ptrdiff_t>(k - 1),
                     begin + static_cast<ptrdiff_t>(n), better);
    n = k;
    threshold = values[chosen[k - 1]];
  };
  for (uint32_t i = 0; i < n_vocab; i += kBlock) {
    const uint32_t end = std::min(i + kBlock, n_vocab);
    if (!(largest(values + i, end - i) > threshold)) continue;
    for (uint32_t j = i; j < end; ++j) {
      if (values[j] > threshold) chosen[n++] = j;
    }
    if (n >= 2 * k) keep_best();
  }
  keep_best();
  std::sort(begin, begin + static_cast<ptrdiff_t>(n), better);
  return n;
}

/// What select_top_k() would choose, from sorted logits; 0 = these do not tell.
size_t Sampler::Impl::take_best(const float* best, const int32_t* ids, size_t n) {
  const size_t k = n_wanted();
  size_t taken = 0;
  for (size_t i = 0; i < n && taken < k; ++i) {
    if (best[i] == kForbiddenLogit) return taken;  // and so is everything behind it
    if (!std::isfinite(best[i])) return 0;
    if (std::binary_search(never.begin(), never.end(), ids[i])) continue;
    values[ids[i]] = best[i];
    chosen[taken++] = static_cast<uint32_t>(ids[i]);
  }
  return taken == k ? k : 0;
}

double Sampler::Impl::mass(size_t n, float top) const {
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) sum += weight(values[chosen[i]], top);
  return sum;
}

/// How many of the n sorted candidates stay: the shortest prefix with top_p of `total`, and of that
/// those with at least min_p of the best's weight. At least one.
size_t Sampler::Impl::cut(size_t n, float top, double total) const {
  size_t kept = n;
  if (params.top_p < 1.0f) {
    const double wanted = static_cast<double>(params.top_p) * total;
    double sum = 0.0;
    kept = 0;
    while (kept < n && (kept == 0 || sum < wanted)) sum += weight(values[chosen[kept++]], top);
  }
  const auto least = static_cast<double>(params.min_p);
  while (kept > 1 && weight(values[chosen[kept - 1]], top) < least) --kept;
  return kept;
}

int32_t Sampler::Impl::draw_selected(size_t n, float top) {
  double rest = random.uniform() * mass(n, top);
  for (size_t i = 0; i + 1 < n; ++i) {
    rest -= weight(values[chosen[i]], top);
    if (rest < 0.0) return static_cast<int32_t>(chosen[i]);
  }
  return static_cast<int32_t>(chosen[n - 1]);
}

/// The lightest token that top-p keeps, found digit by digit of the order keys, so that a nucleus
/// of half the vocabulary costs no more than a small one.
Sampler::Impl::Boundary Sampler::Impl::find_boundary(float top) {
  struct Digit {
    uint32_t shift, bits;
  };
  constexpr Digit kDigits[] = {{21, 11}, {10, 11}, {0, 10}};
  uint64_t total = 0;
  for (uint32_t i = 0; i < n_vocab; ++i) total += units(values[i], top);
  const double share = static_cast<double>(params.top_p) * static_cast<double>(total);
  const auto wanted = std::clamp<uint64_t>(static_cast<uint64_t>(share), 1, total);
  uint64_t prefix = 0, before = 0;  // before: mass of all keys above those that start with prefix
  for (const Digit& d : kDigits) {
    bins.fill(0);
    const uint32_t mask = (1u << d.bits) - 1;
    for (uint32_t i = 0; i < n_vocab; ++i) {
      const uint64_t key = order_key(values[i]);
      if (key >> (d.shift + d.bits) == prefix)
        bins[(key >> d.shift) & mask] += units(values[i], top);
    }
    uint32_t bin = mask;
    while (before + bins[bin] < wanted) before += bins[bin--];
    prefix = prefix << d.bits | bin;
  }
  const auto key = static_cast<uint32_t>(prefix);
  const uint64_t each = units(value_of_key(key), top);
  return {key, (wanted - before + each - 1) / each};
}

/// Top-p and min-p without top-k: walks in order of ids over what both keep.
int32_t Sampler::Impl::draw_by_mass(float top) {
  const Boundary last = params.top_p < 1.0f ? find_boundary(top) : Boundary{0, UINT64_MAX};
  const auto least = static_cast<double>(params.min_p);
  uint64_t equals = 0;  // tokens at the boundary so far: the first of them stay
  const auto kept_units = [&](float value) -> uint64_t {
    const uint32_t key = order_key(value);
    if (key < last.key || (key == last.key && ++equals > last.n_equal)) return 0;
    return weight(value, top) >= least ? units(value, top) : 0;
  };
  uint64_t kept = 0;
  for (uint32_t i = 0; i < n_vocab; ++i) kept += kept_units(values[i]);
  auto rest = static_cast<uint64_t>(random.uniform() * static_cast<double>(kept));
  equals = 0;
  int32_t token = 0;
  for (uint32_t i = 0; i < n_vocab; ++i) {
    const uint64_t mine = kept_units(values[i]);
    if (mine == 0) continue;
    token = static_cast<int32_t>(i);
    if (rest < mine) break;
    rest -= mine;
  }
  return token;
}

/// Nothing is cut: a walk in order of ids.
int32_t Sampler::Impl::draw_any(float top) {
  double total = 0.0;
  for (uint32_t i = 0; i < n_vocab; ++i) total += weight(values[i], top);
  double rest = random.uniform() * total;
  int32_t last = 0;
  for (uint32_t i = 0; i < n_vocab; ++i) {
    const double w = weight(values[i], top);
    if (w == 0.0) continue;
    last = static_cast<int32_t>(i);
    rest -= w;
    if (rest < 0.0) break;
  }
  return last;
}

Sampler::Sampler(uint32_t n_vocab, std::span<const int32_t> never)
    : impl_(std::make_unique<Impl>(n_vocab, never)) {
  impl_->chosen.resize(n_vocab);  // whatever top-k is set later: a plan prices it once
}
Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;

Status Sampler::check(const sharpi_sampler_params& p, uint32_t n_vocab) {
  if (!(p.temperature >= 0.0f && p.temperature <= kLargestLogit)) {
    return out_of_range("temperature", static_cast<double>(p.temperature), "0 (greedy) or more");
  }
  if (!(p.top_p >= 0.0f && p.top_p <= 1.0f)) {
    return out_of_range("top_p", static_cast<double>(p.top_p), "0 to 1 (off)");
  }
  if (!(p.min_p >= 0.0f && p.min_p <= 1.0f)) {
    return out_of_range("min_p", static_cast<double>(p.min_p), "0 (off) to 1");
  }
  if (!(p.repeat_penalty > 0.0f && p.repeat_penalty <= kLargestLogit)) {
    return out_of_range("repeat_penalty", static_cast<double>(p.repeat_penalty),
                        "more than 0, 1 = off");
  }
  return check_own_bias(p, n_vocab);
}

Status Sampler::configure(const sharpi_sampler_params& params) {
  SHARPI_TRY(check(params, impl_->n_vocab));
  std::vector<int32_t> tokens(params.bias_tokens, params.bias_tokens + params.n_bias);
  std::vector<float> values(params.bias_values, params.bias_values + params.n_bias);
  adopt(params, &tokens, &values, {Pcg32(params.seed).state});
  return Status::ok();
}

void Sampler::adopt(const sharpi_sampler_params& params, std::vector<int32_t>* bias_tokens,
                    std::vector<float>* bias_values, SamplerMark random) noexcept {
  Impl& s = *impl_;
  s.params = params;
  s.params.bias_tokens = nullptr;  // copied; the caller's arrays may go
  s.params.bias_values = nullptr;
  s.coldness = 1.0 / static_cast<double>(params.temperature);
  s.bias_tokens.swap(*bias_tokens);
  s.bias_values.swap(*bias_values);
  s.random.state = random.state;
}

sharpi_sampler_params Sampler::params() const {
  sharpi_sampler_params p = impl_->params;
  p.bias_tokens = impl_->bias_tokens.data();
  p.bias_values = impl_->bias_values.data();
  return p;
}

Status Sampler::sample(float* logits, std::span<const int32_t> recent, const Draw& draw,
                       int32_t* out) {
  Impl& s = *impl_;
  s.values = logits;
  s.prepare(recent, draw);
  const float top = largest(logits, s.n_vocab);
  if (top == kForbiddenLogit && draw.has_mask) {
    return Status::error(Code::kState, "allowed_mask leaves none of the %u tokens", s.n_vocab);
  }
  if (top == kForbiddenLogit && (!s.bias_values.empty() || !draw.bias_values.empty())) {
    return Status::error(Code::kState, "the bias leaves none of the %u tokens", s.n_vocab);
  }
  if (top == kForbiddenLogit) {
    return Status::error(Code::kFormat,
                         "no logit of the %u tokens can be drawn: each is not a number, or its "
                         "token is one that the file forbids; the weights are damaged",
                         s.n_vocab);
  }
  switch (method_of(s.params, s.n_vocab)) {
    case Method::kGreedy:
      *out = s.greedy(top);
      break;
    case Method::kTopK: {
      const size_t n = s.select_top_k();
      *out = s.draw_selected(s.cut(n, top, s.mass(n, top)), top);
      break;
    }
    case Method::kByMass:
      *out = s.draw_by_mass(top);
      break;
    case Method::kAny:
      *out = s.draw_any(top);
      break;
  }
  return Status::ok();
}

uint32_t Sampler::n_best(const Draw& draw) const {
  // Room for forbidden tokens among the best: unused vocabulary rows rarely come that high.
  constexpr uint32_t kSpare = 16, kMost = 240;
  const Impl& s = *impl_;
  if (!s.bias_tokens.empty() || !draw.bias_tokens.empty()) return 0;
  if (s.params.repeat_penalty != 1.0f) return 0;
  const uint32_t k = s.n_wanted();
  if (k == 0 || k > kMost) return 0;
  return s.never.empty() ? std::min(k, s.n_vocab) : std::min(k + kSpare, s.n_vocab);
}

void Sampler::sample_best(const float* values, const int32_t* ids, uint32_t n, float* row,
                          int32_t* out, bool* enough) {
  Impl& s = *impl_;
  s.values = row;
  const size_t taken = s.take_best(values, ids, n);
  *enough = taken != 0;
  if (taken == 0) return;
  *out = static_cast<int32_t>(s.chosen[0]);
  if (s.params.temperature == 0.0f) return;
  const float top = row[s.chosen[0]];
  *out = s.draw_selected(s.cut(taken, top, s.mass(taken, top)), top);
}

void Sampler::copy_from(const Sampler& other) {
  const Impl& from = *other.impl_;
  impl_->bias_tokens = from.bias_tokens;
  impl_->bias_values = from.bias_values;
  impl_->params = from.params;
  impl_->coldness = from.coldness;
  impl_->random = from.random;
}

SamplerMark Sampler::mark() const {
  return {impl_->random.state};
}
void Sampler::restore(SamplerMark mark) {
  impl_->random.state = mark.state;
}
uint64_t Sampler::bytes() const {
  const Impl& s = *impl_;
  return s.chosen.capacity() * sizeof(uint32_t) + s.seen.capacity() * sizeof(uint64_t) +
         sizeof s.bins;
}
uint64_t Sampler::bias_bytes() const {
  return impl_->bias_tokens.capacity() * 4 + impl_->bias_values.capacity() * 4;
}
uint32_t Sampler::repeat_last_n() const {
  return impl_->params.repeat_last_n;
}

}  // namespace sharpi
