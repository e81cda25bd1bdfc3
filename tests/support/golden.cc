// SPDX-License-Identifier: MIT
#include "golden.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "support/paths.h"

namespace sharpi::testing {
namespace {

constexpr int kMaxDepth = 32;  // nesting that skip_value follows; the goldens have 5

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

template <class T>
void read(JsonReader& json, std::vector<std::array<T, 5>>* out) {
  json.array([&] {
    std::array<T, 5> row{};
    size_t n = 0;
    json.array([&] {
      const T value = json.number<T>();
      if (n < row.size()) row[n] = value;
      ++n;
    });
    if (n != row.size()) json.fail("a top-5 row without exactly five entries");
    out->push_back(row);
  });
}

GoldenCase read_case(JsonReader& json) {
  GoldenCase c;
  json.object([&](const std::string& key) {
    if (key == "tokens")
      read(json, &c.tokens);
    else if (key == "top5")
      read(json, &c.top5);
    else if (key == "top5_logits")
      read(json, &c.top5_logits);
    else if (key == "nll")
      c.nll = json.number<double>();
    else if (key == "greedy")
      read(json, &c.greedy);
    else if (key == "mtp_top5_last")
      read(json, &c.mtp_top5_last);
    else if (key == "mtp_top5_logits_last")
      read(json, &c.mtp_top5_logits_last);
    else if (key == "mtp_agrees")
      c.mtp_agrees = json.number<double>();
    else
      json.skip_value();
  });
  if (c.tokens.empty() || c.top5.size() != c.tokens.size() ||
      c.top5_logits.size() != c.tokens.size()) {
    json.fail("a case whose tokens, top5 and top5_logits differ in length");
  }
  return c;
}

GoldenNeedle read_needle(JsonReader& json) {
  GoldenNeedle needle;
  json.object([&](const std::string& key) {
    if (key == "prompt")
      read(json, &needle.prompt);
    else if (key == "answer")
      read(json, &needle.answer);
    else
      json.skip_value();
  });
  if (needle.prompt.empty() || needle.answer.empty()) json.fail("a needle without tokens");
  return needle;
}

GoldenPerplexity read_perplexity(JsonReader& json) {
  GoldenPerplexity p;
  json.object([&](const std::string& key) {
    if (key == "tokens")
      p.n_tokens = json.number<uint32_t>();
    else if (key == "window")
      p.window = json.number<uint32_t>();
    else if (key == "hash")
      p.hash = json.number<uint64_t>();
    else if (key == "nll")
      p.nll = json.number<double>();
    else if (key == "window_sums")
      read(json, &p.window_sums);
    else
      json.skip_value();
  });
  return p;
}

std::optional<Fixture> find_in(const std::string& folder, const std::string& name) {
  Fixture f{name, folder + "/" + name + "-q8_0.gguf", folder + "/" + name + ".golden.json"};
  std::error_code ec;
  if (!std::filesystem::is_regular_file(f.gguf_path, ec)) return std::nullopt;
  if (!std::filesystem::is_regular_file(f.golden_path, ec)) return std::nullopt;
  return f;
}

}  // namespace

Result<Golden> parse_golden(std::string_view text) {
  Golden golden;
  JsonReader json(text);
  json.object([&](const std::string& key) {
    if (key == "arch")
      golden.arch = json.string();
    else if (key == "model")
      golden.model = json.string();
    else if (key == "cases")
      json.array([&] { golden.cases.push_back(read_case(json)); });
    else if (key == "perplexity")
      golden.perplexity = read_perplexity(json);
    else if (key == "needles")
      json.array([&] { golden.needles.push_back(read_needle(json)); });
    else
      json.skip_value();
  });
  json.end();
  if (golden.cases.empty()) json.fail("no cases");
  SHARPI_TRY(json.status());
  return golden;
}

Result<Golden> load_golden(const std::string& path) {
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
  auto golden = parse_golden(text);
  if (golden.is_ok()) return golden;
  return Status::error(golden.status().code(), "%s: %s", path.c_str(),
                       golden.status().text().c_str());
}

const std::vector<std::string>& trained_models() {
  static const std::vector<std::string> names{"tiny-qwen3",    "tiny-qwen3moe", "tiny-olmoe",
                                              "tiny-gemma4",   "tiny-gemma4kv", "tiny-qwen35",
                                              "tiny-qwen35moe"};
  return names;
}

const std::vector<std::string>& random_models() {
  static const std::vector<std::string> names{
      "rand-llama3",     "rand-llama-linear", "rand-llama-yarn", "rand-mistral",
      "rand-qwen2",      "rand-gemma3",       "rand-smollm3",    "rand-gemma4-moe",
      "rand-gemma4-e2b", "rand-gpt-oss",      "rand-mistral3"};
  return names;
}

namespace {

/// Those with parts that GPU tiers refuse by name so far (lib/device/check_parts.cc).
void erase_refused(std::vector<std::string>* names) {
  std::erase(*names, "rand-gpt-oss");
  std::erase(*names, "rand-mistral3");
}

}  // namespace

const std::vector<std::string>& all_models() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = trained_models();
    all.insert(all.end(), random_models().begin(), random_models().end());
    const char* tier = std::getenv("SHARPI_TEST_TIER");
    if (tier != nullptr && std::string_view(tier) != "cpu") erase_refused(&all);
    return all;
  }();
  return names;
}

const std::vector<std::string>& device_models() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = all_models();
    erase_refused(&all);
    return all;
  }();
  return names;
}

const std::vector<std::string>& compactable_models() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = all_models();
    std::erase(all, "rand-mistral");
    return all;
  }();
  return names;
}

FixtureList list_fixtures() {
  FixtureList list;
  for (const std::string& name : all_models()) {
    if (auto f = find_fixture(name))
      list.available.push_back(*std::move(f));
    else
      list.missing.emplace_back(name);
  }
  return list;
}

std::optional<Fixture> find_fixture(std::string_view name) {
  if (auto f = find_in(test::source_path("tests/fixtures"), std::string(name))) return f;
  const char* extra = std::getenv("SHARPI_FIXTURES");
  if (extra == nullptr || *extra == '\0') return std::nullopt;
  return find_in(extra, std::string(name));
}

std::string missing_fixtures_text(const FixtureList& list) {
  if (list.missing.empty()) return {};
  std::string text = "not checked, because absent:";
  for (const std::string& name : list.missing) text += " " + name;
  return text + " (set SHARPI_FIXTURES to a folder that has them)";
}

}  // namespace sharpi::testing
