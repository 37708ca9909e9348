"""A real server and clients that misbehave: slow, lying, silent, too many."""

import contextlib
import http.client
import json
import socket
import threading
import time
import urllib.request

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from wiring import Wire, served

from mpvae.serve import connections, guards, make_app, running

ROW = {"rain": 0.1, "warmth": 1, "height": None, "soil": "sand"}
QUESTION = json.dumps({"rows": [ROW]}).encode()
ASK = ["POST /predict HTTP/1.1", "Host: localhost", "Content-Type: application/json"]


@pytest.fixture(scope="module")
def app(sites):
    return make_app(sites[0], max_wait=60)


@pytest.fixture(scope="module")
def port(app):
    with served(app) as port:
        yield port


def is_well(port):
    with Wire(port) as wire:
        wire.send(*ASK, f"Content-Length: {len(QUESTION)}", body=QUESTION)
        status, headers, found = wire.read()
        assert headers["x-request-id"]
        return status == 200 and len(found["probabilities"][0]) == 4


def test_one_connection_serves_many_questions_in_turn(port):
    with Wire(port) as wire:
        for _ in range(3):
            wire.send(*ASK, f"Content-Length: {len(QUESTION)}", body=QUESTION)
            assert wire.read()[0] == 200
        wire.send(*ASK, "Transfer-Encoding: chunked")
        for part in (QUESTION[:7], QUESTION[7:], b""):
            wire.socket.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        assert wire.read()[0] == 200


@pytest.mark.parametrize(("place", "status"), [("/", 200), ("/health", 200), ("/predict", 405)])
def test_head_gives_what_get_gives_without_its_body(port, place, status):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        found = []
        for method in ("HEAD", "GET", "HEAD", "GET"):  # on one connection: nothing is left over
            connection.request(method, place)
            answer = connection.getresponse()
            found.append((answer.status, answer.headers["content-length"], answer.read()))
    assert found[0] == found[2] == (status, found[1][1], b"")
    assert found[1] == found[3]
    assert found[1][:2] == (status, str(len(found[1][2])))


def test_an_answer_does_not_wait_for_more_to_send(port, app):
    with Wire(port) as wire:
        wire.send("GET /health HTTP/1.1", "Host: localhost")
        assert wire.read()[0] == 200
        (connection,) = app.state.connections
        sending = connection.transport.get_extra_info("socket")
        assert sending.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_body_that_dribbles_is_cut_off(port, monkeypatch):
    monkeypatch.setattr(guards, "READ_SECONDS", 0.3)
    with Wire(port) as wire:
        wire.send(*ASK, "Content-Length: 1000")
        with contextlib.suppress(OSError):
            for _ in range(8):
                wire.socket.sendall(b" ")
                time.sleep(0.05)
        status, headers, found = wire.read()
        assert status == 408
        assert "send it faster" in found["error"]
        assert headers["connection"] == "close"
        assert wire.is_cut()
    monkeypatch.undo()
    assert is_well(port)


def test_a_body_shorter_than_it_said_is_not_waited_for(port, app):
    with Wire(port) as wire:
        wire.send(*ASK, "Content-Length: 1000", body=QUESTION)
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.is_cut()
    assert is_well(port)


def test_a_body_longer_than_it_said_is_no_second_question(port):
    with Wire(port) as wire:
        wire.send(*ASK, f"Content-Length: {len(QUESTION)}", body=QUESTION + b"more\r\n\r\n")
        assert wire.read()[0] == 200
        assert wire.read()[0] == 400
        assert wire.is_cut()


@pytest.mark.parametrize("length", [str(guards.MAX_BYTES + 1), "9" * 19])
def test_a_long_body_is_refused_before_it_is_sent(port, length):
    with Wire(port) as wire:
        wire.send(*ASK, f"Content-Length: {length}", "Expect: 100-continue")
        status, _, found = wire.read()
        assert status == 413
        assert f"{guards.MAX_BYTES:,}" in found["error"]


