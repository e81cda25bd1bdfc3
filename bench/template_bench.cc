// SPDX-License-Identifier: MIT
// How long a conversation takes to become text, and tokens, by a file's own chat template:
//   template_bench MODEL.gguf [MESSAGES]
// Messages are of 200 characters, users' and the assistant's in turn, 99 of them unless another
// number is given. Prints the median and the worst of 200 renderings in milliseconds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "handles.h"

namespace {

using Clock = std::chrono::steady_clock;

void print(const char* what, std::vector<double>* ms) {
  std::sort(ms->begin(), ms->end());
  std::printf("%s: median %.3f ms, worst %.3f ms\n", what, (*ms)[ms->size() / 2], ms->back());
}

int fail(const sharpi_error& e) {
  std::fprintf(stderr, "%s\n", e.text);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: template_bench MODEL.gguf [MESSAGES]\n"), 2;
  sharpi_error e = SHARPI_ERROR_INIT;
  sharpi_model* raw = nullptr;
  if (sharpi_model_open_text(argv[1], &raw, &e) != SHARPI_OK) return fail(e);
  const sharpi::bench::ModelPtr model(raw);
  const std::string words(200, 'a');
  std::vector<sharpi_message> messages(argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 99);
  for (size_t i = 0; i < messages.size(); ++i) {
    messages[i].role = i % 2 == 0 ? "user" : "assistant";
    messages[i].content = words.data();
    messages[i].content_len = words.size();
  }
  sharpi_chat_params p;
  sharpi_chat_params_init(&p, sizeof p);
  p.messages = messages.data();
  p.n_messages = static_cast<uint32_t>(messages.size());
  std::vector<char> text(1 << 20);
  std::vector<int32_t> tokens(1 << 20);
  std::vector<double> format, tokenize;
  size_t length = 0;
  uint32_t n = 0;
  const auto ms_since = [](Clock::time_point t) {
    return std::chrono::duration<double, std::milli>(Clock::now() - t).count();
  };
  for (int i = 0; i < 200; ++i) {
    auto start = Clock::now();
    if (sharpi_chat_format(raw, &p, text.data(), text.size(), &length, &e) != SHARPI_OK)
      return fail(e);
    format.push_back(ms_since(start));
    start = Clock::now();
    if (sharpi_chat_tokenize(raw, &p, tokens.data(), static_cast<uint32_t>(tokens.size()), &n,
                             &e) != SHARPI_OK)
      return fail(e);
    tokenize.push_back(ms_since(start));
  }
  std::printf("%zu messages, %zu bytes, %u tokens\n", messages.size(), length, n);
  print("text", &format);
  print("tokens", &tokenize);
  return 0;
}
