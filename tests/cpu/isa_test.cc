// SPDX-License-Identifier: MIT
#include "cpu/isa.h"

#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <string>

#include "cpu/kernel_set.h"
#include "isas.h"
#include "support/paths.h"
#include "support/pretended_isa.h"

namespace sharpi::cpu {
namespace {

/// The machine is taken again for what the environment says when a case has ended.
class PretendedIsa : public testing::Test {
 protected:
  void TearDown() override { test::pretend_isa_of_environment(); }
};

std::string chosen(Isa wanted) {
  const auto set = resolve_isa(wanted);
  return set.is_ok() ? set.value()->name : set.status().text();
}

TEST(Isa, AutoResolvesToSomethingThatRuns) {
  const auto set = resolve_isa(Isa::kAuto);
  ASSERT_TRUE(set.is_ok());
  EXPECT_NE(set.value()->isa, Isa::kAuto);
  EXPECT_EQ(chosen(set.value()->isa), set.value()->name);
}

TEST(Isa, AnUnknownNumberIsRefused) {
  const Status status = resolve_isa(static_cast<Isa>(99)).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(status.text(), "instruction set 99 is unknown");
}

/// The numbers of the header, as tests/abi/sharpi-1.facts has them, are those of Isa.
TEST(Isa, NumbersAreTheHeaders) {
  std::ifstream facts(test::source_path("tests/abi/sharpi-1.facts"));
  uint32_t n = 0;
  for (std::string word, name; facts >> word;) {
    if (word != "constant" || !(facts >> name) || !name.starts_with("SHARPI_ISA_")) continue;
    uint32_t number = 0;
    facts >> number;
    const char* own = isa_name(static_cast<Isa>(number));
    ASSERT_NE(own, nullptr) << name;
    std::string upper = "SHARPI_ISA_";
    for (const char* c = own; *c != '\0'; ++c)
      upper += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
    EXPECT_EQ(name, upper);
    ++n;
  }
  EXPECT_GT(n, 1u);
  EXPECT_EQ(isa_name(static_cast<Isa>(n)), nullptr) << "a set that no host can ask for";
}

/// Sets and kernels are joined by their names.
TEST(Isa, EverySetHasKernelsOfItsOwnNameAndNumber) {
  ASSERT_EQ(processor().sets[0].isa, Isa::kScalar);
  EXPECT_EQ(processor_kernel_sets().size() + 1, processor().sets.size());
  for (const InstructionSet& set : processor().sets) {
    EXPECT_STREQ(kernel_set(set).name, set.name);
    EXPECT_EQ(kernel_set(set).isa, set.isa);
    EXPECT_TRUE(std::string(set.name).starts_with(isa_name(set.isa))) << set.name;
  }
}

/// Whatever a set has no kernels for goes to a narrower one, and plain C++ takes all.
TEST(Isa, NarrowerSetsEndAtPlainCpp) {
  for (const InstructionSet& set : processor().sets) {
    const KernelSet* at = &kernel_set(set);
    for (size_t steps = 0; at->narrower != nullptr; at = at->narrower) {
      ASSERT_LT(++steps, processor().sets.size()) << set.name;
    }
    EXPECT_EQ(at, &kScalarKernels) << set.name;
    EXPECT_EQ(at->delta.table.width, 1u);
  }
}

TEST_F(PretendedIsa, BoundsWhatIsChosenAndWhatMayBeAskedFor) {
  for (const InstructionSet& widest : processor().sets) {
    if (!pretend_isa(widest.name).is_ok()) continue;
    SCOPED_TRACE(widest.name);
    EXPECT_EQ(chosen(Isa::kAuto), widest.name);
    bool beyond = false;
    for (const Isa isa : known_isas()) {
      EXPECT_EQ(resolve_isa(isa).is_ok(), !beyond) << isa_name(isa);
      beyond = beyond || isa == widest.isa;
    }
    EXPECT_EQ(chosen(widest.isa), widest.name);
  }
}

/// What a machine is taken for does not bound what it is taken for next.
TEST_F(PretendedIsa, IsMeasuredByTheRealMachine) {
  ASSERT_TRUE(pretend_isa(nullptr).is_ok());
  const std::string widest = chosen(Isa::kAuto);
  ASSERT_TRUE(pretend_isa("scalar").is_ok());
  EXPECT_EQ(chosen(Isa::kAuto), "scalar");
  EXPECT_TRUE(pretend_isa(widest.c_str()).is_ok());
  EXPECT_EQ(chosen(Isa::kAuto), widest);
}

TEST_F(PretendedIsa, OfMoreThanThereIsIsRefusedAndChangesNothing) {
  ASSERT_TRUE(pretend_isa("scalar").is_ok());
  EXPECT_EQ(pretend_isa("no_such_set").code(), Code::kUnsupported);
  for (const InstructionSet& set : processor().sets) {
    if (!set.present()) {
      EXPECT_EQ(pretend_isa(set.name).code(), Code::kUnsupported) << set.name;
    }
    if (set.isa != Isa::kScalar) {
      EXPECT_TRUE(chosen(set.isa).starts_with("this machine lacks ")) << chosen(set.isa);
    }
  }
  EXPECT_EQ(chosen(Isa::kAuto), "scalar");
}

}  // namespace
}  // namespace sharpi::cpu
