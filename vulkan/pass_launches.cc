// SPDX-License-Identifier: MIT
#include "vulkan/pass_launches.h"

#include <algorithm>

#include "base/checked.h"

namespace sharpi::vulkan {

using device::Epilogue;

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
    case LaunchKind::kAdapters:
      return links();
    case LaunchKind::kResidual:
      return residual(l_.sum);
    case LaunchKind::kKeepRing:
      return keep_ring();
    case LaunchKind::kRows:
      return rows();
    case LaunchKind::kAttention:
      return attend();
    case LaunchKind::kLatentQueries:
    case LaunchKind::kLatentOutputs:
      return heads();
    case LaunchKind::kDeltaNet:
      return delta();
    case LaunchKind::kMamba:
      return mamba();
    case LaunchKind::kActivation:
      return activation();
    case LaunchKind::kRouter:
      return layer().ffn.routes_by_shares() ? route() : choose_experts();
    case LaunchKind::kSharedGate:
      return shared_gate();
    case LaunchKind::kExperts:
    case LaunchKind::kSlotExperts:
      return experts(l_.kind == LaunchKind::kSlotExperts);
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
    case LaunchKind::kReplay:
    case LaunchKind::kLayerEnd:
      break;  // no kernel's, or device/replay.h has it
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
                          uint32_t rows, uint32_t y_stride, const uint32_t* picks,
                          const std::byte* bytes) const {
  const Args args = Args()
                        .at(x)
                        .at(weight)
                        .at(y)
                        .at(picks)
                        .at(bytes)
                        .u(width)
                        .u(width)
                        .u(y_stride)
                        .f(s_.rms_eps)
                        .u(rows);
  return run_rows(Shader::norm, {bytes != nullptr ? 1u : 0u}, args, rows);
}

Status PassLaunches::links() const {
  if (l_.kind == LaunchKind::kAdapters) return adapters();
  for (uint32_t i = 0; i < l_.n_links; ++i) {
    const device::RowLink& link = list_.links[l_.first_link + i];
    SHARPI_TRY(product(link.product, link.sum));
  }
  return Status::ok();
}

std::byte* PassLaunches::bytes_of(uint64_t rows, uint64_t width) const {
  const uint64_t end = ws_.size(Buf::kKernel), taken = round_up(row_bytes_of(rows, width), 256);
  return ws_.get<std::byte>(Buf::kKernel) + (end / 256 * 256 - taken);
}

Status PassLaunches::quantise(const float* x, uint64_t rows, uint32_t width) const {
  const Args args = Args().at(x).at(bytes_of(rows, width)).u(width).u(rows);
  return run(Shader::quantise, {}, args, groups_of(rows * width / 4));
}

Status PassLaunches::halve(const float* x, uint64_t rows, uint32_t width, bool product) const {
  const Args args = Args().at(x).at(bytes_of(rows, width)).u(width).u(rows);
  return run_rows(Shader::halves, {product ? 1u : 0u}, args, rows);
}

Status PassLaunches::product(const RowProduct& p, const RowSum& sum) const {
  const uint32_t rows = p.of_head ? p_.n_head_rows : n();
  const auto width = static_cast<uint32_t>(p.tasks[0].w->n_in);
  const uint32_t n_matrices = device::is_gated(p.epilogue) ? 2 : p.n_tasks;
  bool to_bytes = false, to_halves = false;
  for (uint32_t t = 0; t < n_matrices; ++t) {
    const RowForm form = form_of(*p.tasks[t].w, rows);
    to_bytes = to_bytes || form == RowForm::kBytes;
    to_halves = to_halves || form == RowForm::kHalves;
  }
  const std::byte* bytes = to_bytes && rows != 0 ? bytes_of(rows, width) : nullptr;
  const float* x = buf(sum.adds ? sum.to : p.x);
  const float* weight = floats(p.norm);
  float* normed = buf(Buf::kKernel);
  const bool at_once = sum.adds && weight != nullptr && rows == n();
  if (sum.adds && !at_once) SHARPI_TRY(residual(sum));
  if (rows == 0) return Status::ok();
  if (at_once) {
    SHARPI_TRY(residual(sum, weight, normed, bytes));
  } else if (weight != nullptr) {
    SHARPI_TRY(norm(x, weight, normed, width, rows, width, nullptr, bytes));
  } else if (to_bytes && (p.x != Buf::kMix || sum.adds || !joins_to_bytes())) {
    SHARPI_TRY(quantise(x, rows, width));
  }
  if (weight != nullptr) x = normed;
  if (to_halves) SHARPI_TRY(halve(x, rows, width, true));
  for (uint32_t t = 0; t < (device::is_gated(p.epilogue) ? 1 : p.n_tasks); ++t)
    SHARPI_TRY(task(p, t, rows, x));
  return Status::ok();
}

