# SPDX-License-Identifier: MIT
"""Answers that follow a JSON schema, by llguidance's masks: python json_schema.py MODEL.gguf QUESTION

Needs: pip install llguidance
"""

import json
import sys

import llguidance

import sharpi

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "code": {"type": "integer", "minimum": 0, "maximum": 99999},
        "kind": {"enum": ["plant", "metal", "weather"]},
    },
    "required": ["name", "code", "kind"],
    "additionalProperties": False,
}


class Vocabulary:
    """What llguidance must know of a vocabulary, from sharpi_token_bytes() and its attributes."""

    def __init__(self, model):
        ids = range(model.info.n_vocab)
        control = sharpi.TokenAttributes.CONTROL
        self._model = model
        self.tokens = [model.token_bytes(i) for i in ids]
        self.special_token_ids = [i for i in ids if control in model.token_attributes(i)]
        self.end_tokens = [i for i in ids if model.is_end(i)]
        self.eos_token_id = self.end_tokens[0]
        self.bos_token_id = model.info.bos if model.info.bos >= 0 else None

    def __call__(self, text):
        return self._model.tokenize(text, add_special=False)


class Guide:
    """A `sharpi.Grammar`: llguidance makes the next mask while the model reads the last token."""

    def __init__(self, tokenizer, schema):
        # Without blanks between the parts: a model that likes them could go on with them for ever.
        grammar = llguidance.LLMatcher.grammar_from_json_schema(
            schema, overrides={"whitespace_flexible": False})
        self._matcher = llguidance.LLMatcher(tokenizer, grammar)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())

    def mask(self):
        return self._matcher.compute_bitmask()

    def accept(self, token):
        self._matcher.consume_token(token)


def tokenizer_of(model):
    vocabulary = Vocabulary(model)
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocabulary),
                                  eos_token=vocabulary.end_tokens)


def main():
    path, question = sys.argv[1:3]
    model = sharpi.Model(path, n_ctx=2048)
    tokenizer = tokenizer_of(model)  # once a model
    with sharpi.Chat(model, temperature=0, max_tokens=256) as chat:
        reply = chat.send(question, grammar=Guide(tokenizer, SCHEMA)).finish()
    if reply.finish_reason == "length":
        sys.exit("the answer is too long: " + reply.content)
    print(json.dumps(json.loads(reply.content), indent=2))


if __name__ == "__main__":
    main()
