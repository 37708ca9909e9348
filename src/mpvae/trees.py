"""Decision trees kept as arrays: all nodes of all trees, one after the other."""

import math
import os
from typing import Any, NamedTuple, Self

import joblib
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from mpvae.config import FEW_FEATURES
from mpvae.features import Matrix, dense

MAX_TARGETS = 48
"""More labels than this are mixed into as many targets to grow trees on."""
MAX_SAMPLE = 10_000
"""Rows a tree is grown on, at most."""
CELLS = 2**24
"""Rows x trees, features or training rows at a time: bounds memory."""


class Trees(NamedTuple):
    """Nodes of trees; a child stands behind its parent, a leaf has feature -1."""

    roots: NDArray[np.int64]  # (T,)
    left: NDArray[np.int32]  # (nodes,)
    right: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float64]  # left where x <= threshold

    @classmethod
    def of(cls, trees: list[Any]) -> Self:
        """scikit-learn's trees (their ``tree_``)."""
        ends = np.cumsum([tree.node_count for tree in trees])
        roots = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        inner = np.concatenate([tree.children_left for tree in trees]) >= 0
        left, right = (
            np.concatenate([getattr(t, name) + r for t, r in zip(trees, roots, strict=True)])
            for name in ("children_left", "children_right")
        )
        return cls(
            roots,
            np.where(inner, left, 0).astype(np.int32),
            np.where(inner, right, 0).astype(np.int32),
            np.where(inner, np.concatenate([t.feature for t in trees]), -1).astype(np.int32),
            np.concatenate([tree.threshold for tree in trees]),
        )

    def leaves(self, X: Matrix) -> NDArray[np.int64]:
        """Node of the leaf each row falls into, tree by tree; (n, T)."""
        x = dense(X).astype(np.float32, copy=False)
        node = np.tile(self.roots, (len(x), 1))
        rows = np.arange(len(x))[:, None]
        while True:
            feature = self.feature[node]
            inner = feature >= 0
            if not inner.any():
                return node
            goes_left = x[rows, feature] <= self.threshold[node]
            child = np.where(goes_left, self.left[node], self.right[node])
            node = np.where(inner, child, node)

    def leaf_numbers(self) -> NDArray[np.int64]:
        """Of each node how many leaves stand before it, itself not counted, (nodes,)."""
        return np.cumsum(self.feature < 0) - (self.feature < 0)

    def check(self, n_features: int) -> None:
        """Refuse nodes that lead nowhere, in circles, or out of the arrays: ValueError."""
        n = len(self.feature)
        integers = (self.roots, self.left, self.right, self.feature)
        if not all(a.ndim == 1 and a.dtype in (np.int32, np.int64) for a in integers):
            raise ValueError("nodes of trees are not numbered by integers")
        inner = self.feature >= 0
        at = np.arange(n)
        if (
            not len(self.roots)
            or not len(self.left) == len(self.right) == n
            or self.threshold.shape != (n,)
            or self.threshold.dtype != np.float64
            or not 0 <= self.roots.min() <= self.roots.max() < n
            or not -1 <= self.feature.min() <= self.feature.max() < n_features
            or not np.isfinite(self.threshold[inner]).all()
            or not all(
                ((at < child) & (child < n))[inner].all() for child in (self.left, self.right)
            )
        ):
            raise ValueError("nodes do not make trees")


def for_trees(X: Matrix) -> Matrix:
    """Features in a form scikit-learn's trees take."""
    return sp.csr_array(X) if sp.issparse(X) else np.asarray(X, np.float32)


def features_tried(x: Matrix) -> int:
    """Features tried for a split: of few all, of more half, of sparse ones the square root."""
    D = int(x.shape[1])
    if sp.issparse(x):
        return max(1, math.isqrt(D))
    return D if D < FEW_FEATURES else D // 2


def mixed(target: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Targets (n, L) to grow a tree on: random mixtures of them where they are many."""
    L = target.shape[1]
    if L <= MAX_TARGETS:
        return target
    return np.asarray((target - target.mean(0)) @ rng.normal(size=(L, MAX_TARGETS)))


def leaf_matrix(leaves: NDArray[np.int64], n_nodes: int, dtype: Any) -> sp.csr_array:
    """1 where a row (n) is in a leaf (nodes), for leaves of shape (n, T)."""
    n, T = leaves.shape
    ends = np.arange(0, n * T + 1, T)
    return sp.csr_array((np.ones(n * T, dtype), leaves.ravel(), ends), shape=(n, n_nodes))


def n_threads() -> int:
    """As many as there are cores to run on, or as OpenMP is told to take."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(int(joblib.cpu_count()), int(told) if told.isdecimal() else 64))
