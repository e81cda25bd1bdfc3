// SPDX-License-Identifier: MIT
// Tests of models on a GPU, skipped where there is none. Thread rule: one test at a time.
#pragma once

#include "engine/engine_case.h"

namespace sharpi::testing {

class DeviceTest : public ModelTest {
 protected:
  void SetUp() override {
    const ContextPtr context = make_context({});
    if (const std::string why = why_no_gpu(context.get()); !why.empty()) GTEST_SKIP() << why;
    ModelTest::SetUp();
  }
};

}  // namespace sharpi::testing
