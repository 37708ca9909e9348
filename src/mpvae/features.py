"""Features as the networks see them: standardised, one-hot, missing values marked.

Fitted on training rows only. Knows three kinds of input: a numeric matrix, a data frame whose
columns may be numbers or categories, and a SciPy sparse matrix, which stays sparse.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import ndtri

from mpvae.errors import DataError

Matrix: TypeAlias = Any  # ndarray or sp.csr_array, of shape (n, columns)
ROW_LENGTH = 10.0
"""Euclidean length of a sparse row as the networks see it: a long text says no more."""
N_KNOTS = 201
"""Quantiles a numeric column is described by where its ranks are what counts."""
MAX_DISCRETE = 20
"""Columns with no more distinct values than this are standardised, not ranked."""
_FAR = 30.0  # times the usual largest value: a column in another unit
KNOT_SHARES = np.linspace(0, 1, N_KNOTS)
"""Share of the training rows at or below each of these quantiles."""
OUTER_SHARE = 0.5 / N_KNOTS
"""Where the outermost ranks are put: 2.8 standard deviations."""
_LARGEST = 8e307  # numbers beyond it count as this: their differences would overflow
SMALLEST = 1e-307
"""To divide by: the inverse of what is smaller overflows."""
MAX_LEVELS = 100
"""A text column with more distinct values than this is taken for an identifier and refused."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureMap:
    """What was learnt about the columns of the training table; `apply` maps any table with it.

    Output columns: the numeric ones, standardised (a missing value becomes 0, the mean); a
    0/1 column for each numeric one that had missing values in training; one 0/1 column per
    level of each categorical one (a level not seen in training, or a missing one, is all 0).
    """

    numeric: NDArray[np.int64]  # positions of the numeric columns
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    marked: NDArray[np.int64]  # positions, within numeric, of columns with a missing marker
    levels: dict[int, tuple[str, ...]]  # position of a categorical column -> its levels
    row_length: float | None = None  # Euclidean length rows are brought to; None: left alone
    knots: NDArray[np.float64] | None = (
        None  # (numeric, N_KNOTS) quantiles, or NaN: standardised
    )

    @property
    def n_outputs(self) -> int:
        """Number of columns the networks see."""
        return len(self.numeric) + len(self.marked) + sum(map(len, self.levels.values()))

    @property
    def fitted_sparse(self) -> bool:
        """Whether scaling alone maps a row, so that zeros stay zeros."""
        dense = self.knots is not None or self.mean.any() or len(self.marked) or self.levels
        return not dense

    def apply(self, X: Matrix | pd.DataFrame) -> Matrix:
        """Features of shape (n, n_outputs), float32; sparse in, sparse out."""
        if sp.issparse(X):
            if not self.fitted_sparse:
                return self.apply(
                    sp.csr_array(X).toarray()
                )  # as wide as the rows it was fitted on
            scaled = sp.csr_array(X.multiply(1 / np.maximum(self.scale, SMALLEST)))
            scaled.data = np.clip(scaled.data, -_LARGEST, _LARGEST)
            if self.row_length is not None:
                scaled = _to_length(scaled, self.row_length)
            scaled.data = _float32(scaled.data)
            return scaled
        parts = []
        numbers = _bounded(numbers_of(X, self.numeric))
        if self.row_length is not None:  # fitted on sparse rows: map these as one of them
            return self.apply(sp.csr_array(np.where(np.isnan(numbers), 0, numbers))).toarray()
        with np.errstate(over="ignore"):  # 1e300 in a column of 1e-300: cut off below
            z = (numbers - self.mean) / self.scale
        missing = np.isnan(z)
        if self.knots is not None:
            for j in np.flatnonzero(~np.isnan(self.knots[:, 0])):
                z[:, j] = _normal_scores(numbers[:, j], self.knots[j])
        parts.append(_float32(np.where(missing, 0, z)))
        parts.append(missing[:, self.marked].astype(np.float32))
        for position, levels in self.levels.items():
            text = _text(X, position)
            parts.append((text[:, None] == np.array(levels, dtype=object)).astype(np.float32))
        return np.hstack(parts) if len(parts) > 1 else parts[0]


