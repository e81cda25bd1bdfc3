// SPDX-License-Identifier: MIT
// Arithmetic, comparison and indexing of values, as Python does them.
// Thread rule: pure functions.
#pragma once

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace sharpi::jinja {

/// What arithmetic with integers beyond 64 bits says.
Status too_large();
/// a op b for arithmetic. kInvalidArgument for types that do not go together, for a division by
/// zero and for integers that leave 64 bits.
Status binary(Op op, const Value& a, const Value& b, Heap* heap, Value* out);
/// a op b for comparisons and membership.
Status compare(Op op, const Value& a, const Value& b, Heap* heap, bool* out);
/// obj[key] as Jinja means it: an item, else an attribute of that name, else undefined.
Status item_of(const Value& object, const Value& key, Heap* heap, Value* out);
/// obj[from:to:step]; parts that are none take their defaults.
Status slice_of(const Value& object, const Value& from, const Value& to, const Value& step,
                Heap* heap, Value* out);

}  // namespace sharpi::jinja
