# SPDX-License-Identifier: MIT
"""Asks a question through the installed package: ask.py MODEL FILE-WITH-THE-QUESTION"""
import sys

import sharpi

model = sharpi.Model(sys.argv[1], n_ctx=4096)
with open(sys.argv[2], encoding="utf-8") as file, sharpi.Chat(model, temperature=0) as chat:
    print("".join(chat.send(file.read().rstrip("\n"))))
