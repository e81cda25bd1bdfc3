// SPDX-License-Identifier: MIT
// The body of a request as it arrives: plain, or packed by gzip or deflate.
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "memory_budget.h"

namespace server {

class BodyDecoder {
 public:
  enum class Taken { kWell, kTooLong, kTooMuch, kBroken };

  /// @param most bytes of the unpacked body. @param budget of all bodies.
  BodyDecoder(uint64_t most, MemoryBudget& budget);
  ~BodyDecoder();
  BodyDecoder(const BodyDecoder&) = delete;
  BodyDecoder& operator=(const BodyDecoder&) = delete;

  /// False: a Content-Encoding that is not read here.
  bool set_encoding(std::string_view name);
  /// kTooMuch: all bodies together have no room for it.
  Taken take(std::string_view part, std::string* body);
  /// Whether what was packed has its end.
  bool is_whole() const;
  MemoryBudget::Share& share() { return share_; }

 private:
  struct Inflate;
  Taken append(std::string_view part, std::string* body);

  const uint64_t most_;
  MemoryBudget::Share share_;
  std::unique_ptr<Inflate> inflate_;
};

}  // namespace server
