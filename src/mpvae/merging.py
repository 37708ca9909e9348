"""Rows as a weighted set: equal ones merged, their order their own, weights as repetitions."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mpvae.errors import DataError
from mpvae.features import row_keys


def merge_equal_rows(
    X: Any,
    Y: Any,
    weight: NDArray[np.float64],
) -> tuple[Any, Any, NDArray[np.float64]]:
    """Distinct rows in an order that depends on their content alone, with summed weights."""
    if not weight.any():
        raise DataError("all sample weights are 0, no class is left; give some row a weight")
    kept = np.flatnonzero(weight > 0)
    keys = np.hstack([row_keys(X), row_keys(Y)])[kept]
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    rows = kept[first]
    summed = np.bincount(group.ravel(), weights=weight[kept]).astype(np.float64)
    summed /= summed.mean()  # ratios alone count, and float32 does not hold 1e50
    return (X.iloc[rows] if isinstance(X, pd.DataFrame) else X[rows]), Y[rows], summed


def as_repeats(weight: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Row numbers, each as often as its weight says; None if weights are equal or no counts."""
    counts = weight / weight.min()
    if counts.max() == 1 or counts.sum() > 10 * len(weight):
        return None
    whole = np.rint(counts).astype(np.int64)
    return np.repeat(np.arange(len(weight)), whole) if np.allclose(counts, whole) else None
