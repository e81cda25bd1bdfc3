#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the user's message of one needle prompt of a golden file as text.

    tools/make_demo_prompt.py tests/fixtures/tiny-qwen3 19 examples/demo_prompt.txt

The prompt is a ChatML conversation of one message; what is written is that message, so that
`examples/generate --chat -f` makes the golden's tokens of it. Prints the expected answer.
"""
import json
import struct
import sys

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
           12: "d"}
STRING, ARRAY = 8, 9


class Reader:
    """Metadata of a GGUF file of version 2 or 3."""

    def __init__(self, data):
        self.data, self.at = data, 4
        if data[:4] != b"GGUF" or self.scalar("I") not in (2, 3):
            sys.exit("not a GGUF file of version 2 or 3")

    def scalar(self, code):
        value = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize(code)
        return value

    def string(self):
        n = self.scalar("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode("utf-8", "surrogateescape")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            element, n = self.scalar("I"), self.scalar("Q")
            return [self.value(element) for _ in range(n)]
        return self.scalar(SCALARS[kind])

    def metadata(self):
        self.scalar("Q")  # tensors
        pairs = {}
        for _ in range(self.scalar("Q")):
            key = self.string()
            pairs[key] = self.value(self.scalar("I"))
        return pairs


def byte_alphabet():
    """Character of a byte-level BPE vocabulary -> byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    table = {chr(b): b for b in printable}
    table.update({chr(256 + i): b for i, b in enumerate(others)})
    return table


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    stem, index, out_path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with open(stem + "-q8_0.gguf", "rb") as f:
        meta = Reader(f.read()).metadata()
    with open(stem + ".golden.json", encoding="utf-8") as f:
        needle = json.load(f)["needles"][index]
    texts, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    alphabet = byte_alphabet()

    def text_of(tokens):
        out = bytearray()
        for t in tokens:
            special = kinds[t] in (3, 4)
            out += texts[t].encode() if special else bytes(alphabet[c] for c in texts[t])
        return out.decode()

    before, after = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    prompt = text_of(needle["prompt"])
    if not (prompt.startswith(before) and prompt.endswith(after)):
        sys.exit(f"needle {index} is not one ChatML message")
    with open(out_path, "w", encoding="utf-8", newline="") as f:
        f.write(prompt[len(before):-len(after)] + "\n")
    print(text_of(needle["answer"]))


if __name__ == "__main__":
    main()
