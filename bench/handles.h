// SPDX-License-Identifier: MIT
// Handles of the C ABI that end with their scope. Thread rule: as the handles.
#pragma once

#include <memory>

#include "sharpi.h"

namespace sharpi::bench {

struct Destroy {
  void operator()(sharpi_context* p) const { sharpi_context_destroy(p); }
  void operator()(sharpi_plan* p) const { sharpi_plan_destroy(p); }
  void operator()(sharpi_model* p) const { sharpi_model_destroy(p); }
  void operator()(sharpi_session* p) const { sharpi_session_destroy(p); }
};
using ContextPtr = std::unique_ptr<sharpi_context, Destroy>;
using PlanPtr = std::unique_ptr<sharpi_plan, Destroy>;
using ModelPtr = std::unique_ptr<sharpi_model, Destroy>;
using SessionPtr = std::unique_ptr<sharpi_session, Destroy>;

}  // namespace sharpi::bench
