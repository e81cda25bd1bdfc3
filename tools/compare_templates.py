#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Holds the template interpreter against jinja2, set up as HF transformers sets it up, over the
published templates that this machine has:

    compare_templates.py RENDER_TEMPLATE [-v] [--least N] FILE_OR_FOLDER...

RENDER_TEMPLATE is the program of that name in the build folder. Templates are *.jinja files, also
inside *.tar.gz (the source package of llama-cpp-python carries many), and the templates of *.gguf
files (needs: gguf), also inside wheels. Each is rendered over conversations with system messages,
tools, calls and results, thinking on and off, empty contents, and orders that templates refuse.
Exit 1: a text differs, or only one of the two refuses and no feature is named for it, or fewer than N
different templates were found. Exit 77: no jinja2, or no template was found and N is 0.
"""
import argparse
import datetime
import glob
import io
import itertools
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile

try:
    import jinja2
    import jinja2.ext
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("skipped: jinja2 is not installed")
    sys.exit(77)

NOW = 1753800000


class Generation(jinja2.ext.Extension):
    """The tag by which transformers marks what a model is trained on."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW).strftime(f)
    return env


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a \"city\" <now> & then\n\tin °C",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "The city's name", "enum": ["Köln", "Oslo"]},
            "days": {"type": ["integer", "null"], "description": "How many", "default": 3},
            "tags": {"type": "array", "items": {"type": "string"}},
            "range": {"type": "object", "description": "of", "properties": {
                "low": {"type": "number"}}, "required": ["low"]}},
            "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}},
]


