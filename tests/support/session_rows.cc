// SPDX-License-Identifier: MIT
#include "support/session_rows.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/session_blob.h"
#include "kv/codec.h"
#include "kv/rotation.h"

namespace sharpi::testing {
namespace {

/// Reads on and ends the program where there is nothing left.
class Reader {
 public:
  explicit Reader(const std::vector<char>& blob)
      : at_(reinterpret_cast<const std::byte*>(blob.data())), left_(blob.size()) {}
  const std::byte* take(uint64_t bytes) {
    if (bytes > left_) {
      std::fprintf(stderr, "a saved session ends early\n");
      std::abort();
    }
    const std::byte* p = at_;
    at_ += bytes;
    left_ -= bytes;
    return p;
  }
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> list(uint64_t n) {
    std::vector<T> out(n);
    const std::byte* p = take(n * sizeof(T));
    if (n != 0) std::memcpy(out.data(), p, n * sizeof(T));
    return out;
  }

 private:
  const std::byte* at_;
  uint64_t left_;
};

std::vector<float> decoded(KvDtype dtype, const std::byte* canonical, uint32_t n_rows,
                           uint64_t elements, uint32_t head_dim) {
  std::vector<float> out(n_rows * elements);
  const uint64_t bytes = kv_row_bytes(dtype, elements);
  std::vector<std::byte> row(bytes);
  for (uint32_t i = 0; i < n_rows; ++i) {
    if (!kv_row_from_canonical(dtype, canonical + i * bytes, elements, row.data()).is_ok() ||
        !kv_decode_row(dtype, row.data(), elements, 0, elements, &out[i * elements]).is_ok()) {
      std::abort();
    }
  }
  kv_unrotate(out.data(), out.size(), kv_rotation(dtype, head_dim));
  return out;
}

/// Positions of every head's rows.
std::vector<std::vector<uint32_t>> positions(const AttentionSpec& a, const BlobLayerHeader& h,
                                             Reader* r) {
  std::vector<std::vector<uint32_t>> out;
  for (uint32_t i = 0; i < h.n_lists; ++i) out.push_back(r->list<uint32_t>(h.n_compacted));
  if (out.empty()) out.emplace_back();
  out.resize(a.n_kv_heads, out[0]);
  for (auto& list : out) {
    for (uint32_t i = h.n_compacted; i < h.n_rows; ++i)
      list.push_back(h.tail_position + i - h.n_compacted);
  }
  return out;
}

void read_body(const LayerSpec& l, const BlobLayerHeader& h, Reader* r, OwnerRows* rows,
               std::vector<char>* other) {
  const uint64_t n = uint64_t{l.attention.n_kv_heads} * l.attention.head_dim;
  const auto k = static_cast<KvDtype>(h.k_dtype & 0xFFFFu),
             v = static_cast<KvDtype>(h.v_dtype & 0xFFFFu);
  switch (h.kind) {
    case BlobLayer::kRows:
      rows->n_rows = h.n_rows;
      rows->k =
          decoded(k, r->take(h.n_rows * kv_row_bytes(k, n)), h.n_rows, n, l.attention.head_dim);
      rows->v = l.attention.one_row() ? rows->k
                                      : decoded(v, r->take(h.n_rows * kv_row_bytes(v, n)), h.n_rows,
                                                n, l.attention.head_dim);
      break;
    case BlobLayer::kRing:
      *other = r->list<char>(h.n_rows * (kv_row_bytes(k, n) + kv_row_bytes(v, n)));
      break;
    case BlobLayer::kRecurrent: {
      const Recurrence recurrence = l.recurrence();
      *other = r->list<char>((recurrence.state + recurrence.conv) * sizeof(float));
      break;
    }
    case BlobLayer::kNone:
      break;
  }
}

}  // namespace

std::shared_ptr<const ModelSpec> spec_of(const std::string& gguf_path) {
  const auto file = GgufFile::open(gguf_path);
  if (!file.is_ok()) return nullptr;
  auto mapped = file.value()->map_tensors();  // whose values the plain forms read
  if (!mapped.is_ok()) return nullptr;
  auto spec = load_model_spec(mapped.take());
  // Plans of tests are for contexts beyond the short ones that a file may have angles for.
  return spec.is_ok() ? spec_for_context(spec.take(), UINT32_MAX) : nullptr;
}

SessionRows session_rows(const ModelSpec& spec, const std::vector<char>& blob) {
  Reader r(blob);
  const auto head = r.get<BlobHeader>();
  if (head.n_layers != spec.n_layers() || head.version != kBlobVersion) std::abort();
  r.take(head.n_tokens * sizeof(int32_t));
  const auto sampler = r.get<BlobSampler>();
  r.take(sampler.n_bias * (sizeof(int32_t) + sizeof(float)));
  SessionRows out;
  out.n_tokens = head.n_tokens;
  out.n_queries = head.n_queries;
  out.n_scored = head.n_scored;
  out.layers.resize(spec.n_layers());
  out.others.resize(spec.n_layers());
  out.queries.resize(spec.n_layers());
  std::vector<BlobLayerHeader> layers;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    layers.push_back(r.get<BlobLayerHeader>());
    if (layers[l].kind != BlobLayer::kRows) continue;
    out.layers[l].n_compacted = layers[l].n_compacted;
    out.layers[l].positions = positions(spec.layers[l].attention, layers[l], &r);
  }
  r.take(head.n_checkpoints * sizeof(BlobCheckpointHeader));
  for (uint32_t l = 0; l < spec.n_layers(); ++l)
    read_body(spec.layers[l], layers[l], &r, &out.layers[l], &out.others[l]);
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const AttentionSpec& a = spec.layers[l].attention;
    if (spec.layers[l].mixer != MixerKind::kAttention || a.window != 0) continue;
    out.queries[l] = r.list<float>(uint64_t{head.n_queries} * a.n_heads * a.head_dim);
  }
  for (uint32_t l = 0; (head.flags & kBlobReplay) != 0 && l < spec.n_layers(); ++l) {
    if (layers[l].kind != BlobLayer::kRows) continue;
    for (uint32_t h = 0; h < spec.layers[l].attention.n_kv_heads; ++h)
      out.layers[l].replay.push_back(r.list<float>(layers[l].n_rows));
  }
  return out;
}

}  // namespace sharpi::testing
