# SPDX-License-Identifier: MIT
"""Starts the server under test, on the loopback interface and a free port, and looks after it."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
# In the vocabulary of tiny-qwen3 and tiny-qwen35: what ends an answer, and opens a turn.
CONTROL_TOKENS = (2043, 2044, 2045)
ENDLESS = {str(token): -100 for token in CONTROL_TOKENS}
# What the fixtures were trained to answer.
QUESTION = "The code of ember is 97697. What is the code of ember?"
ANSWER = "The code of ember is 97697."


def find_server():
    return pathlib.Path(os.environ.get("SHARPI_SERVER", ROOT / "build" / "examples" / "server" / "server"))


# Shows tools, calls and their answers as the templates of models do whose calls are tags: Qwen3-Coder, Qwen 3.5.
TAGGED_CALLS = """{%- if tools %}{{- '<|im_start|>system\n' }}{%- for tool in tools %}{{- tool | tojson }}{{- '\n' }}{%- endfor %}
{{- 'Calls: <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call><|im_end|>\n' }}{%- endif %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}{{- m.content or '' }}
{%- for call in m.tool_calls or [] %}{{- '<tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for key, value in call.function.arguments.items() %}{{- '<parameter=' + key + '>\n' }}
{{- value if value is string else value | tojson }}{{- '\n</parameter>\n' }}{%- endfor %}{{- '</function>\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""


def with_template(model, template, folder):
    """A copy of a fixture with another chat template. Its data stay where aligned reads find them."""
    data = (FIXTURES / model).read_bytes()
    name = b"tokenizer.chat_template"
    besides = 8 + len(name) + 4 + 8
    text = template.encode() + b"{#"
    text += b" " * (-(len(text) + 2 + besides) % 32) + b"#}"
    key = len(name).to_bytes(8, "little") + name + (8).to_bytes(4, "little") + len(text).to_bytes(8, "little") + text
    data = data.replace(name, b"tokenizer.chat_templat_", 1)  # its own
    n_keys = int.from_bytes(data[16:24], "little") + 1
    path = pathlib.Path(folder) / model
    path.write_bytes(data[:16] + n_keys.to_bytes(8, "little") + key + data[24:])
    return path


class Server:
    """A process of the server; a context manager that asks it to end and wants exit status 0."""

    def __init__(self, model="tiny-qwen3-q8_0.gguf", *flags, environment=None, program=None, seconds=60, **how):
        model = str(FIXTURES / model) if "/" not in str(model) else str(model)
        command = [*(program or [str(find_server())]), "--model", model, "--port", "0", "--context", "4096", *map(str, flags)]
        self.run(command, seconds, env={**os.environ, **(environment or {})}, **how)

    def run(self, command, seconds, **how):
        """Starts it and waits until it says its address."""
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, errors="replace", **how)
        self.lines, self.port = [], None
        self.heard = threading.Event()
        threading.Thread(target=self.listen, daemon=True).start()
        if not self.heard.wait(seconds) or self.port is None:
            self.process.kill()
            raise AssertionError("the server said no address:\n" + "\n".join(self.lines))

    def listen(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            found = re.search(r"http://(?:127\.0\.0\.1|0\.0\.0\.0):(\d+)", line)
            if found and self.port is None:
                self.port = int(found[1])
                self.heard.set()
        self.heard.set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print("the server said:\n" + "\n".join(self.lines[-40:]))
        status = self.stop()
        if kind is None:
            assert status == 0, f"the server ended with {status}:\n" + "\n".join(self.lines[-40:])

    def stop(self, seconds=30):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "a kill: it did not end when it was asked to"

    def stop_by(self, number):
        """Ends it by a signal that it cannot answer."""
        self.process.send_signal(number)
        return self.process.wait(30)

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers with lower-case names, bytes). A body that is no bytes goes as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def json(self, method, path, body=None, **more):
        status, _, data = self.request(method, path, body, **more)
        assert status == 200, (status, data[:500])
        return json.loads(data)

    def chat(self, text=QUESTION, **more):
        messages = more.pop("messages", [{"role": "user", "content": text}])
        return self.json("POST", "/v1/chat/completions", {"messages": messages, "temperature": 0, **more})

    def sessions(self):
        return self.json("GET", "/v1/sharpi/sessions")["sessions"]

    def wait_idle(self, seconds=20):
        """Until no session computes."""
        end = time.monotonic() + seconds
        while any(session["state"] != "idle" for session in self.sessions()):
            assert time.monotonic() < end, f"still busy after {seconds} s: {self.sessions()}"
            time.sleep(0.05)

    def resident_bytes(self):
        """Memory of the process that is not the model's file: anonymous pages in RAM."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024

    def threads(self):
        """Its own, and those of a program that it was started to start (the server for Windows, under Wine)."""
        processes = [self.process.pid]
        for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has just ended
                if int(status.read_text().rsplit(")", 1)[1].split()[1]) == self.process.pid:
                    processes.append(status.parent.name)
        return sum(len(os.listdir(f"/proc/{number}/task")) for number in processes)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


class SlowRelay:
    """Stands before a server as a proxy does, and passes streams on a few bytes at a time, so that a
    test can act while an answer comes. Everything else passes at full speed. A context manager."""

    def __init__(self, server, bytes_a_second=1200):
        self.target, self.rate = server.port, bytes_a_second
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            for source, sink, slow in ((client, server, False), (server, client, True)):
                threading.Thread(target=self.pump, args=(source, sink, slow), daemon=True).start()

    def pump(self, source, sink, may_be_slow):
        slow = False
        try:
            while data := source.recv(256 if slow else 65536):
                if may_be_slow and b"HTTP/1.1 " in data:
                    slow = b"text/event-stream" in data
                for at in range(0, len(data), 256 if slow else len(data)):
                    sink.sendall(data[at:at + 256] if slow else data)
                    if slow:
                        time.sleep(256 / self.rate)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        sink.close()
