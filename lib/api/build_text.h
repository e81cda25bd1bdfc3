// SPDX-License-Identifier: MIT
// SHARPI_BUILD_TEXT("cpu, cuda"): version, compiler and tiers of this build as one literal.
#pragma once

#include "sharpi.h"

#define SHARPI_TEXT_OF2(x) #x
#define SHARPI_TEXT_OF(x) SHARPI_TEXT_OF2(x)
#if defined(__clang__)
#define SHARPI_COMPILER "clang " __clang_version__
#else
#define SHARPI_COMPILER "gcc " __VERSION__
#endif

#define SHARPI_BUILD_TEXT(tiers)                                                          \
  "libsharpi " SHARPI_TEXT_OF(SHARPI_VERSION_MAJOR) "." SHARPI_TEXT_OF(                   \
      SHARPI_VERSION_MINOR) "." SHARPI_TEXT_OF(SHARPI_VERSION_PATCH) ", " SHARPI_COMPILER \
                                                                     ", backends: " tiers