def with_quantiles(
    features: FeatureMap, X: Matrix | pd.DataFrame, weight: NDArray[np.float64]
) -> FeatureMap:
    """The same map, but numeric columns become the normal scores of their ranks.

    A network learns faster from columns without long tails. Columns of few distinct values
    stay standardised, and so does a sparse matrix.
    """
    if sp.issparse(X) or len(features.numeric) == 0:
        return features
    numbers = _bounded(numbers_of(X, features.numeric))
    knots = np.full((numbers.shape[1], N_KNOTS), np.nan)
    for j, column in enumerate(numbers.T):
        known = ~np.isnan(column)
        values = column[known]
        if len(np.unique(values)) > MAX_DISCRETE:
            order = np.argsort(values, kind="stable")
            share = np.cumsum(weight[known][order])
            # Smallest value with so much weight at or below it: a weight is a repetition.
            at = np.searchsorted(share, KNOT_SHARES * share[-1] * (1 - 1e-12))
            knots[j] = values[order][np.minimum(at, len(values) - 1)]
    return replace(features, knots=knots)


def fit_features(
    X: Matrix | pd.DataFrame,
    weight: NDArray[np.float64],
    names: tuple[str, ...],
    texts: Mapping[int, Counter[str]] | None = None,
) -> FeatureMap:
    """Learn means, scales and levels from the training rows, each counted by its weight.

    ``texts``: those of each column of text, counted before equal rows were merged.

    A sparse matrix is not centred. Its columns share one unit, as counts of words do, but for
    those with far larger values; a column counts for more the fewer rows it is found in
    (inverse document frequency), and rows are brought to one length. A constant column gets
    scale 1.
    """
    nothing = np.empty(0, np.int64)
    if sp.issparse(X):
        every = np.arange(X.shape[1])
        scale = _sparse_scale(X, weight)
        return FeatureMap(every, np.zeros(X.shape[1]), scale, nothing, {}, ROW_LENGTH)
    if isinstance(X, pd.DataFrame):
        texts = count_all_texts(X, np.ones(len(X))) if texts is None else texts
        numeric = np.array([i for i in range(X.shape[1]) if i not in texts], np.int64)
        levels = {i: levels_of(counted, names[i]) for i, counted in texts.items()}
    else:
        numeric, levels = np.arange(X.shape[1]), {}
    if len(numeric) == 0 and not any(levels.values()):
        raise DataError("X has no column with a value; give at least one feature")
    numbers = _bounded(numbers_of(X, numeric))
    missing = np.isnan(numbers)
    known = np.where(missing, 0, weight[:, None])
    total = known.sum(0)
    total = np.where(total > 0, total, 1)
    filled = np.where(missing, 0, numbers)
    mean = (filled * (known / total)).sum(0)  # divide first: 1e300 does not overflow
    spread = np.where(missing, 0, numbers - mean)
    largest = np.abs(spread).max(0, initial=0)
    unit = np.where(largest > 0, largest, 1)
    scale = unit * np.sqrt(((spread / unit) ** 2 * (known / total)).sum(0))
    largest = np.where(missing, -np.inf, numbers).max(0, initial=-np.inf)
    return standardising(numeric, mean, scale, largest, np.asarray(missing.any(0)), levels)


def standardising(
    numeric: NDArray[np.int64],
    mean: NDArray[np.float64],
    scale: NDArray[np.float64],
    largest: NDArray[np.float64],
    missing: NDArray[np.bool_],
    levels: dict[int, tuple[str, ...]],
) -> FeatureMap:
    """Map from means, standard deviations and largest values of the numeric columns."""
    # Rounding leaves a constant column of 0.1 a spread of 1e-17: not a scale to divide by.
    scale = np.where(scale > 10 * np.finfo(np.float64).eps * np.abs(mean), scale, 0)
    # Nor is the mean of a constant 1e18 exact: take the value itself.
    mean = np.where((scale == 0) & np.isfinite(largest), largest, mean)
    marked = np.flatnonzero(missing).astype(np.int64)
    return FeatureMap(numeric, mean, _safe_scale(scale), marked, levels)


def refuse_infinite(X: Matrix | pd.DataFrame, names: tuple[str, ...]) -> None:
    """Raise a DataError naming the columns of X with an infinite value (or a sparse NaN)."""
    if sp.issparse(X):
        bad = np.unique(X.indices[~np.isfinite(X.data)])
        what, remedy = "inf or NaN", "replace them; in a dense X, NaN is allowed"
    else:
        numeric = np.arange(X.shape[1])
        if isinstance(X, pd.DataFrame):
            numeric = np.flatnonzero([pd.api.types.is_numeric_dtype(t) for t in X.dtypes])
        bad = numeric[np.isinf(numbers_of(X, numeric)).any(0)]
        what, remedy = "inf", "replace them with finite numbers, or with NaN for missing"
    if len(bad):
        raise DataError(f"X contains {what} in {listed([names[i] for i in bad])}; {remedy}")


