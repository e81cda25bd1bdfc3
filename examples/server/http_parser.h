// SPDX-License-Identifier: MIT
// One request, taken apart as its bytes arrive: by Boost.Beast's parser, and by rules that are
// stricter than it. Nothing waits, and nothing grows beyond its limits.
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "http_message.h"
#include "memory_budget.h"

namespace server {

class HttpParser {
 public:
  /// Of a head, and of a line between two parts of a body.
  static constexpr size_t kMostHead = 64 << 10;
  static constexpr size_t kMostHeaders = 100;

  /// @param most_body the longest body, unpacked. @param budget of all bodies.
  HttpParser(uint64_t most_body, MemoryBudget& budget);
  ~HttpParser();
  HttpParser(const HttpParser&) = delete;
  HttpParser& operator=(const HttpParser&) = delete;

  /// Takes what it can from the beginning; what is left has to come again, with more behind it. It
  /// stops behind the head until read_body(), and behind the request.
  /// @return how many bytes it took.
  size_t take(std::string_view data);
  /// The connection ended: whatever is not there does not come.
  void end();
  void read_body();

  /// Its first line is there.
  bool has_line() const;
  bool head_is_whole() const;
  bool is_whole() const;
  /// Something follows the head.
  bool has_body() const;
  bool is_chunked() const;
  bool wants_continue() const;
  /// What is wrong with it: the status of the answer, and its sentence. 0: nothing.
  int fault() const;
  const std::string& fault_sentence() const;
  HttpRequest& request();
  /// What its body has of the budget.
  MemoryBudget::Share& share();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace server
