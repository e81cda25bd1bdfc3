// SPDX-License-Identifier: MIT
#include "model/mamba2_keys.h"

#include <string>

namespace sharpi {
namespace {

constexpr const char* kConvRows = "%.ssm.inner_size + 2 * %.ssm.group_count * %.ssm.state_size";

constexpr const char* kIn = "ssm_in.weight";

Extent in_rows(const Mamba2Spec& m) {
  return {uint64_t{m.inner()} + m.conv_dim() + m.n_heads,
          "2 * %.ssm.inner_size + 2 * %.ssm.group_count * %.ssm.state_size + "
          "%.ssm.time_step_rank"};
}

Status no_multiple(const SpecBuilder& b, const char* key, uint32_t n, const char* of, uint32_t m) {
  return Status::error(Code::kFormat, "%s is %u, not a multiple of %s, which is %u",
                       b.full_key(key).c_str(), n, b.full_key(of).c_str(), m);
}

}  // namespace

Result<Mamba2Spec> read_mamba2(const SpecBuilder& b) {
  constexpr uint64_t kMostInner = limits::kHeads * limits::kStateDim;
  Mamba2Spec m;
  SHARPI_TRY_ASSIGN(m.conv_kernel,
                    b.require_uint("ssm.conv_kernel", Range{2, limits::kConvKernel}));
  SHARPI_TRY_ASSIGN(m.state_dim, b.require_uint("ssm.state_size", Range{1, limits::kStateDim}));
  SHARPI_TRY_ASSIGN(m.n_groups, b.require_uint("ssm.group_count", Range{1, limits::kHeads}));
  SHARPI_TRY_ASSIGN(m.n_heads, b.require_uint("ssm.time_step_rank", Range{1, limits::kHeads}));
  SHARPI_TRY_ASSIGN(const uint32_t inner, b.require_uint("ssm.inner_size", Range{1, kMostInner}));
  if (m.n_heads % m.n_groups != 0)
    return no_multiple(b, "ssm.time_step_rank", m.n_heads, "ssm.group_count", m.n_groups);
  if (inner % m.n_heads != 0)
    return no_multiple(b, "ssm.inner_size", inner, "ssm.time_step_rank", m.n_heads);
  m.head_dim = inner / m.n_heads;
  if (m.head_dim <= limits::kStateDim) return m;
  return Status::error(Code::kFormat, "%s = %u over %s = %u gives heads of %u, expected up to %u",
                       b.full_key("ssm.inner_size").c_str(), inner,
                       b.full_key("ssm.time_step_rank").c_str(), m.n_heads, m.head_dim,
                       static_cast<uint32_t>(limits::kStateDim));
}

Status take_mamba2_apart(const SpecBuilder& b, const TrunkKeys& trunk, const Mamba2Spec& m,
                         uint32_t block, std::vector<GgufPart>* parts) {
  TensorRef none;
  SHARPI_TRY_ASSIGN(
      const GgufTensor* in,
      b.find_in_layer(block, {&none, kIn, WeightKind::kComputable, trunk.embd, in_rows(m)}));
  if (in == nullptr) return Status::ok();
  const auto part = [&](const char* name, uint64_t first, uint64_t n) {
    parts->push_back({layer_tensor_name(block, name), in, {{first, n}}});
  };
  part("ssm_gate.weight", 0, m.inner());
  part("ssm_xbc.weight", m.inner(), m.conv_dim());
  part("ssm_dt.weight", uint64_t{m.inner()} + m.conv_dim(), m.n_heads);
  return Status::ok();
}

Status load_mamba2(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block, Mamba2Spec* mamba) {
  Mamba2Spec& m = *mamba;
  if (!b.has_layer_tensor(block, "ssm_xbc.weight")) {  // what the file lacks is the whole of it
    SHARPI_TRY(
        b.load_layer(block, {{&m.xbc, kIn, WeightKind::kComputable, trunk.embd, in_rows(m)}}));
  }
  constexpr WeightKind kMatrix = WeightKind::kComputable, kF32 = WeightKind::kF32;
  const Extent heads{m.n_heads, "%.ssm.time_step_rank"}, one{1, ""};
  const Extent inner{m.inner(), "%.ssm.inner_size"};
  const Extent conv{m.conv_dim(), kConvRows};
  const Extent taps{m.conv_kernel, "%.ssm.conv_kernel"};
  const Extent groups{m.n_groups, "%.ssm.group_count"};
  const Extent group{m.inner() / m.n_groups, "%.ssm.inner_size / %.ssm.group_count"};
  return b.load_layer(block, {
                                 {&m.gate, "ssm_gate.weight", kMatrix, trunk.embd, inner},
                                 {&m.xbc, "ssm_xbc.weight", kMatrix, trunk.embd, conv},
                                 {&m.dt, "ssm_dt.weight", kMatrix, trunk.embd, heads},
                                 {&m.out, "ssm_out.weight", kMatrix, inner, trunk.embd},
                                 {&m.conv1d, "ssm_conv1d.weight", kF32, taps, conv},
                                 {&m.conv_bias, "ssm_conv1d.bias", kF32, conv, {}, {}, true},
                                 {&m.dt_bias, "ssm_dt.bias", kF32, heads},
                                 {&m.a, "ssm_a", kF32, one, heads},
                                 {&m.d, "ssm_d", kF32, one, heads},
                                 {&m.norm, "ssm_norm.weight", kF32, group, groups},
                             });
}

}  // namespace sharpi
