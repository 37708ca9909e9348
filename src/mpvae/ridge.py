r"""Kernel ridge regression of labels on features, with the answer to each row left out.

With an RBF kernel on standardised features it predicts as well as a support vector machine per
label, and two things are cheaper: all labels share one factorisation, and what the fit would
say about a row had it not seen it has a closed form,

.. math:: f_{-i}(x_i) = \frac{f(x_i) - h_i y_i}{1 - h_i}, \quad h = \mathrm{diag}\,H,

where H maps labels to fitted values. So bandwidth and penalty are chosen, and networks trained
on these answers, without a second fit. Beyond `MAX_LANDMARKS` rows the kernel is approximated
by its values at a sample of them (Nystroem); cost grows linearly in rows from there.
"""

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import ndtri

from mpvae.calibration import fit_line
from mpvae.features import Matrix

MAX_LANDMARKS = 1500
"""Rows the kernel is spanned by, at most."""
_TRIAL_ROWS = 1000  # the bandwidth is chosen on this many
_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of gamma, in units of 1 / median squared distance
_PENALTIES = 10.0 ** np.arange(-2.5, 1.6, 0.5)
_JITTER = 1e-7  # of the kernel among landmarks, whose largest eigenvalue is near their number
_CELLS = 2**24  # kernel values at a time: bounds memory
_MOST_LEVERAGE = 0.999
_UNIT = np.sqrt(2 * np.pi)  # slope of the probit at one half


