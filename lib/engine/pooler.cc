// SPDX-License-Identifier: MIT
#include "engine/pooler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "plan/encoder_plan.h"

namespace sharpi {
namespace {

double dot(const float* a, const float* b, uint64_t n) {
  double sum = 0;
  for (uint64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

const float* bias_of(const TensorRef& w) {
  return w ? reinterpret_cast<const float*>(w.tensor->data) : nullptr;
}

}  // namespace

uint64_t pooler_floats(const ModelSpec& spec) {
  return kMaxTexts * (spec.n_embd + 2 * pooled_width(spec));
}

Pooler::Pooler(const Model& model, const LabelRows& labels, float* memory,
               std::span<const Text> texts, const PoolRequest& request, float* out,
               Progress progress)
    : model_(model),
      spec_(model.spec()),
      labels_(labels),
      memory_(memory),
      texts_(texts),
      request_(request),
      out_(out),
      progress_(std::move(progress)),
      width_(spec_.n_embd) {
  done_.reserve(kMaxTexts);
  if (request.pooling != Pooling::kNone) return;
  uint64_t at = 0;
  for (const Text& t : texts) {
    first_rows_.push_back(at);
    at += t.tokens.size();
  }
}

/// Memory for vectors behind those of the slots: 0 or 1.
float* Pooler::area(uint32_t i) const {
  return memory_ + kMaxTexts * (width_ + i * pooled_width(spec_));
}

void Pooler::take(uint32_t text, uint32_t slot, uint32_t first, uint32_t n, const float* rows) {
  if (request_.pooling != Pooling::kNone) {
    take_pooled(text, slot, first, n, rows);
    return;
  }
  for (uint64_t r = 0; r < n; ++r) {
    std::memcpy(out_ + (first_rows_[text] + first + r) * request_.n_dims, rows + r * width_,
                request_.n_dims * sizeof(float));
  }
}

void Pooler::take_pooled(uint32_t text, uint32_t slot_index, uint32_t first, uint32_t n,
                         const float* rows) {
  float* vector = slot(slot_index);
  const bool ends = first + n == texts_[text].tokens.size();
  const bool whole_text = request_.pooling == Pooling::kMean;
  const bool first_row = request_.pooling == Pooling::kCls ||
                         (request_.pooling == Pooling::kRank && spec_.is_encoder());
  if (whole_text) {
    if (first == 0) std::fill_n(vector, width_, 0.0f);
    for (uint64_t r = 0; r < n; ++r) {
      for (uint64_t i = 0; i < width_; ++i) vector[i] += rows[r * width_ + i];
    }
    const float share = 1.0f / static_cast<float>(texts_[text].tokens.size());
    if (ends) {
      for (uint64_t i = 0; i < width_; ++i) vector[i] *= share;
    }
  } else if (first_row) {
    if (first == 0) std::memcpy(vector, rows, width_ * sizeof(float));
  } else if (ends) {
    std::memcpy(vector, rows + (n - 1) * width_, width_ * sizeof(float));
  }
  if (ends) done_.push_back({text, slot_index});
}

Status Pooler::end_pass(uint32_t n_rows) {
  const auto n = static_cast<uint32_t>(done_.size());
  float* vectors = area(0);
  for (uint32_t i = 0; i < n; ++i)
    std::memcpy(vectors + i * width_, slot(done_[i].slot), width_ * sizeof(float));
  if (n != 0 && request_.pooling == Pooling::kRank) {
    SHARPI_TRY(score(n));
  } else if (n != 0) {
    const float* projected = nullptr;
    uint64_t width = 0;
    SHARPI_TRY(project(n, &projected, &width));
    for (uint32_t i = 0; i < n; ++i) write(done_[i].text, projected + i * width);
  }
  done_.clear();
  return progress_(n_rows);
}

/// The vectors in area 0 through the file's projections.
Status Pooler::project(uint32_t n, const float** vectors, uint64_t* width) {
  uint32_t at = 0;
  *width = width_;
  for (const TensorRef& w : spec_.pooled.projections) {
    SHARPI_TRY(model_.product(w, area(at), n, area(1 - at)));
    at = 1 - at;
    *width = w.n_out;
  }
  *vectors = area(at);
  return Status::ok();
}

void Pooler::write(uint32_t text, const float* vector) const {
  const uint64_t n = request_.n_dims;
  float* to = out_ + text * n;
  double scale = 1.0;
  if (request_.normalize) scale = 1.0 / std::max(std::sqrt(dot(vector, vector, n)), 1e-12);
  for (uint64_t i = 0; i < n; ++i)
    to[i] = static_cast<float>(static_cast<double>(vector[i]) * scale);
}

Status Pooler::score(uint32_t n) {
  const TensorRef& head = spec_.pooled.out;
  const uint64_t n_labels = head ? head.n_out : 2;
  float* labels = area(1);
  if (head) {
    SHARPI_TRY(scores_of_head(n, n_labels, labels));
  } else {
    const double cap = static_cast<double>(spec_.logit_softcap);
    const auto logit = [&](const std::vector<float>& row, const float* x) {
      const double s = dot(row.data(), x, width_);
      return static_cast<float>(cap == 0.0 ? s : cap * std::tanh(s / cap));
    };
    for (uint32_t i = 0; i < n; ++i) {
      labels[2 * i] = logit(labels_.yes, area(0) + i * width_);
      labels[2 * i + 1] = logit(labels_.no, area(0) + i * width_);
    }
  }
  for (uint32_t i = 0; i < n; ++i) {
    const float* own = labels + i * n_labels;
    const double s =
        static_cast<double>(own[0]) - (n_labels == 2 ? static_cast<double>(own[1]) : 0);
    out_[done_[i].text] = static_cast<float>(request_.normalize ? 1.0 / (1.0 + std::exp(-s)) : s);
  }
  return Status::ok();
}

/// The rows in area 0 through the score head: n_labels of each to `out`, which is area 1.
Status Pooler::scores_of_head(uint32_t n, uint64_t n_labels, float* out) {
  const PooledSpec& p = spec_.pooled;
  const float* in = area(0);
  if (p.dense) {
    float* dense = slot(0);  // what the slots had has been copied
    SHARPI_TRY(model_.product(p.dense, in, n, dense));
    const float* bias = bias_of(p.dense_bias);
    for (uint64_t i = 0; i < n * width_; ++i)
      dense[i] = std::tanh(dense[i] + (bias == nullptr ? 0.0f : bias[i % width_]));
    in = dense;
  }
  SHARPI_TRY(model_.product(p.out, in, n, out));
  const float* bias = bias_of(p.out_bias);
  for (uint64_t i = 0; bias != nullptr && i < n * n_labels; ++i) out[i] += bias[i % n_labels];
  return Status::ok();
}

}  // namespace sharpi
