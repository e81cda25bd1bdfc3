#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""HAS(name, slot) of the Vulkan tier's shaders names the address that the slot is: shader_slots.py source-tree"""
import os
import re
import sys

ROOM = os.path.join(sys.argv[1], "vulkan", "shaders")


def text_of(path):
    """With the files that it includes, in their places."""
    with open(path) as f:
        text = f.read()
    return re.sub(r'#include "([^"]+)"',
                  lambda m: text_of(os.path.join(os.path.dirname(path), m.group(1))), text)


def addresses(text):
    """The names of the addresses that come first in the push constants."""
    found = re.search(r"layout\(push_constant\) uniform P \{(.*?)\} p;", text, re.S)
    if not found:
        return []
    fields = re.sub(r"//.*", "", found.group(1))
    names = []
    for kind, list_ in re.findall(r"(\w+)\s+([^;]+);", fields):
        if kind != "uint64_t":
            break
        names += [n.strip() for n in list_.split(",")]
    return names


def main():
    wrong = 0
    uses = 0
    for folder in (ROOM, os.path.join(ROOM, "newer")):
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".comp"):
                continue
            text = text_of(os.path.join(folder, name))
            slots = {n: i for i, n in enumerate(addresses(text))}
            for what, slot in re.findall(r"\bHAS\((\w+), (\d+)\)", text):
                uses += 1
                if slots.get(what) != int(slot):
                    print("%s: HAS(%s, %s), but it is address %s" % (name, what, slot, slots.get(what)))
                    wrong += 1
            for what in re.findall(r"\bp\.(\w+) [!=]= 0\b", text):
                if what in slots:
                    print("%s: p.%s is compared with 0; drivers may read what is behind it all the same" % (name, what))
                    wrong += 1
    if uses == 0:
        print("no shader asks for an address")
    return 1 if wrong or not uses else 0


sys.exit(main())
