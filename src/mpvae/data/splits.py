"""Folds and splits in which every label is about as common as in the whole."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from iterstrat.ml_stratifiers import IterativeStratification
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csc_array, csr_array, issparse

from mpvae.errors import DataError

MAX_STRATIFIED_ROWS = 150_000
"""Rows beyond which folds are drawn at random: chance then balances all but the rarest."""

MAX_STRATIFIED_WORK = 1.3e10
"""Bound on rows x labels^2, which is the cost of stratification.

Just beyond 12,920 rows x 983 labels, which took 4 s on one core; a table of the same work but
with few positives can take three times as long.
"""


def stratified_folds(Y: ArrayLike | csr_array, n_folds: int, *, seed: int) -> NDArray[np.int64]:
    """Fold number of every row (n,), from 0 to ``n_folds - 1``, no fold empty.

    Rows are dealt out by iterative stratification (Sechidis, Tsoumakas & Vlahavas 2011), so
    that each label is spread evenly over the folds. Labels that are constant, or have fewer
    positives than there are folds, are of little use and leave first where ``rows x labels^2``
    would pass ``MAX_STRATIFIED_WORK``; then the most common ones leave, which chance balances
    best. Beyond ``MAX_STRATIFIED_ROWS`` rows the folds are random and of equal size.

    Parameters
    ----------
    Y
        Labels (n, L), dense or sparse; NaN counts as 0.
    n_folds
        Number of folds, from 2 to n.
    seed
        Equal seeds give equal folds; NumPy's global state is neither read nor changed.

    Raises
    ------
    DataError
        If there are fewer rows than folds.
    """
    if n_folds < 2:
        raise DataError(f"n_folds must be at least 2, got {n_folds}")
    return _deal(Y, np.full(n_folds, 1 / n_folds), seed)


def stratified_split(
    Y: ArrayLike | csr_array, fractions: Mapping[str, float], *, seed: int
) -> dict[str, NDArray[np.int64]]:
    """Row numbers of each part, rising, with labels about as common in each as in the whole.

    Parameters
    ----------
    Y
        Labels (n, L), dense or sparse; NaN counts as 0.
    fractions
        Share of each part, such as ``{"train": 0.8, "val": 0.1, "test": 0.1}``; the sum is 1.
    seed
        Equal seeds give equal splits.

    See Also
    --------
    stratified_folds : says how rows are dealt out.
    """
    shares = np.array(list(fractions.values()), dtype=np.float64)
    if len(shares) < 2 or not (shares > 0).all() or not math.isclose(shares.sum(), 1.0):
        raise DataError(
            f"fractions must be two or more positive shares with the sum 1, got "
            f"{dict(fractions)}"
        )
    part_of_row = _deal(Y, shares, seed)
    return {name: np.flatnonzero(part_of_row == i) for i, name in enumerate(fractions)}


def _deal(
    Y: ArrayLike | csr_array, shares: NDArray[np.float64], seed: int
) -> NDArray[np.int64]:
    """Part of every row, none empty."""
    labels: Any = Y if issparse(Y) else np.asarray(Y)
    if labels.ndim != 2:
        raise DataError(f"Y must have 2 dimensions (rows, labels), got {labels.ndim}")
    n_rows = int(labels.shape[0])
    if n_rows < len(shares):
        raise DataError(
            f"{n_rows} rows cannot fill {len(shares)} parts; give more rows or ask for "
            "fewer parts"
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(n_rows)
    if n_rows > MAX_STRATIFIED_ROWS:
        edges = np.cumsum(shares)[:-1] * n_rows
        dealt = np.searchsorted(edges, np.arange(n_rows), side="right")
    else:
        useful = _useful_labels(labels, len(shares))[order]
        dealt = IterativeStratification(labels=useful, r=shares.copy(), random_state=rng)
    part = np.empty(n_rows, dtype=np.int64)
    part[order] = dealt
    return _fill_empty_parts(part, len(shares), rng)


def _useful_labels(labels: NDArray[np.generic] | csr_array, n_parts: int) -> NDArray[np.bool_]:
    """Labels (n, up to L) to stratify on, as booleans, within the bound on work."""
    n_rows = labels.shape[0]
    if isinstance(labels, np.ndarray):
        present = labels == 1
        counts = present.sum(axis=0)
    else:
        ones = csc_array(labels, dtype=np.float64)
        ones.data = np.nan_to_num(ones.data)
        ones.eliminate_zeros()
        counts = np.diff(ones.indptr)
    chosen = np.flatnonzero((counts > 0) & (counts < n_rows))
    limit = max(1, int(math.sqrt(MAX_STRATIFIED_WORK / n_rows)))
    if len(chosen) > limit:
        chosen = chosen[counts[chosen] >= n_parts]
        rarest = np.argsort(counts[chosen], kind="stable")[:limit]
        chosen = np.sort(chosen[rarest])
    picked = present[:, chosen] if isinstance(labels, np.ndarray) else ones[:, chosen].toarray()
    return np.asarray(picked, dtype=np.bool_)


def _fill_empty_parts(
    part: NDArray[np.int64], n_parts: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    sizes = np.bincount(part, minlength=n_parts)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(np.argmax(sizes))
        part[rng.choice(np.flatnonzero(part == largest))] = empty
        sizes[largest] -= 1
        sizes[empty] += 1
    return part
