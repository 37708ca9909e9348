"""What a service answers: rows and known labels by name in, numbers out. No HTTP here."""

import contextlib
import csv
import difflib
import io
import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mpvae.config import Metric
from mpvae.data import read_table
from mpvae.errors import DataError, is_unicode
from mpvae.estimator import MPVAEClassifier
from mpvae.features import is_number
from mpvae.report.model_figures import label_places
from mpvae.writing import records

Row: TypeAlias = Mapping[str, Any]
Known: TypeAlias = Mapping[str, Any]
MAX_ROWS = 1000
"""Rows of one question."""
MAX_OTHERS = 1000
"""Columns of a file that are no features."""
UPLOAD = "upload.csv"
"""What a table that was sent is called in messages."""
MAX_MAPPED = 3000
"""Labels above which there is no map of them."""


class Answers:
    """Questions to a fitted model, one at a time, rows and labels being named.

    Rows and known labels may be anything that JSON can hold: they are checked here.
    """

    def __init__(self, model: MPVAEClassifier, examples: pd.DataFrame | None = None) -> None:
        self.model = model
        self.features = features_of(model)
        self.labels = [str(name) for name in model.label_names_]
        self._place = {name: k for k, name in enumerate(self.labels)}
        self._examples = examples

    def warm_up(self) -> None:
        """Do once what takes longer the first time."""
        features = {feature["name"]: feature["usual"] for feature in self.features}
        rows = self.about["examples"][:1] or [features]
        self.predict(rows, None)
        if self.model.multilabel_:
            self.conditional(rows, [{self.labels[0]: 1}])

    @cached_property
    def about(self) -> dict[str, Any]:
        """Features, labels and rows to begin with, for a page that asks."""
        mapped = 1 < len(self.labels) <= MAX_MAPPED
        places = label_places(self.model) if mapped else None
        named = pd.DataFrame({"name": self.labels})
        if places is not None:
            named = named.join(places.reset_index(drop=True))
        return {
            "features": self.features,
            "labels": records(named),
            "examples": [] if self._examples is None else self.as_rows(self._examples),
        }

    def predict(self, rows: Sequence[Row], metric: Metric | None) -> dict[str, Any]:
        """Marginal probability of every label; decisions for a metric, if one is named."""
        X = self.table(rows)
        found = {"labels": self.labels, "probabilities": self._marginals(X).tolist()}
        if metric is not None:
            decided = np.asarray(self.model.predict(X, metric=metric))
            found["decisions"] = decided.reshape(len(rows), -1).astype(int).tolist()
        return found

    def conditional(self, rows: Sequence[Row], known: Sequence[Known]) -> dict[str, Any]:
        """Probability of every label given those that are known."""
        X, given = self.table(rows), self._known(known, len(rows))
        marginals = self._marginals(X)
        P, ess = marginals, np.full(len(rows), np.nan)
        if not np.isnan(given).all():
            P, ess = self.model.predict_conditional(X, given, return_ess=True)
        return {
            "labels": self.labels,
            "probabilities": np.asarray(P).tolist(),
            "marginals": marginals.tolist(),
            "effective_draws": _finite(ess),
        }

    def joint(self, rows: Sequence[Row], labels: Sequence[Known]) -> dict[str, Any]:
        """Log-probability of the labels that are given, together."""
        X, given = self.table(rows), self._known(labels, len(rows))
        values, errors = self.model.log_prob(X, given, return_std=True)
        return {"log_prob": _finite(values), "standard_error": _finite(errors)}

    def associations(self, top: int, label: str | None) -> list[dict[str, Any]]:
        """The strongest pairs, of all labels or of one."""
        if label is not None and label not in self._place:
            raise DataError(self._unknown(label, self.labels, "label"))
        few = len(self.labels) <= MAX_MAPPED
        pairs = self.model.associations(top=None if label is not None and few else 50 * top)
        if label is not None:
            pairs = pairs[(pairs["label_a"] == label) | (pairs["label_b"] == label)]
        return records(pairs.head(top))

    def rows_of_csv(self, text: bytes) -> list[dict[str, Any]]:
        """Rows of a CSV file that has the model's features among its columns."""
        names = [feature["name"] for feature in self.features]
        _check_size(text, len(names))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / UPLOAD
            file.write_bytes(text)
            X = read_table(file, columns=names).features()
        if len(X) > MAX_ROWS:
            raise DataError(f"{UPLOAD} has {len(X)} rows; give at most {MAX_ROWS} at a time")
        for feature in self.features:
            if "levels" not in feature:  # one text makes texts of all: the others are numbers
                X[feature["name"]] = _numbers(X[feature["name"]])
        rows = self.as_rows(X)
        try:
            self.table(rows)  # refuses text where there should be numbers
        except DataError as error:
            raise DataError(f"{UPLOAD}, {error}") from None
        return rows

    def as_rows(self, X: pd.DataFrame) -> list[dict[str, Any]]:
        """Rows of a table by the names of the features, empty cells as None."""
        names = [feature["name"] for feature in self.features]
        return records(X[names])

    def table(self, rows: Sequence[Row]) -> Any:
        """Rows as the model takes them, every value checked."""
        if not 1 <= len(rows) <= MAX_ROWS:
            raise DataError(f"{len(rows)} rows; give from 1 to {MAX_ROWS} at a time")
        names = [feature["name"] for feature in self.features]
        columns: dict[str, list[Any]] = {name: [] for name in names}
        for i, row in enumerate(rows):
            strange = next((name for name in row if name not in columns), None)
            if strange is not None:
                raise DataError(f"row {i + 1}: {self._unknown(strange, names, 'feature')}")
            lacking = next((name for name in names if name not in row), None)
            if lacking is not None:
                raise DataError(
                    f"row {i + 1} lacks {lacking!r}; give every feature, null where unknown"
                )
            for feature in self.features:
                columns[feature["name"]].append(_checked(row[feature["name"]], feature, i))
        frame = pd.DataFrame(columns)
        return frame if hasattr(self.model, "feature_names_in_") else frame.to_numpy()

    def _marginals(self, X: Any) -> NDArray[np.float64]:
        P = np.asarray(self.model.predict_proba(X))
        return P if self.model.multilabel_ else P[:, 1:]

    def _known(self, known: Sequence[Known], n_rows: int) -> NDArray[np.float64]:
        if len(known) != n_rows:
            raise DataError(f"{n_rows} rows but labels of {len(known)}; give them for each row")
        given = np.full((n_rows, len(self.labels)), np.nan)
        for i, row in enumerate(known):
            for name, value in row.items():
                if name not in self._place:
                    raise DataError(f"row {i + 1}: {self._unknown(name, self.labels, 'label')}")
                if isinstance(value, bool) or value not in (0, 1):
                    raise DataError(
                        f"row {i + 1}: label {name!r} is {_short(value)}; "
                        "give 1 (present) or 0 (absent)"
                    )
                given[i, self._place[name]] = value
        return given

    @staticmethod
    def _unknown(name: str, names: Sequence[str], kind: str) -> str:
        # comparing takes the square of the length: a name of megabytes is near to none
        near = difflib.get_close_matches(name, names, 1) if len(name) <= 100 else []
        hint = f"did you mean {near[0]!r}?" if near else "see /about"
        return f"{_short(name)} is no {kind} of the model; {hint}"


