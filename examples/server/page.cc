// SPDX-License-Identifier: MIT
#include "page.h"

#include <iterator>

namespace server {

const char* content_type(const std::string& name) {
  static const struct {
    const char* ending;
    const char* type;
  } kTypes[] = {{".html", "text/html; charset=utf-8"},
                {".js", "text/javascript; charset=utf-8"},
                {".css", "text/css; charset=utf-8"},
                {".svg", "image/svg+xml"},
                {".png", "image/png"},
                {".ico", "image/x-icon"},
                {".json", "application/json"},
                {".webmanifest", "application/manifest+json"},
                {".txt", "text/plain; charset=utf-8"},
                {".woff2", "font/woff2"}};
  for (const auto& type : kTypes) {
    if (name.ends_with(type.ending)) return type.type;
  }
  return "application/octet-stream";
}

}  // namespace server
