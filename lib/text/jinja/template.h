// SPDX-License-Identifier: MIT
// A parsed Jinja template, and its rendering. The subset is what chat templates use: it reads no
// file, runs no code but its own, and is bounded in steps, depth, bytes and stack.
// Thread rule: immutable; any number of renderings at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "text/jinja/marked_text.h"
#include "text/jinja/value.h"

namespace sharpi::jinja {

struct Program;

struct Limits {
  uint64_t max_steps =
      5'000'000;  // nodes evaluated, rounds of loops; the Heap bounds each one's work
  uint64_t max_bytes = uint64_t{256} << 20;  // of all values of a rendering, and its output
  /// Of nodes and calls, in every build. Levels that take more than some 160 bytes of stack, as
  /// calls of macros do, meet kMaxStackBytes before.
  uint32_t max_depth = 400;
};

using Variable = std::pair<std::string_view, Value>;

class Template {
 public:
  /// Errors as parse_template() has them.
  static Result<std::shared_ptr<const Template>> parse(std::string_view source);
  ~Template();
  Template(const Template&) = delete;
  Template& operator=(const Template&) = delete;

  /// `heap` holds `variables`. `now`: seconds since 1970 for strftime_now, in the machine's time
  /// zone. kInvalidArgument: the template raised, or Python would have; kUnsupported names what
  /// the interpreter does not have; kDoesNotFit: a limit. All with line and column.
  Status render(std::span<const Variable> variables, int64_t now, const Limits& limits, Heap* heap,
                MarkedText* out) const;

 private:
  explicit Template(std::unique_ptr<const Program> program);
  std::unique_ptr<const Program> program_;
};

}  // namespace sharpi::jinja
