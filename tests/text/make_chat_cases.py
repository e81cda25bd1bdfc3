#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes chat_cases.inc: conversations as the Jinja engine (jinja2, set up as HF transformers does)
renders them, with the templates of the tiny models and with short templates that have the
variations of published ones.

    make_chat_cases.py FOLDER_OF_FIXTURES > chat_cases.inc      (needs: gguf, jinja2)
"""
import sys

from gguf import GGUFReader
from jinja2.sandbox import ImmutableSandboxedEnvironment

FIXTURES = ["tiny-qwen3", "tiny-qwen35", "tiny-gemma4kv"]

# Thoughts of earlier turns are dropped; those after the last question are shown if there are any
# or if the message is the last.
QWEN3 = r"""{%- set ns = namespace(last_query_index=messages|length - 1, seek=true) %}
{%- for m in messages[::-1] %}{%- set i = messages|length - 1 - loop.index0 %}
{%- if ns.seek and m.role == 'user' and not (m.content.startswith('<tool_response>') and
       m.content.endswith('</tool_response>')) %}
{%- set ns.seek = false %}{%- set ns.last_query_index = i %}{%- endif %}{%- endfor %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' %}{%- set thought = '' %}{%- set content = m.content %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and thought)) %}
{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
{%- else %}{{- content }}{%- endif %}
{%- else %}{{- m.content }}{%- endif %}{{- '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"""

# Contents are stripped, thoughts after the last question are always shown, thinking is opened.
QWEN35 = r"""{%- macro render_content(c) %}{{- c }}{%- endmacro %}
{%- set ns = namespace(last_query_index=messages|length - 1, seek=true) %}
{%- for m in messages[::-1] %}{%- set i = messages|length - 1 - loop.index0 %}
{%- set c = render_content(m.content)|trim %}
{%- if ns.seek and m.role == 'user' and not (c.startswith('<tool_response>') and
       c.endswith('</tool_response>')) %}
{%- set ns.seek = false %}{%- set ns.last_query_index = i %}{%- endif %}{%- endfor %}
{%- for m in messages %}{%- set content = render_content(m.content)|trim %}
{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' %}{%- set thought = '' %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{%- if loop.index0 > ns.last_query_index %}
{{- '<think>\n' + thought|trim + '\n</think>\n\n' }}{%- endif %}{%- endif %}
{{- content + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\n\n</think>\n\n' }}{%- else %}{{- '<think>\n' }}{%- endif %}{%- endif %}"""

PLAIN_CHATML = r"""{% for m in messages %}{{ '<|im_start|>' + m.role + '
' + m.content + '<|im_end|>
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

GEMMA4 = r"""{%- macro strip_thinking(t) -%}{%- set ns = namespace(r='') -%}
{%- for part in t.split('<channel|>') -%}{%- set ns.r = ns.r + part.split('<|channel>')[0] -%}
{%- endfor -%}{{- ns.r | trim -}}{%- endmacro -%}
{{- bos_token -}}{%- set rest = messages -%}
{%- if enable_thinking or messages[0].role == 'system' -%}{{- '<|turn>system\n' -}}
{%- if enable_thinking -%}{{- '<|think|>THINK_END' -}}{%- endif -%}
{%- if messages[0].role == 'system' -%}{{- messages[0].content | trim -}}
{%- set rest = messages[1:] -%}{%- endif -%}{{- '<turn|>\n' -}}{%- endif -%}
{%- for m in rest -%}
{{- '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' -}}
{%- if m.role == 'assistant' -%}{{- strip_thinking(m.content) -}}
{%- else -%}{{- m.content | trim -}}{%- endif -%}{{- '<turn|>\n' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|turn>model\n' -}}
{%- if not enable_thinking -%}{{- '<|channel>thought\n<channel|>' -}}{%- endif -%}{%- endif -%}"""

GEMMA3 = r"""{{- bos_token -}}{%- set rest = messages -%}{%- set first_user_prefix = '' -%}
{%- if messages[0].role == 'system' -%}{%- set rest = messages[1:] -%}
{%- set first_user_prefix = messages[0].content + '\n\n' -%}{%- endif -%}
{%- for m in rest -%}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' -}}
{{- (first_user_prefix if loop.first else '') + m.content | trim + '<end_of_turn>\n' -}}
{%- endfor -%}{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}"""

OLMOE = r"""{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ '<|system|>\n' +
m.content + '\n' }}{% elif m.role == 'user' %}{{ '<|user|>\n' + m.content + '\n' }}{% else %}{{
'<|assistant|>\n' + m.content + eos_token }}{% if not loop.last %}{{ '\n' }}{% endif %}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""

TEMPLATES = {
    "qwen3": QWEN3, "qwen35": QWEN35, "plain": PLAIN_CHATML,
    "gemma4": GEMMA4.replace("THINK_END", ""), "gemma4b": GEMMA4.replace("THINK_END", r"\n"),
    "gemma3": GEMMA3, "olmoe": OLMOE,
}

CONVERSATIONS = [
    [("user", "Hello")],
    [("system", " Be brief.\n"), ("user", "\tWhat is 2+2? \u00a0")],
    [("user", "a"), ("assistant", "<think>\nearly\n</think>\n\nb"), ("user", "c\n")],
    [("system", "s"), ("user", "a"), ("assistant", "<think>\n\nlate \n</think>\n\n\nb\n")],
    [("user", "a"), ("assistant", "<|channel>thought\nhm<channel|> b "),
     ("user", "<tool_response>\n1\n</tool_response>"), ("assistant", "")],
]
OPTIONS = [(True, False), (True, True), (False, False)]


def literal(text):
    plain = {ord("\n"): "\\n", ord("\t"): "\\t", ord('"'): '\\"', ord("\\"): "\\\\"}
    out = [plain.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode()]
    lines, line = [], ""
    for piece in out:
        if len(line) + len(piece) > 90:
            lines.append(line)
            line = ""
        line += piece
    return "\n   ".join(f'"{part}"' for part in lines + [line])


def main():
    templates = dict(TEMPLATES)
    for name in FIXTURES:
        fields = GGUFReader(f"{sys.argv[1]}/{name}-q8_0.gguf").fields
        templates[name] = fields["tokenizer.chat_template"].contents()
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    print("// SPDX-License-Identifier: MIT")
    print("// Written by make_chat_cases.py.")
    for name, template in templates.items():
        gemma = "turn" in template and "im_start" not in template
        end = "<eos>" if gemma else "<|endoftext|>"
        cases = []
        for i, conversation in enumerate(CONVERSATIONS):
            messages = [{"role": r, "content": c} for r, c in conversation]
            for generate, think in OPTIONS:
                text = env.from_string(template).render(
                    messages=messages, add_generation_prompt=generate, enable_thinking=think,
                    bos_token="<bos>" if gemma else end, eos_token=end)
                flags = f"{str(generate).lower()}, {str(think).lower()}"
                cases.append(f"  {{{i}, {flags},\n   {literal(text)}}}")
        own = "" if name in FIXTURES else "\n   " + literal(template)
        print(f'{{"{name}",{own or " " + chr(34) * 2}, {{\n' + ",\n".join(cases) + "}},")


main()
