#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Holds grammars against the JSON Schema Test Suite, which the source package of jsonschema carries:

    pip download --no-binary jsonschema --no-deps jsonschema && tar xf jsonschema-*.tar.gz
    check_schema_suite.py MODEL.gguf jsonschema-*/json [--texts N] [--seed N] [-v]

Every value of the suite is held against its schema by sharpi.check_schema(), but where that says that it
cannot tell. For grammars, a schema is refused by the place of what cannot be enforced, or it is held: no value that the suite
calls invalid is allowed, and texts that the grammar writes validate. Valid values that are of another
form than sharpi.h describes (members of other types than the keywords are about, unnamed members) are
counted, and listed with -v. Needs the package sharpi (PYTHONPATH=bindings/python, SHARPI_LIBRARY).
Exit 1: something differs. Exit 77: no jsonschema.
"""
import argparse
import collections
import json
import pathlib
import random
import re
import sys

try:
    from jsonschema import Draft202012Validator as Validator
    from jsonschema.exceptions import SchemaError
    from referencing.exceptions import Unresolvable
except ImportError:
    print("skipped: jsonschema is not installed")
    sys.exit(77)

import sharpi
from compare_schemas import allows, written

DRAFT = "tests/draft2020-12"
# Formats are enforced whether or not the dialect asserts them, so these files are about them.
FORMATS = ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
PLACE = re.compile(r"^schema[.\[ ]|^the schema refers|^no text matches")


def files_of(suite):
    yield from sorted((suite / DRAFT).glob("*.json"))
    for name in FORMATS:
        path = suite / DRAFT / "optional" / "format" / (name + ".json")
        if path.exists():
            yield path


def spellings(value):
    yield json.dumps(value, ensure_ascii=False)
    yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    yield json.dumps(value)
    yield json.dumps(value, indent=1)


class Suite:
    def __init__(self, model, options):
        self.model, self.options = model, options
        self.chance = random.Random(options.seed)
        self.tokens = [model.token_bytes(t) for t in range(model.info.n_vocab)]
        self.ends = {t for t in range(model.info.n_vocab) if model.is_end(t)}
        self.counts, self.faults, self.refused = collections.Counter(), [], collections.Counter()

    def check(self, name, where, group):
        """Whole texts. Formats are annotations there, and the dialect is always the whole one."""
        if name in FORMATS or name == "vocabulary":
            return
        for test in group["tests"]:
            try:
                said = sharpi.check_schema(group["schema"], json.dumps(test["data"]))
            except sharpi.Unsupported:
                self.counts["values that are not checked"] += 1
                continue
            self.counts["values checked"] += 1
            if (said is None) != test["valid"]:
                self.faults.append(f"checked: {said}, but valid is {test['valid']}: {where}, {test['description']}: "
                                   f"{json.dumps(test['data'])} {json.dumps(group['schema'])}")

    def group(self, name, group):
        where, schema = f"{name}: {group['description']}", group["schema"]
        self.check(name, where, group)
        try:
            grammar = sharpi.CompiledGrammar(self.model, schema=schema)
        except sharpi.Unsupported as refusal:
            self.counts["schemas refused"] += 1
            self.refused[re.sub(r"^\S+ ", "", str(refusal))] += 1
            if not PLACE.match(str(refusal)):
                self.faults.append(f"{where}: refused without a place: {refusal}")
            if self.options.verbose:
                print(f"{where}: {refusal}")
            return
        self.counts["schemas held"] += 1
        for test in group["tests"]:
            allowed = any(allows(grammar, text) for text in spellings(test["data"]))
            what = f"{where}, {test['description']}: {json.dumps(test['data'])} {json.dumps(schema)}"
            if allowed and not test["valid"]:
                self.faults.append(f"allowed, but invalid: {what}")
            elif test["valid"] and not allowed:
                self.counts["valid values of another form"] += 1
                if self.options.verbose:
                    print(f"another form: {what}")
            else:
                self.counts["values as the suite has them"] += 1
        self.texts(where, schema, grammar)
        grammar.close()

    def texts(self, where, schema, grammar):
        validator = Validator(schema)
        for _ in range(self.options.texts):
            text = written(grammar, self.chance, self.tokens, self.ends)
            try:
                if text is None:
                    self.counts["texts without an end"] += 1
                elif validator.is_valid(json.loads(text)):
                    self.counts["texts written"] += 1
                else:
                    self.faults.append(f"written, but invalid: {where}: {text!r} {json.dumps(schema)}")
            except (Unresolvable, SchemaError):
                return self.counts.update(["schemas that jsonschema cannot resolve alone"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("suite", type=pathlib.Path)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-v", dest="verbose", action="store_true")
    options = parser.parse_args()
    with sharpi.TextModel(options.model) as model:
        suite = Suite(model, options)
        for path in files_of(options.suite):
            for group in json.loads(path.read_text(encoding="utf-8")):
                suite.group(path.stem, group)
    if not suite.counts["schemas held"]:
        sys.exit(f"no tests under {options.suite / DRAFT}")
    for sentence, n in suite.refused.most_common():
        print(f"{n:5} refused: {sentence}")
    for fault in suite.faults:
        print(fault)
    print(f"{len(suite.faults)} differ:", ", ".join(f"{n} {what}" for what, n in sorted(suite.counts.items())))
    sys.exit(1 if suite.faults else 0)


if __name__ == "__main__":
    main()
