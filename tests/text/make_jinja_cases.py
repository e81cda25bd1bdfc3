#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes jinja_cases.inc: small templates, one construct each, as jinja2 renders them when it is
set up as in HF transformers. What jinja2 refuses is written as refused.

    make_jinja_cases.py > jinja_cases.inc      (needs: jinja2 3.1)
"""
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

VARIABLES = {
    "messages": [{"role": "system", "content": " S \n"},
                 {"role": "user", "content": "U <b>\"q\"</b> 'é' \u2028"},
                 {"role": "assistant", "content": None, "items": 3, "n": 1.5}],
    "d": {"b": 1, "A": [1, 2, {"x": None}], "c": True, "items": "own"},
    "s": "Straße ΣΑΣ 🙂 x_y", "n": 7, "f": 2.5, "big": 1e16, "small": 0.00001, "t": True,
    "no": None, "lines": "a\nb\r\n\nc", "words": "  a b\t c  ", "list": [3, 1, 2], "empty": "",
    "names": ["b", "A", "a", "B"], "arg": '{"k": 1}',
}

TEMPLATES = r"""
{{ n }} {{ f }} {{ big }} {{ small }} {{ t }} {{ no }} {{ undefined_name }}|{{ d }}|{{ names }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }}
{{ 1.0 }} {{ 1e3 }} {{ 0.1 + 0.2 }} {{ 1_000 }} {{ 0x1F }} {{ 0b11 }} {{ -2 ** 2 }} {{ 5 % 2.5 }}
{{ 1 < 2 <= 2 != 3 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 == true }} {{ 'é' > 'z' }}
{{ 'a' in 'cat' }} {{ 3 in list }} {{ 'b' in d }} {{ 'q' not in d }} {{ 1 in undefined_name }}
{{ 'yes' if n > 3 else 'no' }} {{ 'x' if no }}| {{ (1 if t else 2) if n else 3 }} {{ n and 0 or 'z' }}
{{ not t }} {{ not no and t }} {{ (not n) == false }} {{ n is number and s is string }}
{{ 'a' 'b' ~ 1 ~ none ~ true }} {{ 'ab' * 2 }} {{ [0] * 3 }} {{ [1] + [2] }} {{ (1, 2) + (3,) }}
{{ 'a\tb\n\'\"\\ \x41\u00e9\U0001F642 \q \101' }}{{ "it's" }}{{ 'multi
line' }}
{{ s[0] }}{{ s[-1] }}{{ s[1:4] }}{{ s[::-1] }}{{ s[8:] }}{{ s[:-2] }}{{ s[::3] }}{{ s[5:2:-1] }}{{ s[99] }}
{{ list[0] }}{{ list[-1] }}{{ list[1:] }}{{ list[::-1] }}{{ list[9] }}{{ list[:0] }}{{ (1,2,3)[1:] }}
{{ d.b }} {{ d['b'] }} {{ d.A[2].x }} {{ d.missing }}| {{ d.A.1 }} {{ messages[-1].n }} {{ d['items'] }}
{{ messages[2]['items'] }} {% for k, v in messages[2].items() %}{{ k }}={{ v }};{% endfor %}
{{ d.items is callable }} {{ messages[0].items is defined }} {{ messages[0]['items'] is defined }}
{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ m.role }};{% endfor %}
{% for m in messages if m.role != 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ m.role }},{% else %}none{% endfor %}
{% for m in [] %}x{% else %}none{% endfor %}{% for x in undefined_name %}y{% else %}also none{% endfor %}
{% for x in list %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.cycle('o', 'e') }} {{ loop.changed(x > 1) }};{% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in range(2, 9, 3) %}{{ x }}{% endfor %}{% for x in range(3, 0, -1) %}{{ x }}{% endfor %}{{ range(5)[2] }}{{ range(4)|length }}
{% for a, (b, c) in [(1, (2, 3)), (4, (5, 6))] %}{{ a }}{{ b }}{{ c }};{% endfor %}
{% for c in 'héy' %}[{{ c }}]{% endfor %}{% for k in d %}{{ k }}{% endfor %}
{% set x = 1 %}{% for i in list %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(x=1, y='a') %}{% for i in list %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z }}
{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns['a'] }}{% set ns = namespace({'k': 2}) %}{{ ns.k }}
{% set a, b = 1, 'x' %}{{ b }}{{ a }}{% set c = 1, 2 %}{{ c }}
{% if n == 1 %}one{% elif n == 7 %}seven{% else %}other{% endif %}{% if no %}x{% endif %}
{% set block %}  in {{ n }} block {% endset %}[{{ block }}]{% set up | upper | trim %} low {% endset %}[{{ up }}]
{% macro m(a, b=2, c='z') %}({{ a }},{{ b }},{{ c }}){% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m() }}{{ m(b='q', a='r') }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro f(x) %}{% if x > 0 %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro outer() %}<{{ caller() }}>{% endmacro %}{% call outer() %}in {{ n }}{% endcall %}
{% macro each() %}{% for i in list %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(x) each() %}[{{ x }}]{% endcall %}
{% macro m() %}{% if caller is defined %}c{% else %}n{% endif %}{% endmacro %}{{ m() }}
{% set late = 1 %}{% macro m() %}{{ late }}{% endmacro %}{% set late = 2 %}{{ m() }}
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}
{% filter upper | trim %}  low {{ n }} {% endfilter %}
{% generation %}{% set q = 1 %}gen{{ q }}{% endgeneration %}{{ q }}
{% raw %}{{ not }} {% this %}{% endraw %}|{%- raw -%}  x  {%- endraw -%}  |
a {#- comment -#} b {# another #}
  c {#+ kept +#}
d
{%- if t -%}
   x
{%- endif %}
  y
    {% if t %}
    z
    {% endif %}
  {%+ if t %}w{% endif +%}
v
{{- n -}}   u
{{ d | tojson }}|{{ d | tojson(indent=2) }}|{{ s | tojson }}|{{ s | tojson(ensure_ascii=true) }}
{{ d | tojson(separators=(',', ':')) }}|{{ d | tojson(indent=1, sort_keys=true) }}|{{ [] | tojson(indent=2) }}{{ {} | tojson(indent=2) }}
{{ [big, small, f, 1e400, n, no, t, (1, 2)] | tojson }} {{ {1: 2, none: 3, true: 4} | tojson }}
{{ messages | tojson(indent=4) }}
{{ undefined_name | tojson }}
{{ "\u007f\u0001\n\t\"\\/\u2028" | tojson }}{{ "\u007f\u00ff" | tojson(ensure_ascii=true) }}
{{ words | trim }}|{{ 'xxaxx' | trim('x') }}|{{ words.strip() }}|{{ words.lstrip() }}|{{ words.rstrip() }}|{{ 'xyx'.strip('xy') }}|{{ '--a-'.lstrip('-') }}
{{ words.split() }}{{ 'a,b,,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ words.split(none, 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ ''.split(',') }}
{{ lines.splitlines() }}{{ lines.splitlines(true) }}
{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'bc')) }}{{ 'abc'.find('c') }}{{ 'éac'.find('c') }}{{ 'abcabc'.rfind('b') }}{{ 'aXbX'.count('X') }}{{ 'abc'.index('b') }}
{{ 'aaa'.replace('a', 'b') }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'ab'.replace('', '-') }}{{ 'aaa' | replace('a', 'x', 1) }}{{ 12 | replace(1, 2) }}
{{ s.upper() }}{{ s.lower() }}{{ s | upper }}{{ s | lower }}{{ 'hello wORLD' | capitalize }}{{ 'hello-wORLD it\'s' | title }}{{ "they're x1y".title() }}{{ 'ΑΣ'.lower() }}
{{ ', '.join(names) }}{{ names | join('-') }}{{ list | join }}{{ messages | join(',', attribute='role') }}
{{ '{} and {1} {name}'.format(1, 2, name='z') }}
{{ '{} {}'.format('a', n) }} {{ '{{}} {0}{0}'.format('x') }} {{ '%s-%d %%' % ('a', 3) }} {{ '%s' % n }} {{ '%s %s' | format('a', 'b') }}
{{ '12'.isdigit() }}{{ 'a1'.isalnum() }}{{ 'ab'.isalpha() }}{{ ' \t'.isspace() }}{{ 'aB'.islower() }}{{ 'AB1'.isupper() }}{{ ''.isdigit() }}{{ '7'.zfill(3) }}{{ '-7'.zfill(4) }}{{ 'prefix'.removeprefix('pre') }}
{{ d.get('b') }}{{ d.get('q') }}{{ d.get('q', 'z') }}{{ d.keys() | list }}{{ d.values() | list }}{{ d.copy() == d }}
{{ names.index('a') }}{{ names.count('a') }}{{ names | length }}{{ d | length }}{{ s | length }}{{ undefined_name | length }}{{ d.keys() | length }}
{{ undefined_name | default('x') }}{{ '' | default('x') }}{{ '' | default('x', true) }}{{ no | d('y', boolean=true) }}{{ undefined_name | default }}
{{ list | first }}{{ list | last }}{{ 'xyz' | first }}{{ [] | first }}|{{ list | sort }}{{ names | sort }}{{ names | sort(case_sensitive=true) }}{{ list | sort(reverse=true) }}{{ messages | sort(attribute='role') | map(attribute='role') | list }}
{{ d | dictsort }}{{ {'b': 2, 'a': 3} | dictsort(by='value') }}{{ {'b': 2, 'a': 3} | dictsort(reverse=true) }}{{ d | items | list }}
{{ messages | map(attribute='role') | join(',') }}{{ names | map('upper') | list }}{{ messages | map(attribute='zz', default='-') | list }}{{ ['a,b'] | map('replace', ',', ';') | list }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('content') | map(attribute='role') | list }}{{ list | select('odd') | list }}{{ list | reject('in', [1]) | list }}{{ messages | selectattr('n', 'defined') | list | length }}{{ no | selectattr('x') | list }}
{{ names | unique | list }}{{ [1, 1.0, true, 2] | unique | list }}{{ list | min }}{{ list | max }}{{ list | sum }}{{ names | min }}{{ [] | max }}
{{ list | reverse | list }}{{ 'abc' | reverse }}{{ [1, 2, 3, 4, 5] | batch(2) | list }}{{ [1, 2, 3] | batch(2, 'x') | list }}{{ 'abc' | list }}
{{ '3' | int }}{{ 'x' | int }}{{ 'x' | int(5) }}{{ '2.7' | int }}{{ f | int }}{{ 'ff' | int(base=16) }}{{ ' 12 ' | int }}{{ '1.5' | float }}{{ 'z' | float }}{{ -3 | abs }}{{ f | round }}{{ 2.567 | round(2) }}{{ 3.5 | round(method='floor') }}{{ no | int }}
{{ lines | indent }}|{{ lines | indent(2, true) }}|{{ lines | indent(2, blank=true) }}|{{ 'x' | indent(4, first=true) }}|{{ lines | indent('> ') }}
{% for x in ['a\n', 'a\r', 'a\r\n', 'a\x0b', '\n', '', 'a\n\nb', 'a\u2028b'] %}[{{ x | indent(1) }}][{{ x | indent('-', true, true) }}]{% endfor %}
{{ '<a>' | e }}{{ '<a>' | safe }}{{ ('<a>' | safe) + '<b>' }}{{ '<b>' + ('<a>' | safe) }}{{ ('<a>' | safe) ~ '<b>' }}{{ ('<a>' | safe) | upper + '&' }}{{ '<' | e | e }}
{{ messages[1].content | safe + messages[1].content }}
{{ n | string + 'x' }}{{ 1 is divisibleby 1 }}{{ n is odd }}{{ n is even }}{{ n is eq 7 }}{{ n is gt(3) }}{{ n is in [7] }}{{ 'a' is lower }}{{ no is none }}{{ no is not none }}{{ t is true }}{{ n is true }}{{ t is boolean }}
{{ d is mapping }}{{ list is sequence }}{{ s is iterable }}{{ n is iterable }}{{ d is sequence }}{{ n is integer }}{{ f is float }}{{ t is number }}{{ t is integer }}{{ n is sameas n }}{{ undefined_name is undefined }}{{ undefined_name is iterable }}{{ (list | select) is sequence }}
{{ d.q is defined }}{{ d.q.r }}
{{ undefined_name.x }}
{{ undefined_name + 1 }}
{{ undefined_name() }}
{{ d.nothing() }}
{{ n() }}
{{ 'a' + 1 }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ [1] | sort(attribute='x') }}{{ ['a', 1] | sort }}
{{ raise_exception('no: ' ~ n) }}
{{ 'x' | nosuchfilter }}
{{ n is nosuchtest }}
{% nosuchtag %}
{% for x in n %}{% endfor %}
{% if %}x{% endif %}
{{ 'abc' }
{% if t %}x
{% endif %}
{% include 'file' %}
{% set list.x = 1 %}
{{ list.append(4) }}
{{ d.pop('b') }}
{% break %}
{{ s.__class__ }}
{{ range(1000000) | length }}
{{ 'a' if }}
{{ (1, 2 }}
{{ [1, 2][ }}
{% set x %}never ends
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{{ 1 ~ }}
{{ foo(a=1, 2) }}
{{ '%d' % 'x' }}
{{ 42|round }} {{ 7|round(2) }} {{ 9007199254740993|round }} {{ t|round }} {{ 1250|round(-2) }} {{ -1350|round(-2) }} {{ 5|round(-1) }}
{{ 1|round(-30) }} {{ 9223372036854775807|round(-25) }} {{ 42|round(0, 'ceil') }} {{ 2.5|round }} {{ 1234.5|round(-2) }}
{{ 1|round(0, 'up') }}
{{ '%d' % 1e300 }} {{ '%d' % 2.9 }} {{ '%d' % -1e19 }} {{ '%d %s' % (t, 1) }}
{{ '%d' % ('nan'|float) }}
{{ '%d' % ('inf'|float) }}
{{ '0x1A'|int(base=16) }} {{ '0X_ff'|int(base=16) }} {{ '0b101'|int(base=2) }} {{ '0o17'|int(base=8) }} {{ '0x1A'|int }} {{ '-0x1A'|int(base=0) }} {{ '010'|int(base=0) }} {{ '0_0'|int(base=0) }}
{{ '1_000'|int }} {{ '1__0'|int }} {{ '_1'|int }} {{ '1_'|int }} {{ '+-1'|int }} {{ '--1'|int }} {{ '+5'|int }} {{ '1_0.5'|float }} {{ '1._5'|float }} {{ '1e1_0'|float }}
{{ '99999999999999999999'|int }} {{ '-000123456789012345678901'|int }} {{ 1e20|int }} {{ '1e20'|int }} {{ 'inf'|int(7) }} {{ ('nan'|float)|int(8) }} {{ 'z'|int(base=99) }}
{{ ('inf'|float)|int }}
{{ '²'.isdigit() }}{{ '²'.isalnum() }}{{ '①'.isdigit() }}{{ '½'.isdigit() }}{{ '½'.isalnum() }}{{ 'Ⅷ'.isalnum() }}{{ '٣'.isdigit() }}
{{ none[1:] }}|{{ 5[1:] }}|{{ (-5)[1:] }}|
{{ {'a': 1}[1:] }}|
{{ 5[1:no] }}|
{{ 5[n:] }}
{{ no[1:] }}
{{ n[1:] }}
{{ f[:2] }}
{{ d[1:] }}
{{ d.items()[1:] }}
{{ '{}'.format() }}
{{ ''.join([1]) }}
{{ 5 in 'abc' }}
{{ 1 < 'a' }}
{{ list[1:2:0] }}
{% macro m(a=1, b) %}{% endmacro %}
{{ dict(a=1, b=[2]) }}{{ dict({'x': 1}, y=2) }}{{ {'a': 1, 'a': 2} }}{{ {} }}{{ [] }}{{ () }}{{ (1,) }}
{{ 'a' == 'a' == 'a' }}{{ none == no }}{{ [1, [2]] == [1, [2]] }}{{ {'a': 1} == {'a': 1.0} }}{{ undefined_name == other_undefined }}
{{ "quote's" | string | list }}{{ ["quote's", 'dq"', "both'\"", 'nl\n', 'é\x07\u200b'] }}
{{ (lambda) }}
{{ loop }}
{{ arg | from_json }}
{% set greeting = "hi" -%}   {{ greeting }}   {%- set greeting = "bye" %}{{ greeting }}
{% if t %}{# c #}{% endif %}{{ '}}' }}{{ "%}" }}{{ {'a': {'b': 1}} }}
{{- '' -}}
""".strip("\n")
# Templates of several lines, apart from those above, which have one line each.
BLOCKS = [
    "{% for x in list %}\n  {{ x }}\n{% endfor %}\nend\n",
    "  {% if t %}\n  a\n  {% else %}\n  b\n  {% endif %}\n\n",
    "{%- for x in list -%}\n  {{ x }}\n{%- endfor -%}\n\n  end",
    "a\r\n{% if t %}\r\nb\r{% endif %}\r\n",
    "{# comment\nover lines #}\nx\n  {#- y -#}  \nz",
    "x {% if t %} y {% endif %} z\n\t{% set q = 1 %}\n w {{ q }}\n\n",
    "\n\n{{ n }}\n\n",
    "{% set ns = namespace(on=true) %}{% for x in list if ns.on %}{{ x }}"
    "{% set ns.on = false %}{% endfor %}",
    "{% macro a(x) %}{% macro b(y) %}{{ x }}{{ y }}{% endmacro %}{{ b(2) }}{% endmacro %}{{ a(1) }}",
    "{% for i in [1, 2] %}{% for j in [1, 2] %}{{ loop.index }}{{ i }}{% endfor %}{{ loop.index }}"
    "{% endfor %}",
    "{% for i in list %}{% if i == 1 %}{% set flag = i %}{% endif %}{{ flag }};{% endfor %}{{ flag }}",
    "{{ 'a'\n   ~ 'b'\n   if t\n   else 'c' }}",
]


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def literal(text):
    plain = {ord("\n"): "\\n", ord("\t"): "\\t", ord('"'): '\\"', ord("\\"): "\\\\",
             ord("?"): "\\?"}
    out = [plain.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode()]
    lines, line = [], ""
    for piece in out:
        if len(line) + len(piece) > 90:
            lines.append(line)
            line = ""
        line += piece
    return "\n   ".join(f'"{part}"' for part in lines + [line])


def one_line_templates():
    """Lines of TEMPLATES; a tag that stays open goes on in the next line."""
    part = ""
    for line in TEMPLATES.split("\n"):
        part += line
        if part.startswith("{{ 'a\\tb") and not part.endswith("line' }}"):
            part += "\n"
            continue
        yield part
        part = ""


def main():
    env = environment()
    print("// SPDX-License-Identifier: MIT")
    print("// Written by make_jinja_cases.py.")
    print('constexpr const char* kVariables =\n   ' + literal(json.dumps(VARIABLES)) + ";")
    print("constexpr JinjaCase kJinjaCases[] = {")
    for source in list(one_line_templates()) + BLOCKS:
        try:
            expected = literal(env.from_string(source).render(**VARIABLES))
        except Exception:  # whatever Python raises is a refusal
            expected = "nullptr"
        print(f"  {{{literal(source)},\n   {expected}}},")
    print("};")


main()
