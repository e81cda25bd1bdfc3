// SPDX-License-Identifier: MIT
// The GPU tiers that this library can use, of those that cmake/gpu_tiers.txt lists. Two files
// answer: built_in_tiers.cc in the archive, which has them inside, and tier_modules.cc in the
// shared library, which finds them in libraries of their own beside it. Thread rule: pure
// functions, but that what is loaded once stays.
#pragma once

#include <memory>
#include <vector>

#include "api/build_text.h"
#include "base/status.h"
#include "engine/context.h"

namespace sharpi::api {

/// The text of sharpi_build_info().
const char* build_text();

/// One backend for each usable device. None is no error: *options.why_no_device says why.
Result<std::vector<std::unique_ptr<Backend>>> make_gpu_backends(const BackendOptions& options);

}  // namespace sharpi::api
