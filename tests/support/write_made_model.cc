// SPDX-License-Identifier: MIT
// Writes one of the models that are made where tests ask for them, for the tool that computes their
// goldens.
//   write_made_model NAME SEED OUT      (seed 0: the golden's)
#include <cstdio>
#include <cstdlib>

#include "support/made_models.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto bytes = sharpi::test::made_model(argv[1], std::strtoull(argv[2], nullptr, 10));
  std::FILE* f = bytes ? std::fopen(argv[3], "wb") : nullptr;
  if (f == nullptr) return 1;
  const bool written = std::fwrite(bytes->data(), 1, bytes->size(), f) == bytes->size();
  return std::fclose(f) == 0 && written ? 0 : 1;
}
