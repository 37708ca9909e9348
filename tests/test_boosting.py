"""Boosted trees against rounds worked out leaf by leaf, and their promises."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import expit, log_expit, logit, ndtri
from sklearn.tree import ExtraTreeRegressor

from mpvae import boosting
from mpvae.boosting import Boosting, fit_boosting
from mpvae.calibration import fit_line
from mpvae.data import stratified_folds
from mpvae.trees import MAX_TARGETS

N, D, L = 90, 5, 4
RATE, PENALTY = 0.1, 1.0


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
WEIGHT = np.random.default_rng(3).uniform(0.2, 3, N)
ASK, ANSWERS = simulated(200, seed=2)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    """One look at the rows left out, after four rounds."""
    monkeypatch.setattr(boosting, "_BLOCK", 4)
    monkeypatch.setattr(boosting, "MAX_ROUNDS", 4)


@pytest.fixture
def grown(monkeypatch):
    """Trees as scikit-learn grew them, each with the features and targets it was shown."""
    trees = []

    class Recorded(ExtraTreeRegressor):
        def fit(self, X, y, sample_weight=None):
            trees.append((self, X, y, sample_weight))
            return super().fit(X, y, sample_weight=sample_weight)

    monkeypatch.setattr(boosting, "ExtraTreeRegressor", Recorded)
    monkeypatch.setattr(boosting, "n_threads", lambda: 1)  # one after the other
    return trees


@pytest.fixture
def raw(monkeypatch):
    """Evidence before a line is fitted to it, and folds that do not depend on labels."""
    monkeypatch.setattr(
        boosting, "fit_line", lambda Y, q, weight: np.eye(2)[:, [0] * q.shape[1]]
    )
    monkeypatch.setattr(
        boosting, "stratified_folds", lambda Y, k, seed: np.arange(Y.shape[0]) % k
    )


def start_of(Y, weight):
    known = ~np.isnan(Y)
    of_label = [
        (weight[k] @ y[k] + 0.5) / (weight[k].sum() + 1)
        for y, k in zip(Y.T, known.T, strict=True)
    ]
    return logit(of_label)


def by_hand(rounds, Y, weight, learn, *, mixed=False):
    """Log-odds of X and of ASK after these rounds: label by label, leaf by leaf."""
    start = start_of(Y[learn], weight[learn])
    odds, asked = np.tile(start, (N, 1)), np.tile(start, (len(ASK), 1))
    for tree, shown, target, weights in rounds:
        rows = np.argsort(X[:, 0])[(shown[:, 0] - 1).astype(int)]
        assert set(rows) <= set(learn)
        gradient = np.nan_to_num(Y[rows] - expit(odds[rows]))
        if not mixed:
            np.testing.assert_allclose(target, gradient, 0, 1e-6)  # odds were in float32
        np.testing.assert_array_equal(weights, weight[rows])
        leaf, leaf_of_all, leaf_of_asked = (tree.apply(x) for x in (X[rows], X, ASK))
        p = expit(odds)
        step = {}
        for here in np.unique(leaf):
            for label in range(Y.shape[1]):
                up = curve = 0.0
                for i in rows[leaf == here]:
                    if not np.isnan(Y[i, label]):
                        up += weight[i] * (Y[i, label] - p[i, label])
                        curve += weight[i] * p[i, label] * (1 - p[i, label])
                step[here, label] = RATE * up / (curve + PENALTY)
        for label in range(Y.shape[1]):
            odds[:, label] += [step[here, label] for here in leaf_of_all]
            asked[:, label] += [step[here, label] for here in leaf_of_asked]
    return odds, asked


def ranked(evidence, Y):
    """Mean over labels of the share of present rows ranked before absent ones; its null error.

    Were labels and features independent, its variance would be (n + 1) / (12 a b) for a label
    with a rows present and b absent.
    """
    share, variance = [], []
    for q, y in zip(evidence.T, Y.T, strict=True):
        present = y == 1
        if present.any() and not present.all():
            share.append((q[present][:, None] > q[~present]).mean())
            variance.append((len(y) + 1) / (12 * present.sum() * (~present).sum()))
    return np.mean(share), np.sqrt(np.sum(variance)) / len(share)


# ------------------------------------------------------------------------------ what a round is


@pytest.mark.parametrize("weight", [ONES, WEIGHT], ids=["equal", "weighted"])
@pytest.mark.parametrize("y", [Y, HOLES, Y[:, :1]], ids=["observed", "some not", "one label"])
def test_evidence_is_the_sum_of_rounds_worked_out_by_hand(grown, y, weight):
    seed = 3
    fitted, left_out = fit_boosting(X, y, weight, seed)
    folds = stratified_folds(y, 5, seed=seed)
    # Odds below 4 were kept in float32: 2e-7 each of four rounds, and less in what they move.
    unseen = np.empty(y.shape)
    for k in range(5):
        learn = np.flatnonzero(folds != k)
        rounds = grown[4 * k : 4 * k + 4]
        assert {len(shown) for _, shown, *_ in rounds} == {round(len(learn) / 2)}
        unseen[folds == k] = by_hand(rounds, y, weight, learn)[0][folds == k]
    q = ndtri(expit(unseen))
    line = fit_line(y, q, weight)
    np.testing.assert_allclose((fitted.slope, fitted.shift), line, 0, 1e-5)
    np.testing.assert_allclose(left_out, line[0] * q + line[1], 0, 1e-5)
    _, asked = by_hand(grown[20:], y, weight, np.arange(N))
    expected = fitted.slope * ndtri(expit(asked)) + fitted.shift
    np.testing.assert_allclose(fitted.evidence(ASK), expected, 0, 1e-5)
    np.testing.assert_allclose(fitted.start, start_of(y, weight), rtol=1e-13)


def test_a_leaf_takes_a_tenth_of_a_newton_step(grown):
    """Of the penalised loss of its rows, differentiated numerically."""
    fitted, _ = fit_boosting(X, Y[:, :1], WEIGHT, 0)
    tree, shown, *_ = grown[20]  # the first of all rows
    rows = np.argsort(X[:, 0])[(shown[:, 0] - 1).astype(int)]
    sign, w, leaf = 2 * Y[rows, 0] - 1, WEIGHT[rows], tree.apply(X[rows])
    h = 1e-3
    for here in np.unique(leaf):
        at = leaf == here

        def loss(s, at=at):
            return s * s / 2 - w[at] @ log_expit(sign[at] * (fitted.start[0] + s))

        down, still, up = loss(-h), loss(0.0), loss(h)
        newton = -(up - down) / (2 * h) / ((up - 2 * still + down) / h**2)
        # Differences are off by h^2 and, by rounding, by 1e-14 / h^2: 1e-6 and 1e-8.
        number = np.count_nonzero(tree.tree_.children_left[:here] < 0)  # among the leaves
        assert fitted.value[number, 0] == pytest.approx(0.1 * newton, rel=1e-4, abs=1e-6)
    assert len(fitted.value) == np.count_nonzero(fitted.trees.feature < 0)


def test_trees_are_small_and_of_half_the_rows(grown, monkeypatch):
    fitted, _ = fit_boosting(X, Y, ONES, 0)
    assert len(grown) == 24
    assert len({tree.random_state for tree, *_ in grown}) == 24
    for tree, *_ in grown:
        nodes = tree.tree_
        assert nodes.max_depth <= 3
        assert nodes.n_node_samples[nodes.children_left < 0].min() >= 5
        assert tree.max_features_ == D
    assert len(fitted.trees.roots) == 4
    grown.clear()
    monkeypatch.setattr(boosting, "MAX_SAMPLE", 20)
    fit_boosting(X, Y, ONES, 0)
    assert {shown.shape for _, shown, *_ in grown} == {(20, D)}
    grown.clear()
    fit_boosting(sp.csr_array(X), Y, ONES, 0)
    assert {tree.max_features_ for tree, *_ in grown} == {2}


@pytest.mark.parametrize(
    ("n", "depth"), [(0, 3), (1, 3), (128, 3), (256, 4), (5000, 8), (10**5, 10)]
)
def test_depth_goes_with_the_rows(n, depth):
    assert boosting._depth(n) == depth


def test_many_labels_are_mixed_to_grow_trees_but_step_as_they_are(grown):
    rng = np.random.default_rng(5)
    loadings = rng.normal(size=(D - 1, MAX_TARGETS + 12))
    many = (X[:, 1:] @ loadings + rng.normal(size=(N, MAX_TARGETS + 12)) > 0).astype(float)
    fitted, left_out = fit_boosting(X, many, ONES, 0)
    assert {target.shape[1] for _, _, target, _ in grown} == {MAX_TARGETS}
    assert fitted.value.shape[1] == left_out.shape[1] == MAX_TARGETS + 12
    _, asked = by_hand(grown[20:], many, ONES, np.arange(N), mixed=True)
    expected = fitted.slope * ndtri(expit(asked)) + fitted.shift
    np.testing.assert_allclose(fitted.evidence(ASK), expected, 0, 1e-5)
    share, error = ranked(left_out, many)
    # Labels resemble one another: as if there were the four features alone.
    assert share > 0.5 + 4 * error * np.sqrt((MAX_TARGETS + 12) / (D - 1))


# ---------------------------------------------------------------- how many, and who is left out


def watched(monkeypatch):
    """Losses of the rows left out, and their log-odds, at every look."""
    seen, original = [], boosting._loss

    def loss(truth, log_odds, weight):
        found = original(truth, log_odds, weight)
        seen.append((found, log_odds.copy()))
        return found

    monkeypatch.setattr(boosting, "_loss", loss)
    return seen


def test_rounds_end_at_their_largest_number(monkeypatch):
    monkeypatch.setattr(boosting, "MAX_ROUNDS", 12)
    seen = watched(monkeypatch)
    fitted, _ = fit_boosting(X, (X[:, 1:] > 0).astype(float), ONES, 0)
    assert len(seen) == 3
    assert len(fitted.trees.roots) == 12


@pytest.mark.parametrize("case", ["of use", "noise"])
def test_rounds_end_where_rows_left_out_gain_no_more(monkeypatch, case):
    monkeypatch.setattr(boosting, "MAX_ROUNDS", 80)
    y = Y if case == "of use" else np.random.default_rng(4).permutation(Y)
    seen = watched(monkeypatch)
    fitted, left_out = fit_boosting(X, y, ONES, 0)
    losses = [loss for loss, _ in seen]
    assert 2 <= len(losses) < 20  # it did end of itself
    assert (np.diff(losses[:-1]) < 0).all()
    assert losses[-1] >= losses[-2]
    assert len(fitted.trees.roots) == 4 * (len(losses) - 1)  # those of the last gain
    best = ndtri(expit(seen[-2][1]))
    np.testing.assert_allclose(left_out, fitted.slope * best + fitted.shift, 0, 1e-6)


def test_the_loss_is_of_observed_labels():
    odds = np.random.default_rng(6).normal(size=HOLES.shape)
    expected = 0.0
    for i, label in zip(*np.nonzero(~np.isnan(HOLES)), strict=True):
        p = expit(odds[i, label])
        expected -= WEIGHT[i] * np.log(p if HOLES[i, label] == 1 else 1 - p)
    assert boosting._loss(HOLES, odds, WEIGHT) == pytest.approx(expected, rel=1e-12)


def test_a_label_of_a_row_says_nothing_about_the_row_itself(raw):
    _, before = fit_boosting(X, Y, ONES, 0)
    for i in range(0, N, 13):
        flipped = Y.copy()
        flipped[i] = 1 - flipped[i]
        _, after = fit_boosting(X, flipped, ONES, 0)
        fold = np.arange(N) % 5 == i % 5
        np.testing.assert_array_equal(after[fold], before[fold])
        assert (after[~fold] != before[~fold]).any(1).mean() > 0.9  # others learn from it


@pytest.mark.parametrize(("n_few", "n_folds"), [(N, 5), (N - 1, 3)])
def test_many_rows_have_fewer_folds(monkeypatch, n_few, n_folds):
    asked = []

    def folds(Y, n_folds, *, seed):
        asked.append(n_folds)
        return stratified_folds(Y, n_folds, seed=seed)

    monkeypatch.setattr(boosting, "stratified_folds", folds)
    monkeypatch.setattr(boosting, "_FEW_ROWS", n_few)
    _, left_out = fit_boosting(X, Y, ONES, 0)
    assert asked == [n_folds]
    assert np.isfinite(left_out).all()


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_evidence_is_worth_something(monkeypatch, make):
    """On rows left out and on new ones; sparse features try fewer splits, and are as good."""
    monkeypatch.setattr(boosting, "_BLOCK", 20)
    monkeypatch.setattr(boosting, "MAX_ROUNDS", 40)
    fitted, left_out = fit_boosting(make(X), make(Y), ONES, 0)
    for evidence, y in ((left_out, Y), (fitted.evidence(make(ASK)), ANSWERS)):
        share, error = ranked(evidence, y)
        assert share > 0.5 + 4 * error
        assert share > 0.7


def test_noise_is_not_believed():
    noise = np.random.default_rng(7).permutation(Y)
    fitted, left_out = fit_boosting(X, noise, ONES, 0)
    # The line fitted to rows left out draws them together.
    assert (np.abs(fitted.slope) < 1.2).all()
    share, error = ranked(left_out, noise)
    assert share < 0.5 + 4 * error


# ----------------------------------------------------------------------- labels, weights, seeds


def test_a_label_never_observed_changes_nothing(raw):
    holes = np.insert(Y, 2, np.nan, axis=1)
    fitted, left_out = fit_boosting(X, holes, ONES, 0)
    alone, expected = fit_boosting(X, Y, ONES, 0)
    assert not left_out[:, 2].any()
    assert not fitted.evidence(ASK)[:, 2].any()
    # A fifth target of zeros: gains are divided by five, not four, and rounded otherwise.
    np.testing.assert_allclose(np.delete(left_out, 2, 1), expected, 0, 1e-6)
    found = np.delete(fitted.evidence(ASK), 2, 1)
    np.testing.assert_allclose(found, alone.evidence(ASK), 0, 1e-6)


def test_labels_of_rows_without_weight_do_not_matter(raw):
    weight = np.where(np.arange(N) % 4 == 1, 0.0, WEIGHT)
    other = np.where(weight[:, None] > 0, Y, 1 - Y)
    one, left_out = fit_boosting(X, Y, weight, 0)
    two, also = fit_boosting(X, other, weight, 0)
    np.testing.assert_array_equal(also, left_out)
    np.testing.assert_array_equal(two.evidence(ASK), one.evidence(ASK))


class Fixed:
    """In place of a random generator: all rows as they come, and one seed."""

    def permutation(self, rows):
        return rows

    def integers(self, high):
        return 12


def test_weights_count_as_repetition_but_for_the_sample(monkeypatch):
    """Which rows are drawn, how many a leaf holds and how deep trees are go by their number.

    With all of that fixed a weight is a repetition.
    """
    monkeypatch.setattr(boosting, "_SAMPLE", 1.0)
    monkeypatch.setattr(boosting, "_LEAST_LEAF", 1)
    monkeypatch.setattr(boosting, "_depth", lambda n: 2)
    times = np.random.default_rng(8).integers(1, 4, N)
    runs = []
    for rows, weight in (
        (np.arange(N), times.astype(float)),
        (np.repeat(np.arange(N), times), np.ones(times.sum())),
    ):
        run = boosting._Run.begin(
            X[rows], HOLES[rows], weight, np.arange(len(rows)), 0, keeps=True
        )
        run.rng = Fixed()
        run.boost()
        runs.append(run)
    weighted, repeated = runs
    np.testing.assert_allclose(weighted.start, repeated.start, rtol=1e-13)
    for one, other in zip(weighted.trees, repeated.trees, strict=True):
        assert one.node_count > 1
        np.testing.assert_array_equal(one.threshold, other.threshold)
    # Sums in another order, in float32.
    np.testing.assert_allclose(
        np.concatenate(weighted.values), np.concatenate(repeated.values), 0, 1e-6
    )


def test_labels_may_be_sparse():
    fitted, left_out = fit_boosting(X, Y, WEIGHT, 0)
    other, also = fit_boosting(X, sp.csr_array(Y), WEIGHT, 0)
    np.testing.assert_array_equal(also, left_out)
    np.testing.assert_array_equal(other.evidence(ASK), fitted.evidence(ASK))


def test_sparse_rows_are_as_good_as_dense_ones(monkeypatch):
    monkeypatch.setattr(boosting, "features_tried", lambda x: 2)  # as many of either
    dense, left_out = fit_boosting(X, Y, ONES, 0)
    sparse, also = fit_boosting(sp.csr_array(X), Y, ONES, 0)
    np.testing.assert_allclose(also, left_out, 0, 1e-6)
    for model in (dense, sparse):
        for rows in (ASK, sp.csr_array(ASK)):
            np.testing.assert_allclose(model.evidence(rows), dense.evidence(ASK), 0, 1e-6)


def test_the_same_seed_gives_the_same_trees_on_any_number_of_threads(monkeypatch):
    found = []
    for threads in (1, 2):
        monkeypatch.setattr(boosting, "n_threads", lambda threads=threads: threads)
        fitted, left_out = fit_boosting(X, Y, ONES, 5)
        found.append((left_out, fitted.evidence(ASK)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (fit_boosting(X, Y, ONES, 6)[1] != found[0][0]).any()


def test_weighted_evidence_is_multiplied_label_by_label():
    fitted, _ = fit_boosting(X, Y, ONES, 0)
    weight = np.array([0.3, 1.0, 0.0, 2.5])
    weighted = fitted.weighted(weight)
    # Some roundings of numbers below 10.
    np.testing.assert_allclose(weighted.evidence(ASK), weight * fitted.evidence(ASK), 0, 1e-13)
    assert type(weighted) is Boosting


def test_rows_are_answered_in_pieces(monkeypatch):
    fitted, _ = fit_boosting(X, Y, ONES, 0)
    whole = fitted.evidence(ASK)
    monkeypatch.setattr(boosting, "CELLS", 7 * D)
    np.testing.assert_array_equal(fitted.evidence(ASK), whole)
    monkeypatch.setattr(boosting, "CELLS", 1)  # less than a row
    np.testing.assert_array_equal(fitted.evidence(ASK), whole)
    assert fitted.evidence(ASK[:0]).shape == (0, L)


@pytest.mark.parametrize(
    "case", ["constant labels", "equal rows", "one row", "two", "three", "nothing observed"]
)
def test_nothing_odd_breaks_it(case):
    x, y = X.copy(), Y.copy()
    if case == "constant labels":
        y[:, 0], y[:, 1] = 0, 1
    elif case == "equal rows":
        x[45:], x[:, 2] = x[:45], 1
    elif case == "one row":
        x[:] = x[0]
    elif case == "nothing observed":
        y[:] = np.nan
    else:
        x, y = (a[: 2 if case == "two" else 3] for a in (x, y))
    for labels in (y, y[:, :1]):
        fitted, left_out = fit_boosting(x, labels, np.ones(len(x)), 0)
        assert np.isfinite(left_out).all()
        evidence = fitted.evidence(x)
        assert np.isfinite(evidence).all()
        if case == "one row":
            assert np.ptp(evidence, axis=0) == pytest.approx(np.zeros(labels.shape[1]))
        if case == "constant labels":
            assert (evidence[:, 0] < -1).all()
        if case == "nothing observed":
            assert not evidence.any()


# ----------------------------------------------------------------------------- the probit scale


def test_log_odds_become_probits_of_the_same_probability():
    small = np.concatenate([-(10.0 ** np.linspace(-8, 2.845, 500)), [0.0]])  # to -700
    expected = ndtri(expit(small))  # exact where p is below one half
    for odds, probit in ((small, expected), (-small, -expected)):
        # Both to within some roundings of their logarithms, and by 1e-16 near one half.
        np.testing.assert_allclose(boosting._probit(odds), probit, 1e-10, 1e-15)
    assert boosting._probit(np.zeros(1)) == 0


def test_probits_are_finite_odd_and_rise():
    odds = np.linspace(-700, 700, 20_001)
    probit = boosting._probit(odds)
    assert np.isfinite(probit).all()
    assert (np.diff(probit) > 0).all()
    np.testing.assert_array_equal(boosting._probit(-odds), -probit)
    assert boosting._probit(odds[None]).shape == (1, len(odds))


# ------------------------------------------------------------------------------------- to file


def test_arrays_hold_everything():
    fitted, _ = fit_boosting(X, HOLES, ONES, 0)
    arrays = {name: array.copy() for name, array in fitted.arrays().items()}
    again = Boosting.from_arrays(arrays, D, L)
    np.testing.assert_array_equal(again.evidence(ASK), fitted.evidence(ASK))
    for n_features, n_labels in ((1, L), (D, L - 1), (D, L + 1)):
        with pytest.raises(ValueError, match="do not"):
            Boosting.from_arrays(arrays, n_features, n_labels)


@pytest.fixture(scope="module")
def arrays():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boosting, "_BLOCK", 3)
        patch.setattr(boosting, "MAX_ROUNDS", 3)
        return fit_boosting(X, Y, ONES, 0)[0].arrays()


def put(name, value):
    """One value changed: of the first root, or of the first node that is no leaf."""

    def change(arrays):
        changed = arrays[name].copy()
        changed[int(np.flatnonzero(arrays["feature"] >= 0)[0]) if name != "roots" else 0] = (
            value
        )
        return {name: changed}

    return change


def whole(name, change):
    return lambda arrays: {name: change(arrays[name])}


TREES, LABELS, FINITE = "do not make trees", "do not fit the labels", "not finite"
REFUSED = {
    "a root out of range": (put("roots", 10**6), TREES),
    "a root below zero": (put("roots", -1), TREES),
    "no roots": (whole("roots", lambda a: a[:0]), TREES),
    "a child is its parent": (put("left", 0), TREES),
    "a child out of range": (put("right", 10**6), TREES),
    "too few children": (whole("left", lambda a: a[:-1]), TREES),
    "children of no integer": (whole("right", lambda a: a.astype(float)), "by integers"),
    "a feature out of range": (put("feature", D), TREES),
    "thresholds of few bits": (whole("threshold", lambda a: a.astype(np.float32)), TREES),
    "too few values": (whole("value", lambda a: a[:-1]), LABELS),
    "values of fewer labels": (whole("value", lambda a: a[:, :-1]), LABELS),
    "values in one dimension": (whole("value", lambda a: a[:, 0]), LABELS),
    "values in three dimensions": (whole("value", lambda a: a[:, :, None]), LABELS),
    "values of more bits": (whole("value", lambda a: a.astype(float)), LABELS),
    "values of no number": (whole("value", lambda a: a.astype(np.int32)), LABELS),
    "too few slopes": (whole("slope", lambda a: a[:-1]), LABELS),
    "a column of shifts": (whole("shift", lambda a: a[:, None]), LABELS),
    "log-odds of few bits": (whole("start", lambda a: a.astype(np.float32)), LABELS),
    "a value that is no number": (put("value", np.nan), FINITE),
    "an infinite value": (put("value", -np.inf), FINITE),
    "a slope that is no number": (whole("slope", lambda a: a + np.nan), FINITE),
    "an infinite shift": (whole("shift", lambda a: a + np.inf), FINITE),
    "infinite log-odds": (whole("start", lambda a: a - np.inf), FINITE),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arrays_that_make_no_boosted_trees_are_refused(arrays, case):
    change, reason = REFUSED[case]
    Boosting.from_arrays(arrays, D, L)  # as it was
    with pytest.raises(ValueError, match=reason):
        Boosting.from_arrays(arrays | change(arrays), D, L)


def test_huge_values_of_a_file_are_answered_without_infinities(arrays):
    fitted = Boosting.from_arrays(arrays, D, L)
    far = replace(fitted, value=np.where(fitted.value > 0, 200, -200).astype(np.float32))
    assert np.isfinite(far.evidence(ASK)).all()
