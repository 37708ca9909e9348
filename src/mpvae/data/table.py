"""A table of samples: features, labels, their names, and the official split if there is one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from mpvae.data.files import listing, one_line
from mpvae.errors import DataError

Features: TypeAlias = pd.DataFrame | NDArray[np.float32] | csr_array
Labels: TypeAlias = NDArray[np.int32] | NDArray[np.float64] | csr_array


@dataclass(frozen=True, slots=True, eq=False)
class LabelledTable:
    """Samples with features and, where known, labels; checked when it is made.

    Attributes
    ----------
    X : DataFrame, array or CSR array of shape (n, D)
        Features. A DataFrame keeps columns of mixed type; arrays are float32.
    Y : array or CSR array of shape (n, L), or None
        Labels: int32 of 0 and 1; float64 with NaN where some labels are unknown; CSR int32
        where labels are many. ``None`` when no labels were asked for.
    feature_names : tuple of str
        Name of each of the D features.
    label_names : tuple of str
        Name of each of the L labels; empty when ``Y`` is ``None``.
    splits : mapping of str to int64 array
        Row numbers of the official "train", "val" and "test" parts; empty if there are none.
    name : str
        Name of the data set, used in messages.
    """

    X: Features
    Y: Labels | None
    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    splits: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    name: str = "table"

    def __post_init__(self) -> None:
        if self.X.ndim != 2:
            raise DataError(f"{self.name}: X must have 2 dimensions, got {self.X.ndim}")
        n_rows, n_features = self.X.shape
        _check_names(self.feature_names, n_features, "feature", self.name)
        if self.Y is None:
            _check_names(self.label_names, 0, "label", self.name)
        else:
            if self.Y.ndim != 2:
                raise DataError(f"{self.name}: Y must have 2 dimensions, got {self.Y.ndim}")
            if self.Y.shape[0] != n_rows:
                raise DataError(
                    f"{self.name}: X has {n_rows} rows but Y has {self.Y.shape[0]}; "
                    "give one row of labels per row of features"
                )
            _check_names(self.label_names, self.Y.shape[1], "label", self.name)
            _check_values(self.Y, self.label_names, self.name)
        _check_splits(self.splits, n_rows, self.name)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def features(self) -> pd.DataFrame | csr_array:
        """Features with their names: a DataFrame, or the CSR array, which cannot carry any."""
        if isinstance(self.X, pd.DataFrame | csr_array):
            return self.X
        return pd.DataFrame(self.X, columns=list(self.feature_names))

    def labels(self) -> pd.DataFrame:
        """Labels with their names."""
        if self.Y is None:
            raise DataError(f"{self.name} holds no labels; say which columns are labels")
        dense = self.Y.toarray() if isinstance(self.Y, csr_array) else self.Y
        return pd.DataFrame(dense, columns=list(self.label_names))

    def rows(self, idx: ArrayLike) -> "LabelledTable":
        """Table of the given rows (row numbers, or one boolean per row); splits are dropped."""
        index = np.asarray(idx)
        if index.size == 0:
            index = index.astype(np.int64)
        if index.dtype == np.bool_:
            if index.shape != (len(self),):
                raise DataError(
                    f"{self.name}: a mask of shape {index.shape} cannot choose among "
                    f"{len(self)} rows; give one boolean per row"
                )
            index = np.flatnonzero(index)
        _check_row_numbers(index, len(self), "rows", self.name)
        X: Features
        if isinstance(self.X, pd.DataFrame):
            X = self.X.iloc[index].reset_index(drop=True)
        else:
            X = self.X[index]
        Y = None if self.Y is None else self.Y[index]
        return LabelledTable(X, Y, self.feature_names, self.label_names, {}, self.name)

    def split(self, which: str) -> "LabelledTable":
        """Table of the rows of one part of the official split, such as "train".

        Raises
        ------
        DataError
            If the data have no such part.
        """
        if which not in self.splits:
            known = ", ".join(self.splits) or "none"
            raise DataError(
                f"{self.name} has no split {which!r} (available: {known}); "
                "choose one of these, or make one with stratified_split"
            )
        return self.rows(self.splits[which])


def _check_names(names: tuple[str, ...], n_columns: int, role: str, table: str) -> None:
    if len(names) != n_columns:
        raise DataError(
            f"{table}: {n_columns} {role} columns but {len(names)} {role} names; "
            "give one name per column"
        )
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
        raise DataError(
            f"{table}: {role} names occur more than once: {listing(twice)}; rename the columns"
        )


def _check_values(Y: Labels, names: tuple[str, ...], table: str) -> None:
    values = Y if isinstance(Y, np.ndarray) else Y.data
    if values.dtype.kind not in "biuf":
        raise DataError(f"{table}: Y must be numeric, got {values.dtype}; give 0 and 1")
    good = (values == 0) | (values == 1)
    if values.dtype.kind == "f" and isinstance(Y, np.ndarray):
        good |= np.isnan(values)
    if good.all():
        return
    if isinstance(Y, np.ndarray):
        row, column = divmod(int(np.argmin(good)), Y.shape[1])
        value = Y[row, column]
    else:
        entry = int(np.flatnonzero(~good)[0])
        row = int(np.searchsorted(Y.indptr, entry, side="right")) - 1
        column, value = int(Y.indices[entry]), Y.data[entry]
    raise DataError(
        f"{table}: label {one_line(names[column])} has the value {float(value):g} in row "
        f"{row + 1}; labels must be 0 or 1 (turn counts into 0/1 presence first)"
    )


def _check_splits(splits: Mapping[str, NDArray[np.int64]], n_rows: int, table: str) -> None:
    times_used = np.zeros(n_rows, dtype=np.int64)
    for part, index in splits.items():
        _check_row_numbers(index, n_rows, f"split {part!r}", table)
        np.add.at(times_used, index, 1)
    if (times_used > 1).any():
        row = int(np.argmax(times_used > 1))
        raise DataError(
            f"{table}: row {row + 1} stands more than once in the splits "
            f"{', '.join(splits)}; every row may be in one part only"
        )


def _check_row_numbers(index: NDArray[np.generic], n_rows: int, what: str, table: str) -> None:
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise DataError(
            f"{table}: {what} must be a list of row numbers, got {index.dtype} of shape "
            f"{index.shape}"
        )
    outside = (index < 0) | (index >= n_rows)  # type: ignore[operator]
    if outside.any():
        raise DataError(
            f"{table}: {what} asks for row number {index[outside][0]}, but there are "
            f"{n_rows} rows, counted from 0"
        )
