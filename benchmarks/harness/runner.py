"""Runs cells, two at a time, each in a process of its own, within bounds; resumes by itself.

A cell that is done has a file and is not run again. A cell that takes more than 20 minutes of a
core or 8 GB is stopped, and its file says so. On Ctrl-C the running cells are dropped, all else
stays.
"""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness import experiments
from harness.cells import MAX_GB, MAX_SECONDS, Cell, pin_git_hash, provenance
from harness.experiments import Waiting

_PAUSE = 0.1  # seconds between looks at the running cells


def run_all(
    cells: list[Cell],
    results: Path,
    *,
    workers: int,
    retry: bool = False,
    run: Callable[[Cell, Path], None] = experiments.run,
    known: Callable[[Cell, Path], dict[str, Any] | None] = experiments.without_running,
    max_seconds: float | None = None,
) -> None:
    """Bring every cell to its file, by ``run`` in a process of its own.

    ``known`` says what a cell holds without running, or None, or that it has to wait;
    ``max_seconds`` replaces the bound on the time of a core.
    """
    bound = MAX_SECONDS if max_seconds is None else max_seconds
    if retry:
        for cell in cells:
            content = cell.read(results)
            if content is not None and content.get("error"):  # with all that copied it
                cell.file(results).unlink()
    left = [cell for cell in dict.fromkeys(cells) if not cell.file(results).exists()]
    if not left:
        return
    pin_git_hash()
    os.environ["OMP_NUM_THREADS"] = "1"  # a core per cell; more threads would fight for them
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.experiments"])
    running: dict[Cell, _Job] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("cells", total=len(left))
        try:
            while left or running:
                for cell in [c for c, job in running.items() if job.ended(results)]:
                    del running[cell]
                    bar.advance(task)
                while (
                    len(running) < workers and (cell := _next(left, results, known)) is not None
                ):
                    left.remove(cell)
                    running[cell] = _Job(cell, results, context, run, bound)
                if left and not running:
                    raise RuntimeError(f"{left[0]} waits for a cell that is not to be run")
                bar.update(
                    task,
                    completed=bar.tasks[0].total - len(left) - len(running),
                    description=", ".join(f"{c.method} {c.data}" for c in running) or "cells",
                )
                time.sleep(_PAUSE)
        finally:
            for job in running.values():
                job.stop()


class _Job:
    """A cell in a process."""

    def __init__(
        self,
        cell: Cell,
        results: Path,
        context: multiprocessing.context.BaseContext,
        run: Callable[[Cell, Path], None],
        max_seconds: float,
    ) -> None:
        self.cell, self.max_seconds = cell, max_seconds
        self.started = time.monotonic()
        self.process = context.Process(target=_work, args=(cell, results, run), daemon=True)
        self.process.start()

    def ended(self, results: Path) -> bool:
        """Whether it has ended, or had to be stopped; then the cell's file is there."""
        reason = None
        if self.process.is_alive():
            if _core_seconds(self.process.pid, self.started) > self.max_seconds:
                reason = f"more than {self.max_seconds // 60:.0f} minutes"
            elif (memory := _memory_gb(self.process.pid)) > MAX_GB:
                reason = f"more than {MAX_GB:.0f} GB of memory ({memory:.1f} GB)"
            if reason is None:
                return False
        self.stop()
        if not self.cell.file(results).exists():
            code = self.process.exitcode
            content = {"reason": reason or f"its process ended with code {code}"}
            self.cell.write(results, content | {"error": reason is None} | provenance())
        return True

    def stop(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def _next(
    left: list[Cell],
    results: Path,
    known: Callable[[Cell, Path], dict[str, Any] | None],
) -> Cell | None:
    """First cell that can be run now; those known without running are written on the way."""
    for cell in list(left):
        try:
            content = known(cell, results)
        except Waiting:
            continue
        if content is None:
            return cell
        cell.write(results, content)
        left.remove(cell)
    return None


def _work(cell: Cell, results: Path, run: Callable[[Cell, Path], None]) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        run(cell, results)
    except Exception as error:  # noqa: BLE001  one cell must not end the run
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
        cell.write(results, {"reason": reason, "error": True} | provenance())


def _core_seconds(pid: int | None, started: float) -> float:
    """Processor time of a process, which other work on the machine does not add to."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):  # gone meanwhile, or not Linux
        return time.monotonic() - started


def _memory_gb(pid: int | None) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):  # gone meanwhile, or not Linux
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30
