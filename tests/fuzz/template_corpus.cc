// SPDX-License-Identifier: MIT
// Writes the templates of the interpreter's tests as seeds: template_corpus FOLDER
#include <cstdio>
#include <string>

namespace {

struct JinjaCase {
  const char* source;
  const char* expected;
};

#include "text/jinja_cases.inc"

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  int i = 0;
  for (const JinjaCase& c : kJinjaCases) {
    const std::string path = std::string(argv[1]) + "/case" + std::to_string(i++);
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) return 1;
    std::fputs(c.source, file);
    if (std::fclose(file) != 0) return 1;
  }
  std::printf("%d seeds beside %zu bytes of variables\n", i, std::string(kVariables).size());
  return 0;
}