/// One matrix of a product, or the two of a gate; tasks go beside each other.
Status PassLaunches::task(const RowProduct& p, uint32_t t, uint32_t rows, const float* x) const {
  const bool gates = device::is_gated(p.epilogue);
  const TensorRef &w = *p.tasks[t].w, &up = *p.tasks[gates ? 1 : t].w;
  RowForm form = form_of(w, rows);
  if (form_of(up, rows) != form) form = RowForm::kFloats;
  if (form == RowForm::kHalves && up.tensor->type != w.tensor->type) form = RowForm::kFloats;
  const void* in = form == RowForm::kFloats ? static_cast<const void*>(x) : bytes_of(rows, w.n_in);
  Kernel k{Shader::product,
           {static_cast<uint32_t>(w.tensor->type), static_cast<uint32_t>(up.tensor->type),
            static_cast<uint32_t>(p.epilogue)},
           Args(),
           w.n_out};
  k.args.at(m_.weight(w))
      .at(m_.weight(up))
      .at(in)
      .at(buf(p.tasks[t].y))
      .at(p.shared_scale ? buf(Buf::kSharedGate) : nullptr)
      .at(floats(p.tasks[t].bias))
      .u(w.n_in)
      .u(w.n_out)
      .u(rows)
      .u(w.row_bytes())
      .u(up.row_bytes());
  k.beside = t != 0;
  if (in_tiles(m_.plan->model, rows)) {
    const bool matrices = form == RowForm::kHalves;
    const MatrixShape& m = profile().matrix;
    const uint32_t outputs = matrices ? 8 * m.m : kTile;
    k.shader = matrices ? Shader::product_matrix : Shader::product_tile;
    k.items = div_up(w.n_out, gates ? outputs / 2 : outputs);
    k.layers = static_cast<uint32_t>(div_up(rows, matrices ? 8 * m.n : kTile));
    k.threads = matrices ? profile().matrix_threads : kTile;
    if (matrices) k.constants.append({m.m, m.n, m.k});
    return queue_.dispatch(k);
  }
  const uint32_t few = rows == 1 ? 1 : profile().product_rows;
  k.constants.push_back(few);
  k.layers = static_cast<uint32_t>(div_up(rows, few));
  if (form == RowForm::kBytes) {
    const uint32_t units = few == 1 ? profile().dot_outputs(w.n_out) : 1;
    const uint32_t outputs = gates ? std::max(units / 2, 1u) : units;
    k.shader = Shader::product_dots;
    k.constants.push_back(outputs);
    k.items = div_up(w.n_out, outputs);
  }
  return queue_.dispatch(k);
}

Status PassLaunches::residual(const RowSum& sum, const float* next_weight, float* next,
                              const std::byte* bytes) const {
  const Args args = Args()
                        .at(sum.x == device::kNoRows ? nullptr : buf(sum.x))
                        .at(sum.adds ? buf(Buf::kY) : nullptr)
                        .at(sum.adds ? floats(sum.norm) : nullptr)
                        .at(buf(sum.to))
                        .at(next_weight)
                        .at(next)
                        .at(bytes)
                        .u(s_.n_embd)
                        .f(s_.rms_eps)
                        .f(sum.scale)
                        .f(sum.share)
                        .u(n());
  return run_rows(Shader::residual, {next != nullptr ? 1u : 0u, bytes != nullptr ? 1u : 0u}, args,
                  n());
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
  const Args args = Args()
                        .at(buf(Buf::kLogits))
                        .at(ws_.logits())
                        .u(s_.n_vocab)
                        .f(s_.logit_scale)
                        .f(s_.logit_softcap);
  return run(Shader::logits, {}, args, groups_of(s_.n_vocab), p_.n_head_rows);
}

}  // namespace sharpi::vulkan
