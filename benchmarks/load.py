"""What the service does when ten times more is asked than it can answer.

    python benchmarks/load.py [--seconds 60]

A model with the default base learns from a small simulated table; `mpvae serve` answers for it
in a process of its own, on this machine alone. A few clients that wait for each answer find out
how many questions per second it can take; then more than ten times that many come, whether or
not there is an answer. Every answer is compared with the library's own. Last, the service is
told to stop while all this goes on. Results go to benchmarks/results/load.json; exit code 1 if
a bar is missed.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from mpvae import MPVAEClassifier
from mpvae.data import simulate_probit

RESULTS = Path(__file__).parent / "results" / "load.json"
N_ROWS, N_FEATURES, N_LABELS = 400, 8, 20
CLIENTS = 4  # that wait for their answers
TIMES = 10
OFFERED = 1.3 * TIMES  # the capacity is measured with some error
PATIENCE = 10.0  # seconds after which a client calls an answer lost
CLOSE = 1e-9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="of the load")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        questions = train(Path(folder))
        found = measure(Path(folder), questions, seconds)
    found["bars"] = bars(found)
    show(found)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if all(bar["met"] for bar in found["bars"]) else 1)


# ---------------------------------------------------------------- questions and right answers


def train(folder: Path) -> list[tuple[str, bytes, np.ndarray]]:
    """Save a model; return paths, bodies, and probabilities as the library has them."""
    data = simulate_probit(N_ROWS, n_features=N_FEATURES, n_labels=N_LABELS, seed=0)
    X = pd.DataFrame(data.X, columns=[f"x{k}" for k in range(N_FEATURES)])
    labels = [f"label {k}" for k in range(N_LABELS)]
    model = MPVAEClassifier(max_epochs=10, random_state=0)
    model.fit(X, pd.DataFrame(data.Y.astype(int), columns=labels)).save(folder / "model")
    questions = []
    for i, row in enumerate(X[:50].to_dict("records")):
        alone = model.predict_proba(X[i : i + 1])[0]
        questions.append(("/predict", {"rows": [row]}, alone))
        known = {labels[i % N_LABELS]: i % 2}
        given = model.predict_conditional(X[i : i + 1], pd.DataFrame([known]))[0]
        questions.append(("/conditional", {"rows": [row], "known": [known]}, given))
    return [(path, json.dumps(asked).encode(), p) for path, asked, p in questions]


def is_right(answer: bytes, wanted: np.ndarray) -> bool:
    return bool(np.abs(np.array(json.loads(answer)["probabilities"][0]) - wanted).max() < CLOSE)


# ---------------------------------------------------------------- the service


class Service:
    """`mpvae serve` as a process, its log read as it comes."""

    def __init__(self, model: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mpvae", "serve", model, "--port", "0", "--log"],
            stderr=subprocess.PIPE,
            text=True,
        )
        told = self.process.stderr.readline()
        address = next(word.strip(",") for word in told.split() if word.startswith("http"))
        self.port = int(address.rpartition(":")[2])
        self.log: list[dict] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            if line.startswith("{"):
                self.log.append(json.loads(line))

    def memory(self) -> float:
        """Resident megabytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self._reader.join()
        return code


# ---------------------------------------------------------------- clients


class Stale(Exception):
    """A connection was closed while nothing was asked: one asks again, as every client does."""


