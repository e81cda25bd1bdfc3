// SPDX-License-Identifier: MIT
// A session that moves from one process to another through a pipe, by the example program.
#include <gtest/gtest.h>

#include <string>

#include "run_program.h"
#include "support/paths.h"

namespace sharpi::testing {
namespace {

/// A session that another process goes on with says what one process says; the receiver may store
/// its rows where it likes, but as they are.
TEST(Move, ASessionGoesFromProcessToProcess) {
  const std::string move = test::build_path("examples/move"), own = "'" + move + "' -m ";
  const std::string prompt = "-f '" + test::source_path("examples/compact_prompt.txt") + "' ";
  for (const std::string model : {"tiny-qwen3-q8_0", "tiny-qwen35-q8_0"}) {
    const std::string flags = "'" + kFixtures + "/" + model + ".gguf' -t 1 -n 12 ";
    for (const std::string kv : {"--kv-type bf16", "--kv-type q8_0"}) {
      const Output alone = run(move, "-m " + flags + prompt + kv);
      ASSERT_EQ(alone.exit_code, 0) << alone.err;
      EXPECT_GT(alone.out.size(), 4u);
      const Output got =
          run(move, "-m " + flags + prompt + kv + " --send | " + own + flags + kv + " --receive");
      EXPECT_EQ(got.exit_code, 0) << got.err;
      EXPECT_EQ(got.out, alone.out) << model << kv;
      EXPECT_NE(got.err.find("received: a session of "), std::string::npos) << got.err;
    }
  }
}

/// A pipe that ends early, brings something else, or comes from another model.
TEST(Move, WhatIsNoSessionIsRefused) {
  const std::string move = test::build_path("examples/move"), own = "'" + move + "' -m ";
  const std::string model = "'" + kModel + "' -t 1 ",
                    other = "'" + kFixtures + "/tiny-qwen35-q8_0.gguf' -t 1 ";
  const std::string prompt = "-f '" + test::source_path("examples/demo_prompt.txt") + "' ";
  const auto receive = [&](const std::string& from, const std::string& through) {
    return run(move, "-m " + from + prompt + "--send | " + through + own + model + "--receive");
  };
  EXPECT_EQ(receive(model, "").exit_code, 0);
  const Output cut = receive(model, "head -c 20000 | ");
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_NE(cut.err.find("receiving: SHARPI_E_IO"), std::string::npos) << cut.err;
  EXPECT_TRUE(cut.out.empty());
  const Output swapped = receive(other, "");
  EXPECT_EQ(swapped.exit_code, 1);
  EXPECT_NE(swapped.err.find("receiving: SHARPI_E_MISMATCH"), std::string::npos) << swapped.err;
  const Output damaged = receive(model, "tr 'a' 'b' | ");
  EXPECT_EQ(damaged.exit_code, 1) << damaged.err;
  EXPECT_EQ(run(move, "-m " + model + "--receive " + prompt).exit_code, 2);
  EXPECT_EQ(run(move, "-m " + model).exit_code, 2);
}

}  // namespace
}  // namespace sharpi::testing
