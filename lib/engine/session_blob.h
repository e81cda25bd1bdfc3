// SPDX-License-Identifier: MIT
// The saved form of a session, the same from every tier and placement. Little-endian. The head says
// what there is, the body holds it.
// Head:
//   BlobHeader; with kBlobAdapters: BlobAdapters
//   i32 tokens[n_tokens]
//   BlobSampler, i32 bias_tokens[n_bias], f32 bias_values[n_bias]
//   per layer: BlobLayerHeader; with kBlobByHead, of one with rows: u32 lags[n_heads], by which its
//     heads have fewer rows than the fullest; u32 positions[n_lists][n_compacted], with lags as
//     many fewer
//   per checkpoint: BlobCheckpointHeader
// Body:
//   per layer: K rows, then V rows (canonical, codec.h; those of a sliding window in the order of
//     positions; with kBlobByHead all K rows of the first head, each as a layer of one head has it,
//     then those of the next), or of a recurrent layer f32 state and conv tail
//   per full-attention layer: f32 queries[n_queries][n_heads * head_dim], of the last positions
//   with replay scores: per full-attention layer that owns rows, of each KV head f32
//   scores[n_rows];
//     those of the last n_tokens - n_scored rows are not made yet
//   f32 logits[n_logit_rows][n_vocab]
//   per checkpoint: of each recurrent layer f32 state and conv tail; then f32 logits[n_vocab],
//     if the checkpoint has logits
// u64 StripedHash64 of all bytes before: against damage. Against intent, restore checks every field
// of the head against every other and against the session (session_restore.cc). Thread rule: plain
// values; a sink or a source belongs to one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "engine/blob_sum.h"

namespace sharpi {

inline constexpr uint64_t kBlobMagic = 0x31564B4950524853ull;  // "SHRPIKV1"
inline constexpr uint32_t kBlobVersion = 8;
inline constexpr uint32_t kBlobVersionByHead = 9;  // of those with kBlobByHead, and of no others
inline constexpr uint64_t kBlobSumBytes = sizeof(uint64_t);
enum class BlobLayer : uint32_t { kNone = 0, kRows = 1, kRing = 2, kRecurrent = 3 };

struct BlobHeader {
  uint64_t magic = kBlobMagic;
  uint32_t version = kBlobVersion;
  uint32_t n_layers = 0;
  uint64_t content_id = 0;
  uint64_t total_bytes = 0;
  uint32_t n_tokens = 0;
  uint32_t flags = 0;          // kBlobCompacted and so on
  uint32_t ring_low = 0;       // lowest position whose row is in the sliding windows
  uint32_t evicted_floor = 0;  // lowest length that truncation reaches after compaction
  uint32_t n_logit_rows = 0, n_checkpoints = 0, n_queries = 0;
  uint32_t n_scored = 0;  // tokens whose rows have replay scores
  uint64_t base = 0;      // of positions: what RoPE counted when token 0 of these was read
};
static_assert(sizeof(BlobHeader) == 72);
inline constexpr uint32_t kBlobCompacted = 1, kBlobReplay = 2, kBlobAdapters = 4, kBlobByHead = 8;
/// Sessions do not read more tokens than that.
inline constexpr uint64_t kBlobMaxBase = uint64_t{1} << 52;

/// Behind the head, with kBlobAdapters: which adapters the session has (ChosenAdapters::id()), and
/// how many of its first tokens were read with others.
struct BlobAdapters {
  uint64_t id = 0;
  uint32_t n_other_tokens = 0, reserved = 0;
};
static_assert(sizeof(BlobAdapters) == 16);

/// sharpi_sampler_params and the state of its random numbers.
struct BlobSampler {
  float temperature = 0, top_p = 0, min_p = 0, repeat_penalty = 0;
  uint32_t top_k = 0, repeat_last_n = 0, n_bias = 0, reserved = 0;
  uint64_t seed = 0, random_state = 0;
};
static_assert(sizeof(BlobSampler) == 48);

struct BlobLayerHeader {
  BlobLayer kind = BlobLayer::kNone;
  uint32_t k_dtype = 0, v_dtype = 0;  // kv_saved_dtype()
  uint32_t first_position = 0;        // of a ring's rows
  uint32_t n_rows = 0, n_compacted = 0, tail_position = 0, n_lists = 0;
  bool operator==(const BlobLayerHeader&) const = default;
};
static_assert(sizeof(BlobLayerHeader) == 32);

struct BlobCheckpointHeader {
  uint32_t n_tokens = 0;
  uint16_t pinned = 0, has_logits = 0;
  uint64_t age = 0;  // 1 = the oldest, no two alike
};
static_assert(sizeof(BlobCheckpointHeader) == 16);

/// Where a blob goes, piece by piece.
class BlobSink {
 public:
  virtual ~BlobSink() = default;
  virtual Status write(const void* data, uint64_t bytes) = 0;
  /// Memory for the next bytes, which then count as written; null = it takes them by write().
  virtual std::byte* room(uint64_t) { return nullptr; }
};

/// Where a blob comes from. Bytes may be asked for twice, unless the session is empty: then in
/// their order, each once.
class BlobSource {
 public:
  virtual ~BlobSource() = default;
  /// All of [at, at + bytes) or an error.
  virtual Status read(uint64_t at, void* out, uint64_t bytes) = 0;
  /// Where all of it lies, in memory that stays as it is during the call; null = it does not.
  virtual const std::byte* memory() const { return nullptr; }
};

class MemorySink final : public BlobSink {
 public:
  /// Pre: `out` has room for all that will be written.
  explicit MemorySink(void* out) : out_(static_cast<std::byte*>(out)) {}
  Status write(const void* data, uint64_t bytes) override {
    std::memcpy(room(bytes), data, bytes);
    return Status::ok();
  }
  std::byte* room(uint64_t bytes) override { return std::exchange(out_, out_ + bytes); }

