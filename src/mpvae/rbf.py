"""Gaussian (RBF) kernels between rows, dense or sparse, some rows at a time."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mpvae.features import Matrix, dense

_CELLS = 2**24  # kernel values at a time: bounds memory


def kernel(A: Matrix, B: Matrix, gamma: float) -> NDArray[np.float64]:
    """exp(-gamma |a - b|^2) for all rows a of A and b of B, (a, b)."""
    return np.exp(-gamma * square_distances(A, B))


def kernel_pieces(
    X: Matrix, landmarks: Matrix, gamma: float
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Some rows at a time, and their kernel values (rows, m)."""
    step = max(1, _CELLS // landmarks.shape[0])
    for start in range(0, X.shape[0], step):
        piece = slice(start, min(X.shape[0], start + step))
        yield piece, kernel(X[piece], landmarks, gamma)


def square_distances(A: Matrix, B: Matrix) -> NDArray[np.float64]:
    """Between all rows of A and of B, dense or sparse; (a, b)."""
    A, B = A.astype(np.float64), B.astype(np.float64)
    squares = square_lengths(A)[:, None] + square_lengths(B) - 2 * dense(A @ B.T)
    return np.asarray(np.maximum(squares, 0))


def square_lengths(A: Matrix) -> NDArray[np.float64]:
    """Of all rows, (a,)."""
    return np.asarray((A * A).sum(axis=1))
