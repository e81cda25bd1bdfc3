#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws docs/plots/*.svg from the compressed CSV files of bench/needle_curve that lie there.

    docs/plot_compaction.py [FOLDER]

needles.csv.gz (needle_curve --csv) gives needles_in.svg and needles_after.svg: accuracy against budget, a
panel per model, a line per policy. kept_rows.csv.gz (needle_curve --rows) gives kept_rows_MODEL.svg: which
rows of one prompt each policy keeps, a strip per layer and KV head. real_needles.csv.gz (text_needles)
gives real_needles.svg: how likely a digit of the answer is to a real model, against the rows kept.
Python's standard library only.
"""
import csv
import gzip
import math
import os
import sys

POLICIES = ["retrieval", "span", "defensive", "value", "snapkv", "global"]
COLOURS = {"retrieval": "#0b5fa5", "span": "#1b9e77", "defensive": "#d95f02", "value": "#7570b3",
           "snapkv": "#e7298a", "global": "#666666"}
MODELS = ["qwen3", "qwen3moe", "olmoe", "gemma4", "gemma4kv", "qwen35", "qwen35moe"]
TITLES = {"in": "Question in the captured window", "after": "Question read after compaction, no probe"}
HEAD = ('<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" '
        'font-family="sans-serif" font-size="11" fill="#222">\n<rect width="{w}" height="{h}" fill="#fff"/>\n')


LINE = 'fill="none" stroke-width="2"'


def dots():
    """What lines of a class have at each point, and their colours."""
    out = "<style>polyline{fill:none;stroke-width:2}"
    marks = "</style>\n"
    for policy, colour in COLOURS.items():
        out += f".{policy}{{stroke:{colour};marker:url(#{policy})}}"
        marks += (f'<marker id="{policy}" overflow="visible" markerUnits="userSpaceOnUse"><circle r="2.5" '
                  f'fill="{colour}"/></marker>\n')
    return out + marks


def table(folder, name, **how):
    """Rows of a table, which are kept compressed."""
    with gzip.open(os.path.join(folder, name + ".gz"), "rt", encoding="utf-8", newline="") as f:
        return list(csv.DictReader(f, **how) if how else csv.reader(f))


def text(x, y, words, anchor="start", extra=""):
    anchor = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}"{anchor}{extra}>{words}</text>\n'


def legend(x, y):
    out = ""
    for policy in POLICIES:
        out += (f'<path d="M{x} {y - 4}h18" stroke="{COLOURS[policy]}" stroke-width="2.5"/>\n' +
                text(x + 23, y, policy))
        x += 100
    return out


def curves(rows, mode):
    """Accuracy against budget: a panel per model."""
    width, height, left, top, across = 190, 130, 45, 60, 4
    down = (len(MODELS) + across - 1) // across
    w, h = left + across * (width + 25), top + down * (height + 50)
    out = HEAD.format(w=w, h=h) + dots()
    out += text(left, 20, TITLES[mode], extra=' font-size="14"') + legend(left, 40)
    budgets = sorted({int(r["budget"]) for r in rows if r["mode"] == mode and r["policy"] != "full"})
    for i, model in enumerate(MODELS):
        x0, y0 = left + i % across * (width + 25), top + i // across * (height + 50)

        def at(budget, share):
            return (round(x0 + width * budgets.index(budget) / (len(budgets) - 1), 1),
                    round(y0 + height * (1 - share), 1))

        out += text(x0, y0 - 9, model, extra=' font-weight="bold"')
        shares = (0, 0.25, 0.5, 0.75, 1)
        grid = "".join(f"M{x0} {at(budgets[0], share)[1]}h{width}" for share in shares)
        out += f'<path d="{grid}" stroke="#ddd"/>\n'
        for share in shares:
            y = at(budgets[0], share)[1]
            if i % across == 0:
                out += text(x0 - 5, y + 4, f"{share:.0%}", "end")
        for budget in budgets:
            out += text(at(budget, 0)[0], y0 + height + 14, budget, "middle")
        for policy in reversed(POLICIES):
            mine = {int(r["budget"]): int(r["found"]) / int(r["needles"]) for r in rows
                    if (r["model"], r["mode"], r["policy"]) == (model, mode, policy)}
            points = [at(b, mine[b]) for b in budgets if b in mine]
            line = " ".join(f"{x:g},{y:g}" for x, y in points)
            out += f'<polyline points="{line}" class="{policy}"/>\n'
    out += text(left + w // 2, h - 6, "rows a layer keeps (of 908 to 2016)", "middle")
    return out + "</svg>\n"


def kept(rows, model):
    """Which rows stay: a strip per layer and KV head, the answer's place marked."""
    needle = next(r for r in rows if r[0] == model and r[1] == "needle")
    length, (first, last) = int(needle[2]), map(int, needle[5].split("-"))
    left, width, strip, y = 110, 700, 5, 62
    body, budget = "", 0
    for policy in POLICIES:
        mine = [r for r in rows if r[0] == model and r[1] == policy]
        body += text(left - 8, y + strip * len(mine) / 2 + 4, policy, "end")
        strips = "".join(f"M{left} {y + 2 + strip * i}h{width}" for i in range(len(mine)))
        body += f'<path d="{strips}" stroke="#f0f0f0" stroke-width="4"/>\n<path d="'
        for r in mine:
            budget = r[2]
            for run in r[5].split(" "):
                a, b = map(int, run.split("-"))
                body += f"M{left + a * width / length:.0f} {y + 2}h{max(1, (b - a + 1) * width / length):.0f}"
            y += strip
        body += f'" stroke="{COLOURS[policy]}" stroke-width="4"/>\n'
        y += 12
    x, wide = left + first * width / length, max(1.0, (last - first + 1) * width / length)
    mark = (f'<rect x="{x:.1f}" y="52" width="{wide:.1f}" height="{y - 60}" fill="#ffd400" '
            f'fill-opacity="0.45"/>\n' + text(round(x, 1), 48, "the answer", "middle"))
    out = HEAD.format(w=left + width + 30, h=y + 22)
    out += text(left, 20, f"{model}: rows kept of one prompt, budget {budget}", extra=' font-size="14"')
    out += mark + body
    for share in (0, 0.25, 0.5, 0.75, 1):
        out += text(left + width * share, y + 8, round(length * share), "middle")
    return out + "</svg>\n"