 private:
  std::byte* out_;
};

class MemorySource final : public BlobSource {
 public:
  MemorySource(const void* data, uint64_t bytes)
      : data_(static_cast<const std::byte*>(data)), bytes_(bytes) {}
  Status read(uint64_t at, void* out, uint64_t bytes) override {
    if (at > bytes_ || bytes > bytes_ - at) {
      return Status::error(Code::kFormat, "the saved session is damaged: it is too short");
    }
    if (bytes != 0) std::memcpy(out, data_ + at, bytes);
    return Status::ok();
  }
  const std::byte* memory() const override { return data_; }

 private:
  const std::byte* data_;
  uint64_t bytes_;
};

/// Reads bytes [at, end) of a source, one after the other.
class BlobCursor {
 public:
  /// What it reads is added to `sum`, if there is one.
  BlobCursor(BlobSource* source, uint64_t at, uint64_t end, BlobSum* sum)
      : source_(source), at_(at), end_(end), sum_(sum) {}
  Status read(void* out, uint64_t bytes) {
    SHARPI_TRY(read_ahead(out, bytes));
    if (sum_ != nullptr) sum_->wait();
    return Status::ok();
  }
  /// The same, but the sum may be on its way: `out` stays as it is until the next read, or until
  /// the sum has waited.
  Status read_ahead(void* out, uint64_t bytes) {
    SHARPI_TRY(check(bytes));
    if (bytes == 0) return Status::ok();
    SHARPI_TRY(source_->read(at_, out, bytes));
    if (sum_ != nullptr) sum_->start(out, bytes);
    at_ += bytes;
    return Status::ok();
  }
  /// Of a source in memory: where the next bytes are, which count as read. No sum has them.
  Result<const std::byte*> pass(uint64_t bytes) {
    SHARPI_TRY(check(bytes));
    at_ += bytes;
    return source_->memory() + (at_ - bytes);
  }
  uint64_t left() const { return end_ - at_; }

 private:
  Status check(uint64_t bytes) const {
    if (bytes <= end_ - at_) return Status::ok();
    return Status::error(Code::kFormat,
                         "the saved session is damaged: it announces more than it holds");
  }
  BlobSource* source_;
  uint64_t at_, end_;
  BlobSum* sum_;
};

}  // namespace sharpi
