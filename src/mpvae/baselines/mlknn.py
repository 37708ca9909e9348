r"""ML-kNN: Bayesian inference from the labels of the nearest neighbours.

M.-L. Zhang and Z.-H. Zhou, "ML-KNN: A lazy learning approach to multi-label learning",
Pattern Recognition 40 (2007) 2038-2048. For a row with :math:`c_l` of its ``k`` nearest
training rows bearing label ``l``,

.. math:: P(y_l = 1 \mid c_l) =
          \frac{P(H_1^l) P(c_l \mid H_1^l)}{\sum_{b = 0, 1} P(H_b^l) P(c_l \mid H_b^l)},

where the prior :math:`P(H_1^l)` and the two likelihoods are smoothed frequencies among the
training rows, each with its own nearest neighbours, itself left out. Labels are independent of
each other.

Shape letters: ``n`` training rows, ``D`` features, ``L`` labels.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from mpvae.baselines.base import Baseline, Scaling, require, require_rows
from mpvae.errors import DataError
from mpvae.features import Matrix

_CELLS = 2**24  # label counts held at once: bounds memory
_ROWS = 64  # rows whose distances from all training rows are held at once
_BLOCK = 64  # training rows of which at first only the nearest is looked at
_LARGEST = 1e150  # its square, and the sum of as many as there are columns, is finite


class MLKNN(Baseline):
    """ML-kNN of Zhang and Zhou (2007).

    Distances are Euclidean, between features as they are given: scale them beforehand where
    their units differ.

    Parameters
    ----------
    k : int
        Number of neighbours.
    smoothing : float
        Rows added to each count of the frequencies; 1 is Laplace's rule.
    leave_one_out : bool
        Whether a training row is left out of its own neighbours, as in the paper. False counts
        it among them, as scikit-multilearn does unless told otherwise: counts of neighbours
        then look more telling than they are, and more labels exceed one half.

    Attributes
    ----------
    prior_ : ndarray of shape (L,)
        P(H_1), probability of each label before its neighbours are seen.
    likelihood_ : ndarray of shape (2, L, k + 1)
        P(c | H_b), probability that c of the neighbours bear a label, given that the row
        lacks it (b = 0) or bears it (b = 1).

    Notes
    -----
    Fitting compares all pairs of training rows: O(n^2 D + n k L) time, where for sparse rows D
    is the number of entries stored per row, and O(n (D + L)) memory, that of the training set.
    A prediction is O(n D + k L) per row. 98,000 rows of 19 entries take some minutes.
    """

    _scaling: Scaling = "none"

    def __init__(
        self, k: int = 10, smoothing: float = 1.0, *, leave_one_out: bool = True
    ) -> None:
        self.k = k
        self.smoothing = smoothing
        self.leave_one_out = leave_one_out

    def _check(self) -> None:
        require("k", self.k, _is_count(self.k), "an integer >= 1")
        positive = bool(np.isfinite(self.smoothing)) and self.smoothing > 0
        require("smoothing", self.smoothing, positive, "above 0")

    def _seen(self, Z: Matrix, *, reset: bool) -> Matrix:
        X = super()._seen(Z, reset=reset)
        largest = float(abs(X).max())
        if largest > _LARGEST:
            raise DataError(
                f"X holds {largest:.3g}, and distances between rows overflow beyond "
                f"{_LARGEST:.0e}; scale or clip that column"
            )
        return X

    def _learn(self, X: Matrix, Y: NDArray[np.float64], seed: int) -> None:
        n, n_labels = Y.shape
        require_rows(n, 2, "the nearest other row")
        s, k = self.smoothing, min(self.k, n - 1)
        self.Y_ = sp.csr_array(Y, dtype=np.int32)
        if sp.issparse(X):
            self.search_: _SparseSearch | _DenseSearch = _SparseSearch(X, k)
        else:
            self.search_ = _DenseSearch(X, k)
        frequency = np.zeros(2 * n_labels * (k + 1), np.int64)  # rows, by label and count
        near = self.search_.others() if self.leave_one_out else self.search_.nearest(X)
        for part, c in self._counts(near):
            bears = Y[part].astype(np.int64)
            cell = (bears * n_labels + np.arange(n_labels)) * (k + 1) + c
            frequency += np.bincount(cell.ravel(), minlength=frequency.size)
        table = frequency.reshape(2, n_labels, k + 1)
        self.prior_ = (s + Y.sum(0)) / (2 * s + n)
        self.likelihood_ = (s + table) / (s * (k + 1) + table.sum(-1, keepdims=True))

    def _probabilities(self, X: Matrix) -> NDArray[np.float64]:
        absent = (1 - self.prior_)[:, None] * self.likelihood_[0]
        present = self.prior_[:, None] * self.likelihood_[1]
        posterior = present / (present + absent)  # (L, k + 1), Eq. 3
        p = np.empty((X.shape[0], len(posterior)))
        for part, c in self._counts(self.search_.nearest(X)):
            p[part] = posterior[np.arange(len(posterior)), c]
        return p

    def _counts(self, near: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """Neighbours that bear each label, (rows, L), for some rows of ``near`` at a time."""
        n, n_labels = self.Y_.shape
        step = max(1, _CELLS // n_labels)
        for start in range(0, len(near), step):
            some = near[start : start + step]
            ends = np.arange(0, some.size + 1, some.shape[1])
            chosen = sp.csr_array(
                (np.ones(some.size, np.int32), some.ravel(), ends), shape=(len(some), n)
            )
            yield slice(start, start + len(some)), (chosen @ self.Y_).toarray()


class _DenseSearch:
    """The k nearest of dense training rows."""

    def __init__(self, X: NDArray[np.float64], k: int) -> None:
        self.index = NearestNeighbors(n_neighbors=k).fit(X)

    def others(self) -> NDArray[np.int64]:
        """For each training row the nearest other ones, shape (n, k)."""
        near: NDArray[np.int64] = self.index.kneighbors(return_distance=False)
        return near

    def nearest(self, X: Matrix) -> NDArray[np.int64]:
        """For each row of X the nearest training rows, shape (rows, k)."""
        dense = X.toarray() if sp.issparse(X) else X
        near: NDArray[np.int64] = self.index.kneighbors(dense, return_distance=False)
        return near


class _SparseSearch:
    """The k nearest of sparse training rows, by products of their entries.

    Five times as fast as scikit-learn's search for 98,000 rows of 19 entries.
    """

    def __init__(self, X: Matrix, k: int) -> None:
        n, width = X.shape
        self.k = k
        n_blocks = -(-n // _BLOCK)
        kept = sp.csr_array(_whole_numbers(X))
        ends = np.pad(kept.indptr, (0, n_blocks * _BLOCK - n), mode="edge")
        self.X = sp.csr_array((kept.data, kept.indices, ends), (n_blocks * _BLOCK, width))
        square = np.asarray(self.X.multiply(self.X).sum(1), dtype=kept.dtype)
        self.square = np.where(np.arange(len(square)) < n, square, np.inf)  # none is padding
        self.n = n

    def others(self) -> NDArray[np.int64]:
        """For each training row the nearest other ones, shape (n, k)."""
        return self._search(self.X[: self.n], itself=True)

    def nearest(self, X: Matrix) -> NDArray[np.int64]:
        """For each row of X the nearest training rows, shape (rows, k)."""
        return self._search(_whole_numbers(sp.csr_array(X)), itself=False)

    def _search(self, X: Matrix, *, itself: bool) -> NDArray[np.int64]:
        near = np.empty((X.shape[0], self.k), np.int64)
        for start in range(0, len(near), _ROWS):
            rows = np.ascontiguousarray(X[start : start + _ROWS].toarray().T)  # (D, r)
            distance = self.X @ rows  # (n, r); squared, less the square of the row itself
            distance *= -2
            distance += self.square.astype(distance.dtype)[:, None]
            if itself:
                r = np.arange(distance.shape[1])
                distance[start + r, r] = np.inf
            near[start : start + _ROWS] = _smallest(distance, self.k)
        return near


def _smallest(values: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Row indices of the k smallest numbers in each column, shape (columns, k).

    They lie in the k blocks of rows whose least numbers are smallest: only those are sorted.
    """
    blocks = values.reshape(-1, _BLOCK, values.shape[1])
    least = np.ascontiguousarray(blocks.min(1).T)  # (columns, blocks)
    chosen = _first(least, k)  # (columns, up to k)
    index = (chosen[:, :, None] * _BLOCK + np.arange(_BLOCK)).reshape(len(chosen), -1)
    index.sort(1)  # the order does not hang on how the blocks were partitioned
    candidates = values[index, np.arange(len(index))[:, None]]
    return np.take_along_axis(index, _first(candidates, k), 1)


def _first(values: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Indices of the k smallest numbers in each row, of all where there are no more."""
    if k >= values.shape[1]:
        return np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return np.argpartition(values, k - 1, axis=1)[:, :k]


def _whole_numbers(X: Matrix) -> Matrix:
    """X with whole numbers put back, as float32 where sums of their squares are exact.

    Scaling to float32 and back makes 1.00000003 of 1; distances that tie would then not.
    """
    whole = np.rint(X.data)
    if not np.allclose(X.data, whole, rtol=1e-6, atol=0):
        return X.astype(np.float64)
    exact = sp.csr_array((whole, X.indices, X.indptr), X.shape)
    largest = exact.multiply(exact).sum(1).max(initial=0)
    return exact.astype(np.float32 if 4 * largest < 2**24 else np.float64)


def _is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and bool(value >= 1)
