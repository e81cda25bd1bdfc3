#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws docs/plots/scaling_*.svg from the lines of bench/scaling_bench that lie in docs/plots/scaling.csv.

    docs/plot_scaling.py [FOLDER]

scaling_prompt.svg: tokens a second of whole prompts against their length; scaling_decode.svg: of
single tokens against what lies before them. A panel per model, a line per engine and KV type. Grey is the
bound: of decoding, the bytes that a token must read over the memory's rate (lines of kind
`memory`); of prompts, the operations over the rate of matrix products, where a line of kind `matrix` says it
(flop a second). Lines of other engines are written by hand, with the same columns.
Python's standard library only.
"""
import csv
import math
import os
import sys

from plot_compaction import HEAD, text

COLOURS = ["#0b5fa5", "#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#a6761d"]
TITLES = {"prompt": "Whole prompts: tokens/s against their length",
          "decode": "Single tokens: tokens/s against the tokens before them"}


def series(rows, kind):
    """{model: {(engine, kv): [(depth, tokens/s)]}}, and the bounds {model: [(depth, tokens/s)]}."""
    lines, bounds = {}, {}
    rates = {(r["model"], r["kind"]): float(r["bytes"] if r["kind"] == "memory" else r["flop"])
             for r in rows if r["kind"] in ("memory", "matrix")}
    cost, rate_kind = ("flop", "matrix") if kind == "prompt" else ("bytes", "memory")
    for r in rows:
        if r["kind"] != kind:
            continue
        depth, n = int(r["depth"]), int(r["tokens"])
        of_model = lines.setdefault(r["model"], {})
        of_model.setdefault((r["engine"], r["kv"]), []).append((depth, n / float(r["seconds"])))
        rate = rates.get((r["model"], rate_kind))
        if rate and float(r[cost] or 0) > 0:
            best = bounds.setdefault(r["model"], {})
            best[depth] = max(best.get(depth, 0), n * rate / float(r[cost]))
    return lines, {model: sorted(b.items()) for model, b in bounds.items()}


def number(x):
    unit = 1024 if x % 1024 == 0 else 1000
    return f"{x / unit:g}K" if x >= unit else f"{x:g}"


def draw(rows, kind):
    lines, bounds = series(rows, kind)
    width, height, left, top, across = 300, 190, 60, 50, 2
    down = (len(lines) + across - 1) // across
    w, h = left + across * (width + 70), top + down * (height + 60)
    out = HEAD.format(w=w, h=h) + text(left, 20, TITLES[kind], extra=' font-size="14"')
    for i, (model, curves) in enumerate(sorted(lines.items())):
        x0, y0 = left + i % across * (width + 70), top + 15 + i // across * (height + 60)
        bound = bounds.get(model, [])
        points = [p for c in curves.values() for p in c] + bound
        least, most = min(p[0] for p in points), max(p[0] for p in points)
        ceiling = max(p[1] for p in points) * 1.05

        def at(depth, rate):
            span = math.log2(most / least) or 1
            return (round(x0 + width * math.log2(depth / least) / span, 1),
                    round(y0 + height * (1 - rate / ceiling), 1))

        out += text(x0, y0 - 9, model, extra=' font-weight="bold"')
        step = 10 ** math.floor(math.log10(ceiling))
        step = step / 2 if ceiling / step < 3 else step
        for k in range(int(ceiling / step) + 1):
            y = at(least, k * step)[1]
            out += f'<path d="M{x0} {y}h{width}" stroke="#ddd"/>\n' + text(x0 - 5, y + 4, number(k * step), "end")
        for depth in sorted({p[0] for p in points}):
            out += text(at(depth, 0)[0], y0 + height + 15, number(depth), "middle")
        for j, ((engine, kv), curve) in enumerate(sorted(curves.items()) + [(("bound", ""), bound)]):
            if not curve:
                continue
            colour = "#999" if engine == "bound" else COLOURS[j % len(COLOURS)]
            path = " ".join("{},{}".format(*at(*p)) for p in sorted(curve))
            out += f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>\n'
            out += text(x0 + 5 + j * 95, y0 + height + 33, f"{engine} {kv}", extra=f' style="fill:{colour}"')
    return out + "</svg>\n"


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "plots")
    with open(os.path.join(folder, "scaling.csv"), encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    for kind in TITLES:
        with open(os.path.join(folder, f"scaling_{kind}.svg"), "w", encoding="utf-8") as f:
            f.write(draw(rows, kind))


if __name__ == "__main__":
    main()
