"""Labels as users have them, turned into a 0/1 matrix with names."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, column_or_1d

from mpvae.errors import DataError
from mpvae.features import Matrix

_REMEDY = (
    "MPVAE learns from the others with allow_missing_labels=True, or by mpvae fit "
    "--allow-missing-labels"
)


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """A 0/1 matrix (n, L), the names of its columns, and how the user wrote it.

    ``classes`` holds the two values of a single binary label given as a vector, else the
    column numbers; ``multilabel`` tells the two cases apart.
    """

    Y: Matrix
    names: tuple[str, ...]
    classes: NDArray[Any]
    multilabel: bool


def read_labels(y: Any, *, allow_missing: bool = False) -> Labels:
    """Check labels given as array, nested list, DataFrame (pandas, polars), or sparse matrix.

    A vector, or an array of one column, is one binary label in any encoding; everything else
    is an indicator matrix of 0 and 1 (or False and True). With ``allow_missing`` also NaN.
    """
    y = as_pandas(y)
    names = tuple(map(str, y.columns)) if isinstance(y, pd.DataFrame) else None
    if sp.issparse(y):
        matrix = sp.csr_array(y)
        matrix.sum_duplicates()
        _refuse_values(matrix.data, None, allow_missing)
        matrix = matrix.astype(np.float32)
        if np.isnan(matrix.data).any():
            return _indicator(matrix.toarray(), names)
        matrix.eliminate_zeros()
        return _indicator(matrix, names)
    if isinstance(y, pd.DataFrame):
        array = _frame_to_numbers(y)
    else:
        array = check_array(y, ensure_2d=False, dtype=None, ensure_all_finite=False)
    if array.ndim == 2 and (array.shape[1] > 1 or names is not None):
        _refuse_values(array, names, allow_missing)
        return _indicator(array.astype(np.float32), names)
    return _binary(array, allow_missing)


def refuse_other_order(X: Any, y: Any) -> None:
    """Raise if two frames have one index in different orders: rows go by position."""
    if not all(isinstance(table, pd.DataFrame | pd.Series) for table in (X, y)):
        return
    a, b = X.index, y.index
    if len(a) == len(b) and not a.equals(b) and a.is_unique and set(a) == set(b):
        raise DataError(
            f"the labels have the index of X in another order (first {b[0]!r}, in X {a[0]!r}), "
            "but rows are matched by position; give labels.loc[X.index]"
        )


def as_pandas(table: Any) -> Any:
    """A polars frame (lazy or not) or series as pandas has it; anything else as it is."""
    if not type(table).__module__.startswith("polars"):
        return table
    return (table.collect() if hasattr(table, "collect") else table).to_pandas()


def _indicator(Y: Matrix, names: tuple[str, ...] | None) -> Labels:
    L = Y.shape[1]
    if L == 0:
        raise DataError("y has no columns; give at least one label")
    names = names or tuple(f"label_{i}" for i in range(L))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"y has several columns named {twice[0]!r}; give each label its own name"
        )
    return Labels(Y, names, np.arange(L), multilabel=True)


def _binary(y: NDArray[Any], allow_missing: bool) -> Labels:
    y = column_or_1d(y, warn=True)
    missing = pd.isna(y)
    if missing.any() and not allow_missing:
        raise DataError(
            f"Input y contains NaN or None in row {int(np.argmax(missing))}: a label that "
            f"was not observed; {_REMEDY}"
        )
    n, y = len(y), y[~missing]
    assert_all_finite(y, input_name="y")
    try:
        check_classification_targets(y)  # refuses continuous values
        classes, codes = np.unique(y, return_inverse=True)
    except TypeError as error:
        raise DataError(f"y must hold two values of one type: {error}") from error
    if len(classes) > 2:
        raise DataError(
            "Only binary classification is supported. The type of the target is "
            f"{type_of_target(y)}."
        )
    if len(classes) < 2:
        one = f"one class, {classes.tolist()[0]!r}" if len(classes) else "no observed label"
        raise DataError(f"y holds {one}; both classes are needed")
    Y = np.full((n, 1), np.nan, np.float32)
    Y[~missing, 0] = codes
    return Labels(Y, ("label_0",), classes, multilabel=False)


def _frame_to_numbers(y: pd.DataFrame) -> NDArray[Any]:
    try:
        return y.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise DataError("y has columns that are not numbers; labels must be 0 or 1") from error


def _refuse_values(
    values: NDArray[Any], names: tuple[str, ...] | None, allow_missing: bool
) -> None:
    """Raise unless every value is 0 or 1, saying where the first other one stands."""
    if values.dtype == np.bool_:
        return
    if values.dtype.kind not in "iuf":
        raise DataError(f"y must hold 0 and 1, got values of type {values.dtype}")
    wrong = (values != 0) & (values != 1)
    if allow_missing:
        wrong &= ~np.isnan(values)
    if not wrong.any():
        return
    where = np.argwhere(wrong)[0]
    value = values[tuple(where)]
    place = ""
    if values.ndim == 2:
        column = names[where[1]] if names else where[1]
        place = f" in row {where[0]}, column {column}"
    if np.isnan(value):
        raise DataError(f"y holds NaN{place}: labels that were not observed; {_REMEDY}")
    raise DataError(
        f"Unknown label type: y must hold 0 and 1, got {value:g}{place}; "
        "turn counts or scores into presence (1) and absence (0) first"
    )
