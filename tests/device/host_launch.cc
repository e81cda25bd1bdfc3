// SPDX-License-Identifier: MIT
#include "device/host_launch.h"

namespace sharpi::testing {

Status HostLaunch::run() const {
  const uint32_t e = s_.n_embd;
  switch (l_.kind) {
    case LaunchKind::kEmbed:
      embed(Buf::kX);
      break;
    case LaunchKind::kEmbedPairs:
      pairs();
      break;
    case LaunchKind::kPerLayerTable:
      per_layer_table();
      break;
    case LaunchKind::kPerLayerCombine:
      per_layer_combine();
      break;
    case LaunchKind::kRopeTables:
      ropes();
      break;
    case LaunchKind::kProduct:
    case LaunchKind::kChain:
      for (const RowLink& k : links_) product(k.product, k.sum);
      break;
    case LaunchKind::kResidual:
      residual(l_.sum);
      break;
    case LaunchKind::kKeepRing:
      keep_ring();
      break;
    case LaunchKind::kRows:
      rows();
      break;
    case LaunchKind::kAttention:
      attend();
      break;
    case LaunchKind::kLatentQueries:
      heads(latent_queries(layer().attention));
      break;
    case LaunchKind::kLatentOutputs:
      heads(latent_outputs(layer().attention));
      break;
    case LaunchKind::kDeltaNet:
      delta();
      break;
    case LaunchKind::kMamba:
      mamba();
      break;
    case LaunchKind::kActivation:
      activate();
      break;
    case LaunchKind::kAdapters:
      for (uint32_t k = 0; k < n_adapters_; ++k) add_adapter(k);
      break;
    case LaunchKind::kRouter:
      route();
      break;
    case LaunchKind::kSharedGate: {
      std::vector<float> x(e);
      for (uint32_t r = 0; r < n(); ++r) {
        norm(buf(Buf::kX) + uint64_t{r} * e, m_.floats(layer().ffn_norm), s_.rms_eps, e, x.data());
        buf(Buf::kSharedGate)[r] =
            sigmoid(dot(x.data(), m_.floats(layer().ffn.shared_gate_inp), e));
      }
      break;
    }
    case LaunchKind::kExperts:
      experts(false);
      break;
    case LaunchKind::kSlotExperts:
      experts(true);
      break;
    case LaunchKind::kSendRows:
      send_rows();
      break;
    case LaunchKind::kAnswers:
      answers();
      break;
    case LaunchKind::kPerLayerGate:
      for (uint64_t r = 0; r < n(); ++r) {
        for (uint64_t i = 0; i < s_.d_ple; ++i) {
          float& t = buf(Buf::kPleTmp)[r * s_.d_ple + i];
          t = gelu(t) * buf(Buf::kPle)[(r * s_.n_layers() + l_.layer) * s_.d_ple + i];
        }
      }
      break;
    case LaunchKind::kHeadRows:
      for (uint32_t r = 0; r < n_head_; ++r) {
        norm(buf(Buf::kX) + uint64_t{ws_.head_rows()[r]} * e, m_.floats(s_.output_norm), s_.rms_eps,
             e, buf(Buf::kHead) + uint64_t{r} * e);
      }
      break;
    case LaunchKind::kHiddenRows:
      for (uint64_t r = 0; r < n(); ++r)
        norm(buf(Buf::kX) + r * e, m_.floats(s_.output_norm), s_.rms_eps, e, buf(Buf::kY) + r * e);
      break;
    case LaunchKind::kLogits:
      logits();
      break;
    default:
      return Status::error(Code::kInternal, "the tests' device has no such launch");
  }
  return Status::ok();
}

void HostLaunch::embed(Buf to) const {
  const HostMatrix table = matrix(s_.token_embd);
  for (uint64_t r = 0; r < n(); ++r) {
    const std::vector<float> row = table.row(0, static_cast<uint64_t>(ws_.tokens()[r]));
    for (uint64_t i = 0; i < s_.n_embd; ++i)
      buf(to)[r * s_.n_embd + i] = row[i] * s_.embedding_scale;
  }
}

void HostLaunch::pairs() const {
  if (!s_.pair.table_on_host) embed(Buf::kY);
  const uint64_t e = s_.n_embd;
  for (uint64_t r = 0; r < n(); ++r) {
    float* to = buf(Buf::kPair) + r * 2 * e;
    norm(buf(Buf::kY) + r * e, m_.floats(s_.pair.embd_norm), s_.rms_eps, e, to);
    norm(buf(Buf::kX) + r * e, m_.floats(s_.pair.hidden_norm), s_.rms_eps, e, to + e);
  }
}

void HostLaunch::residual(const RowSum& sum) const {
  const uint64_t e = s_.n_embd;
  std::vector<float> y(e);
  for (uint64_t r = 0; r < n(); ++r) {
    const float* x = sum.x == kNoRows ? nullptr : buf(sum.x) + r * e;
    float* to = buf(sum.to) + r * e;
    if (sum.adds) std::copy_n(buf(Buf::kY) + r * e, e, y.data());
    const float* weight = floats(sum.norm);
    if (sum.adds && weight != nullptr) norm(y.data(), weight, s_.rms_eps, e, y.data());
    for (uint64_t i = 0; i < e; ++i)
      to[i] = sum.scale * ((x == nullptr ? 0.0f : x[i]) + sum.share * y[i]);
  }
}

void HostLaunch::product(const RowProduct& p, const RowSum& sum) const {
  if (sum.adds) residual(sum);
  const uint64_t rows = p.of_head ? n_head_ : n(), width = p.tasks[0].w->n_in;
  const float* in = buf(sum.adds ? sum.to : p.x);
  std::vector<float> x(in, in + rows * width);
  const float* weight = floats(p.norm);
  for (uint64_t r = 0; weight != nullptr && r < rows; ++r)
    norm(x.data() + r * width, weight, s_.rms_eps, width, x.data() + r * width);
  const bool gates = is_gated(p.epilogue);
  const auto scale = [&](uint64_t r) { return p.shared_scale ? buf(Buf::kSharedGate)[r] : 1.0f; };
  for (uint32_t t = 0; t < (gates ? 1 : p.n_tasks); ++t) {
    const HostMatrix w = matrix(*p.tasks[t].w), up = matrix(*p.tasks[gates ? 1 : t].w);
    const uint64_t n_out = p.tasks[t].w->n_out;
    const float* bias = floats(p.tasks[t].bias);
    for (uint64_t j = 0; j < n_out; ++j) {
      const std::vector<float> row = w.row(0, j);
      const std::vector<float> other = gates ? up.row(0, j) : std::vector<float>();
      for (uint64_t r = 0; r < rows; ++r) {
        const float* xr = x.data() + r * width;
        float& y = buf(p.tasks[t].y)[r * n_out + j];
        const float got = dot(row.data(), xr, width);
        if (gates) {
          y = act(p.epilogue, got, dot(other.data(), xr, width));
        } else {
          y = (p.epilogue == Epilogue::kAdd ? y : 0.0f) + scale(r) * got +
              (bias == nullptr ? 0.0f : bias[j]);
        }
      }
    }
  }
}

void HostLaunch::heads(const HeadProduct& p) const {
  const HostMatrix w = matrix(*p.w);
  for (uint64_t h = 0; h < p.n_heads(); ++h) {
    for (uint64_t j = 0; j < p.w->n_out; ++j) {
      const std::vector<float> row = w.row(h, j);
      for (uint64_t r = 0; r < n(); ++r) {
        const float* x = buf(p.x.buf) + r * p.x.row + p.x.first + h * p.x.head;
        buf(p.y.buf)[r * p.y.row + p.y.first + h * p.y.head + j] = dot(row.data(), x, p.w->n_in);
      }
    }
  }
}

void HostLaunch::ropes() const {
  const uint64_t stride = uint64_t{ws_.layout().max_rows} * ws_.layout().n_half;
  for (size_t i = 0; i < m_.ropes.size(); ++i) {
    const uint64_t n_half = m_.ropes[i].spec.n_rot / 2;
    const double* freq = m_.rope_memory.as<double>() + m_.rope_offset[i];
    for (uint64_t r = 0; r < n(); ++r) {
      for (uint64_t j = 0; j < n_half; ++j) {
        const double angle = static_cast<double>(batch_.table.rows[r].position) * freq[j];
        buf(Buf::kCos)[i * stride + r * n_half + j] =
            static_cast<float>(std::cos(angle)) * m_.ropes[i].mscale;
        buf(Buf::kSin)[i * stride + r * n_half + j] =
            static_cast<float>(std::sin(angle)) * m_.ropes[i].mscale;
      }
    }
  }
}

KvLayer HostLaunch::kv() const {
  const AttentionSpec& a = layer().attention;
  KvLayer kv = format_.layers[a.kv_source < 0 ? l_.layer : static_cast<uint32_t>(a.kv_source)];
  if (a.window != 0) kv.chunk = ws_.get<std::byte>(Buf::kKvChunk);
  return kv;
}

std::byte* slot_row(const KvLayer& kv, const BatchGroup& g, uint64_t slot, bool value) {
  return g.base + slot / kKvBlockSlots * kv.block_stride + (value ? kv.v_offset : kv.k_offset) +
         slot % kKvBlockSlots * (value ? kv.v_row_bytes : kv.k_row_bytes);
}
/// Rows of a KV head that are in blocks of one head; null: they are with those of the others.
const KvHeadRows* head_rows(const BatchGroup& g, uint32_t head) {
  return g.ring_slots == kRowsByHead ? reinterpret_cast<const KvHeadRows*>(g.base) + head : nullptr;
}
std::byte* head_row(const KvLayer& kv, const KvHeadRows& rows, uint64_t slot, bool value) {
  return rows.base + rows.blocks[slot / kKvBlockSlots] + (value ? rows.v_offset : 0) +
         slot % kKvBlockSlots * ((value ? kv.v_row_bytes : kv.k_row_bytes) / kv.n_heads);
}
std::byte* chunk_row(const KvLayer& kv, const BatchSequence& q, uint64_t i, bool value) {
  const uint64_t block = q.chunk_block + i / kKvBlockSlots, at = i % kKvBlockSlots;
  return kv.chunk + block * kKvBlockSlots * (kv.k_row_bytes + kv.v_row_bytes) +
         (value ? uint64_t{kKvBlockSlots} * kv.k_row_bytes + at * kv.v_row_bytes
                : at * kv.k_row_bytes);
}

void HostLaunch::store(const KvLayer& kv, const BatchRow& row, const float* k,
                       const float* v) const {
  const BatchTable& t = batch_.table;
  const BatchSequence& q = t.sequences[row.sequence];
  const BatchGroup& g = t.groups[uint64_t{row.sequence} * t.n_groups + kv.group];
  const uint64_t dim = uint64_t{kv.n_heads} * kv.head_dim;
  const bool both[] = {false, true};
  const std::span<const bool> sides(both, layer().attention.one_row() ? 1 : 2);
  const auto put = [&](std::byte* to, bool value) {
    const Status done = kv_encode_row(value ? kv.v_dtype : kv.k_dtype, value ? v : k, dim, to);
    (void)done.is_ok();
  };
  for (uint32_t h = 0; kv.window == 0 && head_rows(g, h) != nullptr; ++h) {
    if (h == kv.n_heads) return;
    const uint64_t at = uint64_t{h} * kv.head_dim;
    const uint64_t slot = uint64_t{g.n_slots} - head_rows(g, h)->lag + row.index;
    for (const bool value : sides) {
      const Status done = kv_encode_row(value ? kv.v_dtype : kv.k_dtype, (value ? v : k) + at,
                                        kv.head_dim, head_row(kv, *head_rows(g, h), slot, value));
      (void)done.is_ok();
    }
  }
  for (const bool value : sides) {
    if (kv.window == 0) {
      put(slot_row(kv, g, uint64_t{g.n_slots} + row.index, value), value);
      continue;
    }
    put(chunk_row(kv, q, row.index, value), value);
    if (to_ring_) put(slot_row(kv, g, row.position % g.ring_slots, value), value);
  }
}

void HostLaunch::rows() const {
  const AttentionSpec& a = layer().attention;
  const KvLayer kv = this->kv();
  const uint64_t dim = a.head_dim, q_dim = a.n_heads * dim, kv_dim = a.n_kv_heads * dim;
  const uint32_t n_half = a.rope.n_rot / 2;
  const bool neighbours = a.rope.pairs == RopePairs::kNeighbours;
  const uint64_t table = static_cast<uint64_t>(m_.rope_of_layer[l_.layer]) * ws_.layout().max_rows *
                         ws_.layout().n_half;
  const auto finish = [&](std::vector<float>* x, const TensorRef& bias, const TensorRef& weight,
                          const float* cos, const float* sin) {
    if (bias) {
      for (size_t i = 0; i < x->size(); ++i) (*x)[i] += m_.floats(bias)[i];
    }
    if (a.qk_norm == QkNorm::kWholeVector)
      norm(x->data(), m_.floats(weight), s_.rms_eps, x->size(), x->data());
    for (uint64_t at = 0; at < x->size(); at += dim) {
      if (a.qk_norm == QkNorm::kPerHead)
        norm(x->data() + at, m_.floats(weight), s_.rms_eps, dim, x->data() + at);
      rotate(x->data() + at, cos, sin, n_half, neighbours);
    }
  };
  for (uint64_t r = 0; r < n(); ++r) {
    const BatchRow& row = batch_.table.rows[r];
    if (row.sequence == kNoSequence) continue;
    const BatchSequence& seq = batch_.table.sequences[row.sequence];
    const float* cos = buf(Buf::kCos) + table + r * n_half;
    const float* sin = buf(Buf::kSin) + table + r * n_half;
    std::vector<float> q(q_dim);
    for (uint64_t h = 0; h < a.n_heads && a.latent; ++h) {
      const uint64_t rot = a.rope.n_rot, one = a.latent.key_dim + rot;
      std::copy_n(buf(Buf::kQuery) + r * q_dim + h * dim, dim, q.data() + h * dim);
      std::copy_n(buf(Buf::kQ) + r * a.q.n_out + h * one + a.latent.key_dim, rot,
                  q.data() + h * dim);
    }
    for (uint64_t h = 0; h < a.n_heads && !a.latent; ++h) {
      std::copy_n(buf(Buf::kQ) + r * a.q.n_out + h * (a.output_gate ? 2 * dim : dim), dim,
                  q.data() + h * dim);
    }
    finish(&q, a.q_bias, a.q_norm, cos, sin);
    const double steps = std::floor(static_cast<double>(row.position) / a.temperature_rows);
    for (float& x : q) x *= static_cast<float>(1.0 + double{a.temperature} * std::log(1.0 + steps));
    const int64_t at = m_.query_layout.offset_of_layer[l_.layer];
    if (seq.queries != nullptr && at >= 0) {
      const uint64_t i =
          (seq.flags & kSequenceQueryRing) != 0 ? row.position % seq.query_rows : row.index;
      std::copy(q.begin(), q.end(),
                seq.queries + static_cast<uint64_t>(at) * seq.query_rows + i * q_dim);
    }
    kv_rotate(q.data(), q_dim, kv_rotation(kv.k_dtype, kv.head_dim));
    std::copy(q.begin(), q.end(), buf(Buf::kQuery) + r * q_dim);
    if (a.kv_source >= 0) continue;
    std::vector<float> k(buf(Buf::kK) + r * kv_dim, buf(Buf::kK) + (r + 1) * kv_dim), v = k;
    if (a.latent) {
      const float* from = buf(Buf::kK) + r * kv_dim;
      std::copy_n(from + a.latent.rank, a.rope.n_rot, k.data());
      norm(from, m_.floats(a.latent.kv_norm), s_.rms_eps, a.latent.rank, k.data() + a.rope.n_rot);
    } else if (!a.v_from_k)
      std::copy_n(buf(Buf::kV) + r * kv_dim, kv_dim, v.data());
    for (uint64_t i = 0; a.v_bias && i < kv_dim; ++i) v[i] += m_.floats(a.v_bias)[i];
    for (uint64_t h = 0; a.v_norm && h < a.n_kv_heads; ++h)
      norm(v.data() + h * dim, nullptr, s_.rms_eps, dim, v.data() + h * dim);
    finish(&k, a.k_bias, a.k_norm, cos, sin);
    kv_rotate(k.data(), kv_dim, kv_rotation(kv.k_dtype, kv.head_dim));
    kv_rotate(v.data(), kv_dim, kv_rotation(kv.v_dtype, kv.head_dim));
    store(kv, row, k.data(), v.data());
  }
}

void HostLaunch::attend() const {
  const KvLayer kv = this->kv();
  for (uint32_t r = 0; r < n(); ++r) {
    if (batch_.table.rows[r].sequence == kNoSequence) continue;
    for (uint32_t h = 0; h < layer().attention.n_heads; ++h) attend_row(kv, r, h);
  }
}

void HostLaunch::attend_row(const KvLayer& kv, uint32_t r, uint32_t head) const {
  const AttentionSpec& a = layer().attention;
  const BatchTable& t = batch_.table;
  const BatchRow& row = t.rows[r];
  const BatchSequence& seq = t.sequences[row.sequence];
  const BatchGroup& g = t.groups[uint64_t{row.sequence} * t.n_groups + kv.group];
  const bool alone = (seq.flags & kSequenceNoContext) != 0;
  std::vector<const std::byte*> keys, values;
  const uint32_t kv_head = head / (a.n_heads / kv.n_heads);
  const KvHeadRows* by_head = kv.window == 0 ? head_rows(g, kv_head) : nullptr;
  if (by_head != nullptr) {
    const uint64_t past = uint64_t{g.n_slots} - by_head->lag;
    for (uint64_t slot = alone ? past : 0; slot <= past + row.index; ++slot) {
      keys.push_back(head_row(kv, *by_head, slot, false));
      values.push_back(head_row(kv, *by_head, slot, true));
    }
  } else if (kv.window == 0) {
    for (uint64_t slot = alone ? g.n_slots : 0; slot <= uint64_t{g.n_slots} + row.index; ++slot) {
      keys.push_back(slot_row(kv, g, slot, false));
      values.push_back(slot_row(kv, g, slot, true));
    }
  } else {
    const uint64_t p = row.position, first = p + 1 > kv.window ? p + 1 - kv.window : 0;
    for (uint64_t at = alone ? std::max(first, seq.position) : first; at <= p; ++at) {
      const bool own = at >= seq.position;
      for (const bool value : {false, true}) {
        (value ? values : keys)
            .push_back(own ? chunk_row(kv, seq, at - seq.position, value)
                           : slot_row(kv, g, at % g.ring_slots, value));
      }
    }
  }
  const uint32_t dim = kv.head_dim, from = by_head != nullptr ? 0 : kv_head * dim;
  const uint64_t all = by_head != nullptr ? dim : uint64_t{kv.n_heads} * dim;
  const float* q = buf(Buf::kQuery) + (uint64_t{r} * a.n_heads + head) * dim;
  std::vector<float> x(dim), w(keys.size());
  std::vector<double> out(dim, 0.0);
  for (size_t i = 0; i < keys.size(); ++i) {
    const Status read = kv_decode_row(kv.k_dtype, keys[i], all, from, dim, x.data());
    w[i] = read.is_ok() ? dot(q, x.data(), dim) * a.scale : NAN;
  }
  const float* sinks = m_.floats(a.sinks);
  const float sink = sinks == nullptr ? -INFINITY : sinks[head];
  const float most = std::max(sink, *std::max_element(w.begin(), w.end()));
  double sum = std::exp(double{sink} - double{most});
  for (size_t i = 0; i < keys.size(); ++i) {
    const double share = std::exp(double{w[i]} - double{most});
    sum += share;
    const Status read = kv_decode_row(kv.v_dtype, values[i], all, from, dim, x.data());
    for (uint32_t d = 0; read.is_ok() && d < dim; ++d) out[d] += share * double{x[d]};
  }
  float* o = buf(Buf::kMix) + (uint64_t{r} * a.n_heads + head) * dim;
  for (uint32_t d = 0; d < dim; ++d) o[d] = static_cast<float>(out[d] / sum);
  kv_unrotate(o, dim, kv_rotation(kv.v_dtype, dim));
  const float* gate = buf(Buf::kQ) + uint64_t{r} * a.q.n_out + (2ull * head + 1) * dim;
  for (uint32_t d = 0; a.output_gate && d < dim; ++d) o[d] *= sigmoid(gate[d]);
}

void HostLaunch::keep_ring() const {
  const KvLayer kv = this->kv();
  const BatchTable& t = batch_.table;
  for (uint32_t s = 0; s < batch_.n_sequences; ++s) {
    const BatchSequence& q = t.sequences[s];
    const BatchGroup& g = t.groups[uint64_t{s} * t.n_groups + kv.group];
    for (uint32_t i = q.n_rows - std::min(q.n_rows, g.ring_slots); i < q.n_rows; ++i) {
      for (const bool value : {false, true}) {
        std::memcpy(slot_row(kv, g, (q.position + i) % g.ring_slots, value),
                    chunk_row(kv, q, i, value), value ? kv.v_row_bytes : kv.k_row_bytes);
      }
    }
  }
}

void HostLaunch::delta() const {
  const DeltaRows rows{m_, l_.layer};
  for (uint32_t s = 0; s < batch_.n_sequences; ++s) {
    const BatchSequence& q = batch_.table.sequences[s];
    if (q.n_rows == 0 || q.state_in == nullptr) continue;
    cpu::DeltaNetTask t = rows.task(q);
    if (q.n_pending != 0) {
      rows.replay(q);
      t.state_in = t.state_out, t.conv_in = t.conv_out;
    }
    const uint64_t conv = t.shape.conv_dim(), heads = t.shape.n_v_heads,
                   value = t.shape.value_dim(), first = q.first_row;
    t.qkv = buf(Buf::kQkv) + first * conv;
    t.z = buf(Buf::kZ) + first * value;
    t.alpha = buf(Buf::kAlpha) + first * heads;
    t.beta = buf(Buf::kBeta) + first * heads;
    t.out = buf(Buf::kMix) + first * value;
    t.n_rows = q.n_rows;
    if ((q.flags & kSequenceDrafted) != 0) {
      std::copy_n(t.qkv, q.n_rows * conv, q.keep + rows.plane(q, DeltaNetSpec::kQkv));
      std::copy_n(t.alpha, q.n_rows * heads, q.keep + rows.plane(q, DeltaNetSpec::kAlpha));
      std::copy_n(t.beta, q.n_rows * heads, q.keep + rows.plane(q, DeltaNetSpec::kBeta));
      t.state_out = t.conv_out = nullptr;
    }
    DeltaRows::run(t);
  }
}

void HostLaunch::mamba() const {
  const MambaRows rows{m_, l_.layer};
  for (uint32_t s = 0; s < batch_.n_sequences; ++s) {
    const BatchSequence& q = batch_.table.sequences[s];
    if (q.n_rows == 0 || q.state_in == nullptr) continue;
    rows.rows(q, buf(Buf::kQkv), buf(Buf::kZ), buf(Buf::kAlpha), buf(Buf::kMix));
  }
}

void HostLaunch::per_layer_table() const {
  const uint64_t width = uint64_t{s_.n_layers()} * s_.d_ple;
  for (uint64_t r = 0; r < n(); ++r) {
    dequantize_row(s_.ple_embd.tensor->type,
                   ws_.get<std::byte>(Buf::kPleRaw) + r * ws_.layout().ple_row_bytes,
                   buf(Buf::kPleTable) + r * width, width);
  }
}

void HostLaunch::per_layer_combine() const {
  const uint64_t d = s_.d_ple;
  const float to_unit = 1.0f / std::sqrt(static_cast<float>(s_.n_embd)),
              table = std::sqrt(static_cast<float>(d)), half = 1.0f / std::sqrt(2.0f);
  for (uint64_t r = 0; r < uint64_t{n()} * s_.n_layers(); ++r) {
    float* c = buf(Buf::kPle) + r * d;
    for (uint64_t i = 0; i < d; ++i) c[i] *= to_unit;
    norm(c, m_.floats(s_.ple_proj_norm), s_.rms_eps, d, c);
    for (uint64_t i = 0; i < d; ++i) c[i] = (c[i] + buf(Buf::kPleTable)[r * d + i] * table) * half;
  }
}

void HostLaunch::logits() const {
  const float cap = s_.logit_softcap;
  for (uint64_t r = 0; r < n_head_; ++r) {
    float* to = ws_.logits()[r];
    for (uint64_t v = 0; to != nullptr && v < s_.n_vocab; ++v) {
      const float x = s_.logit_scale * buf(Buf::kLogits)[r * s_.n_vocab + v];
      to[v] = cap == 0.0f ? x : cap * std::tanh(x / cap);
    }
  }
}

}  // namespace sharpi::testing
