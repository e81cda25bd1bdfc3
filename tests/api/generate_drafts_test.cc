// SPDX-License-Identifier: MIT
// The example program `generate` with drafts prints what it prints without, whoever drafts.
#include <gtest/gtest.h>

#include <string>

#include "run_program.h"
#include "support/paths.h"

namespace sharpi::testing {
namespace {

const std::string kHybrid = kFixtures + "/tiny-qwen35-q8_0.gguf";

struct DraftCase {
  const char* name;
  std::string model, arguments;
};
void PrintTo(const DraftCase& c, std::ostream* os) {
  *os << c.name;
}

class GenerateWithDrafts : public ::testing::TestWithParam<DraftCase> {};

/// In a text that repeats itself, so that it has something to say, too.
TEST_P(GenerateWithDrafts, PrintsTheTextThatItPrintsWithout) {
  const DraftCase& c = GetParam();
  for (const char* sampling : {" --temp 0", " --temp 0.8 --seed 3"}) {
    const std::string common = "-m '" + c.model + "' -t 2 -g 0 -c 512 -n 64 --deterministic -p '" +
                               "a = 1; b = 2; a = 1; b = 2; a = 1; b = 2; a ='" + sampling;
    const Output plain = run(kGenerate, common), with = run(kGenerate, common + c.arguments);
    ASSERT_EQ(plain.exit_code + with.exit_code, 0) << plain.err << with.err;
    EXPECT_EQ(with.out, plain.out) << sampling;
    EXPECT_EQ(plain.err.find("drafts:"), std::string::npos) << plain.err;
    EXPECT_NE(with.err.find(" accepted in "), std::string::npos) << sampling << with.err;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Drafters, GenerateWithDrafts,
    ::testing::Values(DraftCase{"the text", kModel, " --draft 8"},
                      DraftCase{"the text and the MTP block", kHybrid, " --draft 4"},
                      DraftCase{"the MTP block with a part of the head", kHybrid,
                                " --draft 4 --draft-vocab 512"},
                      DraftCase{"a model", kModel, " --draft-model '" + kModel + "'"},
                      DraftCase{"all", kHybrid, " --draft 6 --draft-model '" + kHybrid + "'"}));

TEST(Generate, RefusesAModelOfOtherTokensThatDrafts) {
  const std::string gemma = kFixtures + "/tiny-gemma4kv-q8_0.gguf";
  const Output o = generate("-p x -n 4 -c 256 -g 0 --draft-model '" + gemma + "'");
  EXPECT_NE(o.exit_code, 0);
  EXPECT_EQ(o.out, "");
  EXPECT_NE(o.err.find("vocabulary"), std::string::npos) << o.err;
}

TEST(Generate, RefusesAPartOfTheHeadThatNobodyDraftsWith) {
  const std::string common = "-m '" + kHybrid + "' -p x -n 4 -c 256 -g 0 --draft-vocab ";
  const Output nobody = run(kGenerate, common + "512");
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_NE(nobody.err.find("n_draft_vocab is 512, but drafters is 0"), std::string::npos)
      << nobody.err;
  const Output odd = run(kGenerate, common + "500 --draft 4");
  EXPECT_EQ(odd.exit_code, 1);
  EXPECT_NE(odd.err.find("n_draft_vocab 500 is no multiple of 16"), std::string::npos) << odd.err;
  EXPECT_EQ(run(kGenerate, common + "many --draft 4").exit_code, 2);
}

/// The model drafts for itself: a smaller one of its vocabulary is not in the tree.
TEST(Generate, ADraftModelLeavesTheText) {
  const std::string arguments = "-p 'def f(x):' -n 40 -c 256 -g 0 --deterministic --temp 0 ";
  const Output plain = generate(arguments);
  const Output drafted = generate(arguments + "--draft 4 --draft-model '" + kModel + "'");
  ASSERT_EQ(drafted.exit_code, 0) << drafted.err;
  EXPECT_EQ(drafted.out, plain.out);
  EXPECT_EQ(plain.err.find("accepted in"), std::string::npos) << plain.err;
  EXPECT_NE(drafted.err.find("accepted in"), std::string::npos) << drafted.err;
  const Output none = generate(arguments + "--draft 0 --draft-model '" + kModel + "'");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.err.find("draft_path is given, but drafters is 0"), std::string::npos) << none.err;
  const Output absent = generate(arguments + "--draft-model no-such-drafter.gguf");
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_NE(absent.err.find("no-such-drafter.gguf"), std::string::npos) << absent.err;
}

}  // namespace
}  // namespace sharpi::testing
