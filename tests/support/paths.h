// SPDX-License-Identifier: MIT
// Where the tests' files are. The folders are known to one source file only, so the commands that
// compile all others are the same in every checkout and a compiler cache can answer them.
// Thread rule: any thread.
#pragma once

#include <string>
#include <string_view>

namespace sharpi::test {

/// The path of a file of the source tree, for example source_path("tests/fixtures/x.gguf").
std::string source_path(std::string_view relative);
/// The path of a file that the build made, for example build_path("examples/generate").
std::string build_path(std::string_view relative);
/// The GPU tier that models of this program's suites go to: SHARPI_TEST_TIER, `cuda` or `vulkan`;
/// those that only the CPU computes are not in the lists then. Empty: they stay on the CPU.
std::string_view suites_tier();
bool suites_on_gpu();

}  // namespace sharpi::test
