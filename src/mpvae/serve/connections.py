"""Connections that cannot be held open for nothing: uvicorn's, with what it lacks.

uvicorn bounds the size of headers (16 kB, by h11) and the time between two requests. It waits
without end for the first request, for the rest of a header and for who does not read.
"""

import asyncio
import sys
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from mpvae.serve.guards import SAFE
from mpvae.serve.wire import problem

MAX_CONNECTIONS = 500
"""At a time: fewer than the files that a process may open, usually 1,024."""
HEAD_SECONDS = 10.0
"""For a request line and its headers to arrive."""
DRAIN_SECONDS = 30.0
"""For what waits to be sent to leave."""


class Connection(H11Protocol):
    """A connection with a limit for everything that it can make us wait for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head: asyncio.TimerHandle | None = None
        self._drain: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or say that there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(_raw(503, "too many connections; try again in 1 s"))
            transport.close()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        for timer in (self._head, self._drain):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        """Wait for the reader, but not forever."""
        super().pause_writing()
        self._drain = self.loop.call_later(DRAIN_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has a head of too many bytes."""
        status = getattr(sys.exception(), "error_status_hint", 400)
        cycle = self.cycle
        if cycle is None or not cycle.response_started or cycle.response_complete:
            self.transport.write(_raw(status, f"{msg} Send HTTP/1.1 with short headers."))
        self.transport.close()

    def _watch(self) -> None:
        """Cut the connection soon, unless a request is being answered.

        That is: while a head is awaited, or the rest of a body whose request was refused.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            if self._head is not None:
                self._head.cancel()
                self._head = None
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)


def _raw(status: int, text: str) -> bytes:
    """A whole answer, for those that do not get as far as the application."""
    body = problem(text)
    own = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        (b"cache-control", b"no-store"),
        *([(b"retry-after", b"1")] if status == 503 else []),
    ]
    lines = [b": ".join(pair) for pair in [*own, *SAFE]]
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()
    return b"\r\n".join([first, *lines, b"", body])
