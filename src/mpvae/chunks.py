"""Tables that come in chunks from the caller's own code, or from Parquet files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mpvae.data.columns import LabelChoice
from mpvae.data.parts import Chunk, is_parts, open_parts
from mpvae.errors import DataError
from mpvae.labels import as_pandas, read_labels
from mpvae.streaming import Table


def as_table(source: Any, *, labels: LabelChoice, exclude: Sequence[str]) -> Table:
    """Table from a path to Parquet files, or from a function that returns chunks."""
    if isinstance(source, str | Path):
        if not is_parts(Path(source)):
            raise DataError(
                f"{source} is not a Parquet file, a folder of such files, or a pattern for "
                "them; give one, or a function that returns chunks"
            )
        return open_parts(source, labels=labels, exclude=exclude)
    if not callable(source):
        raise DataError(
            f"source must be a path to Parquet files, or a function that returns an iterator "
            f"over chunks (X, y) whenever it is called, got {type(source).__name__}"
        )
    if labels is not None or len(exclude):
        raise DataError("labels and exclude choose columns of Parquet files; leave them out")
    first = next(iter(_frames(source)), None)
    if first is None:
        raise DataError("source returned no chunk; give at least one row of data")
    return CallersChunks(source, tuple(first[0].columns), tuple(first[1].columns), first.named)


@dataclass(frozen=True, slots=True, eq=False)
class CallersChunks:
    """Chunks as the caller's function returns them, always in the same order."""

    make: Callable[[], Iterable[tuple[Any, Any]]]
    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    named: bool  # whether features have names of their own

    @property
    def n_groups(self) -> int:
        """One: there is no other order."""
        return 1

    def chunks(self, order: Sequence[int] | None = None, at_once: int = 1) -> Iterator[Chunk]:
        """All rows, a chunk at a time."""
        del order, at_once
        n = 0
        for X, y, _ in _frames(self.make):
            for names, wanted, what in (
                (X.columns, self.feature_names, "X"),
                (y.columns, self.label_names, "y"),
            ):
                if tuple(names) != wanted:
                    raise DataError(
                        f"{what} of the chunk after row {n} has other columns than that of the "
                        "first; give the same in every chunk"
                    )
            if len(X) != len(y):
                raise DataError(
                    f"the chunk after row {n} has {len(X)} rows of X but {len(y)} of y"
                )
            Y = read_labels(y, allow_missing=True).Y
            yield Chunk(n, X, np.asarray(Y, np.float32))
            n += len(X)


class _Frames(NamedTuple):
    X: pd.DataFrame
    y: pd.DataFrame
    named: bool


def _frames(make: Callable[[], Iterable[tuple[Any, Any]]]) -> Iterator[_Frames]:
    """Chunks that have rows, as frames; columns without names are numbered."""
    found = make()
    if not isinstance(found, Iterable):
        raise DataError(
            f"source returned {type(found).__name__}; return an iterator over chunks (X, y)"
        )
    for chunk in found:
        if not isinstance(chunk, tuple | list) or len(chunk) != 2:
            raise DataError(
                f"source gave {type(chunk).__name__}; give chunks of two tables, (X, y)"
            )
        X, y = _frame(chunk[0], ""), _frame(chunk[1], "label_")
        if len(X) or len(y):
            yield _Frames(X, y, isinstance(as_pandas(chunk[0]), pd.DataFrame))


def _frame(table: Any, prefix: str) -> pd.DataFrame:
    table = as_pandas(table)
    if not isinstance(table, pd.DataFrame):
        array = np.asarray(table.toarray() if hasattr(table, "toarray") else table)
        array = array[:, None] if array.ndim == 1 else array
        table = pd.DataFrame(array, columns=[f"{prefix}{i}" for i in range(array.shape[1])])
    named: pd.DataFrame = table.rename(columns=str)
    return named