def call(name, arguments, i=0):
    return {"id": f"call{i:05d}", "type": "function",
            "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def bot(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def tool(text, i=0, **more):
    return {"role": "tool", "content": text, "tool_call_id": f"call{i:05d}", **more}


WEATHER = {"city": "Köln", "days": 2, "tags": ["a", "b"], "range": {"low": 1.5}, "flag": True}
CONVERSATIONS = [
    [user("Hello")],
    [system("Be brief."), user("What is 2+2?")],
    [system(""), user("")],
    [system("  Be\n brief. \n"), user("\tx \u00a0\n"), bot(" y \n"), user("z's \"q\" <b>&</b>")],
    [user("a"), bot("b"), user("c"), bot("d")],
    [user("a"), bot("<think>\nhm\n</think>\n\nb"), user("c")],
    [user("a"), bot("b", reasoning_content="because"), user("c")],
    [user("a"), bot("b", reasoning_content="because")],
    [user("a"), bot("b", reasoning="because", thinking="because"), user("c")],
    [user("a"), bot("", tool_calls=[call("get_weather", WEATHER)]), tool("12 °C"), user("b")],
    [user("a"), bot(None, tool_calls=[call("get_weather", WEATHER)]), tool("{\"t\": 12}")],
    [system("s"), user("a"), bot("I look.", reasoning_content="why",
                                 tool_calls=[call("get_weather", WEATHER), call("noop", {}, 1)]),
     tool("12", name="get_weather"), tool("ok", 1, name="noop"), bot("Done."), user("next")],
    [user("a"), bot("", tool_calls=[call("get_weather", json.dumps(WEATHER))]), tool("x")],
    [user("a"), user("b")],
    [bot("a")],
    [user("a"), system("late"), user("b")],
    [user("a"), bot("b"), bot("c"), user("d")],
    [{"role": "robot", "content": "x"}],
    [tool("x")],
    [{"role": "developer", "content": "dev"}, user("x")],
    [system("日本語\u2028 🙂"), user("naïve ﬁ ß İ"), bot("e\u0301")],
    [user([{"type": "text", "text": "part"}, {"type": "text", "text": " two"}])],
    [],
]
VARIANTS = [
    {}, {"tools": TOOLS}, {"enable_thinking": True}, {"enable_thinking": False},
    {"tools": TOOLS, "enable_thinking": False, "thinking": True},
    {"add_generation_prompt": False}, {"add_generation_prompt": False, "tools": TOOLS},
    {"reasoning_effort": "high", "tools": None, "documents": [{"title": "t", "text": "x"}]},
]
# Features that the interpreter does not have, and says so by name.
NAMED = ("is not supported", "are not supported")


def gguf_templates(path, label):
    try:
        from gguf import GGUFReader
    except ImportError:
        print(f"skipped {label}: the package gguf is not installed")
        return
    fields = GGUFReader(path).fields
    if "tokenizer.chat_template" in fields:
        yield label, fields["tokenizer.chat_template"].contents()
    else:
        print(f"{os.path.basename(label)} has no template")


def templates(paths):
    for path in paths:
        if os.path.isdir(path):
            inside = [f for end in ("jinja", "gguf", "tar.gz", "whl")
                      for f in glob.glob(f"{path}/**/*.{end}", recursive=True)]
            yield from templates(sorted(inside))
        elif path.endswith(".jinja"):
            yield path, open(path, encoding="utf-8", newline="").read()
        elif path.endswith(".gguf"):
            yield from gguf_templates(path, path)
        elif path.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.isfile() and member.name.endswith(".jinja"):
                        yield member.name, archive.extractfile(member).read().decode()
        elif path.endswith(".whl"):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if not name.endswith(".gguf"):
                        continue
                    with tempfile.TemporaryDirectory() as folder:
                        yield from gguf_templates(archive.extract(name, folder), name)


def reference(env, source, variables, compiled={}):
    try:
        if source not in compiled:
            compiled[source] = env.from_string(source)
        return {"text": compiled[source].render(**variables)}
    except RecursionError:
        return {"error": "recursion"}
    except Exception as e:  # whatever Python raises is a refusal
        return {"error": f"{type(e).__name__}: {e}"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("render_template")
    parser.add_argument("paths", nargs="+")
    parser.add_argument("-v", action="store_true")
    parser.add_argument("--least", type=int, default=0)
    options = parser.parse_args()
    found = {}
    for name, source in templates(options.paths):
        found.setdefault(source, name)
        if name.endswith(".gguf"):
            print(f"the template of {os.path.basename(name)}")
    if len(found) < options.least:
        print(f"{len(found)} different templates were found, expected {options.least} at least")
        sys.exit(1)
    if not found:
        print("skipped: no template was found in", *options.paths)
        sys.exit(77)
    env = environment()
    cases = []
    for source, name in found.items():
        for i, (messages, variant) in enumerate(itertools.product(CONVERSATIONS, VARIANTS)):
            variables = {"messages": messages, "add_generation_prompt": True,
                         "bos_token": "<bos>", "eos_token": "</s>", **variant}
            cases.append((name, i, source, variables))
    with subprocess.Popen([options.render_template], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        lines = "".join(json.dumps({"template": s, "variables": v, "now": NOW}) + "\n"
                        for _, _, s, v in cases)
        answers = io.BytesIO(process.communicate(lines.encode())[0])
    equal = refused = named = wrong = 0
    seen = set()
    for (name, i, source, variables), line in zip(cases, answers.readlines(), strict=True):
        ours, theirs = json.loads(line), reference(env, source, variables)
        if "text" in ours and ours.get("text") == theirs.get("text"):
            equal += 1
        elif "error" in ours and "error" in theirs:
            refused += 1
        elif "error" in ours and any(part in ours["error"] for part in NAMED):
            named += 1
            if (name, ours["error"]) not in seen:
                print(f"named: {name}: {ours['error']}")
            seen.add((name, ours["error"]))
        else:
            wrong += 1
            if options.v or wrong <= 20:
                print(f"WRONG: {name} case {i}\n  ours:   {ours}\n  jinja2: {theirs}")
    print(f"{len(found)} templates, {len(cases)} cases: {equal} equal, {refused} refused by both, "
          f"{named} refused by name, {wrong} wrong")
    sys.exit(1 if wrong or equal == 0 else 0)


main()
