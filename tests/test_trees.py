"""Trees as arrays against scikit-learn's own, and what the growers of trees share."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.tree import ExtraTreeRegressor

from mpvae import trees
from mpvae.trees import Trees, features_tried, for_trees, leaf_matrix, mixed, n_threads

N, D = 60, 4
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(N, D)) * (RNG.random((N, D)) < 0.7)).astype(np.float32)
Y = X[:, :2] + 0.3 * RNG.normal(size=(N, 2))
ASK = RNG.normal(size=(30, D)).astype(np.float32)


def grown(n_trees=5, **settings):
    return [ExtraTreeRegressor(random_state=k, **settings).fit(X, Y) for k in range(n_trees)]


def kept(models):
    return Trees.of([model.tree_ for model in models])


# -------------------------------------------------------------------------- which leaf is whose


@pytest.mark.parametrize("settings", [{}, {"max_depth": 1}, {"min_samples_leaf": N}], ids=str)
def test_rows_fall_into_the_leaves_of_scikit_learn(settings):
    """Trees of many nodes, of three, and of one alone."""
    models = grown(**settings)
    nodes = kept(models)
    nodes.check(D)
    assert len(nodes.roots) == 5
    assert len(nodes.feature) == sum(model.tree_.node_count for model in models)
    for rows in (X, ASK, sp.csr_array(X), ASK[:0]):
        plain = rows.toarray() if sp.issparse(rows) else rows
        expected = [model.apply(plain) if len(plain) else [] for model in models]
        found = nodes.leaves(rows)
        np.testing.assert_array_equal(found - nodes.roots, np.stack(expected, 1))
        assert (nodes.feature[found] < 0).all()


def test_trees_of_one_node_and_of_many_stand_together():
    models = [*grown(2), *grown(1, max_depth=1), *grown(1, min_samples_leaf=N), *grown(1)]
    nodes = kept(models)
    nodes.check(D)
    expected = np.stack([model.apply(ASK) for model in models], 1)
    np.testing.assert_array_equal(nodes.leaves(ASK) - nodes.roots, expected)


def test_a_threshold_itself_lies_left():
    """As scikit-learn has it; a threshold that float32 does not hold is compared as it is."""
    (model,) = grown(1, max_depth=1)
    for threshold in (0.5, 0.1, 1 / 3):
        model.tree_.threshold[0] = threshold
        x = np.float32(threshold)
        values = np.array([x, np.nextafter(x, np.float32(1)), np.nextafter(x, np.float32(0))])
        rows = np.repeat(values[:, None], D, 1)
        nodes = Trees(
            *(np.array([0]), np.array([1, 0, 0]), np.array([2, 0, 0]), np.array([0, -1, -1])),
            np.array([threshold, 0, 0]),
        )
        np.testing.assert_array_equal(nodes.leaves(rows)[:, 0], model.apply(rows))


def test_features_of_more_bits_are_rounded_as_scikit_learn_does():
    models = grown(3)
    fine = ASK.astype(float) + 1e-9
    expected = np.stack([model.apply(fine) for model in models], 1)
    nodes = kept(models)
    np.testing.assert_array_equal(nodes.leaves(fine) - nodes.roots, expected)


def test_a_leaf_matrix_says_who_is_where():
    leaves = np.array([[0, 3], [2, 3], [0, 4]])
    found = leaf_matrix(leaves, 6, np.float64)
    assert found.shape == (3, 6)
    expected = [[1, 0, 0, 1, 0, 0], [0, 0, 1, 1, 0, 0], [1, 0, 0, 0, 1, 0]]
    np.testing.assert_array_equal(found.toarray(), expected)


# ----------------------------------------------------------------------------- how trees grow


@pytest.mark.parametrize(
    ("n_features", "of_dense", "of_sparse"),
    [(1, 1, 1), (3, 3, 1), (29, 29, 5), (30, 15, 5), (31, 15, 5), (500, 250, 22)],
)
def test_features_tried_for_a_split(n_features, of_dense, of_sparse):
    """Of few all, of more half; of sparse ones, as words, the square root is enough."""
    x = np.zeros((2, n_features), np.float32)
    assert features_tried(x) == of_dense
    assert features_tried(sp.csr_array(x)) == of_sparse


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array, sp.csc_array, sp.csr_matrix])
def test_scikit_learn_takes_the_features(kind):
    x = for_trees(kind(X))
    assert isinstance(x, np.ndarray if kind is np.asarray else sp.csr_array)
    assert x.dtype == np.float32
    model = ExtraTreeRegressor(random_state=0, max_features=2).fit(x, Y)
    expected = ExtraTreeRegressor(random_state=0, max_features=2).fit(X, Y).apply(ASK)
    np.testing.assert_array_equal(model.apply(ASK), expected)


def test_few_targets_are_taken_as_they_are_and_many_are_mixed():
    few = RNG.normal(size=(7, trees.MAX_TARGETS))
    assert mixed(few, np.random.default_rng(0)) is few
    L = 20 * trees.MAX_TARGETS
    many = RNG.normal(size=(7, L))
    found = mixed(many, np.random.default_rng(0))
    assert found.shape == (7, trees.MAX_TARGETS)
    # Linear: a mixture of a sum is the sum of the mixtures.
    twice = mixed(2 * many + 1, np.random.default_rng(0))
    ones = mixed(np.ones_like(many), np.random.default_rng(0))
    np.testing.assert_allclose(twice, 2 * found + ones, 0, 1e-10)
    # Squared distances are kept up to a factor, on average: each is a sum of 48 squares of
    # normal numbers, of standard error sqrt(2 / 48) = 0.2.
    before = np.square(many[:, None] - many).sum(2)[np.triu_indices(7, 1)]
    after = np.square(found[:, None] - found).sum(2)[np.triu_indices(7, 1)]
    assert (np.abs(after / (before * trees.MAX_TARGETS) - 1) < 4 * 0.21).all()


@pytest.mark.parametrize(
    ("told", "threads"), [("1", 1), ("0", 1), ("2", 2), ("99", 8), ("x", 8), ("", 8)]
)
def test_openmp_is_obeyed(monkeypatch, told, threads):
    monkeypatch.setattr(trees.joblib, "cpu_count", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert n_threads() == threads


# -------------------------------------------------------------------------- what makes no trees


def first(nodes, inner):
    """Number of the first node that is, or is not, an inner one."""
    return int(np.flatnonzero((nodes.feature >= 0) == inner)[0])


def put(name, value):
    """One value changed: of the first inner node, or of the second root."""

    def change(nodes):
        changed = getattr(nodes, name).copy()
        changed[1 if name == "roots" else first(nodes, inner=True)] = value
        return nodes._replace(**{name: changed})

    return change


def whole(name, change):
    return lambda nodes: nodes._replace(**{name: change(getattr(nodes, name))})


def of_last(a):
    return np.where(np.arange(len(a)) == len(a) - 1, 0, a).astype(np.int32)


NO_NUMBERS = "nodes of trees are not numbered by integers"
NO_TREES = "nodes do not make trees"
REFUSED = {
    "a child is its parent": (put("left", 0), NO_TREES),
    "a child before its parent": (put("right", -1), NO_TREES),
    "a child out of range": (put("right", 10**6), NO_TREES),
    "the last node has children": (whole("feature", of_last), NO_TREES),
    "a feature out of range": (put("feature", D), NO_TREES),
    "a root out of range": (put("roots", 10**6), NO_TREES),
    "a root below zero": (put("roots", -1), NO_TREES),
    "no roots": (whole("roots", lambda a: a[:0]), NO_TREES),
    "too few children": (whole("left", lambda a: a[:-1]), NO_TREES),
    "too many children": (whole("right", lambda a: np.append(a, a[-1])), NO_TREES),
    "children of no integer": (whole("left", lambda a: a.astype(float)), NO_NUMBERS),
    "children of few bits": (whole("left", lambda a: a.astype(np.int8)), NO_NUMBERS),
    "roots without sign": (whole("roots", lambda a: a.astype(np.uint64)), NO_NUMBERS),
    "features in two dimensions": (whole("feature", lambda a: a[:, None]), NO_NUMBERS),
    "one root for all": (whole("roots", lambda a: a[0]), NO_NUMBERS),
    "thresholds in two dimensions": (whole("threshold", lambda a: a[:, None]), NO_TREES),
    "thresholds of few bits": (whole("threshold", lambda a: a.astype(np.float32)), NO_TREES),
    "too few thresholds": (whole("threshold", lambda a: a[:-1]), NO_TREES),
    "no nodes": (lambda nodes: Trees(nodes.roots, *(a[:0] for a in nodes[1:])), NO_TREES),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nodes_that_make_no_trees_are_refused(case):
    change, reason = REFUSED[case]
    nodes = kept(grown(3, max_depth=3))
    nodes.check(D)  # as they were
    with pytest.raises(ValueError, match=reason):
        change(nodes).check(D)


def test_trees_of_more_features_than_there_are_are_refused():
    nodes = kept(grown(3))
    used = int(nodes.feature.max())
    nodes.check(used + 1)
    with pytest.raises(ValueError, match=NO_TREES):
        nodes.check(used)
