// SPDX-License-Identifier: MIT
// Tests of models on a GPU, skipped where there is none. Thread rule: one test at a time.
#pragma once

#include "engine/engine_case.h"

namespace sharpi::testing {

class DeviceTest : public ModelTest {
 protected:
  void SetUp() override {
    const ContextPtr context = make_context({});
    sharpi_device d{};
    d.struct_size = sizeof d;
    sharpi_error e = SHARPI_ERROR_INIT;
    if (sharpi_device_info(context.get(), 1, 0, &d, &e) != SHARPI_OK) GTEST_SKIP() << e.text;
    ModelTest::SetUp();
  }
};

}  // namespace sharpi::testing
