#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes lib/text/unicode_ranges.inc: the letters, numbers, marks, punctuation and symbols that Unicode
15 and 16 added to version 14, as members of a PCRE2 class. Reference tokenizers split by Unicode 16, the PCRE2 of
stable distributions knows 14; where it knows more the ranges change nothing.

    pip install unicodedata2==16.0.0; make_unicode_ranges.py > lib/text/unicode_ranges.inc

Needs Python 3.11, whose own data is Unicode 14.
"""
import sys
import unicodedata

import unicodedata2


def ranges(category):
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000
              and unicodedata2.category(chr(c)).startswith(category)
              and not unicodedata.category(chr(c)).startswith(category)]
    out = []
    for c in points:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def main():
    if unicodedata.unidata_version != "14.0.0" or unicodedata2.unidata_version != "16.0.0":
        sys.exit(f"Python has {unicodedata.unidata_version} and unicodedata2 has "
                 f"{unicodedata2.unidata_version}, but 14.0.0 and 16.0.0 are needed")
    print("// SPDX-License-Identifier: MIT")
    print("// Written by tools/make_unicode_ranges.py.")
    for name, category in (("kNewLetters", "L"), ("kNewNumbers", "N"), ("kNewMarks", "M"),
                           ("kNewUpper", "Lu"), ("kNewLower", "Ll"), ("kNewModifiers", "Lm"),
                           ("kNewOthers", "Lo"), ("kNewPunctuation", "P"), ("kNewSymbols", "S")):
        found = ranges(category)
        print(f"constexpr char {name}[] =")
        parts = [f"\\\\x{{{a:X}}}" + (f"-\\\\x{{{b:X}}}" if b > a else "") for a, b in found]
        for i in range(0, len(parts), 3):
            end = ";" if i + 3 >= len(parts) else ""
            print(f'    "{"".join(parts[i:i + 3])}"{end}')


main()
