// SPDX-License-Identifier: MIT
// Reads the JSON of golden files front to back, without a tree.
// Thread rule: one thread.
#pragma once

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/status.h"

namespace sharpi::testing {

inline constexpr int kMaxDepth = 32;  // nesting that skip_value follows; the goldens have 5

/// Reads JSON front to back into caller-provided places. The first error sticks, and every later
/// read does nothing, so callers check once at the end.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  bool failed() const { return error_ != nullptr; }
  Status status() const {
    if (!failed()) return Status::ok();
    return Status::error(Code::kFormat, "JSON byte %zu: %s", error_at_, error_);
  }

  /// Calls member(key) for each member; member must read or skip the value.
  template <class F>
  void object(F member) {
    open('{');
    if (close('}')) return;
    do {
      const std::string key = string();
      open(':');
      if (failed()) return;
      member(key);
    } while (!failed() && more('}'));
  }

  /// Calls element() for each element; element must read or skip it.
  template <class F>
  void array(F element) {
    open('[');
    if (close(']')) return;
    do {
      if (failed()) return;
      element();
    } while (!failed() && more(']'));
  }

  template <class T>
  T number() {
    T value{};
    if (failed()) return value;
    skip_space();
    const char* begin = text_.data() + at_;
    const auto [end, ec] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (ec != std::errc()) {
      fail("expected a number that fits");
      return T{};
    }
    at_ += static_cast<size_t>(end - begin);
    return value;
  }

  /// A string without escapes other than \" \\ and \/ (all that the goldens contain).
  std::string string() {
    std::string out;
    open('"');
    while (!failed()) {
      if (at_ >= text_.size()) {
        fail("unterminated string");
        break;
      }
      char c = text_[at_++];
      if (c == '"') break;
      if (c == '\\') {
        c = at_ < text_.size() ? text_[at_++] : '\0';
        if (c != '"' && c != '\\' && c != '/') fail("unsupported escape");
      }
      out.push_back(c);
    }
    return out;
  }

  void skip_value(int depth = 0) {
    if (failed()) return;
    if (depth > kMaxDepth) return fail("nested too deeply");
    skip_space();
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    if (c == '{') {
      object([&](const std::string&) { skip_value(depth + 1); });
    } else if (c == '[') {
      array([&] { skip_value(depth + 1); });
    } else if (c == '"') {
      (void)string();
    } else if (!word("true") && !word("false") && !word("null")) {
      (void)number<double>();
    }
  }

  void end() {
    skip_space();
    if (!failed() && at_ != text_.size()) fail("text after the value");
  }

  void fail(const char* why) {
    if (failed()) return;
    error_ = why;
    error_at_ = at_;
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) && text_[at_] != '\0') ++at_;
  }
  bool word(std::string_view w) {
    if (text_.substr(at_, w.size()) != w) return false;
    at_ += w.size();
    return true;
  }
  void open(char c) {
    if (failed()) return;
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return fail("unexpected character");
    ++at_;
  }
  bool close(char c) {
    if (failed()) return true;
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  /// After an element: true if a comma announces another one.
  bool more(char closing) {
    if (close(closing)) return false;
    open(',');
    return !failed();
  }

  std::string_view text_;
  size_t at_ = 0;
  const char* error_ = nullptr;
  size_t error_at_ = 0;
};

template <class T>
void read(JsonReader& json, std::vector<T>* out) {
  json.array([&] { out->push_back(json.number<T>()); });
}

/// kNotFound or kIo if it cannot be read.
inline Result<std::string> read_text_file(const std::string& path) {
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    return Status::native_error(errno == ENOENT ? Code::kNotFound : Code::kIo, errno,
                                "%s cannot be opened", path.c_str());
  }
  std::string text;
  char chunk[65536];
  size_t n = 0;
  while ((n = std::fread(chunk, 1, sizeof chunk, file.get())) > 0) text.append(chunk, n);
  if (std::ferror(file.get())) return Status::error(Code::kIo, "%s cannot be read", path.c_str());
  return text;
}

}  // namespace sharpi::testing
