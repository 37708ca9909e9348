"""From probabilities to 0/1: thresholds fitted for the metric that will be reported.

A label is taken where its probability is at least the threshold. Thresholds belong to held-out
rows, not to the rows the network was trained on.
"""

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from mpvae.config import Metric, ThresholdKind
from mpvae.errors import ConfigError, DataError
from mpvae.metrics import (
    DECISION_METRICS,
    MatrixLike,
    binary_matrix,
    check_same_shape,
    score_matrix,
)

PAPER_THRESHOLDS: tuple[float, ...] = (
    *(i / 100 for i in range(1, 11)),
    *(i / 100 for i in range(15, 100, 5)),
)
"""The authors' 27 candidates: .01, .02, ..., .10, then .15, .20, ..., .95."""

_SAME_SCORE = 1e-12  # cumulated sums of 1e7 terms carry a rounding error of this size
_SAME_DISTANCE = 1e-12
_MAX_SWEEPS = 3
_MIN_ROWS = 2


def apply_threshold(P: MatrixLike, threshold: float | NDArray[Any]) -> NDArray[np.int64]:
    """Prediction 1[p_ij >= t], or 1[p_ij >= t_j] with one threshold per label, as the authors'.

    Parameters
    ----------
    P : (n, L)
        Probabilities; compared in float64, so float32 input meets the threshold unrounded.
    threshold : float or (L,)
        From `fit_threshold`.

    Returns
    -------
    (n, L) in {0, 1}

    Raises
    ------
    DataError
        When P is not a finite matrix, or the thresholds are NaN or not one per label.
    """
    scores = score_matrix(P, "P")
    cut = np.asarray(threshold, dtype=np.float64)
    if cut.ndim > 0 and cut.shape != scores.shape[1:]:
        raise DataError(
            f"threshold has shape {cut.shape} but P has {scores.shape[1]} labels; "
            "give one number, or one per label"
        )
    if np.isnan(cut).any():
        raise DataError(f"threshold must not be NaN, got {threshold!s}")
    return (scores >= cut).astype(np.int64)


def fit_threshold(
    Y: MatrixLike,
    P: MatrixLike,
    *,
    metric: Metric,
    kind: ThresholdKind,
) -> float | NDArray[np.float64]:
    """Threshold with the highest value of the metric on these rows.

    Scores closer than 1e-12 count as equal.

    Parameters
    ----------
    Y : (n, L) in {0, 1}
        The truth of held-out rows.
    P : (n, L)
        Their probabilities.
    metric : Metric
        What to maximise.
    kind : ThresholdKind
        "paper": the best of the 27 `PAPER_THRESHOLDS`.

        "exact": the best of all real numbers, in O(nL log nL). It lies midway between two
        neighbouring probabilities (or between the extreme one and 0 or 1). For both kinds,
        of equally good thresholds the one nearest to 0.5 is returned, then the lower.

        "per_label": one threshold t_j per label, never worse on these rows than the exact
        global one. Hamming, macro-F1 and micro-F1 (Dinkelbach's iteration) are maximised
        exactly; example-F1 and subset accuracy by coordinate ascent over labels from the global
        threshold. A label leaves the global threshold only for a strictly better one, and of
        equally good ones takes the nearest to it. Labels without a positive keep the global
        threshold, and so do all when there are fewer than 2 rows.

    Returns
    -------
    float, or (L,) for "per_label"

    Raises
    ------
    DataError
        When shapes differ, Y is not 0/1, or P is not finite.
    ConfigError
        When metric or kind has an impossible value.
    """
    truth, scores = _checked(Y, P, metric)
    if kind == "paper":
        return _best_paper_threshold(truth, scores, metric)[0]
    if kind not in ("exact", "per_label"):
        raise ConfigError(f"kind must be one of {get_args(ThresholdKind)}, got {kind!r}")
    states = _states(scores.ravel())
    values = _shared_values(truth, scores, metric, states)
    shared = _nearest_best(values, states.thresholds, near=0.5)
    if kind == "exact":
        return shared
    thresholds = _per_label(truth, scores, metric, shared)
    score = DECISION_METRICS[metric]
    # Rounding aside this never happens; it makes "never worse" hold to the last digit.
    if score(truth, scores >= thresholds) < score(truth, scores >= shared):
        thresholds = np.full(truth.shape[1], shared)
    return thresholds


