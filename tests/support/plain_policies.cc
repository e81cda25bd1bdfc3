// SPDX-License-Identifier: MIT
#include "support/plain_policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tier/rope_tables.h"

namespace sharpi::testing {
namespace {

using Rows = std::vector<std::vector<double>>;

/// In four sums, which do not wait for each other.
double dot(const float* a, const float* b, uint32_t n) {
  const auto term = [&](uint32_t i) {
    return static_cast<double>(a[i]) * static_cast<double>(b[i]);
  };
  double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  uint32_t i = 0;
  for (; i + 4 <= n; i += 4) {
    s0 += term(i);
    s1 += term(i + 1);
    s2 += term(i + 2);
    s3 += term(i + 3);
  }
  for (; i < n; ++i) s0 += term(i);
  return s0 + s1 + (s2 + s3);
}

/// The learned sinks of a layer's heads; none: no score at all.
std::vector<double> sinks(const ModelSpec& spec, const AttentionSpec& a) {
  std::vector<float> values(a.n_heads, -std::numeric_limits<float>::infinity());
  if (a.sinks) {
    const Status read =
        spec.file->read_tensor(*a.sinks.tensor, 0, values.data(), values.size() * sizeof(float));
    EXPECT_TRUE(read.is_ok()) << read.text();
  }
  return {values.begin(), values.end()};
}

/// Softmax of one query head over the rows it sees, and its sink; unseen rows get 0.
std::vector<double> attention(const AttentionSpec& a, const OwnerRows& rows, uint32_t kv,
                              const float* q, uint32_t position, double sink) {
  std::vector<double> p(rows.n_rows, 0.0);
  double high = std::max(-1e300, sink), sum = 0;
  for (uint32_t t = 0; t < rows.n_rows; ++t) {
    if (rows.positions[kv][t] > position) continue;
    const float* k = &rows.k[(uint64_t{t} * a.n_kv_heads + kv) * a.head_dim];
    p[t] = dot(q, k, a.head_dim) * static_cast<double>(a.scale);
    high = std::max(high, p[t]);
  }
  for (uint32_t t = 0; t < rows.n_rows; ++t) {
    p[t] = rows.positions[kv][t] > position ? 0.0 : std::exp(p[t] - high);
    sum += p[t];
  }
  sum += std::exp(sink - high);
  for (double& x : p) x /= sum;
  return p;
}

PlainScores layer_scores(const ModelSpec& spec, const SessionRows& all, uint32_t owner) {
  const AttentionSpec& own = spec.layers[owner].attention;
  const OwnerRows& rows = all.layers[owner];
  PlainScores out;
  out.layer = owner;
  out.mean = out.top = out.faded = Rows(own.n_kv_heads, std::vector<double>(rows.n_rows, 0.0));
  uint32_t terms = 0;
  for (uint32_t l = owner; l < spec.n_layers(); ++l) {
    const AttentionSpec& a = spec.layers[l].attention;
    const bool reads = l == owner || (spec.layers[l].mixer == MixerKind::kAttention &&
                                      a.kv_source == static_cast<int32_t>(owner));
    if (!reads) continue;
    const uint32_t group = a.n_heads / a.n_kv_heads;
    terms += group * all.n_queries;
    const std::vector<double> sink = sinks(spec, a);
    for (uint32_t i = 0; i < all.n_queries; ++i) {
      const double fade = std::exp2(-static_cast<double>(all.n_queries - 1 - i) / 32.0);
      for (uint32_t h = 0; h < a.n_heads; ++h) {
        const float* q = &all.queries[l][(uint64_t{i} * a.n_heads + h) * a.head_dim];
        const auto p = attention(a, rows, h / group, q, all.n_tokens - all.n_queries + i, sink[h]);
        for (uint32_t t = 0; t < rows.n_rows; ++t) {
          out.mean[h / group][t] += p[t];
          out.top[h / group][t] = std::max(out.top[h / group][t], p[t]);
          out.faded[h / group][t] = std::max(out.faded[h / group][t], p[t] * fade);
        }
      }
    }
  }
  for (auto& head : out.mean) {
    for (double& x : head) x /= terms;
  }
  return out;
}

/// A query 1024 positions later.
std::vector<double> turned(const AttentionSpec& a, const float* q) {
  std::vector<double> out(q, q + a.head_dim);
  const uint32_t half = a.rope.n_rot / 2;
  std::vector<double> freq(half);
  fill_inv_freq(a.rope, freq);
  for (uint32_t j = 0; j < half; ++j) {
    const bool halves = a.rope.pairs == RopePairs::kHalves;
    const uint32_t x = halves ? j : 2 * j, y = halves ? j + half : 2 * j + 1;
    const double c = std::cos(1024 * freq[j]), s = std::sin(1024 * freq[j]);
    const double qx = out[x], qy = out[y];
    out[x] = qx * c - qy * s;
    out[y] = qx * s + qy * c;
  }
  return out;
}

double weight(const AttentionSpec& a, const std::vector<double>& q, const float* k) {
  double sum = 0;
  for (uint32_t e = 0; e < a.head_dim; ++e) sum += q[e] * static_cast<double>(k[e]);
  return std::exp(sum * static_cast<double>(a.scale));
}

/// Raises the scores of the last n rows by one query, of slot `at`, of a layer that reads them.
void replay_query(const AttentionSpec& a, const OwnerRows& rows, uint32_t kv, const float* q,
                  uint32_t at, uint32_t n, std::vector<double>* scores) {
  const uint32_t offset = rows.positions[kv][at] - at;  // alike for all rows behind compacted ones
  uint32_t low = std::max((at + offset) / 256 * 256, rows.n_compacted + offset) - offset;
  const uint32_t end = std::min((at + offset) / 256 * 256 + 256 - offset, rows.n_rows);
  const auto key = [&](uint32_t t) {
    return &rows.k[(uint64_t{t} * a.n_kv_heads + kv) * a.head_dim];
  };
  const std::vector<double> later = turned(a, q), now(q, q + a.head_dim);
  double all = 0;
  for (uint32_t t = 0; t < std::min(4u, low); ++t) all += weight(a, later, key(t));
  for (uint32_t t = low; t < end; ++t) all += weight(a, later, key(t));
  for (uint32_t t = low; t <= at; ++t) all += weight(a, now, key(t));
  for (uint32_t t = std::max(low, rows.n_rows - n); t < end; ++t) {
    double& most = (*scores)[t - (rows.n_rows - n)];
    most = std::max(most, weight(a, later, key(t)) / all);
  }
}

std::vector<double> pooled(const std::vector<double>& s, uint32_t kernel) {
  const auto n = static_cast<int64_t>(s.size()), half = static_cast<int64_t>(kernel / 2);
  std::vector<double> out(s.size());
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t j = i - half; j <= i + half; ++j)
      sum += s[static_cast<size_t>(std::clamp<int64_t>(j, 0, n - 1))];
    out[static_cast<size_t>(i)] = sum / kernel;
  }
  return out;
}

