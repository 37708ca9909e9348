"""How good a model is on rows it has not seen, beside a forest, for a report."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from mpvae import metrics
from mpvae.config import Metric
from mpvae.data import LabelledTable
from mpvae.decisions import apply_threshold, fit_threshold
from mpvae.errors import DataError
from mpvae.estimator import MPVAEClassifier
from mpvae.features import dense

OURS, FOREST = "mpvae", "random forest"
_TREES, _FEWEST_TREES = 300, 20
_FOREST_CELLS = 10**8  # rows x labels x trees, at most: minutes
_RESAMPLES = 200
_TEST_SHARE = 0.2
_FEWEST_ROWS = 10
_SIZES = ("latent_dim", "n_factors", "hidden", "hidden_labels", "hidden_decoder")
"""Settings that are taken from the networks there are, not from what a folder asks for."""
_SHOWN: dict[Metric, str] = {
    "example_f1": "example F1",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "hamming": "Hamming accuracy",
}


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Rows that no method has seen, and what each says of them."""

    X: Any
    Y: NDArray[np.float64]  # (n, L)
    P: dict[str, NDArray[np.float64]]  # method -> probabilities (n, L)
    Z: dict[str, dict[Metric, NDArray[np.int64]]]  # method -> metric -> decisions
    rows: NDArray[np.int64]  # (n,) their places in the table
    how: str  # which rows these are, as a sentence
    model: MPVAEClassifier  # the one that was judged

    def scores(self) -> pd.DataFrame:
        """``method``, ``metric``, ``score`` and a 95 % interval over rows (bootstrap)."""
        n = len(self.Y)
        times = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), _RESAMPLES)
        found = []
        for method, decided in self.Z.items():
            for metric, title in _SHOWN.items():
                score = metrics.DECISION_METRICS[metric](self.Y, decided[metric])
                values = resampled(self.Y, decided[metric], metric, times.astype(np.float64))
                low, high = np.quantile(values, (0.025, 0.975))
                found.append((method, title, score, low, high))
        return pd.DataFrame(found, columns=["method", "metric", "score", "low", "high"])

    def by_label(self) -> pd.DataFrame:
        """A row for each label: how often it is there, F1 and AUC."""
        Z = self.Z[OURS]["macro_f1"]
        P = self.P[OURS]
        found = []
        for k, name in enumerate(map(str, self.model.label_names_)):
            y = self.Y[:, k]
            mixed = 0 < y.sum() < len(y)
            found.append(
                {
                    "label": name,
                    "prevalence": y.mean(),
                    "f1": metrics.macro_f1(y[:, None], Z[:, [k]]),
                    "auc": roc_auc_score(y, P[:, k]) if mixed else np.nan,
                }
            )
        return pd.DataFrame(found)


def resampled(
    Y: NDArray[np.float64],
    Z: NDArray[np.int64],
    metric: Metric,
    times: NDArray[np.float64],
) -> NDArray[np.float64]:
    """A metric of samples in which each row stands so many ``times``: (samples, n).

    As the functions of `mpvae.metrics` on each sample, but by sums over rows.
    """
    hits, size = Y * Z, Y + Z
    if metric == "hamming":
        return np.asarray(times @ (Y == Z).mean(1) / times.sum(1))
    if metric == "micro_f1":
        return np.asarray(2 * times @ hits.sum(1) / np.maximum(times @ size.sum(1), 1))
    if metric == "macro_f1":
        return np.asarray((2 * times @ hits / np.maximum(times @ size, 1)).mean(1))
    of_row = size.sum(1)  # example F1: rows without any label are left out
    counted = of_row > 0
    f1 = 2 * hits.sum(1) / np.maximum(of_row, 1)
    n_counted = times @ counted
    return np.where(n_counted > 0, times @ f1 / np.maximum(n_counted, 1), 1.0)


