#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Keep sets of tools/compaction_oracle.py as a small text file for tests/engine/keep_set_test.cc.

    tools/make_keep_reference.py FIXTURE.gguf GOLDEN.json NEEDLE[,NEEDLE..] OUT.txt

One line a set: needle policy budget layer head rows near. `rows` has four rows a digit, the lowest in
the lowest bit, without the last 64 rows, which always stay; runs of digits are letters (digits()). `near` lists the rows whose score is within
0.2% of the last one kept: two implementations may differ there. The model and the policies are the
oracle's own functions. Needs what the oracle needs (numpy, gguf).
"""
import os
import re
import runpy
import sys

import numpy as np

POLICIES = ["global", "snapkv-p7", "snapkv-p13", "defensive-p13", "value-p13", "span-12",
            "retrieval-12"]
BUDGETS = [256, 128]
NEAR = 2e-3


def digits(kept, n):
    bits = np.zeros((n + 3) // 4 * 4, int)
    bits[kept] = 1
    digits = "".join("%x" % v for v in bits.reshape(-1, 4) @ [1, 2, 4, 8])
    # Of 2 to 21 digits 0 one letter from g on, of f one from G on.
    for digit, first in (("f", "G"), ("0", "g")):
        digits = re.sub(digit + "{2,21}", lambda run, first=first: chr(ord(first) + len(run[0]) - 2), digits)
    return digits


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    model, golden, needles, out_path = sys.argv[1:]
    sys.argv = ["compaction_oracle.py", model, golden, "--needles", "0"]
    oracle = runpy.run_path(os.path.join(os.path.dirname(__file__), "compaction_oracle.py"))
    recency = oracle["REC"]
    with open(out_path, "w", encoding="utf-8") as out:
        print(f"# {os.path.basename(model)}, by tools/make_keep_reference.py", file=out)
        for index, budget in zip(map(int, needles.split(",")), BUDGETS):
            prompt = np.array(oracle["GOLD"]["needles"][index]["prompt"])
            _, keys, values, queries = oracle["prefill"](prompt)
            old = len(prompt) - recency
            for policy in POLICIES:
                scores = oracle["policy_scores"](policy, keys, values, queries)
                for l, layer in enumerate(scores):
                    for h, s in enumerate(layer):
                        kept = oracle["keep"](s, budget)[:-recency]
                        last = s[kept].min()
                        near = np.nonzero(np.abs(s[:old] - last) <= NEAR * last)[0]
                        print(index, policy, budget, l, h, digits(kept, old),
                              ",".join(map(str, near)), file=out)


if __name__ == "__main__":
    main()
