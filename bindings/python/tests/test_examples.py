# SPDX-License-Identifier: MIT
"""The examples and the plugin, as programs; each is skipped where what it needs is not installed."""

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from conftest import TREE

EXAMPLES = TREE / "bindings" / "python" / "examples"


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_chat(path):
    lines = "What is the code of snow?\n/regen\n/compact 16\n/plan\n/what\n\n"
    out = run(sys.executable, EXAMPLES / "chat.py", path, "--context", "512", "--temperature", "0",
              input=lines)
    answers = re.findall(r"^> (The code of snow is .*)$", out, flags=re.M)
    assert len(answers) == 2 and answers[0] == answers[1]
    assert re.search(r"16 of \d+ rows a layer kept", out) and "KV rows" in out and "/regen, /c" in out


# Answers do not end by themselves.
ENDLESS = """
import runpy, sys, sharpi
set_sampler = sharpi.Session.set_sampler
def endless(session, **options):
    ends = filter(session.model.is_end, range(session.model.info.n_vocab))
    set_sampler(session, bias={token: -float("inf") for token in ends}, **options)
sharpi.Session.set_sampler = endless
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_ctrl_c_stops_an_answer_of_the_chat(path):
    command = [sys.executable, "-u", "-c", ENDLESS, str(EXAMPLES / "chat.py"), path, "--context", "8192",
               "--max-tokens", "8000"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, bufsize=1,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as chat:
        watch = threading.Timer(60, chat.kill)
        watch.start()
        chat.stdin.write("def f(x):\n")
        chat.stdin.flush()
        chat.stdout.read(4)  # "> " and the beginning of the answer
        chat.send_signal(signal.SIGINT)
        out, errors = chat.communicate("\n")
        watch.cancel()
    assert chat.returncode == 0, errors
    assert "(stopped)" in out


def test_json_schema(path):
    answer = json.loads(run(sys.executable, EXAMPLES / "json_schema.py", path, "What is the code of snow?"))
    assert set(answer) == {"name", "code", "kind"}
    assert isinstance(answer["name"], str) and 0 <= answer["code"] <= 99999
    assert answer["kind"] in ("plant", "metal", "weather")


def test_compaction_plot(path, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    out = tmp_path / "plot.svg"
    said = run(sys.executable, EXAMPLES / "compaction_plot.py", path, out,
               env={**os.environ, "MPLCONFIGDIR": str(tmp_path)})
    assert "all rows: 4 of 4 right" in said and "256 rows: 4 of 4 right" in said
    assert "<svg" in out.read_text() and out.stat().st_size > 10000


def test_llm_plugin_calls_tools_and_keeps_to_schemas(path, tmp_path):
    pytest.importorskip("llm", reason="llm is not installed")
    pytest.importorskip("llm_sharpi", reason="llm-sharpi is not installed")
    llm = (sys.executable, "-m", "llm")
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "SHARPI_MODEL": path}
    options = ["-o", "n_ctx", "2048", "-o", "temperature", "0", "-o", "max_tokens", "200"]
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "code": {"type": "integer"}},
              "required": ["name", "code"], "additionalProperties": False}
    answer = json.loads(run(*llm, "-m", "sharpi", *options, "--schema", json.dumps(schema), "What is the code of snow?",
                            env=environment))
    assert set(answer) == {"name", "code"} and isinstance(answer["code"], int)
    heard = tmp_path / "heard"
    function = ("import typing\n"
                "def weather(city: typing.Literal['Bern', 'Oslo']) -> str:\n"
                "    'Weather of a city.'\n"
                f"    open({str(heard)!r}, 'a').write(city + ' ')\n"
                "    return 'rain in ' + city\n")
    run(*llm, "-m", "sharpi", *options, "--functions", function, "-o", "must_call", "1", "Weather?", env=environment)
    assert heard.read_text() in ("Bern ", "Oslo ")
    first, second = json.loads(run(*llm, "logs", "--json", "-n", "2", env=environment))
    (call,), (result,) = first["tool_calls"], second["tool_results"]
    assert call["name"] == "weather" and call["arguments"]["city"] == heard.read_text().strip()
    assert result["output"] == "rain in " + call["arguments"]["city"]
    assert second["input_tokens"] > first["input_tokens"] + 10  # the call and its result are read
    run(*llm, "-c", *options, "And again?", env=environment)
    (third,) = json.loads(run(*llm, "logs", "--json", "-n", "1", env=environment))
    assert third["conversation_id"] == second["conversation_id"]
    assert third["input_tokens"] > 60  # the call and its result are there, the description of the tools is not


def test_llm_plugin(path, tmp_path):
    pytest.importorskip("llm", reason="llm is not installed")
    pytest.importorskip("llm_sharpi", reason="llm-sharpi is not installed")
    llm = (sys.executable, "-m", "llm")
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
    options = ["-o", "n_ctx", "512", "-o", "temperature", "0", "-o", "max_tokens", "16"]
    question = "What is the code of snow?"
    answer = run(*llm, "-m", "sharpi", "-o", "path", path, *options, question, env=environment)
    assert re.fullmatch(r"The code of snow is \d+\.\n", answer)
    environment["SHARPI_MODEL"] = path
    assert run(*llm, "-m", "sharpi", *options, "--no-stream", question, env=environment) == answer
    again = run(*llm, "-c", *options, "And again?", env=environment)
    assert again.strip()
    logged = json.loads(run(*llm, "logs", "--json", env=environment))
    assert [entry["input_tokens"] > 0 for entry in logged] == [True] * len(logged)
    failed = subprocess.run([*llm, "-m", "sharpi", "-o", "path", str(tmp_path / "no.gguf"), "x"],
                            capture_output=True, text=True, env=environment)
    assert failed.returncode == 1 and "no.gguf" in failed.stderr and "Traceback" not in failed.stderr
