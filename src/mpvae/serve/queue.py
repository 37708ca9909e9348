"""One thread that computes, behind a queue that stays short. No HTTP here.

torch uses all cores for one question, so a second thread would only slow both down. What
cannot be answered soon is refused at once: a long queue makes every answer late.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

PLACES = 64
"""Questions that may wait."""
MAX_WAIT = 0.25
"""Seconds a question may be expected to wait; what waited twice as long is not computed."""


class Busy(Exception):
    """A question was not computed, because others came first or the service ends."""

    def __init__(
        self, text: str, *, reason: str, retry_after: int = 1, waited: float = 0.0
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.retry_after = retry_after
        self.waited = waited


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a question, with the seconds it waited and those it took."""

    value: Any
    waited: float
    worked: float


@dataclass(frozen=True, slots=True)
class _Job:
    kind: Hashable
    work: Callable[[], Any]
    usual: float  # seconds that such work took lately; 0 where none was seen
    future: "Future[Done]" = field(default_factory=Future)
    asked: float = field(default_factory=time.perf_counter)


class Worker:
    """The thread and its queue; they last as long as the process.

    Parameters
    ----------
    warm_up : callable
        Done first, in that thread: a first prediction takes longer than later ones. Questions
        asked meanwhile wait for it.
    places, max_wait
        Questions that may wait, and for how many seconds one may be expected to. What waited
        twice as long all the same is not computed.
    """

    def __init__(
        self,
        warm_up: Callable[[], object],
        *,
        places: int = PLACES,
        max_wait: float = MAX_WAIT,
    ) -> None:
        self.places = places
        self.max_wait = max_wait
        self.warm = threading.Event()
        self.stopping = False  # once true, what is queued is still answered
        self.failure: BaseException | None = None
        self._warm_up = warm_up
        self._warm_since = math.inf
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._n_waiting = 0
        self._ahead = 0.0  # seconds of work that waits, as far as one can tell
        self._ends = 0.0  # when the work at hand will end, likewise
        self._usual: dict[Hashable, float] = {}
        # daemon: work that outlives the time limit of a stop must not hold the process back
        threading.Thread(target=self._run, name="mpvae-worker", daemon=True).start()

    @property
    def ready(self) -> bool:
        """Whether questions are answered without delay."""
        return self.warm.is_set() and self.failure is None and not self.stopping

    def __len__(self) -> int:
        """Number of questions that wait."""
        return self._n_waiting

    def check_room(self) -> None:
        """Raise `Busy` if a question asked now would wait too long."""
        if self.stopping:
            raise Busy("the service ends; ask again later", reason="stopping")
        now = time.perf_counter()
        expected = self._ahead + max(0.0, self._ends - now)
        if self._n_waiting < self.places and expected <= self.max_wait:
            return
        after = max(1, math.ceil(expected - self.max_wait))
        raise Busy(
            f"{self._n_waiting} questions wait already; ask again in {after} s",
            reason="queue",
            retry_after=after,
        )

    def ask(self, kind: Hashable, work: Callable[[], Any]) -> "Future[Done]":
        """Queue some work, or raise `Busy`.

        Parameters
        ----------
        kind
            Work of the same kind takes about as long; there are few kinds.
        work
            What to do.
        """
        with self._lock:
            self.check_room()
            job = _Job(kind, work, self._usual.get(kind, 0.0))
            self._n_waiting += 1
            self._ahead += job.usual
        self._jobs.put(job)
        return job.future

    def _run(self) -> None:
        try:
            self._warm_up()
        except BaseException as error:  # noqa: BLE001 - told by /ready, and the log has it
            self.failure = error
        self._warm_since = time.perf_counter()
        self.warm.set()
        while True:
            job = self._jobs.get()
            begin = time.perf_counter()
            with self._lock:
                self._n_waiting -= 1
                # exactly nothing waits: no rest of a sum of floats stays behind
                self._ahead = self._ahead - job.usual if self._n_waiting else 0.0
            self._answer(job, begin)
            del job  # or it would hold its question until the next one comes

    def _answer(self, job: _Job, begin: float) -> None:
        if not job.future.set_running_or_notify_cancel():
            return  # who asked has gone
        waited = max(0.0, begin - max(job.asked, self._warm_since))
        if waited > 2 * self.max_wait:
            text = f"the question waited {waited:.1f} s; ask again in 1 s"
            job.future.set_exception(Busy(text, reason="waited", waited=waited))
            return
        self._ends = begin + job.usual
        try:
            value = job.work()
        except BaseException as error:  # noqa: BLE001 - it belongs to who asked
            self._learn(job.kind, begin)
            job.future.set_exception(error)
        else:
            job.future.set_result(Done(value, waited, self._learn(job.kind, begin)))

    def _learn(self, kind: Hashable, begin: float) -> float:
        """Seconds that work took. Before it is answered: who has the answer may ask again."""
        worked = time.perf_counter() - begin
        with self._lock:
            old = self._usual.get(kind, worked)
            self._usual[kind] = old + 0.2 * (worked - old)
            self._ends = 0.0
        return worked