/// A hit marks `span` rows after it and two before it.
std::vector<double> spread(const std::vector<double>& s, uint32_t span) {
  std::vector<double> out = s;
  for (size_t t = 0; t < s.size(); ++t) {
    for (size_t j = 1; j <= span && t + j < s.size(); ++j)
      out[t + j] = std::max(out[t + j], s[t] * std::pow(0.999, static_cast<double>(j)));
    for (size_t j = 1; j <= 2 && j <= t; ++j)
      out[t - j] = std::max(out[t - j], s[t] * std::pow(0.99, static_cast<double>(j)));
  }
  return out;
}

/// What a query head makes of a row: its part of it, or, of a latent, its matrix times that.
std::vector<float> value_of(const AttentionSpec& a, uint32_t head, const float* row) {
  if (!a.latent) return {row, row + a.head_dim};
  const TensorRef& map = a.latent.v_b;
  std::vector<float> w(map.n_in), out(map.n_out);
  for (uint64_t o = 0; o < map.n_out; ++o) {
    table_row(map, head * map.n_out + o, w.data());
    out[o] = static_cast<float>(dot(w.data(), row + a.rope.n_rot, a.latent.rank));
  }
  return out;
}

/// L1 norm of a row's value through the first 128 outputs of the output projection, mean over the
/// group's heads.
std::vector<double> value_sizes(const ModelSpec& spec, const OwnerRows& rows, uint32_t layer,
                                uint32_t kv) {
  const AttentionSpec& a = spec.layers[layer].attention;
  const uint32_t group = a.n_heads / a.n_kv_heads;
  const uint64_t n_in = a.mixed_row();
  const auto d = static_cast<uint32_t>(n_in / a.n_heads);
  std::vector<double> out(rows.n_rows, 0.0);
  std::vector<float> w(n_in);
  std::vector<std::vector<float>> values;  // of each row and head of the group
  for (uint32_t t = 0; t < rows.n_rows; ++t) {
    for (uint32_t h = kv * group; h < (kv + 1) * group; ++h) {
      values.push_back(value_of(a, h, &rows.v[(uint64_t{t} * a.n_kv_heads + kv) * a.head_dim]));
    }
  }
  for (uint32_t o = 0; o < std::min(spec.n_embd, 128u); ++o) {
    dequantize_row(a.o.tensor->type, a.o.tensor->data + o * a.o.row_bytes(), w.data(), n_in);
    for (uint32_t h = kv * group; h < (kv + 1) * group; ++h) {
      for (uint32_t t = 0; t < rows.n_rows; ++t) {
        const float* v = values[t * group + (h - kv * group)].data();
        out[t] += std::abs(dot(&w[uint64_t{h} * d], v, d)) / group;
      }
    }
  }
  return out;
}

