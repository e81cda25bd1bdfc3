// SPDX-License-Identifier: MIT
// How an answer is written for one route: piece by piece as events, and whole.
// Thread rule: one thread an object.
#pragma once

#include <string>
#include <vector>

#include "fields.h"
#include "generation.h"

namespace server {

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  /// Events before the first piece.
  virtual std::string begin(const Outcome& outcome) = 0;
  /// Takes pieces in, and says them as events. Called for answers that are not streamed, too.
  virtual std::string pieces(const std::vector<Piece>& pieces) = 0;
  /// The last events; of a failed answer its error.
  virtual std::string end(const Outcome& outcome) = 0;
  /// The whole answer, after end().
  virtual json whole(const Outcome& outcome) = 0;
};

/// What a route made of a request's body.
struct Asked {
  Generation generation;
  std::unique_ptr<AnswerFormat> format;
  bool stream = false;
};

/// The routes' bodies. Each throws RequestError.
Asked read_chat(const json& body, const Engine& engine, const Settings& settings);
Asked read_completion(const json& body, const Engine& engine, const Settings& settings);
Asked read_response(const json& body, const Engine& engine, const Settings& settings);
/// `stream_options`: whether the usage is wanted.
bool read_stream_options(Fields& fields, bool stream);

}  // namespace server
