// SPDX-License-Identifier: MIT
// The values that the 4-bit codes of some block formats stand for, as lookup tables. Everything
// here has internal linkage.
// Thread rule: constants.
#pragma once

#include <cstdint>

namespace sharpi::cpu {
namespace {  // NOLINT: internal linkage keeps code of one instruction set out of other files

// IQ4_NL and IQ4_XS.
alignas(16) constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
// MXFP4: twice the numbers of four bits (E2M1).
alignas(16) constexpr int8_t kMxLevels[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace
}  // namespace sharpi::cpu
