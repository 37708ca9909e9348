r"""The parts of SLEEC, each a function of arrays: neighbours, embedding, regression, vote.

Rows are points here (the paper has them in columns). Shape letters: ``n`` rows, ``D`` features,
``L`` labels, ``r`` dimensions of the embedding. ``Omega`` is the set of pairs of rows that are
neighbours by their labels.
"""

import warnings
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, eigh, qr
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from mpvae.features import Matrix

Array = NDArray[np.float64]
_CELLS = 2**23  # entries of a temporary array: bounds memory
_SPARE = 10  # dimensions iterated beside the r wanted ones: they speed up convergence


class Clusters(NamedTuple):
    """Centres (C, D) and the cluster of every row (n,)."""

    centres: Array
    of_row: NDArray[np.int64]


def unit_rows(X: Matrix) -> Matrix:
    """Rows divided by their length; a row of zeros stays."""
    if sp.issparse(X):
        length = np.sqrt(X.multiply(X).sum(axis=1))
        spread = np.repeat(np.where(length > 0, length, 1), np.diff(X.indptr))
        small = (X.indices.astype(np.int32), X.indptr.astype(np.int32))  # all k-means takes
        return sp.csr_array((X.data / spread, *small), shape=X.shape)
    length = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.where(length > 0, length, 1)