std::vector<double> head_scores(const SessionRows& rows, const PlainScores& raw,
                                const std::vector<double>& shared, const PlainRequest& r,
                                uint32_t kv) {
  std::vector<double> s = raw.mean[kv];
  switch (r.policy) {
    case SHARPI_POLICY_SNAPKV:
      return pooled(s, r.pool_kernel);
    case SHARPI_POLICY_DEFENSIVE: {
      const double floor = std::accumulate(s.begin(), s.end(), 0.0) / static_cast<double>(s.size());
      for (size_t t = 0; t < s.size(); ++t) s[t] = std::max(raw.top[kv][t], floor);
      return pooled(s, r.pool_kernel);
    }
    case SHARPI_POLICY_VALUE:
      for (size_t t = 0; t < s.size(); ++t) s[t] = (s[t] + 1e-4) * raw.sizes[kv][t];
      return pooled(s, r.pool_kernel);
    case SHARPI_POLICY_SPAN:
      return spread(s, r.span);
    case SHARPI_POLICY_RETRIEVAL:
    case SHARPI_POLICY_MIXED:
      s = raw.faded[kv];
      for (size_t t = 0; t < s.size(); ++t)
        s[t] = std::max(s[t], shared[rows.layers[raw.layer].positions[kv][t]]);
      return spread(s, r.span);
    default:
      return s;
  }
}

std::vector<uint32_t> best_slots(const std::vector<double>& s, const PlainRequest& r) {
  const auto n = static_cast<uint32_t>(s.size());
  std::vector<uint32_t> middle, keep;
  for (uint32_t t = r.sinks; t < n - r.recency; ++t) middle.push_back(t);
  std::stable_sort(middle.begin(), middle.end(), [&](auto a, auto b) { return s[a] > s[b]; });
  for (uint32_t t = 0; t < r.sinks; ++t) keep.push_back(t);
  for (uint32_t i = 0; i < r.budget - r.recency - r.sinks; ++i) keep.push_back(middle[i]);
  for (uint32_t t = n - r.recency; t < n; ++t) keep.push_back(t);
  std::sort(keep.begin(), keep.end());
  return keep;
}

}  // namespace

std::vector<PlainScores> plain_scores(const ModelSpec& spec, const SessionRows& rows) {
  std::vector<PlainScores> out;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (rows.layers[l].n_rows == 0) continue;
    out.push_back(layer_scores(spec, rows, l));
    for (uint32_t h = 0; h < out.back().mean.size(); ++h)
      out.back().sizes.push_back(value_sizes(spec, rows.layers[l], l, h));
  }
  return out;
}

