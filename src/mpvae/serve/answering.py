"""What a service answers: rows and known labels by name in, numbers out. No HTTP here."""

import difflib
import math
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mpvae.config import Metric
from mpvae.data import read_table
from mpvae.errors import DataError
from mpvae.estimator import MPVAEClassifier
from mpvae.report.model_figures import label_places
from mpvae.writing import records

Row: TypeAlias = Mapping[str, float | str | None]
Known: TypeAlias = Mapping[str, int]
MAX_ROWS = 1000
"""Rows of one question."""
UPLOAD = "upload.csv"
"""What a table that was sent is called in messages."""
MAX_MAPPED = 3000
"""Labels above which there is no map of them."""


class Answers:
    """Questions to a fitted model, one at a time, rows and labels being named."""

    def __init__(self, model: MPVAEClassifier, examples: pd.DataFrame | None = None) -> None:
        self.model = model
        self.features = features_of(model)
        self.labels = [str(name) for name in model.label_names_]
        self._place = {name: k for k, name in enumerate(self.labels)}
        self._examples = examples
        self._one = threading.Lock()  # threads of torch are enough

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
        with self._one:
            found = {"labels": self.labels, "probabilities": self._marginals(X).tolist()}
            if metric is not None:
                decided = np.asarray(self.model.predict(X, metric=metric))
                found["decisions"] = decided.reshape(len(rows), -1).astype(int).tolist()
        return found

    def conditional(self, rows: Sequence[Row], known: Sequence[Known]) -> dict[str, Any]:
        """Probability of every label given those that are known."""
        X, given = self.table(rows), self._known(known, len(rows))
        with self._one:
            marginals = self._marginals(X)
            P, ess = marginals, np.full(len(rows), np.nan)
            if not np.isnan(given).all():
                P, ess = self.model.predict_conditional(X, given, return_ess=True)
        return {
            "labels": self.labels,
            "probabilities": np.asarray(P).tolist(),
            "marginals": marginals.tolist(),
            "effective_draws": [None if np.isnan(n) else float(n) for n in ess],
        }

    def joint(self, rows: Sequence[Row], labels: Sequence[Known]) -> dict[str, Any]:
        """Log-probability of the labels that are given, together."""
        X, given = self.table(rows), self._known(labels, len(rows))
        with self._one:
            values, errors = self.model.log_prob(X, given, return_std=True)
        return {"log_prob": values.tolist(), "standard_error": errors.tolist()}

    def associations(self, top: int, label: str | None) -> list[dict[str, Any]]:
        """The strongest pairs, of all labels or of one."""
        if label is not None and label not in self._place:
            raise DataError(self._unknown(label, self.labels, "label"))
        with self._one:
            n_labels = len(self.labels)
            wanted = None if label is not None and n_labels <= MAX_MAPPED else 50 * top
            pairs = self.model.associations(top=wanted)
        if label is not None:
            pairs = pairs[(pairs["label_a"] == label) | (pairs["label_b"] == label)]
        return records(pairs.head(top))

    def rows_of_csv(self, text: bytes) -> list[dict[str, Any]]:
        """Rows of a CSV file that has the model's features among its columns."""
        names = [feature["name"] for feature in self.features]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / UPLOAD
            file.write_bytes(text)
            X = read_table(file, columns=names).features()
        if len(X) > MAX_ROWS:
            raise DataError(f"{UPLOAD} has {len(X)} rows; give at most {MAX_ROWS} at a time")
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
                if value not in (0, 1):
                    raise DataError(
                        f"row {i + 1}: label {name!r} is {value!r}; give 1 (present) or 0"
                    )
                given[i, self._place[name]] = value
        return given

    @staticmethod
    def _unknown(name: str, names: Sequence[str], kind: str) -> str:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else "see /about"
        return f"{name[:80]!r} is no {kind} of the model; {hint}"


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


def _checked(value: Any, feature: Mapping[str, Any], row: int) -> Any:
    """A cell: a finite number, or a text where the feature is a category."""
    name = feature["name"]
    if value is None:
        return np.nan if "levels" not in feature else None
    if "levels" in feature:
        return str(value)
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise DataError(f"row {row + 1}: {name!r} is {value!r:.80}; give a finite number, or null")
