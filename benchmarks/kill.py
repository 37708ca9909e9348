"""Trainings that are killed again and again, and what becomes of them.

    python benchmarks/kill.py [--kills 50] [--seed 0] [base] [networks] [jobs] [stream]

`mpvae fit` runs in a process of its own, is killed (SIGKILL) at random moments or inside a
write of its state or model, and resumed until it ends. Its folder must then be that of an
undisturbed run, bit for bit, with nothing beside it. A write is hit when its temporary file
is still there once the process is gone. Kills are shared out between the ways to train that
are named, or all. Results go to benchmarks/results/kill.json; any difference ends with exit
code 1.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from mpvae.data import simulate_probit
from mpvae.model_file import TRAINING

RESULTS = Path(__file__).parent / "results" / "kill.json"
SOURCE = Path(__file__).parents[1] / "src"
STREAMED = (  # tables of any size are read some rows at a time
    "from mpvae import choosing, cli; choosing.IN_MEMORY_VALUES = 1000; cli.main()"
)
COMMAND = "from mpvae import cli; cli.main()"
KILLS_OF_A_RUN = 4  # then it is left to end
LIMIT = 300.0  # seconds a process may take


@dataclass(frozen=True)
class Configuration:
    """A way to train."""

    name: str
    settings: tuple[str, ...]
    words: tuple[str, ...] = ()
    streamed: bool = False

    def command(self, table: Path, folder: Path) -> list[str]:
        given = [word for pair in self.settings for word in ("--set", pair)]
        start = [sys.executable, "-c", STREAMED if self.streamed else COMMAND]
        command = ["fit", str(table), "-l", "y*", "-o", str(folder), "--json", *given]
        return [*start, *command, *self.words]


CONFIGURATIONS = {
    "base": Configuration(
        "default, with base", ("n_members=5", "max_epochs=60", "patience=none")
    ),
    "networks": Configuration(
        "five networks", ("max_epochs=20", "patience=none"), ("--base", "none", "--seed", "1")
    ),
    "jobs": Configuration(
        "--jobs 2",
        ("n_members=4", "max_epochs=30", "patience=none"),
        ("--base", "none", "--jobs", "2"),
    ),
    "stream": Configuration(
        "stream of Parquet", ("n_members=2", "max_epochs=25", "patience=none"), streamed=True
    ),
}


@dataclass
class Tally:
    """What became of the trainings of one configuration."""

    seconds: float
    kills: Counter = field(default_factory=Counter)  # by what they were aimed at
    in_a_write: int = 0
    resumed: int = 0
    ended: int = 0
    different: int = 0
    left_behind: int = 0
    failed: int = 0
    took: float = 0.0  # seconds, all together


def start(command: list[str], told: Path) -> subprocess.Popen:
    """A training; what it says goes to a file, which processes that stay behind may hold."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    with told.open("w") as stream:
        return subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )


