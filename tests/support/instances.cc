// SPDX-License-Identifier: MIT
#define SHARPI_TEST_INSTANCE template
#include "support/instances.h"
