"""Which labels go together: tables for people, from the covariances of a fitted model."""

from numbers import Integral, Real

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from scipy.stats import t as student_t
from sklearn.metrics import silhouette_score

from mpvae.errors import ConfigError

_FAINT = 0.05  # raw correlations below this have no meaningful share explained


def pair_table(
    names: ArrayLike,
    residual: NDArray[np.float64],
    by_features: NDArray[np.float64],
    *,
    level: float = 0.95,
    by_fold: bool = True,
) -> pd.DataFrame:
    r"""One row per pair of labels, the strongest residual correlations first.

    The utilities of labels vary over rows because features do (covariance F) and, given the
    features, around their means (covariance V). Their raw correlation is a sum:

    .. math:: \rho_{ij} = \frac{F_{ij}}{c_i c_j} + \frac{V_{ij}}{c_i c_j}, \quad
              c_i^2 = F_{ii} + V_{ii}.

    Parameters
    ----------
    names : (L,)
        Names of the labels.
    residual, by_features : (M, L, L)
        V and F of each of M members.
    level : float in (0, 1)
        Of the intervals. Members leave out one fold of the rows each: the interval is that of
        the delete-a-group jackknife on Fisher's scale, which counts the luck of training in.
        With one member it is NaN.
    by_fold : bool
        Whether members did leave out a fold each; if not, there is no interval.

    Returns
    -------
    DataFrame
        ``label_a``, ``label_b``; ``residual_correlation`` with ``low`` and ``high``;
        ``raw_correlation``, its part ``by_features``, and the share of it they explain
        (NaN where the raw correlation is below .05).
    """
    if not (isinstance(level, Real) and 0 < level < 1):
        raise ConfigError(f"level must be in (0, 1), got {level!r}")
    names = np.asarray(names, dtype=object)
    i, j = np.triu_indices(len(names), 1)
    M = len(residual)
    each = np.stack([as_correlation(V)[i, j] for V in residual])  # (M, pairs)
    V, F = residual.mean(0), by_features.mean(0)
    correlation = as_correlation(V)[i, j]
    total = np.sqrt(np.diag(V) + np.diag(F))
    from_features = (F / np.outer(total, total))[i, j]
    raw = from_features + (V / np.outer(total, total))[i, j]
    z = np.arctanh(np.clip(each, -1 + 1e-12, 1 - 1e-12))
    centre = np.arctanh(np.clip(correlation, -1 + 1e-12, 1 - 1e-12))
    error = np.full(len(i), np.nan)
    if M > 1 and by_fold:
        error = np.sqrt((M - 1) / M * ((z - z.mean(0)) ** 2).sum(0))
        error *= student_t.ppf(0.5 + level / 2, M - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        explained = np.where(np.abs(raw) >= _FAINT, from_features / raw, np.nan)
    table = pd.DataFrame(
        {
            "label_a": names[i],
            "label_b": names[j],
            "residual_correlation": correlation,
            "low": np.tanh(centre - error),
            "high": np.tanh(centre + error),
            "raw_correlation": raw,
            "by_features": from_features,
            "share_by_features": explained,
        }
    )
    order = np.argsort(-np.abs(correlation), kind="stable")
    return table.iloc[order].reset_index(drop=True)


def group_labels(
    correlation: NDArray[np.float64], n_groups: int | None = None
) -> NDArray[np.int64]:
    """Group of each label (L,), from 0, by average linkage on 1 - correlation.

    Without ``n_groups`` the number from 2 to 20 with the highest silhouette is taken. Group 0
    is the largest.
    """
    L = len(correlation)
    if n_groups is not None and not (_is_count(n_groups) and n_groups <= L):
        raise ConfigError(
            f"n_groups must be an integer from 1 to {L} (the labels), got {n_groups!r}"
        )
    if L < 3 or n_groups == 1:
        return np.arange(L) if n_groups == L else np.zeros(L, np.int64)
    distance = np.clip(1 - (correlation + correlation.T) / 2, 0, 2)
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance, checks=False), "average")
    if n_groups is not None:
        return _largest_first(cut_tree(tree, n_groups)[:, 0])
    best, found = -np.inf, np.zeros(L, np.int64)
    for k in range(2, min(20, L - 1) + 1):
        groups = cut_tree(tree, k)[:, 0]
        score = silhouette_score(distance, groups, metric="precomputed")
        if score > best + 1e-12:
            best, found = score, groups
    return _largest_first(found)


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _largest_first(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    _, first, codes, counts = np.unique(
        groups, return_index=True, return_inverse=True, return_counts=True
    )
    rank = np.empty(len(counts), np.int64)
    rank[np.lexsort((first, -counts))] = np.arange(len(counts))
    return rank[codes]


def as_correlation(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Covariance (L, L) scaled to a diagonal of ones."""
    sd = np.sqrt(np.diag(covariance))
    return np.asarray(covariance / np.outer(sd, sd))
