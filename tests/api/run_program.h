// SPDX-License-Identifier: MIT
// A program run by the shell, as a user runs it, and what it printed.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "support/paths.h"

namespace sharpi::testing {

inline const std::string kFixtures = test::source_path("tests/fixtures");
inline const std::string kModel = kFixtures + "/tiny-qwen3-q8_0.gguf";
inline const std::string kChat = test::build_path("examples/chat");
inline const std::string kGenerate = test::build_path("examples/generate");

struct Output {
  int exit_code = -1;
  std::string out, err;
};

inline std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Runs a program with its environment cleared of our variables; arguments are one shell line.
inline Output run(const std::string& program, const std::string& arguments) {
  const std::string base = ::testing::TempDir() + "sharpi_example_" + std::to_string(::getpid());
  const std::string line = "env -u SHARPI_KV_DTYPE '" + program + "' " + arguments + " >'" + base +
                           ".out' 2>'" + base + ".err'";
  Output o;
  const int status = std::system(line.c_str());
  o.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  o.out = read_all(base + ".out");
  o.err = read_all(base + ".err");
  std::remove((base + ".out").c_str());
  std::remove((base + ".err").c_str());
  return o;
}

/// The program of that name with the small model.
inline Output generate(const std::string& arguments) {
  return run(kGenerate, "-m '" + kModel + "' -t 2 " + arguments);
}

}  // namespace sharpi::testing
