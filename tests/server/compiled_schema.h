// SPDX-License-Identifier: MIT
// A schema with the matcher of its texts, and schemas that are hard to compile.
// Thread rule: one thread an object.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <memory>
#include <string>

#include "json_schema.h"
#include "matcher.h"

namespace server {

struct Compiled {
  explicit Compiled(const std::string& schema) : parts(grammar) {
    const json parsed = json::parse(schema);
    root = schema_grammar(grammar, parts, parsed, "schema");
    matcher = std::make_unique<Matcher>(grammar, root);
  }
  bool allows(const std::string& text) {
    const Matcher::State state = matcher->walk(matcher->start(), text);
    return state != Matcher::kDead && matcher->accepts(state);
  }
  Grammar grammar;
  JsonGrammar parts;
  Expr root = 0;
  std::unique_ptr<Matcher> matcher;
};

// Runs a function on a thread with a stack so small that calls within calls would overflow it.
template <typename Work>
void on_a_small_stack(Work work) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 256 << 10), 0);
  pthread_t thread;
  const auto run = [](void* given) -> void* {
    (*static_cast<Work*>(given))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &work), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

// `n` definitions, each of which ends in a reference to the next; the last one is `last`.
inline json chain(const std::string& folder, const std::string& name, int n, const json& last,
                  json (*wrapped)(json inner)) {
  json out = json::object();
  for (int i = 0; i < n; ++i) {
    json inner = {{"$ref", "#/" + folder + "/" + name + std::to_string(i + 1)}};
    out[name + std::to_string(i)] = wrapped(std::move(inner));
  }
  out[name + std::to_string(n)] = last;
  return out;
}

}  // namespace server
