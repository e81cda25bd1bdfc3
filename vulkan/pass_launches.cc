// SPDX-License-Identifier: MIT
#include "vulkan/pass_launches.h"

namespace sharpi::vulkan {

using device::Epilogue;

namespace {

/// Rows, and outputs, of a tile (shaders/product_tile.comp), and rows from which tiles are taken: a
/// tile that is filled to a quarter costs what its rows cost one by one.
constexpr uint32_t kTile = 64, kTiledRows = 17;

}  // namespace

Status PassLaunches::make() const {
  switch (l_.kind) {
    case LaunchKind::kEmbed:
      return embed(Buf::kX);
    case LaunchKind::kEmbedPairs:
      return pairs();
    case LaunchKind::kPerLayerTable:
      return per_layer_table();
    case LaunchKind::kPerLayerCombine:
      return per_layer_combine();
    case LaunchKind::kPerLayerGate:
      return per_layer_gate();
    case LaunchKind::kRopeTables:
      return ropes();
    case LaunchKind::kProduct:
    case LaunchKind::kChain:
      return links();
    case LaunchKind::kResidual:
      return residual(l_.sum);
    case LaunchKind::kKeepRing:
      return keep_ring();
    case LaunchKind::kRows:
      return rows();
    case LaunchKind::kAttention:
      return attend();
    case LaunchKind::kDeltaNet:
      return delta();
    case LaunchKind::kRouter:
      return route();
    case LaunchKind::kSharedGate:
      return shared_gate();
    case LaunchKind::kExperts:
      return experts(false);
    case LaunchKind::kSlotExperts:
      return experts(true);
    case LaunchKind::kSendRows:
      return send_rows();
    case LaunchKind::kAnswers:
      return answers();
    case LaunchKind::kHeadRows:
    case LaunchKind::kHiddenRows:
    case LaunchKind::kLogits:
      return ends();
    case LaunchKind::kMoeStep:
    case LaunchKind::kFetchWeights:
    case LaunchKind::kReleaseWeights:
    case LaunchKind::kLayerEnd:
      break;  // no kernel's
  }
  return Status::error(Code::kInternal, "the Vulkan tier has no launch %u",
                       static_cast<uint32_t>(l_.kind));
}

Status PassLaunches::ends() const {
  switch (l_.kind) {
    case LaunchKind::kHeadRows:
      return norm(buf(Buf::kX), m_.floats(s_.output_norm), buf(Buf::kHead), s_.n_embd,
                  p_.n_head_rows, s_.n_embd, ws_.head_rows());
    case LaunchKind::kHiddenRows:
      return norm(buf(Buf::kX), m_.floats(s_.output_norm), buf(Buf::kY), s_.n_embd, n(), s_.n_embd);
    case LaunchKind::kLogits:
      return logits();
    default:
      return Status::error(Code::kInternal, "the Vulkan tier has no launch %u",
                           static_cast<uint32_t>(l_.kind));
  }
}

Status PassLaunches::embed(Buf to) const {
  const TensorRef& w = s_.token_embd;
  const Args args = Args()
                        .at(ws_.tokens())
                        .at(m_.weight(w))
                        .at(buf(to))
                        .u(s_.n_embd)
                        .u(w.row_bytes())
                        .f(s_.embedding_scale)
                        .u(n())
                        .u(s_.n_embd);
  return run(Shader::embed, {static_cast<uint32_t>(w.tensor->type)}, args, n());
}

Status PassLaunches::pairs() const {
  if (!s_.pair.table_on_host) SHARPI_TRY(embed(Buf::kY));
  const uint32_t e = s_.n_embd;
  float* to = buf(Buf::kPair);
  SHARPI_TRY(norm(buf(Buf::kY), m_.floats(s_.pair.embd_norm), to, e, n(), 2 * e));
  return norm(buf(Buf::kX), m_.floats(s_.pair.hidden_norm), to + e, e, n(), 2 * e);
}

Status PassLaunches::norm(const float* x, const float* weight, float* y, uint32_t width,
                          uint32_t rows, uint32_t y_stride, const uint32_t* picks) const {
  const Args args =
      Args().at(x).at(weight).at(y).at(picks).u(width).u(width).u(y_stride).f(s_.rms_eps).u(rows);
  return run(Shader::norm, {}, args, rows);
}

Status PassLaunches::links() const {
  for (uint32_t i = 0; i < l_.n_links; ++i) {
    const device::RowLink& link = list_.links[l_.first_link + i];
    SHARPI_TRY(product(link.product, link.sum));
  }
  return Status::ok();
}

Status PassLaunches::product(const RowProduct& p, const RowSum& sum) const {
  if (sum.adds) SHARPI_TRY(residual(sum));
  const uint32_t rows = p.of_head ? p_.n_head_rows : n();
  if (rows == 0) return Status::ok();
  const auto width = static_cast<uint32_t>(p.tasks[0].w->n_in);
  const float* x = buf(sum.adds ? sum.to : p.x);
  const float* weight = floats(p.norm);
  if (weight != nullptr) {
    SHARPI_TRY(norm(x, weight, buf(Buf::kKernel), width, rows, width));
    x = buf(Buf::kKernel);
  }
  const bool gates = device::is_gated(p.epilogue);
  // In tiles sums have another order than a single row's.
  const bool in_tiles = rows >= kTiledRows && !m_.plan->model.deterministic;
  const uint32_t few = rows == 1 ? 1 : profile().product_rows;
  for (uint32_t t = 0; t < (gates ? 1 : p.n_tasks); ++t) {
    const TensorRef &w = *p.tasks[t].w, &up = *p.tasks[gates ? 1 : t].w;
    const Args args = Args()
                          .at(m_.weight(w))
                          .at(m_.weight(up))
                          .at(x)
                          .at(buf(p.tasks[t].y))
                          .at(p.shared_scale ? buf(Buf::kSharedGate) : nullptr)
                          .at(floats(p.tasks[t].bias))
                          .u(width)
                          .u(w.n_out)
                          .u(rows)
                          .u(w.row_bytes())
                          .u(up.row_bytes());
    std::vector<uint32_t> constants = {static_cast<uint32_t>(w.tensor->type),
                                       static_cast<uint32_t>(up.tensor->type),
                                       static_cast<uint32_t>(p.epilogue)};
    if (in_tiles) {
      const uint32_t outputs = gates ? kTile / 2 : kTile;
      SHARPI_TRY(
          queue_.dispatch({Shader::product_tile, constants, args, (w.n_out + outputs - 1) / outputs,
                           (rows + kTile - 1) / kTile, kTile}));
      continue;
    }
    constants.push_back(few);
    SHARPI_TRY(run(Shader::product, constants, args, w.n_out, (rows + few - 1) / few));
  }
  return Status::ok();
}

Status PassLaunches::residual(const RowSum& sum) const {
  const Args args = Args()
                        .at(sum.x == device::kNoRows ? nullptr : buf(sum.x))
                        .at(sum.adds ? buf(Buf::kY) : nullptr)
                        .at(sum.adds ? floats(sum.norm) : nullptr)
                        .at(buf(sum.to))
                        .u(s_.n_embd)
                        .f(s_.rms_eps)
                        .f(sum.scale)
                        .u(n());
  return run(Shader::residual, {}, args, n());
}

Status PassLaunches::ropes() const {
  const uint64_t stride = uint64_t{ws_.layout().max_rows} * ws_.layout().n_half;
  for (size_t i = 0; i < m_.ropes.size(); ++i) {
    const Args args = Args()
                          .at(p_.batch.table.rows)
                          .at(m_.rope_memory.as<double>() + m_.rope_offset[i])
                          .at(buf(Buf::kCos) + i * stride)
                          .at(buf(Buf::kSin) + i * stride)
                          .u(m_.ropes[i].spec.n_rot / 2)
                          .f(m_.ropes[i].mscale)
                          .u(n());
    SHARPI_TRY(run(Shader::rope, {}, args, n()));
  }
  return Status::ok();
}

Status PassLaunches::per_layer_table() const {
  const TensorRef& w = s_.ple_embd;
  const uint64_t width = uint64_t{s_.n_layers()} * s_.d_ple;
  const Args args = Args()
                        .at(nullptr)
                        .at(ws_.get<std::byte>(Buf::kPleRaw))
                        .at(buf(Buf::kPleTable))
                        .u(width)
                        .u(ws_.layout().ple_row_bytes)
                        .f(1.0f)
                        .u(n())
                        .u(width);
  return run(Shader::embed, {static_cast<uint32_t>(w.tensor->type)}, args, n());
}

Status PassLaunches::per_layer_combine() const {
  const uint32_t rows = n() * s_.n_layers();
  const Args args = Args()
                        .at(buf(Buf::kPle))
                        .at(buf(Buf::kPleTable))
                        .at(m_.floats(s_.ple_proj_norm))
                        .u(s_.d_ple)
                        .u(rows)
                        .u(s_.d_ple)
                        .u(s_.n_embd)
                        .f(s_.rms_eps);
  return run(Shader::per_layer, {0}, args, rows);
}

Status PassLaunches::per_layer_gate() const {
  const Args args = Args()
                        .at(buf(Buf::kPleTmp))
                        .at(buf(Buf::kPle) + uint64_t{l_.layer} * s_.d_ple)
                        .at(nullptr)
                        .u(s_.d_ple)
                        .u(n())
                        .u(uint64_t{s_.n_layers()} * s_.d_ple)
                        .u(s_.n_embd)
                        .f(s_.rms_eps);
  return run(Shader::per_layer, {1}, args, n());
}

Status PassLaunches::logits() const {
  const Args args = Args().at(buf(Buf::kLogits)).at(ws_.logits()).u(s_.n_vocab).f(s_.logit_softcap);
  return run(Shader::logits, {}, args, groups_of(s_.n_vocab), p_.n_head_rows);
}

}  // namespace sharpi::vulkan
