r"""Data with a known truth: draws from the multivariate probit model.

A row has features ``x`` and latent utilities, thresholded at zero::

    w = m(x) + B u + e,   u ~ N(0, I_K),   e ~ N(0, I_L),   y_l = 1 if w_l > 0 else 0

so that ``w ~ N(m, I + B B^T)``, with ``m(x) = b + A x`` linear.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from mpvae.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class SyntheticProbit:
    """Rows drawn from a multivariate probit model, with the truth behind them.

    Attributes
    ----------
    X : array of shape (n, D)
        Features, standard normal.
    Y : int32 array of shape (n, L)
        Labels.
    w : array of shape (n, L)
        Latent utilities, ``Y = w > 0``.
    m : array of shape (n, L)
        Means of the utilities given the features.
    B : array of shape (L, K)
        Factor loadings.
    """

    X: NDArray[np.float64]
    Y: NDArray[np.int32]
    w: NDArray[np.float64]
    m: NDArray[np.float64]
    B: NDArray[np.float64]

    @property
    def covariance(self) -> NDArray[np.float64]:
        """Covariance of the utilities given the features, I + B B^T (L, L)."""
        return np.eye(len(self.B)) + self.B @ self.B.T

    @property
    def correlation(self) -> NDArray[np.float64]:
        """Correlation of the utilities given the features (L, L)."""
        scale = np.sqrt(1 + (self.B**2).sum(axis=1))
        return self.covariance / np.outer(scale, scale)


def simulate_probit(
    n_rows: int,
    *,
    n_features: int = 10,
    n_labels: int = 20,
    n_factors: int = 3,
    prevalence: float = 0.3,
    feature_strength: float = 1.0,
    factor_strength: float = 1.0,
    seed: int = 0,
) -> SyntheticProbit:
    """Draw of rows from a random multivariate probit model.

    Parameters
    ----------
    n_rows, n_features, n_labels, n_factors
        Sizes n, D, L and K; K may be 0 for independent labels.
    prevalence
        Expected frequency of every label: the intercept is Phi^-1(prevalence) times the
        standard deviation of w_l, which makes this exact for the model.
    feature_strength, factor_strength
        Expected standard deviation of the parts of w that come from the features and from
        the factors; that of the noise is 1.
    seed
        Equal seeds give equal draws.
    """
    for name, size, least in (
        ("n_rows", n_rows, 1),
        ("n_features", n_features, 1),
        ("n_labels", n_labels, 1),
        ("n_factors", n_factors, 0),
    ):
        if size < least:
            raise DataError(f"{name} must be at least {least}, got {size}")
    if not 0 < prevalence < 1:
        raise DataError(f"prevalence must lie between 0 and 1, got {prevalence}")
    if min(feature_strength, factor_strength) < 0:
        raise DataError(
            "feature_strength and factor_strength must not be negative, got "
            f"{feature_strength} and {factor_strength}"
        )
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n_labels, n_features)) * feature_strength / np.sqrt(n_features)
    B = rng.normal(size=(n_labels, n_factors)) * factor_strength / np.sqrt(max(n_factors, 1))
    variance = 1 + (A**2).sum(axis=1) + (B**2).sum(axis=1)
    X = rng.normal(size=(n_rows, n_features))
    m = ndtri(prevalence) * np.sqrt(variance) + X @ A.T  # (n, L)
    u = rng.normal(size=(n_rows, n_factors))
    e = rng.normal(size=(n_rows, n_labels))
    w = m + u @ B.T + e
    return SyntheticProbit(X=X, Y=(w > 0).astype(np.int32), w=w, m=m, B=B)
