"""The forest against scikit-learn's own trees and votes counted one by one."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import ndtri
from sklearn.tree import ExtraTreeRegressor

from mpvae import forest, trees
from mpvae.calibration import fit_line
from mpvae.forest import Forest, fit_forest

N, D, L = 90, 5, 4
PRIOR = 0.5  # votes for the frequency of the label


def simulated(n=N, seed=0):
    """Features (n, D), some of them zero, and labels (n, L) that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)) * (rng.random((n, D)) < 0.7)
    X[:, 0] = rng.permutation(n) + 1  # tells rows apart
    Y = (X[:, 1:] + 0.7 * rng.normal(size=(n, L)) > 0.4).astype(float)
    return X.astype(np.float32), Y


X, Y = simulated()
HOLES = np.where(np.random.default_rng(1).random(Y.shape) < 0.3, np.nan, Y)
ONES = np.ones(N)
ASK = simulated(40, seed=2)[0]


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr(forest, "N_TREES", 25)


@pytest.fixture
def grown(monkeypatch):
    """Trees as scikit-learn grew them, each with the features and targets it was shown."""
    trees = []

    class Recorded(ExtraTreeRegressor):
        def fit(self, X, y, sample_weight=None):
            trees.append((self, X, y, sample_weight))
            return super().fit(X, y, sample_weight=sample_weight)

    monkeypatch.setattr(forest, "ExtraTreeRegressor", Recorded)
    monkeypatch.setattr(forest, "n_threads", lambda: 1)  # one after the other
    return trees


def counted(grown, X, Y, ask, own=None):
    """Share of the votes for each label, row by row and tree by tree.

    With ``own``, the numbers of the asked rows among those of X: trees that saw them are
    passed over.
    """
    prior = (np.nansum(Y, axis=0) + 0.5) / ((~np.isnan(Y)).sum(0) + 1)
    votes, total = np.zeros((len(ask), L)), np.zeros((len(ask), L))
    for tree, shown, *_ in grown:
        seen = np.searchsorted(X[:, 0], shown[:, 0], sorter=np.argsort(X[:, 0]))
        seen = np.argsort(X[:, 0])[seen]
        here, there = tree.apply(X[seen]), tree.apply(ask)
        for i in range(len(ask)):
            if own is None or own[i] not in seen:
                labels = Y[seen[here == there[i]]]
                votes[i] += np.nansum(labels, axis=0) / len(labels)
                total[i] += (~np.isnan(labels)).sum(0) / len(labels)
    return (votes + PRIOR * prior) / (total + PRIOR)


# --------------------------------------------------------------------------------- who votes


@pytest.mark.parametrize("y", [Y, HOLES], ids=["all observed", "some not"])
def test_evidence_is_the_votes_of_all_trees(grown, y):
    fitted, left_out = fit_forest(X, y, ONES, 0)
    # Up to 25 shares of a vote are added in another order, and Phi^-1 has a slope below 1e3
    # where a probability lies between 1e-3 and 1 - 1e-3: 25 x 1e-16 x 1e3.
    expected = fitted.slope * ndtri(counted(grown, X, y, ASK)) + fitted.shift
    np.testing.assert_allclose(fitted.evidence(ASK), expected, 0, 1e-11)
    unseen = ndtri(counted(grown, X, y, X, own=np.arange(N)))
    np.testing.assert_allclose(left_out, fitted.slope * unseen + fitted.shift, 0, 1e-11)
    # Newton's steps end where the gradient is rounding, 1e-13 of a curvature above 20.
    np.testing.assert_allclose((fitted.slope, fitted.shift), fit_line(y, unseen), 0, 1e-9)


