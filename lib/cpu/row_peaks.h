// SPDX-License-Identifier: MIT
// Activation rows in int8 whose outliers stay in f32. Activations of transformers have a few
// elements that are many times as large as their neighbours (as LLM.int8() found, arXiv
// 2208.07339). In int8 such an element decides the scale of its group of 32, and the other elements
// lose their bits. Keeping one element of a row apart halves the error of a model with rows of 576
// elements. Products of few and of many rows read the same rows, so their results agree.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/matmul_kernels.h"

namespace sharpi::cpu {

/// How many elements of a row of n are multiplied apart: one in 2048, at least one, at most
/// kMaxPeaks. Each costs a panel's product as much as half a group, and a product of few rows some
/// 20 scalar instructions.
uint32_t peaks_of_row(uint64_t n);

/// Quantises a row of n elements with up to peaks_of_row(n) of them apart: the largest elements of
/// the groups with the largest scales, one of a group, the first of equal ones. `row`: an int8 row
/// with Int8Peaks behind it. Groups with an element that is not finite have none.
void quantize_with_peaks(QuantizeRowFn quantize, const float* x, uint64_t n, std::byte* row);

}  // namespace sharpi::cpu
