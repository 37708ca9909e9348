r"""Kernel ridge regression of labels on features, with the answer to each row left out.

With a kernel on standardised features it predicts as well as a support vector machine per
label, and two things are cheaper: all labels share one factorisation, and what the
fit would say about a row had it not seen it has a closed form,

.. math:: f_{-i}(x_i) = \frac{f(x_i) - h_i y_i}{1 - h_i}, \quad h = \mathrm{diag}\,H,

where H maps labels to fitted values. So kernel and penalty are chosen, and these
answers weighed with those of networks, without a second fit. The kernel is spanned by its
values at a sample of at most `MAX_LANDMARKS` rows (Nystroem): cost grows linearly in rows from
there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import ndtri
from threadpoolctl import threadpool_limits

from mpvae.calibration import fit_line
from mpvae.features import Matrix, csr_from_file, dense
from mpvae.similarity import Kernel, absolute_distances, squared_distances

MAX_LANDMARKS = 2000
"""Rows the kernel is spanned by, at most."""
_SHARED = 4e9  # products from which threads pay
_TRIAL_ROWS = 700  # kernel and penalty are chosen on this many
_RATES = (0.25, 0.5, 1.0, 2.0, 4.0)  # in units of 1 / median distance
_PENALTIES = 10.0 ** np.arange(-2.5, 1.6, 0.5)
_JITTER = 1e-6  # on the diagonal of the kernel among landmarks: equal rows are allowed
_MOST_LEVERAGE = 0.999
_UNIT = np.sqrt(2 * np.pi)  # slope of the probit at one half


@dataclass(frozen=True, slots=True, eq=False)
class KernelRidge:
    """A fitted kernel ridge regression, its output calibrated on the probit scale."""

    landmarks: Matrix  # (m, D)
    kernel: Kernel
    coef: NDArray[np.float64]  # (m, L)
    intercept: NDArray[np.float64]  # (L,)

    def evidence(self, X: Matrix) -> NDArray[np.float64]:
        """Probit of each label's probability, (n, L)."""
        found = np.empty((X.shape[0], len(self.intercept)))
        for piece, K in self.kernel.pieces(X, self.landmarks):
            found[piece] = K @ self.coef + self.intercept
        return found

    def weighted(self, weight: NDArray[np.float64]) -> Self:
        """The same, its evidence multiplied by a weight for each label, (L,)."""
        return replace(self, coef=weight * self.coef, intercept=weight * self.intercept)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything by name, for a file."""
        parts = {
            "rates": np.array([self.kernel.laplace, self.kernel.gauss]),
            "coef": self.coef,
            "intercept": self.intercept,
        }
        if sp.issparse(self.landmarks):
            csr = sp.csr_array(self.landmarks)
            return parts | {
                "landmarks.data": csr.data,
                "landmarks.indices": csr.indices.astype(np.int64),
                "landmarks.indptr": csr.indptr.astype(np.int64),
            }
        return parts | {"landmarks": np.ascontiguousarray(self.landmarks)}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], n_features: int, n_labels: int
    ) -> Self:
        """From what `arrays` gave; ValueError where it does not fit features and labels."""
        coef, intercept, rates = arrays["coef"], arrays["intercept"], arrays["rates"]
        if "landmarks" in arrays:
            landmarks: Matrix = arrays["landmarks"]
            values = landmarks
        else:
            values = arrays["landmarks.data"]
            landmarks = csr_from_file(
                values, arrays["landmarks.indices"], arrays["landmarks.indptr"], n_features
            )
        fits = (
            len(coef) > 0
            and landmarks.shape == (len(coef), n_features)
            and values.dtype == np.float32
            and coef.shape == (len(coef), n_labels)
            and intercept.shape == (n_labels,)
            and rates.shape == (2,)
            and all(a.dtype == np.float64 for a in (coef, intercept, rates))
        )
        if not fits or not all(np.isfinite(a).all() for a in (values, coef, intercept, rates)):
            raise ValueError("the kernel machine does not fit features and labels")
        if min(rates) < 0 or max(rates) == 0 or (sp.issparse(landmarks) and rates[0]):
            raise ValueError("the kernel machine has no such kernel")
        return cls(landmarks, Kernel(float(rates[0]), float(rates[1])), coef, intercept)


def fit_kernel_ridge(
    X: Matrix, Y: Matrix, weight: NDArray[np.float64], seed: int
) -> tuple[KernelRidge, NDArray[np.float64]]:
    """Fit to all rows, and say what each row's evidence would be without it.

    Parameters
    ----------
    X : matrix of shape (n, D)
        Features on comparable scales.
    Y : matrix of shape (n, L)
        Labels; one that is NaN is taken to be what it is on average.
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
    truth = dense(Y).astype(np.float64)
    weight = weight / weight.mean()
    seen = ~np.isnan(truth) * weight[:, None]
    total = seen.sum(0)
    mean = (seen * np.nan_to_num(truth)).sum(0) / np.maximum(total, 1e-300)
    mean = np.where(total > 0, mean, 0.5)  # never observed: nothing is known
    centred = np.where(np.isnan(truth), 0, truth - mean)

    order = np.random.default_rng(seed).permutation(len(truth))
    trial, chosen = np.sort(order[:_TRIAL_ROWS]), np.sort(order[:MAX_LANDMARKS])
    with threadpool_limits(1, "blas"):  # threads would meet too often: see mpvae.threads
        kernel, penalty = _best_shape(X[trial], centred[trial], weight[trial])
    landmarks = X[chosen]
    small = len(truth) * len(chosen) ** 2 < _SHARED
    with threadpool_limits(1 if small else None, "blas"):
        coef, fitted = _solve(X, landmarks, centred, weight, kernel, penalty)

    left_out = mean + fitted
    slope, shift = _calibrated(truth, left_out, weight)
    ridge = KernelRidge(
        landmarks, kernel, coef * (slope * _UNIT), slope * _UNIT * (mean - 0.5) + shift
    )
    return ridge, slope * _UNIT * (left_out - 0.5) + shift