def row_keys(X: Matrix | pd.DataFrame) -> NDArray[np.uint64]:
    """Fingerprint of every row, shape (n, 2): equal rows have equal keys anywhere."""
    n = X.shape[0]
    keys = np.zeros((n, 2), np.uint64)
    salts = np.random.default_rng(20200101).integers(1, 2**63, (2, X.shape[1])).view(np.uint64)
    if sp.issparse(X):
        entries = np.asarray(X.data)
        stored = np.flatnonzero(entries)  # a zero counts the same, written down or not
        values = _bits(entries[stored])
        rows = np.repeat(np.arange(n), np.diff(X.indptr))[stored]
        for k in range(2):
            np.add.at(keys[:, k], rows, _mix(values ^ salts[k, X.indices[stored]]))
        return keys
    for j in range(X.shape[1]):
        if isinstance(X, pd.DataFrame) and not pd.api.types.is_numeric_dtype(X.dtypes.iloc[j]):
            values = pd.util.hash_array(_text(X, j))
        else:
            values = _bits(numbers_of(X, np.array([j]))[:, 0])
        for k in range(2):
            keys[:, k] += _mix(values ^ salts[k, j])
    return keys


def dense(X: Matrix) -> NDArray[Any]:
    """The same numbers, dense."""
    return np.asarray(X.toarray() if sp.issparse(X) else X)


def beside(X: Matrix, *columns: NDArray[np.float32]) -> Matrix:
    """Features and more columns in one matrix; sparse stays sparse."""
    if not columns:
        return X
    if sp.issparse(X):
        return sp.csr_array(sp.hstack([X, *map(sp.csr_array, columns)], format="csr"))
    return np.hstack([X, *columns])


def with_short_positions(X: Matrix) -> Matrix:
    """The same matrix; a sparse one with positions of 32 bits, all that scikit-learn takes."""
    if not sp.issparse(X) or X.indices.dtype == np.int32 or X.nnz >= 2**31:
        return X
    short = (a.astype(np.int32) for a in (X.indices, X.indptr))
    return sp.csr_array((X.data, *short), shape=X.shape)


def csr_from_file(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], n_columns: int
) -> Matrix:
    """Sparse matrix from arrays of a file; ValueError where they cannot be one."""
    if not all(a.ndim == 1 and a.dtype in (np.int32, np.int64) for a in (indices, indptr)):
        raise ValueError("positions of a sparse matrix are not integers")
    if (
        data.shape != indices.shape
        or len(indptr) < 1
        or indptr[0] != 0
        or indptr[-1] != len(indices)
        or (indptr[1:] < indptr[:-1]).any()  # a difference could overflow
        or (len(indices) and not 0 <= indices.min() <= indices.max() < n_columns)
    ):
        raise ValueError("a sparse matrix does not fit its columns")
    return sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, n_columns))