class Client:
    """Connections that are kept and used again; HTTP/1.1 by hand, since it must be quick."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, path: str, body: bytes, name: str) -> tuple[int, bytes]:
        used = bool(self._idle)
        reader, writer = self._idle.pop() if used else await self._open()
        try:
            writer.write(
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: {name}\r\n"
                "Content-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
            answer = await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionResetError) as error:
            writer.close()
            if used and not getattr(error, "partial", b""):
                raise Stale from None
            raise
        except BaseException:
            writer.close()
            raise
        if b"connection: close" in head:
            writer.close()
        else:
            self._idle.append((reader, writer))
        return int(head.split()[1]), answer

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


class Tally:
    """What came of many questions."""

    def __init__(self, questions: list) -> None:
        self.questions = questions
        self.numbers = itertools.count()
        self.outcomes: dict[str, str] = {}  # by id: a status, "wrong", "lost" or "stale"
        self.seconds: list[float] = []  # of right answers

    async def ask(self, client: Client) -> None:
        k = next(self.numbers)
        path, body, wanted = self.questions[k % len(self.questions)]
        start = time.perf_counter()
        for attempt in itertools.count():
            name = f"{os.getpid()}-{k}-{attempt}"
            try:
                status, answer = await asyncio.wait_for(client.ask(path, body, name), PATIENCE)
                break
            except Stale:
                self.outcomes[name] = "stale"
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                self.outcomes[name] = "lost"
                return
        self.outcomes[name] = str(status)
        if status == 200:
            self.seconds.append(time.perf_counter() - start)
            if not is_right(answer, wanted):
                self.outcomes[name] = "wrong"

    def told(self) -> dict:
        counts = Counter(self.outcomes.values())
        counts.pop("stale", None)
        few = {name: counts.pop(name, 0) for name in ("200", "503", "wrong", "lost")}
        late = np.quantile(self.seconds, [0.5, 0.99]) if self.seconds else [np.nan, np.nan]
        return {
            "asked": next(self.numbers),
            **few,
            "other": counts.total(),
            "p50": float(late[0]),
            "p99": float(late[1]),
            "outcomes": self.outcomes,
        }


async def waiting_clients(port: int, questions: list, seconds: float) -> dict:
    """Each asks, waits for the answer, and asks again."""
    tally, end = Tally(questions), time.perf_counter() + seconds

    async def one() -> None:
        client = Client(port)
        while time.perf_counter() < end:
            await tally.ask(client)

    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return tally.told()


async def impatient_clients(port: int, questions: list, rate: float, seconds: float) -> dict:
    """Ask ``rate`` questions a second, whatever comes back."""
    tally, client, begin, tasks = Tally(questions), Client(port), time.perf_counter(), set()
    for k in itertools.count():
        if (due := k / rate) > seconds:
            break
        await asyncio.sleep(max(0.0, begin + due - time.perf_counter()))
        task = asyncio.create_task(tally.ask(client))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    took = time.perf_counter() - begin
    await asyncio.gather(*tasks)
    told = tally.told()
    return {"rate": told["asked"] / took, "seconds": took, **told}


def apart(how, *args) -> "multiprocessing.Queue":
    """Answers of clients in a process of their own, that does nothing else."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    context.Process(target=lambda: answers.put(asyncio.run(how(*args)))).start()
    return answers


# ---------------------------------------------------------------- the measurement


def measure(folder: Path, questions: list, seconds: float) -> dict:
    busy = os.getloadavg()[0]  # what else this machine does
    service = Service(folder / "model")
    try:
        few = max(5, seconds / 6)
        alone = apart(waiting_clients, service.port, questions, few).get()
        capacity = alone["200"] / few
        rate = OFFERED * capacity
        memory = [service.memory()]
        begin = time.perf_counter()
        answers = apart(impatient_clients, service.port, questions, rate, seconds)
        for moment in (0.5, 1.0):
            time.sleep(max(0.0, begin + moment * seconds - time.perf_counter()))
            memory.append(service.memory())
        loaded = answers.get()
        recovery = asyncio.run(recovered(service.port, questions, alone["p99"]))
        answers = apart(impatient_clients, service.port, questions, rate, 4)
        time.sleep(2)
        begin = time.perf_counter()
        code = service.stop()  # under load
        took = time.perf_counter() - begin
        outcomes = [run.pop("outcomes") for run in (alone, loaded, answers.get())]
    finally:
        with contextlib.suppress(ProcessLookupError):
            service.process.kill()
    accepted = {line["id"]: str(line["status"]) for line in service.log}
    return {
        "labels": N_LABELS,
        "load_average_before": busy,
        "capacity": capacity,
        "alone": alone,
        "loaded": loaded,
        "goodput": loaded["200"] / loaded["seconds"] / capacity,
        "memory": memory,
        "recovery": recovery,
        "stopped": {
            "exit_code": code,
            "seconds": took,
            "accepted": sum(name in accepted for name in outcomes[2]),
            "left_open": open_ones(accepted, outcomes[2]),
        },
        "left_open": sum(open_ones(accepted, part) for part in outcomes),
    }


