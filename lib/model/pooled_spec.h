// SPDX-License-Identifier: MIT
// What a file says of what comes behind the rows of a text: pooling, projections, a score head.
// Thread rule: as SpecBuilder.
#pragma once

#include "base/status.h"
#include "model/model_spec.h"
#include "model/spec_builder.h"

namespace sharpi {

/// Fills spec->pooled, of any architecture. Pre: n_embd is set.
Status load_pooled(SpecBuilder& b, ModelSpec* spec);

}  // namespace sharpi
