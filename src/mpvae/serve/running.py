"""A service on a port, from the first connection to a stop that leaves no question open."""

import contextlib
import ipaddress
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from mpvae.errors import ConfigError
from mpvae.serve.connections import Connection
from mpvae.serve.queue import Worker
from mpvae.serve.watching import log_failure

TOKEN_VARIABLE = "MPVAE_TOKEN"
MIN_TOKEN = 16
"""Characters of a token: fewer can be guessed."""
STOP_SECONDS = 20
"""For what was accepted to be answered, once the service is told to stop."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def read_token(file: Path | None = None) -> str | None:
    """The token in a file, else in the environment; None where neither is given.

    Never an argument of a command, since others on the machine can read those.
    """
    if file is not None:
        try:
            token, where = file.read_text(encoding="utf-8").strip(), f"--token-file {file}"
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigError(f"--token-file {file} cannot be read: {reason}") from None
    elif TOKEN_VARIABLE in os.environ:
        token, where = os.environ[TOKEN_VARIABLE].strip(), TOKEN_VARIABLE
    else:
        return None
    if len(token) < MIN_TOKEN or not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ConfigError(
            f"{where}: the token has {len(token)} characters; give at least {MIN_TOKEN} "
            "letters, digits or signs of ASCII, no blanks, such as `openssl rand -hex 32` makes"
        )
    return token


def is_local(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens: who connects before the service has begun, waits."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # TCP by name: asyncio then sends the end of an answer without 40 ms of waiting for more
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --port or --host"
        ) from None
    return listening


def make_server(app: FastAPI) -> uvicorn.Server:
    """Uvicorn for an app of `make_app`, with limits for connections and for a stop."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        log_level="critical",  # the guard logs; what is no HTTP needs no line
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return _Server(config, app.state.worker)


def run(app: FastAPI, listening: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Answer until SIGTERM or SIGINT, then what was accepted, and return.

    Parameters
    ----------
    app : FastAPI
        From `make_app`.
    listening : socket
        From `bind`.
    on_ready : callable
        Called once questions are answered without delay, in a thread of its own.
    """

    def tell() -> None:
        app.state.worker.warm.wait()
        if app.state.worker.failure is not None:
            log_failure("warm-up", app.state.worker.failure)
        on_ready()

    threading.Thread(target=tell, daemon=True).start()
    make_server(app).run(sockets=[listening])


class _Server(uvicorn.Server):
    """uvicorn's, whose worker knows at once that the end has come."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        super().__init__(config)
        self._worker = worker

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does, but a signal is not raised again: to stop as asked is a success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, self.handle_exit) for s in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take no new question, finish those that were accepted."""
        self._worker.stopping = True
        super().handle_exit(sig, frame)
