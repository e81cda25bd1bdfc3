// SPDX-License-Identifier: MIT
#include "tier/host_weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/checked.h"
#include "base/host_info.h"
#include "base/no_throw.h"
#include "tier/block_tensors.h"

namespace sharpi {
namespace {

constexpr uint64_t kAlignment = 64;

constexpr std::array<HostTensors::Use, HostTensors::kUses> kAllUses{
    HostTensors::kEmbedding, HostTensors::kMixers, HostTensors::kFfn,
    HostTensors::kExperts,   HostTensors::kHead,   HostTensors::kMtp};

MemoryRow weight_row(HostTensors::Use use, uint64_t payload, uint64_t held) {
  return make_row(TierId::kCpu, 0, SHARPI_ROW_WEIGHTS, SHARPI_ROW_ANONYMOUS,
                  HostTensors::label(use), payload, held);
}

}  // namespace

int64_t first_per_layer_embedding(const ModelSpec& s, const Placement& p) {
  if (s.d_ple == 0 || p.embedding == DeviceIndex::kHost) return -1;
  for (uint32_t l = 0; l < s.n_layers(); ++l) {
    if (p.ffn[l] == DeviceIndex::kHost && s.layers[l].ple_gate) return l;
  }
  return -1;
}

HostTensors::HostTensors(const ModelSpec& s, const Placement& p) {
  if (first_per_layer_embedding(s, p) >= 0) add(s, Block{BlockKind::kEmbedding, 0});
  if (p.per_layer_embedding == DeviceIndex::kHost && s.d_ple != 0) {
    for (const TensorRef* t : {&s.ple_embd, &s.ple_model_proj, &s.ple_proj_norm}) {
      add(*t, kEmbedding);
    }
  }
  each_block(s, p, [&](const Block& block, DeviceIndex device) {
    if (device != DeviceIndex::kHost) return;
    add(s, block);
    if (block.kind != BlockKind::kExperts) return;
    for (const TensorRef& t : tensors_of_experts_host(s.layers[block.layer])) add(t, kExperts);
  });
  // A block that drafts on another device than the embedding's is told its tokens' embeddings.
  const bool needs_table = p.mtp && !is_host(p.head) && p.head != p.embedding && !s.mtp.embd;
  if (needs_table) add(s.token_embd, kEmbedding);
  if (!p.mtp || !is_host(p.head)) return;
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

namespace {

/// Bytes of a tensor on their way to their place.
struct Part {
  const GgufTensor* tensor = nullptr;
  uint64_t at = 0, bytes = 0;
  std::byte* to = nullptr;
};

class WeightReader {
 public:
  WeightReader(const GgufFile& file, ThreadPool& pool, uint64_t total, const LoadProgress& progress)
      : file_(file),
        pool_(pool),
        total_(total),
        progress_(progress),
        forgets_(host_free_bytes() / 2 < total) {}

  /// Reads a tensor to `to`, some time until finish().
  Status add(const GgufTensor& tensor, std::byte* to) {
    for (uint64_t at = 0; at < tensor.bytes; at += kPart) {
      const uint64_t n = std::min(kPart, tensor.bytes - at);
      parts_.push_back({&tensor, at, n, to + at});
      waiting_ += n;
      if (waiting_ >= kGroup) SHARPI_TRY(finish());
    }
    return Status::ok();
  }

  Status finish() {
    std::atomic<bool> stop{false};
    std::mutex mutex;
    Status first;
    pool_.run(static_cast<uint32_t>(parts_.size()), [&](uint32_t i) {
      if (stop.load(std::memory_order_relaxed)) return;
      const Part& p = parts_[i];
      Status s = no_throw([&] { return file_.read_tensor(*p.tensor, p.at, p.to, p.bytes); });
      if (forgets_) file_.dont_need(*p.tensor, p.at, p.bytes);
      if (s.is_ok()) return;
      stop.store(true, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> lock(mutex);
      if (first.is_ok()) first = std::move(s);
    });
    SHARPI_TRY(first);
    done_ += std::exchange(waiting_, 0);
    const bool tells = !parts_.empty() && progress_;
    parts_.clear();
    if (tells && !progress_(done_, total_))
      return Status::error(Code::kCancelled, "loading the model was cancelled");
    return Status::ok();
  }

 private:
  static constexpr uint64_t kPart = uint64_t{2} << 20;    // that a thread reads at a time
  static constexpr uint64_t kGroup = uint64_t{64} << 20;  // few enough to cancel soon
  const GgufFile& file_;
  ThreadPool& pool_;
  uint64_t total_;
  const LoadProgress& progress_;
  /// Where file and copy do not fit the free memory together, what was read leaves the system's
  /// cache, rather than what other programs have there.
  bool forgets_;
  std::vector<Part> parts_;
  uint64_t waiting_ = 0, done_ = 0;
};

}  // namespace

Result<std::unique_ptr<HostWeights>> HostWeights::create(MemoryMeter& meter, ThreadPool& pool,
                                                         const ModelSpec& spec,
                                                         const Placement& placement,
                                                         const LoadProgress& progress) {
  const HostTensors own(spec, placement);
  const GgufFile& file = *spec.file;
  std::unique_ptr<HostWeights> w(new HostWeights);
  std::vector<const std::byte*> copies(file.tensors().size());
  WeightReader reader(file, pool, own.bytes(), progress);
  for (const HostTensors::Use use : kAllUses) {
    if (own.of(use).empty()) continue;
    Copy copy{use, own.bytes(use), {}};
    SHARPI_TRY_ASSIGN(copy.memory,
                      HostBuffer::allocate(meter, own.block_bytes(use), HostTensors::label(use),
                                           HostBuffer::Contents::kUnset));
    std::byte* to = copy.memory.data();
    for (const GgufTensor* t : own.of(use)) {
      SHARPI_TRY(reader.add(*t, to));
      copies[static_cast<size_t>(t - file.tensors().data())] = to;
      const uint64_t end = round_up(t->bytes, kAlignment);
      std::memset(to + t->bytes, 0, end - t->bytes);
      to += end;
    }
    w->copies_.push_back(std::move(copy));
  }
  SHARPI_TRY(reader.finish());
  SHARPI_TRY_ASSIGN(w->spec_, reload_spec(spec, file.with_copies(copies)));
  return w;
}

std::vector<MemoryRow> HostWeights::memory_rows() const {
  std::vector<MemoryRow> rows;
  for (const Copy& c : copies_) rows.push_back(weight_row(c.use, c.payload, c.memory.bytes()));
  return rows;
}

}  // namespace sharpi