def test_trees_see_seven_rows_in_ten_once(grown):
    weight = np.random.default_rng(3).uniform(0.2, 3, N)
    fitted, _ = fit_forest(X, Y, weight, 0)
    by_key = dict(zip(X[:, 0], weight, strict=True))
    for _, shown, target, weights in grown:
        assert len(np.unique(shown[:, 0])) == len(shown) == round(0.7 * N)
        assert target.shape == (round(0.7 * N), L)
        wanted = np.array([by_key[key] for key in shown[:, 0]]) / weight.mean()
        np.testing.assert_allclose(weights, wanted, rtol=1e-12)
    leaf = fitted.trees.feature < 0
    sizes = np.diff(fitted.indptr)
    assert (sizes[leaf] > 0).all()
    assert (sizes[~leaf] == 0).all()
    assert len({tree.random_state for tree, *_ in grown}) == 25


def test_a_label_of_a_row_says_nothing_about_the_row_itself():
    """With the same trees: what they grew from is what they saw."""
    fitted, _ = fit_forest(X, Y, ONES, 0)
    grown = fitted.trees
    of_tree = np.searchsorted(grown.roots, np.arange(len(grown.feature)), "right") - 1
    saw = np.zeros((N, 25), bool)
    saw[fitted.rows, np.repeat(of_tree, np.diff(fitted.indptr))] = True
    leaves = grown.leaves(X)
    before = fitted.votes(leaves, ~saw)
    for i in range(0, N, 9):
        flipped = Y.copy()
        flipped[i] = 1 - flipped[i]
        other = replace(fitted, present=sp.csr_array(flipped))
        after = other.votes(leaves, ~saw)
        np.testing.assert_array_equal(after[i], before[i])
        assert (after != before).any()  # others had it for a neighbour


def test_a_label_never_observed_has_no_votes():
    holes = Y.copy()
    holes[:, 2] = np.nan
    fitted, left_out = fit_forest(X, holes, ONES, 0)
    # All votes but those for its frequency, one half, cancel to within rounding.
    for evidence in (left_out, fitted.evidence(ASK)):
        np.testing.assert_allclose(evidence[:, 2], 0, 0, 1e-12)
        assert evidence[:, 1].std() > 0.1


def test_many_labels_are_mixed_to_grow_trees_but_vote_as_they_are(grown, monkeypatch):
    monkeypatch.setattr(trees, "MAX_TARGETS", 3)
    fitted, _ = fit_forest(X, HOLES, ONES, 0)
    assert {target.shape[1] for _, _, target, _ in grown} == {3}
    expected = fitted.slope * ndtri(counted(grown, X, HOLES, ASK)) + fitted.shift
    np.testing.assert_allclose(fitted.evidence(ASK), expected, 0, 1e-11)


def test_a_sample_has_a_largest_size(grown, monkeypatch):
    monkeypatch.setattr(forest, "MAX_SAMPLE", 20)
    _, left_out = fit_forest(X, Y, ONES, 0)
    assert {shown.shape for _, shown, *_ in grown} == {(20, D)}
    assert np.isfinite(left_out).all()


def test_evidence_on_rows_left_out_is_worth_something():
    _, left_out = fit_forest(X, Y, ONES, 0)
    ranked, variance = [], []
    for label in range(L):
        present = Y[:, label] == 1
        # Share of present rows ranked before absent ones. Were labels and features
        # independent, its variance would be (N + 1) / (12 a b) with a present, b absent.
        ranked.append((left_out[present, label][:, None] > left_out[~present, label]).mean())
        variance.append((N + 1) / (12 * present.sum() * (~present).sum()))
    assert np.mean(ranked) > 0.5 + 4 * np.sqrt(np.mean(variance) / L)


# --------------------------------------------------------------------------- rows of every kind


def test_sparse_rows_are_as_good_as_dense_ones(monkeypatch):
    monkeypatch.setattr(forest, "features_tried", lambda x: 2)  # as many of either
    dense, left_out = fit_forest(X, Y, ONES, 0)
    sparse, also = fit_forest(sp.csr_array(X), sp.csr_array(Y), ONES, 0)
    np.testing.assert_array_equal(also, left_out)
    for model in (dense, sparse):
        for rows in (ASK, sp.csr_array(ASK)):
            np.testing.assert_array_equal(model.evidence(rows), dense.evidence(ASK))


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_a_leaf_holds_three_rows_and_a_split_tries_so_many_features(grown, kind):
    fitted, _ = fit_forest(kind(X), Y, ONES, 0)
    size = np.diff(fitted.indptr)
    assert size[fitted.trees.feature < 0].min() == 3
    assert not size[fitted.trees.feature >= 0].any()
    for tree, *_ in grown:
        assert tree.max_features_ == (D if kind is np.asarray else 2)