def expected_f1_thresholds(
    expected: NDArray[np.float64], P: NDArray[np.float64]
) -> NDArray[np.float64]:
    """One threshold per label (L,), at which its expected F1 on these rows is highest.

    Where a label is rare, the F1 of every threshold on the rows there are is mostly noise, and
    its maximum luck. With probabilities that can be believed the expected F1 is not.

    Parameters
    ----------
    expected : (n, L)
        Probability that the row has the label, all things considered; at least one row.
    P : (n, L)
        What the threshold is compared with.
    """
    n = len(P)
    order = np.argsort(-P, axis=0, kind="stable")
    p = np.take_along_axis(P, order, axis=0)
    hits = np.cumsum(np.take_along_axis(expected, order, axis=0), axis=0)
    value = _f1(hits, np.arange(1, n + 1)[:, None], hits[-1])
    value[:-1][p[:-1] == p[1:]] = -1.0  # equal scores are taken together
    last = value.argmax(axis=0)[None]  # of those taken
    lower = np.concatenate([p, np.minimum(p[-1:], 0)])
    middle = 0.5 * (np.take_along_axis(p, last, 0) + np.take_along_axis(lower, last + 1, 0))
    return np.asarray(middle[0])


def best_on_test(Y: MatrixLike, P: MatrixLike, metric: Metric) -> tuple[float, float]:
    """Best of the 27 thresholds on these very rows, and the metric's value there.

    Optimistic, as the threshold has seen the truth it is judged on. Use it only to compare with
    figures of the authors' protocol that were made this way; for anything else fit on held-out
    rows with `fit_threshold`.
    """
    truth, scores = _checked(Y, P, metric)
    return _best_paper_threshold(truth, scores, metric)


# ---------------------------------------------------------------- one threshold for all labels


@dataclass(frozen=True, slots=True)
class _States:
    """All predictions a threshold can make of m scores: from none taken to all taken.

    Equal scores move together, so there are as many states as distinct scores, plus one.
    """

    order: NDArray[np.intp]  # (m,) scores from high to low
    n_taken: NDArray[np.int64]  # (s,) 0, ..., m
    levels: NDArray[np.float64]  # (s - 1,) distinct scores, ascending
    thresholds: NDArray[np.float64]  # (s,) descending; thresholds[i] takes n_taken[i] scores

    def totals(self, changes: NDArray[Any]) -> NDArray[Any]:
        """Sum over the taken scores of the change each one makes, per state: (m,) -> (s,)."""
        sums = np.cumsum(changes[self.order])
        return np.concatenate([np.zeros(1, sums.dtype), sums])[self.n_taken]

    def index(self, threshold: Any) -> Any:
        """State that a threshold leads to: the number of distinct scores at or above it."""
        return self.levels.size - np.searchsorted(self.levels, threshold, side="left")


def _states(scores: NDArray[np.float64], *, anchor: float | None = None) -> _States:
    """States of the scores (m,); the one that `anchor` leads to has it as its threshold."""
    order = np.argsort(scores)[::-1]
    falling = scores[order]
    ends = np.flatnonzero(falling[:-1] != falling[1:]) + 1
    high, low = falling[ends - 1], falling[ends]
    middle = 0.5 * low + 0.5 * high
    # Between neighbouring floats the middle rounds to one of them; it must stay above `low`.
    middle = np.where((low < middle) & (middle <= high), middle, high)
    top, bottom = falling[0], falling[-1]
    above = max(0.5 + 0.5 * top, np.nextafter(top, np.inf))  # midway to 1, if top is below 1
    below = 0.5 * bottom if bottom > 0 else bottom
    states = _States(
        order=order,
        n_taken=np.concatenate([[0], ends, [scores.size]]),
        levels=np.append(high, bottom)[::-1].copy(),
        thresholds=np.concatenate([[above], middle, [below]]),
    )
    if anchor is not None:
        states.thresholds[states.index(anchor)] = anchor
    return states


