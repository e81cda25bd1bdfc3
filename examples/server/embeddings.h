// SPDX-License-Identifier: MIT
// /v1/embeddings and /v1/rerank: vectors of texts, and documents in the order in which they answer
// a query. The model has one embedder for all requests, which the first of them makes; of an
// encoder the server does so when it starts. Thread rule: any thread; requests take turns.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "engine.h"
#include "exchange.h"
#include "fields.h"
#include "handles.h"

namespace server {

class Embeddings {
 public:
  explicit Embeddings(const Engine& engine);
  /// Answers, or throws RequestError or LibraryError.
  void embed(Exchange& exchange, const json& body);
  void rerank(Exchange& exchange, const json& body);

 private:
  using EmbedderHandle = std::unique_ptr<sharpi_embedder, Destroy<sharpi_embedder_destroy>>;
  /// Pre: mutex_ is held.
  sharpi_embedder* embedder();

  const Engine& engine_;
  std::mutex mutex_;
  EmbedderHandle embedder_;
};

}  // namespace server
