"""NumPy arrays from untrusted files: the header is checked before memory is taken."""

import math
import os
import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from mpvae.data.files import DAMAGE, one_line
from mpvae.errors import DataError
from mpvae.opening import open_regular

_MAX_HEADER = 1024  # characters: those of plain arrays have about a hundred
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4}  # of the number before the header, by version


def load_npy(path: Path) -> NDArray[Any]:
    """Array in an ``.npy`` file of numbers.

    Raises
    ------
    DataError
        If the file is absent or damaged, or holds Python objects.
    """
    try:
        with open_regular(path) as stream:
            return read_array(stream, os.fstat(stream.fileno()).st_size, file=path.name)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path") from None
    except OSError as error:
        raise DataError(
            f"{path.name} cannot be read: {error.strerror or one_line(error)}; check that it "
            "is a file you may read"
        ) from error


def read_array(stream: IO[bytes], size: int, *, file: str) -> NDArray[Any]:
    """Array in a stream of ``size`` bytes in the ``.npy`` format, never by unpickling."""
    try:
        shape, dtype = _read_header(stream)
        expected = stream.tell() + math.prod(shape) * dtype.itemsize
        if dtype.kind not in "biufUS":
            raise DataError(
                f"{file} holds {one_line(dtype)} values; store plain numbers or text "
                "(objects would need pickle, which is unsafe)"
            )
        if expected != size or min(shape, default=0) < 0:
            raise DataError(
                f"{file} declares shape {one_line(shape)} ({one_line(f'{expected:,}')} bytes) "
                f"but holds {size:,} bytes; the file is damaged, write it anew"
            )
        stream.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in _read_header
            array: NDArray[Any] = npy_format.read_array(
                stream, allow_pickle=False, max_header_size=_MAX_HEADER
            )
    except DataError:
        raise
    except DAMAGE as error:
        raise DataError(
            f"{file} is not a readable NumPy array: {one_line(error)}; write it anew with "
            "numpy.save or numpy.savez"
        ) from error
    return array


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy_format.read_magic(stream)
    if version not in _LENGTH_BYTES:
        raise ValueError(f"format version {version} is not for plain arrays")
    start = stream.tell()
    length = int.from_bytes(stream.read(_LENGTH_BYTES[version]), "little")
    if length > _MAX_HEADER:  # NumPy would take so much memory first
        raise ValueError(f"its header has {length:,} bytes, more than {_MAX_HEADER:,}")
    header = stream.read(length)
    if sum(map(header.count, (b"(", b"[", b"{"))) > 4:  # NumPy gives it to Python's parser
        raise ValueError("its header is not that of a plain array")
    stream.seek(start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # files of Python 2 make NumPy warn, and read well
        if version == (1, 0):
            shape, _, dtype = npy_format.read_array_header_1_0(stream, _MAX_HEADER)
        else:
            shape, _, dtype = npy_format.read_array_header_2_0(stream, _MAX_HEADER)
    return shape, dtype
