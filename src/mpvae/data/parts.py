"""Tables in one or many Parquet files, read some rows at a time.

Memory does not depend on the number of rows: a chunk of one row group is decoded at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from glob import glob, has_magic
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from mpvae.data.cells import label_matrix, tight_labels
from mpvae.data.columns import LabelChoice, check_unique, choose_columns
from mpvae.data.files import one_line
from mpvae.data.parquet import PANDAS_INDEX, opened
from mpvae.data.table import LabelledTable
from mpvae.errors import DataError

IN_MEMORY_VALUES = 10**8
"""Cells of a table above which it is not read as a whole."""
CHUNK_VALUES = 2**20
"""Cells decoded at a time, of all row groups that take turns."""
_LEAST_ROWS = 1024  # of a chunk, or its columns would cost more than its rows


class Chunk(NamedTuple):
    """Consecutive rows of a table."""

    first: int  # number of the first row, counted over all files
    X: pd.DataFrame
    Y: NDArray[np.float32]  # (n, L), NaN where a cell is empty


class _Group(NamedTuple):
    """A row group of a file."""

    file: Path
    number: int
    first: int
    n_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class ParquetParts:
    """The rows of Parquet files that have the same columns, in the order of their names."""

    groups: tuple[_Group, ...]
    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    name: str

    def __len__(self) -> int:
        return sum(group.n_rows for group in self.groups)

    @property
    def files(self) -> list[Path]:
        """The files, in the order of their names."""
        return list(dict.fromkeys(group.file for group in self.groups))

    @property
    def n_groups(self) -> int:
        """Row groups: parts that can be read in any order."""
        return len(self.groups)

    @property
    def n_values(self) -> int:
        """Cells of the columns that are read."""
        return len(self) * (len(self.feature_names) + len(self.label_names))

    def chunks(self, order: Sequence[int] | None = None, at_once: int = 1) -> Iterator[Chunk]:
        """All rows, a chunk at a time.

        Parameters
        ----------
        order
            Numbers of the row groups, in the order they are to be read; default: as written.
        at_once
            Row groups that take turns.
        """
        waiting = iter(range(len(self.groups)) if order is None else order)
        begin = partial(self._of_group, at_once=at_once)
        reading = [begin(self.groups[g]) for g in islice(waiting, at_once)]
        while reading:
            for k, chunks in enumerate(reading):
                chunk = next(chunks, None)
                if chunk is not None:
                    yield chunk
                    continue
                following = next(waiting, None)
                if following is None:
                    del reading[k]
                else:
                    reading[k] = begin(self.groups[following])
                break

    def _of_group(self, group: _Group, at_once: int) -> Iterator[Chunk]:
        names = [*self.feature_names, *self.label_names]
        size = max(1, CHUNK_VALUES // len(names))
        size = max(size // at_once, min(size, _LEAST_ROWS))
        done, D = 0, len(self.feature_names)
        with opened(group.file) as source:
            batches = source.iter_batches(size, row_groups=[group.number], columns=names)
            for batch in batches:
                frame = batch.select(names).to_pandas()
                where = _place(group, done)
                Y = label_matrix(frame.iloc[:, D:], where=where, file=group.file.name)
                yield Chunk(group.first + done, frame.iloc[:, :D], Y.astype(np.float32))
                done += len(frame)


def _place(group: _Group, done: int) -> Callable[[int], str]:
    """Where a row of a chunk is, for messages."""
    return lambda row: f"row {done + row + 1} of row group {group.number + 1}"


def is_parts(path: Path) -> bool:
    """Whether a path means Parquet files: one of them, a folder of them, or a pattern."""
    if path.is_dir():
        return any(path.rglob("*.parquet"))
    return path.suffix == ".parquet"


def are_many(path: Path) -> bool:
    """Whether a path means a folder of Parquet files, or a pattern for them."""
    return is_parts(path) and not path.is_file()


def open_parts(
    path: str | Path,
    *,
    labels: LabelChoice = None,
    exclude: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> ParquetParts:
    """Parquet files, their footers read and compared; no row is read yet.

    Parameters
    ----------
    path
        A file, a folder (all ``.parquet`` files in it), or a pattern such as
        ``"plots/year=*/*.parquet"``.
    labels, exclude, columns
        See `mpvae.data.read_table`.

    Raises
    ------
    DataError
        If there is no file, one is damaged, or one lacks a column or has it in another type;
        the message names it.
    """
    files = _files(Path(path))
    groups: list[_Group] = []
    first_schema: pa.Schema | None = None
    features: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    n = 0
    for file in files:
        schema, sizes = _footer(file)
        if first_schema is None:
            names = [name for name in schema.names if not PANDAS_INDEX.fullmatch(name)]
            check_unique(names, file=file.name)
            chosen = choose_columns(
                names, labels=labels, exclude=exclude, columns=columns, file=file.name
            )
            features = tuple(names[i] for i in chosen.features)
            targets = tuple(names[i] for i in chosen.labels)
            for name in (*features, *targets):
                _kind(schema, name, file)
            first_schema = schema
        else:
            _compare(first_schema, schema, (*features, *targets), files[0], file)
        for number, n_rows in enumerate(sizes):
            if n_rows:
                groups.append(_Group(file, number, n, n_rows))
                n += n_rows
    if n == 0:
        raise DataError(f"{path} has no rows; give at least one row of data")
    return ParquetParts(tuple(groups), features, targets, Path(path).stem)


def read_parts(parts: ParquetParts) -> LabelledTable:
    """All rows of Parquet files in memory."""
    if parts.n_values > IN_MEMORY_VALUES:
        raise DataError(
            f"{parts.name} has {parts.n_values:,} cells, more than {IN_MEMORY_VALUES:,}; let "
            "fit_stream (mpvae fit does) read some rows at a time"
        )
    chunks = list(parts.chunks())
    Y = np.concatenate([chunk.Y for chunk in chunks]).astype(np.float64)
    return LabelledTable(
        X=pd.concat([chunk.X for chunk in chunks], ignore_index=True),
        Y=tight_labels(Y) if parts.label_names else None,
        feature_names=parts.feature_names,
        label_names=parts.label_names,
        name=parts.name,
    )


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(path.rglob("*.parquet"))
    elif has_magic(str(path)):
        found = sorted(map(Path, glob(str(path), recursive=True)))
    else:
        found = [path] if path.is_file() else []
    if not found:
        raise DataError(f"{path}: no Parquet file is there; check the path")
    return found


def _footer(file: Path) -> tuple[pa.Schema, list[int]]:
    """Columns of a file, and the number of rows of each row group."""
    with opened(file) as source:
        metadata = source.metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        return source.schema_arrow, sizes


def _kind(schema: pa.Schema, name: str, file: Path) -> str:
    """What a column holds: numbers or text."""
    kind = schema.field(name).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_number = (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )
    if is_number:
        return "numbers"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    raise DataError(
        f"{file.name}: column {one_line(name)} holds {one_line(kind)}; give numbers or text, "
        "or exclude the column"
    )


def _compare(
    first: pa.Schema, schema: pa.Schema, names: Sequence[str], first_file: Path, file: Path
) -> None:
    """Refuse a file that lacks a column of the first, or has it in another type."""
    there = set(schema.names)
    for name in names:
        if name not in there:
            raise DataError(
                f"{file.name} lacks column {one_line(name)}, which {first_file.name} has; add "
                "it, or take the file away"
            )
        kinds = [_kind(s, name, f) for s, f in ((first, first_file), (schema, file))]
        if kinds[0] != kinds[1]:
            raise DataError(
                f"{file.name}: column {one_line(name)} holds {kinds[1]}, in {first_file.name} "
                f"{kinds[0]}; write one type"
            )
