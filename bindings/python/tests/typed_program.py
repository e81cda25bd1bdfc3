# SPDX-License-Identifier: MIT
"""A program that mypy --strict reads (tools/ci/wheel.sh): the types that users of the package see."""

from typing import Any, Dict, List, Optional, Tuple

import sharpi


def progress(phase: sharpi.Phase, done: int, total: int) -> Optional[bool]:
    return done < total


def sessions(path: str) -> Tuple[int, List[int], str, memoryview, bytes]:
    plan: sharpi.Plan = sharpi.Plan(path, n_ctx=512, kv="q8_0", load_mode=sharpi.LoadMode.COPY)
    rows: List[sharpi.MemoryRow] = plan.rows()
    with sharpi.Model(plan=plan, progress=progress) as model, model.session(n_ctx=64) as session:
        session.set_sampler(temperature=0.5, seed=1, bias={1: -1.0})
        who: sharpi.Drafters = session.drafts.drafters & sharpi.Drafters.MTP
        assert who is not sharpi.Drafters.MTP
        n: int = session.prefill(model.tokenize("x"), progress=progress)
        tokens: List[int] = [one.token for one in session.step(mask=[1], logprobs=1)]
        text: str = "".join(session.generate("y", max_tokens=2))
        report: sharpi.CompactReport = session.compact(budget="auto", policy="snapkv")
        return n + len(rows) + report.rows_after, tokens, text, session.logits(), session.save()


def chat(model: sharpi.Model) -> Tuple[str, List[Dict[str, Any]]]:
    with sharpi.Chat(model, "Be brief.", temperature=0) as conversation:
        reply: sharpi.Reply = conversation.send("Hi").finish()
        return reply.content, reply.tool_calls


def mistakes(path: str, session: sharpi.Session) -> None:
    """mypy complains of an ignored line that is right, so each of these is a mistake that it sees."""
    sharpi.Model(path, n_ctxx=512)  # type: ignore[call-arg]
    sharpi.Model(path, drafters=["mtp"])  # type: ignore[arg-type]
    sharpi.Model(path, n_ctx="512")  # type: ignore[arg-type]
    session.decode("x")  # type: ignore[arg-type]
    session.step().token  # type: ignore[attr-defined]