def judge(
    model: MPVAEClassifier,
    table: LabelledTable,
    *,
    unseen: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> Judged:
    """Score a model on rows it has not seen, beside a forest that learns from the others.

    Parameters
    ----------
    model : MPVAEClassifier
        Fitted.
    table : LabelledTable
        Rows with labels. With an official split the model has learnt from its training rows
        and is judged on its test rows. Without one the rows may be those it has learnt from:
        a model with the same parameters is trained on four fifths of them, and judged on the
        rest.
    unseen : bool
        Whether the model has seen none of the rows: it is judged on all of them, alone.
    on_step : callable
        Told what is being done.
    """
    if table.Y is None:
        raise DataError(f"{table.name} has no labels; a report needs them for its scores")
    if unseen:
        how = f"{len(table)} rows that are new to the model"
        return _judged(model, None, table, np.arange(len(table)), how, on_step)
    if "test" in table.splits and "train" in table.splits:
        learn, ask = table.split("train"), table.split("test")
        how = f"the {len(ask)} test rows of the official split"
        return _judged(model, learn, ask, table.splits["test"], how, on_step)
    if len(table) < _FEWEST_ROWS:
        raise DataError(
            f"{table.name} has {len(table)} rows; a report learns from four fifths of at least "
            f"{_FEWEST_ROWS} and judges on the rest: give more rows, rows that are new to the "
            "model (--unseen), or no table"
        )
    learn_rows, ask_rows = map(
        np.sort,
        train_test_split(np.arange(len(table)), test_size=_TEST_SHARE, random_state=0),
    )
    learn, ask = table.rows(learn_rows), table.rows(ask_rows)
    on_step("training on four fifths of the rows")
    sizes = {name: getattr(model.settings_, name) for name in _SIZES}
    again = clone(model).set_params(n_members=len(model.networks_), verbose=0, **sizes)
    again.fit(learn.features(), learn.labels())
    how = (
        f"{len(ask)} rows, a fifth of the table at random; a model with the same parameters "
        f"learnt from the other {len(learn)}"
    )
    return _judged(again, learn, ask, ask_rows, how, on_step)


def _judged(
    model: MPVAEClassifier,
    learn: LabelledTable | None,
    ask: LabelledTable,
    rows: NDArray[np.int64],
    how: str,
    on_step: Callable[[str], None],
) -> Judged:
    on_step("predicting")
    X, Y = ask.features(), _truth(ask)
    ours = np.asarray(model.predict_proba(X))
    if model.multilabel_:
        decided = {m: np.asarray(model.predict(X, metric=m)) for m in _SHOWN}
    else:  # one label, absent and present
        ours = ours[:, 1:]
        decided = dict.fromkeys(_SHOWN, (ours > 0.5).astype(np.int64))
    P, Z = {OURS: ours}, {OURS: decided}
    if learn is not None:
        on_step("growing a forest to compare with")
        P[FOREST], Z[FOREST] = _forest(model, learn, X)
    return Judged(X, Y, P, Z, rows, how, model)


def _forest(
    model: MPVAEClassifier, learn: LabelledTable, X: Any
) -> tuple[NDArray[np.float64], dict[Metric, NDArray[np.int64]]]:
    """Probabilities and decisions of a forest; thresholds from rows out of its bags."""
    x, Y = _features(model, learn.features()), _truth(learn)
    n_trees = int(np.clip(_FOREST_CELLS // Y.size, _FEWEST_TREES, _TREES))
    forest = RandomForestClassifier(n_trees, min_samples_leaf=3, random_state=0)
    forest.fit(x, Y if Y.shape[1] > 1 else Y[:, 0])
    held_out = _out_of_bag(forest, x, Y.shape[1])
    P = _present(forest, _features(model, X), Y.shape[1])
    decided = {
        metric: apply_threshold(P, fit_threshold(Y, held_out, metric=metric, kind="exact"))
        for metric in _SHOWN
    }
    return P, decided


def _out_of_bag(
    forest: RandomForestClassifier, x: NDArray[np.float32], n_labels: int
) -> NDArray[np.float64]:
    """Mean over the trees that have not learnt from a row."""
    total, n_trees = np.zeros((len(x), n_labels)), np.zeros(len(x))
    for tree, rows in zip(forest.estimators_, forest.estimators_samples_, strict=True):
        outside = np.ones(len(x), bool)
        outside[rows] = False
        if not outside.any():  # a bag of all rows, where there are few
            continue
        total[outside] += _present(tree, x[outside], n_labels)
        n_trees += outside
    return total / np.maximum(n_trees, 1)[:, None]


def _present(forest: Any, x: NDArray[np.float32], n_labels: int) -> NDArray[np.float64]:
    """Probability that each label is present; constant labels have one class."""
    each = forest.predict_proba(x)
    each = [each] if n_labels == 1 else each
    classes = [forest.classes_] if n_labels == 1 else forest.classes_
    P = np.zeros((len(x), n_labels))
    for k, (p, have) in enumerate(zip(each, classes, strict=True)):
        at = np.flatnonzero(np.asarray(have) == 1)
        if len(at):
            P[:, k] = p[:, at[0]]
    return P


def _features(model: MPVAEClassifier, X: Any) -> NDArray[np.float32]:
    """Columns as the model maps them: numbers, for a forest."""
    return np.asarray(dense(model.features_.apply(model._check_features(X, reset=False))))


def _truth(table: LabelledTable) -> NDArray[np.float64]:
    Y = table.labels().to_numpy(np.float64)
    if np.isnan(Y).any():
        raise DataError(
            f"{table.name} has empty label cells; a report scores every label: leave those "
            "rows out"
        )
    return np.asarray(Y)


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A row, one label that is known of it, and what that does to the others."""

    row: int  # of the table
    known: str
    before: NDArray[np.float64]
    after: NDArray[np.float64]


def examples(judged: Judged, n: int = 3, n_rows: int = 60) -> list[Example]:
    """Rows in which knowing one label that is there moves the others most."""
    model, names = judged.model, list(map(str, judged.model.label_names_))
    if len(names) < 2 or not model.multilabel_:
        return []
    pairs = model.associations(top=min(8 * n, len(names) * (len(names) - 1) // 2))
    candidates = list(dict.fromkeys(map(str, pairs[["label_a", "label_b"]].to_numpy().ravel())))
    found: list[Example] = []
    used: set[int] = set()
    for known in candidates:
        k = names.index(known)
        rows = [int(i) for i in np.flatnonzero(judged.Y[:, k] == 1) if int(i) not in used]
        if not rows:
            continue
        rows = rows[:n_rows]
        given = np.full((len(rows), len(names)), np.nan)
        given[:, k] = 1
        before = judged.P[OURS][rows]
        after = np.asarray(model.predict_conditional(_some(judged.X, rows), given))
        moved = np.abs(np.delete(after - before, k, axis=1)).sum(1)
        best = int(np.argmax(moved))
        row = int(judged.rows[rows[best]])
        found.append(Example(row, known, before[best], after[best]))
        used.add(rows[best])
        if len(found) == n:
            break
    return found


def _some(X: Any, rows: list[int]) -> Any:
    return X.iloc[rows] if isinstance(X, pd.DataFrame) else X[rows]
