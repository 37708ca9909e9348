"""The queue before the model: short, in order, and honest about what it cannot do."""

import threading
import time

import pytest

from mpvae.serve.queue import Busy, Worker


@pytest.fixture
def worker():
    worker = Worker(lambda: None, places=3, max_wait=0.2)
    worker.warm.wait()
    return worker


class Hold:
    """Work that lasts until it is let go."""

    def __init__(self):
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __call__(self):
        self.begun.set()
        assert self.let_go.wait(20)


@pytest.fixture
def hold(worker):
    """The worker is at work."""
    hold = Hold()
    worker.ask("hold", hold)
    hold.begun.wait()
    yield hold
    hold.let_go.set()


def test_answers_come_in_order_from_one_thread(worker):
    asked = [worker.ask("name", threading.get_ident) for _ in range(3)]
    assert len({future.result().value for future in asked}) == 1
    done = worker.ask("sleep", lambda: time.sleep(0.02)).result()
    assert done.worked >= 0.02
    assert done.waited >= 0


def test_more_than_may_wait_is_refused_at_once(worker, hold):
    waiting = [worker.ask("quick", int) for _ in range(3)]
    assert len(worker) == 3
    with pytest.raises(Busy, match="3 questions wait already; ask again in 1 s") as told:
        worker.ask("quick", int)
    assert told.value.reason == "queue"
    hold.let_go.set()
    assert [future.result().value for future in waiting] == [0, 0, 0]
    assert len(worker) == 0
    assert worker.ask("quick", int).result().value == 0


def test_what_waited_too_long_is_not_computed(worker, hold):
    computed = []
    late = worker.ask("quick", lambda: computed.append(1))
    time.sleep(0.45)  # more than twice what it may be expected to wait
    hold.let_go.set()
    with pytest.raises(Busy, match="waited") as told:
        late.result()
    assert told.value.waited > 0.4
    assert computed == []


def test_work_that_takes_long_leaves_no_room_behind_it(worker):
    worker.ask("long", lambda: time.sleep(0.5)).result()  # now it is known to take so long
    begun = threading.Event()
    running = worker.ask("long", lambda: (begun.set(), time.sleep(0.5)))
    begun.wait()
    with pytest.raises(Busy) as told:
        worker.ask("quick", int)
    assert told.value.retry_after == 1
    running.result()
    assert worker.ask("quick", int).result().value == 0


def test_an_error_belongs_to_who_asked(worker):
    with pytest.raises(ZeroDivisionError):
        worker.ask("wrong", lambda: 1 / 0).result()
    assert worker.ask("quick", int).result().value == 0


def test_who_has_gone_is_not_answered(worker, hold):
    computed = []
    gone = worker.ask("quick", lambda: computed.append(1))
    assert gone.cancel()
    hold.let_go.set()
    worker.ask("quick", int).result()
    assert computed == []


def test_questions_wait_for_the_warm_up_however_long_it_takes():
    hold = Hold()
    worker = Worker(hold, max_wait=0.05)
    assert not worker.ready
    early = worker.ask("quick", int)
    time.sleep(0.15)
    hold.let_go.set()
    assert early.result().value == 0
    assert worker.ready


def test_a_warm_up_that_fails_is_not_ready():
    worker = Worker(lambda: 1 / 0)
    worker.warm.wait()
    assert not worker.ready
    assert isinstance(worker.failure, ZeroDivisionError)


def test_at_the_end_what_is_queued_is_answered_and_nothing_else(worker, hold):
    queued = worker.ask("quick", int)
    worker.stopping = True
    assert not worker.ready
    with pytest.raises(Busy, match="ends"):
        worker.ask("quick", int)
    hold.let_go.set()
    assert queued.result().value == 0
