// SPDX-License-Identifier: MIT
// What a session draws by differs from session to session unless it is given; tests give it.
// Thread rule: as sharpi.h.
#pragma once

#include <gtest/gtest.h>

#include "sharpi.h"

namespace sharpi::testing {

inline void fix_seed(sharpi_session* session) {
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  p.seed = 0;
  EXPECT_EQ(sharpi_session_set_sampler(session, &p, nullptr), SHARPI_OK);
}

}  // namespace sharpi::testing
