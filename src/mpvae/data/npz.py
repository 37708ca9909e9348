"""Data sets as one ``.npz`` file: arrays of features, labels, names and split."""

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from mpvae.data.cells import as_float32
from mpvae.data.files import DAMAGE, MAX_COLUMNS, one_line
from mpvae.data.npy import read_array
from mpvae.data.sparse import checked_csr
from mpvae.data.table import LabelledTable
from mpvae.errors import DataError
from mpvae.opening import open_regular

MAX_NPZ_BYTES = 8 * 1024**3
"""Largest uncompressed size of the arrays read from one file."""

MAX_NPZ_UNPACKED = 1100
"""Times its own size that a file may unpack to: deflate, as NumPy uses it, ends at 1032."""

_CSR_KEYS = ("data", "indices", "indptr", "shape")
_KEYS = ("X", *_CSR_KEYS, "Y", "feature_names", "label_names")
_PARTS = ("train", "val", "test")
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}


def read_npz(path: Path) -> LabelledTable:
    """Table in an ``.npz`` file.

    The file holds ``X`` (n, D), or the CSR parts ``data``, ``indices``, ``indptr`` and
    ``shape``; ``Y`` (n, L) of 0, 1 and NaN; and, where known, ``feature_names``,
    ``label_names``, ``train_idx``, ``val_idx`` and ``test_idx``. Other arrays are ignored.
    Nameless features are called x1, x2, ... and nameless labels y1, y2, ...
    """
    file, arrays = path.name, _load_arrays(path)
    X = _features(arrays, file)
    feature_names = _names(arrays, "feature_names", X.shape[1], "x", file)
    Y = _labels(arrays, file)
    label_names = () if Y is None else _names(arrays, "label_names", Y.shape[1], "y", file)
    if isinstance(X, np.ndarray):
        X = as_float32(X, names=feature_names, file=file)
    else:
        X.data = as_float32(X.data[:, None], names=("data",), file=file)[:, 0]
    return LabelledTable(
        X=X,
        Y=Y,
        feature_names=feature_names,
        label_names=label_names,
        splits={part: arrays[f"{part}_idx"] for part in _PARTS if f"{part}_idx" in arrays},
        name=path.stem,
    )


def numbered_names(prefix: str, n_columns: int) -> tuple[str, ...]:
    """Names for nameless columns: prefix1, prefix2, ..."""
    return tuple(f"{prefix}{i}" for i in range(1, n_columns + 1))


def check_size(matrix: NDArray[Any], role: str, file: str) -> None:
    """Refuse a matrix without rows or columns, or with too many columns to name."""
    if 0 in matrix.shape or matrix.shape[1] > MAX_COLUMNS:
        raise DataError(
            f"{file}: {role} has shape {matrix.shape}; give at least one row and 1 to "
            f"{MAX_COLUMNS:,} columns"
        )


def labels_of_numbers(
    Y: NDArray[Any],
) -> NDArray[np.int32] | NDArray[np.float64]:
    """Labels as int32 where all are 0 or 1, else with room for NaN; other values stay."""
    if ((Y == 0) | (Y == 1)).all():
        return Y.astype(np.int32)
    # long doubles may become infinite, which is refused, too; a NaN may be of those that signal
    with np.errstate(over="ignore", invalid="ignore"):
        return Y.astype(np.float64) if Y.dtype.kind == "f" else Y


def _load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    file = path.name
    wanted = {*_KEYS, *(f"{part}_idx" for part in _PARTS)}
    try:
        with open_regular(path) as packed, zipfile.ZipFile(packed) as archive:
            members = {
                name.removesuffix(".npy"): archive.getinfo(name)
                for name in archive.namelist()
                if name.removesuffix(".npy") in wanted
            }
            _check_members(members, os.fstat(packed.fileno()).st_size, file)
            arrays = {}
            for key, member in members.items():
                with archive.open(member) as stream:
                    arrays[key] = read_array(
                        stream, member.file_size, file=f"{file}, array {key},"
                    )
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path") from None
    except DAMAGE as error:
        raise DataError(
            f"{file} is not a readable .npz file: {one_line(error)}; write it anew with "
            "numpy.savez"
        ) from error
    return arrays


def _check_members(members: dict[str, zipfile.ZipInfo], packed: int, file: str) -> None:
    """Compare sizes before anything is read: a few bytes can unpack to terabytes."""
    size = sum(member.file_size for member in members.values())
    if size > MAX_NPZ_BYTES:
        raise DataError(
            f"{file} unpacks to {size:,} bytes, more than {MAX_NPZ_BYTES:,}; split the file"
        )
    methods = {member.compress_type for member in members.values()}
    if size > MAX_NPZ_UNPACKED * packed or not methods <= _METHODS:
        raise DataError(
            f"{file} has {packed:,} bytes and says that they unpack to {size:,}, in a way that "
            "NumPy does not write; write it anew with numpy.savez"
        )


def _features(arrays: dict[str, NDArray[Any]], file: str) -> NDArray[Any] | csr_array:
    if "X" in arrays:
        X = arrays["X"]
        if X.ndim != 2 or X.dtype.kind not in "biuf":
            raise DataError(
                f"{file}: X must be a table of numbers, got {X.dtype} of shape {X.shape}"
            )
        check_size(X, "X", file)
        return X
    lacking = [key for key in _CSR_KEYS if key not in arrays]
    if lacking:
        if len(lacking) < len(_CSR_KEYS):
            raise DataError(f"{file} lacks {', '.join(lacking)} of a sparse X; write it anew")
        found = "labels only" if "Y" in arrays else "no arrays named X and Y"
        raise DataError(
            f"{file} has {found}, no features; add an array X with a row per sample"
        )
    shape, data = arrays["shape"], arrays["data"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or data.dtype.kind not in "biuf":
        raise DataError(
            f"{file}: shape must be two integers and data numbers, got {one_line(shape)} and "
            f"{data.dtype}"
        )
    return checked_csr(
        data,
        arrays["indices"],
        arrays["indptr"],
        (int(shape[0]), int(shape[1])),
        file=file,
    )


def _labels(
    arrays: dict[str, NDArray[Any]], file: str
) -> NDArray[np.int32] | NDArray[np.float64] | None:
    if "Y" not in arrays:
        return None
    Y = arrays["Y"]
    if Y.ndim != 2 or Y.dtype.kind not in "biuf":
        raise DataError(
            f"{file}: Y must be a table of 0 and 1, got {Y.dtype} of shape {Y.shape}"
        )
    check_size(Y, "Y", file)
    return labels_of_numbers(Y)


def _names(
    arrays: dict[str, NDArray[Any]], key: str, n_columns: int, prefix: str, file: str
) -> tuple[str, ...]:
    if key not in arrays:
        return numbered_names(prefix, n_columns)
    names = arrays[key]
    if names.ndim != 1 or names.dtype.kind != "U":
        raise DataError(f"{file}: {key} must be a list of text, got {names.dtype}")
    if len(names) != n_columns:  # empty texts take no bytes: there may be any number of them
        raise DataError(
            f"{file}: {n_columns} columns but {len(names)} {key}; give one name per column"
        )
    letters = np.frombuffer(names.tobytes(), np.dtype("u4").newbyteorder(names.dtype.byteorder))
    if (letters > sys.maxunicode).any():
        raise DataError(f"{file}: {key} holds what is not text; write the file anew")
    return tuple(str(name) for name in names)
