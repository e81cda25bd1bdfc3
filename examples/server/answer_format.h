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

Asked read_chat(const json& body, const Engine& engine, const Settings& settings);

}  // namespace server