@dataclass(frozen=True, slots=True, eq=False)
class KernelRidge:
    """A fitted kernel ridge regression, its output calibrated on the probit scale."""

    landmarks: Matrix  # (m, D)
    gamma: float
    coef: NDArray[np.float64]  # (m, L)
    intercept: NDArray[np.float64]  # (L,)

    def evidence(self, X: Matrix) -> NDArray[np.float64]:
        """Probit of each label's probability, (n, L)."""
        n = X.shape[0]
        found = np.empty((n, self.coef.shape[1]))
        step = max(1, _CELLS // self.landmarks.shape[0])
        for start in range(0, n, step):
            piece = slice(start, min(n, start + step))
            K = _rbf(_square_distances(X[piece], self.landmarks), self.gamma)
            found[piece] = K @ self.coef + self.intercept
        return found


def fit_kernel_ridge(
    X: Matrix, Y: Matrix, weight: NDArray[np.float64], seed: int
) -> tuple[KernelRidge, NDArray[np.float64]]:
    """Fit to all rows, and say what each row's evidence would be without it.

    Parameters
    ----------
    X : matrix of shape (n, D)
        Features on comparable scales.
    Y : matrix of shape (n, L)
        Labels; where one is NaN it is taken to be what the others are on average.
    weight : ndarray of shape (n,)
        Weights of the rows.
    seed : int
        Of the sample of landmarks.

    Returns
    -------
    ridge : KernelRidge
    left_out : ndarray of shape (n, L)
        Evidence for each row from all other rows, on the probit scale.
    """
    truth = np.asarray(Y.toarray() if sp.issparse(Y) else Y, np.float64)
    rng = np.random.default_rng(seed)
    n = len(truth)
    order = rng.permutation(n)
    mean, centred = _centred(truth, weight)
    trial = np.sort(order[:_TRIAL_ROWS])
    gamma = _best_gamma(X[trial], centred[trial], weight[trial])
    chosen = np.sort(order[:MAX_LANDMARKS])
    landmarks = X[chosen]
    K = _rbf(_square_distances(landmarks, landmarks), gamma)
    K[np.diag_indices_from(K)] += _JITTER * len(K)
    root = scipy.linalg.cholesky(K, lower=True)
    Phi = np.empty((n, len(chosen)))  # rows as vectors whose inner products are the kernel
    step = max(1, _CELLS // len(chosen))
    for start in range(0, n, step):
        piece = slice(start, min(n, start + step))
        values = _rbf(_square_distances(X[piece], landmarks), gamma)
        Phi[piece] = scipy.linalg.solve_triangular(root, values.T, lower=True).T
    fit = _by_penalty(Phi, centred, weight)
    left_out = mean + fit.left_out
    beta = scipy.linalg.solve_triangular(root.T, fit.coef, lower=False)
    slope, shift = _calibrated(truth, left_out, weight)
    ridge = KernelRidge(
        landmarks, gamma, beta * (slope * _UNIT), slope * _UNIT * (mean - 0.5) + shift
    )
    return ridge, slope * _UNIT * (left_out - 0.5) + shift


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    error: float
    coef: NDArray[np.float64]  # (m, L)
    left_out: NDArray[np.float64]  # (n, L)


def _by_penalty(
    Phi: NDArray[np.float64], centred: NDArray[np.float64], weight: NDArray[np.float64]
) -> _Fit:
    """Ridge regression on Phi at the penalty with the smallest error on rows left out."""
    heavy = np.sqrt(weight / weight.mean())[:, None]
    A, R = heavy * Phi, heavy * centred
    value, V = np.linalg.eigh(A.T @ A)
    value = np.maximum(value, 0)
    Z = A @ V  # (n, m)
    ZR = Z.T @ R
    square = Z * Z
    best: _Fit | None = None
    for penalty in _PENALTIES:
        shrunk = 1 / (value + penalty)
        leverage = np.minimum(square @ shrunk, _MOST_LEVERAGE)[:, None]
        inner = shrunk[:, None] * ZR
        fitted = Z @ inner
        residual = (R - fitted) / (1 - leverage)
        error = float((residual**2).mean())
        if best is None or error < best.error:
            best = _Fit(error, V @ inner, (R - residual) / np.where(heavy > 0, heavy, 1))
    assert best is not None
    return best


def _best_gamma(
    X: Matrix, centred: NDArray[np.float64], weight: NDArray[np.float64]
) -> float:
    """Bandwidth with the smallest leave-one-out error on some rows."""
    D2 = _square_distances(X, X)
    above = D2[np.triu_indices(len(D2), 1)]
    median = float(np.median(above)) if len(above) else 1.0
    median = median if median > 0 else max(float(D2.mean()), 1e-12)
    errors = {}
    for width in _WIDTHS:
        value, V = np.linalg.eigh(_rbf(D2, width / median))
        root = V * np.sqrt(np.maximum(value, 0))
        errors[width / median] = _by_penalty(root, centred, weight).error
    return min(errors, key=lambda gamma: errors[gamma])


def _calibrated(
    truth: NDArray[np.float64], f: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    q = _UNIT * (f - 0.5)
    seen = ~np.isnan(truth) * weight[:, None]
    total = np.maximum(seen.sum(0), 1e-300)
    share = ((seen * np.nan_to_num(truth)).sum(0) + 0.5) / (total + 1)
    return fit_line(truth, q, weight, shift=ndtri(share) - (seen * q).sum(0) / total)


def _centred(
    truth: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean of each label where it is observed, and deviations from it, 0 where it is not."""
    seen = ~np.isnan(truth) * weight[:, None]
    total = np.maximum(seen.sum(0), 1e-300)
    mean = (seen * np.nan_to_num(truth)).sum(0) / total
    return mean, np.where(np.isnan(truth), 0, truth - mean)


def _rbf(D2: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    return np.exp(-gamma * D2)


def _square_distances(A: Matrix, B: Matrix) -> NDArray[np.float64]:
    """Between all rows of A and of B, dense or sparse; (a, b)."""
    a2, b2 = (np.asarray(M.multiply(M).sum(axis=1) if sp.issparse(M) else (M * M).sum(1),
                         np.float64) for M in (A, B))
    product = A @ B.T
    product = np.asarray(product.toarray() if sp.issparse(product) else product, np.float64)
    return np.maximum(a2[:, None] + b2 - 2 * product, 0)
