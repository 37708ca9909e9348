"""Rows as a weighted set: equal ones merged, their order their own, weights as repetitions."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mpvae.errors import DataError
from mpvae.features import row_keys

MAX_COPIES = 30
"""Of rows whose features come with other labels too, on average."""
_SMALLEST = 1e-250  # share of the largest weight that counts as 0: products would underflow


def merge_equal_rows(
    X: Any,
    Y: Any,
    weight: NDArray[np.float64],
) -> tuple[Any, Any, NDArray[np.float64], NDArray[np.int64]]:
    """Distinct rows in an order that depends on their content alone, with summed weights.

    Last comes which row each is, the first of those that are equal. Rows without weight, or
    with next to none beside the largest, are left out.

    Where rows of equal features differ in labels, as on tables of a few categories, a row
    stays as often as its weight says, the smallest weight given being one row; up to
    `MAX_COPIES` of each row on average. To leave out all rows that have these labels would
    leave none to learn them from, and settings go by the number of rows.
    """
    if not weight.any():
        raise DataError("all sample weights are 0, no class is left; give some row a weight")
    kept = np.flatnonzero(weight > _SMALLEST * weight.max())
    of_features = row_keys(X)[kept]
    keys = np.hstack([of_features, row_keys(Y)[kept]])
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    rows = kept[first]
    summed = np.bincount(group.ravel(), weights=weight[kept]).astype(np.float64)
    _, kind, n_kinds = np.unique(
        of_features[first], axis=0, return_inverse=True, return_counts=True
    )
    often = np.where(n_kinds[kind.ravel()] > 1, summed / weight[kept].min(), 1.0)
    often *= min(1.0, MAX_COPIES * len(often) / often.sum())
    copies = np.maximum(np.rint(often), 1).astype(np.int64)
    rows, summed = np.repeat(rows, copies), np.repeat(summed / copies, copies)
    summed /= summed.mean()  # ratios alone count, and float32 does not hold 1e50
    return (X.iloc[rows] if isinstance(X, pd.DataFrame) else X[rows]), Y[rows], summed, rows


def rows_meant(weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many rows each one is: by its weight where all are multiples of the smallest."""
    kept = weight > _SMALLEST * weight.max(initial=0)
    rows = np.where(kept, 1.0, 0.0)
    if kept.any():
        counts = weight[kept] / weight[kept].min()
        whole = np.rint(counts)
        if np.allclose(counts, whole):
            rows[kept] = whole
    return rows


def as_repeats(weight: NDArray[np.float64], most: int) -> NDArray[np.int64] | None:
    """Row numbers, each as often as its weight says; None if weights are equal.

    Exactly as often where weights are whole multiples of the smallest, and not ten times as
    many rows come of it; else as nearly as ``most`` rows allow, at most ten times as many.
    """
    n = len(weight)
    counts = weight / weight.min()
    if counts.max() == 1:
        return None
    whole = np.rint(counts)
    if counts.sum() > 10 * n or not np.allclose(counts, whole):
        total = max(n, min(10 * n, most))
        ends = np.rint(np.cumsum(weight) / weight.sum() * total)
        whole = np.diff(ends, prepend=0)
    return np.repeat(np.arange(n), whole.astype(np.int64))
