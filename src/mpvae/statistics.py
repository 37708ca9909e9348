"""Means, scales and levels of features from one pass over chunks of rows."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mpvae.errors import DataError
from mpvae.features import (
    MAX_LEVELS,
    FeatureMap,
    count_texts,
    levels_of,
    numbers_of,
    refuse_infinite,
    standardising,
)

_LARGE = 1e140  # squares of larger numbers, or of their inverse, may leave float64


class Statistics:
    """What is known of the columns so far; `features` maps rows by it.

    Means and variances of chunks are merged as Chan, Golub and LeVeque (1979) do, which loses
    no digits to large means.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._texts: dict[int, Counter[str]] = {}
        self._n_chunks = 0
        self._set_numeric(np.empty(0, np.int64))

    def add(self, X: pd.DataFrame) -> None:
        """Take some more rows into account."""
        if self._n_chunks == 0:
            is_number = np.array([pd.api.types.is_numeric_dtype(dtype) for dtype in X.dtypes])
            self._set_numeric(np.flatnonzero(is_number))
            self._texts = {int(i): Counter() for i in np.flatnonzero(~is_number)}
        self._n_chunks += 1
        refuse_infinite(X, self.names)
        numbers = numbers_of(X, self._numeric)
        missing = np.isnan(numbers)
        size = np.abs(np.where(missing, 0, numbers)).max(0, initial=0)
        if ((size > _LARGE) | ((size > 0) & (size < 1 / _LARGE))).any():
            numbers = numbers.astype(np.longdouble)  # has room for their squares
        n = (~missing).sum(0)
        mean = np.where(missing, 0, numbers).sum(0) / np.maximum(n, 1)
        squares = np.where(missing, 0, numbers - mean) ** 2
        total = np.maximum(self._n + n, 1)
        apart = mean - self._mean
        self._squares += squares.sum(0) + apart**2 * (self._n * n / total)
        self._mean += apart * (n / total)
        self._n += n
        self._missing |= missing.any(0)
        largest = np.where(missing, -np.inf, numbers).max(0, initial=-np.inf)
        np.maximum(self._largest, largest, out=self._largest)
        for position, texts in self._texts.items():
            texts.update(count_texts(X, position))
            if len(texts) > 10 * MAX_LEVELS:  # it will be refused; do not remember them all
                levels_of(texts, self.names[position])

    def features(self) -> FeatureMap:
        """Map of rows as the networks see them."""
        if self._n_chunks == 0:
            raise DataError("there are no rows; give at least one row of data")
        scale = np.sqrt(self._squares / np.maximum(self._n, 1)).astype(np.float64)
        levels = {i: levels_of(texts, self.names[i]) for i, texts in self._texts.items()}
        if len(self._numeric) == 0 and not any(levels.values()):
            raise DataError("X has no column with a value; give at least one feature")
        return standardising(
            self._numeric,
            self._mean.astype(np.float64),
            scale,
            self._largest,
            self._missing,
            levels,
        )

    def _set_numeric(self, numeric: NDArray[np.int64]) -> None:
        self._numeric, D = numeric, len(numeric)
        self._n = np.zeros(D, np.int64)
        self._mean, self._squares = np.zeros(D, np.longdouble), np.zeros(D, np.longdouble)
        self._missing = np.zeros(D, np.bool_)
        self._largest = np.full(D, -np.inf)