def test_weighted_evidence_is_multiplied_label_by_label():
    fitted, _ = fit_forest(X, Y, ONES, 0)
    weight = np.array([0.3, 1.0, 0.0, 2.5])
    weighted = fitted.weighted(weight)
    # Some roundings of numbers below 10.
    np.testing.assert_allclose(weighted.evidence(ASK), weight * fitted.evidence(ASK), 0, 1e-13)
    assert type(weighted) is Forest


def test_the_same_seed_gives_the_same_forest_on_any_number_of_threads(monkeypatch):
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(forest, "n_threads", lambda threads=threads: threads)
        found.append(fit_forest(X, Y, ONES, 5)[1])
    np.testing.assert_array_equal(*found)
    assert (fit_forest(X, Y, ONES, 6)[1] != found[0]).any()


def test_rows_are_answered_in_pieces(monkeypatch):
    fitted, left_out = fit_forest(X, HOLES, ONES, 0)
    whole = fitted.evidence(ASK)
    monkeypatch.setattr(forest, "CELLS", 7 * N)
    np.testing.assert_array_equal(fitted.evidence(ASK), whole)
    np.testing.assert_array_equal(fit_forest(X, HOLES, ONES, 0)[1], left_out)
    assert fitted.evidence(ASK[:0]).shape == (0, L)


@pytest.mark.parametrize("case", ["constant labels", "equal rows", "one row", "two"])
def test_nothing_odd_breaks_it(case):
    x, y = X.copy(), Y.copy()
    if case == "constant labels":
        y[:, 0], y[:, 1] = 0, 1
    elif case == "equal rows":
        x[45:], x[:, 2] = x[:45], 1
    elif case == "one row":
        x[:] = x[0]
    else:
        x, y = x[:2], y[:2]
    fitted, left_out = fit_forest(x, y, np.ones(len(x)), 0)
    assert np.isfinite(left_out).all()
    assert np.isfinite(fitted.evidence(x)).all()
    if case == "one row":
        assert np.ptp(fitted.evidence(x), axis=0) == pytest.approx(np.zeros(L))


def test_leaves_of_many_rows_take_no_more_memory(monkeypatch):
    """Each of 200 rows has a leaf of 140 in each of 200 trees: 5.6 million neighbours."""
    monkeypatch.setattr(forest, "N_TREES", 200)
    x, y = np.zeros((200, 1), np.float32), np.arange(400).reshape(200, 2) % 3 == 0.0
    fitted, _ = fit_forest(x, y.astype(float), np.ones(200), 0)
    tracemalloc.start()
    try:
        fitted.evidence(x)
        # A handful of arrays of rows x trees or rows x rows, 0.3 MB each; one number for each
        # of the neighbours would be 45 MB.
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------- to file


@pytest.mark.parametrize("y", [Y, HOLES], ids=["all observed", "some not"])
def test_arrays_hold_everything(y):
    fitted, _ = fit_forest(X, y, ONES, 0)
    arrays = {name: array.copy() for name, array in fitted.arrays().items()}
    again = Forest.from_arrays(arrays, D, L)
    np.testing.assert_array_equal(again.evidence(ASK), fitted.evidence(ASK))
    assert (again.missing is None) == (y is Y)
    for n_features, n_labels in ((D - 1, L), (D, L - 1), (D, L + 1)):
        with pytest.raises(ValueError, match=REASONS):
            Forest.from_arrays(arrays, n_features, n_labels)


@pytest.fixture(scope="module")
def arrays():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forest, "N_TREES", 3)
        return fit_forest(X, HOLES, ONES, 0)[0].arrays()


