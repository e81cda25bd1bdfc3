// SPDX-License-Identifier: MIT
// What an aarch64 processor has, as its system says.
#include "cpu/isa.h"
#include "os/processors.h"

namespace sharpi::cpu {
namespace {

bool has_dots() {
  return os::arm_extensions().dot_products;
}
bool has_matrix_products() {
  const os::ArmExtensions x = os::arm_extensions();
  return x.dot_products && x.int8_matrices && x.bf16;
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
