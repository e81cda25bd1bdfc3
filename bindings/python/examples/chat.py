# SPDX-License-Identifier: MIT
"""Talks with a model: python chat.py MODEL.gguf [--kv q8_0] [--context 8192] [--system TEXT] ...

Ctrl-C stops an answer, not the program. /regen answers again, /compact ROWS keeps the rows that
matter, /plan says what is held, an empty line or the end of the input leaves.
"""

import argparse
import sys

import sharpi


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--kv", default="auto", help="type of the KV rows: f32, bf16, q8_0, q4, auto")
    parser.add_argument("--context", type=int, help="tokens; default: the largest that fits")
    parser.add_argument("--system", help="system message")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--max-tokens", type=int, default=1024)
    return parser.parse_args()


def show(reply):
    """Prints an answer as it comes."""
    try:
        for piece in reply:
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(" (stopped)", end="")
    print()


def loading(phase, done, total):
    if sys.stderr.isatty():
        print(f"\rloading {100 * done // max(total, 1)}%", end="" if done < total else "\n",
              file=sys.stderr)


def command(chat, line):
    word, _, rest = line.partition(" ")
    if word == "/regen":
        show(chat.regenerate())
    elif word == "/compact":
        report = chat.session.compact(budget=int(rest or 256))
        print(f"{report.rows_after} of {report.rows_before} rows a layer kept, "
              f"{report.held_before - report.held_after} bytes given back")
    elif word == "/plan":
        for row in chat.session.memory():
            print(f"{row.held_bytes:>12} {row.label}")
    else:
        print("/regen, /compact ROWS, /plan")


def main():
    options = arguments()
    model = sharpi.Model(options.model, kv=options.kv, n_ctx=options.context, capture_window=32,
                         progress=loading)
    with sharpi.Chat(model, options.system, temperature=options.temperature,
                     max_tokens=options.max_tokens) as chat:
        while True:
            try:
                line = input("> ")
            except (EOFError, KeyboardInterrupt):
                break
            if not line:
                break
            try:
                command(chat, line) if line.startswith("/") else show(chat.send(line))
            except sharpi.Error as error:
                print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
