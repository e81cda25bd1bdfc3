// SPDX-License-Identifier: MIT
// The lines that the library writes into a host's log: what was decided about a plan, and which
// models and sessions were made. Calls that read tokens write none. Thread rule: pure functions
// over immutable objects.
#pragma once

#include "engine/context.h"
#include "plan/plan.h"

namespace sharpi {

class Adapter;
class Model;

/// The devices that a context found.
void log_devices(const Context& context);
/// What a plan decided; what it gave up; at debug level every row.
void log_plan(const Context& context, const Plan& plan);
/// Which kernels run, and from how many rows on weights stream.
void log_loaded(const Model& model, double seconds);
/// What an adapter changes, and its bytes.
void log_adapter(const Adapter& adapter);
/// When a model goes away: how many of its routed experts came to the GPU, and how often they were
/// found there.
void log_experts(const Model& model);

}  // namespace sharpi
