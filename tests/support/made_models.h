// SPDX-License-Identifier: MIT
// Small models with random weights whose files are not kept: they are made where they are asked
// for, of the same bytes on every machine, and so agree with their goldens
// (tools/models/make_tiny.py, which has them written by write_made_model). Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "support/gguf_writer.h"

namespace sharpi::test {

/// The file of a model; `seed` 0: the one that its golden was made with. nullopt: the name is not
/// one of theirs.
std::optional<Bytes> made_model(std::string_view name, uint64_t seed = 0);

/// The same as a file that is there until the program ends; empty: the name is not one of theirs,
/// or the system refuses.
std::string made_model_path(std::string_view name);

}  // namespace sharpi::test
