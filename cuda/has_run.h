// SPDX-License-Identifier: MIT
// What no GPU has run yet, in one place. Plans refuse it by name, and suites that run on a CUDA
// device leave its models out; both follow from these lines. Thread rule: constants.
#pragma once

namespace sharpi::cuda {

/// The kernels of experts of squares.
inline constexpr bool kSquareExpertsHaveRun = true;

}  // namespace sharpi::cuda
