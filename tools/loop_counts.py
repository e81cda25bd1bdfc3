#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Instructions of the inner loops of kernels, as a disassembler has them.

    tools/loop_counts.py [--objdump PROGRAM] OBJECT... --function REGEX [--products REGEX]

For every function of the objects whose (demangled) name matches, the smallest loop that has the most products
(instructions that match --products) is found; a loop is what lies between the target of a jump backwards and the
jump. One line each: instructions of the loop, how many of them are products, loads, loops inside (their
instructions count once), and the function's name. What a loop does in one turn is the kernel's own: a unit of 256
weights, or a group of 8 rows.
"""
import argparse
import re
import subprocess

PRODUCTS = r"^(sdot|smmla|smull2?|smlal2?|bfmmla|bfdot|vpmaddubsw|vpdpbusd|vdpbf16ps|tdp\w+)$"
LOADS = re.compile(r"^(ld[rp]|ldur|ld1\w*)$")
LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")


def functions(objdump, path):
    """(name, [(address, mnemonic, operands)]) of an object."""
    text = subprocess.run([objdump, "-d", "-C", "--no-show-raw-insn", path], check=True, capture_output=True,
                          text=True).stdout
    name, body = None, []
    for line in text.splitlines():
        head = re.match(r"^[0-9a-f]+ <(.*)>:$", line)
        if head:
            if name:
                yield name, body
            name, body = head.group(1), []
            continue
        found = LINE.match(line)
        if found:
            body.append((int(found.group(1), 16), found.group(2), found.group(3)))
    if name:
        yield name, body


def loops(body):
    """Ranges of indices from the target of a jump backwards to the jump."""
    at = {address: i for i, (address, _, _) in enumerate(body)}
    for i, (address, mnemonic, operands) in enumerate(body):
        if not re.match(r"^(j\w+|b|b\.\w+|cbn?z|tbn?z)$", mnemonic):
            continue
        target = re.search(r"\b([0-9a-f]+) <", operands)
        if target and int(target.group(1), 16) in at and int(target.group(1), 16) <= address:
            yield at[int(target.group(1), 16)], i + 1


def is_load(mnemonic, operands):
    if LOADS.match(mnemonic):
        return True
    # x86: memory that is not the last operand, which is where a store goes.
    return mnemonic.startswith("v") and "(" in operands and not operands.rstrip().endswith(")")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objects", nargs="+")
    parser.add_argument("--objdump", default="objdump")
    parser.add_argument("--function", required=True)
    parser.add_argument("--products", default=PRODUCTS)
    arguments = parser.parse_args()
    product = re.compile(arguments.products)
    for path in arguments.objects:
        for name, body in functions(arguments.objdump, path):
            if not re.search(arguments.function, name):
                continue
            best = None
            for first, end in loops(body):
                n = sum(1 for _, mnemonic, _ in body[first:end] if product.match(mnemonic))
                if n and (best is None or (-n, end - first) < best[0]):
                    best = ((-n, end - first), first, end)
            if best is None:
                continue
            turn = body[best[1]:best[2]]
            n_loads = sum(1 for _, mnemonic, operands in turn if is_load(mnemonic, operands))
            inside = sum(1 for first, end in loops(body) if (best[1] <= first and end <= best[2]) - ((first, end) == best[1:]))
            print("%5d %5d %5d %2d  %s" % (len(turn), -best[0][0], n_loads, inside, name))


if __name__ == "__main__":
    main()
