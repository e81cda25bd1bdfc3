// SPDX-License-Identifier: MIT
// SHARPI_TEST_CARD: tests and benches that this file is linked into take the machine's GPU for
// another card, by compute capability ("8.9") and, if given, so many multiprocessors ("8.9/60");
// without a number it keeps its own. The library itself reads no such variable.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cuda/kernels/device_profile.h"

namespace {

bool pretend() {
  const char* text = std::getenv("SHARPI_TEST_CARD");
  if (text == nullptr || *text == '\0') return false;
  const std::string_view whole = text, name = whole.substr(0, whole.find('/'));
  const sharpi::cuda::NamedCard* card = sharpi::cuda::find_card(name);
  const int n_sm = name.size() == whole.size() ? 0 : std::atoi(text + name.size() + 1);
  if (card == nullptr || (name.size() != whole.size() && n_sm <= 0)) {
    std::fprintf(stderr, "SHARPI_TEST_CARD=%s: no such card; a compute capability (", text);
    for (int i = 0; i < sharpi::cuda::kNamedCards; ++i)
      std::fprintf(stderr, "%s ", sharpi::cuda::named_card(i).name);
    std::fprintf(stderr, "), and a number of multiprocessors behind a slash if wanted\n");
    std::_Exit(2);
  }
  static sharpi::cuda::DeviceProfile profile;
  profile = card->profile;
  profile.n_sm = n_sm;
  sharpi::cuda::pretend_card(&profile);
  std::fprintf(stderr, "the GPU is taken for compute capability %s\n", card->name);
  return true;
}

const bool kPretended = pretend();

}  // namespace
