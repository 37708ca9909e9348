"""Opening files with bounds, and saying what is wrong with them in one line."""

import bz2
import gzip
import io
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, BinaryIO, cast

from mpvae.errors import DataError, printable
from mpvae.opening import open_regular

MAX_TEXT_BYTES = 2 * 1024**3
"""Largest text file read, after decompression; beyond it, a binary format is better."""

MAX_UNPACKED = 100
"""Times its own size that a compressed text file may unpack to: tables stay far below it."""

ALWAYS_UNPACKED = 16 * 1024**2
"""Bytes that a compressed text file may unpack to, however small it is."""

MAX_COLUMNS = 3_000_000
"""Largest number of features or labels a file may declare or imply."""

DAMAGE = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    SyntaxError,
    OverflowError,
    RecursionError,
    RuntimeError,
    EOFError,
    OSError,
    MemoryError,
    struct.error,
    tokenize.TokenError,
    zlib.error,
    zipfile.BadZipFile,
)
"""What NumPy, zipfile and pyarrow raise on files that are not what they should be."""

_PIECE = 2**20


def read_bytes(path: Path, *, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Content of a file, decompressed when its name ends in ``.gz`` or ``.bz2``.

    Raises
    ------
    DataError
        If the file cannot be opened, its compression is damaged, or more than ``limit``
        bytes come out of it, or far more than went in.
    """
    try:
        with open_regular(path) as packed, _unpacking(packed, path) as stream:
            most = limit
            if stream is not packed:
                size = os.fstat(packed.fileno()).st_size
                most = min(limit, max(ALWAYS_UNPACKED, MAX_UNPACKED * size))
            content = _read_at_most(stream, most + 1)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise DataError(
            f"{path.name} cannot be read: {reason}; check that the file is complete and "
            "may be read"
        ) from error
    if len(content) > most < limit:
        raise DataError(
            f"{path.name} unpacks to more than {MAX_UNPACKED} times its size ({most:,} bytes); "
            "if it should, unpack it first"
        )
    if len(content) > limit:
        raise DataError(
            f"{path.name} holds more than {limit:,} bytes; write it as .parquet or .npz instead"
        )
    return content


def read_text(path: Path) -> str:
    """Content of a UTF-8 text file (a byte order mark is dropped).

    Raises
    ------
    DataError
        If the file cannot be read, is empty, or is not UTF-8 text.
    """
    content = read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path.name} line {line} is not UTF-8 text (byte 0x{content[error.start]:02x}); "
            "save the file as UTF-8 text"
        ) from None
    if not text or text.isspace():
        raise DataError(f"{path.name} is empty; give a file with a header and rows")
    nul = text.find("\0")
    if nul >= 0:
        line = text.count("\n", 0, nul) + 1
        raise DataError(
            f"{path.name} line {line} holds a NUL character: this is not a text file; "
            "save it as UTF-8 text, or name it by its true format"
        )
    return text


def bare_name(path: Path) -> tuple[str, str]:
    """Stem and lower-case suffix of a file name, seen without ``.gz`` or ``.bz2``."""
    name = path.name
    if name.lower().endswith((".gz", ".bz2")):
        name = name.rpartition(".")[0]
    stem, suffix = os.path.splitext(name)
    return stem, suffix.lower()


def one_line(value: object, limit: int = 80) -> str:
    """Text of a value on one line, shortened to ``limit`` characters.

    What a terminal would obey rather than show becomes a replacement character.
    """
    text = " ".join(str(value).split())
    return printable(text if len(text) <= limit else text[: limit - 3] + "...")


def listing(names: Iterable[str], limit: int = 6) -> str:
    """Names joined by commas, the first ``limit`` of them."""
    names = list(names)
    shown = ", ".join(one_line(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown}, ... ({len(names)} in all)"


def _read_at_most(stream: IO[bytes], size: int) -> bytes:
    # in pieces: read(size) would set aside the whole size at once
    content = io.BytesIO()
    while piece := stream.read(min(_PIECE, size - content.tell())):
        content.write(piece)
    return content.getvalue()


def _unpacking(packed: BinaryIO, path: Path) -> IO[bytes]:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=packed))
    if suffix == ".bz2":
        return bz2.BZ2File(packed)
    return packed
