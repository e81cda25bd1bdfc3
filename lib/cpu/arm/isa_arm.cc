// SPDX-License-Identifier: MIT
// What an aarch64 processor has, as its system says.
#include <sys/auxv.h>

#include "cpu/isa.h"

namespace sharpi::cpu {
namespace {

// Bits of AT_HWCAP and AT_HWCAP2, which headers of older systems do not name.
constexpr unsigned long kDotProducts = 1ul << 20;
constexpr unsigned long kI8mm2 = 1ul << 13, kBf16_2 = 1ul << 14;

bool has_dots() {
  return (getauxval(AT_HWCAP) & kDotProducts) != 0;
}
bool has_matrix_products() {
  constexpr unsigned long kBoth = kI8mm2 | kBf16_2;
  return has_dots() && (getauxval(AT_HWCAP2) & kBoth) == kBoth;
}

constexpr InstructionSet kSets[] = {
    kScalarSet,
    {.name = "neon", .isa = Isa::kNeon, .needs = "NEON", .present = [] { return true; }},
    {.name = "neon_dot",
     .isa = Isa::kNeon,
     .needs = "NEON's dot products (FEAT_DotProd)",
     .present = has_dots},
    {.name = "i8mm",
     .isa = Isa::kI8mm,
     .needs = "products of matrices in int8 and bf16 (FEAT_I8MM, FEAT_BF16)",
     .present = has_matrix_products},
};

}  // namespace

const Processor& processor() {
  static constexpr Processor kProcessor{kSets, false};
  return kProcessor;
}

}  // namespace sharpi::cpu
