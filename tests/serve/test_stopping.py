"""`mpvae serve` as a process: what it says when it begins, and how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from typer.testing import CliRunner
from wiring import Wire

from mpvae.cli import app as command

ROW = {"rain": 0.1, "warmth": 1, "height": None, "soil": "sand"}
TOKEN = "correct-horse-battery"
QUESTION = json.dumps({"rows": [ROW] * 200, "known": [{"alder": 1}] * 200}).encode()


@pytest.fixture(scope="module")
def folder(sites, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "model"
    sites[0].save(folder)
    return folder


def start(folder, *words, token=None):
    environment = {k: v for k, v in os.environ.items() if k != "MPVAE_TOKEN"}
    if token is not None:
        environment["MPVAE_TOKEN"] = token
    return subprocess.Popen(
        [sys.executable, "-m", "mpvae", "serve", folder, "--port", "0", *words],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_a_stop_answers_what_was_accepted_and_exits_with_0(folder):
    service = start(folder, "--log", token=TOKEN)
    port = int(re.search(r":(\d+),", service.stderr.readline())[1])
    answers = {}

    def ask(name):
        with Wire(port) as wire:
            wire.send(
                *("POST /conditional HTTP/1.1", "Host: localhost"),
                *("Content-Type: application/json", f"Content-Length: {len(QUESTION)}"),
                *(f"X-Request-ID: {name}", f"Authorization: Bearer {TOKEN}"),
                body=QUESTION,
            )
            begun.release()
            answers[name] = wire.read()

    begun = threading.Semaphore(0)
    threads = [threading.Thread(target=ask, args=(f"q{k}",)) for k in range(6)]
    for thread in threads:
        thread.start()
    for _ in threads:
        begun.acquire()
    first = json.loads(service.stderr.readline())  # one is answered, the others are accepted
    service.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    _, rest = service.communicate(timeout=60)
    assert service.returncode == 0
    logged = [first, *map(json.loads, rest.splitlines())]
    assert {line["id"] for line in logged} == set(answers)
    assert TOKEN not in rest
    for line in logged:
        status, _, found = answers[line["id"]]
        assert status == line["status"]
        assert status in (200, 503)
        if status == 200:
            assert len(found["probabilities"]) == line["rows"] == 200
    assert first["status"] == 200


def test_ctrl_c_ends_it_as_well_and_nothing_listens_after(folder):
    service = start(folder, "--host", "0.0.0.0")
    warned, told = service.stderr.readline(), service.stderr.readline()
    assert "whoever reaches 0.0.0.0 can ask; set MPVAE_TOKEN" in warned
    port = int(re.search(r":(\d+),", told)[1])
    with Wire(port) as wire:
        wire.send("GET /ready HTTP/1.1", "Host: any")
        assert wire.read()[0] == 200
        service.send_signal(signal.SIGINT)
        assert wire.is_cut()  # idle: it has nothing to wait for
    _, rest = service.communicate(timeout=60)
    assert service.returncode == 0
    assert rest == ""
    with pytest.raises(ConnectionRefusedError):
        Wire(port)


def test_a_short_token_stops_the_start(folder, tmp_path):
    (tmp_path / "token").write_text("short\n")
    words = ["serve", str(folder), "--token-file", str(tmp_path / "token")]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 2
    assert "the token has 5 characters; give at least 16" in done.stderr


def test_a_port_that_is_taken_is_told(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(command, ["serve", str(folder), "--port", port])
    assert done.exit_code == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in done.stderr
