"""What a Parquet file says of its pages, checked before Arrow opens it.

Arrow believes the sizes that the footer and the headers of pages tell: a few bytes can make it
ask for terabytes, or unpack to gigabytes; and some footers end the process when Arrow is asked
about them. So it opens a file only when all that the file says fits together.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from mpvae.data.thrift import BINARY, I32, I64, LIST, STRUCT, Struct, read_struct
from mpvae.errors import DataError
from mpvae.opening import open_regular

MAX_PARQUET_BYTES = 8 * 1024**3
"""Largest uncompressed size read."""

MAX_EXPANSION = 100
"""Bytes, and cells, that each byte of a file may unpack to; real tables stay far below."""

ALWAYS_BYTES, ALWAYS_CELLS = 2**27, 2**24
"""Bytes and cells that a file may unpack to, however small it is."""

_MAGIC = b"PAR1"
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # kinds of pages
_TEXT, _FIXED = 6, 7  # physical types: byte arrays of any length, of a fixed one
_DELTA = (5, 6, 7)  # encodings whose counts stand inside the page
_HEADER_BYTES, _MOST_HEADER_BYTES = 512, 2**21


class Checked(NamedTuple):
    """What is known of a file before it is opened."""

    group_sizes: list[int]
    """Rows of each row group."""
    room: int
    """Bytes that it may unpack to."""
    repeating: list[str]
    """Text columns whose values, written out for every row, may take more than that."""


def checked(path: Path) -> Checked:
    """Refuse a file whose counts and sizes disagree, or that unpacks to far more than it has.

    A file is looked at once, as long as it does not change.

    Raises
    ------
    OSError
        If it cannot be read.
    DataError
        If something is wrong with it.
    """
    with open_regular(path) as stream:
        found = os.fstat(stream.fileno())
    return _checked(path, found.st_size, found.st_mtime_ns, found.st_ino)


@lru_cache(maxsize=4096)
def _checked(path: Path, size: int, changed: int, inode: int) -> Checked:
    with open_regular(path) as stream:
        try:
            return _check(stream, size, str(path))
        except (IndexError, ValueError, KeyError) as error:
            if isinstance(error, DataError):
                raise
            fact = str(error) if type(error) is ValueError else "its footer is not complete"
            raise _damaged(fact, str(path)) from None


def written_out(column: pa.ChunkedArray, room: int, name: str, file: str) -> pa.ChunkedArray:
    """Text of a column that was read as few values and their numbers."""
    size = 0
    for chunk in column.chunks:
        size += pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() or 0
    if size > room:
        raise DataError(
            f"{file}: column {name!r:.80} holds {size:,} bytes of text, too many for a file "
            "of its size; shorten its values"
        )
    return column.cast(column.type.value_type)


def _check(stream: BinaryIO, size: int, file: str) -> Checked:
    footer = _footer(stream, size)
    leaves = list(_leaves(footer[2, LIST]))
    room = min(MAX_PARQUET_BYTES, max(ALWAYS_BYTES, MAX_EXPANSION * size))
    most_cells = max(ALWAYS_CELLS, MAX_EXPANSION * size)
    unpacked, n_cells = 0, 0
    repeating: dict[str, None] = {}  # a set that keeps the order
    group_sizes = [group[3, I64] for group in footer[4, LIST]]
    for n_rows, group in zip(group_sizes, footer[4, LIST], strict=True):
        if n_rows < 0 or len(group[1, LIST]) != len(leaves):
            raise ValueError(f"a part has {n_rows} rows of {len(group[1, LIST])} columns")
        for chunk, leaf in zip(group[1, LIST], leaves, strict=True):
            column = chunk[3, STRUCT]
            n_values = column[5, I64]
            if n_values < 0 or (leaf.is_flat and n_values != n_rows):
                raise ValueError(f"a column has {n_values} values for {n_rows} rows")
            pages = _walk(stream, size, column, leaf, file)
            n_cells += n_values
            unpacked += pages.n_bytes + n_values * leaf.width
            if leaf.is_text and n_values * pages.dictionary > room:
                repeating[leaf.name] = None
            if unpacked > room or n_cells > most_cells:
                raise DataError(
                    f"{file} has {size:,} bytes and unpacks to {unpacked:,} bytes and "
                    f"{n_cells:,} cells or more, too many for a table of its size; write it "
                    "anew, or split it"
                )
    if sum(group_sizes) != footer[3, I64]:
        raise ValueError(f"its parts have {sum(group_sizes)} rows, the whole {footer[3, I64]}")
    return Checked(group_sizes, room, list(repeating))


def _footer(stream: BinaryIO, size: int) -> Struct:
    stream.seek(max(0, size - 8))
    end = stream.read(8)
    length = int.from_bytes(end[:4], "little")
    if size < 12 or end[4:] != _MAGIC or not 0 < length <= size - 12:
        raise ValueError("it does not end as a Parquet file does")
    stream.seek(size - 8 - length)
    return read_struct(stream.read(length))[0]


class _Leaf(NamedTuple):
    """A column as the schema has it."""

    name: str
    is_flat: bool
    """One value for each row."""
    is_text: bool
    width: int
    """Bytes of a value, where all have the same."""


def _leaves(schema: list[Struct]) -> Iterator[_Leaf]:
    """Columns of a schema, which lists a tree depth first."""
    waiting: list[list[int]] = []  # children to come, of each node above; whether it repeats
    for element in schema:
        while waiting and waiting[-1][0] == 0:
            waiting.pop()
        if waiting:
            waiting[-1][0] -= 1
        repeats = bool(waiting and waiting[-1][1]) or element.get((3, I32)) == 2
        if element.get((5, I32), 0) > 0:
            waiting.append([element[5, I32], repeats])
            continue
        kind = element.get((1, I32))
        width = max(0, element.get((2, I32), 0)) if kind == _FIXED else 0
        name = element[4, BINARY].decode()
        yield _Leaf(name, not repeats, kind == _TEXT, width)


@dataclass(slots=True)
class _Pages:
    """Pages of a column chunk."""

    n_bytes: int = 0
    n_values: int = 0
    dictionary: int = 0  # bytes


def _walk(stream: BinaryIO, size: int, column: Struct, leaf: _Leaf, file: str) -> _Pages:
    """Read the headers of a column chunk's pages, one after the other."""
    at = column[9, I64]
    if 0 < column.get((11, I64), 0) < at:
        at = column[11, I64]
    end = at + column[7, I64]
    pages = _Pages()
    if column[5, I64] == 0:  # no page will be read, and Arrow writes offsets of none
        return pages
    if not 4 <= at <= end <= size:
        raise ValueError("a column lies outside of it")
    while at < end:
        page, length = _header(stream, at)
        packed, unpacked = page[3, I32], page[2, I32]
        at += length + packed
        if packed < 0 or unpacked < 0 or at > end:
            raise ValueError("a page lies outside of its column")
        pages.n_bytes += unpacked
        kind = page[1, I32]
        if kind in (_DATA, _DATA_V2):
            inside = page[5 if kind == _DATA else 8, STRUCT]
            pages.n_values += inside[1, I32]
            if inside[1, I32] < 0:
                raise ValueError("a page has fewer than no values")
            if inside[2 if kind == _DATA else 4, I32] in _DELTA:
                raise DataError(
                    f"{file}: column {leaf.name!r:.80} has delta encoding, whose counts cannot "
                    "be checked; write the file with another one"
                )
        elif kind == _DICTIONARY:
            pages.dictionary = max(pages.dictionary, unpacked)
            if not 0 <= page[7, STRUCT][1, I32] <= unpacked:  # each value takes a byte or more
                raise ValueError("a dictionary has more values than bytes")
    if pages.n_values != column[5, I64]:
        raise ValueError(f"pages have {pages.n_values} values, their column {column[5, I64]}")
    return pages


def _header(stream: BinaryIO, at: int) -> tuple[Struct, int]:
    """Header of a page, and its length."""
    length = _HEADER_BYTES
    while True:
        stream.seek(at)
        data = stream.read(length)
        try:
            return read_struct(data)
        except IndexError:
            if len(data) < length or length >= _MOST_HEADER_BYTES:
                raise ValueError("the header of a page does not end") from None
        length *= 16  # values of statistics may be long


def _damaged(fact: str, file: str) -> DataError:
    return DataError(f"{file} cannot be read as Parquet: {fact}; write the file anew")
