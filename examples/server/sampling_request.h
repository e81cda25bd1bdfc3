// SPDX-License-Identifier: MIT
// What all routes that generate have in common: sampling, stop strings, limits.
// Thread rule: pure functions.
#pragma once

#include "fields.h"
#include "generation.h"

namespace server {

Sampling read_sampling(Fields& fields, const Settings& settings, const Engine& engine);
std::vector<std::string> read_stops(Fields& fields);
/// Throws RequestError where the prompt leaves no room for an answer.
void check_length(const Engine& engine, const Tokens& prompt);
/// Fields of OpenAI's API that change nothing here.
void ignore_bookkeeping(Fields& fields);
/// Fields that would change the answer, and that this server does not have.
void refuse_unsupported(Fields& fields);
/// The model's name must be the one that is served, where it is given.
void check_model(Fields& fields, const Engine& engine);
/// A name with a prefix that no other answer has.
std::string new_id(const char* prefix);
/// A number that differs from call to call, for seeds that nobody gave.
uint64_t random_number();

}  // namespace server
