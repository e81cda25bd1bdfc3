// SPDX-License-Identifier: MIT
#include <span>
#include <string>
#include <vector>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_out.h"
#include "text/utf8_stream.h"

namespace api = sharpi::api;
using sharpi::Code;
using sharpi::Status;

namespace {

constexpr uint32_t kTokenizeFlags = SHARPI_TOKENIZE_ADD_SPECIAL | SHARPI_TOKENIZE_PARSE_SPECIAL;
Status decode_all(const sharpi::Tokenizer& tokenizer, std::span<const int32_t> tokens,
                  uint32_t flags, std::string* bytes) {
  for (const int32_t token : tokens) {
    SHARPI_TRY(tokenizer.decode(token, (flags & SHARPI_DETOKENIZE_SPECIAL) != 0, bytes));
  }
  return Status::ok();
}

Status check_stream(const sharpi_text_stream* stream) {
  SHARPI_TRY(api::require(stream, "stream"));
  if (stream->n_held < sizeof stream->held) return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "the stream says that it holds %u bytes, but at most 3 are possible (was it "
                       "not zero-initialised?)",
                       stream->n_held);
}

}  // namespace

sharpi_status sharpi_tokenize(const sharpi_model* model, const char* utf8, size_t len,
                              uint32_t flags, int32_t* out, uint32_t cap, uint32_t* out_n,
                              sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    const sharpi::Tokenizer* tokenizer = nullptr;
    SHARPI_TRY(api::find_tokenizer(model, &tokenizer));
    SHARPI_TRY(api::require_array(utf8, len, "utf8"));
    SHARPI_TRY(api::require_flags(flags, kTokenizeFlags, "flags"));
    SHARPI_TRY(api::check_out(out, cap, out_n));
    // A token can stand for a single byte, and counts are 32-bit.
    if (len > UINT32_MAX / 2) {
      return Status::error(Code::kInvalidArgument, "len %zu is over the limit of %u bytes", len,
                           UINT32_MAX / 2);
    }
    std::vector<int32_t> tokens;
    SHARPI_TRY(tokenizer->encode(std::string_view(utf8, len),
                                 (flags & SHARPI_TOKENIZE_ADD_SPECIAL) != 0,
                                 (flags & SHARPI_TOKENIZE_PARSE_SPECIAL) != 0, &tokens));
    return api::copy_array(std::span<const int32_t>(tokens), out, cap, out_n);
  });
}

sharpi_status sharpi_detokenize(const sharpi_model* model, const int32_t* tokens, uint32_t n,
                                uint32_t flags, char* out, size_t cap, size_t* out_len,
                                sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    const sharpi::Tokenizer* tokenizer = nullptr;
    SHARPI_TRY(api::find_tokenizer(model, &tokenizer));
    SHARPI_TRY(api::require_array(tokens, n, "tokens"));
    SHARPI_TRY(api::require_flags(flags, SHARPI_DETOKENIZE_SPECIAL, "flags"));
    SHARPI_TRY(api::check_out(out, cap, out_len));
    std::string bytes;
    SHARPI_TRY(decode_all(*tokenizer, {tokens, n}, flags, &bytes));
    return api::copy_text(bytes, out, cap, out_len);
  });
}

sharpi_status sharpi_detokenize_stream(const sharpi_model* model, sharpi_text_stream* stream,
                                       const int32_t* tokens, uint32_t n, uint32_t flags, char* out,
                                       size_t cap, size_t* out_len,
                                       sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    const sharpi::Tokenizer* tokenizer = nullptr;
    SHARPI_TRY(api::find_tokenizer(model, &tokenizer));
    SHARPI_TRY(check_stream(stream));
    SHARPI_TRY(api::require_array(tokens, n, "tokens"));
    SHARPI_TRY(api::require_flags(flags, SHARPI_DETOKENIZE_SPECIAL, "flags"));
    SHARPI_TRY(api::check_out(out, cap, out_len));
    std::string bytes(stream->held, stream->n_held);
    SHARPI_TRY(decode_all(*tokenizer, {tokens, n}, flags, &bytes));
    std::string text;
    sharpi::Utf8Stream splitter;
    splitter.push(bytes, &text);
    const std::string held(splitter.held());
    SHARPI_TRY(api::copy_text(text, out, cap, out_len));
    *stream = {};
    stream->n_held = static_cast<uint32_t>(held.size());
    std::memcpy(stream->held, held.data(), held.size());
    return Status::ok();
  });
}

sharpi_status sharpi_text_stream_finish(sharpi_text_stream* stream, char* out, size_t cap,
                                        size_t* out_len, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(check_stream(stream));
    SHARPI_TRY(api::check_out(out, cap, out_len));
    std::string text;
    sharpi::Utf8Stream splitter;
    splitter.push({stream->held, stream->n_held}, &text);
    splitter.flush(&text);
    SHARPI_TRY(api::copy_text(text, out, cap, out_len));
    *stream = {};
    return Status::ok();
  });
}

int32_t sharpi_token_is_end(const sharpi_model* model, int32_t token) SHARPI_NOEXCEPT {
  if (model == nullptr) return 0;
  const sharpi::Tokenizer* tokenizer = model->text->tokenizer();
  if (tokenizer == nullptr || token < 0) return 0;
  if (static_cast<uint32_t>(token) >= tokenizer->n_vocab()) return 0;
  return tokenizer->is_end_of_generation(token) ? 1 : 0;
}
