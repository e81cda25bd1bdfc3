// SPDX-License-Identifier: MIT
// Builds a vocabulary out of arbitrary bytes, makes a tokenizer of it and lets it encode the rest
// of the input. Whatever loads must give back every byte of text that nothing normalises.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "support/gguf_writer.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace sharpi {
namespace {

/// Cuts the input into fields at zero bytes.
struct Fields {
  std::string_view rest;
  std::string next() {
    const size_t end = std::min(rest.find('\0'), rest.size());
    std::string field(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return field;
  }
};

struct Input {
  bool byte_level = true;
  uint8_t flags = 0;
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  std::string_view text;
};

Input read_input(std::string_view bytes) {
  Input in;
  in.flags = bytes.empty() ? uint8_t{0} : static_cast<uint8_t>(bytes[0]);
  in.byte_level = (in.flags & 1) == 0;
  for (uint32_t b = 0; b < 256; ++b) {
    std::string token;
    const char* hex = "0123456789ABCDEF";
    if (in.byte_level)
      utf8_append(kByteAlphabet[b], &token);
    else
      token = std::string("<0x") + hex[b / 16] + hex[b % 16] + ">";
    in.tokens.push_back(std::move(token));
    in.types.push_back(in.byte_level ? 1 : 6);
  }
  const auto add = [&](std::string token, int32_t type) {
    in.tokens.push_back(std::move(token));
    in.types.push_back(type);
  };
  add("\xE2\x96\x81", 1);
  Fields fields{bytes.substr(bytes.empty() ? 0 : 1)};
  for (uint32_t n = in.flags >> 5; n > 0; --n) {
    const std::string left = fields.next(), right = fields.next();
    in.merges.push_back(left + " " + right);
    add(left + right, 1);
    add(left, 1);
  }
  for (uint32_t n = in.flags >> 3 & 3; n > 0; --n) add(fields.next(), 2 + static_cast<int32_t>(n));
  in.text = fields.rest;
  return in;
}

void require(bool condition) {
  if (!condition) __builtin_trap();
}

void use(const Tokenizer& tokenizer, const Input& in) {
  for (const bool parse_special : {false, true}) {
    std::vector<int32_t> ids;
    require(tokenizer.encode(in.text, false, parse_special, &ids).is_ok());
    std::string back, streamed;
    Utf8Stream stream;
    for (const int32_t id : ids) {
      std::string piece;
      require(tokenizer.decode(id, true, &piece).is_ok());
      back += piece;
      stream.push(piece, &streamed);
    }
    stream.flush(&streamed);
    require(utf8_valid_prefix(streamed) == streamed.size());
    if (utf8_valid_prefix(back) == back.size()) require(streamed == back);
    const bool ascii = std::all_of(in.text.begin(), in.text.end(),
                                   [](char c) { return static_cast<unsigned char>(c) < 0x80; });
    if (ascii) require(back == in.text);
  }
}

}  // namespace
}  // namespace sharpi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sharpi;
  const Input in = read_input({reinterpret_cast<const char*>(data), size});
  const char* pre[] = {"qwen2", "qwen35", "olmo", "qwen2"};
  test::GgufWriter writer;
  writer.value("tokenizer.ggml.model", in.byte_level ? "gpt2" : "gemma4");
  writer.value("tokenizer.ggml.pre", pre[in.flags >> 1 & 3]);
  writer.value("tokenizer.ggml.bos_token_id", 0u).array("tokenizer.ggml.tokens", in.tokens);
  writer.array("tokenizer.ggml.token_type", in.types).array("tokenizer.ggml.merges", in.merges);
  const test::Bytes bytes = writer.bytes();
  auto file = GgufFile::open_memory(bytes.data(), bytes.size(), "input");
  require(file.is_ok());
  const auto tokenizer = Tokenizer::create(file.take());
  if (tokenizer.is_ok()) {
    use(*tokenizer.value(), in);
  } else {
    require(!tokenizer.status().text().empty());
  }
  return 0;
}