def finish(process: subprocess.Popen, *, all_of_it: bool) -> None:
    """Kill a process, or it and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        if all_of_it:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def temporary(folder: Path) -> list[Path]:
    found = []
    for place in (folder, folder / TRAINING):
        with contextlib.suppress(OSError):
            found += [e for e in os.scandir(place) if e.name.endswith(".tmp")]
    return [Path(entry.path) for entry in found]


def wait_for_training(process: subprocess.Popen, folder: Path, before: bytes | None) -> bytes:
    """Until this process has taken the folder; what it has written there."""
    file = folder / TRAINING / "training.owner"
    end = time.perf_counter() + LIMIT
    while process.poll() is None and time.perf_counter() < end:
        with contextlib.suppress(OSError):
            owner = file.read_bytes()
            if owner and owner != before:
                return owner
        time.sleep(0.005)
    return b""


def wait_for_write(process: subprocess.Popen, folder: Path, number: int) -> bool:
    """Until the process is inside so many writes; False if it ends before."""
    seen: set[str] = set()
    while process.poll() is None:
        seen |= {path.name for path in temporary(folder)}
        if len(seen) >= number:
            return True
        time.sleep(0.0003)
    return False


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def undisturbed(configuration: Configuration, table: Path, folder: Path) -> float:
    """Train in one go; the seconds between the begin of the training and the end."""
    told = folder.with_suffix(".txt")
    process = start(configuration.command(table, folder), told)
    wait_for_training(process, folder, None)
    begun = time.perf_counter()
    assert process.wait(LIMIT) == 0, told.read_text()
    return time.perf_counter() - begun


def one_training(
    configuration: Configuration,
    table: Path,
    folder: Path,
    whole: dict[str, str],
    tally: Tally,
    n_kills: int,
    rng: np.random.Generator,
) -> None:
    """Kill a training some times, then let it end, and compare."""
    command = [*configuration.command(table, folder), "--resume"]
    owner: bytes | None = None
    groups = []
    for kill in range(n_kills + 1):
        said = folder.with_suffix(".txt")
        process = start(command, said)
        groups.append(process)
        owner = wait_for_training(process, folder, owner)
        ended = True
        if kill < n_kills:
            if rng.random() < 0.5:
                ended = not wait_for_write(process, folder, int(rng.integers(1, 4)))
                aim = "write"
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(rng.uniform(0, tally.seconds))
                ended = process.poll() is not None
                aim = "moment"
        if not ended:
            # Alone, processes of its own stay behind; or all at once, as in a power cut.
            finish(process, all_of_it=rng.random() < 0.5)
            tally.kills[aim] += 1
            tally.in_a_write += bool(temporary(folder))
        else:
            process.wait(LIMIT)
        told = said.read_text()
        tally.resumed += "going on with the training" in told
        if ended:
            if process.returncode != 0:
                tally.failed += 1
                print(f"  exit code {process.returncode}: {told.strip()[-500:]}", flush=True)
            break
    time.sleep(0.2)
    found = contents(folder)
    tally.ended += 1
    tally.different += any(found.get(name) != digest for name, digest in whole.items())
    extra = sorted(set(found) - set(whole))
    hidden = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    tally.left_behind += bool(extra or hidden)
    if extra or hidden:
        print(f"  left behind: {', '.join([*extra, *hidden])}", flush=True)
    for process in groups:  # what a kill of the first alone has left running
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def write_table(file: Path) -> None:
    data = simulate_probit(1200, n_features=8, n_labels=8, n_factors=2, seed=5)
    frame = pd.DataFrame(data.X, columns=[f"x{k}" for k in range(8)])
    frame[[f"y{k}" for k in range(8)]] = data.Y
    frame.to_parquet(file, row_group_size=100)


def print_tallies(tallies: dict[str, Tally]) -> None:
    heads = (
        "undisturbed",
        "kills",
        "in a write",
        "resumed",
        "ended",
        "different",
        "left",
        "failed",
    )
    print(f"{'':20s}" + "".join(f"{head:>12s}" for head in heads))
    for name, t in tallies.items():
        values = (
            f"{t.seconds:.1f} s", t.kills.total(), t.in_a_write, t.resumed, t.ended,
            t.different, t.left_behind, t.failed,
        )  # fmt: skip
        print(f"{name:20s}" + "".join(f"{value!s:>12s}" for value in values))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "ways", nargs="*", metavar="WAY", help="to train; all, if none is given"
    )
    parser.add_argument("--kills", type=int, default=50, help="in all (50)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    args = parser.parse_args()
    unknown = set(args.ways) - set(CONFIGURATIONS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    ways = args.ways or list(CONFIGURATIONS)
    rng = np.random.default_rng(args.seed)
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory() as place:
        table = Path(place) / "rows.parquet"
        write_table(table)
        for k, way in enumerate(ways):
            begun = time.perf_counter()
            configuration = CONFIGURATIONS[way]
            wanted = len(range(k, args.kills, len(ways)))
            whole_folder = Path(place) / f"whole-{way}"
            tally = Tally(undisturbed(configuration, table, whole_folder))
            tallies[configuration.name] = tally
            whole = contents(whole_folder)
            while (todo := wanted - tally.kills.total()) > 0:
                folder = Path(place) / f"killed-{way}-{tally.ended}"
                n_kills = min(KILLS_OF_A_RUN, todo)
                one_training(configuration, table, folder, whole, tally, n_kills, rng)
            tally.took = time.perf_counter() - begun
    print_tallies(tallies)
    n_kills = sum(t.kills.total() for t in tallies.values())
    in_a_write = sum(t.in_a_write for t in tallies.values())
    took = sum(t.took for t in tallies.values())
    bad = sum(t.different + t.left_behind + t.failed for t in tallies.values())
    verdict = "NOT SO" if bad else "so it is"
    print(f"\n{n_kills} kills, {in_a_write} of them inside a write, in {took:.0f} s")
    print(
        f"every model is that of an undisturbed run, bit for bit, and nothing else: {verdict}"
    )
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, t in tallies.items():
        seconds = {"seconds": round(t.seconds, 1), "took": round(t.took)}
        found[name] = {"seed": args.seed, **vars(t), **seconds}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