def cluster_rows(X: Matrix, size: int, rng: np.random.Generator) -> Clusters:
    """Clusters of about ``size`` rows by k-means from random centres.

    Clusters under a tenth of ``size`` are given up: too few neighbours to vote. Those above
    twice ``size`` are divided again, as long as k-means can divide them.
    """
    n, D = X.shape
    k = round(n / size)
    if k < 2:
        return Clusters(np.zeros((1, D)), np.zeros(n, np.int64))
    seed = int(rng.integers(2**31 - 1))
    means = KMeans(k, init="random", n_init=1, max_iter=20, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than k
        found = means.fit(X)
    kept = np.bincount(found.labels_, minlength=k) >= size / 10
    centres = found.cluster_centers_[kept].astype(np.float64)
    if len(centres) < 2:
        return Clusters(np.zeros((1, D)), np.zeros(n, np.int64))
    of_row = nearest_centre(X, centres)
    parts = []
    for c in range(len(centres)):
        rows = np.flatnonzero(of_row == c)
        small = len(rows) <= 2 * size
        inner = None if small else cluster_rows(X[rows], size, rng)
        parts.append(
            centres[[c]] if inner is None or len(inner.centres) == 1 else inner.centres
        )
    centres = np.vstack(parts)
    return Clusters(centres, nearest_centre(X, centres))


def nearest_centre(X: Matrix, centres: Array) -> NDArray[np.int64]:
    """Index of the centre nearest to each row, shape (n,)."""
    if len(centres) == 1:
        return np.zeros(X.shape[0], np.int64)
    # |x - c|^2 without |x|^2, which is the same for every centre
    distance = (centres**2).sum(axis=1) - 2 * (X @ centres.T)
    nearest: NDArray[np.int64] = distance.argmin(axis=1)
    return nearest


def label_cosines(Y: Array, k: int, rng: np.random.Generator) -> sp.csr_array:
    """Cosines of the label vectors on Omega, (n, n) sparse and symmetric.

    A pair is in Omega if one of the two is among the ``k`` rows most like the other; each row
    is its own neighbour. Ties are broken at random, so that rows of equal labels form one
    well-connected group. "No label" counts as a label of its own.
    """
    n = len(Y)
    unit = unit_rows(sp.csr_array(np.hstack([Y, Y.sum(axis=1, keepdims=True) == 0])))
    unit = unit.astype(np.float32)
    every, k = sp.csc_array(unit.T), min(k, n)
    near, cosines = [], []
    for start in range(0, n, step := max(1, _CELLS // n)):
        cosine = (unit[start : start + step] @ every).toarray()
        rank = cosine + rng.random(cosine.shape, dtype=np.float32) * np.float32(1e-5)
        rows = np.arange(len(rank))
        rank[rows, start + rows] = 2  # above every cosine
        near.append(np.argpartition(rank, n - k, axis=1)[:, n - k :])
        cosines.append(np.take_along_axis(cosine, near[-1], axis=1))
    columns, values = np.concatenate(near).ravel(), np.concatenate(cosines).ravel()
    # Stored with 2 added: a cosine of 0 on Omega is knowledge, and sparse sums drop zeros.
    pairs = sp.csr_array((values + 2, columns, np.arange(0, n * k + 1, k)), shape=(n, n))
    G = sp.csr_array(pairs.maximum(pairs.T))
    G.data -= 2
    return G


def inner_products(Z: NDArray[np.float32], i: Matrix, j: Matrix) -> NDArray[np.float32]:
    """Inner products of rows ``i`` of Z with rows ``j``, pair by pair."""
    step = max(1, _CELLS // Z.shape[1])
    parts = [
        np.einsum("nr,nr->n", Z[i[s : s + step]], Z[j[s : s + step]])
        for s in range(0, len(i), step)
    ]
    return np.concatenate(parts)


def svp(
    G: sp.csr_array, rank: int, *, max_iter: int, tol: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    r"""Points Z (n, rank) whose inner products are those in G, on the entries G stores.

    Singular value projection (Jain, Meka, Dhillon 2010): gradient steps on

    .. math:: f(M) = \tfrac12 \lVert P_\Omega(G - M) \rVert_F^2,

    each followed by the projection on positive semidefinite matrices of that rank; then
    :math:`M = Z Z^\top`. The matrix is only ever multiplied: Z and the sparse residual stand
    for it, and one step of subspace iteration from the last eigenvectors replaces the
    eigendecomposition. With an exact projection a step up to 1 cannot raise f; longer ones are
    tried and, if f rises, taken back.

    Parameters
    ----------
    G : csr_array of shape (n, n)
        Symmetric; its stored entries are Omega.
    rank, max_iter, tol
        Dimensions; steps at most; stop when f falls by less than this share of it.
    rng : Generator
        For the directions the iteration starts in.
    """
    n = G.shape[0]
    rank = min(rank, n)
    upper = sp.csr_array(sp.triu(G))
    i = np.repeat(np.arange(n), np.diff(upper.indptr))
    j = upper.indices
    twice = np.where(i == j, np.float32(0.5), np.float32(1))  # half: T + T^T counts it twice

    def residual(Z: NDArray[np.float32]) -> tuple[sp.csr_array, float]:
        gap = upper.data - inner_products(Z, i, j)
        T = sp.csr_array((gap * twice, j, upper.indptr), shape=(n, n))
        return T, float(np.dot(gap * twice, gap))

    Q = rng.standard_normal((n, min(n, rank + _SPARE)), dtype=np.float32)
    Z = np.zeros((n, rank), np.float32)
    T, f = residual(Z)
    eta = 1.0
    for step in range(max_iter):
        basis = Q
        for _ in range(5 if step == 0 else 1):
            basis = _orthonormal(_shifted(Z, T, eta, basis))
        image = _shifted(Z, T, eta, basis)
        values, vectors = eigh(basis.T @ image)
        values, vectors = values[::-1], vectors[:, ::-1].astype(np.float32)
        turned = basis @ vectors
        Z_new = turned[:, :rank] * np.sqrt(np.maximum(values[:rank], 0)).astype(np.float32)
        T_new, f_new = residual(Z_new)
        if f_new > f and eta > 1:
            eta = max(1.0, eta / 2)
            continue
        settled = abs(f - f_new) <= tol * f
        Q, Z, T, f = turned, Z_new, T_new, f_new
        eta *= 1.5
        if settled:
            break
    return Z


def _shifted(
    Z: NDArray[np.float32], T: sp.csr_array, eta: float, Q: NDArray[np.float32]
) -> NDArray[np.float32]:
    """(Z Z^T + eta (T + T^T)) Q."""
    product: NDArray[np.float32] = Z @ (Z.T @ Q) + np.float32(eta) * (T @ Q + T.T @ Q)
    return product


def _orthonormal(A: NDArray[np.float32]) -> NDArray[np.float32]:
    basis: NDArray[np.float32] = qr(A, mode="economic", check_finite=False)[0]
    return basis


def sparse_ridge(
    X: Matrix, Z: Array, *, l1: float, l2: float, max_iter: int = 100, tol: float = 1e-4
) -> Array:
    r"""Coefficients V (D, r) from features into the embedding.

    .. math:: \min_V \tfrac12 \lVert Z - X V \rVert_F^2 + \tfrac{l_2}2 \lVert V \rVert_F^2
              + l_1 \lVert X V \rVert_1

    by ADMM on the split A = X V, as in the paper; for ``l1 = 0`` in one solve. Costs
    one factorisation of size min(n, D).

    Parameters
    ----------
    X : array or csr_array of shape (n, D)
    Z : array of shape (n, r)
    l1, l2
        Weights of the penalties; l2 > 0.
    max_iter, tol
        Of ADMM: stop when both residuals are below ``tol`` times the length of Z.
    """
    if l1 == 0:
        return _ridge_solver(X, 1.0, l2)(Z)
    rho = 1.0
    solve = _ridge_solver(X, 1 + rho, l2)
    A, U = np.zeros_like(Z), np.zeros_like(Z)  # copy of X V, scaled multipliers
    scale = tol * np.linalg.norm(Z)
    for _ in range(max_iter):
        V = solve(Z + rho * (A - U))
        XV = np.asarray(X @ V)
        before, A = A, _soft(XV + U, l1 / rho)
        U = U + XV - A
        if max(np.linalg.norm(XV - A), rho * np.linalg.norm(A - before)) <= scale:
            break
    return V


class _RidgeSolver(NamedTuple):
    """Solution V of (a X^T X + l2 I) V = X^T B for any B, from one factorisation."""

    X: Matrix
    factor: tuple[Array, bool]
    wide: bool

    def __call__(self, B: Array) -> Array:
        if self.wide:  # X^T (a X X^T + l2 I)^-1 B: as many unknowns as rows
            return np.asarray(self.X.T @ cho_solve(self.factor, B))
        return np.asarray(cho_solve(self.factor, np.asarray(self.X.T @ B)))


def _ridge_solver(X: Matrix, a: float, l2: float) -> _RidgeSolver:
    n, D = X.shape
    X = X.astype(np.float64)
    wide = n < D
    gram = X @ X.T if wide else X.T @ X
    gram = a * (gram.toarray() if sp.issparse(gram) else gram)
    gram[np.diag_indices_from(gram)] += l2
    return _RidgeSolver(X, cho_factor(gram, overwrite_a=True), wide)


def _soft(A: Array, by: float) -> Array:
    return np.sign(A) * np.maximum(np.abs(A) - by, 0)


def neighbour_vote(points: Array, reference: Array, Y: Matrix, k: int) -> Array:
    """Share of the ``k`` nearest reference points that have each label, shape (n, L).

    A neighbour counts by its nearness, ``exp(-d^2 / s)`` with s the mean of the k squared
    distances d^2.
    """
    m = len(reference)
    k = min(k, m)
    square = (reference**2).sum(axis=1)
    votes = []
    for start in range(0, len(points), step := max(1, _CELLS // m)):
        z = points[start : start + step]
        d2 = (z**2).sum(axis=1, keepdims=True) - 2 * z @ reference.T + square
        # Rounding must not decide: equal rows have the same neighbours in any batch.
        d2 = np.where(d2 > 1e-12 * square.max(), d2, 0).astype(np.float32)
        near = np.argpartition(d2, k - 1, axis=1)[:, :k]
        d2 = np.take_along_axis(d2, near, axis=1).astype(np.float64)
        mean = d2.mean(axis=1, keepdims=True)
        weight = np.exp(-d2 / np.where(mean > 0, mean, 1))
        weight /= weight.sum(axis=1, keepdims=True)
        rows = np.repeat(np.arange(len(z)), k)
        W = sp.csr_array((weight.ravel(), (rows, near.ravel())), shape=(len(z), m))
        votes.append((W @ Y).toarray())
    return np.vstack(votes)
