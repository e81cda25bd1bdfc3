// SPDX-License-Identifier: MIT
#include "golden.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "support/json_reader.h"
#include "support/made_models.h"
#include "support/paths.h"

namespace sharpi::testing {
namespace {

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

constexpr std::string_view kLatent[] = {"rand-deepseek2", "rand-glm-flash"};

std::string golden_in(const std::string& folder, std::string_view name) {
  return folder + "/" + std::string(name) + ".golden.json";
}

std::optional<Fixture> find_in(const std::string& folder, const std::string& name) {
  Fixture f{name, folder + "/" + name + "-q8_0.gguf", golden_in(folder, name)};
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
  SHARPI_TRY_ASSIGN(const std::string text, read_text_file(path));
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
      "rand-gemma4-e2b", "rand-gpt-oss",      "rand-mistral3",   "rand-phi3",
      "rand-qwen3next",  "rand-granite-moe",  "rand-granite",    "rand-nemotron-moe",
      "rand-nemotron",   "rand-deepseek2",    "rand-glm-flash"};
  return names;
}

const std::vector<std::string>& all_models() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = trained_models();
    all.insert(all.end(), random_models().begin(), random_models().end());
    return all;
  }();
  return names;
}

bool stores_one_row(std::string_view name) {
  return std::find(std::begin(kLatent), std::end(kLatent), name) != std::end(kLatent);
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
  const std::string folder = test::source_path("tests/fixtures");
  if (auto f = find_in(folder, std::string(name))) return f;
  Fixture made{std::string(name), test::made_model_path(name), golden_in(folder, name)};
  if (!made.gguf_path.empty()) return made;
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