def numbers_of(X: Matrix | pd.DataFrame, columns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numeric columns, NaN where a cell is empty."""
    if not isinstance(X, pd.DataFrame):
        return np.asarray(X[:, columns], dtype=np.float64)
    part = X.iloc[:, columns]
    try:
        return part.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        text = [
            str(name)
            for name, dtype in part.dtypes.items()
            if not pd.api.types.is_numeric_dtype(dtype)
        ]
        raise DataError(
            f"X holds text in {listed(text)}, where training had numbers ({error})"
        ) from error


def _bounded(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(numbers, -_LARGEST, _LARGEST)


def _text(X: Matrix | pd.DataFrame, position: int) -> NDArray[np.object_]:
    """Column as text, None where missing; the number 1.0 is "1", as an integer would be."""
    column = X.iloc[:, position] if isinstance(X, pd.DataFrame) else pd.Series(X[:, position])
    words = column.astype(str)
    values = column.cat.categories if isinstance(column.dtype, pd.CategoricalDtype) else column
    if pd.api.types.is_float_dtype(values.dtype):
        words = words.str.removesuffix(".0")
    text: NDArray[np.object_] = words.to_numpy(dtype=object, copy=True)
    text[column.isna().to_numpy()] = None
    return text


def count_texts(X: pd.DataFrame, position: int) -> Counter[str]:
    """How often each text stands in a column; missing cells are left out."""
    return Counter(text for text in _text(X, position) if text is not None)


def count_all_texts(
    X: Matrix | pd.DataFrame, rows_meant: NDArray[np.float64]
) -> dict[int, Counter[str]]:
    """As `count_texts` for every column of text, a row counted as the rows it stands for."""
    found = {}
    for i, dtype in enumerate(X.dtypes if isinstance(X, pd.DataFrame) else ()):
        if not pd.api.types.is_numeric_dtype(dtype):
            codes, texts = pd.factorize(_text(X, i))
            there = codes >= 0  # -1: missing
            often = np.bincount(codes[there], rows_meant[there], len(texts))
            found[i] = Counter({t: round(k) for t, k in zip(texts, often, strict=True) if k})
    return found


def levels_of(texts: Counter[str], name: str) -> tuple[str, ...]:
    """Levels of a categorical column; DataError where it is no such column."""
    n = texts.total()
    odd = [text for text in texts if not is_number(text)]
    if len(texts) > 10 and 0 < sum(texts[text] for text in odd) <= 0.05 * n:
        raise DataError(
            f"column {name!r} holds numbers, but also {odd[0]!r}; correct it, or "
            "leave the cell empty if the value is missing"
        )
    most = min(MAX_LEVELS, max(10, n // 2))
    if len(texts) > most:
        raise DataError(
            f"column {name!r} has {len(texts)} distinct text values in "
            f"{n} rows, more than {most}: leave it out if it is an identifier or a "
            "date, or encode it as numbers"
        )
    return tuple(sorted(texts))


def is_number(text: str) -> bool:
    """Whether readers of tables take it for a number: not 1_000, nor digits beyond 0 to 9."""
    if "_" in text or not text.isascii():
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def _normal_scores(
    values: NDArray[np.float64], knots: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Values by their rank among the training rows, as quantiles of a normal distribution.

    Where knots coincide the middle of their shares is taken; beyond them the last share.
    """
    below = np.interp(values, knots, KNOT_SHARES)
    above = np.interp(-values, -knots[::-1], -KNOT_SHARES[::-1])
    with np.errstate(invalid="ignore"):
        middle = 0.5 * (below - above)
    lost = np.flatnonzero(~np.isfinite(middle))  # between knots 1e-310 apart: ranks will do
    if len(lost):
        sides = (np.searchsorted(knots, values[lost], side) for side in ("left", "right"))
        middle[lost] = (0.5 * sum(sides) - 0.5) / (N_KNOTS - 1)
    return np.asarray(ndtri(np.clip(middle, OUTER_SHARE, 1 - OUTER_SHARE)))


def _to_length(X: Matrix, length: float) -> Matrix:
    """Sparse rows scaled to a Euclidean length; a row of zeros stays one."""
    largest = _safe_scale(abs(X).max(axis=1).toarray().ravel())  # 1e200 squared overflows
    parts = sp.csr_array(X.multiply(1 / np.maximum(largest, SMALLEST)[:, None]))
    norm = _safe_scale(np.sqrt(parts.multiply(parts).sum(axis=1)))
    return sp.csr_array(parts.multiply(length / norm[:, None]))


def _sparse_scale(X: Matrix, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """What to divide sparse columns by: the rarer, and the smaller in value, the less."""
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    total = weight.sum()
    there = sp.csr_array(((X.data != 0).astype(np.float64), X.indices, X.indptr), shape=X.shape)
    share = np.asarray(weight @ there) / total
    largest = abs(X).max(axis=0).toarray().ravel().astype(np.float64)
    above = np.sort(largest[largest > 0])
    usual = above[len(above) // 2] if len(above) else 1.0  # a mean of two could overflow
    unit = np.maximum(largest / _FAR, usual)
    return np.asarray(unit / (1 + np.log((1 + total) / (1 + share * total))))


def _safe_scale(scale: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(scale > 0, scale, 1.0)


def _float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Values rounded to float32; what is too large becomes the largest, not infinity."""
    largest = float(np.finfo(np.float32).max)
    return np.clip(values, -largest, largest).astype(np.float32)


def row_hashes(numbers: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """A random number for each row, from its number and a seed alone."""
    return _mix(_mix(numbers.astype(np.uint64)) + np.uint64(seed % 2**64))


def _bits(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Bit pattern of float64 values, the two zeros alike."""
    return (np.asarray(values, dtype=np.float64) + 0.0).view(np.uint64)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64 bits (the finaliser of the splitmix64 generator)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def listed(names: list[str], most: int = 5) -> str:
    """Names of columns, for a message; not more than a few."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    plural = "columns" if len(names) > 1 else "column"
    return f"{plural} {', '.join(map(str, names[:most]))}{more}"