def features_of(model: MPVAEClassifier) -> list[dict[str, Any]]:
    """Name and a usual value of each feature, and the levels of those that have such."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        names = [str(k) for k in range(model.n_features_in_)]
    features = model.features_
    usual: dict[int, Any] = {
        int(k): float(mean) for k, mean in zip(features.numeric, features.mean, strict=True)
    }
    found = []
    for k, name in enumerate(map(str, names)):
        if k in features.levels:
            levels = list(features.levels[k])
            found.append(
                {"name": name, "levels": levels, "usual": levels[0] if levels else None}
            )
        else:
            found.append({"name": name, "usual": usual.get(k)})
    return found


def _check_size(text: bytes, n_features: int) -> None:
    """Refuse a CSV file that would take long to read; the rest is left to who reads it."""
    n_lines = text.count(b"\n") + text.count(b"\r")  # a row may have several
    if n_lines > 20 * MAX_ROWS:
        raise DataError(f"{UPLOAD} has {n_lines:,} lines; give at most {MAX_ROWS} rows")
    head = text.decode("utf-8", "replace")
    for separator in ",;":
        with contextlib.suppress(csv.Error):
            cells = next(csv.reader(io.StringIO(head, newline=""), delimiter=separator), [])
            if len(cells) > n_features + MAX_OTHERS:
                raise DataError(
                    f"{UPLOAD} has {len(cells):,} columns; give those of the model, and at "
                    f"most {MAX_OTHERS} others"
                )


def _numbers(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """The same cells; texts that are numbers as such."""
    if pd.api.types.is_numeric_dtype(column.dtype):
        return column
    return column.astype(object).map(
        lambda cell: float(cell) if isinstance(cell, str) and is_number(cell) else cell
    )


def _checked(value: Any, feature: Mapping[str, Any], row: int) -> Any:
    """A cell: a finite number, or a text where the feature is a category."""
    if value is None:
        return np.nan if "levels" not in feature else None
    if "levels" in feature and isinstance(value, str | bool | int | float):
        if not is_unicode(str(value)):
            raise DataError(
                f"row {row + 1}: {feature['name']!r} holds half of a character; give Unicode"
            )
        return str(value)
    number = _number(value)
    if number is None:
        wanted = "a text" if "levels" in feature else "a finite number"
        raise DataError(
            f"row {row + 1}: {feature['name']!r} is {_short(value)}; give {wanted}, or null"
        )
    return number


def _number(value: Any) -> float | None:
    """A finite number as float; None if it is none."""
    if not isinstance(value, bool | int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def _finite(values: NDArray[np.float64]) -> list[float | None]:
    """Numbers as JSON has them: null where one is not finite."""
    return [float(x) if math.isfinite(x) else None for x in values]


def _short(value: Any) -> str:
    """A value as an error shows it, however long it is."""
    if isinstance(value, str):
        return repr(value if len(value) <= 80 else value[:80] + "...")
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of many digits"  # Python refuses to write out the longest
    return repr(value)
