// SPDX-License-Identifier: MIT
// Where the real model files are that tools/models/fetch.sh gets, and texts as tokens.
// Thread rule: pure functions.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/abi.h"

namespace sharpi::testing {

struct RealFile {
  const char* name;  // of tools/models/fetch.sh, and of the golden beside this file
  const char* file;
};
inline constexpr RealFile kSmolLm2 = {"smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf"};
inline constexpr RealFile kGemma3 = {"gemma3-270m", "gemma-3-270m-q4_k_m.gguf"};

/// The folder that fetch.sh fills: SHARPI_MODELS, or sharpi/models in the user's cache.
inline std::string models_folder() {
  if (const char* set = std::getenv("SHARPI_MODELS"); set != nullptr && *set != '\0') return set;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return std::string(cache) + "/sharpi/models";
  }
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr ? home : "") + "/.cache/sharpi/models";
}

/// The file's path, or empty where it is not.
inline std::string find_real_file(const RealFile& real) {
  const std::string path = models_folder() + "/" + real.file;
  std::error_code ec;
  return std::filesystem::is_regular_file(path, ec) ? path : std::string();
}

inline std::string absent_text(const RealFile& real) {
  return std::string(real.file) + " is not in " + models_folder() + " (tools/models/fetch.sh " +
         real.name + " gets it)";
}

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline std::vector<int32_t> tokens_of(const sharpi_model* model, const std::string& text,
                                      uint32_t flags = 0) {
  std::vector<int32_t> out(text.size() + 8);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_tokenize(model, text.data(), text.size(), flags, out.data(),
                            static_cast<uint32_t>(out.size()), &n, &e),
            SHARPI_OK)
      << text_of(e);
  out.resize(n);
  return out;
}

inline std::string text_of_tokens(const sharpi_model* model, const std::vector<int32_t>& tokens) {
  std::string out(16 * tokens.size() + 64, '\0');
  size_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_detokenize(model, tokens.data(), static_cast<uint32_t>(tokens.size()), 0,
                              out.data(), out.size(), &n, &e),
            SHARPI_OK)
      << text_of(e);
  out.resize(n);
  return out;
}

}  // namespace sharpi::testing
