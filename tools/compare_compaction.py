#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What compaction loses of texts of this tree: writes the texts with their questions, and asks them of other implementations.

    compare_compaction.py --write CASES                        for bench/text_needles MODEL.gguf CASES
    compare_compaction.py MODEL.gguf CASES [--presses kvzip,snapkv,compactor] [--shares 25,12.5,6.25] [--kinds four] [--names PART]

The texts are manuals (docs), code (lib) and dialogues (chats of tests, and pages as answers). Kinds: one and four numbers that are hidden in a text, answers
that stand in it, a dictionary, and (with four) the text that goes on. The second form compacts the text by kvpress and asks the questions
afterwards: a press never knows them. The weights are the GGUF's, dequantised by transformers. Lines are those of text_needles: kind, mode,
policy, layer_budget, share, right answers, questions, mean -ln p of an answer's tokens. Without the packages it says so, and is skipped:
pip install kvpress gguf.
"""
import argparse
import contextlib
import copy
import math
import re
import sys
import tempfile
import zlib
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
END, PART = "\x1e", "\x1f"  # of a case, and of its fields: kind, name, text, what follows, then question and answer in turns
CITIES = "Oslo Lisbon Cairo Dublin Quito Hanoi Tunis Vienna Lima Athens Bern Seoul".split()
MANUALS = [("docs/server.md", 5000), ("docs/reliability.md", 4000), ("docs/extending.md", 7000), ("docs/tutorial.md", 4000)]
CODE = [("lib/engine/row_selector.cc", 4000), ("lib/kv/policy.cc", 5000)]
DIALOGUES = [("docs/python.md", 5000), ("docs/bindings.md", 4000)]
ANSWERS = {
    "docs/macos.md docs/windows.md": [
        ("For which version of macOS and later is the library?", "13"), ("Which Python package brings Clang for macOS?", "ziglang"),
        ("Which compiler makes the library for Windows?", "MinGW-w64"), ("Under which version of Wine was it run?", "Wine 8")],
    "docs/adapters.md": [
        ("Which program of llama.cpp writes the files?", "convert_lora_to_gguf.py"), ("How large is the adapter of rank 16?", "20 MB"),
        ("Which function chooses the adapters of a session?", "sharpi_session_set_adapters()"), ("As what are weights kept?", "f32")],
    "docs/embeddings.md": [
        ("Which program makes a file of a folder?", "tools/models/make_encoder_gguf.py"), ("How many tokens have texts without an n_ctx?", "2048"),
        ("Which function makes the text of a query and a document?", "sharpi_rank_tokenize()"), ("Where do encoders run?", "on the CPU")],
    "docs/packages.md": [
        ("Which command makes all packages?", "make dist"), ("Which glibc is needed?", "2.27"), ("In which format is the SBOM?", "SPDX 2.3"),
        ("Which system was it tried on?", "Debian 11")]}


def text_of(path):
    return (TREE / path).read_text()


def dialogue(path):
    """The page's sections as answers, with what users and assistants say in the tests between them."""
    chats = []
    for file in sorted((TREE / "tests/server").rglob("*.[jp][sy]*")):
        chats += re.findall(r'"role": "(user|assistant)", "content": "([^"\\]{8,})"', file.read_text())
    chats, out = list(dict.fromkeys(chats)), ""
    for i, section in enumerate(re.split(r"^##? ", text_of(path), flags=re.M)[1:]):
        title, _, body = section.partition("\n")
        out += f"user: What is there to say about {title.split(' {')[0]}?\n\nassistant: {body.strip()}\n\n"
        out += "".join(f"{role}: {said}\n\n" for role, said in chats[2 * i % len(chats):][:2])
    return out


def hide(text, size, first, count):
    """The text with `count` sentences between its lines, what follows it, and the questions."""
    lines, out, asks, at = text.splitlines(True), "", [], 0
    while lines and len(out) < size:
        if len(asks) < count and len(out) >= size * (2 * len(asks) + 1) / (2 * count):
            city = (first + len(asks)) % len(CITIES)
            said = f"The secret number of {CITIES[city]} is"
            asks.append((said, f" {10000 + (city * 48271 + first * 7919 + 38119) % 90000}"))
            out += f"\n{said}{asks[-1][1]}.\n\n"
        out += lines[at]
        at += 1
        if at == len(lines):
            break
    return out, "".join(lines[at:])[:2000], asks


