// SPDX-License-Identifier: MIT
// Single tokens, and the text helpers around generating them.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_out.h"
#include "text/stop_strings.h"

namespace api = sharpi::api;
using sharpi::Code;
using sharpi::Status;
using sharpi::Tokenizer;
using sharpi::TokenKind;

namespace {

uint32_t attribute_of(TokenKind kind) {
  switch (kind) {
    case TokenKind::kNormal:
      return 0;
    case TokenKind::kUnknown:
      return SHARPI_TOKEN_UNKNOWN;
    case TokenKind::kControl:
      return SHARPI_TOKEN_CONTROL;
    case TokenKind::kUserDefined:
      return SHARPI_TOKEN_USER_DEFINED;
    case TokenKind::kUnused:
      return SHARPI_TOKEN_NEVER;
    case TokenKind::kByte:
      return SHARPI_TOKEN_BYTE;
  }
  return 0;
}

Status read_stops(const char* const* stops, uint32_t n, std::vector<std::string_view>* out) {
  SHARPI_TRY(api::require_array(stops, n, "stops"));
  for (uint32_t i = 0; i < n; ++i) {
    if (stops[i] == nullptr) {
      return Status::error(Code::kInvalidArgument, "stops[%u] is null", i);
    }
    const size_t length = strnlen(stops[i], SHARPI_STOP_BYTES + 1);
    if (length == 0 || length > SHARPI_STOP_BYTES) {
      return Status::error(Code::kInvalidArgument, "stops[%u] has %s; 1 to %u are allowed", i,
                           length == 0 ? "no bytes" : "too many bytes", SHARPI_STOP_BYTES);
    }
    out->push_back({stops[i], length});
  }
  return Status::ok();
}

Status check_stop_stream(const sharpi_stop_stream* stream) {
  SHARPI_TRY(api::require(stream, "stream"));
  if (stream->n_held < sizeof stream->held && stream->stopped <= 1) return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "the stream says that it holds %u bytes, but fewer than %u are possible "
                       "(was it not zero-initialised?)",
                       stream->n_held, SHARPI_STOP_BYTES);
}

}  // namespace

uint32_t sharpi_token_attributes(const sharpi_model* model, int32_t token) SHARPI_NOEXCEPT {
  if (model == nullptr) return 0;
  const Tokenizer* tokenizer = model->text->tokenizer();
  if (tokenizer == nullptr || token < 0) return 0;
  if (static_cast<uint32_t>(token) >= tokenizer->n_vocab()) return 0;
  uint32_t attributes = attribute_of(tokenizer->kind(token));
  if (tokenizer->is_end_of_generation(token)) attributes |= SHARPI_TOKEN_END;
  const std::vector<int32_t>& never = tokenizer->never_sample();
  if (std::binary_search(never.begin(), never.end(), token)) {
    attributes |= SHARPI_TOKEN_NEVER;
  }
  return attributes;
}

sharpi_status sharpi_token_id(const sharpi_model* model, const char* utf8, size_t len,
                              int32_t* out_token, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require_array(utf8, len, "utf8"));
    SHARPI_TRY(api::require(out_token, "out_token"));
    const sharpi::Tokenizer* tokenizer = nullptr;
    SHARPI_TRY(api::find_tokenizer(model, &tokenizer));
    *out_token = tokenizer->find_decoded({utf8, len});
    if (*out_token >= 0) return Status::ok();
    return Status::error(Code::kNotFound, "no token stands for \"%.*s\"",
                         static_cast<int>(std::min<size_t>(len, 100)), utf8);
  });
}

sharpi_status sharpi_token_bytes(const sharpi_model* model, int32_t token, char* out, size_t cap,
                                 size_t* out_len, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    const Tokenizer* tokenizer = nullptr;
    SHARPI_TRY(api::find_tokenizer(model, &tokenizer));
    SHARPI_TRY(api::check_out(out, cap, out_len));
    std::string bytes;
    SHARPI_TRY(tokenizer->decode(token, true, &bytes));
    return api::copy_text(bytes, out, cap, out_len);
  });
}

sharpi_status sharpi_stop_stream_push(sharpi_stop_stream* stream, const char* const* stops,
                                      uint32_t n_stops, const char* text, size_t len, char* out,
                                      size_t cap, size_t* out_len,
                                      sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(check_stop_stream(stream));
    std::vector<std::string_view> list;
    SHARPI_TRY(read_stops(stops, n_stops, &list));
    SHARPI_TRY(api::require_array(text, len, "text"));
    SHARPI_TRY(api::check_out(out, cap, out_len));
    if (stream->stopped != 0) return api::copy_text({}, out, cap, out_len);
    std::string all(stream->held, stream->n_held);
    if (len != 0) all.append(text, len);
    const sharpi::StopCut cut = sharpi::find_stop(all, list);
    SHARPI_TRY(api::copy_text({all.data(), cut.n_safe}, out, cap, out_len));
    stream->stopped = cut.stopped ? 1 : 0;
    stream->which = cut.which;
    stream->n_held = cut.stopped ? 0 : static_cast<uint32_t>(all.size() - cut.n_safe);
    std::memcpy(stream->held, all.data() + cut.n_safe, stream->n_held);
    return Status::ok();
  });
}

sharpi_status sharpi_stop_stream_finish(sharpi_stop_stream* stream, char* out, size_t cap,
                                        size_t* out_len, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(check_stop_stream(stream));
    SHARPI_TRY(api::check_out(out, cap, out_len));
    SHARPI_TRY(api::copy_text({stream->held, stream->n_held}, out, cap, out_len));
    stream->n_held = 0;
    return Status::ok();
  });
}