def open_ones(accepted: dict[str, str], outcomes: dict[str, str]) -> int:
    """How many the service says it answered, by its log, while nobody got that answer."""
    return sum(name in accepted and accepted[name] != told for name, told in outcomes.items())


async def recovered(port: int, questions: list, usual: float) -> float:
    """Seconds until a question is answered as before the load."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < 30:
        tally = Tally(questions)
        await tally.ask(Client(port))
        if tally.seconds and tally.seconds[0] <= 2 * usual:
            break
    return time.perf_counter() - begin


# ---------------------------------------------------------------- the verdict


def bars(found: dict) -> list[dict]:
    loaded, stop, memory = found["loaded"], found["stopped"], found["memory"]
    asked = loaded["rate"] / (found["capacity"] * max(1.0, found["goodput"]))
    wrong, lost = (loaded[x] + found["alone"][x] for x in ("wrong", "lost"))
    return [
        bar("asked, times the capacity", asked, f"{asked:.1f} > {TIMES}", asked > TIMES),
        bar("wrong answers", wrong, f"{wrong}", wrong == 0),
        bar("lost answers", lost, f"{lost}", lost == 0),
        bar(
            "answers but 200 and 503",
            loaded["other"],
            str(loaded["other"]),
            not loaded["other"],
        ),
        bar("p99 of 200", loaded["p99"], f"{loaded['p99']:.2f} s < 1 s", loaded["p99"] < 1),
        bar(
            "memory, end against middle",
            memory[2] / memory[1],
            f"{memory[2] / memory[1]:.3f} < 1.05",
            memory[2] < 1.05 * memory[1],
        ),
        bar(
            "recovery",
            found["recovery"],
            f"{found['recovery']:.2f} s < 2 s",
            found["recovery"] < 2,
        ),
        bar(
            "accepted, not answered",
            found["left_open"],
            f"{found['left_open']}, of which {stop['left_open']} at SIGTERM",
            found["left_open"] == 0 and stop["accepted"] > 0,
        ),
        bar("exit code", stop["exit_code"], str(stop["exit_code"]), stop["exit_code"] == 0),
    ]


def bar(name: str, value: float, text: str, met: bool) -> dict:
    return {"name": name, "value": value, "text": text, "met": bool(met)}


def show(found: dict) -> None:
    alone, loaded = found["alone"], found["loaded"]
    print(f"{'':14}{'asked/s':>9}{'200':>8}{'503':>8}{'other':>7}{'p50 ms':>8}{'p99 ms':>8}")
    for name, run, rate in (
        ("capacity", alone, found["capacity"]),
        ("under load", loaded, loaded["rate"]),
    ):
        other = run["other"] + run["wrong"] + run["lost"]
        print(
            f"{name:14}{rate:9.0f}{run['200']:8}{run['503']:8}{other:7}"
            f"{1e3 * run['p50']:8.0f}{1e3 * run['p99']:8.0f}"
        )
    memory = ", ".join(f"{m:.0f}" for m in found["memory"])
    print(
        f"goodput {found['goodput']:.2f} of the capacity; memory {memory} MB; "
        f"load average before {found['load_average_before']:.0f}"
    )
    for line in found["bars"]:
        print(f"{'met' if line['met'] else 'MISSED':8}{line['name']:36}{line['text']}")


if __name__ == "__main__":
    main()