def dictionary(path, n):
    words = sorted(set(re.findall(r"\b[a-z]{4,9}\b", text_of(path))), key=lambda w: zlib.crc32(w.encode()))[:2 * n]
    pairs = list(zip(words[:n], words[n:]))
    return "".join(f"{a}: {b}\n" for a, b in pairs), [(f"{a}:", f" {b}") for a, b in pairs[n // 12::n // 6]]


def cases():
    for i, (path, size) in enumerate(MANUALS + CODE + DIALOGUES):
        whole = dialogue(path) if (path, size) in DIALOGUES else text_of(path)
        for kind, count in (("one", 1), ("four", 4)):
            text, rest, asks = hide(whole, size, 5 * i + count, count)
            yield kind, path, text, rest if count == 4 else "", asks
    for paths, asks in ANSWERS.items():
        text = "".join(text_of(p) for p in paths.split())[:6300]
        for question, answer in asks:
            assert answer in text, f"{paths} no longer says {answer}"
        yield "answers", paths, text, "", [(f"\n\nQuestion: {q}\nAnswer:", " " + a) for q, a in asks]
    for path in ("docs/server.md", "docs/architecture.md", "docs/glossary.md"):
        text, asks = dictionary(path, 120)
        yield "dictionary", path, text, "", asks


def write(path):
    with open(path, "w") as out:
        for kind, name, text, rest, asks in cases():
            out.write(PART.join([kind, name, text, rest] + [x for ask in asks for x in ask]) + END)


def read(path):
    for case in Path(path).read_text().split(END)[:-1]:
        kind, name, text, rest, *asks = case.split(PART)
        yield kind, name, text, rest, list(zip(asks[::2], asks[1::2]))


class Presses:
    """A model, and its text's cache as presses leave it."""

    def __init__(self, path):
        import kvpress
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
        from transformers.utils import logging
        logging.set_verbosity_error()
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        self.torch, self.kvpress, self.new_cache = torch, kvpress, DynamicCache
        folder, file = str(Path(path).parent), Path(path).name
        self.tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
        self.model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
        self.tokenizer.chat_template = None  # the texts are plain, and KVzip would repeat them as a user's turn
        self.folder = tempfile.TemporaryDirectory()
        self.tokenizer.save_pretrained(self.folder.name)
        self.model.config.name_or_path = self.folder.name  # where KVzip looks for it

    def tokens(self, text, special=False):
        return self.tokenizer(text, return_tensors="pt", add_special_tokens=special).input_ids

    def prefilled(self, ids, press):
        cache = self.new_cache()
        with press(self.model) if press else contextlib.nullcontext():
            self.model.model(input_ids=ids, past_key_values=cache, use_cache=True)
        return cache

    def kept(self, ids, name, shares):
        """Pairs of a share and the cache that has no more rows of the text. KVzip's scores serve all shares."""
        if name != "kvzip":
            make = {"snapkv": self.kvpress.SnapKVPress, "compactor": self.kvpress.CompactorPress}[name]
            for share in shares:
                yield share, self.prefilled(ids, make(compression_ratio=1 - share / 100))
            return

        class Scored(self.kvpress.KVzipPress):
            def compress_post(self, model):
                scores = self.score_val
                self.again = lambda: setattr(self, "score_val", scores.clone()) or super(Scored, self).compress_post(model)
        press = Scored(compression_ratio=0.5)
        cache = self.prefilled(ids, press)
        for share in shares:
            press.compression_ratio = 1 - share / 100
            press.again()
            yield share, cache

    def expect(self, cache, at, question, answer):
        """Right, and the mean of -ln p, of the answer behind the question; the cache is left as it was."""
        ids = self.torch.cat([question, answer], 1)
        where = self.torch.arange(at, at + ids.shape[1])[None]
        out = self.model(input_ids=ids, past_key_values=copy.deepcopy(cache), position_ids=where)
        logits = out.logits[0, question.shape[1] - 1:-1].log_softmax(-1)
        return bool((logits.argmax(-1) == answer[0]).all()), -float(logits.gather(1, answer[0][:, None]).mean())


def compare(o):
    try:
        p = Presses(o.model)
    except ImportError as e:
        print(f"compare_compaction: skipped, {e}; pip install kvpress gguf", file=sys.stderr)
        return 0
    found, shares = {}, [float(s) for s in o.shares.split(",")]
    for kind, name, text, rest, asks in read(o.cases):
        if kind not in o.kinds.split(",") or o.names not in name:
            continue
        ids = p.tokens(text, True)
        print(f"{kind}, {name}: {ids.shape[1]} tokens", file=sys.stderr, flush=True)
        last, n = ids[:, -1:], ids.shape[1] - 1
        for press in ["whole"] + o.presses.split(","):
            whole = [(100.0, p.prefilled(ids[:, :-1], None))] if press == "whole" else None
            for share, cache in whole or p.kept(ids[:, :-1], press, shares):
                for question, answer in asks:
                    q = p.tokens(question)
                    a = p.tokens(question + answer)[:, q.shape[1]:]
                    add(found, (kind, press, share), p.expect(cache, n, p.torch.cat([last, q], 1), a))
                if rest:
                    add(found, ("goes_on", press, share), p.expect(cache, n, last, p.tokens(rest)[:, :256]))
    for (kind, press, share), (right, n, nll) in found.items():
        print(f"{kind},after,kvpress-{press},-,{share:g},{right},{n},{nll / n:.4f}")
    return 0


def add(found, key, result):
    right, n, nll = found.get(key, (0, 0, 0.0))
    found[key] = right + result[0], n + 1, nll + (result[1] if math.isfinite(result[1]) else 99.0)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model", nargs="?")
    a.add_argument("cases", nargs="?")
    a.add_argument("--write", metavar="CASES")
    a.add_argument("--presses", default="kvzip,snapkv,compactor")
    a.add_argument("--shares", default="25,12.5,6.25")
    a.add_argument("--kinds", default="four")
    a.add_argument("--names", default="", metavar="PART")
    o = a.parse_args()
    if o.write:
        return write(o.write)
    return compare(o) if o.cases else a.error("MODEL.gguf and CASES, or --write")


sys.exit(main())