def _shared_values(
    truth: NDArray[np.bool_], scores: NDArray[np.float64], metric: Metric, states: _States
) -> NDArray[np.float64]:
    """Value of the metric in every state when all labels share one threshold, (s,)."""
    n_rows, n_labels = truth.shape
    n_true = int(truth.sum())
    if metric == "hamming":
        return _accuracy(states.totals(truth.ravel()), states.n_taken, n_true, truth.size)
    if metric == "micro_f1":
        return _f1(states.totals(truth.ravel()), states.n_taken, n_true)
    if metric == "macro_f1":
        gains = _gains(truth.T, scores.T, _f1).T
        return np.asarray(states.totals(gains.ravel()) / n_labels)
    if metric == "subset":
        start = int((~truth.any(axis=1)).sum())
        gains = _gains(truth, scores, _all_right)
        return np.asarray((start + states.totals(gains.ravel())) / n_rows)
    total = states.totals(_gains(truth, scores, _f1).ravel())
    # A row without true labels joins the mean when its highest score is taken.
    empty = np.flatnonzero(~truth.any(axis=1))
    joins = np.zeros(truth.shape, dtype=np.int8)
    joins[empty, scores[empty].argmax(axis=1)] = 1
    counted = n_rows - empty.size + states.totals(joins.ravel())
    return _mean_of_counted(total, counted)


def _gains(truth: NDArray[np.bool_], scores: NDArray[np.float64], value: Any) -> NDArray[Any]:
    """Change of each row's value when its entry is taken after all with higher scores, (n, m).

    Within equal scores the order is arbitrary: only the sum over them, which does not depend
    on it, is ever used.
    """
    order = np.argsort(-scores, axis=1)
    hits = np.cumsum(np.take_along_axis(truth, order, axis=1), axis=1)  # (n, m)
    n_true = hits[:, -1:]  # (n, 1)
    start = value(0, 0, n_true)  # (n, 1)
    after = value(hits, np.arange(1, hits.shape[1] + 1), n_true)  # (n, m)
    gains: NDArray[Any] = np.empty_like(after)
    np.put_along_axis(gains, order, np.diff(after, axis=1, prepend=start), axis=1)
    return gains


def _f1(hits: Any, n_taken: Any, n_true: Any) -> NDArray[np.float64]:
    """F1 from counts, 2 TP / (taken + true); 0 when both are 0."""
    return np.asarray(2 * hits / np.maximum(n_taken + n_true, 1))


def _accuracy(hits: Any, n_taken: Any, n_true: int, n_entries: int) -> NDArray[np.float64]:
    """Share of entries right, from counts: those neither true nor taken, and the hits."""
    return np.asarray((n_entries - n_true - n_taken + 2 * hits) / n_entries)


def _all_right(hits: Any, n_taken: Any, n_true: Any) -> NDArray[np.int8]:
    return np.asarray((hits == n_taken) & (hits == n_true), dtype=np.int8)


