"""Sparse data sets as text: the libsvm format and that of extreme classification."""

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from mpvae.data.cells import as_float32
from mpvae.data.files import MAX_COLUMNS, bare_name, one_line, read_text
from mpvae.data.sparse import checked_csr, labels_from_csr
from mpvae.data.table import LabelledTable
from mpvae.errors import DataError


def read_svmlight(path: Path, *, columns: Sequence[str] | None = None) -> LabelledTable:
    """Table in a multi-label ``.svm`` or ``.libsvm`` file.

    A line is ``1,3,7 5:0.5 9:1``: label numbers, then feature numbers with values; text after
    ``#`` is a comment and a line without labels begins with a space. Features and labels are
    named by their numbers, from 0 if 0 occurs in the file and else from 1, up to the largest
    that occurs, at most ``MAX_COLUMNS``. Labels are dense up to ``MAX_DENSE_LABELS`` cells,
    CSR beyond.

    Parameters
    ----------
    path
        The file.
    columns
        Feature names that must be there: numbers which do not occur are columns of zeros.
    """
    file = path.name
    entries = _Entries(file)
    for number, line in _lines(read_text(path)):
        content = line.partition("#")[0]
        if content.strip():
            entries.add(content, number, MAX_COLUMNS, MAX_COLUMNS)
    if not entries.n_rows:
        raise DataError(f"{file} has no rows; give lines such as '1,3 5:0.5 9:1'")
    asked = [int(name) for name in columns or () if name.isdecimal() and len(name) < 8]
    X, feature_names = _from_first_number(entries.features(), asked)
    Y, label_names = _from_first_number(entries.labels(), [])
    if not label_names:
        return LabelledTable(X, None, feature_names, (), name=bare_name(path)[0])
    return LabelledTable(
        X=X,
        Y=labels_from_csr(Y, file=file),
        feature_names=feature_names,
        label_names=label_names,
        name=bare_name(path)[0],
    )


def read_extreme(path: Path) -> LabelledTable:
    """Table in the ``.txt`` format of the extreme classification repository.

    The first line is ``rows features labels``; each further line is ``l1,l2 f1:v1 f2:v2``,
    numbered from 0, and begins with a space where a row has no label. Features and labels are
    both CSR, named by their numbers.
    """
    file = path.name
    lines = _lines(read_text(path))
    n_rows, n_features, n_labels = _header(next(lines)[1], file)
    entries = _Entries(file)
    for number, line in lines:
        if entries.n_rows == n_rows:
            if line.strip():
                raise DataError(
                    f"{file} line {number}: the header declares {n_rows} rows but more follow; "
                    "correct the header"
                )
            continue
        entries.add(line, number, n_features, n_labels)
    if entries.n_rows != n_rows:
        raise DataError(
            f"{file}: the header declares {n_rows} rows but {entries.n_rows} follow; check "
            "that the file is complete"
        )
    return LabelledTable(
        X=entries.features(n_features),
        Y=entries.labels(n_labels).astype(np.int32),
        feature_names=tuple(map(str, range(n_features))),
        label_names=tuple(map(str, range(n_labels))),
        name=bare_name(path)[0],
    )


