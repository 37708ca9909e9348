r"""A forest of extremely randomised trees kept as arrays: who shares a leaf with whom.

Extra trees (Geurts, Ernst and Wehenkel 2006) predict a row by the labels of the training rows
that fall into its leaves. So it is enough to keep the splits, the leaf of each training row in
each tree, and the labels: nothing of size leaves x labels. Trees are grown on the labels, or on
random mixtures of them where they are many (Joly et al. 2014), each on its own sample of the
rows; the trees that did not see a row say what the forest thinks of it.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.tree import ExtraTreeRegressor

from mpvae.calibration import fit_line
from mpvae.features import Matrix

N_TREES = 200
MAX_TARGETS = 48
"""More labels than this are mixed into as many targets to grow the trees on."""
MAX_SAMPLE = 10_000
"""Rows a tree is grown on, at most."""
_SAMPLE = 0.7  # share of the rows a tree sees
_CELLS = 2**24  # rows x trees, or rows x features, at a time: bounds memory
_PRIOR = 0.5  # draws of the label's frequency added to each row's votes, out of `N_TREES`


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Trees one after the other; children are positions in the arrays, a leaf has none."""

    roots: NDArray[np.int64]  # (T,)
    left: NDArray[np.int32]  # (nodes,); its sibling is one further in `right`
    right: NDArray[np.int32]
    feature: NDArray[np.int32]  # -1 in a leaf
    threshold: NDArray[np.float64]
    member_indptr: NDArray[np.int64]  # (nodes + 1,): training rows of each leaf ...
    member_rows: NDArray[np.int32]  # ... one after the other
    labels: sp.csr_array  # (n, L), 0/1; not observed counts as the label's frequency, below
    observed: sp.csr_array | None  # (n, L), 1 where a label is observed; None: everywhere
    prior: NDArray[np.float64]  # (L,)
    slope: NDArray[np.float64]
    shift: NDArray[np.float64]

    def evidence(self, X: Matrix) -> NDArray[np.float64]:
        """Probit of each label's probability, (n, L)."""
        n = X.shape[0]
        found = np.empty((n, len(self.prior)))
        step = max(1, _CELLS // max(len(self.roots), X.shape[1]))
        for start in range(0, n, step):
            piece = slice(start, min(n, start + step))
            votes = self.votes(self.leaves(X[piece]), np.ones((1, len(self.roots)), bool))
            found[piece] = self.slope * _probit(votes) + self.shift
        return found

    def leaves(self, X: Matrix) -> NDArray[np.int64]:
        """Position of the leaf each row falls into, tree by tree; (n, T)."""
        x = np.asarray(X.toarray() if sp.issparse(X) else X, np.float32)
        node = np.broadcast_to(self.roots, (len(x), len(self.roots))).copy()
        rows = np.arange(len(x))[:, None]
        while True:
            feature = self.feature[node]
            inner = feature >= 0
            if not inner.any():
                return node
            goes_left = x[rows, feature] <= self.threshold[node]
            node = np.where(
                inner, np.where(goes_left, self.left[node], self.right[node]), node
            )

    def votes(
        self, leaves: NDArray[np.int64], counts: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Mean over the trees that count of the share of each label in the leaf; (n, L)."""
        n, T = leaves.shape
        at = self.member_indptr[leaves.ravel()]
        size = self.member_indptr[leaves.ravel() + 1] - at
        size = np.where(np.broadcast_to(counts, leaves.shape).ravel(), size, 0)
        place = np.repeat(at - np.concatenate([[0], np.cumsum(size)[:-1]]), size)
        members = self.member_rows[place + np.arange(size.sum())]
        share = np.repeat(1 / np.maximum(size, 1), size)
        indptr = np.concatenate([[0], np.cumsum(size.reshape(n, T).sum(1))])
        near = sp.csr_array((share, members, indptr), shape=(n, self.labels.shape[0]))
        if self.observed is None:
            total = (size.reshape(n, T) > 0).sum(1)[:, None].astype(np.float64)
        else:
            total = np.asarray((near @ self.observed).toarray())
        present = np.asarray((near @ self.labels).toarray())
        return np.asarray((present + _PRIOR * self.prior) / (total + _PRIOR))


def fit_forest(
    X: Matrix, Y: Matrix, weight: NDArray[np.float64], seed: int
) -> tuple[Forest, NDArray[np.float64]]:
    """Grow a forest, and say what each row's evidence is by the trees that did not see it.

    Parameters
    ----------
    X : matrix of shape (n, D)
        Features.
    Y : matrix of shape (n, L)
        Labels, NaN where not observed.
    weight : ndarray of shape (n,)
        How much a row counts when splits are chosen.
    seed : int
        Of samples and splits.

    Returns
    -------
    forest : Forest
    left_out : ndarray of shape (n, L)
        Evidence on the probit scale.
    """
    truth = np.asarray(Y.toarray() if sp.issparse(Y) else Y, np.float64)
    n, L = truth.shape
    seen = ~np.isnan(truth)
    prior = (np.where(seen, truth, 0).sum(0) + 0.5) / (seen.sum(0) + 1)
    filled = np.where(seen, truth, prior)
    rng = np.random.default_rng(seed)
    target = filled
    if L > MAX_TARGETS:
        target = (filled - prior) @ rng.normal(size=(L, MAX_TARGETS))
    x = sp.csc_array(X) if sp.issparse(X) else np.asarray(X, np.float32)
    x_rows = sp.csr_array(X) if sp.issparse(X) else x
    size = min(MAX_SAMPLE, max(1, round(_SAMPLE * n)))
    jobs = [(rng.permutation(n)[:size], int(rng.integers(2**31))) for _ in range(N_TREES)]

    def grow(job: tuple[NDArray[np.int64], int]) -> ExtraTreeRegressor:
        rows, seed_of_tree = job
        tree = ExtraTreeRegressor(max_features="sqrt", random_state=seed_of_tree)
        return tree.fit(x_rows[rows], target[rows], sample_weight=weight[rows])

    with ThreadPoolExecutor(_n_threads()) as pool:
        trees = list(pool.map(grow, jobs))
    forest = _as_arrays(trees, jobs, x_rows, truth, seen, prior)
    inside = np.zeros((n, N_TREES), bool)
    for t, (rows, _) in enumerate(jobs):
        inside[rows, t] = True
    leaves = np.stack([tree.apply(x_rows) for tree in trees], axis=1) + forest.roots
    votes = np.vstack(
        [
            forest.votes(leaves[part], ~inside[part])
            for part in np.array_split(np.arange(n), -(-n * N_TREES // _CELLS))
        ]
    )
    q = _probit(votes)
    slope, shift = fit_line(truth, q, weight)
    calibrated = Forest(
        **{f: getattr(forest, f) for f in Forest.__dataclass_fields__ if f not in ("slope", "shift")},
        slope=slope,
        shift=shift,
    )
    return calibrated, slope * q + shift


def _n_threads() -> int:
    import os

    return max(1, int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))


def _as_arrays(trees, jobs, x_rows, truth, seen, prior) -> Forest:
    sizes = [tree.tree_.node_count for tree in trees]
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    left, right, feature, threshold, rows_of, leaf_of = [], [], [], [], [], []
    for root, tree, (rows, _) in zip(roots, trees, jobs, strict=True):
        nodes = tree.tree_
        left.append(nodes.children_left + root)
        right.append(nodes.children_right + root)
        feature.append(np.where(nodes.children_left < 0, -1, nodes.feature))
        threshold.append(nodes.threshold)
        leaf_of.append(tree.apply(x_rows[rows]) + root)
        rows_of.append(rows)
    leaf, row = np.concatenate(leaf_of), np.concatenate(rows_of)
    order = np.argsort(leaf, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(leaf, minlength=sum(sizes)))])
    L = truth.shape[1]
    return Forest(
        roots,
        np.concatenate(left).astype(np.int32),
        np.concatenate(right).astype(np.int32),
        np.concatenate(feature).astype(np.int32),
        np.concatenate(threshold).astype(np.float64),
        indptr.astype(np.int64),
        row[order].astype(np.int32),
        sp.csr_array(np.where(seen, truth, 0)),
        None if seen.all() else sp.csr_array(seen.astype(np.float64)),
        prior,
        np.ones(L),
        np.zeros(L),
    )


def _probit(p: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(ndtri(p))