def _mean_of_counted(
    total: NDArray[np.float64], counted: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Mean over the rows that count; 1 when none does, as in `metrics.example_f1`."""
    return np.where(counted > 0, total / np.maximum(counted, 1), 1.0)


# ---------------------------------------------------------------- one threshold per label


def _per_label(
    truth: NDArray[np.bool_], scores: NDArray[np.float64], metric: Metric, shared: float
) -> NDArray[np.float64]:
    thresholds = np.full(truth.shape[1], shared)
    if truth.shape[0] < _MIN_ROWS:
        return thresholds
    labels = np.flatnonzero(truth.any(axis=0))
    if metric == "micro_f1":
        return _micro_thresholds(truth, scores, labels, shared)
    if metric in ("example_f1", "subset"):
        return _ascend(truth, scores, metric, labels, shared)
    for j in labels:
        states = _states(scores[:, j], anchor=shared)
        y = truth[:, j]
        n_true = int(y.sum())
        hits = states.totals(y)
        if metric == "macro_f1":
            own = _f1(hits, states.n_taken, n_true)
        else:
            own = _accuracy(hits, states.n_taken, n_true, y.size)
        thresholds[j] = _nearest_best(own, states.thresholds, near=shared)
    return thresholds


def _micro_thresholds(
    truth: NDArray[np.bool_],
    scores: NDArray[np.float64],
    labels: NDArray[np.intp],
    shared: float,
) -> NDArray[np.float64]:
    """Thresholds with the highest micro-F1, by Dinkelbach's iteration.

    F = A / B with A, B sums over labels. Given F, each label by itself maximises A_j - F B_j;
    the F attained so rises until it is the maximum.
    """
    thresholds = np.full(truth.shape[1], shared)
    choices = []  # per label: thresholds, A_j, B_j of each state; the state of the shared one
    for j in labels:
        states = _states(scores[:, j], anchor=shared)
        numerator = 2.0 * states.totals(truth[:, j])
        denominator = states.n_taken + float(truth[:, j].sum())
        choices.append((states.thresholds, numerator, denominator))
    others = np.setdiff1d(np.arange(truth.shape[1]), labels)
    fixed = float((scores[:, others] >= shared).sum())  # predictions without any hit

    def attained(chosen: list[int]) -> float:
        above = sum(a[i] for (_, a, _), i in zip(choices, chosen, strict=True))
        under = fixed + sum(b[i] for (_, _, b), i in zip(choices, chosen, strict=True))
        return float(above / under) if under > 0 else 0.0

    chosen = [int(np.flatnonzero(t == shared)[0]) for t, _, _ in choices]
    best = attained(chosen)
    while True:  # ends: the value rises strictly, and there are finitely many choices
        chosen = [
            _nearest_best_index((a - best * b) / truth.shape[0], t, near=shared)
            for t, a, b in choices
        ]
        value = attained(chosen)
        if value <= best:
            return thresholds
        best = value
        thresholds[labels] = [t[i] for (t, _, _), i in zip(choices, chosen, strict=True)]


def _ascend(
    truth: NDArray[np.bool_],
    scores: NDArray[np.float64],
    metric: Metric,
    labels: NDArray[np.intp],
    shared: float,
) -> NDArray[np.float64]:
    """Thresholds at least as good as the shared one, by coordinate ascent over labels."""
    n_rows, n_labels = truth.shape
    thresholds = np.full(n_labels, shared)
    taken = scores >= shared  # (n, L)
    n_true = truth.sum(axis=1)  # (n,)
    hits = (truth & taken).sum(axis=1)  # (n,)
    n_taken = taken.sum(axis=1)  # (n,)
    all_states = [_states(scores[:, j], anchor=shared) for j in labels]
    for _ in range(_MAX_SWEEPS):
        moved = False
        for j, states in zip(labels, all_states, strict=True):
            y = truth[:, j]
            # The rows without label j, then with it left out (0) and taken (1).
            hits -= y & taken[:, j]
            n_taken -= taken[:, j]
            if metric == "example_f1":
                value_0 = _f1(hits, n_taken, n_true)
                value_1 = _f1(hits + y, n_taken + 1, n_true)
                counted_0 = (n_taken + n_true) > 0
                counted = counted_0.sum() + states.totals(~counted_0)
                total = value_0.sum() + states.totals(value_1 - value_0)
                own = _mean_of_counted(total, counted)
            else:
                right_0 = _all_right(hits, n_taken, n_true)
                right_1 = _all_right(hits + y, n_taken + 1, n_true)
                own = (right_0.sum(dtype=np.int64) + states.totals(right_1 - right_0)) / n_rows
            now = int(states.index(thresholds[j]))
            best = _nearest_best_index(own, states.thresholds, near=shared)
            if own[best] > own[now] + _SAME_SCORE:
                thresholds[j] = states.thresholds[best]
                taken[:, j] = scores[:, j] >= thresholds[j]
                moved = True
            hits += y & taken[:, j]
            n_taken += taken[:, j]
        if not moved:
            break
    return thresholds


# ---------------------------------------------------------------- choices and checks


def _nearest_best_index(
    values: NDArray[np.float64], thresholds: NDArray[np.float64], *, near: float
) -> int:
    """Index of the best threshold; of equally good ones the nearest to `near`, then lowest."""
    best = np.flatnonzero(values >= values.max() - _SAME_SCORE)
    distance = np.abs(thresholds[best] - near)
    # Not the plain minimum: in floating point .45 is not exactly as far from .5 as .55.
    nearest = best[distance <= distance.min() + _SAME_DISTANCE]
    return int(nearest[thresholds[nearest].argmin()])


def _nearest_best(
    values: NDArray[np.float64], thresholds: NDArray[np.float64], *, near: float
) -> float:
    return float(thresholds[_nearest_best_index(values, thresholds, near=near)])


def _best_paper_threshold(
    truth: NDArray[np.bool_], scores: NDArray[np.float64], metric: Metric
) -> tuple[float, float]:
    score = DECISION_METRICS[metric]
    values = np.array([score(truth, scores >= t) for t in PAPER_THRESHOLDS])
    i = _nearest_best_index(values, np.array(PAPER_THRESHOLDS), near=0.5)
    return PAPER_THRESHOLDS[i], float(values[i])


def _checked(
    Y: MatrixLike, P: MatrixLike, metric: Metric
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    if metric not in DECISION_METRICS:
        raise ConfigError(f"metric must be one of {get_args(Metric)}, got {metric!r}")
    truth, scores = binary_matrix(Y, "Y"), score_matrix(P, "P")
    check_same_shape(truth, scores, "P")
    return truth, scores
