// SPDX-License-Identifier: MIT
// Where text comes from: every filter, method and operator with text of the conversation as its
// input and as each of its arguments. Not one byte of it may come out as the template's own.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "text/jinja/filters.h"
#include "text/jinja/json.h"
#include "text/jinja/methods.h"
#include "text/jinja/template.h"

namespace sharpi::jinja::origin {
namespace {

/// What a conversation says. No template below has one of these letters or digits in its own text.
constexpr const char* kConversation = R"({
  "x": "ЖЩ", "lines": "Ж\nЩ\r\nЖ", "list": ["Щ", "Ж"], "d": {"Ж": "Щ"}, "objects": [{"a": "Ж"}],
  "digits": "7", "n": 8, "f": 9.75, "big": 99999999999999999999999, "words": " Ж Щ ",
  "yes": true, "nothing": null, "form": "Ж{}Щ%s", "html": "<Ж>", "sigma": "ΣΣ"})";
constexpr std::string_view kLetters[] = {"Ж", "Щ", "ж", "щ", "Σ", "σ", "ς", "7", "8", "9"};

Status render(std::string_view source, MarkedText* out) {
  auto parsed = Template::parse(source);
  if (!parsed.is_ok()) return parsed.take_status();
  Heap heap(uint64_t{64} << 20);
  Value dict;
  SHARPI_TRY(parse_json(kConversation, "variables", &heap, &dict));
  std::vector<Variable> list;
  for (const auto& [key, value] : dict.dict->items) list.emplace_back(key.bytes(), value);
  return parsed.value()->render(list, 1753800000, {}, &heap, out);
}

struct Case {
  const char* name;
  const char* source;
  bool prints = true;  // something of the conversation comes out
};

/// Renders the case and looks at every letter of the conversation in what comes out.
void expect_foreign(const Case& c) {
  MarkedText text;
  const Status status = render(c.source, &text);
  ASSERT_TRUE(status.is_ok()) << c.source << "\n" << status.text();
  const std::string& s = text.bytes();
  size_t n = 0;
  for (const std::string_view letter : kLetters) {
    for (size_t at = s.find(letter); at != s.npos; at = s.find(letter, at + 1), ++n) {
      for (size_t i = at; i < at + letter.size(); ++i) {
        EXPECT_TRUE(text.foreign_at(i)) << c.source << "\nbyte " << i << " of " << s;
      }
    }
  }
  EXPECT_EQ(n > 0, c.prints) << c.source << "\n" << s;
}

const Case kFilters[] = {
    {"abs", "{{ n|abs }}{{ f|abs }}{{ (0 - n)|abs }}"},
    {"attr", "{{ namespace(a=x)|attr('a') }}"},
    {"batch", "{{ list|batch(1)|list }}{{ [1, 2, 3]|batch(2, x)|list }}"},
    {"capitalize", "{{ x|capitalize }}{{ sigma|capitalize }}"},
    {"count", "{{ x|count }}{{ list|length }}", false},
    {"default", "{{ x|default('a') }}{{ absent|default(x) }}{{ ''|d(x, true) }}{{ absent|d(n) }}"},
    {"dictsort", "{{ d|dictsort }}{{ {x: 1, 'a': n}|dictsort(by='value') }}"},
    {"escape", "{{ html|e }}{{ html|escape }}{{ '<' ~ x|e }}"},
    {"first", "{{ x|first }}{{ list|first }}"},
    {"float", "{{ digits|float }}{{ n|float }}{{ big|float }}{{ 'a'|float(f) }}"},
    {"format", "{{ '%s%d%r'|format(x, n, x) }}{{ '%s'|format(f) }}{{ '%d'|format(f) }}"},
    {"indent", "{{ lines|indent }}{{ 'a\nb'|indent(x) }}{{ 'a\nb'|indent(x, true, true) }}"},
    {"int",
     "{{ digits|int }}{{ f|int }}{{ n|int }}{{ '' |int(n) }}{{ big|int }}{{ '7'[:0]|int(n)"
     " }}{{ (digits ~ '1')|int }}"},
    {"items", "{{ d|items|list }}"},
    {"join", "{{ list|join }}{{ [1, 2]|join(x) }}{{ objects|join(attribute='a') }}{{ [n]|join }}"},
    {"last", "{{ x|last }}{{ list|last }}"},
    {"list", "{{ x|list }}{{ list|list }}{{ d|list }}"},
    {"lower", "{{ x|lower }}{{ sigma|lower }}"},
    {"map",
     "{{ list|map('lower')|list }}{{ objects|map(attribute='a')|join }}"
     "{{ [{}]|map(attribute='b', default=x)|join }}{{ [['a', 'b']]|map('join', x)|join }}"},
    {"max", "{{ list|max }}{{ [n, 1]|max }}"},
    {"min", "{{ list|min }}{{ [n, f]|min }}"},
    {"reject", "{{ list|reject('equalto', 'a')|list }}"},
    {"rejectattr", "{{ objects|rejectattr('b')|list }}"},
    {"replace", "{{ x|replace('a', 'b') }}{{ 'aba'|replace('b', x) }}{{ 'b'|replace('', x) }}"},
    {"reverse", "{{ x|reverse }}{{ list|reverse|list }}"},
    {"round", "{{ f|round }}{{ f|round(1) }}{{ n|round }}{{ f|round(method='ceil') }}"},
    {"safe", "{{ x|safe }}{{ (x|safe) ~ x }}{{ (x|safe) + html }}"},
    {"select", "{{ list|select|list }}"},
    {"selectattr", "{{ objects|selectattr('a')|list }}"},
    {"sort", "{{ list|sort }}{{ objects|sort(attribute='a') }}"},
    {"string", "{{ x|string }}{{ n|string }}{{ list|string }}{{ f|string }}{{ big|string }}"},
    {"sum", "{{ [n, 1]|sum }}{{ [1]|sum(start=n) }}{{ [{'a': f}]|sum('a') }}"},
    {"title", "{{ x|title }}{{ words|title }}"},
    {"tojson",
     "{{ x|tojson }}{{ d|tojson }}{{ [1]|tojson(indent=x) }}{{ {'a': 1, 'b': 2}|tojson("
     "separators=(x, ':')) }}{{ {'a': 1}|tojson(separators=[',', x]) }}{{ n|tojson }}"
     "{{ [f, big]|tojson }}{{ {n: 1, f: 2, big: 3}|tojson }}{{ x|tojson(ensure_ascii="
     "false) }}{{ {x: 1}|tojson(sort_keys=true) }}"},
    {"trim", "{{ words|trim }}{{ x|trim('a') }}"},
    {"unique", "{{ list|unique|list }}"},
    {"upper", "{{ x|upper }}{{ x|lower|upper }}"},
};

