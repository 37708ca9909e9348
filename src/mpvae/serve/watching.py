"""What the service tells of itself: numbers for Prometheus, and a log of JSON lines."""

import json
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TextIO

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from mpvae.serve.queue import Worker

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(slots=True)
class Visit:
    """One request, from its first byte to the last one of its answer."""

    id: str
    method: str
    path: str  # as it was asked for
    place: str  # the endpoint, or "other": as many as there are endpoints
    status: int = 499  # nobody waited for the answer, until one is sent
    rows: int = 0
    waited: float = 0.0  # seconds in the queue
    worked: float = 0.0  # seconds of the model
    refused: str | None = None
    held: int = 0  # bytes of its question and answer in memory
    begin: float = field(default_factory=time.perf_counter)


class Watch:
    """Counts requests, and logs them if there is a log.

    Parameters
    ----------
    worker : Worker
        Whose queue is watched.
    log : text stream, optional
        Where each request becomes a line.
    """

    def __init__(self, worker: Worker, log: TextIO | None = None) -> None:
        self._log = log
        self.registry = CollectorRegistry()  # of this service, not of the process
        self._requests = Counter(
            "mpvae_requests",
            "Requests answered.",
            ["path", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "mpvae_request_seconds",
            "Seconds from a request to its answer.",
            ["path"],
            buckets=_BOUNDS,
            registry=self.registry,
        )
        self._refused = Counter(
            "mpvae_refused", "Requests refused, by reason.", ["reason"], registry=self.registry
        )
        self._rows = Counter("mpvae_rows", "Rows answered.", registry=self.registry)
        self._in_flight = Gauge(
            "mpvae_in_flight", "Requests being answered.", registry=self.registry
        )
        Gauge(
            "mpvae_queue_length", "Questions that wait.", registry=self.registry
        ).set_function(lambda: len(worker))
        Gauge(
            "mpvae_ready", "Whether questions are answered.", registry=self.registry
        ).set_function(lambda: float(worker.ready))
        ProcessCollector(registry=self.registry)

    def page(self) -> bytes:
        """All numbers, as Prometheus reads them."""
        return generate_latest(self.registry)

    @contextmanager
    def watching(self, visit: Visit) -> Iterator[None]:
        """Count a request, and log it when the block ends, however it ends."""
        self._in_flight.inc()
        try:
            yield
        finally:
            self._in_flight.dec()
            seconds = time.perf_counter() - visit.begin
            self._requests.labels(visit.place, visit.status).inc()
            self._seconds.labels(visit.place).observe(seconds)
            if visit.status == 200:
                self._rows.inc(visit.rows)
            if visit.refused is not None:
                self._refused.labels(visit.refused).inc()
            if self._log is not None:
                self._write(self._log, visit, seconds)

    @staticmethod
    def _write(log: TextIO, visit: Visit, seconds: float) -> None:
        line = {
            "time": _now(),
            "id": visit.id,
            "method": visit.method,
            "path": visit.path[:200],
            "status": visit.status,
            "ms": _ms(seconds),
            "waited_ms": _ms(visit.waited),
            "worked_ms": _ms(visit.worked),
            "rows": visit.rows,
        }
        if visit.refused is not None:
            line["refused"] = visit.refused
        _print(line, log)


def log_failure(name: str, error: BaseException) -> None:
    """Say on stderr where the program failed, under the id that the answer names.

    Without the error's own text, since that may hold what was in the rows.
    """
    line = {
        "time": _now(),
        "id": name,
        "failed": type(error).__name__,
        "traceback": traceback.format_tb(error.__traceback__),
    }
    _print(line, sys.stderr)


def _print(line: Mapping[str, object], log: TextIO) -> None:
    with suppress(OSError):  # who read the log has gone: the answers matter more
        print(json.dumps(line), file=log, flush=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
