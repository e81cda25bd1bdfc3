// SPDX-License-Identifier: MIT
// The head of a saved session, read and checked: every field against every other, against the
// model, and against the session that it is for. Nothing of the session changes. Thread rule: one
// call's.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/sampler.h"
#include "engine/session_blob.h"
#include "kv/kv_store.h"
#include "model/model_spec.h"

namespace sharpi {

struct SessionState;

class BlobHead {
 public:
  static Status damaged(const char* what);

 protected:
  explicit BlobHead(const SessionState& session);
  /// Whether a blob can be one of this library's at all.
  static Status check_fixed(const BlobHeader& h);
  /// What follows h_ of the head, and checks all of it. May throw std::bad_alloc.
  Status read_head(BlobCursor* in);
  /// What follows it. Every number in it is bounded by now.
  uint64_t body_bytes() const;
  uint64_t n_replay_scores(uint32_t l) const;
  /// Rows are in blocks of one head: how many rows a head has less than its layer's fullest.
  bool by_head() const { return (h_.flags & kBlobByHead) != 0; }
  uint32_t lag(uint32_t l, uint32_t head) const { return lags_[l].empty() ? 0 : lags_[l][head]; }
  uint32_t n_kv_heads(uint32_t l) const { return spec_.layers[l].attention.n_kv_heads; }

  const ModelSpec& spec_;
  BlobHeader h_;
  BlobAdapters adapters_;
  std::vector<int32_t> tokens_;
  sharpi_sampler_params sampler_{};
  std::vector<int32_t> bias_tokens_;
  std::vector<float> bias_values_;
  SamplerMark random_;
  std::vector<BlobLayerHeader> layers_;
  std::vector<std::vector<uint32_t>> positions_;  // per layer, list after list
  std::vector<std::vector<uint32_t>> lags_;       // per layer, of each head; empty = none lags
  /// By how much every head of a group has fewer rows than its fullest.
  struct GroupLags {
    KvStore* store;
    uint32_t group;
    std::vector<uint32_t> lags;
  };
  std::vector<GroupLags> group_lags_;  // with rows by head
  std::vector<BlobCheckpointHeader> checkpoints_;

 private:
  Status check_header() const;
  Status read_adapters(BlobCursor* in);
  Status check_replay() const;
  Status read_sampler(BlobCursor* in);
  static Status check_dtype(uint32_t saved, KvDtype here, uint32_t l);
  Status check_layer(uint32_t l) const;
  Status check_ring(const BlobLayerHeader& h, uint32_t l, const KvGroup& g) const;
  Status check_rows(const BlobLayerHeader& h, const KvLayerLayout& one, uint32_t committed) const;
  Status read_lags(BlobCursor* in, uint32_t l);
  Status lay_out_heads();
  Status read_positions(BlobCursor* in, uint32_t l);
  Status check_evicted() const;
  Status read_checkpoints(BlobCursor* in);
  uint64_t rows_of_heads(uint32_t l) const;

  const SessionState& session_;
};

}  // namespace sharpi
