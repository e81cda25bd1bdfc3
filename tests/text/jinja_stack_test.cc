// SPDX-License-Identifier: MIT
// Templates that nest without end, on threads with small stacks: every way to recurse ends with a
// sentence, and in a known number of bytes.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "text/jinja/json.h"
#include "text/jinja/stack_bound.h"
#include "text/jinja/template.h"

namespace sharpi::jinja {
namespace {

// What a call takes besides: the frames of one level, and of a function that formats, prints or
// asks for the time where the bound is nearly reached.
#ifdef SHARPI_SANITIZED
constexpr size_t kBeyondBound = size_t{64} << 10;
constexpr size_t kThreadStack = size_t{512} << 10;
#else
constexpr size_t kBeyondBound = size_t{12} << 10;
constexpr size_t kThreadStack = size_t{128} << 10;  // musl's
#endif
constexpr size_t kGuard = size_t{64} << 10;
constexpr unsigned char kPaint = 0xA5;

/// Runs it on a thread of its own, whose stack ends where nothing may be written; the bytes of the
/// stack that were.
size_t stack_of(const std::function<void()>& run) {
  void* const memory = mmap(nullptr, kGuard + kThreadStack, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuard, PROT_NONE) != 0) return SIZE_MAX;
  auto* const stack = static_cast<unsigned char*>(memory) + kGuard;
  std::memset(stack, kPaint, kThreadStack);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, stack, kThreadStack);
  const auto entry = [](void* f) -> void* {
    (*static_cast<const std::function<void()>*>(f))();
    return nullptr;
  };
  pthread_t thread;
  const int failed = pthread_create(&thread, &attributes, entry,
                                    const_cast<void*>(static_cast<const void*>(&run)));
  if (failed == 0) pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  size_t untouched = 0;
  while (untouched < kThreadStack && stack[untouched] == kPaint) ++untouched;
  munmap(memory, kGuard + kThreadStack);
  return failed == 0 ? kThreadStack - untouched : SIZE_MAX;
}

struct OnThread {
  Status status;
  std::string text;
  size_t parsing = 0, rendering = 0;  // bytes of stack, without what the thread itself takes
};

OnThread render_on_thread(const std::string& source) {
  OnThread out;
  const size_t thread = stack_of([] {});
  std::shared_ptr<const Template> parsed;
  const size_t parsing = stack_of([&] {
    auto result = Template::parse(source);
    if (result.is_ok())
      parsed = result.take();
    else
      out.status = result.take_status();
  });
  out.parsing = parsing - std::min(thread, parsing);
  if (parsed == nullptr) return out;
  const size_t rendering = stack_of([&] {
    const Limits limits;
    Heap heap(limits.max_bytes);
    MarkedText text;
    out.status = parsed->render({}, 1753800000, limits, &heap, &text);
    out.text = text.take();
  });
  out.rendering = rendering - std::min(thread, rendering);
  return out;
}

std::string times(size_t n, std::string_view text) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += text;
  return out;
}

/// `open` n times, the middle, `close` n times.
struct Nest {
  std::string open, middle, close;
  std::string output = {};  // of any depth that fits

  std::string of(size_t n) const {
    const bool tags = open.starts_with("{%");
    const std::string nested = times(n, open) + middle + times(n, close);
    return tags ? nested : "{% set f = '1' %}{{ " + nested + " }}";
  }
};

const Nest kNests[] = {
    {"(", "1", ")", "1"},
    {"- - ", "1", "", "1"},
    {"not not ", "1", "", "True"},
    {"[", "1", "][0]", "1"},
    {"{'a': ", "1", "}.a", "1"},
    {"(", "1", ",)[0]", "1"},
    {"1|default(", "1", ")", "1"},
    {"f|replace('2', ", "f", ")", "1"},
    {"dict(a=", "1", ").a", "1"},
    {"f.replace('2', ", "f", ")", "1"},
    {"1 is eq(", "1", ")", "True"},
    {"1 if 0 else ", "1", "", "1"},
    {"1 if (", "1", ") else 2", "1"},
    {"'' ~ (", "1", ")", "1"},
    {"1 == (", "1", ")", "True"},
    {"0 + (", "1", ")", "1"},
    {"0 * (", "1", ") + 1", "1"},
    {"1 and (", "1", ")", "1"},
    {"f[", "0", "]|int - 1", "0"},
    {"f[0:", "1", "]|int", "1"},
    {"", "1", " + 0", "1"},
    {"", "1", " or 0", "1"},
    {"", "1", " ** 1", "1"},
    {"", "1", "|abs", "1"},
    {"", "f", "[0]", "1"},
    {"", "f", "[0:1]", "1"},
    {"", "f", ".strip()", "1"},
    {"", "[1]", "|map('abs')|list", "[1]"},
    {"", "1", " if 1", "1"},
    {"(", "1", " is number)", "True"},
    {"{% if 1 %}", "1", "{% endif %}", "1"},
    {"{% if 0 %}{% else %}", "1", "{% endif %}", "1"},
    {"{% for i in [1] %}", "1", "{% endfor %}", "1"},
    {"{% for i in [] %}{% else %}", "1", "{% endfor %}", "1"},
    {"{% set x %}", "1", "{% endset %}{{ x }}", "1"},
    {"{% set x | upper %}", "1", "{% endset %}{{ x }}", "1"},
    {"{% filter upper %}", "1", "{% endfilter %}", "1"},
    {"{% with a = 1 %}", "1", "{% endwith %}", "1"},
    {"{% macro f() %}", "1", "{% endmacro %}{{ f() }}", "1"},
    {"{% macro g() %}{{ caller() }}{% endmacro %}{% call g() %}", "1", "{% endcall %}", "1"},
    {"{% generation %}", "1", "{% endgeneration %}", "1"},
};

