#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Holds the tokenizers against HF `tokenizers`, built from the same files, over generated strings:

    compare_tokenizers.py LIBSHARPI.so [--strings N] [--seed S] [--also PRE,...] FILE.gguf...

A file is compared as it is. With --also a file of byte-level BPE is compared under other
pre-tokenizers too (names of tokenizer.ggml.pre): its vocabulary is written to a temporary file that
says so. Strings are words, code, digits, runs of blanks, many scripts, Hangul in parts, marks in any
order, emoji with their joiners, and code points of all of Unicode, alone and mixed. Exit 1: a string
has other tokens; the first ones are printed. Exit 77: no `tokenizers` or no `gguf`.
"""
import argparse
import ctypes
import os
import random
import sys
import tempfile

try:
    from gguf import GGUFReader, GGUFWriter
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed")
    sys.exit(77)

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LAST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + LAST
QWEN35 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
          + LAST)
LLAMA3 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + LAST)
BY_CASE = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+@"
           r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*@|\p{N}#"
           r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + LAST)
TEKKEN = BY_CASE.replace("@", "").replace("#", "")
O200K = BY_CASE.replace("@", CONTRACTIONS + "?").replace("#", "{1,3}")
DEEPSEEK3 = (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
             r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
             r"| ?[\p{P}\p{S}]+[\r\n]*|" + LAST)


# Letters of alphabets that have cases, as DeepSeek's first tokenizers list them.
DEEPSEEK_LETTERS = (
    "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-"
    "\u02AF\u0370-\u0373\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1"
    "\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-"
    "\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15"
    "\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D"
    "\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB"
    "\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D"
    "\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183"
    "\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B"
    "\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-"
    "\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB"
    "\U00010C80-\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943")
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_LLM = (r"[\r\n]", r"\s?[" + DEEPSEEK_LETTERS + "]+",
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", DEEPSEEK_CJK,
                r"\p{N}+")
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}")
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
SEED_CODER = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
              r"|\s+(?!\S)|\s+")


def by_pattern(*patterns):
    return pre_tokenizers.Sequence([
        *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
# pre-tokenizer, whether NFC comes first, whether pieces that are tokens are taken whole
FAMILIES = {
    "qwen2": (by_pattern(QWEN2), True, False),
    "qwen35": (by_pattern(QWEN35), True, False),
    "olmo": (GPT2, True, False),
    "llama-bpe": (by_pattern(LLAMA3), False, True),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
               False, False),
    "gpt-2": (GPT2, False, False),
    "tekken": (by_pattern(TEKKEN), False, True),
    "gpt-4o": (by_pattern(O200K), False, False),
    "deepseek-v3": (by_pattern(*DEEPSEEK3), False, False),
    "dbrx": (by_pattern(LLAMA3), False, False),
    "default": (by_pattern(r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"), False, False),
    "falcon": (by_pattern(r"[\p{P}\$\+<=>\^~\|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"), False, False),
    "deepseek-llm": (by_pattern(*DEEPSEEK_LLM), False, False),
    "deepseek-coder": (by_pattern(*DEEPSEEK_CODER), False, False),
    "seed-coder": (by_pattern(SEED_CODER), False, False),
}


class Vocabulary:
    def __init__(self, path):
        reader = GGUFReader(path)

        def key(name):
            field = reader.fields.get("tokenizer.ggml." + name)
            return None if field is None else field.contents()
        self.model, self.pre = key("model"), key("pre")
        self.tokens, self.kinds = key("tokens"), key("token_type")
        self.merges, self.scores = key("merges"), key("scores")
        self.lower, self.strip = key("normalizer.lowercase"), key("normalizer.strip_accents")
        self.charsmap = key("precompiled_charsmap")
        self.ids = {s: i for i, s in enumerate(self.tokens)}

    def write(self, path, pre):
        """A file of nothing but this vocabulary."""
        w = GGUFWriter(path, "llama")
        w.add_tokenizer_model(self.model)
        w.add_tokenizer_pre(pre)
        w.add_add_bos_token(False)
        w.add_token_list(self.tokens)
        w.add_token_types(self.kinds)
        w.add_token_merges(self.merges)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.close()

    def added(self):
        return [AddedToken(s, normalized=False, special=False)
                for s, kind in zip(self.tokens, self.kinds) if kind == 4]

    def byte_level(self, pre):
        splitter, nfc, whole = FAMILIES[pre]
        merges = [tuple(m.split(" ")) for m in self.merges]
        t = Tokenizer(models.BPE(self.ids, merges, ignore_merges=whole))
        t.pre_tokenizer = splitter
        if nfc:
            t.normalizer = normalizers.NFC()
        t.add_tokens(self.added())
        return t

    def merged_blanks(self):
        """Gemma: blanks are a character of the vocabulary. Merges by rank, or by score."""
        if self.merges is not None:
            merges = [tuple(m.split(" ")) for m in self.merges]
        else:
            found = []
            for s, i in self.ids.items():
                if self.kinds[i] != 1:
                    continue
                for cut in range(1, len(s)):
                    left, right = s[:cut], s[cut:]
                    if left in self.ids and right in self.ids:
                        found.append((-self.scores[i], self.ids[left], self.ids[right], left, right))
            merges = [(m[3], m[4]) for m in sorted(found)]
        t = Tokenizer(models.BPE(self.ids, merges, byte_fallback=True, fuse_unk=True,
                                 unk_token="<unk>" if "<unk>" in self.ids else None))
        t.normalizer = normalizers.Replace(" ", "\u2581")
        t.add_tokens(self.added())
        return t


    def word_piece(self):
        """BERT: tokens that begin a word have a mark in the file, those that go on have none."""
        vocab = {s if kind != 1 else s[1:] if s[0] == "\u2581" else "##" + s: i
                 for i, (s, kind) in enumerate(zip(self.tokens, self.kinds))}
        lower = True if self.lower is None else self.lower
        strip = lower if self.strip is None else self.strip
        t = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
        t.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True,
                                                  strip_accents=strip, lowercase=lower)
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return t

    def unigram(self):
        """XLM-R: words by white space, each with a mark before it."""
        t = Tokenizer(models.Unigram(list(zip(self.tokens, self.scores)), self.kinds.index(2), False))
        if self.charsmap:
            t.normalizer = normalizers.Precompiled(bytes(self.charsmap))
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")])
        return t


class Error(ctypes.Structure):
    """sharpi_error"""
    _fields_ = [("struct_size", ctypes.c_uint32), ("status", ctypes.c_int32),
                ("native_code", ctypes.c_int32), ("reserved", ctypes.c_uint32),
                ("text", ctypes.c_char * 480)]


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.error = Error(struct_size=ctypes.sizeof(Error))

    def open(self, path):
        model = ctypes.c_void_p()
        if self.lib.sharpi_model_open_text(path.encode(), ctypes.byref(model),
                                           ctypes.byref(self.error)) != 0:
            raise SystemExit(f"{path}: {self.error.text.decode()}")
        return model

    def encode(self, model, text):
        data = text.encode()
        out = (ctypes.c_int32 * (4 * len(data) + 8))()
        n = ctypes.c_uint32()
        status = self.lib.sharpi_tokenize(model, data, ctypes.c_size_t(len(data)), ctypes.c_uint32(0),
                                          out, ctypes.c_uint32(len(out)), ctypes.byref(n),
                                          ctypes.byref(self.error))
        return list(out[:n.value]) if status == 0 else self.error.text.decode()

    def close(self, model):
        self.lib.sharpi_model_destroy(model)


WORDS = ("the of and to in is that it was for on are as with his they at be this from I have or by one "
         "had not but what all were when we there can an your which their said if do will each about "
         "how up out them then she many some so these would other into has more her two like him see "
         "time could no make than first been its who now people my made over did down only way find "
         "use may water long little very after words called just where most know I'm don't we've it's "
         "YOU'LL She'd HELLO camelCase snake_case").split()
CODE = ["def f(x):\n    return x + 1\n", "if (a != b) { c[i++] += 0x1F; }\n", "\tfor i in range(10):\r\n",
        "<div class=\"a\">&nbsp;</div>", "SELECT * FROM t WHERE x >= 3;--", "a->b::c<d, e>(f);\n\n\n",
        "{\"k\": [1, 2.5e-3, null]}", "#include <x.h>\n", "$HOME/~/.bashrc && ls -la | grep '^d'"]
SCRIPTS = [(0x00C0, 0x024F), (0x0370, 0x03FF), (0x0400, 0x052F), (0x0531, 0x0586), (0x05D0, 0x05EA),
           (0x0620, 0x064A), (0x0900, 0x097F), (0x0980, 0x09FF), (0x0B80, 0x0BFF), (0x0E01, 0x0E4E),
           (0x1000, 0x109F), (0x10D0, 0x10FA), (0x1200, 0x1357), (0x1780, 0x17DD), (0x3041, 0x30FF),
           (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1D400, 0x1D7FF), (0x20000, 0x2A6DF)]
HANGUL = [(0x1100, 0x1112), (0x1161, 0x1175), (0x11A7, 0x11C2), (0xAC00, 0xD7A3)]
MARKS = [(0x0300, 0x036F), (0x064B, 0x0670), (0x0591, 0x05BD), (0x0F71, 0x0F84), (0x1DC0, 0x1DFF)]
EMOJI = ["\U0001F600", "\U0001F468\u200D\U0001F469\u200D\U0001F467", "\U0001F1E9\U0001F1EA", "\u2764\uFE0F",
         "\U0001F44D\U0001F3FD", "1\uFE0F\u20E3", "\U0001FAE8"]
BLANKS = [" ", "  ", "    ", "\t", "\n", "\r\n", "\n\n", "\u00A0", "\u2003", "\u3000", "\u200B", "\u180E", "\x0b",
          "\x85", "\u2028", " \n ", "\n   "]


class Strings:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def point(self, ranges):
        return chr(self.random.randint(*self.random.choice(ranges)))

    def any_point(self):
        while True:
            at = self.random.choice([0xFFFF, 0x1FFFF, 0x32000, 0x10FFFF])
            at = self.random.randint(1, at)
            if not 0xD800 <= at <= 0xDFFF:
                return chr(at)

    def piece(self):
        r = self.random
        kind = r.randrange(12)
        if kind <= 2:
            return r.choice(["", " "]) + r.choice(WORDS)
        if kind == 3:
            return r.choice(CODE)
        if kind == 4:
            return str(r.randrange(10 ** r.randrange(1, 12)))
        if kind == 5:
            return r.choice(BLANKS) * r.randrange(1, 6)
        if kind == 6:
            span = [r.choice(SCRIPTS)]
            return "".join(self.point(span) for _ in range(r.randrange(1, 12)))
        if kind == 7:
            return "".join(self.point(HANGUL) for _ in range(r.randrange(1, 6)))
        if kind == 8:
            return r.choice("aeo\u0915\u05D0\u0627") + "".join(self.point(MARKS)
                                                          for _ in range(r.randrange(1, 4)))
        if kind == 9:
            return r.choice(EMOJI)
        if kind == 10:
            return "".join(chr(r.randint(33, 126)) for _ in range(r.randrange(1, 10)))
        return "".join(self.any_point() for _ in range(r.randrange(1, 4)))

    def next(self):
        return "".join(self.piece() for _ in range(self.random.randrange(1, 9)))


def compare(library, path, reference, what, n, seed):
    model, strings, bad = library.open(path), Strings(seed), 0
    n_tokens = 0
    for i in range(n):
        text = strings.next()
        want = reference.encode(text, add_special_tokens=False).ids
        got = library.encode(model, text)
        n_tokens += len(want)
        if got == want:
            continue
        bad += 1
        if bad <= 5:
            print(f"{what}: string {i} {text!r}\n  reference {want}\n  library   {got}")
    library.close(model)
    print(f"{what}: {n} strings, {n_tokens} tokens, {bad} differ")
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--strings", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--also", default="")
    parser.add_argument("files", nargs="+")
    o = parser.parse_args()
    library, bad = Library(o.library), 0
    for path in o.files:
        vocabulary = Vocabulary(path)
        name = os.path.basename(path)
        if vocabulary.model in ("bert", "t5"):
            reference = vocabulary.word_piece() if vocabulary.model == "bert" else vocabulary.unigram()
            bad += compare(library, path, reference, name, o.strings, o.seed)
            continue
        if vocabulary.model != "gpt2":
            bad += compare(library, path, vocabulary.merged_blanks(), name, o.strings, o.seed)
            continue
        bad += compare(library, path, vocabulary.byte_level(vocabulary.pre),
                       f"{name} ({vocabulary.pre})", o.strings, o.seed)
        with tempfile.TemporaryDirectory() as folder:
            for pre in filter(None, o.also.split(",")):
                other = os.path.join(folder, "vocabulary.gguf")
                vocabulary.write(other, pre)
                bad += compare(library, other, vocabulary.byte_level(pre), f"{name} as {pre}",
                               o.strings, o.seed)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