@dataclass(slots=True)
class _Entries:
    """Rows read so far, as growing CSR parts."""

    file: str
    n_rows: int = 0
    values: "array[float]" = field(default_factory=lambda: array("d"))
    feature_numbers: "array[int]" = field(default_factory=lambda: array("q"))
    feature_ends: "array[int]" = field(default_factory=lambda: array("q", [0]))
    label_numbers: "array[int]" = field(default_factory=lambda: array("q"))
    label_ends: "array[int]" = field(default_factory=lambda: array("q", [0]))

    def add(self, line: str, number: int, n_features: int, n_labels: int) -> None:
        """Take in one line, whose numbers must lie below the given ones."""
        tokens = line.split()
        has_labels = bool(tokens) and not line[0].isspace() and ":" not in tokens[0]
        for token in tokens.pop(0).split(",") if has_labels else ():
            self.label_numbers.append(self._number(token, n_labels, "label", number))
        for token in tokens:
            index, colon, value = token.partition(":")
            if not colon:
                raise DataError(
                    f"{self.file} line {number}: {one_line(token, 40)!r} is not of the form "
                    "number:value; labels are joined by commas without spaces"
                )
            self.feature_numbers.append(self._number(index, n_features, "feature", number))
            self.values.append(self._value(value, number))
        self._refuse_repeats(self.label_numbers, self.label_ends, "label", number)
        self._refuse_repeats(self.feature_numbers, self.feature_ends, "feature", number)
        self.label_ends.append(len(self.label_numbers))
        self.feature_ends.append(len(self.feature_numbers))
        self.n_rows += 1

    def features(self, n_features: int | None = None) -> csr_array:
        """Features (n, D) as float32."""
        values = as_float32(
            np.array(self.values, dtype=np.float64)[:, None],
            names=("of features",),
            file=self.file,
        )[:, 0]
        return self._csr(values, self.feature_numbers, self.feature_ends, n_features)

    def labels(self, n_labels: int | None = None) -> csr_array:
        """Labels (n, L) as float32 ones."""
        ones = np.ones(len(self.label_numbers), dtype=np.float32)
        return self._csr(ones, self.label_numbers, self.label_ends, n_labels)

    def _csr(
        self,
        values: NDArray[np.float32],
        numbers: "array[int]",
        ends: "array[int]",
        n_columns: int | None,
    ) -> csr_array:
        indices = np.array(numbers, dtype=np.int64)
        if n_columns is None:
            n_columns = int(indices.max()) + 1 if len(indices) else 0
        shape = (self.n_rows, n_columns)
        return checked_csr(values, indices, np.array(ends), shape, file=self.file)

    def _number(self, text: str, end: int, role: str, line: int) -> int:
        if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) >= end:
            raise DataError(
                f"{self.file} line {line}: {one_line(text, 40)!r} is not a {role} number from "
                f"0 to {end - 1}"
            )
        return int(text)

    def _value(self, text: str, line: int) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or "_" in text:
            raise DataError(
                f"{self.file} line {line}: feature value {one_line(text, 40)!r} is not a "
                "finite number"
            )
        return value

    def _refuse_repeats(
        self, numbers: "array[int]", ends: "array[int]", role: str, line: int
    ) -> None:
        row = numbers[ends[-1] :]
        if len(set(row)) != len(row):
            twice = Counter(row).most_common(1)[0][0]
            raise DataError(
                f"{self.file} line {line} names {role} {twice} twice; drop one of the two"
            )


def _lines(text: str) -> "enumerate[str]":
    lines = text.replace("\r\n", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    return enumerate(lines, start=1)


def _header(line: str, file: str) -> tuple[int, int, int]:
    tokens = line.split()
    if len(tokens) != 3 or not all(
        t.isascii() and t.isdecimal() and len(t) < 12 for t in tokens
    ):
        raise DataError(
            f"{file} line 1: expected 'rows features labels', got {one_line(line, 40)!r}; name "
            "a table with named columns .csv or .tsv instead"
        )
    n_rows, n_features, n_labels = (int(token) for token in tokens)
    if not (n_rows and 1 <= n_features <= MAX_COLUMNS and 1 <= n_labels <= MAX_COLUMNS):
        raise DataError(
            f"{file} line 1: {n_rows} rows, {n_features} features and {n_labels} labels cannot "
            f"be; rows must be at least 1, features and labels 1 to {MAX_COLUMNS:,}"
        )
    return n_rows, n_features, n_labels


def _from_first_number(
    matrix: csr_array, asked: Sequence[int]
) -> tuple[csr_array, tuple[str, ...]]:
    """Matrix and names from column 0 or, when it is not in use, from column 1."""
    used = np.unique(matrix.indices)
    width = max([matrix.shape[1], *(number + 1 for number in asked if number < MAX_COLUMNS)])
    first = 0 if 0 in used or 0 in asked else 1
    wide = csr_array(
        (matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], width)
    )
    return wide[:, first:], tuple(map(str, range(first, width)))
