#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether two builds' objects hold the same machine code: for changes that only move sources.

    tools/compare_objects.py BEFORE AFTER [OLD=NEW..]

BEFORE and AFTER are folders of objects; each object of BEFORE is compared with that of the same name, or of
the new name where OLD=NEW says one (without `.cc.o`). Compared is the disassembly of every function with
its relocations, as objdump has them, function by function; addresses and the order of functions do not
count. Prints a line for every object that differs, naming its functions. Exit status: 0 all equal, 1 not.
"""
import os
import re
import subprocess
import sys


def functions(path):
    """{name: lines} of an object; addresses are relative to the function."""
    said = subprocess.run(["objdump", "-drC", "--no-show-raw-insn", path], capture_output=True, text=True,
                          check=True).stdout
    found, lines, start = {}, None, 0
    for line in said.splitlines():
        head = re.match(r"([0-9a-f]+) <(.*)>:$", line)
        if head:
            start, lines = int(head.group(1), 16), found.setdefault(head.group(2), [])
        elif lines is not None and line.strip() and not line.startswith("Disassembly"):
            at, _, rest = line.strip().partition(":")
            # Jumps name an address and a function with an offset: the second is enough.
            rest = re.sub(r"\b[0-9a-f]+ <", "<", rest)
            # Where data of this object lie in their section is no code.
            rest = re.sub(r"\.(LC|rodata|data)[\w.]*([+-]0x[0-9a-f]+)?", r".data", rest)
            lines.append("%x:%s" % (int(at, 16) - start, rest))
    for lines in found.values():  # what fills up to the next function
        while lines and re.search(r"\bnop|xchg +%ax,%ax|cs nop", lines[-1]):
            lines.pop()
    return found


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    before, after = sys.argv[1:3]
    renamed = dict(word.split("=") for word in sys.argv[3:])
    differ = 0
    for name in sorted(os.listdir(before)):
        if not name.endswith(".cc.o"):
            continue
        stem = name[:-len(".cc.o")]
        other = os.path.join(after, renamed.get(stem, stem) + ".cc.o")
        if not os.path.exists(other):
            print("%s: not there afterwards" % stem)
            differ += 1
            continue
        old, new = functions(os.path.join(before, name)), functions(other)
        changed = sorted(f for f in old.keys() | new.keys() if old.get(f) != new.get(f))
        differ += bool(changed)
        print("%s: %d functions, %s" % (stem, len(old), "differs in " + "; ".join(changed) if changed else "the same code"))
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
