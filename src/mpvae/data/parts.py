"""Tables in one or many Parquet files, read some rows at a time.

Memory does not depend on the number of rows: a chunk of one row group is decoded at a time.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    group: int = 0  # number of the first row of its row group


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
    text: frozenset[str]  # columns that hold text

    @property
    def named(self) -> bool:
        """Columns have names."""
        return True

    def __len__(self) -> int:
        return sum(group.n_rows for group in self.groups)

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
            batches = source.parquet.iter_batches(
                size, row_groups=[group.number], columns=names
            )
            for batch in batches:
                rows = pa.Table.from_batches([batch]).select(names)
                frame = source.plain(rows, self.text).to_pandas(ignore_metadata=True)
                where = _place(group, done)
                Y = label_matrix(frame.iloc[:, D:], where=where, file=str(group.file))
                X, first = frame.iloc[:, :D], group.first + done
                yield Chunk(first, X, Y.astype(np.float32), group.first)
                done += len(frame)


def _place(group: _Group, done: int) -> Callable[[int], str]:
    """Where a row of a chunk is, for messages."""
    return lambda row: f"row {done + row + 1} of row group {group.number + 1}"


def is_parts(path: Path) -> bool:
    """Whether a path means Parquet files: one of them, a folder of them, or a pattern."""
    if path.is_dir() or has_magic(str(path)):
        found = _found(path)
        return bool(found) and all(file.suffix == ".parquet" for file in found)
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
    keep: Sequence[str] = (),
) -> ParquetParts:
    """Parquet files, their footers read and compared; no row is read yet.

    Parameters
    ----------
    path
        A file, a folder (all ``.parquet`` files in it), or a pattern such as
        ``"plots/*.parquet"``. Names that begin with a dot or an underscore are left out, as
        Spark and Arrow do.
    labels, exclude, columns
        See `mpvae.data.read_table`.
    keep
        Other columns to read, of any type, behind the features.

    Raises
    ------
    DataError
        If there is no file, one is damaged, or one lacks a column or has it in another type;
        the message names it.
    """
    files = _files(Path(path))
    groups: list[_Group] = []
    names = column_names(files[0])
    first = str(files[0])
    chosen = choose_columns(names, labels=labels, exclude=exclude, columns=columns, file=first)
    features = tuple(names[i] for i in chosen.features)
    targets = tuple(names[i] for i in chosen.labels)
    kinds: dict[str, tuple[str, Path]] = {}
    n = 0
    for file in files:
        schema, sizes = _footer(file)
        _compare(kinds, schema, (*features, *targets), keep, file, files[0])
        for number, n_rows in enumerate(sizes):
            if n_rows:
                groups.append(_Group(file, number, n, n_rows))
                n += n_rows
    if n == 0:
        raise DataError(f"{path} has no rows; give at least one row of data")
    text = frozenset(name for name, (kind, _) in kinds.items() if kind == "text")
    beside = tuple(name for name in keep if name not in features)
    return ParquetParts(tuple(groups), (*features, *beside), targets, Path(path).stem, text)


def column_names(file: Path) -> list[str]:
    """Columns of a file, or of the first of several."""
    file = _files(file)[0]
    names = [name for name in _footer(file)[0].names if not PANDAS_INDEX.fullmatch(name)]
    check_unique(names, file=str(file))
    return names


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
    found = _found(path)
    if not found:
        raise DataError(f"{path}: no Parquet file is there; check the path")
    other = next((file for file in found if file.suffix != ".parquet"), None)
    if other is not None:
        raise DataError(
            f"{other} is not a .parquet file; give such files, or a pattern for them"
        )
    folders = [part for file in found for part in file.relative_to(_root(path)).parts[:-1]]
    keys = sorted({part.partition("=")[0] for part in folders if "=" in part})
    if keys:
        warnings.warn(
            f"folders of {path} are named {keys[0]}=...; what such names say is not read: "
            "write it into a column of the files if it is a feature",
            stacklevel=2,
        )
    return found


def _found(path: Path) -> list[Path]:
    """Files that a path means, in the order of their names, but for hidden ones."""
    if path.is_file():
        return [path]
    every: Iterable[Path] = path.rglob("*.parquet") if path.is_dir() else ()
    if not path.is_dir() and has_magic(str(path)):
        every = map(Path, glob(str(path), recursive=True))
    found = sorted(
        file
        for file in every
        if not any(part[0] in "._" for part in file.relative_to(_root(path)).parts)
    )
    # A folder that is named like a file may hold some; a link to nothing may be half the rows.
    lost = next((file for file in found if not file.exists()), None)
    if lost is not None:
        raise DataError(f"{lost} leads to no file; is a disk missing? mend or delete the link")
    return [file for file in found if not file.is_dir()]


def _root(path: Path) -> Path:
    """What is above all files that a path means: the folder, or what stands before a star."""
    if path.is_dir():
        return path
    plain = [part for part in path.parts[:-1] if not has_magic(part)]
    return Path(*plain) if plain == list(path.parts[: len(plain)]) else Path(path.anchor)


def _footer(file: Path) -> tuple[pa.Schema, list[int]]:
    """Columns of a file, and the number of rows of each row group."""
    with opened(file) as source:
        return source.parquet.schema_arrow, source.known.group_sizes


def _kind(schema: pa.Schema, name: str, file: Path, *, any_type: bool) -> str:
    """What a column holds: numbers, text, or nothing yet."""
    kind = schema.field(name).type
    if pa.types.is_null(kind):
        return "nothing"
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_number = (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    )
    if is_number:
        return "numbers"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if any_type:
        return str(kind)
    raise DataError(
        f"{file}: column {one_line(name)} holds {one_line(kind)}; give numbers or text, "
        "or exclude the column"
    )


def _compare(
    kinds: dict[str, tuple[str, Path]],
    schema: pa.Schema,
    names: Sequence[str],
    keep: Sequence[str],
    file: Path,
    first: Path,
) -> None:
    """Refuse a file that lacks a column, or has it in another type than one before."""
    there = set(schema.names)
    for name in dict.fromkeys((*names, *keep)):
        if name not in there:
            has = f", which {first} has" if file != first else ""
            raise DataError(
                f"{file} lacks column {one_line(name)}{has}; add it, or take the file away"
            )
        kind = _kind(schema, name, file, any_type=name not in names)
        known, where = kinds.setdefault(name, (kind, file))
        if known == "nothing":
            kinds[name] = (kind, file)
        elif kind not in ("nothing", known):
            raise DataError(
                f"{file}: column {one_line(name)} holds {kind}, in {where} {known}; write one "
                "type"
            )
