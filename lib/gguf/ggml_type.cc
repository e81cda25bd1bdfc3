// SPDX-License-Identifier: MIT
#include "gguf/ggml_type.h"

#include <array>

namespace sharpi {
namespace {

constexpr uint32_t kTypeIds = 43;  // one past the highest id in use

constexpr std::array<GgmlTypeTraits, kTypeIds> make_table() {
  std::array<GgmlTypeTraits, kTypeIds> t{};
  const auto set = [&t](GgmlType type, const char* name, uint32_t elements, uint32_t bytes,
                        bool computable) {
    t[static_cast<uint32_t>(type)] = {name, elements, bytes, computable};
  };
  set(GgmlType::kF32, "f32", 1, 4, true);
  set(GgmlType::kF16, "f16", 1, 2, true);
  set(GgmlType::kBF16, "bf16", 1, 2, true);
  set(GgmlType::kQ4_0, "q4_0", 32, 18, true);
  set(GgmlType::kQ4_1, "q4_1", 32, 20, true);
  set(GgmlType::kQ5_0, "q5_0", 32, 22, true);
  set(GgmlType::kQ5_1, "q5_1", 32, 24, true);
  set(GgmlType::kQ8_0, "q8_0", 32, 34, true);
  set(GgmlType::kQ2_K, "q2_k", 256, 84, true);
  set(GgmlType::kQ3_K, "q3_k", 256, 110, true);
  set(GgmlType::kQ4_K, "q4_k", 256, 144, true);
  set(GgmlType::kQ5_K, "q5_k", 256, 176, true);
  set(GgmlType::kQ6_K, "q6_k", 256, 210, true);
  set(GgmlType::kIQ4_NL, "iq4_nl", 32, 18, true);
  set(GgmlType::kIQ4_XS, "iq4_xs", 256, 136, true);
  set(GgmlType::kMXFP4, "mxfp4", 32, 17, true);
  set(GgmlType::kIQ2_XXS, "iq2_xxs", 256, 66, false);
  set(GgmlType::kIQ2_XS, "iq2_xs", 256, 74, false);
  set(GgmlType::kIQ3_XXS, "iq3_xxs", 256, 98, false);
  set(GgmlType::kIQ1_S, "iq1_s", 256, 50, false);
  set(GgmlType::kIQ3_S, "iq3_s", 256, 110, false);
  set(GgmlType::kIQ2_S, "iq2_s", 256, 82, false);
  set(GgmlType::kIQ1_M, "iq1_m", 256, 56, false);
  set(GgmlType::kTQ1_0, "tq1_0", 256, 54, false);
  set(GgmlType::kTQ2_0, "tq2_0", 256, 66, false);
  set(GgmlType::kNVFP4, "nvfp4", 64, 36, false);
  set(GgmlType::kQ1_0, "q1_0", 128, 18, false);
  set(GgmlType::kQ2_0, "q2_0", 64, 18, false);
  set(GgmlType::kI8, "i8", 1, 1, false);
  set(GgmlType::kI16, "i16", 1, 2, false);
  set(GgmlType::kI32, "i32", 1, 4, false);
  set(GgmlType::kI64, "i64", 1, 8, false);
  set(GgmlType::kF64, "f64", 1, 8, false);
  return t;
}

constexpr std::array<GgmlTypeTraits, kTypeIds> kTable = make_table();

}  // namespace

const GgmlTypeTraits* ggml_type_traits(uint32_t type_id) {
  if (type_id >= kTypeIds || kTable[type_id].name == nullptr) return nullptr;
  return &kTable[type_id];
}

}  // namespace sharpi