def first(arrays, inner):
    """Number of the first node that is, or is not, an inner one."""
    return int(np.flatnonzero((arrays["feature"] >= 0) == inner)[0])


def put(name, value, *, inner=None):
    """Change of one value: of the first inner node, of the first leaf, or of the second."""

    def change(arrays):
        changed = arrays[name].copy()
        changed[1 if inner is None else first(arrays, inner)] = value
        return {name: changed}

    return change


def whole(name, change):
    return lambda arrays: {name: change(arrays[name])}


def without_rows(arrays):
    """A leaf that holds no training row."""
    at = first(arrays, inner=False)
    indptr, rows = arrays["indptr"].copy(), arrays["rows"]
    start, size = indptr[at], indptr[at + 1] - indptr[at]
    indptr[at + 1 :] -= size
    return {"indptr": indptr, "rows": np.delete(rows, np.s_[start : start + size])}


def wrapped(arrays):
    """Places that rise by overflow alone."""
    far, indptr = 2**62, arrays["indptr"].copy()
    indptr[1:6] = [far, 2 * far - 1, -2 * far, -far, 0]
    assert (np.diff(indptr) >= 0).all()
    return {"indptr": indptr}


REASONS = r"of the forest|the forest |sparse matrix|do not make trees|numbered by integers"
REFUSED = {
    "a child is its parent": put("left", 0, inner=True),
    "children of no integer": whole("left", lambda a: a.astype(float)),
    "an empty leaf": without_rows,
    "a row out of range": put("rows", N),
    "a row below zero": put("rows", -1),
    "rows of few bits": whole("rows", lambda a: a.astype(np.int16)),
    "places in two dimensions": whole("indptr", lambda a: a[:, None]),
    "rows too many": whole("rows", lambda a: np.append(a, a[-1])),
    "places too few": whole("indptr", lambda a: a[:-1]),
    "places that fall": whole("indptr", lambda a: np.sort(a)[::-1].copy()),
    "places that do not begin at zero": put("indptr", 3),
    "places that overflow": wrapped,
    "no nodes": lambda arrays: (
        {name: arrays[name][:0] for name in ("left", "right", "feature", "threshold", "rows")}
        | {"indptr": arrays["indptr"][:1]}
    ),
    "a frequency of zero": put("prior", 0.0),
    "a frequency of one": put("prior", 1.0),
    "a frequency that is no number": put("prior", np.nan),
    "a slope that is no number": put("slope", np.nan),
    "an infinite shift": put("shift", np.inf),
    "too few slopes": whole("slope", lambda a: a[:-1]),
    "slopes of few bits": whole("slope", lambda a: a.astype(np.float32)),
    "a label out of range": put("present.indices", L),
    "a label below zero": put("missing.indices", -1),
    "labels of fewer rows": whole("missing.indptr", lambda a: np.append(0, a[2:])),
    "labels that are not integers": whole("present.indices", lambda a: a.astype(float)),
    "places of labels that fall": put("present.indptr", 10**6),
    "all labels twice": lambda arrays: {
        "present.indices": np.repeat(arrays["present.indices"], 2),
        "present.indptr": 2 * arrays["present.indptr"],
    },
    "missing labels twice": lambda arrays: {
        "missing.indices": np.repeat(arrays["missing.indices"], 2),
        "missing.indptr": 2 * arrays["missing.indptr"],
    },
    "labels present and missing": lambda arrays: {
        "missing.indices": arrays["present.indices"],
        "missing.indptr": arrays["present.indptr"],
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_arrays_that_make_no_forest_are_refused(arrays, case):
    Forest.from_arrays(arrays, D, L)  # as it was
    with pytest.raises(ValueError, match=REASONS):
        Forest.from_arrays(arrays | REFUSED[case](arrays), D, L)


def test_a_forest_without_labels_is_refused(arrays):
    bare = {name: array for name, array in arrays.items() if "present" not in name}
    with pytest.raises(ValueError, match="has no labels"):
        Forest.from_arrays(bare, D, L)
