"""Sparse matrices from untrusted parts, and sparse labels as the table wants them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from mpvae.data.cells import tight_labels
from mpvae.data.files import MAX_COLUMNS
from mpvae.errors import DataError

MAX_DENSE_LABELS = 2**25
"""Number of label cells up to which labels are stored dense."""


def checked_csr(
    data: NDArray[Any],
    indices: NDArray[np.generic],
    indptr: NDArray[np.generic],
    shape: tuple[int, int],
    *,
    file: str,
) -> csr_array:
    """Sparse matrix with its parts checked against each other before anything is built.

    Raises
    ------
    DataError
        If sizes disagree, an index lies outside the shape, or an entry occurs twice.
    """
    n_rows, n_columns = shape
    if n_rows < 0 or not 0 <= n_columns <= MAX_COLUMNS:
        raise DataError(
            f"{file}: shape {n_rows} x {n_columns} is impossible or beyond {MAX_COLUMNS:,} "
            "columns; write the file anew"
        )
    if indices.dtype.kind not in "iu" or indptr.dtype.kind not in "iu":
        raise DataError(f"{file}: indices and indptr must be integers; write the file anew")
    if not data.ndim == indices.ndim == indptr.ndim == 1 or len(data) != len(indices):
        raise DataError(
            f"{file}: {data.shape} values but {indices.shape} column numbers; write the "
            "file anew"
        )
    pointers = indptr.astype(np.int64)
    if (
        len(pointers) != n_rows + 1
        or pointers[0] != 0
        or pointers[-1] != len(data)
        or (np.diff(pointers) < 0).any()
    ):
        raise DataError(
            f"{file}: row pointers do not fit {n_rows} rows of {len(data)} values in all; "
            "write the file anew"
        )
    columns = indices.astype(np.int64)
    if len(columns) and (columns.min() < 0 or columns.max() >= n_columns):
        raise DataError(
            f"{file}: a column number lies outside 0 to {n_columns - 1}; write the file anew"
        )
    matrix = csr_array((data, columns, pointers), shape=shape)
    matrix.sort_indices()
    if not matrix.has_canonical_format:
        raise DataError(f"{file}: an entry occurs twice in one row; write the file anew")
    return matrix


def labels_from_csr(
    Y: csr_array, *, file: str
) -> NDArray[np.int32] | NDArray[np.float64] | csr_array:
    """Labels (n, L), dense where that takes at most ``MAX_DENSE_LABELS`` cells, else CSR."""
    if Y.shape[0] * Y.shape[1] <= MAX_DENSE_LABELS:
        return tight_labels(Y.toarray().astype(np.float64))
    if np.isnan(Y.data).any():
        raise DataError(
            f"{file}: {Y.shape[0]} x {Y.shape[1]} labels are too many to hold with missing "
            "ones; choose fewer labels, or fill in the missing ones"
        )
    return Y.astype(np.int32)