void expect_bounded(const OnThread& r, const std::string& what) {
  EXPECT_LE(r.parsing, kMaxStackBytes + kBeyondBound) << what;
  EXPECT_LE(r.rendering, kMaxStackBytes + kBeyondBound) << what;
}

TEST(JinjaStack, NestedTemplatesRenderOnSmallStacks) {
  for (const Nest& nest : kNests) {
    const std::string source = nest.of(24);
    const OnThread r = render_on_thread(source);
    EXPECT_TRUE(r.status.is_ok()) << source << r.status.text();
    EXPECT_EQ(r.text, nest.output) << source;
    expect_bounded(r, source);
  }
}

TEST(JinjaStack, DeeperTemplatesAreRefusedOnSmallStacks) {
  for (const Nest& nest : kNests) {
    // Around the bounds either may happen, by the build; far behind them there is one answer.
    for (const size_t n : {60u, 90u, 120u, 250u, 5000u}) {
      const std::string what = nest.of(2) + " and so on, " + std::to_string(n);
      const OnThread r = render_on_thread(nest.of(n));
      expect_bounded(r, what);
      if (r.status.is_ok() && n < 5000) {
        EXPECT_EQ(r.text, nest.output) << what;
        continue;
      }
      const bool parsing = r.rendering == 0;
      EXPECT_EQ(r.status.code(), parsing ? Code::kFormat : Code::kDoesNotFit) << what;
      EXPECT_NE(r.status.text().find(parsing ? ": the template is nested too deeply here"
                                             : ": the template goes deeper than "),
                std::string::npos)
          << what << r.status.text();
    }
  }
}

/// Bodies of a macro f() that call it.
const char* const kCalls[] = {
    "{{ f() }}",
    "{{ 'a' ~ f() }}",
    "{{ x|default(f(), true) }}",
    "{{ f()|upper }}",
    "{{ f(x=f()) }}",
    "{{ f(*[f()]) }}",
    "{{ f(**{'x': f()}) }}",
    "{% for i in [1] %}{{ f() }}{% endfor %}",
    "{% for i in [f()] %}{% endfor %}",
    "{% for i in [1] if f() %}{% endfor %}",
    "{% for i in [] %}{% else %}{{ f() }}{% endfor %}",
    "{% for i in [1, 2] if i == 1 or f() %}{{ loop.length }}{% endfor %}",
    "{% set a = f() %}",
    "{% set a %}{{ f() }}{% endset %}",
    "{% set a | default(f()) %}a{% endset %}",
    "{% filter upper %}{{ f() }}{% endfilter %}",
    "{% filter default(f()) %}a{% endfilter %}",
    "{% with a = f() %}{% endwith %}",
    "{% with a = 1 %}{{ f() }}{% endwith %}",
    "{% if f() %}{% endif %}",
    "{% if 0 %}{% elif f() %}{% endif %}",
    "{{ 1 is eq(f()) }}",
    "{{ 1 == f() }}",
    "{{ [f()] }}",
    "{{ {'a': f()} }}",
    "{{ 'a'[0:f()] }}",
    "{{ [1][f()] }}",
    "{{ 1 if f() else 2 }}",
    "{{ - f() }}",
    "{{ 'a'.replace('a', f()) }}",
    "{{ f().upper() }}",
    "{% call f() %}a{% endcall %}",
    "{% call f() %}{{ caller() }}{% endcall %}{{ caller() }}",
    "{{ ns.f() }}",
    // What takes the most stack by itself, where little is left.
    "{{ strftime_now('%c') }}{{ 1.5e300|round(3) }}{{ '1.5e300'|float }}{{ 1.25 }}{{ f() }}",
    "{{ [1.5, {'a': 'b'}]|tojson(indent=2, sort_keys=true) }}{{ [2, 1]|sort }}{{ f() }}",
    "{{ [[1]]|map('map', 'abs')|map('list')|list }}{{ '%s'|format('b') }}{{ f() }}",
};

