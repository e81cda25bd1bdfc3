// SPDX-License-Identifier: MIT
#include "tier/host_weights.h"

#include <algorithm>

#include "base/checked.h"
#include "tier/block_tensors.h"

namespace sharpi {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kPiece = 64ull << 20;  // large enough to stream, small enough to cancel soon

constexpr std::array<HostTensors::Use, HostTensors::kUses> kAllUses{
    HostTensors::kEmbedding, HostTensors::kMixers, HostTensors::kFfn,
    HostTensors::kExperts,   HostTensors::kHead,   HostTensors::kMtp};

MemoryRow weight_row(HostTensors::Use use, uint64_t payload, uint64_t held) {
  return make_row(TierId::kCpu, 0, SHARPI_ROW_WEIGHTS, SHARPI_ROW_ANONYMOUS,
                  HostTensors::label(use), payload, held);
}

}  // namespace

int64_t first_per_layer_embedding(const ModelSpec& s, const Placement& p) {
  if (s.d_ple == 0 || p.embedding == TierId::kCpu) return -1;
  for (uint32_t l = 0; l < s.n_layers(); ++l) {
    if (p.ffn[l] == TierId::kCpu && s.layers[l].ple_gate) return l;
  }
  return -1;
}

HostTensors::HostTensors(const ModelSpec& s, const Placement& p) {
  if (first_per_layer_embedding(s, p) >= 0) add(s, Block{BlockKind::kEmbedding, 0});
  if (p.per_layer_embedding == TierId::kCpu && s.d_ple != 0) {
    for (const TensorRef* t : {&s.ple_embd, &s.ple_model_proj, &s.ple_proj_norm}) {
      add(*t, kEmbedding);
    }
  }
  each_block(s, p, [&](const Block& block, TierId tier) {
    if (tier == TierId::kCpu) add(s, block);
  });
  if (!p.mtp || p.head != TierId::kCpu) return;
  for (const TensorRef& t : mtp_tensors(s)) add(t, kMtp);
}

void HostTensors::add(const ModelSpec& s, const Block& block) {
  Use use = kHead;
  switch (block.kind) {
    case BlockKind::kEmbedding:
      use = kEmbedding;
      break;
    case BlockKind::kMixer:
      use = kMixers;
      break;
    case BlockKind::kFfn:
      use = kFfn;
      break;
    case BlockKind::kExperts:
      use = kExperts;
      break;
    case BlockKind::kHead:
      break;
  }
  for (const TensorRef& t : block_tensors(s, block)) add(t, use);
}

void HostTensors::add(const TensorRef& t, Use use) {
  if (t && seen_.insert(t.tensor).second) tensors_[use].push_back(t.tensor);
}

uint64_t HostTensors::bytes(Use use) const {
  uint64_t n = 0;
  for (const GgufTensor* t : tensors_[use]) n += t->bytes;
  return n;
}

uint64_t HostTensors::bytes() const {
  uint64_t n = 0;
  for (const Use use : kAllUses) n += bytes(use);
  return n;
}

uint64_t HostTensors::block_bytes(Use use) const {
  uint64_t n = 0;
  for (const GgufTensor* t : tensors_[use]) n += round_up(t->bytes, kAlignment);
  return n;
}

const char* HostTensors::label(Use use) {
  static constexpr const char* kLabels[] = {"embedding",      "mixers", "FFN",
                                            "routed experts", "head",   "MTP block"};
  return kLabels[use];
}

std::vector<MemoryRow> host_weight_plan_rows(const ModelSpec& spec, const Placement& placement) {
  const HostTensors own(spec, placement);
  std::vector<MemoryRow> rows;
  for (const HostTensors::Use use : kAllUses) {
    if (own.bytes(use) != 0) rows.push_back(weight_row(use, own.bytes(use), own.block_bytes(use)));
  }
  return rows;
}

Result<std::unique_ptr<HostWeights>> HostWeights::create(MemoryMeter& meter, const ModelSpec& spec,
                                                         const Placement& placement,
                                                         const LoadProgress& progress) {
  const HostTensors own(spec, placement);
  const GgufFile& file = *spec.file;
  std::unique_ptr<HostWeights> w(new HostWeights);
  std::vector<const std::byte*> copies(file.tensors().size());
  uint64_t done = 0;
  for (const HostTensors::Use use : kAllUses) {
    if (own.of(use).empty()) continue;
    Copy copy{use, own.bytes(use), {}};
    SHARPI_TRY_ASSIGN(copy.memory,
                      HostBuffer::allocate(meter, own.block_bytes(use), HostTensors::label(use)));
    std::byte* to = copy.memory.data();
    for (const GgufTensor* t : own.of(use)) {
      for (uint64_t at = 0; at < t->bytes; at += kPiece) {
        const uint64_t n = std::min(kPiece, t->bytes - at);
        SHARPI_TRY(file.read_tensor(*t, at, to + at, n));
        done += n;
        if (progress && !progress(done, own.bytes())) {
          return Status::error(Code::kCancelled, "loading the model was cancelled");
        }
      }
      copies[static_cast<size_t>(t - file.tensors().data())] = to;
      to += round_up(t->bytes, kAlignment);
    }
    w->copies_.push_back(std::move(copy));
  }
  SHARPI_TRY_ASSIGN(w->spec_, load_model_spec(file.with_copies(copies)));
  return w;
}

std::vector<MemoryRow> HostWeights::memory_rows() const {
  std::vector<MemoryRow> rows;
  for (const Copy& c : copies_) rows.push_back(weight_row(c.use, c.payload, c.memory.bytes()));
  return rows;
}

}  // namespace sharpi