std::vector<std::vector<double>> plain_replay_scores(const ModelSpec& spec, const SessionRows& all,
                                                     uint32_t layer, uint32_t n, uint32_t every) {
  const OwnerRows& rows = all.layers[layer];
  std::vector<std::vector<double>> out(spec.layers[layer].attention.n_kv_heads,
                                       std::vector<double>(n, 0.0));
  for (uint32_t l = layer; l < spec.n_layers(); ++l) {
    const AttentionSpec& a = spec.layers[l].attention;
    const bool reads = l == layer || (spec.layers[l].mixer == MixerKind::kAttention &&
                                      a.kv_source == static_cast<int32_t>(layer));
    if (!reads) continue;
    const uint32_t group = a.n_heads / a.n_kv_heads;
    for (uint32_t i = 0; i < n; ++i) {
      if ((all.n_tokens - n + i) % every != 0) continue;
      for (uint32_t h = 0; h < a.n_heads; ++h) {
        const float* q =
            &all.queries[l][(uint64_t{all.n_queries - n + i} * a.n_heads + h) * a.head_dim];
        replay_query(a, rows, h / group, q, rows.n_rows - n + i, n, &out[h / group]);
      }
    }
  }
  return out;
}

namespace {

/// What all layers and heads score at each position.
std::vector<double> replay_sums(const SessionRows& rows) {
  std::vector<double> out(rows.n_tokens, 0.0);
  for (const OwnerRows& l : rows.layers) {
    for (size_t h = 0; h < l.replay.size(); ++h) {
      for (uint32_t t = 0; t < l.n_rows; ++t)
        out[l.positions[h][t]] += static_cast<double>(l.replay[h][t]);
    }
  }
  return out;
}

/// REPLAY's scores of one head; with MIXED those of the rows that its first half takes are higher.
std::vector<double> with_replay(const OwnerRows& rows, const std::vector<double>& sums,
                                const std::vector<double>& first, const PlainRequest& r,
                                uint32_t kv) {
  std::vector<double> out(rows.n_rows);
  for (uint32_t t = 0; t < rows.n_rows; ++t) out[t] = sums[rows.positions[kv][t]];
  out = spread(out, r.replay_span);
  if (r.policy == SHARPI_POLICY_REPLAY) return out;
  PlainRequest half = r;
  const uint32_t scored = r.budget - r.sinks - r.recency;
  half.budget = r.sinks + r.recency + (scored <= 64 ? scored : 64 + (scored - 64 + 1) / 2);
  for (const uint32_t t : best_slots(first, half)) out[t] += 1e6;
  return out;
}

}  // namespace

std::vector<PlainLayer> plain_keep_sets(const ModelSpec& spec, const SessionRows& rows,
                                        const std::vector<PlainScores>& raw,
                                        const PlainRequest& r) {
  std::vector<double> shared, total;
  const bool mixes = r.policy == SHARPI_POLICY_MIXED;
  const bool replays = mixes || r.policy == SHARPI_POLICY_REPLAY;
  const std::vector<double> sums = replays ? replay_sums(rows) : std::vector<double>();
  if (mixes || r.policy == SHARPI_POLICY_RETRIEVAL || r.policy == SHARPI_POLICY_GLOBAL) {
    shared.assign(rows.n_tokens, 0.0);  // by position
    total.assign(rows.layers[raw[0].layer].n_rows, 0.0);
    for (const PlainScores& layer : raw) {
      const AttentionSpec& a = spec.layers[layer.layer].attention;
      for (size_t h = 0; h < layer.mean.size(); ++h) {
        for (size_t t = 0; t < total.size(); ++t) {
          double& at = shared[rows.layers[layer.layer].positions[h][t]];
          at = std::max(at, layer.faded[h][t]);
          total[t] += layer.mean[h][t] * (a.n_heads / a.n_kv_heads) * rows.n_queries;
        }
      }
    }
  }
  std::vector<PlainLayer> out;
  for (const PlainScores& layer : raw) {
    PlainLayer one;
    one.layer = layer.layer;
    for (uint32_t h = 0; h < layer.mean.size(); ++h) {
      one.scores.push_back(
          r.policy == SHARPI_POLICY_GLOBAL ? total : head_scores(rows, layer, shared, r, h));
      if (replays) one.scores[h] = with_replay(rows.layers[layer.layer], sums, one.scores[h], r, h);
      one.slots.push_back(best_slots(one.scores.back(), r));
    }
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace sharpi::testing
