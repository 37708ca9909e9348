"""Hostile files by the hundred thousand: read, or refused in one line, by every reader.

    python benchmarks/fuzz.py [TARGET ...] [--inputs 100000] [--seed 0] [--workers 2]

An input is a pure function of target, seed and number (tests/fuzz). The reader is called in a
process that may take 1 GB of address space beyond what it has when it begins; one that dies,
waits, or takes over 5 s or 1 GB for one input has made a find; its files are kept in the folder
that is printed. A run that was interrupted goes on where it was. Results go to
benchmarks/results/fuzz.json; the exit status is 1 where there is a find.
"""

import argparse
import json
import mmap
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

RESULTS = HERE / "results" / "fuzz.json"
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
RUNNING = MEMORY / "mpvae-fuzz"
MOST_BYTES, MOST_SECONDS, WAIT_SECONDS = 2**30, 5.0, 60.0
TOLD, BROKEN = 3, 4  # how workers end
VERDICTS = ("", "accepted", "DataError", "ModelFileError", "ConfigError", "find")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",  # or every thread sets address space aside
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # the others do so, too
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ENVIRONMENT)

    from fuzz.canaries import CANARY
    from fuzz.targets import TARGETS

    names = asked.targets or list(TARGETS)
    unknown = [name for name in names if name not in {*TARGETS, "canary"}]
    if unknown:
        parser.error(f"there is no target {unknown[0]}; known: {', '.join(TARGETS)}")
    TARGETS["canary"] = CANARY
    found = json.loads(asked.results.read_text()) if asked.results.exists() else {}
    for name in names:
        found[name] = run(name, asked.seed, asked.inputs, asked.workers)
        asked.results.write_text(json.dumps(found, indent=1) + "\n")
    show({name: found[name] for name in names})
    return int(any(found[name]["finds"] for name in names))