def _solve(
    X: Matrix,
    landmarks: Matrix,
    centred: NDArray[np.float64],
    weight: NDArray[np.float64],
    kernel: Kernel,
    penalty: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coefficients (m, L) of the landmarks' kernels, and fitted values with rows left out."""
    n, m = X.shape[0], landmarks.shape[0]
    K = kernel.between(landmarks, landmarks)
    K[np.diag_indices(m)] += _JITTER
    root = scipy.linalg.cholesky(K, lower=True, overwrite_a=True, check_finite=False)
    Phi = np.empty((n, m))  # rows as vectors whose inner products are the kernel
    for piece, values in kernel.pieces(X, landmarks):
        Phi[piece] = scipy.linalg.solve_triangular(
            root, values.T, lower=True, check_finite=False
        ).T
    heavy = weight[:, None] * Phi
    normal = heavy.T @ Phi
    normal[np.diag_indices(m)] += penalty
    half = scipy.linalg.cholesky(normal, lower=True, overwrite_a=True, check_finite=False)
    inner = scipy.linalg.cho_solve((half, True), heavy.T @ centred, check_finite=False)
    fitted = Phi @ inner
    across = scipy.linalg.solve_triangular(half, Phi.T, lower=True, check_finite=False)
    leverage = np.minimum(weight * np.square(across).sum(0), _MOST_LEVERAGE)[:, None]
    coef = scipy.linalg.solve_triangular(root.T, inner, lower=False, check_finite=False)
    return coef, (fitted - leverage * centred) / (1 - leverage)


def _best_shape(
    X: Matrix, centred: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[Kernel, float]:
    """Kernel and penalty with the smallest squared error on rows left out."""
    heavy = np.sqrt(weight)[:, None]
    best, shape = np.inf, (Kernel(gauss=1.0), 1.0)
    for kernel, K in _kernels(X):
        value, V = np.linalg.eigh(heavy * K * heavy.T)
        value = np.maximum(value, 0)
        inner = V.T @ (heavy * centred)
        for penalty in _PENALTIES:
            share = value / (value + penalty)
            leverage = np.minimum(np.square(V) @ share, _MOST_LEVERAGE)[:, None]
            residual = (heavy * centred - V @ (share[:, None] * inner)) / (1 - leverage)
            error = float(np.square(residual).mean())
            if error < best:
                best, shape = error, (kernel, float(penalty))
    return shape


def _kernels(X: Matrix) -> Iterator[tuple[Kernel, NDArray[np.float64]]]:
    """Kernels to choose from, and their values among these rows."""
    squared = squared_distances(X, X)
    gauss = 1 / _median(squared)
    if sp.issparse(X):
        for rate in _RATES:
            yield Kernel(gauss=rate * gauss), np.exp(-rate * gauss * squared)
        return
    absolute = absolute_distances(X, X)
    laplace = 1 / _median(absolute)
    for rate in _RATES:
        K = np.exp(-rate * laplace * absolute)
        yield Kernel(laplace=rate * laplace), K
        both = Kernel(laplace=rate * laplace, gauss=rate * gauss)
        yield both, (K + np.exp(-rate * gauss * squared)) / 2


def _median(distances: NDArray[np.float64]) -> float:
    """Of rows that differ, those that are equal telling of no scale."""
    apart = distances[distances > 0]
    return float(np.median(apart)) if len(apart) else 1.0


def _calibrated(
    truth: NDArray[np.float64], f: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Slope and shift of the fitted values on the probit scale, from their base rate on."""
    q = _UNIT * (f - 0.5)
    seen = ~np.isnan(truth) * weight[:, None]
    total = seen.sum(0)
    share = ((seen * np.nan_to_num(truth)).sum(0) + 0.5) / (total + 1)
    usual = (seen * q).sum(0) / np.maximum(total, 1e-300)
    return fit_line(truth, q, weight, shift=ndtri(share) - usual)
