// SPDX-License-Identifier: MIT
// Renders chat templates for tools/compare_templates.py: every line of stdin is a JSON object with
// "template", "variables" and "now"; every line of stdout one with "text" or "error" and "code".
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace {

using namespace sharpi;

std::string answer(const Status& status, const std::string& text) {
  std::string out;
  JsonObject json(&out);
  if (status.is_ok()) {
    jinja::Heap heap(uint64_t{1} << 30);
    jinja::MarkedText quoted;
    jinja::JsonLayout layout;
    layout.ensure_ascii = true;
    if (!write_json(heap.text(text, false), layout, &heap, &quoted).is_ok()) return "{}";
    json.raw("text", quoted.bytes());
  } else {
    json.text("error", status.text());
    json.raw("code", std::to_string(static_cast<int>(status.code())));
  }
  json.close();
  return out;
}

Status render(const std::string& line, std::string* out) {
  jinja::Heap inputs(uint64_t{1} << 30), heap(uint64_t{256} << 20);
  jinja::Value request;
  SHARPI_TRY(parse_json(line, "request", &inputs, &request));
  const jinja::Value* source = request.dict->find("template");
  const jinja::Value* variables = request.dict->find("variables");
  const jinja::Value* now = request.dict->find("now");
  SHARPI_TRY_ASSIGN(const auto parsed, jinja::Template::parse(source->bytes()));
  std::vector<jinja::Variable> list;
  for (const auto& [key, value] : variables->dict->items) list.emplace_back(key.bytes(), value);
  jinja::MarkedText text;
  SHARPI_TRY(parsed->render(list, now->integer, {}, &heap, &text));
  *out = text.take();
  return Status::ok();
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::string text;
    const Status status = render(line, &text);
    std::cout << answer(status, text) << "\n";
  }
  return 0;
}
