"""What every request must pass and every answer carries, as one plain ASGI middleware."""

import asyncio
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, TypeAlias

from mpvae.serve.queue import Busy, Worker
from mpvae.serve.watching import Visit, Watch, log_failure
from mpvae.serve.wire import problem

MAX_BYTES = 10 * 2**20
"""Of one request."""
MAX_HEAD = 16 * 2**10
"""Bytes of an address and its headers; h11 bounds only what comes in pieces."""
MAX_HELD = 128 * 2**20
"""Bytes of questions and answers in memory, of all requests."""
READ_SECONDS = 20.0
"""For the body of a request to arrive."""
SEND_SECONDS = 30.0
"""For an answer to leave."""
_PIECE = 2**16  # bytes sent at once: no more than that waits for who reads slowly

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SAFE: Headers = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-embedder-policy", b"require-corp"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]
"""On every answer. Plotly and Swagger set styles in the page, hence 'unsafe-inline' there."""
_GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Refused(Exception):
    """A request is answered without the endpoint."""

    def __init__(
        self, status: int, text: str, reason: str, headers: Headers | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.headers = headers or []


class _Gone(Exception):
    """Who asked has closed the connection, or does not read the answer."""


class Guard:
    """Limits, token, headers, ids and the last answer to what nobody expected.

    Parameters
    ----------
    app : ASGI application
        What is guarded.
    worker, watch
        Whose queue must have room for a question, and who counts.
    places : collection of str
        Paths of endpoints.
    open_places : collection of str
        Those that need no token.
    token : bytes, optional
        What an ``Authorization: Bearer`` header must hold.
    hosts : collection of str, optional
        Names of this machine in the header ``Host``. Without such a check a page from
        elsewhere, whose name is made to point here, could ask in the reader's browser.
    """

    def __init__(
        self,
        app: App,
        *,
        worker: Worker,
        watch: Watch,
        places: Collection[str],
        open_places: Collection[str],
        token: bytes | None = None,
        hosts: Collection[str] | None = None,
    ) -> None:
        self.app = app
        self.worker = worker
        self.watch = watch
        self.places = frozenset(places)
        self.open_places = frozenset(open_places)
        self.token = token
        self.hosts = hosts
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(reversed(scope["headers"]))  # the first one counts
        visit = _visit(scope, headers, self.places)
        answer = _Answer(send, visit, self)
        with self.watch.watching(visit):
            try:
                self._check(visit, headers, _head_bytes(scope))
                body = b""
                if visit.method == "POST":
                    body = await self._read(visit, headers, receive)
                # HEAD is GET to all within; uvicorn keeps the body back.
                method = "GET" if visit.method == "HEAD" else visit.method
                asked = {**scope, "method": method, "mpvae.visit": visit}
                await self.app(asked, _once(body, receive), answer)
            except Refused as error:
                visit.refused = error.reason
                await answer.say(error.status, str(error), error.headers)
            except Busy as error:
                visit.refused, visit.waited = error.reason, error.waited
                await answer.say(503, str(error), [_retry(error.retry_after)])
            except asyncio.CancelledError:  # the time limit of a stop has passed
                await answer.say(503, "the service ends; ask again later", [_retry(1)])
                raise
            except _Gone:
                visit.status = 499
                if answer.begun:
                    raise  # so that the connection is closed
            except Exception as error:
                log_failure(visit.id, error)
                if answer.begun:
                    raise
                text = f"something went wrong here, id {visit.id}; the service's log has more"
                await answer.say(500, text)
            finally:
                self.held -= visit.held

    def _check(self, visit: Visit, headers: dict[bytes, bytes], n_head: int) -> None:
        """Refuse what can be refused before the body is read."""
        if n_head > MAX_HEAD:
            text = f"address and headers have {n_head:,} bytes; send at most {MAX_HEAD:,}"
            raise Refused(431, text, "head")
        if self.hosts is not None:
            host = headers.get(b"host", b"").decode("latin-1").rpartition(":")
            name = host[0] if host[0] and host[2].isdigit() else "".join(host)
            if name.strip("[]").lower() not in self.hosts:
                text = "this service answers to localhost only; give a token, or another --host"
                raise Refused(421, text, "host")
        if self.token is not None and visit.place not in self.open_places:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given, self.token):
                what = [(b"www-authenticate", b'Bearer realm="mpvae"')]
                text = 'this needs a token; send it as "Authorization: Bearer TOKEN"'
                raise Refused(401, text, "token", what)
        if visit.method == "POST" and visit.place != "other" and not self.worker.stopping:
            # Again when the body is here; this spares reading it. Not at the end, when the
            # connection is closed: with a body unread, the answer could be lost with it.
            self.worker.check_room()

    async def _read(self, visit: Visit, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The body of a request, of limited size, within a limited time."""
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > MAX_BYTES:
            raise _too_long()
        body = bytearray()  # not a list of parts: each may have one byte
        try:
            async with asyncio.timeout(READ_SECONDS):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    part = message.get("body", b"")
                    body += part
                    self.hold(visit, len(part))
                    if len(body) > MAX_BYTES:
                        raise _too_long()
                    if self.held > MAX_HELD:
                        text = "too much is being sent at this moment; ask again in 1 s"
                        raise Refused(503, text, "memory", [_retry(1)])
                    more = message.get("more_body", False)
        except TimeoutError:
            text = f"the request took more than {READ_SECONDS:.0f} s to arrive; send it faster"
            raise Refused(408, text, "slow", [(b"connection", b"close")]) from None
        return bytes(body)

    def hold(self, visit: Visit, n_bytes: int) -> None:
        """Count bytes that stay in memory until the request ends."""
        visit.held += n_bytes
        self.held += n_bytes


class _Answer:
    """Sends an answer: with the headers that all carry, in pieces, within a limited time."""

    def __init__(self, send: Send, visit: Visit, guard: Guard) -> None:
        self._send = send
        self._visit = visit
        self._guard = guard
        self.begun = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            self._visit.status = message["status"]
            given = list(message.get("headers", []))
            own = [*SAFE, (b"x-request-id", self._visit.id.encode())]
            if not any(name == b"cache-control" for name, _ in given):
                own.append((b"cache-control", b"no-store"))
            if self._guard.worker.stopping:
                own.append((b"connection", b"close"))
            await self._send({**message, "headers": given + own})
            return
        body = message.get("body", b"")
        self._guard.hold(self._visit, len(body))
        try:
            async with asyncio.timeout(SEND_SECONDS):
                for start in range(0, max(1, len(body)), _PIECE):
                    piece = body[start : start + _PIECE]
                    more = start + _PIECE < len(body) or message.get("more_body", False)
                    await self._send({**message, "body": piece, "more_body": more})
        except TimeoutError:
            raise _Gone from None

    async def say(self, status: int, text: str, headers: Headers | None = None) -> None:
        """Send an error, unless something was sent already."""
        if self.begun:
            return
        body = problem(text)
        about = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        start = {"status": status, "headers": [*about, *(headers or [])]}
        await self({"type": "http.response.start", **start})
        await self({"type": "http.response.body", "body": body})


def _head_bytes(scope: Scope) -> int:
    n_address = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    return n_address + sum(len(name) + len(value) for name, value in scope["headers"])


def _visit(scope: Scope, headers: dict[bytes, bytes], places: Collection[str]) -> Visit:
    given = headers.get(b"x-request-id", b"")
    path: str = scope["path"]
    place = "/assets" if path.startswith("/assets/") else path
    return Visit(
        id=given.decode() if _GOOD_ID.fullmatch(given) else secrets.token_hex(8),
        method=scope["method"],
        path=path,
        place=place if place in places else "other",
    )


def _once(body: bytes, receive: Receive) -> Receive:
    """The body again, for the endpoint; after it whatever comes."""
    given = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _too_long() -> Refused:
    return Refused(413, f"the request is too long; send at most {MAX_BYTES:,} bytes", "bytes")


def _retry(seconds: int) -> tuple[bytes, bytes]:
    return b"retry-after", str(seconds).encode()