TEST(JinjaStack, MacrosThatCallThemselvesAreRefusedOnSmallStacks) {
  for (const std::string body : kCalls) {
    const OnThread r = render_on_thread("{% set ns = namespace() %}{% macro f(x='', y=2) %}" +
                                        body + "{% endmacro %}{% set ns.f = f %}{{ f() }}");
    EXPECT_EQ(r.status.code(), Code::kDoesNotFit) << body << r.status.text();
    EXPECT_NE(r.status.text().find(": the template goes deeper than "), std::string::npos)
        << body << r.status.text();
    expect_bounded(r, body);
  }
  const OnThread r = render_on_thread("{% macro f(x=f()) %}{% endmacro %}{{ f() }}");
  EXPECT_NE(r.status.text().find(": the template goes deeper than "), std::string::npos);
  expect_bounded(r, "an argument that is missing");
}

TEST(JinjaStack, CallsOfMacrosThatFit) {
  const std::string macro =
      "{% macro f(n) %}{% if n > 0 %}{{ n }} {{ f(n - 1) }}{% endif %}{% endmacro %}";
  const OnThread r = render_on_thread(macro + "{{ f(24) }}");
  ASSERT_TRUE(r.status.is_ok()) << r.status.text();
  EXPECT_EQ(r.text.substr(0, 9), "24 23 22 ");
}

/// A macro that calls itself, and before does on every level what the case is about.
std::string on_every_level(const std::string& body) {
  return "{% macro f() %}" + body + "{{ f() }}{% endmacro %}{{ f() }}";
}

/// Values in values, by a loop: as deep as the case wants.
std::string grown(const char* n, const char* a) {
  std::string out = "{% set ns = namespace(a=1, b=1) %}{% for i in range(";
  out.append(n).append(") %}");
  for (const char* name : {"a", "b"}) {
    std::string value(a);
    value.replace(value.find('#'), 1, std::string("ns.") + name);
    out.append("{% set ns.").append(name).append(" = ").append(value).append(" %}");
  }
  return out + "{% endfor %}";
}

constexpr const char* kDeeper = ": the template goes deeper than ";

struct ValueCase {
  std::string source;
  const char* expected;  // of the output, or of the refusal
};

TEST(JinjaStack, DeepValuesAreComparedAndPrintedOnSmallStacks) {
  const ValueCase cases[] = {
      {grown("50", "[#]") + "{{ ns.a == ns.b }}", "True"},
      {grown("50", "[#]") + "{{ ns.a < ns.b }}", "False"},
      {grown("50", "{'k': #}") + "{{ ns.a == ns.b }}", "True"},
      {grown("9999", "[#]") + "{{ ns.a == ns.b }}", "False"},  // cut, as value.h says
      {grown("9999", "{'k': #}") + "{{ ns.a == ns.b }}", "False"},
      {grown("20", "{(#,): 1}") + "{{ ns.a == ns.b }}", "True"},
      {grown("9999", "{(#,): 1}") + "{{ ns.a == ns.b }}", kDeeper},
      {grown("9999", "{(#,): 1}") + "{{ ns.a in [ns.b] }}", kDeeper},
      {grown("9999", "{(#,): 1}") + "{{ [ns.a, ns.b]|unique|list|count }}", kDeeper},
      {grown("9999", "[#]") + "{{ ns.a }}", "a value is nested deeper than 64"},
      {grown("9999", "{'k': #}") + "{{ ns.a }}", "a value is nested deeper than 64"},
      {grown("9999", "{(#,): 1}") + "{{ ns.a }}", "a value is nested deeper than 64"},
      {grown("9999", "[#]") + "{{ ns.a|tojson }}", "a value is nested deeper than 64"},
      {grown("9999", "{'k': #}") + "{{ ns.a|tojson(indent=4) }}", "deeper than 64"},
      {"{% for " + times(5000, "(") + "a" + times(5000, ",)") + " in [1] %}{% endfor %}",
       ": the template is nested too deeply here"},
      // With what is left of the bound, down to nothing.
      {grown("60", "[#]") + on_every_level("{% set x = ns.a ~ '' %}"), kDeeper},
      {grown("60", "{'k': #}") + on_every_level("{% set x = ns.a ~ '' %}"), kDeeper},
      {grown("60", "[#]") + on_every_level("{% set x = ns.a|tojson %}"), kDeeper},
      {grown("60", "{'k': #}") + on_every_level("{% set x = ns.a|tojson(indent=1) %}"), kDeeper},
      {grown("60", "[#]") + on_every_level("{% set x = ns.a == ns.b %}"), kDeeper},
      {grown("60", "[#]") + on_every_level("{% set x = ns.a < ns.b %}"), kDeeper},
      {grown("60", "[#]") + on_every_level("{% set x = [ns.a, ns.b]|sort|min %}"), kDeeper},
      {grown("60", "{(#,): 1}") + on_every_level("{% set x = ns.a in [ns.b] %}"), kDeeper},
      {on_every_level("{% set " + times(60, "(") + "a" + times(60, ",)") + " = " + times(60, "[") +
                      "1" + times(60, "]") + " %}"),
       kDeeper},
      {on_every_level("{% set x" + times(200, " | upper").replace(0, 2, " |") + " %}a{% endset %}"),
       kDeeper},
      {on_every_level("{% set x = [[[[[[[[[1]]]]]]]]]|map('map', 'map', 'map', 'map', 'map',"
                      " 'map', 'map', 'sort')|list %}"),
       kDeeper},
      {"{% set x" + times(200, " | upper").replace(0, 2, " |") + " %}a{% endset %}{{ x }}", "A"},
      {"{% set x" + times(5000, " | upper") + " %}a{% endset %}", "nested too deeply here"},
      {"{{ 1" + times(5000, " ~ 1") + " }}", "11111"},
      {"{{ 1" + times(5000, " <= 1") + " }}", "True"},
      {"{% if 0 %}" + times(5000, "{% elif 0 %}") + "{% else %}x{% endif %}", "x"},
  };
  for (const ValueCase& c : cases) {
    const std::string end =
        c.source.substr(c.source.size() - std::min<size_t>(c.source.size(), 80));
    const OnThread r = render_on_thread(c.source);
    const std::string& text = r.status.is_ok() ? r.text : r.status.text();
    EXPECT_NE(text.find(c.expected), std::string::npos) << end << "\n" << text.substr(0, 200);
    expect_bounded(r, end);
  }
}

