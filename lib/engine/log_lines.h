// SPDX-License-Identifier: MIT
// The lines that a host's log gets: what was decided and made, never in a call that reads tokens.
// Thread rule: pure functions over immutable objects.
#pragma once

#include "engine/context.h"
#include "plan/plan.h"

namespace sharpi {

class Model;

/// The devices that a context found.
void log_devices(const Context& context);
/// What a plan decided; what it gave up; at debug level every row.
void log_plan(const Context& context, const Plan& plan);
/// Which kernels run, and from how many rows on weights stream.
void log_loaded(const Model& model, double seconds);
/// What a model with experts beside a GPU has brought there, when it goes.
void log_experts(const Model& model);

}  // namespace sharpi
