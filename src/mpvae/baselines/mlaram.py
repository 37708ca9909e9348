r"""ML-ARAM and HARAM: a fuzzy associative map from boxes in feature space to label sets.

F. Benites and E. Sapozhnikova, "HARAM: a Hierarchical ARAM Neural Network for Large-Scale Text
Classification", ICDM Workshops (2015) 847-854; the multi-label ARAM it extends is theirs too,
of 2010. A neuron is a box: the least one, with corners ``u`` and ``v``, around the training
rows it learnt. In complement coding a row is :math:`I = (x, 1 - x)`, of norm
:math:`|I| = \sum_d I_d = D`, and a neuron :math:`w = (u, 1 - v)`. With ``min`` as the fuzzy
AND, a row

* activates a neuron by the choice function :math:`T = |I \wedge w| / (\alpha + |w|)`;
* may join it if it passes the vigilance test, :math:`|I \wedge w| / |I| \ge \rho`, which bounds
  the box by :math:`\sum_d (v_d - u_d) \le (1 - \rho) D`, and if it has the same label set (a
  vigilance of 1 for the labels);
* joins the most activated of those, :math:`w \leftarrow I \wedge w` (fast learning), or else
  becomes a neuron of its own.

There is no match tracking, which the authors found of no use with many labels. HARAM presents
the neurons in turn to a second, unsupervised layer of the same kind, whose boxes are clusters
of neurons; a row then activates only the neurons of its best clusters.

Shape letters: ``n`` rows, ``D`` features, ``L`` labels, ``M`` neurons or clusters.
"""

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from mpvae.baselines.base import Baseline, Scaling, is_integer, require
from mpvae.features import Matrix

Decision = Literal["half", "drop"]

_CELLS = 2**23  # activations held at once: bounds memory
_ALPHA = 1e-9  # choice parameter: smaller boxes first, and no division by zero


