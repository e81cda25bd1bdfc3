// SPDX-License-Identifier: MIT
// JSON that clients send, as a tree that takes a bounded multiple of its text: what it will take is
// known, and refused, before it is made.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fields.h"
#include "memory_budget.h"

namespace server {

/// What a JSON text would be as a tree, by its punctuation. What walks a tree goes down by calls,
/// and compares names with each other, so both are bounded.
struct JsonShape {
  std::string fault;            // why it is refused, behind "the body "; empty: it is not
  std::vector<uint32_t> sizes;  // members or elements, of each object and list as they open
  uint64_t bytes = 0;           // of the tree, at most
};
/// @param most bytes of the tree; what takes more has a fault. JSON in the text of a call's
/// arguments, which is parsed in its turn, is counted in.
JsonShape shape_of(const std::string& text, uint64_t most);
/// The bytes that a tree of so much text may take, and what a request takes in all beside it: texts
/// that were made of parts of it, and tokens.
uint64_t most_tree_bytes(uint64_t text_bytes);
uint64_t working_bytes(uint64_t text_bytes);
/// All of that together, with the body.
uint64_t most_request_bytes(uint64_t body_bytes);

/// A tree. Unlike that of the JSON library it needs no memory to be given back.
class JsonDocument {
 public:
  JsonDocument() = default;
  ~JsonDocument() { clear(); }
  JsonDocument(JsonDocument&& other) noexcept : root_(std::move(other.root_)) {}
  JsonDocument& operator=(JsonDocument&& other) noexcept {
    clear();
    root_ = std::move(other.root_);
    return *this;
  }
  const json& root() const { return root_; }
  json take() { return std::move(root_); }
  void clear();
  /// Parses a text of that shape. @return 0, or the byte at which it is no JSON, from 1.
  size_t parse(const std::string& text, const JsonShape& shape);

 private:
  json root_;
};

/// Parses JSON that stands in a text of a body; the body's shape has counted it in, where the text
/// is a call's arguments. Null where it is no JSON, or has a fault.
json parse_nested(const std::string& text, std::string* fault);
/// Parses a request's body, once `share` has what that takes; errors say where. Throws
/// RequestError.
JsonDocument parse_body(const std::string& body, MemoryBudget::Share& share);

}  // namespace server