TEST(JinjaStack, WhateverBeginsNearTheBoundEndsThere) {
  const std::string bodies[] = {
      "{% set x" + times(200, " | upper").replace(0, 2, " |") + " %}a{% endset %}",
      "{% set " + times(100, "(") + "a" + times(100, ",)") + " = ns.a %}",
      "{{ ns.a }}",
      "{{ ns.a == ns.b }}",
  };
  for (const std::string& body : bodies) {
    for (size_t calls = 5; calls < 100; calls += 5) {
      const OnThread r = render_on_thread(
          grown("100", "[#]") + "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{% else %}" + body +
          "{% endif %}{% endmacro %}{{ f(" + std::to_string(calls) + ") }}");
      expect_bounded(r, body.substr(0, 40) + std::to_string(calls));
    }
  }
}

TEST(JinjaStack, DeepJsonIsReadAndRefusedOnSmallStacks) {
  for (const char* open : {"[", "{\"a\":"}) {
    const char* const close = *open == '[' ? "]" : "}";
    for (const size_t n : {64u, 65u, 100000u}) {
      Status status;
      const std::string text = times(n, open) + "1" + times(n, close);
      const size_t used = stack_of([&] {
        Heap heap(uint64_t{64} << 20);
        Value value;
        status = parse_json(text, "tools", &heap, &value);
      });
      EXPECT_EQ(status.is_ok(), n <= 64) << open << n;
      if (n > 64) {
        EXPECT_NE(status.text().find("nested too deeply"), std::string::npos);
      }
      EXPECT_LE(used, kMaxStackBytes + kBeyondBound);
    }
  }
}

TEST(JinjaStack, TheFirstOfEntriesInsideEachOtherCounts) {
  StackBound bound;
  EXPECT_FALSE(bound.is_spent());  // nothing entered
  const StackEntry outer(&bound);
  const auto here = [] { return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)); };
  const uintptr_t top = here();
  uintptr_t lowest = top;
  // Every level enters again, which gives it no further room.
  const std::function<size_t(size_t)> levels = [&](size_t n) -> size_t {
    const StackEntry entry(&bound);
    lowest = std::min(lowest, here());
    volatile size_t kept = n;
    if (bound.is_spent() || n > 100000) return n;
    const size_t reached = levels(n + 1);
    return kept == n ? reached : 0;
  };
  EXPECT_GT(levels(0), 4u);
  EXPECT_GT(top - lowest, kMaxStackBytes / 2);
  EXPECT_LT(top - lowest, kMaxStackBytes + 4096);
  EXPECT_FALSE(bound.is_spent());
}

}  // namespace
}  // namespace sharpi::jinja
