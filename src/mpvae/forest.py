r"""A forest of extremely randomised trees kept as arrays: who shares a leaf with whom.

Extra trees (Geurts, Ernst and Wehenkel 2006) predict a row by the labels of the training rows
that fall into its leaves. So it is enough to keep the splits, the training rows of each leaf,
and the labels: nothing of size leaves x labels. Trees are grown on the labels, or on random
mixtures of them where they are many (Joly et al. 2014), each on its own sample of the rows; the
trees that did not see a row say what the forest thinks of it.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.tree import ExtraTreeRegressor

from mpvae.calibration import fit_line
from mpvae.features import Matrix, csr_from_file, dense
from mpvae.trees import CELLS, MAX_SAMPLE, Trees, features_tried, for_trees, mixed, n_threads

N_TREES = 200
_LEAST_LEAF = 3
_SAMPLE = 0.7  # share of the rows a tree sees
PRIOR = 0.5
"""Trees that vote for the label's frequency: no probability is 0 or 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """A grown forest, its votes calibrated on the probit scale."""

    trees: Trees
    indptr: NDArray[np.int64]  # (nodes + 1,): where the training rows of a leaf begin ...
    rows: NDArray[np.int32]  # ... in here
    weight: NDArray[np.float64]  # (n,): of the training rows
    present: sp.csr_array  # (n, L): 1 where a training row has the label
    missing: sp.csr_array | None  # (n, L): 1 where it was not observed
    prior: NDArray[np.float64]  # (L,): frequency of the label
    slope: NDArray[np.float64]
    shift: NDArray[np.float64]

    def evidence(self, X: Matrix) -> NDArray[np.float64]:
        """Probit of each label's probability, (n, L)."""
        found = np.empty((X.shape[0], len(self.prior)))
        T = len(self.trees.roots)
        step = max(1, CELLS // max(T, X.shape[1]))
        for start in range(0, X.shape[0], step):
            piece = slice(start, min(X.shape[0], start + step))
            leaves = self.trees.leaves(X[piece])
            votes = self.votes(leaves, np.ones(leaves.shape, bool))
            found[piece] = self.slope * ndtri(votes) + self.shift
        return found

    def weighted(self, weight: NDArray[np.float64]) -> Self:
        """The same, its evidence multiplied by a weight for each label, (L,)."""
        return replace(self, slope=weight * self.slope, shift=weight * self.shift)

    def votes(
        self, leaves: NDArray[np.int64], counts: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Share of the votes for each label, (rows, L); a label not observed does not vote.

        A tree gives one vote, shared by the training rows of the leaf; those for which
        ``counts`` (rows, T) is False give none.
        """
        n = self.present.shape[0]
        shares = self._shares()
        given = counts.sum(1)
        ends = np.concatenate([[0], np.cumsum(given)])
        asked = sp.csr_array(
            (np.ones(ends[-1]), leaves[counts], ends), shape=(len(leaves), shares.shape[0])
        )
        found = np.empty((len(leaves), len(self.prior)))
        step = max(1, CELLS // n)
        for start in range(0, len(leaves), step):
            piece = slice(start, min(len(leaves), start + step))
            near = asked[piece] @ shares  # (rows, n): a row's neighbours, T in sum
            votes = (near @ self.present).toarray()
            total = given[piece, None].astype(np.float64)
            if self.missing is not None:
                total = total - (near @ self.missing).toarray()
            found[piece] = (votes + PRIOR * self.prior) / (total + PRIOR)
        return found

    def leaf_votes(self) -> tuple[sp.csr_array, sp.csr_array | None]:
        """Share of a leaf's vote for each label, and share not observed, (nodes, L)."""
        shares = self._shares()
        unknown = None if self.missing is None else sp.csr_array(shares @ self.missing)
        return sp.csr_array(shares @ self.present), unknown

    def _shares(self) -> sp.csr_array:
        """Share of each training row in a leaf's vote, (nodes, n)."""
        size = np.diff(self.indptr)
        own = self.weight[self.rows]
        of_node = np.repeat(np.arange(len(size)), size)
        share = own / np.bincount(of_node, own, len(size))[of_node]
        shape = (len(size), self.present.shape[0])
        return sp.csr_array((share, self.rows, self.indptr), shape=shape)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything by name, for a file."""
        arrays = dict(self.trees._asdict())
        names = ("indptr", "rows", "weight", "prior", "slope", "shift")
        arrays |= {name: getattr(self, name) for name in names}
        for name in ("present", "missing"):
            matrix = getattr(self, name)
            if matrix is not None:
                arrays[f"{name}.indices"] = matrix.indices.astype(np.int32)
                arrays[f"{name}.indptr"] = matrix.indptr.astype(np.int64)
        return arrays

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], n_features: int, n_labels: int
    ) -> Self:
        """From what `arrays` gave; ValueError where it does not fit features and labels."""
        trees = Trees(*(arrays[name] for name in Trees._fields))
        present, missing = (
            csr_from_file(
                np.ones(len(arrays[f"{name}.indices"])),
                arrays[f"{name}.indices"],
                arrays[f"{name}.indptr"],
                n_labels,
            )
            if f"{name}.indices" in arrays
            else None
            for name in ("present", "missing")
        )
        if present is None:
            raise ValueError("the forest has no labels")
        if missing is not None and missing.shape != present.shape:
            raise ValueError("the labels of the forest have two shapes")
        said = present if missing is None else present + missing
        if not present.has_canonical_format or (said.nnz and said.max() > 1):
            raise ValueError("a label of the forest is given twice")
        trees.check(n_features)
        of_leaves = arrays["indptr"], arrays["rows"]
        _check_leaves(trees, *of_leaves, present.shape[0])
        weight = arrays["weight"]
        if weight.dtype != np.float64 or weight.shape != (present.shape[0],):
            raise ValueError("the forest does not fit its rows")
        if not (np.isfinite(weight).all() and (weight > 0).all()):
            raise ValueError("rows of the forest do not weigh something")
        by_label = [arrays[name] for name in ("prior", "slope", "shift")]
        for values in by_label:
            if values.dtype != np.float64 or values.shape != (n_labels,):
                raise ValueError("the forest does not fit the labels")
        if not (np.isfinite(by_label).all() and ((by_label[0] > 0) & (by_label[0] < 1)).all()):
            raise ValueError("the forest is not calibrated by numbers")
        return cls(trees, *of_leaves, weight, present, missing, *by_label)


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
        How much a row counts in splits and votes.
    seed : int
        Of samples and splits.

    Returns
    -------
    forest : Forest
    left_out : ndarray of shape (n, L)
        Evidence on the probit scale.
    """
    truth = dense(Y).astype(np.float64)
    n, L = truth.shape
    unknown = np.isnan(truth)
    weight = weight / weight.mean()
    prior = (weight @ np.nan_to_num(truth) + 0.5) / (weight @ ~unknown + 1)
    target = np.where(unknown, prior, truth)
    rng = np.random.default_rng(seed)
    target = mixed(target, rng)
    x = for_trees(X)
    size = min(MAX_SAMPLE, max(1, round(_SAMPLE * n)))
    samples = [rng.permutation(n)[:size] for _ in range(N_TREES)]
    seeds = rng.integers(2**31, size=N_TREES)

    def grow(k: int) -> tuple[Any, NDArray[np.int64]]:
        rows = samples[k]
        tree = ExtraTreeRegressor(
            min_samples_leaf=_LEAST_LEAF,
            max_features=features_tried(x),
            random_state=int(seeds[k]),
        )
        tree.fit(x[rows], target[rows], sample_weight=weight[rows])
        return tree.tree_, tree.apply(x)

    with ThreadPoolExecutor(n_threads()) as pool:
        grown = list(pool.map(grow, range(N_TREES)))
    trees = Trees.of([tree for tree, _ in grown])
    leaves = np.stack([leaf for _, leaf in grown], axis=1) + trees.roots
    saw = np.zeros((n, N_TREES), bool)
    for k, rows in enumerate(samples):
        saw[rows, k] = True
    forest = Forest(
        trees,
        *_rows_of_leaves(leaves, samples, len(trees.feature)),
        weight,
        sp.csr_array(np.nan_to_num(truth)),
        sp.csr_array(unknown.astype(np.float64)) if unknown.any() else None,
        prior,
        np.ones(L),
        np.zeros(L),
    )
    q = ndtri(forest.votes(leaves, ~saw))
    slope, shift = fit_line(truth, q, weight)
    return replace(forest, slope=slope, shift=shift), slope * q + shift


def _rows_of_leaves(
    leaves: NDArray[np.int64], samples: list[NDArray[np.int64]], n_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Training rows of every leaf, and where those of a node begin, (nodes + 1,)."""
    at = np.concatenate([leaves[rows, k] for k, rows in enumerate(samples)])
    order = np.argsort(at, kind="stable")
    begin = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=n_nodes))])
    return begin, np.concatenate(samples)[order].astype(np.int32)


def _check_leaves(trees: Trees, indptr: NDArray[Any], rows: NDArray[Any], n_rows: int) -> None:
    """Refuse leaves without training rows, or with rows there are not."""
    if not all(a.ndim == 1 and a.dtype in (np.int32, np.int64) for a in (indptr, rows)):
        raise ValueError("rows of the forest are not numbered by integers")
    if (
        len(indptr) != len(trees.feature) + 1
        or indptr[0] != 0
        or indptr[-1] != len(rows)
        or (indptr[1:] < indptr[:-1]).any()  # a difference could overflow
        or (np.diff(indptr)[trees.feature < 0] == 0).any()
        or (len(rows) and not 0 <= rows.min() <= rows.max() < n_rows)
    ):
        raise ValueError("leaves of the forest do not hold training rows")
