// SPDX-License-Identifier: MIT
#include "http_message.h"

#include <algorithm>

namespace server {
namespace {

char small(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char s = small(c);
  return s >= 'a' && s <= 'f' ? s - 'a' + 10 : -1;
}

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

}  // namespace

const std::string_view kOutOfMemoryAnswer =
    "HTTP/1.1 503 Service Unavailable\r\n"
    "Content-Type: application/json\r\n"
    "Retry-After: 1\r\n"
    "Connection: close\r\n"
    "Content-Length: 88\r\n"
    "\r\n"
    "{\"error\":{\"message\":\"memory is short\",\"type\":\"server_error\","
    "\"param\":null,\"code\":null}}\r\n";

const std::string_view kOutOfMemoryEvent =
    "data: {\"error\":{\"message\":\"memory is short\",\"type\":\"server_error\","
    "\"param\":null,\"code\":null}}\n\n";

const std::string* HttpRequest::find(std::string_view name) const {
  for (const auto& [known, value] : headers) {
    if (known == name) return &value;
  }
  return nullptr;
}

std::string HttpRequest::header(std::string_view name) const {
  const std::string* found = find(name);
  return found == nullptr ? std::string() : *found;
}

std::string HttpRequest::parameter(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    std::string out;
    if (pair.substr(0, equals) == name && equals != std::string_view::npos &&
        decode_percent(pair.substr(equals + 1), &out)) {
      return out;
    }
  }
  return "";
}

std::string head_text(const HttpResponse& response, const std::string& framing) {
  std::string out =
      "HTTP/1.1 " + std::to_string(response.status) + " " + reason_of(response.status) + "\r\n";
  if (!response.type.empty()) out += "Content-Type: " + response.type + "\r\n";
  for (const auto& [name, value] : response.headers) out += name + ": " + value + "\r\n";
  return out + framing + "\r\n";
}

std::string head_of_whole(const HttpResponse& response, bool closes, bool is_http_1_0) {
  const size_t size = response.fixed.empty() ? response.body.size() : response.fixed.size();
  std::string framing;
  if (response.status != 204) framing = "Content-Length: " + std::to_string(size) + "\r\n";
  if (closes) {
    framing += "Connection: close\r\n";
  } else if (is_http_1_0) {
    framing += "Connection: keep-alive\r\n";
  }
  return head_text(response, framing);
}

bool decode_percent(std::string_view text, std::string* out) {
  out->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      *out += text[i];
      continue;
    }
    if (i + 2 >= text.size() || digit(text[i + 1]) < 0 || digit(text[i + 2]) < 0) return false;
    *out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
    i += 2;
  }
  return true;
}

bool same_but_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return small(x) == small(y); });
}

std::string small_letters(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), small);
  return out;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

}  // namespace server
