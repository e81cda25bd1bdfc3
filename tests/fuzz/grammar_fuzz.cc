// SPDX-License-Identifier: MIT
// Compiles arbitrary schemas, expressions, rules and tools, and follows what they allow: a mask
// after each of a few bytes, chosen by the input. The first byte says what the rest is. Whatever
// happens ends as a grammar or as a Status, and a token that a mask allows is accepted.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "gguf/gguf_file.h"
#include "support/paths.h"
#include "text/grammar/grammar.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using namespace sharpi;

void require(bool condition) {
  if (!condition) __builtin_trap();
}

std::shared_ptr<const grammar::Vocabulary> vocabulary() {
  static const auto made = [] {
    auto file = GgufFile::open(test::source_path("tests/fixtures/tiny-qwen3-q8_0.gguf"));
    auto tokenizer = Tokenizer::create(file.take()).take();
    return std::make_shared<const grammar::Vocabulary>(*tokenizer);
  }();
  return made;
}

void follow(grammar::Matcher* matcher, uint32_t choice) {
  const uint32_t n_vocab = vocabulary()->tree->n_vocab();
  std::vector<uint32_t> mask(vocabulary()->tree->n_words());
  for (int step = 0; step < 12; ++step) {
    if (!matcher->mask(mask.data()).is_ok()) return;
    uint32_t token = n_vocab;
    for (uint32_t i = 0; i < n_vocab && token == n_vocab; ++i) {
      const uint32_t t = (choice + i) % n_vocab;
      if ((mask[t / 32] >> (t % 32) & 1) != 0) token = t;
    }
    if (token == n_vocab) return;
    const Status status = matcher->accept(static_cast<int32_t>(token));
    require(status.is_ok() || status.code() == Code::kDoesNotFit);
    if (!status.is_ok()) return;
    choice = choice * 1664525 + 1013904223;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  grammar::GrammarRequest request;
  request.kind = static_cast<grammar::GrammarKind>(data[0] % 4);
  request.lenient = (data[0] & 4) != 0;
  if (request.kind == grammar::GrammarKind::kAny) {
    request.tools = text;
    request.must_call = (data[0] & 8) != 0;
  } else {
    request.text = text;
  }
  const auto made = grammar::Grammar::compile(vocabulary(), request);
  if (!made.is_ok()) {
    require(!made.status().text().empty());
    return 0;
  }
  auto matcher = grammar::Matcher::create(made.value());
  if (matcher.is_ok()) follow(matcher.value().get(), data[0] * 2654435761u + data[1]);
  return 0;
}
