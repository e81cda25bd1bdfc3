// SPDX-License-Identifier: MIT
#include "support/session_rows.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/session_blob.h"
#include "kv/codec.h"

namespace sharpi::testing {
namespace {

const std::byte* need(const std::byte* p) {
  if (p != nullptr) return p;
  std::fprintf(stderr, "a saved session ends early\n");
  std::abort();
}

std::vector<float> decoded(KvDtype dtype, const std::byte* canonical, uint32_t n_rows,
                           uint64_t elements) {
  std::vector<float> out(n_rows * elements);
  const uint64_t bytes = kv_row_bytes(dtype, elements);
  std::vector<std::byte> row(bytes);
  for (uint32_t i = 0; i < n_rows; ++i) {
    if (!kv_row_from_canonical(dtype, canonical + i * bytes, elements, row.data()).is_ok() ||
        !kv_decode_row(dtype, row.data(), elements, 0, elements, &out[i * elements]).is_ok()) {
      std::abort();
    }
  }
  return out;
}

OwnerRows owner_rows(const AttentionSpec& a, const BlobLayerHeader& h, BlobReader* r) {
  OwnerRows out;
  out.n_rows = h.n_rows;
  for (uint32_t i = 0; i < h.n_lists; ++i) {
    std::vector<uint32_t> list(h.n_compacted);
    const std::byte* p = need(r->take(list.size() * sizeof(uint32_t)));
    if (!list.empty()) std::memcpy(list.data(), p, list.size() * sizeof(uint32_t));
    out.positions.push_back(std::move(list));
  }
  if (out.positions.empty()) out.positions.emplace_back();
  out.positions.resize(a.n_kv_heads, out.positions[0]);
  for (auto& list : out.positions) {
    for (uint32_t i = h.n_compacted; i < h.n_rows; ++i)
      list.push_back(h.tail_position + i - h.n_compacted);
  }
  const uint64_t n = uint64_t{a.n_kv_heads} * a.head_dim;
  const auto k = static_cast<KvDtype>(h.k_dtype), v = static_cast<KvDtype>(h.v_dtype);
  out.k = decoded(k, need(r->take(h.n_rows * kv_row_bytes(k, n))), h.n_rows, n);
  out.v = decoded(v, need(r->take(h.n_rows * kv_row_bytes(v, n))), h.n_rows, n);
  return out;
}

std::vector<char> other_bytes(const LayerSpec& l, const BlobLayerHeader& h, BlobReader* r) {
  uint64_t bytes = 0;
  if (h.kind == BlobLayer::kRecurrent) {
    const DeltaNetSpec& d = l.delta;
    const uint64_t state = uint64_t{d.n_v_heads} * d.head_dim * d.head_dim;
    bytes = (state + (d.conv_kernel - 1ull) * d.conv_dim()) * sizeof(float);
  } else if (h.kind == BlobLayer::kRing) {
    const uint64_t n = uint64_t{l.attention.n_kv_heads} * l.attention.head_dim;
    bytes = h.n_rows * (kv_row_bytes(static_cast<KvDtype>(h.k_dtype), n) +
                        kv_row_bytes(static_cast<KvDtype>(h.v_dtype), n));
  }
  const auto* p = reinterpret_cast<const char*>(need(r->take(bytes)));
  return {p, p + bytes};
}

}  // namespace

std::shared_ptr<const ModelSpec> spec_of(const std::string& gguf_path) {
  auto file = GgufFile::open(gguf_path);
  if (!file.is_ok()) return nullptr;
  auto spec = load_model_spec(file.take());
  return spec.is_ok() ? spec.take() : nullptr;
}

SessionRows session_rows(const ModelSpec& spec, const std::vector<char>& blob) {
  BlobReader r(reinterpret_cast<const std::byte*>(blob.data()), blob.size());
  BlobHeader head;
  if (!r.get(&head, sizeof head) || head.n_layers != spec.n_layers()) need(nullptr);
  need(r.take(head.n_tokens * sizeof(int32_t)));
  SessionRows out;
  out.n_tokens = head.n_tokens;
  out.n_queries = head.n_queries;
  out.layers.resize(spec.n_layers());
  out.others.resize(spec.n_layers());
  out.queries.resize(spec.n_layers());
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    BlobLayerHeader h;
    if (!r.get(&h, sizeof h)) need(nullptr);
    if (h.kind == BlobLayer::kRows) {
      out.layers[l] = owner_rows(spec.layers[l].attention, h, &r);
    } else {
      out.others[l] = other_bytes(spec.layers[l], h, &r);
    }
  }
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const AttentionSpec& a = spec.layers[l].attention;
    if (spec.layers[l].mixer != MixerKind::kAttention || a.window != 0) continue;
    out.queries[l].resize(uint64_t{head.n_queries} * a.n_heads * a.head_dim);
    const uint64_t bytes = out.queries[l].size() * sizeof(float);
    const std::byte* p = need(r.take(bytes));
    if (bytes != 0) std::memcpy(out.queries[l].data(), p, bytes);
  }
  return out;
}

}  // namespace sharpi::testing