TEST(Origin, NoFilterLosesIt) {
  std::set<Filter> seen;
  for (const Case& c : kFilters) {
    expect_foreign(c);
    seen.insert(find_filter(c.name));
  }
  EXPECT_EQ(seen.count(Filter::kUnknown), 0u);
  // kUnique is the last one: a new filter needs a row above.
  EXPECT_EQ(seen.size(), static_cast<size_t>(Filter::kUnique));
}

const Case kMethods[] = {
    {"capitalize", "{{ x.capitalize() }}"},
    {"copy", "{{ list.copy() }}{{ d.copy() }}"},
    {"count", "{{ x.count('a') }}", false},
    {"endswith", "{{ x.endswith('a') }}", false},
    {"find", "{{ x.find('a') }}", false},
    {"format", "{{ form.format(x) }}{{ '{}{}'.format(x, n) }}{{ '{a}{b}'.format(a=x, b=f) }}"},
    {"get", "{{ d.get(x, n) }}{{ d.get('a', x) }}{{ d.get('a', f) }}"},
    {"index", "{{ list.index('Ж') }}", false},
    {"isalnum", "{{ x.isalnum() }}", false},
    {"isalpha", "{{ x.isalpha() }}", false},
    {"isdigit", "{{ x.isdigit() }}", false},
    {"islower", "{{ x.islower() }}", false},
    {"isspace", "{{ x.isspace() }}", false},
    {"isupper", "{{ x.isupper() }}", false},
    {"items", "{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}"},
    {"join", "{{ x.join(['a', 'b']) }}{{ ''.join(list) }}"},
    {"keys", "{% for k in d.keys() %}{{ k }}{% endfor %}"},
    {"lower", "{{ x.lower() }}"},
    {"lstrip", "{{ words.lstrip() }}{{ x.lstrip('a') }}"},
    {"removeprefix", "{{ x.removeprefix('a') }}{{ x.removeprefix('Ж') }}"},
    {"removesuffix", "{{ x.removesuffix('Щ') }}"},
    {"replace", "{{ x.replace('Ж', 'a') }}{{ 'ab'.replace('b', x) }}"},
    {"rfind", "{{ x.rfind('a') }}", false},
    {"rsplit", "{{ words.rsplit(' ') }}{{ words.rsplit(' ', 1) }}"},
    {"rstrip", "{{ words.rstrip() }}"},
    {"split", "{{ words.split() }}{{ words.split(' ') }}{{ 'a'.join(x.split('q')) }}"},
    {"splitlines", "{{ lines.splitlines() }}{{ lines.splitlines(true)|join }}"},
    {"startswith", "{{ x.startswith('a') }}", false},
    {"strip", "{{ words.strip() }}{{ x.strip('a') }}"},
    {"title", "{{ x.title() }}"},
    {"upper", "{{ x.lower().upper() }}"},
    {"values", "{% for v in d.values() %}{{ v }}{% endfor %}"},
    {"zfill", "{{ x.zfill(9) }}{{ digits.zfill(3) }}"},
};

