"""One live line on the terminal for work that takes longer than a moment; silent in a pipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class _Live:
    """Bar with scores behind it, shown inside a ``with`` block.

    Parameters
    ----------
    enabled : bool
        Without it nothing is shown.
    """

    def __init__(self, enabled: bool) -> None:
        self._bar = _bar(enabled, TextColumn("{task.fields[scores]}"))
        self._task = self._bar.add_task("fit", total=1, scores="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()


class FitProgress(_Live):
    """Bar over the epochs of all members, with the loss and the validation score."""

    def asking(self, name: str) -> None:
        """Show that a base learner is at work; how long it takes is not known."""
        self._bar.update(self._task, description=f"asking {name}", total=None)

    def update(
        self, *, member: int, n_members: int, epoch: int, max_epochs: int, scores: str
    ) -> None:
        """Show that ``member`` (from 0) has finished ``epoch`` (from 1)."""
        self._bar.update(
            self._task,
            description=f"network {member + 1}/{n_members}",
            total=n_members * max_epochs,
            completed=member * max_epochs + epoch,
            scores=scores,
        )


class TuneProgress(_Live):
    """Bar over a search: the trial at work, the best so far, the time left."""

    def update(self, *, doing: str, done: float, scores: str) -> None:
        """Show what is being done, and which share of time or trials is over."""
        self._bar.update(self._task, description=doing, completed=min(done, 1.0), scores=scores)


@contextmanager
def counting(what: str, total: int, enabled: bool) -> Iterator[Progress]:
    """Bar that counts to ``total``; advance its only task inside the block."""
    with _bar(enabled) as bar:
        bar.add_task(what, total=total)
        yield bar


@contextmanager
def waiting(what: str, enabled: bool = True) -> Iterator[Callable[[str], None]]:
    """Bar for work of which nobody knows how long it takes; a function to name its steps."""
    with _bar(enabled) as bar:
        task = bar.add_task(what, total=None)
        yield lambda step: bar.update(task, description=step)


def _bar(enabled: bool, *extra: TextColumn) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        *extra,
        console=console,
        disable=not (enabled and console.is_terminal),
        transient=True,
    )
