// SPDX-License-Identifier: MIT
// The template interpreter: every construct as jinja2 renders it, where text comes from, and what
// happens to templates that are malformed or mean harm.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "support/system.h"
#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace sharpi::jinja {
namespace {

struct JinjaCase {
  const char* source;
  const char* expected;  // null: jinja2 refuses it, too
};

#include "jinja_cases.inc"

struct Rendered {
  Status status;
  MarkedText text;
};

Rendered render(std::string_view source, const char* variables = "{}", const Limits& limits = {},
                uint64_t max_work = Heap::kMaxWork) {
  Rendered out;
  auto parsed = Template::parse(source);
  if (!parsed.is_ok()) {
    out.status = parsed.take_status();
    return out;
  }
  Heap heap(limits.max_bytes, max_work);
  Value dict;
  out.status = parse_json(variables, "variables", &heap, &dict);
  if (!out.status.is_ok()) return out;
  std::vector<Variable> list;
  for (const auto& [key, value] : dict.dict->items) list.emplace_back(key.bytes(), value);
  out.status = parsed.value()->render(list, 1753800000, limits, &heap, &out.text);
  return out;
}

TEST(Jinja, EveryConstructRendersAsJinja2Renders) {
  for (const JinjaCase& c : kJinjaCases) {
    const Rendered r = render(c.source, kVariables);
    if (c.expected == nullptr) {
      ASSERT_FALSE(r.status.is_ok()) << c.source << "\n" << r.text.bytes();
      EXPECT_EQ(r.status.text().rfind("chat template, line ", 0), 0u) << r.status.text();
      continue;
    }
    ASSERT_TRUE(r.status.is_ok()) << c.source << "\n" << r.status.text();
    EXPECT_EQ(r.text.bytes(), c.expected) << c.source;
  }
}

struct ErrorCase {
  const char* source;
  Code code;
  const char* text;
};

TEST(Jinja, ErrorsSayWhereAndWhat) {
  const ErrorCase cases[] = {
      {"a\n  {{ x.y }}", Code::kInvalidArgument, "line 2, column 7: 'x' is undefined"},
      {"é{{ 1 / 0 }}", Code::kInvalidArgument, "line 1, column 7: division by zero"},
      {"{% if x %}\n", Code::kFormat, "the template ends before \"endif\""},
      {"{{ 'a", Code::kFormat, "line 1, column 4: a string has no end"},
      {"{# a", Code::kFormat, "line 1, column 1: a comment has no end"},
      {"{{ a", Code::kFormat, "line 1, column 1: a tag has no end"},
      {"{{ (1] }}", Code::kFormat, "a bracket closes that none opened"},
      {"{% endif %}", Code::kFormat, "there is no such tag: \"endif\""},
      {"{% include 'x' %}", Code::kUnsupported, "\"include\" is not supported"},
      {"{% import 'x' as y %}", Code::kUnsupported, "\"import\" is not supported"},
      {"{% extends 'x' %}", Code::kUnsupported, "\"extends\" is not supported"},
      {"{{ 1|pprint }}", Code::kUnsupported, "the filter \"pprint\" is not supported"},
      {"{{ 1 is odder }}", Code::kUnsupported, "the test \"odder\" is not supported"},
      {"{{ [1].append(2) }}", Code::kUnsupported, "list.append() is not supported"},
      {"{{ raise_exception('no ' + 'way') }}", Code::kInvalidArgument,
       "the template refuses: no way"},
      {"{{ 9223372036854775807 + 1 }}", Code::kInvalidArgument, "an integer has more than 63 bits"},
      {"{{ 99999999999999999999 }}", Code::kFormat, "more than 63 bits"},
      {"{{ '\\N{DASH}' }}", Code::kFormat, "are not supported"},
      {"{% for x in [1] recursive %}{{ loop([]) }}{% endfor %}", Code::kUnsupported,
       "recursive loops are not supported"},
      {"{{ joiner() }}", Code::kUnsupported, "cycler, joiner and lipsum are not supported"},
  };
  for (const ErrorCase& c : cases) {
    const Rendered r = render(c.source);
    EXPECT_EQ(r.status.code(), c.code) << c.source << ": " << r.status.text();
    EXPECT_NE(r.status.text().find(c.text), std::string::npos)
        << c.source << ": " << r.status.text();
    EXPECT_EQ(r.status.text().rfind("chat template, line ", 0), 0u) << r.status.text();
  }
}

TEST(Jinja, HarmfulTemplatesEndWithALimit) {
  std::string deep_sum = "{{ 1", deep_list = "{{ ", deep_if;
  for (int i = 0; i < 20000; ++i) {
    deep_sum += " + 1";
    deep_list += "[";
    deep_if += "{% if 1 %}";
  }
  deep_sum += " }}";
  deep_list.append(20000, ']').append(" }}");
  const ErrorCase cases[] = {
      {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
       Code::kDoesNotFit, "steps"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", Code::kDoesNotFit, "goes deeper than"},
      {"{% macro f() %}{{ f() ~ f() }}{% endmacro %}{{ f() }}", Code::kDoesNotFit,
       "goes deeper than"},
      {"{{ 'x' * 9999999999 }}", Code::kDoesNotFit, "builds more text"},
      {"{{ [1] * 9999999999 }}", Code::kDoesNotFit, "builds more text"},
      {"{{ 'x' * 9223372036854775807 }}", Code::kDoesNotFit, "builds more text"},
      {"{{ '7'.zfill(99999999999) }}", Code::kDoesNotFit, "builds more text"},
      {"{% set ns = namespace(s='x') %}{% for i in range(99999) %}{% set ns.s = ns.s + ns.s %}"
       "{% endfor %}",
       Code::kDoesNotFit, "builds more text"},
      {"{% set ns = namespace(s=[1]) %}{% for i in range(99999) %}{% set ns.s = ns.s + ns.s %}"
       "{% endfor %}",
       Code::kDoesNotFit, "builds more text"},
      {"{% set ns = namespace(s='x') %}{% for i in range(99999) %}"
       "{% set ns.s = ns.s | replace('', ns.s) %}{% endfor %}",
       Code::kDoesNotFit, "builds more text"},
      {"{% set ns = namespace(d={}) %}{% for i in range(99999) %}{% set ns.d = {'k': ns.d} %}"
       "{% endfor %}{{ ns.d | tojson }}",
       Code::kDoesNotFit, "nested deeper"},
      {"{% set ns = namespace(d=[]) %}{% for i in range(99999) %}{% set ns.d = [ns.d] %}"
       "{% endfor %}{{ ns.d }}",
       Code::kDoesNotFit, "nested deeper"},
      {"{{ range(9223372036854775807) }}", Code::kDoesNotFit, "Range too big"},
      {"{{ [1] | map('map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map',"
       " 'upper') | list }}",
       Code::kDoesNotFit, "filters apply filters"},
      {deep_sum.c_str(), Code::kFormat, "nested too deeply"},
      {deep_list.c_str(), Code::kFormat, "nested too deeply"},
      {deep_if.c_str(), Code::kFormat, "nested too deeply"},
  };
  for (const ErrorCase& c : cases) {
    const std::string source = c.source;
    const Rendered r = render(source);
    const bool either = r.status.text().find("not iterable") != std::string::npos;
    EXPECT_TRUE(r.status.code() == c.code || either) << source.substr(0, 90) << r.status.text();
    EXPECT_TRUE(r.status.text().find(c.text) != std::string::npos || either)
        << source.substr(0, 90) << ": " << r.status.text();
  }
}

/// {0: 1, 1: 1, ...} with n items, or with keys that are strings.
std::string dict_literal(size_t n, bool strings) {
  std::string out = "{";
  for (size_t i = 0; i < n; ++i) {
    const std::string key = std::to_string(i);
    out.append(strings ? "'k" + key + "'" : key).append(": 1, ");
  }
  return out + "}";
}

/// Runs `body` with the loop variables j and i, `times` times 1000 rounds.
std::string rounds(size_t times, const std::string& body) {
  return "{% for j in range(" + std::to_string(times) + ") %}{% for i in range(1000) %}" + body +
         "{% endfor %}{% endfor %}";
}

void expect_too_much_text(const std::vector<std::string>& sources) {
  for (const std::string& source : sources) {
    const std::string end = source.substr(source.size() - std::min<size_t>(source.size(), 90));
    const Rendered r = render(source, R"({"u": "x"})");
    EXPECT_EQ(r.status.code(), Code::kDoesNotFit) << end;
    EXPECT_NE(r.status.text().find("builds more text"), std::string::npos)
        << end << r.status.text();
  }
}

TEST(Jinja, WhateverATemplateKeepsCountsAsItsBytes) {
  const std::string ints = "{% set d = " + dict_literal(5000, false) + " %}";
  const std::string texts = "{% set d = " + dict_literal(200, true) + " %}";
  expect_too_much_text({
      ints + rounds(4, "{% set x = dict(d) %}"),
      ints + rounds(4, "{% set x = namespace(d) %}"),
      texts + rounds(40, "{% set x = dict(**d) %}"),
      "{% macro m() %}{{ kwargs|length }}{% endmacro %}" + texts + rounds(40, "{{ m(**d) }}"),
      rounds(1000, "{% for x in [] %}{% endfor %}"),
      rounds(1000, "{% for x in '' %}{% endfor %}"),
      rounds(1000, "{% with a = 1, b = 2, c = 3, e = 4, f = 5 %}{% endwith %}"),
  });
}

TEST(Jinja, PartsOfATextCountAsTheirBytes) {
  expect_too_much_text({
      "{{ ('a ' * 8000000).split()|length }}",
      "{{ ('a,' * 8000000).split(',')|length }}",
      "{{ ('a\n' * 8000000).splitlines()|length }}",
  });
}

TEST(Jinja, CharactersOfATextCountAsTheirBytes) {
  expect_too_much_text({
      "{{ ('a' * 8000000)|list|length }}",
      "{{ ('a' * 80000000)[::-1]|length }}",
      "{{ ((u ~ 'y') * 40000000)[0] }}",
  });
}

/// Lists a and b of a namespace that are equal and share their items: n deep, 2 to the n wide.
std::string shared_lists(size_t n) {
  return "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(" + std::to_string(n) +
         ") %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}";
}

/// A part of what a template may take: as good as all of it to see that a step's work counts.
constexpr uint64_t kTriedWork = Heap::kMaxWork / 32;

/// `before`: what the sources begin with, which does less than what is tried.
void expect_too_much_work(const std::vector<std::string>& before,
                          const std::vector<std::string>& sources) {
  for (const std::string& source : before)
    EXPECT_TRUE(render(source, "{}", {}, kTriedWork).status.is_ok()) << source.substr(0, 60);
  for (const std::string& source : sources) {
    const std::string end = source.substr(source.size() - std::min<size_t>(source.size(), 90));
    const Rendered r = render(source, "{}", {}, kTriedWork);
    EXPECT_EQ(r.status.code(), Code::kDoesNotFit) << end;
    EXPECT_NE(r.status.text().find("than it is allowed to"), std::string::npos)
        << end << r.status.text();
  }
}

TEST(Jinja, WorkThatATemplateHidesInAStepIsBounded) {
  expect_too_much_work(
      {shared_lists(60)},
      {
          shared_lists(60) + "{{ ns.a == ns.b }}",
          shared_lists(60) + "{{ ns.a != ns.b }}",
          shared_lists(60) + "{{ ns.a < ns.b }}",
          shared_lists(60) + "{{ ns.a in [ns.b] }}",
          shared_lists(60) + "{{ [ns.a].index(ns.b) }}",
          shared_lists(60) + "{{ [ns.a, ns.b]|unique|list }}",
          shared_lists(60) + "{{ [ns.a, ns.b]|sort }}",
          shared_lists(60) + "{{ [ns.a, ns.b]|max }}",
          shared_lists(60) + "{% for x in [ns.a, ns.b] %}{{ loop.changed(x) }}{% endfor %}",
          "{% set ns = namespace(a={}, b={}) %}{% for i in range(60) %}"
          "{% set ns.a = {1: ns.a, 2: ns.a} %}{% set ns.b = {1: ns.b, 2: ns.b} %}{% endfor %}"
          "{{ ns.a == ns.b }}",
      });
}

TEST(Jinja, WorkOnLongTextsIsBounded) {
  const std::string long_text = "{% set s = 'a' * 4000000 %}{% set t = 'a' * 4000000 %}";
  expect_too_much_work({long_text}, {
                                        long_text + rounds(10, "{% if s|length %}{% endif %}"),
                                        long_text + rounds(10, "{% if s[5000000] %}{% endif %}"),
                                        long_text + rounds(100, "{% if s == t %}{% endif %}"),
                                        long_text + rounds(100, "{% if s <= t %}{% endif %}"),
                                        long_text + rounds(10, "{% if s.endswith(t) %}{% endif %}"),
                                        long_text + rounds(10, "{% if s.count('b') %}{% endif %}"),
                                        long_text + rounds(10, "{% if s is lower %}{% endif %}"),
                                        long_text + rounds(10, "{% if s|int %}{% endif %}"),
                                        "{% set s = 'a' * 100000 %}" +
                                            rounds(1, "{{ s.strip('b' * 100000 ~ 'a') }}"),
                                    });
}

TEST(Jinja, WorkOnManyNamesIsBounded) {
  const std::string many_keys = "{% set d = " + dict_literal(5000, true) + " %}";
  const std::string many_names = [] {
    std::string out;
    for (int i = 0; i < 5000; ++i) out += "{% set v" + std::to_string(i) + " = 1 %}";
    return out;
  }();
  expect_too_much_work(
      {many_keys, many_names},
      {
          many_keys + rounds(200, "{% if d.get('zzz') %}{% endif %}"),
          many_keys + rounds(200, "{% if d.zzz %}{% endif %}"),
          many_keys + rounds(200, "{% if 'zzz' in d %}{% endif %}"),
          many_keys + "{% set n = namespace(d) %}" + rounds(200, "{% if n.zzz %}{% endif %}"),
          many_keys + rounds(4, "{% set x = '{k4999}'.format(**d) %}{% set y = namespace(**d) %}"),
          many_names + rounds(400, "{% if zzz %}{% endif %}"),
      });
}

TEST(Jinja, TextsAreFoundInLinearTime) {
  // Each of these would take hours if every place were compared from its beginning.
  const std::string texts =
      "{% set h = 'a' * 4000000 %}{% set n = 'a' * 2000000 %}"
      "{% set b = n ~ 'b' %}{% set c = 'b' ~ n %}";
  const std::pair<const char*, const char*> cases[] = {
      {"{{ b in h }}{{ c in h }}{{ n in h }}", "FalseFalseTrue"},
      {"{{ h.find(b) }}{{ h.rfind(c) }} {{ h.rfind(n) }} {{ h.count(n) }}", "-1-1 2000000 2"},
      {"{{ h.split(b)|length }}{{ h.rsplit(c, 1)|length }}{{ h.rsplit(n, 1)[0]|length }}",
       "112000000"},
      {"{{ h.replace(b, '')|length }} {{ h|replace(c, '')|length }}", "4000000 4000000"},
      {"{{ ('ab' * 400000).rsplit('ab', 300000)|length }}", "300001"},
  };
  for (const auto& [source, expected] : cases) {
    const Rendered r = render(texts + source);
    ASSERT_TRUE(r.status.is_ok()) << source << r.status.text();
    EXPECT_EQ(r.text.bytes(), expected) << source;
  }
}

TEST(Jinja, BytesThatAreNoCharactersAreStrippedInLinearTime) {
  // 0x85 is a blank where it stands alone, and looks like the middle of a character.
  auto parsed = Template::parse("{{ u.strip() }}|{{ (u ~ 'x').rstrip()|length }}");
  ASSERT_TRUE(parsed.is_ok());
  Heap heap(uint64_t{256} << 20);
  MarkedText text;
  const Variable u{"u", heap.text(std::string(4000000, '\x85'), true)};
  const Status status = parsed.value()->render({&u, 1}, 0, {}, &heap, &text);
  ASSERT_TRUE(status.is_ok()) << status.text();
  EXPECT_EQ(text.bytes(), "|4000001");
}

TEST(Jinja, ValuesMayReferToThemselves) {
  const Rendered r =
      render("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me is defined }}");
  ASSERT_TRUE(r.status.is_ok()) << r.status.text();
  EXPECT_EQ(r.text.bytes(), "True");
}

/// The text with foreign parts in brackets.
std::string marked(const MarkedText& text) {
  std::string out;
  size_t at = 0;
  for (const ForeignSpan& span : text.foreign_spans()) {
    out.append(text.bytes(), at, span.begin - at).push_back('[');
    out.append(text.bytes(), span.begin, span.end - span.begin).push_back(']');
    at = span.end;
  }
  return out.append(text.bytes(), at);
}

TEST(Jinja, EveryOperationKeepsWhereTextComesFrom) {
  const std::pair<const char*, const char*> cases[] = {
      {"a{{ u }}b", "a[<U>x y]b"},
      {"{{ '(' + u + ')' }}", "([<U>x y])"},
      {"{{ '(' ~ u ~ ')' ~ u }}", "([<U>x y])[<U>x y]"},
      {"{{ ('(' + u + ')')[1:3] }}|{{ ('(' + u)[::-1] }}|{{ ('(' + u)[0:3] }}",
       "[<U]|[y x>U<](|([<U]"},
      {"{{ ('  ' + u + ' ') | trim }}{{ (' ' ~ u).strip(' <') }}", "[<U>x yU>x y]"},
      {"{{ (u + ' z').split(' ') | join('-') }}", "[<U>x]-[y]-z"},
      {"{{ u | replace('x', 't') }}{{ 'axb'.replace('x', u) }}", "[<U>]t[ y]a[<U>x y]b"},
      {"{{ (u ~ 'q') | upper }}{{ ('q' ~ u).lower() }}", "[<U>X Y]Qq[<u>x y]"},
      {"{{ {'k': u, u: 1} | tojson }}", "{\"k\": \"[<U>x y]\", \"[<U>x y]\": 1}"},
      {"{{ [u, 'a'] }}", "['[<U>x y]', 'a']"},
      {"{{ '%s!' % u }}{{ '{}?'.format(u) }}", "[<U>x y]![<U>x y]?"},
      {"{% set b %}<{{ u }}>{% endset %}{{ b }}", "<[<U>x y]>"},
      {"{% macro m(a) %}({{ a }}){% endmacro %}{{ m(u) }}", "([<U>x y])"},
      {"{% for c in u %}{{ c }}.{% endfor %}", "[<].[U].[>].[x].[ ].[y]."},
      {"{{ u | e }}{{ ('&' | safe) + u }}", "[&lt;U&gt;x y]&[&lt;U&gt;x y]"},
      {"{{ ('a\n' ~ u) | indent(1) }}{{ u | string }}{{ u | title }}", "a\n [<U>x y<U>x y<U>x Y]"},
      {"{% filter upper %}a{{ u }}{% endfilter %}", "A[<U>X Y]"},
      {"{% for k in dict(**d) %}{{ k }}{% endfor %}{% for k in dict(a=1, **d) %}{{ k }}{% endfor "
       "%}",
       "[<k>]a[<k>]"},
      {"{% macro m() %}{{ kwargs|list|join(',') }}{% endmacro %}{{ m(a=1, **d) }}", "a,[<k>]"},
      {"{{ strftime_now(u) }}{{ strftime_now('<%%>') }}", "[<U>x y]<%>"},
      {"{{ (u ~ '%%') % () }}{{ ('' ~ p) % () }}", "[<U>x y]%[%]"},
      {"{{ u | default('z') }}{{ n | default('z') }}{{ u | length }}", "[<U>x y]z6"},
  };
  for (const auto& [source, expected] : cases) {
    const Rendered r = render(source, R"({"u": "<U>x y", "d": {"<k>": 1}, "p": "%%"})");
    ASSERT_TRUE(r.status.is_ok()) << source << ": " << r.status.text();
    EXPECT_EQ(marked(r.text), expected) << source;
  }
}

TEST(Jinja, TimeIsTheOneGiven) {
  const Rendered r = render("{{ strftime_now('%Y') }}|{{ strftime_now('') }}|");
  ASSERT_TRUE(r.status.is_ok()) << r.status.text();
  EXPECT_EQ(r.text.bytes(), "2025||");
  EXPECT_NE(render("{{ strftime_now(1) }}").status.text().find("strftime_now wants a format"),
            std::string::npos);
}

/// Sets a locale that writes 1,5 for 1.5 until it goes. Machines without one mostly have what
/// makes one.
class CommaLocale {
 public:
  CommaLocale() {
    for (const char* name :
         {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "es_ES.UTF-8", "it_IT.UTF-8",
          "nl_NL.UTF-8", "pt_BR.UTF-8", "ru_RU.UTF-8", "German"}) {
      found_ = set(name);
      if (found_) return;
    }
    std::filesystem::create_directories(made_);
    const std::string make =
        "localedef --no-archive -i de_DE -f UTF-8 '" + made_ + "/de_DE.UTF-8' >/dev/null 2>&1";
    if (std::system(make.c_str()) != 0) return;
    test::set_environment("LOCPATH", made_);
    found_ = set("de_DE.UTF-8");
  }
  ~CommaLocale() {
    std::setlocale(LC_ALL, "C");
    if (std::filesystem::remove_all(made_) != 0) test::unset_environment("LOCPATH");
  }
  bool found() const { return found_; }

 private:
  static bool set(const char* name) {
    return std::setlocale(LC_ALL, name) != nullptr &&
           std::string(std::localeconv()->decimal_point) == ",";
  }
  std::string made_ = ::testing::TempDir() + "sharpi-locale-" + std::to_string(getpid());
  bool found_ = false;
};

TEST(Jinja, TheLocaleOfTheProgramChangesNothing) {
  const CommaLocale locale;
  if (!locale.found()) GTEST_SKIP() << "no locale with a decimal comma is on this machine";
  const std::pair<const char*, const char*> cases[] = {
      {"{{ '1.5'|float }} {{ '2.75'|int }} {{ ' 1.25e1 '|float }}", "1.5 2 12.5"},
      {"{{ '1,5'|float }} {{ '1,5'|int }}", "0.0 0"},
      {"{{ 2.678|round(2) }} {{ 0.125|round(2) }} {{ 2.5|round }}", "2.68 0.12 2.0"},
      {"{{ real }} {{ inf }} {{ [real]|tojson }} {{ 0.5 < real }}", "1.25 inf [1.25] True"},
      {"{{ big > 1.5 }} {{ big|float }} {{ 1e20|int }}",
       "True 1.8446744073709552e+19 "
       "100000000000000000000"},
      {"{{ strftime_now('%A %B %p') }}", "Tuesday July "},
  };
  for (const auto& [source, expected] : cases) {
    const Rendered r =
        render(source, R"({"big": 18446744073709551615, "real": 1.25, "inf": 1.5e400})");
    ASSERT_TRUE(r.status.is_ok()) << source << r.status.text();
    EXPECT_EQ(r.text.bytes().rfind(expected, 0), 0u) << source << ": " << r.text.bytes();
  }
}

TEST(Jinja, IntegersBeyond64BitsStayAsTheyAreWritten) {
  const char* variables = R"({"big": 18446744073709551615, "low": -99999999999999999999, "n": 1,
                              "half": "a\ud83d", "inf": 1e400})";
  const std::pair<const char*, const char*> cases[] = {
      {"{{ big }} {{ [low] }} {{ {'maximum': big}|tojson }}",
       "18446744073709551615 [-99999999999999999999] {\"maximum\": 18446744073709551615}"},
      {"{{ big is number }}{{ big is integer }}{{ big is float }}{{ big is string }}",
       "TrueTrueFalseFalse"},
      {"{{ big == big }}{{ big == n }}{{ big > n }}{{ low < n }}{{ low < big }}",
       "TrueFalseTrueTrueTrue"},
      {"{{ big|int }} {{ big|string|length }} {{ '%d' % big }} {{ big|float }} {{ 'x' if big }}",
       "18446744073709551615 20 18446744073709551615 1.8446744073709552e+19 x"},
      {"{{ half }} {{ inf }} {{ inf|tojson }}", "a\xEF\xBF\xBD inf Infinity"},
  };
  for (const auto& [source, expected] : cases) {
    const Rendered r = render(source, variables);
    ASSERT_TRUE(r.status.is_ok()) << source << r.status.text();
    EXPECT_EQ(r.text.bytes(), expected) << source;
  }
  for (const char* source : {"{{ big + 1 }}", "{{ -big }}", "{{ big|abs }}", "{{ big is odd }}",
                             "{{ [n, big]|sum }}", "{{ 'x' * big }}"}) {
    const Rendered r = render(source, variables);
    EXPECT_EQ(r.status.code(), Code::kInvalidArgument) << source;
    EXPECT_NE(r.status.text().find("an integer has more than 63 bits"), std::string::npos)
        << source << r.status.text();
  }
}

