"""Which labels go together: tables for people, from the covariances of a fitted model."""

from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.cluster.hierarchy import cut_tree, leaves_list, linkage
from scipy.spatial.distance import squareform
from scipy.stats import t as student_t
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import silhouette_score

from mpvae.errors import ConfigError

_CELLS = 2**22  # covariances at a time
MANY = 3000
"""Labels above which no matrix of all pairs is clustered."""
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
    names = np.asarray(names, dtype=object)
    i, j = np.triu_indices(len(names), 1)
    return _sorted(
        _pairs(
            names,
            (i, j),
            residual[:, i, j],
            np.stack([np.diag(V) for V in residual]),
            by_features[:, i, j],
            np.stack([np.diag(F) for F in by_features]),
            _width(level, len(residual), by_fold),
        )
    )


def strongest_pairs(
    names: ArrayLike,
    residual: Sequence[NDArray[np.float64]],
    by_features: Sequence[NDArray[np.float64]],
    top: int,
    *,
    level: float = 0.95,
    by_fold: bool = True,
) -> pd.DataFrame:
    """As `pair_table`, but the ``top`` strongest pairs alone, and from factor loadings.

    Parameters
    ----------
    residual, by_features : lists of M arrays of shape (L, K)
        Of each member loadings A and G, for which V = I + A A^T and F = G G^T. No matrix of
        labels by labels is made: some labels at a time meet all others.
    """
    names = np.asarray(names, dtype=object)
    L, M = len(names), len(residual)
    width = _width(level, M, by_fold)
    own = np.stack([1 + np.square(A).sum(1) for A in residual])
    own_features = np.stack([np.square(G).sum(1) for G in by_features])
    step = max(1, _CELLS // (M * L))
    table: pd.DataFrame | None = None
    for start in range(0, L, step):
        some = np.arange(start, min(L, start + step))
        V = np.stack([A[some] @ A.T for A in residual])  # (M, some, L)
        usual = V.mean(0) / np.sqrt(np.outer(own.mean(0)[some], own.mean(0)))
        usual[np.arange(L) <= some[:, None]] = 0  # each pair once, and no label with itself
        n_kept = min(top, usual.size)
        kept = np.argpartition(-np.abs(usual), n_kept - 1, axis=None)[:n_kept]
        a, b = np.unravel_index(kept, usual.shape)
        proper = b > some[a]
        a, b = a[proper], b[proper]
        F = np.stack([np.einsum("pk,pk->p", G[some[a]], G[b]) for G in by_features])
        found = _pairs(names, (some[a], b), V[:, a, b], own, F, own_features, width)
        if table is None or len(found):  # the last label has no pairs of its own
            table = _sorted(found if table is None else pd.concat([table, found]))[:top]
    assert table is not None
    return table


def _pairs(
    names: NDArray[np.object_],
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]],
    residual: NDArray[np.float64],
    own_residual: NDArray[np.float64],
    by_features: NDArray[np.float64],
    own_features: NDArray[np.float64],
    width: float,
) -> pd.DataFrame:
    """Columns of the table for some pairs: covariances (M, pairs) and variances (M, L)."""
    i, j = pairs
    each = residual / np.sqrt(own_residual[:, i] * own_residual[:, j])
    own = own_residual.mean(0)
    correlation = residual.mean(0) / np.sqrt(own[i] * own[j])
    total = np.sqrt(own + own_features.mean(0))
    from_features = by_features.mean(0) / (total[i] * total[j])
    raw = from_features + residual.mean(0) / (total[i] * total[j])
    z = np.arctanh(np.clip(each, -1 + 1e-12, 1 - 1e-12))
    centre = np.arctanh(np.clip(correlation, -1 + 1e-12, 1 - 1e-12))
    error = width * np.sqrt(((z - z.mean(0)) ** 2).sum(0))
    with np.errstate(divide="ignore", invalid="ignore"):
        explained = from_features / raw
    # A part of what pulls the other way is no share.
    meaningful = (np.abs(raw) >= _FAINT) & (explained >= 0) & (explained <= 1)
    explained = np.where(meaningful, explained, np.nan)
    return pd.DataFrame(
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


def _width(level: float, M: int, by_fold: bool) -> float:
    """Factor from a sum of squared differences of members to half an interval; NaN: none."""
    if not (isinstance(level, Real) and 0 < level < 1):
        raise ConfigError(f"level must be in (0, 1), got {level!r}")
    if M < 2 or not by_fold:
        return np.nan
    return float(np.sqrt((M - 1) / M) * student_t.ppf(0.5 + level / 2, M - 1))


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    order = np.argsort(-np.abs(table["residual_correlation"].to_numpy()), kind="stable")
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
    distance, tree = _tree(correlation)
    if n_groups is not None:
        return _largest_first(cut_tree(tree, n_groups)[:, 0])
    best, found = -np.inf, np.zeros(L, np.int64)
    for k in range(2, min(20, L - 1) + 1):
        groups = cut_tree(tree, k)[:, 0]
        score = silhouette_score(distance, groups, metric="precomputed")
        if score > best + 1e-12:
            best, found = score, groups
    return _largest_first(found)


def leaf_order(correlation: NDArray[np.float64]) -> NDArray[np.int64]:
    """Order of the labels (L,) in which those that go together stand beside each other."""
    if len(correlation) < 3:
        return np.arange(len(correlation))
    return np.asarray(leaves_list(_tree(correlation)[1]), np.int64)


def _tree(
    correlation: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distances 1 - correlation, and their tree by average linkage."""
    distance = np.clip(1 - (correlation + correlation.T) / 2, 0, 2)
    np.fill_diagonal(distance, 0)
    return distance, linkage(squareform(distance, checks=False), "average")


def group_many(
    residual: Sequence[NDArray[np.float64]], n_groups: int | None = None
) -> NDArray[np.int64]:
    """As `group_labels`, for very many labels: k-means of their loadings, 20 groups.

    Labels are unit vectors, of which the inner products are the members' mean correlation.
    """
    L = len(residual[0])
    n_groups = 20 if n_groups is None else n_groups
    if not (_is_count(n_groups) and n_groups <= L):
        raise ConfigError(
            f"n_groups must be an integer from 1 to {L} (the labels), got {n_groups!r}"
        )
    vectors = np.hstack([A / np.sqrt(1 + np.square(A).sum(1, keepdims=True)) for A in residual])
    found = MiniBatchKMeans(n_groups, n_init=3, random_state=0).fit_predict(vectors)
    return _largest_first(found.astype(np.int64))


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
