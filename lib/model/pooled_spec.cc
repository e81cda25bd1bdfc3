// SPDX-License-Identifier: MIT
#include "model/pooled_spec.h"

#include <array>
#include <string>

#include "model/model_spec.h"
#include "model/spec_builder.h"

namespace sharpi {
namespace {

/// Values of the key pooling_type.
constexpr std::array<Pooling, 5> kPoolings{Pooling::kNone, Pooling::kMean, Pooling::kCls,
                                           Pooling::kLast, Pooling::kRank};
constexpr const char* kProjections[] = {"dense_2.weight", "dense_3.weight"};
constexpr const char* kScores = "cls.output.weight";

/// A row length of its own, which the tensor says.
Extent own_rows(const SpecBuilder& b, const char* name) {
  return {b.file().find_tensor(name)->ne[1], name};
}

Status load_projections(SpecBuilder& b, ModelSpec* spec) {
  Extent in{spec->n_embd, "%.embedding_length"};
  for (const char* name : kProjections) {
    if (!b.has_tensor(name)) continue;
    const Extent out = own_rows(b, name);
    if (out.n == 0 || out.n > limits::kFf) {
      return Status::error(Code::kFormat, "tensor \"%s\" has %llu rows, expected 1 to %llu", name,
                           static_cast<unsigned long long>(out.n),
                           static_cast<unsigned long long>(limits::kFf));
    }
    TensorRef w;
    SHARPI_TRY(b.load({{&w, name, WeightKind::kComputable, in, out}}));
    spec->pooled.projections.push_back(w);
    in = out;
  }
  return Status::ok();
}

Status load_score_head(SpecBuilder& b, ModelSpec* spec) {
  if (!b.has_tensor(kScores)) return Status::ok();
  PooledSpec& p = spec->pooled;
  const Extent embd{spec->n_embd, "%.embedding_length"};
  const Extent labels = own_rows(b, kScores);
  if (labels.n != 1 && labels.n != 2) {
    return Status::error(Code::kUnsupported,
                         "the score head \"%s\" has %llu labels, only one, or one for yes and one "
                         "for no, are supported",
                         kScores, static_cast<unsigned long long>(labels.n));
  }
  return b.load({
      {&p.dense, "cls.weight", WeightKind::kComputable, embd, embd, {}, true},
      {&p.dense_bias, "cls.bias", WeightKind::kF32, embd, {}, {}, true},
      {&p.out, kScores, WeightKind::kComputable, embd, labels},
      {&p.out_bias, "cls.output.bias", WeightKind::kF32, labels, {}, {}, true},
  });
}

}  // namespace

Status load_pooled(SpecBuilder& b, ModelSpec* spec) {
  PooledSpec& p = spec->pooled;
  if (b.has_key("pooling_type")) {
    SHARPI_TRY_ASSIGN(const uint32_t type,
                      b.require_uint("pooling_type", Range{0, kPoolings.size() - 1}));
    p.pooling = kPoolings[type];
  }
  SHARPI_TRY(load_projections(b, spec));
  SHARPI_TRY(load_score_head(b, spec));
  if (p.pooling == Pooling::kRank && spec->is_encoder() && !p.out) {
    return Status::error(Code::kFormat,
                         "%s says that the model is a reranker, but \"%s\" is absent",
                         b.full_key("pooling_type").c_str(), kScores);
  }
  return Status::ok();
}

}  // namespace sharpi
