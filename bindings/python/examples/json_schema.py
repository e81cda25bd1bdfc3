# SPDX-License-Identifier: MIT
"""Answers that follow a JSON schema: python json_schema.py MODEL.gguf QUESTION"""

import json
import sys

import sharpi

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "code": {"type": "integer", "minimum": 0, "maximum": 99999},
        "kind": {"enum": ["plant", "metal", "weather"]},
    },
    "required": ["name", "code", "kind"],
}


def main():
    path, question = sys.argv[1:3]
    model = sharpi.Model(path, n_ctx=2048)
    grammar = sharpi.CompiledGrammar(model, schema=SCHEMA)  # once a schema; a matcher for each answer
    with sharpi.Chat(model, temperature=0, max_tokens=256) as chat:
        reply = chat.send(question, grammar=grammar.matcher()).finish()
    if reply.finish_reason == "length":
        sys.exit("the answer is too long: " + reply.content)
    print(json.dumps(json.loads(reply.content), indent=2))


if __name__ == "__main__":
    main()
