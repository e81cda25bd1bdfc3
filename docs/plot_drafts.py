#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws docs/plots/drafts.svg from docs/plots/drafts.csv, and prints the same as a table for the documents.

    docs/plot_drafts.py [FOLDER]

drafts.csv has "name,drafts,ms": the time of a pass over a token and so many drafts, as `draft_bench --csv`
appends it; drafts = 0 is a step without. A panel per name: tokens a second beside those without drafts, against
the probability that a draft is right where those before it are, the same at every place; a line per
number of drafts. What drafting itself takes is not in it. Python's standard library only.
"""
import csv
import os
import sys

COLOURS = ["#0b5fa5", "#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#a6761d", "#666666"]
TABLE = [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
HEAD = ('<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" '
        'font-family="sans-serif" font-size="11" fill="#222">\n<rect width="{w}" height="{h}" fill="#fff"/>\n')


def text(x, y, words, anchor="start", extra=""):
    anchor = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}"{anchor}{extra}>{words}</text>\n'


def tokens(drafts, right):
    """Of a pass: 1 + the sum of the products of the first places."""
    return sum(right ** i for i in range(drafts + 1))


def speed_up(times, drafts, right):
    return tokens(drafts, right) * times[0] / times[drafts]


def best(times, right):
    """(speed, drafts) of the best number."""
    return max((speed_up(times, n, right), n) for n in times)


def panel(x0, y0, width, height, name, times, counts):
    top = max(2.0, max(speed_up(times, n, 1.0) for n in times))
    steps = [t for t in (1, 2, 4, 8, 16, 32) if t <= top]

    def at(right, value):
        return round(x0 + width * right, 1), round(y0 + height * (1 - value / top), 1)

    out = text(x0, y0 - 9, name, extra=' font-weight="bold"')
    for step in steps:
        y = at(0, step)[1]
        out += f'<path d="M{x0} {y}h{width}" stroke="{"#999" if step == 1 else "#ddd"}"/>\n'
        out += text(x0 - 5, y + 4, f"{step}x", "end")
    for right in (0, 0.25, 0.5, 0.75, 1):
        out += text(at(right, 0)[0], y0 + height + 15, f"{right:.0%}", "middle")
    for colour, n in zip(COLOURS, counts):
        if n not in times:
            continue
        points = [at(i / 50, speed_up(times, n, i / 50)) for i in range(0, 51, 2)]
        path = " ".join(f"{x} {y}" for x, y in points)
        out += f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>\n'
    return out


def plot(models):
    width, height, left, top, across = 230, 170, 50, 65, 3
    down = (len(models) + across - 1) // across
    w, h = left + min(across, len(models)) * (width + 45), top + down * (height + 60)
    out = HEAD.format(w=max(w, 560), h=h)
    out += text(left, 20, "Speed against the share of drafts that are right", extra=' font-size="14"')
    counts = sorted({n for times in models.values() for n in times if n})
    for i, n in enumerate(counts[:len(COLOURS)]):
        x = left + 84 * i
        out += f'<path d="M{x} 36h18" stroke="{COLOURS[i]}" stroke-width="2.5"/>\n' + text(x + 23, 40, f"{n} drafts")
    for i, (name, times) in enumerate(models.items()):
        out += panel(left + i % across * (width + 45), top + i // across * (height + 60), width, height, name, times,
                     counts)
    return out + "</svg>\n"


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "plots")
    models = {}
    with open(os.path.join(folder, "drafts.csv"), newline="") as file:
        for row in csv.DictReader(file):
            models.setdefault(row["name"], {})[int(row["drafts"])] = float(row["ms"])
    for name, times in models.items():
        if 0 not in times:
            sys.exit(f"drafts.csv: {name} has no step without drafts")
    with open(os.path.join(folder, "drafts.svg"), "w") as file:
        file.write(plot(models))
    print("| model | " + " | ".join(f"{right:.0%}" for right in TABLE) + " |")
    print("|---" * (len(TABLE) + 1) + "|")
    for name, times in models.items():
        cells = [f"{s:.2f} ({n})" for s, n in (best(times, right) for right in TABLE)]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