TEST(Jinja, PrecisionsThatPythonWouldComputeForeverRoundToNothing) {
  const Rendered r = render("{{ 1|round(-9223372036854775807 - 1) }}");
  ASSERT_TRUE(r.status.is_ok()) << r.status.text();
  EXPECT_EQ(r.text.bytes(), "0");
  EXPECT_EQ(render("{{ 1.5|round(-9223372036854775807 - 1) }}").status.code(),
            Code::kInvalidArgument);
}

TEST(Jinja, JsonThatIsNoneIsRefusedWithItsPlace) {
  Heap heap(1 << 20);
  Value value;
  const std::string many_digits(4301, '9');
  for (const char* text : {"", "{", "[1,]", "{\"a\":}", "nul", "01", "\"\\x\"", "\"\\ud80\"", "1 2",
                           "{1: 2}", "\"a\nb\"", many_digits.c_str(), "-", "1.", "[1}"}) {
    const Status status = parse_json(text, "tools", &heap, &value);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    EXPECT_EQ(status.text().rfind("tools is not JSON at byte ", 0), 0u) << status.text();
  }
  const std::string deep(100000, '[');
  EXPECT_NE(parse_json(deep, "tools", &heap, &value).text().find("nested too deeply"),
            std::string::npos);
}

}  // namespace
}  // namespace sharpi::jinja
