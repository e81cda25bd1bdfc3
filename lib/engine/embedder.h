// SPDX-License-Identifier: MIT
// Embedder: reads texts and gives their vectors or scores. Owns the memory that takes, sessions
// included where the model reads with such.
// Thread rule: one call at a time (the boundary sees to it); cancel() and resume() from anywhere.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/allowance.h"
#include "engine/model.h"
#include "engine/pooler.h"
#include "engine/text_reader.h"
#include "sharpi.h"

namespace sharpi {

class Embedder {
 public:
  /// `params` is complete. Fails as sharpi_embedder_create() documents.
  static Result<std::unique_ptr<Embedder>> create(std::shared_ptr<const Model> model,
                                                  const sharpi_embedder_params& params);
  /// What such an embedder would hold.
  static Result<std::vector<MemoryRow>> price(const Model& model,
                                              const sharpi_embedder_params& params);

  /// Floats that embed() writes. Fails as embed() does, before anything is computed.
  Result<uint64_t> output_floats(std::span<const Text> texts,
                                 const sharpi_embed_params& params) const;
  Status embed(std::span<const Text> texts, const sharpi_embed_params& params, float* out);
  Status rerank(std::span<const Text> texts, const sharpi_rerank_params& params, float* out);
  void info(sharpi_embedder_summary* out) const;

  void cancel() noexcept { cancelled_.store(true); }
  void resume() noexcept { cancelled_.store(false); }

 private:
  Embedder(std::shared_ptr<const Model> model, uint32_t n_ctx, uint32_t n_parallel);
  Status find_labels();
  Status check_texts(std::span<const Text> texts) const;
  Result<PoolRequest> resolve(const sharpi_embed_params& params) const;
  Status run(std::span<const Text> texts, const PoolRequest& request, sharpi_progress_fn progress,
             void* user_data, float* out);

  const std::shared_ptr<const Model> model_;
  const uint32_t n_ctx_, n_parallel_;
  Share share_;  // outlives what it counts
  std::vector<float> hidden_, vectors_;
  LabelRows labels_;
  std::unique_ptr<TextReader> reader_;
  std::atomic<bool> cancelled_{false};
  uint64_t held_bytes_ = 0, n_tokens_ = 0;
  double seconds_ = 0;
};

}  // namespace sharpi
