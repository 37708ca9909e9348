r"""Boosted trees for all labels at once: each round corrects what is still wrong.

Gradient boosting (Friedman 2001) of the logistic loss. A round grows one extremely randomised
tree on the gradients of all labels, or on random mixtures of them where they are many, so
labels share their splits; every leaf then takes a Newton step for each label. The number of
rounds, and what is said of a row by trees that have not seen it, come from folds that are
boosted side by side, until their rows left out gain no more.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, logit, ndtri_exp
from sklearn.tree import ExtraTreeRegressor

from mpvae.calibration import fit_line
from mpvae.data import stratified_folds
from mpvae.errors import DataError
from mpvae.features import Matrix, dense
from mpvae.trees import (
    CELLS,
    MAX_SAMPLE,
    Trees,
    features_tried,
    for_trees,
    leaf_matrix,
    mixed,
    n_threads,
)

MAX_ROUNDS = 200
_BLOCK = 20  # rounds between two looks at the rows left out
_RATE = 0.1
_LEAST_ROWS = 2
_SAMPLE = 0.5  # share of the rows a tree is grown on
_LEAST_LEAF = 5
_PENALTY = 1.0  # on the curvature of a leaf
_FEW_ROWS, _FOLDS_OF_FEW, _FOLDS = 5000, 5, 3


@dataclass(frozen=True, slots=True, eq=False)
class Boosting:
    """Boosted trees, their sum calibrated on the probit scale."""

    trees: Trees
    value: NDArray[np.float32]  # (leaves, L): what a leaf adds to the log-odds
    start: NDArray[np.float64]  # (L,): log-odds before the first tree
    slope: NDArray[np.float64]
    shift: NDArray[np.float64]

    def evidence(self, X: Matrix) -> NDArray[np.float64]:
        """Probit of each label's probability, (n, L)."""
        found = np.empty((X.shape[0], len(self.start)))
        number = self.trees.leaf_numbers()
        step = max(1, CELLS // max(len(self.trees.roots), X.shape[1], len(self.start)))
        for begin in range(0, X.shape[0], step):
            piece = slice(begin, begin + step)
            leaves = number[self.trees.leaves(X[piece])]
            added = leaf_matrix(leaves, len(self.value), np.float32) @ self.value
            found[piece] = self.slope * _probit(self.start + added) + self.shift
        return found

    def weighted(self, weight: NDArray[np.float64]) -> Self:
        """The same, its evidence multiplied by a weight for each label, (L,)."""
        return replace(self, slope=weight * self.slope, shift=weight * self.shift)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything by name, for a file."""
        names = ("value", "start", "slope", "shift")
        return dict(self.trees._asdict()) | {name: getattr(self, name) for name in names}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], n_features: int, n_labels: int
    ) -> Self:
        """From what `arrays` gave; ValueError where it does not fit features and labels."""
        trees = Trees(*(arrays[name] for name in Trees._fields))
        trees.check(n_features)
        value = arrays["value"]
        by_label = [arrays[name] for name in ("start", "slope", "shift")]
        if (
            value.shape != (np.count_nonzero(trees.feature < 0), n_labels)
            or value.dtype != np.float32
            or any(a.shape != (n_labels,) or a.dtype != np.float64 for a in by_label)
        ):
            raise ValueError("boosted trees do not fit the labels")
        if not all(np.isfinite(a).all() for a in (value, *by_label)):
            raise ValueError("boosted trees hold values that are not finite")
        return cls(trees, value, *by_label)


def fit_boosting(
    X: Matrix, Y: Matrix, weight: NDArray[np.float64], seed: int
) -> tuple[Boosting, NDArray[np.float64]]:
    """Boost trees on all rows, and say what each row's evidence is by trees without it.

    Parameters
    ----------
    X : matrix of shape (n, D)
        Features.
    Y : matrix of shape (n, L)
        Labels, NaN where not observed.
    weight : ndarray of shape (n,)
        Weights of the rows.
    seed : int
        Of folds, samples and splits.

    Returns
    -------
    boosting : Boosting
    left_out : ndarray of shape (n, L)
        Evidence on the probit scale.
    """
    truth = dense(Y).astype(np.float64)
    n = len(truth)
    if n < _LEAST_ROWS:
        raise DataError(
            f"boosted trees need at least {_LEAST_ROWS} rows that differ, got {n}; give more "
            "rows, or another base"
        )
    x = for_trees(X)
    n_folds = min(_FOLDS_OF_FEW if n <= _FEW_ROWS else _FOLDS, n)
    folds = stratified_folds(Y, n_folds, seed=seed)
    runs = [
        _Run.begin(x, truth, weight, np.flatnonzero(folds != k), seed + k, keeps=False)
        for k in range(n_folds)
    ]
    best, rounds, left_out = np.inf, 0, np.zeros(truth.shape)
    with ThreadPoolExecutor(n_threads()) as pool:
        while runs[0].rounds < MAX_ROUNDS:
            list(pool.map(_Run.boost, runs))
            unseen = np.empty(truth.shape)
            for k, run in enumerate(runs):
                unseen[folds == k] = run.log_odds[folds == k]
            loss = _loss(truth, unseen, weight)
            if rounds and not loss < best:
                break
            best, rounds, left_out = loss, runs[0].rounds, unseen
    whole = _Run.begin(x, truth, weight, np.arange(n), seed + n_folds, keeps=True)
    while whole.rounds < rounds:
        whole.boost()
    q = _probit(left_out)
    slope, shift = fit_line(Y, q, weight)
    boosting = Boosting(
        Trees.of(whole.trees), np.concatenate(whole.values), whole.start, slope, shift
    )
    return boosting, slope * q + shift


@dataclass(slots=True, eq=False)
class _Run:
    """Boosting on some of the rows; the others are carried along."""

    x: Matrix
    truth: NDArray[np.float64]  # (n, L)
    weight: NDArray[np.float64]
    learn: NDArray[np.int64]  # rows to learn from
    start: NDArray[np.float64]
    log_odds: NDArray[np.float32]  # (n, L), of all rows so far
    rng: np.random.Generator
    keeps: bool  # the trees, or only what they say of the rows
    rounds: int = 0
    trees: list[Any] = field(default_factory=list)
    values: list[NDArray[np.float32]] = field(default_factory=list)

    @classmethod
    def begin(
        cls,
        x: Matrix,
        truth: NDArray[np.float64],
        weight: NDArray[np.float64],
        learn: NDArray[np.int64],
        seed: int,
        *,
        keeps: bool,
    ) -> "_Run":
        known = truth[learn]
        w = np.where(np.isnan(known), 0, weight[learn][:, None])
        share = ((w * np.nan_to_num(known)).sum(0) + 0.5) / (w.sum(0) + 1)
        start = logit(share)
        log_odds = np.tile(start.astype(np.float32), (len(truth), 1))
        rng = np.random.default_rng(seed)
        return cls(x, truth, weight, learn, start, log_odds, rng, keeps)

    def boost(self) -> None:
        """A block of rounds."""
        size = min(MAX_SAMPLE, max(1, round(_SAMPLE * len(self.learn))))
        for _ in range(_BLOCK):
            rows = self.rng.permutation(self.learn)[:size]
            P = expit(self.log_odds[rows].astype(np.float64))
            seen = ~np.isnan(self.truth[rows])
            gradient = np.where(seen, self.truth[rows] - P, 0)
            tree = ExtraTreeRegressor(
                max_depth=_depth(len(self.learn)),
                min_samples_leaf=_LEAST_LEAF,
                max_features=features_tried(self.x),
                random_state=int(self.rng.integers(2**31)),
            )
            w = self.weight[rows]
            tree.fit(self.x[rows], mixed(gradient, self.rng), sample_weight=w)
            leaf = tree.apply(self.x)
            n_nodes = tree.tree_.node_count
            of_leaf = leaf_matrix(leaf[rows, None], n_nodes, np.float64).T
            curve = np.where(seen, P * (1 - P), 0)
            up = of_leaf @ (w[:, None] * gradient)
            value = _RATE * up / (of_leaf @ (w[:, None] * curve) + _PENALTY)
            self.log_odds += value.astype(np.float32)[leaf]
            self.rounds += 1
            if self.keeps:
                self.trees.append(tree.tree_)
                self.values.append(value.astype(np.float32)[tree.tree_.children_left < 0])


def _depth(n: int) -> int:
    """Of a tree: some 16 rows a leaf, were it balanced."""
    return int(np.clip(round(np.log2(max(n, 1) / 16)), 3, 10))


def _loss(
    truth: NDArray[np.float64], log_odds: NDArray[np.float64], weight: NDArray[np.float64]
) -> float:
    sign = 2 * truth - 1  # NaN where not observed
    return float(-np.nansum(weight[:, None] * log_expit(sign * log_odds)))


def _probit(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probit of the same probability; from the side on which it is not rounded to 1."""
    away = ndtri_exp(log_expit(-np.abs(log_odds)))  # of the smaller of p and 1 - p
    return np.asarray(np.where(log_odds > 0, -away, away))
