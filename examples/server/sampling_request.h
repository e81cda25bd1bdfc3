// SPDX-License-Identifier: MIT
// What all routes that generate have in common: sampling, stop strings, limits.
// Thread rule: pure functions.
#pragma once

#include <functional>
#include <memory>

#include "answer_format.h"
#include "fields.h"
#include "generation.h"

namespace server {

/// Throws RequestError where the prompt leaves no room for an answer. @param param the field that
/// it comes from.
void check_length(const Engine& engine, const Tokens& prompt, const char* param);
/// The same of a text that is not taken apart into tokens yet: throws where so many bytes cannot
/// fit. A long prompt is refused by this before the second that its tokens would take.
void check_bytes(const Engine& engine, uint64_t bytes, const char* param);
/// A model that is named must be the served one.
void check_model(Fields& fields, const Engine& engine);
/// Stop strings: a text, or a list of them.
std::vector<std::string> read_stops(Fields& fields, const char* name);
/// What every route takes: the model's name, which must be the served one; sampling, stop strings,
/// the first of `limits` that is given as most tokens of the answer; and what changes nothing here
/// or is refused everywhere. @return whether the answer is streamed.
bool read_common(Fields& fields, const Engine& engine, const Settings& settings,
                 std::initializer_list<const char*> limits, Generation* out);
/// A list of ids, each of which has to be one of the model's tokens. @param where it stands.
Tokens read_token_ids(Fields& fields, const std::string& where, const json& list,
                      const Engine& engine);
/// `n`: answers to one prompt, up to those that are written at once.
size_t read_n(Fields& fields, const Settings& settings);
/// Each follows what it has to match by itself.
using MakeConstraint = std::function<std::shared_ptr<Constraint>()>;
/// The same n times, with seeds that follow each other.
void add_choices(const Generation& first, size_t n, const MakeConstraint& make, Asked* asked);
/// A name with a prefix that no other answer has.
std::string new_id(const char* prefix);
/// A number that differs from call to call, for seeds that nobody gave.
uint64_t random_number();

}  // namespace server
