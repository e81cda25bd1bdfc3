// SPDX-License-Identifier: MIT
// How the answers of a request are written for one route: piece by piece as events, and whole.
// Thread rule: one thread an object.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fields.h"
#include "generation.h"

namespace server {

/// A request asks for one answer or for several, its choices, which are told apart by their places.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  /// Events before the first piece of all.
  virtual std::string begin(const Outcome& outcome) = 0;
  /// What is said while a prompt is read and nothing else comes.
  virtual std::string waiting(const Progress& progress);
  /// Takes pieces in, and says them as events. Called for answers that are not streamed, too.
  virtual std::string pieces(size_t choice, const std::vector<Piece>& pieces) = 0;
  /// The last events of a choice that came to its end.
  virtual std::string end(size_t choice, const Outcome& outcome) = 0;
  /// Events behind all choices. @param usage of all of them.
  virtual std::string finish(const Usage& usage) = 0;
  /// Instead of all that would follow: the request has failed.
  virtual std::string failed(int http_status, const std::string& sentence);
  /// The whole answer, after end() of all.
  virtual json whole(const Usage& usage) = 0;
};

/// What a route made of a request's body.
struct Asked {
  std::vector<Generation> generations;  // one a choice
  size_t per_prompt = 1;                // so many of them that follow each other have one prompt
  std::unique_ptr<AnswerFormat> format;
  bool stream = false;
  std::vector<std::string> left_out;  // fields that were taken and change nothing
};

/// The routes' bodies. Each throws RequestError.
Asked read_chat(const json& body, const Engine& engine, const Settings& settings);
Asked read_completion(const json& body, const Engine& engine, const Settings& settings);
Asked read_response(const json& body, const Engine& engine, const Settings& settings);
Asked read_anthropic(const json& body, const Engine& engine, const Settings& settings);
/// `stream_options`: whether the usage is wanted.
bool read_stream_options(Fields& fields, bool stream);

}  // namespace server
