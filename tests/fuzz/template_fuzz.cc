// SPDX-License-Identifier: MIT
// Parses and renders arbitrary templates over a conversation, with small limits. Whatever happens
// ends as text or as a Status with a place; spans of foreign text lie inside the text.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/jinja/json.h"
#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr std::string_view kVariables =
    R"({"messages": [{"role": "system", "content": " s\n"}, {"role": "user", "content": "u<|x|>é"},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f",
         "arguments": {"a": [1, 2.5, true, null]}}}]}], "tools": [{"type": "function"}],
        "add_generation_prompt": true, "n": 3, "f": 0.1, "d": {"k": "v", "items": 1}})";

void require(bool condition) {
  if (!condition) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sharpi;
  const auto parsed = jinja::Template::parse({reinterpret_cast<const char*>(data), size});
  if (!parsed.is_ok()) {
    require(!parsed.status().text().empty());
    return 0;
  }
  jinja::Limits limits;
  limits.max_steps = 20000;
  limits.max_bytes = uint64_t{4} << 20;
  jinja::Heap heap(limits.max_bytes);
  jinja::Value values;
  require(parse_json(kVariables, "variables", &heap, &values).is_ok());
  std::vector<jinja::Variable> variables;
  for (const auto& [key, value] : values.dict->items) variables.emplace_back(key.bytes(), value);
  jinja::MarkedText text;
  const Status status = parsed.value()->render(variables, 1753800000, limits, &heap, &text);
  require(status.is_ok() || !status.text().empty());
  size_t end = 0;
  for (const jinja::ForeignSpan& span : text.foreign_spans()) {
    require(span.begin < span.end && span.end <= text.size() && (end == 0 || span.begin > end));
    end = span.end;
  }
  return 0;
}
