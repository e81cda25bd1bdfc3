#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes hard_strings.inc: texts that tokenizers get wrong, with the ids that the HF `tokenizers`
library gives for the vocabularies inside the tiny models.

    make_hard_strings.py FOLDER_OF_FIXTURES > hard_strings.inc      (needs: gguf, tokenizers)

Bytes that are not UTF-8 have no meaning to that library: each is expected as its own byte token
between the ids of the valid stretches.
"""
import sys
import textwrap

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

MODELS = ["tiny-qwen3", "tiny-qwen35", "tiny-olmoe", "tiny-gemma4kv"]
PATTERNS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
             r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
              r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
STRINGS = [
    ("empty", b""),
    ("one letter", b"a"),
    ("one space", b" "),
    ("one newline", b"\n"),
    ("words", b"The code of spark is 25758."),
    ("contractions",
     b"I'll you've it's he'd we're I'm don't"),
    ("capital contractions", b"I'LL YOU'VE IT'S HE'D WE'RE I'M DON'T"),
    ("long s after an apostrophe", "it'\u017f".encode()),
    ("curly apostrophe", "it\u2019s".encode()),
    ("apostrophes", b"''s 't' '''"),
    ("digits", b"1234"),
    ("digits after a space", b"x 1234 56"),
    ("digits of other scripts", "\u0663\u0664 \u0968\u0969 \u00b2\u00bd \u2167".encode()),
    ("CJK", "\u4f60\u597d\uff0c\u4e16\u754c\u3002".encode()),
    ("kana with a voicing mark", "\u304b\u3099\u304c".encode()),
    ("Hangul and its jamo", "\ud55c\uad6d \u1112\u1161\u11ab".encode()),
    ("precomposed and combining accents", "\u00e9 e\u0301 \u1e9b\u0323 \u212b".encode()),
    ("marks out of canonical order", "a\u0301\u0316\u0327b".encode()),
    ("a mark with no base", "\u0301x".encode()),
    ("Devanagari", "\u0915\u094d\u0937\u093f\u0903".encode()),
    ("emoji with modifier", "\U0001f44d\U0001f3fd!".encode()),
    ("emoji family", "\U0001f468\u200d\U0001f469\u200d\U0001f467".encode()),
    ("newline runs", b"a\nb\n\nc\n\n\nd\n\n\n\n\n\n\n\n\n\n"),
    ("CR LF", b"a\r\nb\r\n\r\nc\r"),
    ("spaces before newlines", b"a  \n \n  b"),
    ("leading spaces", b"    x = 1"),
    ("trailing spaces", b"x = 1    "),
    ("spaces alone", b"         "),
    ("a run of 40 spaces and a word", b" " * 40 + b"self"),
    ("tabs", b"\tif x:\n\t\treturn\t1"),
    ("tab before a word", b"a\t\tb"),
    ("NBSP and wide spaces", "a\u00a0b\u2003c\u3000d".encode()),
    ("vowel separator is no space", "a\u180eb  \u180e".encode()),
    ("line separators", "a\u2028b\u0085c\x0bd\x0ce".encode()),
    ("zero byte", b"a\x00b"),
    ("ideographic space marker", "a\u2581b \u2581".encode()),
    ("byte token text", b"<0x41> <0xFF>"),
    ("letters of the byte alphabet", "\u0120\u010a\u00ff\u00df".encode()),
    ("punctuation", b"foo(bar)[0]->x!=y&&z||w;//--==>"),
    ("punctuation then newlines", b"x;\n\n\ty...\r\n"),
    ("ChatML turn",
     b"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    ("Gemma turn",
     b"<bos><|turn>user\nhi<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"),
    ("broken special tokens", b"<|im_start|<|im_end|>><|im_<|turn<turn|>"),
    ("accent across a special token", b"e<|im_end|>\xcc\x81 e<turn|>\xcc\x81"),
    ("code", b"def f(self):\n    return self._offset[1:] + 'x'\n"),
    ("mixed scripts",
     ("na\u00efve \u0440\u0443\u0441\u0441\u043a\u0438\u0439"
     " \u0639\u0631\u0628\u064a \u05e2\u05d1\u05e8").encode()),
    ("noncharacters and private use", "\ue000\ufffe\U0010ffff".encode()),
    ("lone continuation byte", b"a\x80b"),
    ("bytes FE FF", b"\xfe\xff"),
    ("truncated character", b"caf\xc3"),
    ("truncated character inside", b"x\xe4\xbd y"),
    ("overlong slash", b"\xc0\xaf/"),
    ("surrogate half", b"\xed\xa0\x80!"),
    ("above U+10FFFF", b"\xf4\x90\x80\x80"),
    ("accent after a bad byte", b"e\xff\xcc\x81 e\xcc\x81"),
    ("spaces before a bad byte", b"a   \xff   b"),
]


def byte_alphabet():
    own = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    out = {b: chr(b) for b in own}
    out.update({b: chr(0x100 + i) for i, b in enumerate(b for b in range(256) if b not in own)})
    return out


def build(path):
    fields = GGUFReader(path).fields
    field = {k[15:]: f.contents() for k, f in fields.items() if k.startswith("tokenizer.ggml.")}
    texts, types = field["tokens"], field["token_type"]
    vocab = {t: i for i, t in enumerate(texts)}
    merges = [(m[:m.index(" ", 1)], m[m.index(" ", 1) + 1:]) for m in field["merges"]]
    if field["model"] == "gemma4":
        tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True,
                                   unk_token="<unk>"))
        tok.normalizer = normalizers.Replace(" ", "\u2581")
        tok.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
        byte_ids = {b: vocab[f"<0x{b:02X}>"] for b in range(256)}
    else:
        pre = field["pre"]
        tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        tok.normalizer = normalizers.NFC()
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if pre != "olmo":
            tok.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(PATTERNS[pre]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        byte_ids = {b: vocab[c] for b, c in byte_alphabet().items()}
    special = [t for t, k in zip(texts, types) if k in (2, 3, 4) or t in ("<|turn>", "<turn|>")]
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tok, byte_ids


def encode(tok, byte_ids, data):
    ids = []
    while data:
        try:
            valid = len(data.decode() and data)
        except UnicodeDecodeError as e:
            valid = e.start
        ids += tok.encode(data[:valid].decode(), add_special_tokens=False).ids
        if valid < len(data):
            ids.append(byte_ids[data[valid]])
        data = data[valid + 1:]
    return ids


def literal(data):
    plain = {ord("\n"): "\\n", ord("\t"): "\\t", ord('"'): '\\"', ord("\\"): "\\\\"}
    return "".join(plain.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in data)


def main():
    built = [build(f"{sys.argv[1]}/{m}-q8_0.gguf") for m in MODELS]
    print("// SPDX-License-Identifier: MIT")
    print("// Written by make_hard_strings.py: name, text and the ids of")
    print("// " + ", ".join(MODELS) + ".")
    for name, data in STRINGS:
        rows = ["{" + ", ".join(map(str, encode(t, b, data))) + "}" for t, b in built]
        rows = [textwrap.fill(r, 99, initial_indent="  ", subsequent_indent="   ") for r in rows]
        print(f'{{"{name}",\n  {{"{literal(data)}", {len(data)}}},\n' + ",\n".join(rows) + "},")


main()
