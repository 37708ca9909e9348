"""Nodes of the sources of evidence: kernel machine, forest, boosted trees."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from mpvae.boosting import Boosting
from mpvae.export.features import Features, add_probit
from mpvae.export.graph import Graph, doubles
from mpvae.export.maths import DOMAIN
from mpvae.features import Matrix, dense
from mpvae.forest import PRIOR, Forest
from mpvae.kernel_features import KernelFeatures
from mpvae.ridge import KernelRidge
from mpvae.rows import FARTHEST
from mpvae.similarity import ROUNDING, Kernel
from mpvae.trees import Trees


def add_evidence(graph: Graph, sources: Sequence[Any], x: Features) -> str:
    """What the sources say together, (N, L): the sum, never certain, rounded to float32."""
    said = []
    for i, source in enumerate(sources):
        scope = f"evidence_{i}_{type(source).__name__.lower()}"
        said.append(_SOURCES[type(source)](graph, source, x, scope))
    total = graph.add("Sum", *said, name="evidence/sum")
    low, high = (graph.constant(f"evidence/{k}", v) for k, v in _BOUNDS.items())
    return graph.as_float32(
        graph.add("Clip", total, low, high, name="evidence/bounded"), name="evidence"
    )


def add_kernel_features(graph: Graph, kernel_features: KernelFeatures, x: Features) -> str:
    """Columns that stand beside the features for the networks, (N, m)."""
    scope = "kernel_features"
    K = _kernel(graph, kernel_features.kernel, kernel_features.landmarks, x.float64, scope)
    mix = graph.weights(f"{scope}/mix", kernel_features.mix.astype(np.float64))
    mixed = graph.add("MatMul", K, mix, name=f"{scope}/mixed")
    shift = graph.weights(f"{scope}/shift", kernel_features.shift.astype(np.float64))
    return graph.as_float32(graph.add("Sub", mixed, shift, name=f"{scope}/centred"), name=scope)


def _kernel_machine(graph: Graph, ridge: KernelRidge, x: Features, scope: str) -> str:
    K = _kernel(graph, ridge.kernel, ridge.landmarks, x.float64, scope)
    coef = graph.weights(f"{scope}/coefficients", ridge.coef)
    summed = graph.add("MatMul", K, coef, name=f"{scope}/summed")
    intercept = graph.constant(f"{scope}/intercept", ridge.intercept)
    return graph.add("Add", summed, intercept, name=f"{scope}/said")


def _forest(graph: Graph, forest: Forest, x: Features, scope: str) -> str:
    """Votes of the leaves, shared by those observed, on the probit scale."""
    present, missing = forest.leaf_votes()
    of_labels = present if missing is None else sp.csr_array(sp.hstack([present, missing]))
    votes = _sums_of_leaves(graph, forest.trees, of_labels, x, scope)
    total = graph.constant(f"{scope}/trees_and_prior", len(forest.trees.roots) + PRIOR)
    if missing is not None:
        n_labels = len(forest.prior)
        zero, L, end = graph.axes(0), graph.axes(n_labels), graph.axes(2 * n_labels)
        one = graph.axes(1)
        unknown = graph.add("Slice", votes, L, end, one, name=f"{scope}/not_observed")
        votes = graph.add("Slice", votes, zero, L, one, name=f"{scope}/votes")
        total = graph.add("Sub", total, unknown, name=f"{scope}/observed")
    prior = graph.constant(f"{scope}/prior", PRIOR * forest.prior)
    agreed = graph.add("Add", votes, prior, name=f"{scope}/with_prior")
    share = graph.add("Div", agreed, total, name=f"{scope}/share")
    return _line(graph, add_probit(graph, share, scope), forest, scope)


def _boosting(graph: Graph, boosting: Boosting, x: Features, scope: str) -> str:
    """Log-odds, a step for every leaf, on the probit scale."""
    trees = boosting.trees
    leaves, n_labels = np.flatnonzero(trees.feature < 0), len(boosting.start)
    at = np.repeat(leaves, n_labels), np.tile(np.arange(n_labels), len(leaves))
    shape = len(trees.feature), n_labels
    steps = sp.csr_array((boosting.value.ravel(), at), shape=shape)
    added = _sums_of_leaves(graph, trees, steps, x, scope)
    start = graph.constant(f"{scope}/start", boosting.start)
    log_odds = graph.add("Add", start, added, name=f"{scope}/log_odds")
    # -log of the smaller of p and 1 - p is |log-odds| + log(1 + exp(-|log-odds|)).
    size = graph.add("Abs", log_odds, name=f"{scope}/size")
    small = graph.add("Exp", graph.add("Neg", size, name=f"{scope}/minus"), name=f"{scope}/exp")
    rest = graph.add("Add", small, graph.constant("one", 1.0), name=f"{scope}/rest")
    log = graph.add("Log", rest, name=f"{scope}/log")
    a = graph.add("Add", size, log, name=f"{scope}/minus_log")
    distance = graph.add("TailProbit", a, name=f"{scope}/distance", domain=DOMAIN)
    sign = graph.add("Sign", log_odds, name=f"{scope}/sign")
    probit = graph.add("Mul", sign, distance, name=f"{scope}/probit")
    return _line(graph, probit, boosting, scope)


def _line(graph: Graph, probit: str, source: Forest | Boosting, scope: str) -> str:
    slope = graph.constant(f"{scope}/slope", source.slope)
    tilted = graph.add("Mul", probit, slope, name=f"{scope}/tilted")
    shift = graph.constant(f"{scope}/shift", source.shift)
    return graph.add("Add", tilted, shift, name=f"{scope}/said")


def _kernel(graph: Graph, kernel: Kernel, landmarks: Matrix, x: str, scope: str) -> str:
    """Values of a kernel between rows and landmarks, (N, m)."""
    at = dense(landmarks).astype(np.float64)
    values = []
    if kernel.laplace:
        distances = _absolute_distances(graph, x, at, scope)
        values.append(_decayed(graph, distances, kernel.laplace, f"{scope}/laplace"))
    if kernel.gauss:
        distances = _squared_distances(graph, x, at, scope)
        values.append(_decayed(graph, distances, kernel.gauss, f"{scope}/gauss"))
    if len(values) == 1:
        return values[0]
    both = graph.add("Add", *values, name=f"{scope}/both_kernels")
    return graph.add("Mul", both, graph.constant("half", 0.5), name=f"{scope}/kernel")


def _decayed(graph: Graph, distances: str, rate: float, name: str) -> str:
    scaled = graph.add(
        "Mul", distances, graph.constant(f"{name}.rate", -rate), name=f"{name}.scaled"
    )
    return graph.add("Exp", scaled, name=name)


def _absolute_distances(graph: Graph, x: str, at: NDArray[np.float64], scope: str) -> str:
    """Sums of absolute differences, row by row: nothing of rows x landmarks x features."""
    landmarks = graph.weights(f"{scope}/landmarks", at)
    row = Graph(outside=graph)
    row.add("Sub", landmarks, f"{scope}/row", name=f"{scope}/difference")
    row.add(
        "ReduceL1",
        f"{scope}/difference",
        row.axes(1),
        name=f"{scope}/row_distances",
        keepdims=0,
    )
    m, D = at.shape
    body = row.finished(
        "distances of one row",
        [doubles(f"{scope}/row", D)],
        [doubles(f"{scope}/row_distances", m)],
    )
    name = f"{scope}/absolute_distances"
    return graph.add("Scan", x, name=name, body=body, num_scan_inputs=1)


def _squared_distances(graph: Graph, x: str, at: NDArray[np.float64], scope: str) -> str:
    """|a|^2 + |b|^2 - 2 a b; what is less than rounding is 0."""
    across = graph.weights(f"{scope}/landmarks_across", np.ascontiguousarray(at.T))
    square = graph.add(
        "ReduceSumSquare", x, graph.axes(1), name=f"{scope}/square_lengths", keepdims=1
    )
    squares = graph.constant(f"{scope}/landmark_squares", np.square(at).sum(1))
    largest = graph.add("Add", square, squares, name=f"{scope}/largest")
    inner = graph.add("MatMul", x, across, name=f"{scope}/inner")
    two = graph.constant("two", 2.0)
    twice = graph.add("Mul", inner, two, name=f"{scope}/twice_inner")
    apart = graph.add("Sub", largest, twice, name=f"{scope}/apart")
    rounding = graph.constant("rounding", ROUNDING)
    least = graph.add("Mul", largest, rounding, name=f"{scope}/rounding")
    there = graph.add("Greater", apart, least, name=f"{scope}/differ")
    zero = graph.constant("zero", 0.0)
    return graph.add("Where", there, apart, zero, name=f"{scope}/squared_distances")


def _sums_of_leaves(
    graph: Graph, trees: Trees, values: sp.csr_array, x: Features, scope: str
) -> str:
    """Values (nodes, targets) of the leaves a row falls into, summed; (N, targets)."""
    n = len(trees.feature)
    tree = np.repeat(np.arange(len(trees.roots)), np.diff([*trees.roots, n]))
    number = np.arange(n) - trees.roots[tree]  # of a node in its tree
    inner = trees.feature >= 0
    found = values.tocoo()
    node, target, weight = found.coords[0], found.coords[1], found.data.astype(np.float32)
    empty = np.setdiff1d(np.flatnonzero(~inner), node)  # a leaf has to say something
    node = np.concatenate([node, empty])
    target = np.concatenate([target, np.zeros(len(empty), np.int64)])
    weight = np.concatenate([weight, np.zeros(len(empty), np.float32)])
    children = {
        "nodes_truenodeids": np.where(inner, trees.left - trees.roots[tree], 0),
        "nodes_falsenodeids": np.where(inner, trees.right - trees.roots[tree], 0),
    }
    summed = graph.add(
        "TreeEnsembleRegressor",
        x.float32,
        name=f"{scope}/trees",
        domain="ai.onnx.ml",
        n_targets=values.shape[1],
        nodes_treeids=tree.tolist(),
        nodes_nodeids=number.tolist(),
        nodes_featureids=np.where(inner, trees.feature, 0).tolist(),
        nodes_modes=np.where(inner, "BRANCH_LEQ", "LEAF").tolist(),
        nodes_values=_rounded_down(np.where(inner, trees.threshold, 0.0)).tolist(),
        target_treeids=tree[node].tolist(),
        target_nodeids=number[node].tolist(),
        target_ids=target.tolist(),
        target_weights=weight.tolist(),
        **{name: ids.tolist() for name, ids in children.items()},
    )
    return graph.to_double(summed, name=f"{scope}/sums")


def _rounded_down(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """The largest float32 that is not above: the same x, being float32, are at most this."""
    short = threshold.astype(np.float32)
    return np.where(short > threshold, np.nextafter(short, np.float32(-np.inf)), short)


_BOUNDS = {"least": -FARTHEST, "most": FARTHEST}
_SOURCES: dict[type, Any] = {
    KernelRidge: _kernel_machine,
    Forest: _forest,
    Boosting: _boosting,
}
