// SPDX-License-Identifier: MIT
// What one more session would take now.
// Thread rule: pure function of the model and the memory that is free.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/model.h"
#include "plan/plan.h"

namespace sharpi::api {

/// A plan that holds the rows of one session of this shape. kDoesNotFit names the tier, its largest
/// row and the bytes that are short, of what is free or of the plan's budget.
Result<std::shared_ptr<const Plan>> price_session(const Model& model, const SessionShape& shape);

}  // namespace sharpi::api
