# SPDX-License-Identifier: MIT
"""The server as curl and as bare sockets see it: the page, the metrics, and requests that nobody
should send."""
import json
import re
import shutil
import socket
import subprocess

import pytest
from load import ask
from serving import ANSWER, ENDLESS, QUESTION, Server

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
PAGE = ["/", "/index.html", "/app.js", "/chat.js", "/memory.js", "/draw.js", "/api.js", "/markdown.js", "/style.css", "/icon.svg"]


def curl(*arguments, **more):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    return subprocess.run(["curl", "-sS", "--max-time", "60", *arguments], capture_output=True, text=True, check=True, **more).stdout


def raw(server, data, seconds=15, close_after=False):
    """What comes back for these bytes until the server closes or the time is up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        try:
            connection.sendall(data)
            if close_after:
                connection.shutdown(socket.SHUT_WR)
            out = b""
            while piece := connection.recv(65536):
                out += piece
            return out
        except (ConnectionResetError, BrokenPipeError, TimeoutError):
            return b""


def still_serves(server):
    assert server.process.poll() is None, "the server is gone"
    assert server.chat()["choices"][0]["message"]["content"] == ANSWER


def test_curl_gets_an_answer_and_a_stream(server):
    body = json.dumps(ASK)
    answer = json.loads(curl(server.url + CHAT, "-H", "Content-Type: application/json", "-d", body))
    assert answer["choices"][0]["message"]["content"] == ANSWER
    text = curl("-N", server.url + CHAT, "-H", "Content-Type: application/json", "-d", json.dumps({**ASK, "stream": True}))
    assert text.endswith("data: [DONE]\n\n")
    for line in text.splitlines():
        assert line == "" or line.startswith("data: ")


@pytest.mark.parametrize("path", PAGE)
def test_the_page_comes_with_headers_that_shut_others_out(server, path):
    status, headers, data = server.request("GET", path)
    assert status == 200 and data
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    kind = {"/": "text/html", "html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[path.rsplit(".")[-1]]
    assert headers["content-type"].startswith(kind)


def test_health_and_metrics(server):
    assert server.request("GET", "/health")[0] == 200
    status, headers, data = server.request("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain")
    for line in data.decode().splitlines():
        assert line.startswith("#") or re.fullmatch(r'[a-z_:]+(\{[^}]*\})? [-+0-9.eInfNa]+', line), line


def test_metrics_as_prometheus_reads_them(server):
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")

    def samples():
        text = server.request("GET", "/metrics")[2].decode()
        families = list(parser.text_string_to_metric_families(text))
        assert all(family.documentation and family.type in ("counter", "gauge", "histogram") for family in families)
        return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    before = samples()
    usage = server.chat()["usage"]
    after = samples()
    drawn = after["sharpi_generated_tokens_total",] - before["sharpi_generated_tokens_total",]
    assert drawn == usage["completion_tokens"] > 0
    read = [sum(s[name,] for name in ("sharpi_prompt_tokens_total", "sharpi_cached_tokens_total")) for s in (before, after)]
    assert read[1] - read[0] == usage["prompt_tokens"]
    first = "sharpi_time_to_first_token_seconds"
    assert after[first + "_count",] == before.get((first + "_count",), 0) + 1 == after[first + "_bucket", "+Inf"]
    assert after["sharpi_http_responses_total", "200"] >= before.get(("sharpi_http_responses_total", "200"), 0) + 2


def test_plan_and_sessions_say_what_is_held(server):
    plan = server.json("GET", "/v1/sharpi/plan")
    assert plan["plan"]["rows"] and all(row["held_bytes"] >= 0 for row in plan["plan"]["rows"])
    id = server.chat()["sharpi_session"]
    (session,) = [session for session in server.sessions() if session["id"] == id]
    assert session["n_tokens"] > 20 and session["kv_held_bytes"] >= session["kv_payload_bytes"] > 0
    assert len(session["layers"]) == 4 and all(layer["rows"] == session["n_slots_max"] for layer in session["layers"])


def test_compaction_gives_rows_back_and_the_answer_stays():
    fact = "The code of ember is 97697. " + "The sky over the hills was grey and nobody spoke. " * 60
    ask = {"messages": [{"role": "user", "content": fact + "What is the code of ember?"}], "temperature": 0}
    with Server() as server:
        first = server.json("POST", CHAT, ask)
        id = first["sharpi_session"]
        before = next(s for s in server.sessions() if s["id"] == id)
        report = server.json("POST", f"/v1/sharpi/sessions/{id}/compact", {"budget": 128, "policy": "auto"})
        after = next(s for s in server.sessions() if s["id"] == id)
        assert report["rows_after"] == after["n_slots_max"] == 128 < before["n_slots_max"]
        assert after["kv_held_bytes"] < before["kv_held_bytes"] and after["n_tokens"] == before["n_tokens"]
        assert after["last_compaction"]["rows_before"] == before["n_slots_max"]
        kept = server.json("GET", f"/v1/sharpi/sessions/{id}/kept?bins=10")
        assert kept["bins"] == 10 and kept["n_tokens"] == before["n_tokens"] and len(kept["layers"]) == 4
        for layer in kept["layers"]:
            assert len(layer["kept"]) == 10 and all(0 <= share <= 1 for share in layer["kept"])
            assert abs(sum(layer["kept"]) / 10 * kept["n_tokens"] - 128) < 8, layer
        for wrong, status in ((f"{id}/kept?bins=-1", 400), (f"{id}/kept?bins=99999999999", 400), ("nobody/kept", 404)):
            assert server.request("GET", "/v1/sharpi/sessions/" + wrong)[0] == status, wrong
        messages = [*ask["messages"], first["choices"][0]["message"], {"role": "user", "content": "What is the code of ember?"}]
        again = server.chat(messages=[{k: m[k] for k in ("role", "content")} for m in messages])
        assert again["sharpi_session"] == id and again["choices"][0]["message"]["content"] == ANSWER
        for body, status in (({"budget": 0}, 400), ({"budget": "x"}, 400), ({}, 400), ({"budget": 9, "policy": "none such"}, 400)):
            assert server.request("POST", f"/v1/sharpi/sessions/{id}/compact", body)[0] == status
        assert server.request("POST", "/v1/sharpi/sessions/nobody/compact", {"budget": 9})[0] == 404


BAD_BODIES = {
    "empty": b"", "no JSON": b"{", "an array": b"[]", "a number": b"1", "null": b"null", "a key twice open": b'{"messages": [',
    "no messages": b"{}", "messages of the wrong kind": b'{"messages": "hello"}', "a message of the wrong kind": b'{"messages": [1]}',
    "no role": b'{"messages": [{"content": "x"}]}', "content of the wrong kind": b'{"messages": [{"role": "user", "content": 1}]}',
    "not UTF-8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "deep": b"[" * 200000, "deep objects": b'{"a":' * 200000,
    "half a surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "a temperature that is no number": json.dumps({**ASK, "temperature": "hot"}).encode(),
    "tokens below zero": json.dumps({**ASK, "max_tokens": -1}).encode(),
    "tokens beyond all bounds": json.dumps({**ASK, "max_tokens": 1 << 70}).encode(),
    "a bias of no token": json.dumps({**ASK, "logit_bias": {"99999999": 1}}).encode(),
    "a bias of no number": json.dumps({**ASK, "logit_bias": {"x": 1}}).encode(),
    "a schema that is none": json.dumps({**ASK, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 7}}}).encode(),
    "no such format": json.dumps({**ASK, "response_format": {"type": "yaml"}}).encode(),
    "a stop of no kind": json.dumps({**ASK, "stop": {"a": 1}}).encode(),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_bodies_are_refused_with_a_sentence(server, name):
    status, headers, data = server.request("POST", CHAT, BAD_BODIES[name], {"Content-Type": "application/json"})
    assert status == 400, (status, data[:300])
    error = json.loads(data)["error"]
    assert error["message"] and error["type"] == "invalid_request_error"


def test_long_bodies(server):
    long = json.dumps({"messages": [{"role": "user", "content": "word " * (2 << 20)}]}).encode()
    assert len(long) > 10 << 20
    status, _, data = server.request("POST", CHAT, long, {"Content-Type": "application/json"})
    assert status == 400 and "context" in json.loads(data)["error"]["message"]
    status, _, data = server.request("POST", CHAT, b" " * ((16 << 20) + 1), {"Content-Type": "application/json"})
    assert status == 413
    still_serves(server)


TRAVERSALS = ["/../../../../etc/passwd", "/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2f..%2fetc%2fpasswd", "//etc/passwd",
              "/index.html/../../../etc/passwd", "/....//....//etc/passwd", "/%00", "/index.html%00.js", "/.git/config", "/CMakeLists.txt",
              "/app.js%20", "/%252e%252e/etc/passwd", "\\..\\..\\etc\\passwd", "/page/index.html", "/style.css/"]


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_leads_out_of_the_page(server, path):
    answer = raw(server, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    assert re.match(rb"HTTP/1\.1 4\d\d ", answer), answer[:200]
    assert b"root:" not in answer and b"cmake" not in answer.lower()


MALFORMED = {
    "nothing": b"", "a blank line": b"\r\n\r\n", "noise": bytes(range(256)) * 8, "no version": b"GET /\r\n\r\n", "a long line": b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
    "a long header": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(20000)) + b"\r\n",
    "a length below zero": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: -5\r\n\r\n{}",
    "a length that is no number": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: many\r\n\r\n{}",
    "a huge length": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
    "bad chunks": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    "a chunk of all bytes": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nhello",
    "TLS": bytes.fromhex("16030100c8010000c40303") + b"\x11" * 200, "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two lengths": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Length: 30\r\n\r\n{}",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_request_does_no_harm(server, name):
    raw(server, MALFORMED[name], close_after=True)
    still_serves(server)


def test_it_ends_when_it_is_asked_to():
    """Whatever its connections are doing: at rest, reading an answer, in the middle of a request, silent."""
    with Server() as server:
        connections = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(4)]
        connections[0].sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        connections[1].sendall(ask(stream=True, max_tokens=4000, logit_bias=ENDLESS))
        connections[2].sendall(b"POST /v1/chat/comp")
        for connection in connections[:2]:
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert server.stop() == 0
        for connection in connections:
            connection.close()


def test_wrong_paths_and_methods(server):
    for method, path in (("GET", "/v1/nothing"), ("POST", "/v1/nothing"), ("DELETE", CHAT), ("PUT", "/"), ("PATCH", "/v1/models")):
        status, _, data = server.request(method, path, {} if method != "GET" else None)
        assert status in (404, 405), (method, path, status)
        assert json.loads(data)["error"]["message"]


def test_other_sites_are_refused(server):
    """A page of another site that a browser shows on this machine can send requests here."""
    compact = f"/v1/sharpi/sessions/{server.chat()['sharpi_session']}/compact"
    for path, body in ((CHAT, ASK), (compact, {"budget": 64})):
        for origin in ("http://other.example", "null", "http://127.0.0.1:1", server.url + ".other.example"):
            status, headers, _ = server.request("POST", path, body, {"Origin": origin})
            assert status == 403 and "access-control-allow-origin" not in headers, (path, origin)
        data = json.dumps(body).encode()
        # What a browser sends to other sites without asking first, and types that only have the name in them.
        for kind in ("text/plain", "text/plain; a=json", "text/plain; application/json", "application/x-www-form-urlencoded", "json",
                     "multipart/form-data; boundary=application/json", "application/jsonp", "application/x-ndjson", ""):
            status, _, answer = server.request("POST", path, data, {"Content-Type": kind})
            assert status == 415 and "application/json" in json.loads(answer)["error"]["message"], (path, kind)
        assert server.request("POST", path, data)[0] == 415
        for kind in ("application/json; charset=utf-8", "Application/JSON", " application/json ;a=b"):
            assert server.request("POST", path, data, {"Content-Type": kind})[0] == 200, (path, kind)
        assert server.request("POST", path, body, {"Origin": server.url})[0] == 200


def test_names_that_point_here_are_refused(server):
    """A site whose name was made to point to this machine: its pages have the origin of the server."""
    for host in ("other.example", f"other.example:{server.port}", "127.0.0.1.other.example", "localhost.other.example"):
        for method, path, body in (("GET", "/v1/sharpi/sessions", None), ("POST", CHAT, ASK)):
            status, _, _ = server.request(method, path, body, {"Host": host, "Origin": f"http://{host}"})
            assert status == 403, (host, status)
    for host in (f"localhost:{server.port}", f"127.0.0.1:{server.port}", f"[::1]:{server.port}"):
        assert server.request("GET", "/v1/sharpi/sessions", None, {"Host": host})[0] == 200