TEST(Origin, NoMethodLosesIt) {
  std::set<Method> seen;
  for (const Case& c : kMethods) {
    expect_foreign(c);
    seen.insert(find_method(c.name));
  }
  EXPECT_EQ(seen.count(Method::kNone) + seen.count(Method::kRefused), 0u);
  // Methods stand between kNone and kRefused: a new one needs a row above.
  EXPECT_EQ(seen.size(), static_cast<size_t>(Method::kRefused) - 1);
}

TEST(Origin, NoOperatorAndNoStatementLosesIt) {
  const Case cases[] = {
      {"+", "{{ x + 'a' }}{{ 'a' + x }}{{ n + 0 }}{{ 0 + f }}{{ list + [x] }}"},
      {"-", "{{ n - 0 }}{{ -n }}{{ +n }}{{ -f }}{{ 0 - n }}"},
      {"* and **", "{{ n * 1 }}{{ 1 * n }}{{ n ** 1 }}{{ x * 2 }}{{ 2 * x }}{{ list * 2 }}"},
      {"/ // %", "{{ n / 1 }}{{ n // 1 }}{{ f // 1 }}{{ n % 100 }}{{ '%s' % x }}{{ '%d' % n }}"},
      {"% of foreign text", "{{ '%s and %s' % (x, n) }}{{ '%r' % x }}{{ '%d' % f }}"},
      {"~", "{{ x ~ 'a' ~ n ~ f ~ big }}"},
      {"items", "{{ x[0] }}{{ list[1] }}{{ d['Ж'] }}{{ objects[0].a }}"},
      {"slices", "{{ x[:1] }}{{ x[::-1] }}{{ list[1:] }}{{ x[1:] }}"},
      {"and, or, if", "{{ x and x }}{{ '' or x }}{{ x if true else 'a' }}{{ n or 0 }}"},
      {"lists", "{{ [x, n] }}{{ (x, f) }}{{ {x: n} }}{{ {'a': {n: x}} }}{{ big }}"},
      {"set", "{% set a = x %}{{ a }}{% set a %}{{ x }}{{ n }}{% endset %}{{ a|upper|lower }}"},
      {"set of parts",
       "{% set a, b = list %}{{ b }}{{ a }}{% set s|trim %} {{ x }}{% endset %}{{ "
       "s }}"},
      {"namespaces", "{% set ns = namespace(a=x) %}{% set ns.b = n %}{{ ns.a }}{{ ns.b }}"},
      {"loops",
       "{% for c in x %}{{ c }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle(x) }}"
       "{% endfor %}"},
      {"keys", "{% for k in d %}{{ k }}{% endfor %}{% for k in dict(**d) %}{{ k }}{% endfor %}"},
      {"ranges", "{% for i in range(n, 100) %}{{ i }}{% endfor %}"},
      {"macros",
       "{% macro m(a, b=n) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}"
       "{{ m(x) }}{% call m('a') %}{{ x }}{% endcall %}"},
      {"further arguments",
       "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(x, n, a=f) "
       "}}{{ m(**d) }}"},
      {"filter blocks", "{% filter upper %}{{ x|lower }}{{ n }}{% endfilter %}"},
      {"with", "{% with a = x %}{{ a }}{% endwith %}"},
  };
  for (const Case& c : cases) expect_foreign(c);
}

TEST(Origin, WordsOfTheConversationForTruthAndNothingAreForeign) {
  MarkedText text;
  ASSERT_TRUE(render("{{ yes }}{{ nothing }}{{ [yes, nothing]|tojson }}", &text).is_ok());
  EXPECT_EQ(text.bytes(), "TrueNone[true, null]");
  for (const size_t at : {0u, 4u, 9u, 15u}) EXPECT_TRUE(text.foreign_at(at)) << at;
  MarkedText own;
  ASSERT_TRUE(render("{{ true }}{{ none }}{{ x|length }}{{ x == 'a' }}", &own).is_ok());
  EXPECT_FALSE(own.has_foreign()) << "what a template finds out about a text is its own";
}

TEST(Origin, WhatATemplateAddsStaysItsOwn) {
  MarkedText text;
  ASSERT_TRUE(render("<{{ [1]|tojson(indent=x) }}|{{ lines|indent('--') }}>", &text).is_ok());
  const std::string& s = text.bytes();
  for (const char own : {'<', '[', '1', ']', '|', '-', '>'}) {
    for (size_t at = s.find(own); at != s.npos; at = s.find(own, at + 1)) {
      EXPECT_FALSE(text.foreign_at(at)) << own;
    }
  }
  const size_t newline = s.find('\n', s.find('|'));
  EXPECT_TRUE(text.foreign_at(newline)) << "indent() keeps the origin of the ends of lines";
}

}  // namespace
}  // namespace sharpi::jinja::origin
