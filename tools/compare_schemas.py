#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Holds grammars of JSON Schemas against jsonschema, over schemas that it makes up:

    compare_schemas.py MODEL.gguf [--cases N] [--seed N] [-v]

Two directions. Texts that a grammar writes, token by token with masks of chance, have to validate.
Values made up for the schema have to be allowed where they validate, and only there, if they are of
the normal form that sharpi.h describes (its members are in the schema's order, and named). Needs the
package sharpi (PYTHONPATH=bindings/python, SHARPI_LIBRARY). Exit 1: a case differs. Exit 77: no
jsonschema.
"""
import argparse
import collections
import copy
import json
import random
import sys

try:
    from jsonschema import Draft202012Validator as Validator
except ImportError:
    print("skipped: jsonschema is not installed")
    sys.exit(77)

import sharpi

WORDS = ["a", "b", "cd", "x_1", "Zed", "foo", "é", "a b", '"q"', "\n", "", "12", "123", "bar", "abc", "yb", "zzz"]
PATTERNS = ["^[a-z]+$", "^a", "b$", "[0-9]{2,3}", "^(foo|bar)?$", "^.{1,4}$", "x|y", "^[^a-c]*$", "^(?!a)[a-z]*$"]
NAMED_BY = {"^x_": "x_9", "^f": "fx", "1$": "q1"}
CLOSERS = (b'"', b"}", b"]", b'"}', b'"]', b",", b":", b"null", b"1", b"0", b"a")


class Maker:
    """Schemas, and values that may fit them."""

    def __init__(self, chance):
        self.r = chance

    def scalar(self):
        return self.r.choice([None, True, False, 0, 1, -3, 2.5, "a", "foo", "", 10, 100, 'b\n"'])

    def root(self):
        schema = self.schema(self.r.randint(1, 3))
        schema = dict(schema) if isinstance(schema, dict) else {}
        node = {"type": "object", "properties": {"v": self.schema(0), "next": {
            "anyOf": [{"type": "null"}, {"$ref": "#/$defs/B"}]}}, "required": ["v"]}
        schema["$defs"] = {"A": self.schema(1), "B": node}
        return schema

    def schema(self, depth):
        kinds = ["string", "number", "boolean", "enum", "const", "anything"]
        if depth > 0:
            kinds = ["string", "number", "boolean", "enum", "const", "object", "object", "object", "array",
                     "array", "places", "any_of", "one_of", "all_of", "reference", "types"]
        return getattr(self, self.r.choice(kinds))(depth - 1)

    def anything(self, _):
        return self.r.choice([{}, True, {"title": "x"}])

    def boolean(self, _):
        return {"type": self.r.choice(["boolean", "null"])}

    def string(self, _):
        out = {"type": "string"}
        self.maybe(out, 0.3, "minLength", self.r.randint(0, 3))
        self.maybe(out, 0.3, "maxLength", self.r.randint(2, 5))
        self.maybe(out, 0.4, "pattern", self.r.choice(PATTERNS))
        return out

    def number(self, _):
        out = {"type": self.r.choice(["integer", "number"])}
        self.maybe(out, 0.5, self.r.choice(["minimum", "exclusiveMinimum"]), self.r.choice([0, 1, -5, 2, -10, 1.5]))
        self.maybe(out, 0.5, self.r.choice(["maximum", "exclusiveMaximum"]), self.r.choice([10, 3, 100, 7, 6.25]))
        self.maybe(out, 0.2, "multipleOf", self.r.choice([2, 3, 5]))
        return out

    def enum(self, _):
        values = [None, True, 0, 1, "a", "foo", 2.5, "", [1], {"a": 1}]
        return {"enum": self.r.sample(values, self.r.randint(1, 4))}

    def const(self, _):
        return {"const": self.r.choice([None, True, 0, "a", [1, "x"], {"k": "v"}, 3.5])}

    def types(self, _):
        return {"type": self.r.sample(["string", "integer", "null", "boolean", "array", "object"], 2)}

    def any_of(self, depth):
        return {"anyOf": [self.schema(depth) for _ in range(self.r.randint(1, 3))]}

    def one_of(self, depth):
        if self.r.random() < 0.5:
            return {"oneOf": [self.schema(depth), self.schema(depth)]}
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": c}, "v": self.schema(depth - 1)},
                           "required": ["kind"]} for c in "xyz"]}

    def all_of(self, depth):
        return {"allOf": [self.schema(depth) for _ in range(self.r.randint(1, 2))] + [{"title": "t"}]}

    def reference(self, _):
        return {"$ref": self.r.choice(["#/$defs/A", "#/$defs/B"])}

    def array(self, depth):
        out = {"type": "array"}
        self.maybe(out, 0.8, "items", self.schema(depth))
        self.maybe(out, 0.4, "minItems", self.r.randint(0, 2))
        self.maybe(out, 0.4, "maxItems", self.r.randint(1, 3))
        if self.r.random() < 0.15:
            out.update(items={"enum": self.r.sample(["a", "b", 1, 2, None], 3)}, uniqueItems=True)
        return out

    def places(self, depth):
        out = {"type": "array", "prefixItems": [self.schema(depth) for _ in range(self.r.randint(1, 2))]}
        self.maybe(out, 0.6, "items", self.r.choice([False, self.schema(depth)]))
        self.maybe(out, 0.3, "minItems", self.r.randint(0, 3))
        return out

    def object(self, depth):
        out = {"type": "object"}
        names = self.r.sample(["a", "b", "cd", "x_1", "foo", "kind"], self.r.randint(0, 4))
        if names:
            out["properties"] = {n: self.schema(depth) for n in names}
        self.maybe(out, 0.6, "required", self.r.sample(names, self.r.randint(0, len(names))))
        self.maybe(out, 0.5, "additionalProperties", self.r.choice([False, False, self.schema(depth)]))
        self.maybe(out, 0.15, "patternProperties", {self.r.choice(list(NAMED_BY)): self.schema(depth)})
        self.maybe(out, 0.1, "propertyNames", {"pattern": self.r.choice(["^[a-z]+$", "^.{1,2}$"])})
        self.maybe(out, 0.1, "minProperties", self.r.randint(1, 2))
        self.maybe(out, 0.1, "maxProperties", self.r.randint(1, 3))
        if len(names) > 1:
            one, other = self.r.sample(names, 2)
            self.maybe(out, 0.15, "dependentRequired", {one: [other]})
            self.maybe(out, 0.1, "dependentSchemas", {other: {"properties": {one: self.schema(0)}}})
        return out

    def maybe(self, out, chance, name, value):
        if self.r.random() < chance:
            out[name] = value

    def value(self, schema, root, depth=0):
        if not isinstance(schema, dict):
            return self.scalar()
        if "$ref" in schema:
            return self.value(root["$defs"][schema["$ref"][-1]], root, depth + 1) if depth < 8 else None
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.r.choice(schema["enum"])
        for word in ("anyOf", "oneOf", "allOf"):
            if word in schema:
                return self.value(self.r.choice(schema[word]), root, depth + 1)
        kind = schema.get("type")
        kind = self.r.choice(kind) if isinstance(kind, list) else kind
        if kind == "array":
            return self.list_value(schema, root, depth)
        if kind == "object":
            return self.object_value(schema, root, depth)
        plain = {"string": WORDS, "integer": [0, 1, 2, 3, -5, 5, 6, 10, 12, 100, -9, 30], "null": [None],
                 "number": [0, 1.5, 2, -0.25, 3.25, 7, 10, -4.75, 99.5, 6], "boolean": [True, False]}
        return self.r.choice(plain[kind]) if kind else self.scalar()

    def list_value(self, schema, root, depth):
        places = schema.get("prefixItems", [])
        n = self.r.randint(0, len(places))
        out = [self.value(place, root, depth + 1) for place in places[:n]]
        if n == len(places) and schema.get("items") is not False and (not places or "items" in schema):
            out += [self.value(schema.get("items", True), root, depth + 1) for _ in range(self.r.randint(0, 3))]
        return out

    def object_value(self, schema, root, depth):
        out = {}
        for name, inner in schema.get("properties", {}).items():
            if name in schema.get("required", []) or self.r.random() < 0.5:
                out[name] = self.value(inner, root, depth + 1)
        for pattern, inner in schema.get("patternProperties", {}).items():
            if self.r.random() < 0.6:
                out.setdefault(NAMED_BY[pattern], self.value(inner, root, depth + 1))
        others = schema.get("additionalProperties")
        if isinstance(others, dict) and self.r.random() < 0.6:
            out["extra"] = self.value(others, root, depth + 1)
        return out


def is_normal(value, schema, root, depth=0):
    """Whether every object names only what its schema names, in order: asked where nothing is merged."""
    if not isinstance(schema, dict) or depth > 20:
        return True
    if "$ref" in schema:
        return is_normal(value, root["$defs"][schema["$ref"][-1]], root, depth + 1)
    if any(word in schema for word in ("anyOf", "oneOf", "allOf", "const", "enum")):
        return not any(isinstance(value, t) for t in (dict, list)) or "const" in schema or "enum" in schema
    if isinstance(value, list):
        places = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        if places and "items" not in schema and len(value) > max(len(places), schema.get("minItems", 0)):
            return False
        return all(is_normal(v, places[i] if i < len(places) else rest, root, depth + 1)
                   for i, v in enumerate(value))
    if not isinstance(value, dict):
        return True
    named = list(schema.get("properties", {}))
    keys = [k for k in value if k in named]
    if keys != sorted(keys, key=named.index) or list(value)[: len(keys)] != keys:
        return False
    asked = any(word in schema for word in ("additionalProperties", "patternProperties", "propertyNames"))
    if len(keys) < len(value) and named and not asked:
        return False
    if len(keys) < len(value) and "patternProperties" in schema and "additionalProperties" not in schema:
        return all(k in named or k in NAMED_BY.values() for k in value)
    return all(is_normal(v, schema.get("properties", {}).get(k, schema.get("additionalProperties", True)),
                         root, depth + 1) for k, v in value.items())


def written(grammar, chance, tokens, ends, limit=150):
    """A text by masks of chance; None: it did not end."""
    with grammar.matcher() as matcher:
        out = b""
        for _ in range(limit):
            mask = matcher.mask()
            allowed = [t for t in range(len(tokens)) if mask[t // 32] >> t % 32 & 1]
            assert allowed, f"nothing may follow {out!r}"
            going_on = [t for t in allowed if t not in ends]
            assert (len(going_on) < len(allowed)) == matcher.may_end, out
            if not going_on or (matcher.may_end and chance.random() < 0.5):
                return out
            closing = [t for t in going_on if tokens[t] in CLOSERS]
            token = chance.choice(closing if closing and chance.random() < 0.5 else going_on)
            matcher.accept(token)
            out += tokens[token]
    return None


def for_python(schema):
    """Where $ is the very end, as JSON Schema has it: Python's lets a line break follow."""
    if isinstance(schema, list):
        return [for_python(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: for_python(value) for key, value in schema.items()}
    if isinstance(out.get("pattern"), str):
        out["pattern"] = out["pattern"].replace("$", r"\Z")
    if isinstance(out.get("patternProperties"), dict):
        out["patternProperties"] = {key.replace("$", r"\Z"): value for key, value in out["patternProperties"].items()}
    return out


def allows(grammar, text):
    with grammar.matcher() as matcher:
        try:
            matcher.accept_text(text)
        except sharpi.Mismatch:
            return False
        return matcher.may_end


def compare(model, options):
    chance = random.Random(options.seed)
    maker = Maker(chance)
    tokens = [model.token_bytes(t) for t in range(model.info.n_vocab)]
    ends = {t for t in range(model.info.n_vocab) if model.is_end(t)}
    counts, faults, n = collections.Counter(), [], 0
    while n < options.cases:
        schema = maker.root()
        validator = Validator(for_python(schema))
        try:
            grammar = sharpi.CompiledGrammar(model, schema=schema)
        except (sharpi.Unsupported, sharpi.DoesNotFit) as refusal:
            counts["schemas refused"] += 1
            n += 1
            if options.verbose:
                print(refusal)
            continue
        for _ in range(2):
            text = written(grammar, chance, tokens, ends)
            n += 1
            counts["texts written" if text is not None else "texts without an end"] += 1
            if text is not None and not validator.is_valid(json.loads(text)):
                faults.append(f"written, but does not validate: {text!r} {json.dumps(schema)}")
        for _ in range(4):
            value = copy.deepcopy(maker.value(schema, schema))
            if chance.random() < 0.3 and isinstance(value, dict) and value:
                value[chance.choice(list(value))] = maker.scalar()
            text = json.dumps(value, ensure_ascii=False)
            valid, allowed = validator.is_valid(value), allows(grammar, text)
            n += 1
            said = sharpi.check_schema(schema, text)
            if (said is None) != valid:
                faults.append(f"checked: {said}, but valid is {valid}: {text} {json.dumps(schema)}")
            counts["valid" if valid else "not valid"] += 1
            if allowed and not valid:
                faults.append(f"allowed, but does not validate: {text} {json.dumps(schema)}")
            elif valid and not allowed and is_normal(value, schema, schema):
                faults.append(f"valid, but not allowed: {text} {json.dumps(schema)}")
            elif valid and not allowed:
                counts["of another form"] += 1
        grammar.close()
    for fault in faults[:20]:
        print(fault)
    print(f"{n} cases, {len(faults)} differ:", ", ".join(f"{v} {k}" for k, v in sorted(counts.items())))
    return 1 if faults else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-v", dest="verbose", action="store_true")
    options = parser.parse_args()
    with sharpi.TextModel(options.model) as model:
        sys.exit(compare(model, options))


if __name__ == "__main__":
    main()
