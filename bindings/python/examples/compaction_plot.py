# SPDX-License-Identifier: MIT
"""Which rows compaction keeps, and what is still answered: python compaction_plot.py MODEL.gguf OUT.svg [TEXT]

TEXT has lines such as "The code of ember is 97697."; each of them is asked for, with the whole KV cache
and from fewer and fewer rows. Left: right answers and bytes by budget. Right: the rows that are kept
for the first question, by layer; the line of its answer is marked. Needs: pip install matplotlib
"""

import pathlib
import re
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

import sharpi  # noqa: E402

BUDGETS = [1024, 512, 256, 128, 64]
TEXT = pathlib.Path(__file__).resolve().parents[3] / "examples" / "demo_prompt.txt"


def ask(session, question):
    """A question after what the session holds, in a session of its own: the text is read once."""
    messages = [{"role": "user", "content": question}]
    fork = session.fork()
    fork.set_sampler(temperature=0)
    sharpi.read_prompt(fork, session.model.chat_tokenize(messages))
    return fork


def answer(session):
    return session.generate(max_tokens=24).text()


def measure(model, text, facts):
    """({budget: (right answers, bytes of KV rows)}, sessions of the first question by budget)"""
    results, shown = {}, {}
    with model.session() as base:
        # The session holds the text; each question is read after it.
        base.prefill(model.chat_tokenize([{"role": "user", "content": text}], prompt=False))
        for budget in [0] + BUDGETS:
            right = held = 0
            for i, (name, code) in enumerate(facts):
                session = ask(base, f"{text}What is the code of {name}?")
                if budget:
                    session.compact(budget=budget, recency=min(64, budget // 2), headroom=64)
                held = max(held, session.info.kv_payload_bytes)
                if i == 0:
                    shown[budget] = [session.kept(k) for k in range(model.info.n_layers)]
                right += code in answer(session)
                session.close()
            results[budget] = (right, held)
    return results, shown


def draw(results, shown, facts, marked, out):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    names = ["all"] + [str(b) for b in BUDGETS]
    left.plot(names, [results[b][0] for b in results], "o-", label="right answers")
    left.set_ylim(0, len(facts) + 0.5)
    left.set_xlabel("rows a layer keeps")
    left.set_ylabel(f"right answers of {len(facts)}")
    bytes_axis = left.twinx()
    bytes_axis.bar(names, [results[b][1] / 1024 for b in results], alpha=0.2, color="tab:gray")
    bytes_axis.set_ylabel("KV rows, KiB")
    for layer, rows in enumerate(shown[BUDGETS[2]]):
        right.eventplot(rows, lineoffsets=layer, linelengths=0.8, linewidths=0.5)
    right.axvspan(*marked, color="tab:red", alpha=0.3, label=f"the code of {facts[0][0]}")
    right.set_xlabel(f"positions kept of budget {BUDGETS[2]}")
    right.set_ylabel("layer")
    right.legend(loc="upper left")
    figure.savefig(out)


def main():
    path, out = sys.argv[1:3]
    text = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else TEXT).read_text(encoding="utf-8")
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("What is"))
    facts = re.findall(r"The code of (\w+) is (\d+)\.", text)
    model = sharpi.Model(path, n_ctx=4096, n_sessions=2, capture_window=32)
    results, shown = measure(model, text, facts)
    before = text[:text.index(f"The code of {facts[0][0]}")]
    line = text[len(before):].split("\n")[0]
    start = len(model.tokenize(before))
    draw(results, shown, facts, (start, start + len(model.tokenize(line))), out)
    for budget, (right, held) in results.items():
        print(f"{budget or 'all':>5} rows: {right} of {len(facts)} right, {held} bytes of KV rows")


if __name__ == "__main__":
    main()