class MLARAM(Baseline):
    """Multi-label ARAM, with HARAM's clusters of neurons, of Benites and Sapozhnikova (2015).

    The score of a label is the share it has in the neurons that won, each weighted by its
    activation and the number of rows it learnt. Rows are presented in the order given.

    Parameters
    ----------
    vigilance : float
        In [0, 1]. The higher, the smaller the boxes: at 1, every distinct row is one.
    threshold : float
        A neuron wins along with the best one if its activation falls short of that by at most
        this share of the range of activations (times the best activation).
    n_clusters : int or None
        Clusters a row activates. None activates every neuron, without a second layer: plain
        ML-ARAM.
    cluster_vigilance : float
        Vigilance of the second layer.
    decision : {"half", "drop"}
        How `predict` decides on more than one label: scores of at least one half, or those
        before the greatest drop (the first of equals) in the row's ranking, as in the
        authors' program. `predict_proba` is the same for both.

    Attributes
    ----------
    neurons_ : Boxes
        The neurons: their corners ``low`` and ``high``, each of shape (M, D).
    labels_ : csr_array of shape (M, L)
        Label set of each neuron.
    rows_ : ndarray of shape (M,)
        Training rows each neuron learnt.

    Notes
    -----
    Fitting takes O(n M_s D) time, M_s the neurons with a row's own label set, and O(M^2 D) at
    most for clusters; a prediction O(M D + M L) per row, for M the neurons activated. For
    sparse rows D counts stored entries only. Memory is O(M D).
    """

    _scaling: Scaling = "minmax"

    def __init__(
        self,
        vigilance: float = 0.9,
        threshold: float = 0.02,
        *,
        n_clusters: int | None = None,
        cluster_vigilance: float = 0.8,
        decision: Decision = "half",
    ) -> None:
        self.vigilance = vigilance
        self.threshold = threshold
        self.n_clusters = n_clusters
        self.cluster_vigilance = cluster_vigilance
        self.decision = decision

    def predict(self, X: Any) -> Any:
        """Labels by the rule ``decision``; shape (n, L), or (n,) for one label."""
        check_is_fitted(self)
        if not self.multilabel_ or len(self.label_names_) < 2 or self.decision == "half":
            return super().predict(X)
        return self._wrap(_before_drop(self._marginals(X)), X, self.label_names_)

    def _check(self) -> None:
        for name in ("vigilance", "threshold", "cluster_vigilance"):
            value = getattr(self, name)
            require(name, value, 0 <= value <= 1, "in [0, 1]")
        k = self.n_clusters
        ok = k is None or (is_integer(k) and bool(k >= 1))
        require("n_clusters", k, ok, "None or an integer >= 1")
        known = get_args(Decision)
        require("decision", self.decision, self.decision in known, f"one of {known}")

    def _learn(self, X: Matrix, Y: NDArray[np.float64], seed: int) -> None:
        sets, of_row = np.unique(Y.astype(bool), axis=0, return_inverse=True)
        X = _unit(X)
        order = np.argsort(of_row.ravel(), kind="stable")
        groups = np.split(order, np.cumsum(np.bincount(of_row.ravel()))[:-1])
        learnt = [_fuzzy_art(_as_boxes(X[rows]), self.vigilance) for rows in groups]
        self.neurons_ = Boxes(
            np.vstack([boxes.low for boxes, _ in learnt]),
            np.vstack([boxes.high for boxes, _ in learnt]),
        )
        n_each = [len(boxes.low) for boxes, _ in learnt]
        self.labels_ = sp.csr_array(np.repeat(sets, n_each, axis=0).astype(np.float64))
        self.rows_ = np.concatenate([np.bincount(joined) for _, joined in learnt])
        if self.n_clusters is not None:
            self.clusters_, cluster = _fuzzy_art(self.neurons_, self.cluster_vigilance)
            by_cluster = np.argsort(cluster, kind="stable")
            ends = np.cumsum(np.bincount(cluster))[:-1]
            self.members_ = np.split(by_cluster, ends)  # neurons of each cluster

    def _probabilities(self, X: Matrix) -> NDArray[np.float64]:
        X = _unit(X)
        step = max(1, _CELLS // len(self.rows_))
        parts = [self._scores(X[i : i + step]) for i in range(0, X.shape[0], step)]
        return np.vstack(parts)

    def _scores(self, X: Matrix) -> NDArray[np.float64]:
        T = np.maximum(self._activations(X), _ALPHA)  # (rows, M); NaN where not activated
        best, least = np.nanmax(T, 1, keepdims=True), np.nanmin(T, 1, keepdims=True)
        wins = (best - T) <= self.threshold * (best - least) * best
        weight = sp.csr_array(np.where(wins, T * self.rows_, 0))
        share: NDArray[np.float64] = (weight @ self.labels_).toarray()
        total: NDArray[np.float64] = np.asarray(weight.sum(1))
        return share / total[:, None]

    def _activations(self, X: Matrix) -> NDArray[np.float64]:
        if self.n_clusters is None:
            return _choice(X, self.neurons_)
        T = np.full((X.shape[0], len(self.rows_)), np.nan)
        of_clusters = _choice(X, self.clusters_)
        best = np.argsort(-of_clusters, axis=1, kind="stable")[:, : self.n_clusters]
        for k in np.unique(best):
            rows = np.flatnonzero((best == k).any(1))
            members = self.members_[k]
            inside = Boxes(self.neurons_.low[members], self.neurons_.high[members])
            T[np.ix_(rows, members)] = _choice(X[rows], inside)
        return T


class Boxes(NamedTuple):
    """Boxes in the unit cube, by their corners."""

    low: NDArray[np.float32]  # (M, D)
    high: NDArray[np.float32]  # (M, D)


def _fuzzy_art(inputs: Boxes, vigilance: float) -> tuple[Boxes, NDArray[np.int64]]:
    """Boxes around groups of the inputs, presented in turn, and the box each input joined."""
    n, width = inputs.low.shape
    low, high = np.empty_like(inputs.low), np.empty_like(inputs.high)
    below, norm = np.empty(n), np.empty(n)  # |1 - v| and |w|
    joined = np.empty(n, np.int64)
    m = 0
    for i in range(n):
        u, v = inputs.low[i], inputs.high[i]
        c = _columns(v)
        common = below[:m] + _gain(u[c], v[c], low[:m, c], high[:m, c])  # |I AND w|
        size = width - float(np.sum(v - u, dtype=np.float64))  # |I|
        passes = common >= vigilance * size - 1e-9 * width  # but for rounding
        if passes.any():
            winner = int(np.argmax(np.where(passes, common / (_ALPHA + norm[:m]), -1)))
            np.minimum(low[winner], u, out=low[winner])
            np.maximum(high[winner], v, out=high[winner])
        else:
            winner, m = m, m + 1
            low[winner], high[winner] = u, v
        below[winner] = width - np.sum(high[winner], dtype=np.float64)
        norm[winner] = below[winner] + np.sum(low[winner], dtype=np.float64)
        joined[i] = winner
    return Boxes(low[:m].copy(), high[:m].copy()), joined


def _choice(X: Matrix, boxes: Boxes) -> NDArray[np.float64]:
    """Activation of each box by each row, shape (rows, M)."""
    width = boxes.low.shape[1]
    below = width - np.sum(boxes.high, axis=1, dtype=np.float64)
    norm = below + np.sum(boxes.low, axis=1, dtype=np.float64)
    if _is_binary(X) and _is_binary(boxes.low) and _is_binary(boxes.high):
        # With 0 and 1, min is the product: whole numbers, exact in float32.
        rows = sp.csr_array(X)
        gain = rows @ np.ascontiguousarray((boxes.low + boxes.high).T)
        common = below + gain - rows.sum(1)[:, None]
    else:
        common = np.empty((X.shape[0], len(below)))
        for i in range(X.shape[0]):
            x = X[[i]].toarray()[0] if sp.issparse(X) else X[i]
            c = _columns(x)
            common[i] = below + _gain(x[c], x[c], boxes.low[:, c], boxes.high[:, c])
    return np.asarray(common / (_ALPHA + norm), dtype=np.float64)


def _gain(u: Any, v: Any, low: Any, high: Any) -> NDArray[np.float64]:
    """|I AND w| - |1 - high| for the input box (u, v), shape (M,).

    Columns where ``v`` is 0 add nothing to it: sparse rows may leave them out.
    """
    above = np.maximum(v - high, 0).sum(1, dtype=np.float64)
    return np.asarray(np.minimum(u, low).sum(1, dtype=np.float64) - above)


def _columns(v: NDArray[np.float32]) -> Any:
    """Columns that are not 0, or all where a copy of them would cost more."""
    c = np.flatnonzero(v)
    return c if 2 * len(c) < len(v) else slice(None)


def _as_boxes(X: Matrix) -> Boxes:
    dense = X.toarray() if sp.issparse(X) else X
    return Boxes(dense, dense)


def _unit(X: Matrix) -> Matrix:
    """Features as float32 in [0, 1]: a new row may lie outside what training had."""
    if sp.issparse(X):
        return sp.csr_array((_unit(X.data), X.indices, X.indptr), X.shape)
    return np.clip(X, 0, 1).astype(np.float32)


def _is_binary(X: Matrix) -> bool:
    values = X.data if sp.issparse(X) else X
    return bool(((values == 0) | (values == 1)).all())


def _before_drop(p: NDArray[np.float64]) -> NDArray[np.int64]:
    """Labels ranked before the greatest drop of the scores; none where no label scores."""
    ranked = -np.sort(-p, axis=1)
    drop = ranked[:, :-1] - ranked[:, 1:]
    # Two neurons of as many rows make equal drops: the first, however they were rounded.
    last = np.argmax(drop >= drop.max(1, keepdims=True) - 1e-9, axis=1)[:, None]
    chosen = (p >= np.take_along_axis(ranked, last, 1)) & (p > np.finfo(np.float64).tiny)
    return chosen.astype(np.int64)
