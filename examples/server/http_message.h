// SPDX-License-Identifier: MIT
// Requests and answers of HTTP/1.1 as the routes see them.
// Thread rule: one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path, query;  // of the target; the path is decoded
  bool is_http_1_0 = false;
  bool keeps_alive = true;  // the client wants to ask again over this connection
  HttpHeaders headers;      // names in small letters, in the order in which they came
  std::string body;         // unpacked

  /// The first one of that name (in small letters); null = there is none.
  const std::string* find(std::string_view name) const;
  /// The same, empty where there is none.
  std::string header(std::string_view name) const;
  /// A parameter of the query, decoded; empty where there is none.
  std::string parameter(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  HttpHeaders headers;
  std::string type;  // Content-Type; empty: none
  std::string body;
  /// Instead of the body: bytes that live as long as the program.
  std::string_view fixed;
};

/// The bytes before a body, with the empty line. @param framing its own headers, each with its line
/// break, such as "Content-Length: 2\r\n".
std::string head_text(const HttpResponse& response, const std::string& framing);
/// The same for a body of known length.
std::string head_of_whole(const HttpResponse& response, bool closes, bool is_http_1_0);
/// What a server says that has no memory to say anything else; the connection ends with it.
extern const std::string_view kOutOfMemoryAnswer;
/// The same as an event of a stream.
extern const std::string_view kOutOfMemoryEvent;

/// Text with %XX decoded. False: it has a % that nothing of the kind follows.
bool decode_percent(std::string_view text, std::string* out);
/// Whether two texts are the same but for the case of ASCII letters.
bool same_but_case(std::string_view a, std::string_view b);
std::string small_letters(std::string_view text);
/// Without blanks and tabs at both ends.
std::string_view trimmed(std::string_view text);

}  // namespace server