REAL = {"llama": "SmolLM2-135M", "gemma3": "Gemma 3 270M"}
REAL_MODES = {"in": "question,in the window", "probe": "read after,by probe",
              "after": "read after,unknown"}


def real(rows):
    """Probability of an answer's digit against the share of rows kept: a panel a text, a row a mode."""
    texts = sorted({(r["model"], int(r["length"])) for r in rows}, key=lambda t: (t[0] != "llama", t[1]))
    shares = sorted({float(r["share"]) for r in rows if r["policy"] in POLICIES})
    width, height, left, top = 190, 120, 120, 70
    w, h = left + len(texts) * (width + 25), top + len(REAL_MODES) * (height + 45)
    out = HEAD.format(w=w, h=h)
    out += text(left, 20, "Probability of a digit of the answer, real models", extra=' font-size="14"')
    out += legend(left, 40)
    for i, (mode, title) in enumerate(REAL_MODES.items()):
        y0 = top + i * (height + 45)
        out += text(8, y0 + height / 2, title.split(",")[0])
        out += text(8, y0 + height / 2 + 14, ",".join(title.split(",")[1:]).strip())
        for j, (model, length) in enumerate(texts):
            x0 = left + j * (width + 25)

            def at(share, nll):
                return (round(x0 + width * shares.index(share) / (len(shares) - 1), 1),
                        round(y0 + height * (1 - math.exp(-nll)), 1))

            def mine(which, policy):
                return {float(r["share"]): float(r["nll"]) for r in rows
                        if (r["model"], int(r["length"]), r["mode"], r["policy"]) ==
                        (model, length, which, policy)}

            if i == 0:
                out += text(x0, y0 - 9, f"{REAL[model]}, {length} tokens", extra=' font-weight="bold"')
            for share in (0, 0.5, 1):
                y = round(y0 + height * (1 - share), 1)
                out += f'<path d="M{x0} {y}h{width}" stroke="#ddd"/>\n'
                if j == 0:
                    out += text(x0 - 5, y + 4, f"{share:.0%}", "end")
            for whole in mine("whole", "whole").values():
                y = round(y0 + height * (1 - math.exp(-whole)), 1)
                out += f'<path d="M{x0} {y}h{width}" stroke="#222" stroke-dasharray="4 3"/>\n'
            for share in shares:
                out += text(at(share, 0)[0], y0 + height + 14, f"{share:g}%", "middle")
            for policy in reversed(POLICIES):
                points = [at(s, nll) for s, nll in sorted(mine(mode, policy).items())]
                line = " ".join(f"{x},{y}" for x, y in points)
                out += f'<polyline points="{line}" stroke="{COLOURS[policy]}" {LINE}/>\n'
    out += text(left + (w - left) // 2, h - 8, "rows kept; dashed: the whole cache", "middle")
    return out + "</svg>\n"


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "plots")

    def write(name, drawing):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(drawing)

    names = ["model", "kv", "mode", "policy", "budget", "found", "needles"]
    rows = [r for r in table(folder, "needles.csv", fieldnames=names) if r["kv"] == "f32"]
    for mode in TITLES:
        write(f"needles_{mode}.svg", curves(rows, mode))
    rows = table(folder, "kept_rows.csv")
    for model in MODELS:
        write(f"kept_rows_{model}.svg", kept(rows, model))
    names = ["model", "kv", "mode", "policy", "length", "share", "found", "needles", "nll"]
    rows = table(folder, "real_needles.csv", fieldnames=names)
    write("real_needles.svg", real([r for r in rows if r["mode"] != "text"]))


if __name__ == "__main__":
    main()
