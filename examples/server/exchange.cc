// SPDX-License-Identifier: MIT
#include "exchange.h"

#include <array>
#include <cstdio>

namespace server {
namespace {

// A client that takes nothing of a stream for so long has left it.
constexpr int kPatience = 10000;  // ms

}  // namespace

bool Exchange::send_all(std::string_view text) {
  const Socket socket = connection_.socket();
  while (!text.empty()) {
    if (is_gone(socket)) return false;
    const Moved sent = send_some(socket, text);
    if (sent.why == Moved::Why::kLost) return false;
    text.remove_prefix(sent.bytes);
    if (sent.why == Moved::Why::kNothingNow && !await_room(socket, kPatience)) return false;
  }
  return true;
}

bool Exchange::begin_stream() {
  is_stream_ = true;
  if (request.is_http_1_0) connection_.closes = true;  // it knows no chunks
  std::string framing;
  if (!request.is_http_1_0) framing = "Transfer-Encoding: chunked\r\n";
  if (connection_.closes) framing += "Connection: close\r\n";
  return send_all(head_text(response, framing));
}

bool Exchange::write(std::string_view text) {
  if (text.empty()) return true;
  if (request.is_http_1_0) return send_all(text);
  std::array<char, 24> size;
  const int n = std::snprintf(size.data(), size.size(), "%zx\r\n", text.size());
  std::string chunk(size.data(), static_cast<size_t>(n));
  chunk.append(text).append("\r\n");
  return send_all(chunk);
}

bool Exchange::end_stream() {
  is_ended_ = request.is_http_1_0 || send_all("0\r\n\r\n");
  return is_ended_;
}

}  // namespace server