def test_a_refused_body_that_goes_on_is_cut_off(port, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with Wire(port) as wire:
        wire.send(*ASK, "Content-Length: 99999999")
        assert wire.read()[0] == 413
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while True:  # until there is nobody to send it to
                wire.socket.sendall(b" ")
                time.sleep(0.02)


@pytest.mark.parametrize("start", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: local"])
def test_a_head_that_does_not_come_is_not_waited_for(port, monkeypatch, start):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with Wire(port) as wire:
        wire.socket.sendall(start)
        assert wire.is_cut()


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["nonsense"], 400),
        (["GET /health HTTP/1.1"], 400),  # no host
        ([f"GET /{'x' * 100_000} HTTP/1.1", "Host: localhost"], 431),
        ([f"GET /health?{'x' * 20_000} HTTP/1.1", "Host: localhost"], 431),
        (["GET /health HTTP/1.1", "Host: localhost", f"X: {'x' * 100_000}"], 431),
        (["GET /health HTTP/1.1", "Host: a", *["X: y"] * 20_000], 431),
        ([*ASK, "Content-Length: 5", "Content-Length: 6"], 400),
        ([*ASK, "Content-Length: many"], 400),
        ([*ASK, "Transfer-Encoding: odd"], 501),
    ],
)
def test_what_is_no_http_is_refused_as_json(port, lines, status):
    with Wire(port) as wire:
        with contextlib.suppress(ConnectionError):
            wire.send(*lines)
        got = wire.read()
        if got is None:  # the rest of what was sent met a closed door before we read
            assert status == 431
        else:
            assert got[0] == status
            assert list(got[2]) == ["error"]
            assert "content-security-policy" in got[1]
    assert is_well(port)


def test_connections_are_limited(port, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(port)) for _ in range(4)]
        status, headers, found = wires[-1].read()
        assert status == 503
        assert headers["retry-after"] == "1"
        assert "too many connections" in found["error"]
    monkeypatch.undo()
    assert is_well(port)


def test_who_does_not_read_the_answer_is_cut_off(port, app, monkeypatch):
    monkeypatch.setattr(guards, "SEND_SECONDS", 0.3)
    monkeypatch.setattr(connections, "DRAIN_SECONDS", 0.6)
    with Wire(port) as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send("GET /assets/plotly.js HTTP/1.1", "Host: localhost")
        while not app.state.connections:
            time.sleep(0.01)
        while app.state.connections:  # ours is there, until it is given up
            time.sleep(0.01)
    assert is_well(port)


def test_no_upgrade_to_another_protocol(port):
    with Wire(port) as wire:
        wire.send(
            *("GET /health HTTP/1.1", "Host: localhost", "Connection: Upgrade"),
            *("Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: YQ=="),
        )
        assert wire.read()[0] == 200


def test_a_stop_does_not_wait_without_end(sites, monkeypatch):
    monkeypatch.setattr(running, "STOP_SECONDS", 1)
    app = make_app(sites[0], max_wait=60)
    let_go, begun = threading.Event(), threading.Event()
    worker = app.state.worker
    with contextlib.ExitStack() as stack:
        with served(app) as port:
            worker.ask("hold", lambda: (begun.set(), let_go.wait(20)))
            begun.wait()
            wire = stack.enter_context(Wire(port))
            wire.send(*ASK, f"Content-Length: {len(QUESTION)}", body=QUESTION)
            while not len(worker):
                time.sleep(0.01)
        status, headers, found = wire.read()
        assert status == 503
        assert headers["retry-after"] == "1"
        assert "the service ends" in found["error"]
        assert wire.is_cut()
        let_go.set()


def test_a_full_queue_refuses_questions_and_nothing_else(sites):
    app = make_app(sites[0], places=2, max_wait=60)
    let_go, begun = threading.Event(), threading.Event()
    with served(app) as port:
        worker = app.state.worker
        worker.ask("hold", lambda: (begun.set(), let_go.wait(20)))
        begun.wait()
        waiting = [worker.ask("hold", int) for _ in range(2)]
        with Wire(port) as wire:
            wire.send(*ASK, f"Content-Length: {len(QUESTION)}", body=QUESTION)
            status, headers, found = wire.read()
            assert status == 503
            assert headers["retry-after"] == "1"
            assert "2 questions wait already" in found["error"]
            wire.send("GET /about HTTP/1.1", "Host: localhost")  # the same connection
            assert wire.read()[0] == 503
        for path in ("health", "ready", "metrics", "", "docs"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as answer:
                assert answer.status == 200
                text = answer.read().decode()
            if path == "metrics":
                assert "mpvae_queue_length 2.0" in text
                assert 'mpvae_refused_total{reason="queue"} 2.0' in text
        let_go.set()
        assert [future.result().value for future in waiting] == [0, 0]
        assert is_well(port)
