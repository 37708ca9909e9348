"""Kernels between rows, some rows at a time: exp(-gamma d).

Between dense rows d is the sum of absolute differences (the kernel of Laplace): on tables, the
columns of which each mean something, it measured better than that of squares. Between sparse
rows, as of texts, it is the squared Euclidean distance (the kernel of Gauss).
"""

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from mpvae.features import Matrix, dense

_CELLS = 2**24  # kernel values at a time: bounds memory
_ROUNDING = 1e-12  # of a squared distance, as a share of the squared lengths


def kernel(A: Matrix, B: Matrix, gamma: float) -> NDArray[np.float64]:
    """exp(-gamma d(a, b)) for all rows a of A and b of B, (a, b)."""
    return np.exp(-gamma * distances(A, B))


def kernel_pieces(
    X: Matrix, landmarks: Matrix, gamma: float
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Some rows at a time, and their kernel values (rows, m)."""
    step = max(1, _CELLS // landmarks.shape[0])
    for start in range(0, X.shape[0], step):
        piece = slice(start, min(X.shape[0], start + step))
        yield piece, kernel(X[piece], landmarks, gamma)


def distances(A: Matrix, B: Matrix) -> NDArray[np.float64]:
    """Between all rows of A and of B, (a, b); B tells which: dense or sparse rows."""
    if not sp.issparse(B):
        return np.asarray(cdist(dense(A).astype(float), B.astype(float), "cityblock"))
    A, B = A.astype(np.float64), B.astype(np.float64)
    largest = _square_lengths(A)[:, None] + _square_lengths(B)
    squares = largest - 2 * dense(A @ B.T)
    return np.where(squares > _ROUNDING * largest, squares, 0.0)


def _square_lengths(A: Matrix) -> NDArray[np.float64]:
    return np.asarray((A * A).sum(axis=1))