def run(name: str, seed: int, inputs: int, workers: int) -> dict:
    """All inputs of a target, some workers taking turns with the numbers."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from fuzz.targets import TARGETS

    TARGETS[name].seeds()  # made once, for all workers
    folder = RUNNING / f"{name}-{seed}-{inputs}"
    folder.mkdir(parents=True, exist_ok=True)
    verdicts = folder / "verdicts"
    if not verdicts.exists() or verdicts.stat().st_size != inputs:
        verdicts.write_bytes(bytes(inputs))
        (folder / "finds").write_text("")
    began, at_first = time.monotonic(), Counter(verdicts.read_bytes())[0]
    columns = (
        "{task.description:>8}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, auto_refresh=False) as bar:  # a thread would not survive a fork
        task = bar.add_task(name, total=inputs)
        teams = [Worker(name, seed, inputs, k, workers, folder) for k in range(workers)]
        while not all([worker.look() for worker in teams]):
            bar.update(task, completed=sum(worker.done for worker in teams), refresh=True)
            time.sleep(0.2)
        bar.update(task, completed=inputs, refresh=True)
    seconds = time.monotonic() - began
    counts = Counter(VERDICTS[code] for code in verdicts.read_bytes())
    finds = [json.loads(line) for line in (folder / "finds").read_text().splitlines()]
    result = {
        "inputs": inputs,
        "seed": seed,
        "seconds": round(seconds, 1),
        "per_second": round(at_first / seconds),
        "accepted": counts.pop("accepted", 0),
        "refused": {kind: n for kind, n in sorted(counts.items()) if kind != "find"},
        "most_seconds": max(worker.most_seconds for worker in teams),
        "most_megabytes": max(worker.most_megabytes for worker in teams),
        "finds": finds,
    }
    for find in finds:
        keep(name, seed, find["number"])
    shutil.rmtree(folder)
    return result


class Worker:
    """A process that takes every n-th input; a new one is begun where one dies."""

    def __init__(
        self, name: str, seed: int, inputs: int, which: int, of: int, folder: Path
    ) -> None:
        self.task = (name, seed, inputs, which, of)
        self.folder, self.which, self.of = folder, which, of
        self.own = range(which, inputs, of)
        self.done, self.moved, self.process = 0, 0.0, 0
        self.most_seconds, self.most_megabytes = 0.0, 0.0

    def look(self) -> bool:
        """Go on; whether all is done."""
        verdicts = (self.folder / "verdicts").read_bytes()[self.which :: self.of]
        done = verdicts.find(0)
        done = len(verdicts) if done < 0 else done
        if done != self.done or not self.process:
            self.done, self.moved = done, time.monotonic()
        if self.process:
            waits = time.monotonic() - self.moved > WAIT_SECONDS
            if waits:
                os.kill(self.process, signal.SIGKILL)
            process, status = os.waitpid(self.process, 0 if waits else os.WNOHANG)
            if not process:
                return False
            self.process = 0
            self._measure()
            status = os.waitstatus_to_exitcode(status)
            if done < len(verdicts) and status != TOLD:
                if status == BROKEN:
                    raise SystemExit("a worker cannot work")
                number = self.own[done]
                kind = f"waited {WAIT_SECONDS:.0f} s" if waits else f"died, status {status}"
                note(self.folder, number, f"find: {kind}", "")
                mark(self.folder, number, "find")
        elif done == len(verdicts):
            return True
        else:
            self.process = os.fork()
            if not self.process:
                status = BROKEN
                try:
                    status = work(*self.task)
                except BaseException:  # noqa: BLE001 a child never goes back to its parent's work
                    traceback.print_exc()
                os._exit(status)
        return False

    def _measure(self) -> None:
        file = self.folder / f"measured-{self.which}"
        if file.exists():
            seconds, megabytes = json.loads(file.read_text())
            self.most_seconds = max(self.most_seconds, seconds)
            self.most_megabytes = max(self.most_megabytes, megabytes)


def work(name: str, seed: int, inputs: int, which: int, of: int) -> int:
    """What a worker does; status `TOLD` asks for a new one, since this one has grown."""
    from fuzz.targets import TARGETS, files_of, outcome, put

    running = RUNNING / f"{name}-{seed}-{inputs}"
    home = running / f"zebra-{which}"
    home.mkdir(exist_ok=True)
    for valid in TARGETS[name].seeds():  # imports and caches are not what is measured
        put(valid, home)
        assert outcome(name, home)[0] == "accepted", (name, outcome(name, home))
    with (running / "verdicts").open("r+b") as stream:
        verdicts = mmap.mmap(stream.fileno(), 0)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, resource.RLIM_INFINITY))
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    most, grown, status = 0.0, 0.0, 0
    for number in range(which, inputs, of):
        if verdicts[number]:
            continue
        put(files_of(name, seed, number), home)
        start = time.process_time()
        verdict, message = outcome(name, home)
        seconds = time.process_time() - start
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin) / 1024
        most = max(most, seconds)
        if seconds > MOST_SECONDS:
            verdict = f"find: took {seconds:.1f} s"
        if grown * 2**20 > MOST_BYTES:
            verdict = f"find: took {grown:.0f} MB"
        if verdict.startswith("find"):
            note(running, number, verdict, message)
        verdicts[number] = VERDICTS.index(verdict.partition(":")[0])
        if grown * 2**20 > MOST_BYTES:
            status = TOLD
            break
    measured = [round(most, 2), round(max(grown, 0.0), 1)]
    (running / f"measured-{which}").write_text(json.dumps(measured))
    return status


def note(running: Path, number: int, verdict: str, message: str) -> None:
    line = {"number": number, "verdict": verdict, "message": message[:300]}
    with (running / "finds").open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def mark(running: Path, number: int, verdict: str) -> None:
    with (running / "verdicts").open("r+b") as stream:
        stream.seek(number)
        stream.write(bytes([VERDICTS.index(verdict)]))


def keep(name: str, seed: int, number: int) -> None:
    """Write the files of a find where they can be looked at."""
    from fuzz.targets import files_of, put

    folder = RUNNING / "finds" / name / f"{seed}-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    put(files_of(name, seed, number), folder)


def show(found: dict[str, dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    titles = (
        "reader",
        "inputs",
        "a second",
        "accepted",
        "refused",
        "slowest",
        "memory",
        "finds",
    )
    table = Table(*titles)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, result in found.items():
        refused = sum(result["refused"].values())
        table.add_row(
            name, f"{result['inputs']:,}", f"{result['per_second']:,}",
            f"{result['accepted']:,}", f"{refused:,}", f"{result['most_seconds']:.2f} s",
            f"{result['most_megabytes']:.0f} MB", str(len(result["finds"])),
        )  # fmt: skip
    console = Console()
    console.print(table)
    n = sum(len(result["finds"]) for result in found.values())
    for name, result in found.items():
        for find in result["finds"][:20]:
            console.print(
                f"{name} {find['number']}: {find['verdict']} {find['message']}", markup=False
            )
    total = sum(result["inputs"] for result in found.values())
    if n:
        console.print(f"{n} finds in {total:,} inputs; their files: {RUNNING / 'finds'}")
    else:
        console.print(f"no finds in {total:,} inputs: every one was read or refused in a line")


if __name__ == "__main__":
    sys.exit(main())
