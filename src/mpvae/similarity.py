"""Kernels between rows, some rows at a time.

Two measure how far rows are apart: the kernel of Laplace by the sum of absolute differences,
the kernel of Gauss by the sum of squares. On tables, the columns of which each mean something,
the first or the mean of both measured better than the second alone. The first has no fast
form for sparse rows, as of texts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from mpvae import compiled, kernel_loops
from mpvae.features import Matrix, dense

_CELLS = 2**24  # kernel values at a time: bounds memory
ROUNDING = 1e-12
"""Of a squared distance, as a share of the squared lengths: what is less counts as 0."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """``exp(-laplace |a - b|)``, ``exp(-gauss |a - b|^2)``, or the mean of both.

    A rate of 0 leaves that one out.
    """

    laplace: float = 0.0
    gauss: float = 0.0

    def between(self, A: Matrix, B: Matrix) -> NDArray[np.float64]:
        """Values for all rows of A and of B, (a, b)."""
        parts = []
        if self.laplace:
            parts.append(np.exp(-self.laplace * absolute_distances(A, B)))
        if self.gauss:
            parts.append(np.exp(-self.gauss * squared_distances(A, B)))
        return parts[0] if len(parts) == 1 else (parts[0] + parts[1]) / 2

    def pieces(
        self, X: Matrix, landmarks: Matrix
    ) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Some rows at a time, and their values (rows, m)."""
        step = max(1, _CELLS // landmarks.shape[0])
        for start in range(0, X.shape[0], step):
            piece = slice(start, min(X.shape[0], start + step))
            yield piece, self.between(X[piece], landmarks)


def absolute_distances(A: Matrix, B: Matrix) -> NDArray[np.float64]:
    """Sums of absolute differences between all rows of A and of B, (a, b)."""
    A, B = (np.ascontiguousarray(dense(side), np.float64) for side in (A, B))
    if not compiled.available:
        return np.asarray(cdist(A, B, "cityblock"))
    found = np.empty((len(A), len(B)))
    _absolute_loop()(0, len(A), A, B, found)
    return found


def squared_distances(A: Matrix, B: Matrix) -> NDArray[np.float64]:
    """Sums of squared differences between all rows of A and of B, (a, b)."""
    if not sp.issparse(B):
        A = dense(A)
    A, B = A.astype(np.float64), B.astype(np.float64)
    largest = _square_lengths(A)[:, None] + _square_lengths(B)
    squares = largest - 2 * dense(A @ B.T)
    return np.where(squares > ROUNDING * largest, squares, 0.0)


def _square_lengths(A: Matrix) -> NDArray[np.float64]:
    return np.asarray((A * A).sum(axis=1))


@cache
def _absolute_loop() -> Callable[..., None]:
    """Machine code of the absolute distances: four times as fast as SciPy's, measured."""
    from numba import types as nt

    table = nt.Array(nt.float64, 2, "C", readonly=True)
    return compiled.compile_loop(kernel_loops.absolute_loop, table, table, nt.float64[:, ::1])
