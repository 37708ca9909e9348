"""Evidence: honest on the rows it was learnt from, and joined with trained networks."""

import copy
import itertools
import pkgutil
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from scipy.special import ndtr, ndtri
from scipy.stats import norm
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mpvae import (
    ConfigError,
    DataError,
    ModelFileError,
    MPVAEClassifier,
    estimator,
    evidence,
    inference,
    load_model,
    members,
)
from mpvae import boosting as boosting_module
from mpvae import forest as forest_module
from mpvae.boosting import Boosting, fit_boosting
from mpvae.calibration import fit_line, fit_weights
from mpvae.config import DataShape
from mpvae.data import simulate_probit, stratified_folds
from mpvae.evidence import (
    auto_asks,
    check_base,
    evidence_of,
    evidence_of_each,
    fit_evidence,
    source_names,
)
from mpvae.features import beside, with_short_positions
from mpvae.forest import Forest, fit_forest
from mpvae.members import HeldOut, _on_evidence, fit_members
from mpvae.networks import MPVAE
from mpvae.presets import resolve
from mpvae.ridge import KernelRidge, fit_kernel_ridge
from mpvae.rows import Rows
from mpvae.training import train
from test_model_file import TENSOR_CHANGES, parts, refused, rewrite

FIXTURES = Path(__file__).parent / "fixtures"
N, D, L = 150, 4, 3
DATA = simulate_probit(N + 50, n_features=D, n_labels=L, n_factors=1, seed=0)
X, Y = DATA.X[:N].astype(np.float32), DATA.Y[:N].astype(float)
ASK, ANSWERS = DATA.X[N:].astype(np.float32), DATA.Y[N:].astype(float)
ONES = np.ones(N)
LOGISTIC = OneVsRestClassifier(LogisticRegression())
TREES = RandomForestClassifier(10, max_depth=4, random_state=0)


ALL = ["kernel", "forest", "boosting"]


def with_few_trees(patch):
    patch.setattr(forest_module, "N_TREES", 20)
    patch.setattr(boosting_module, "_BLOCK", 5)
    patch.setattr(boosting_module, "MAX_ROUNDS", 10)


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    with_few_trees(monkeypatch)


def small(**changes):
    settings = {
        "hidden": (8,),
        "latent_dim": 2,
        "n_factors": 2,
        "n_draws": 4,
        "n_members": 2,
        "max_epochs": 3,
        "random_state": 0,
    }
    return MPVAEClassifier(**settings | changes)


@pytest.fixture(scope="module")
def model():
    with pytest.MonkeyPatch.context() as patch:
        with_few_trees(patch)
        return small(base="auto").fit(X, Y)


# -------------------------------------------------------------------------------- who is asked


@pytest.mark.parametrize(
    "base",
    [
        *(None, "auto", "kernel", "forest", "boosting", LOGISTIC, TREES, []),
        *(["kernel", TREES], ("forest",), ALL),
    ],
)
def test_what_can_be_asked(base):
    check_base(base)


@pytest.mark.parametrize(
    "base",
    [
        TREES,
        MultiOutputClassifier(LogisticRegression()),
        LOGISTIC,
        ClassifierChain(LogisticRegression()),
        make_pipeline(StandardScaler(with_std=False), KNeighborsClassifier(40)),
    ],
    ids=["trees", "multi-output", "one-vs-rest", "chain", "pipeline"],
)
def test_a_classifier_learns_from_weighted_rows(base):
    """As weights if it takes any, else as repetitions."""
    weight = np.where(Y[:, 0] == 1, 9.0, 1.0)
    (heavy,), _ = fit_evidence([base], X, Y, weight, 0)
    (light,), _ = fit_evidence([base], X, Y, ONES, 0)
    p, q = (source.fitted.probits(ASK)[:, 0] for source in (heavy, light))
    assert p.mean() > q.mean() + 0.3


def test_the_same_seed_gives_the_same_answer_of_a_classifier_without_one():
    base = RandomForestClassifier(10)
    one, same, other = (fit_evidence([base], X, Y, ONES, seed)[0][0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.evidence(ASK), same.evidence(ASK))
    assert (one.evidence(ASK) != other.evidence(ASK)).any()
    assert base.random_state is None  # the caller's is left as it was
    nested = make_pipeline(StandardScaler(), RandomForestClassifier(5, random_state=3))
    (source,), _ = fit_evidence([nested], X, Y, ONES, 0)
    assert source.fitted.model[-1].random_state == 3


WRAPPED = [LOGISTIC, MultiOutputClassifier(LogisticRegression()), TREES, KNeighborsClassifier()]
WRAPPED.append(ClassifierChain(LogisticRegression()))


@pytest.mark.parametrize("base", WRAPPED, ids=lambda base: type(base).__name__)
@pytest.mark.parametrize(
    "labels",
    [
        (np.arange(N) == 3)[:, None],
        Y[:, :1],
        np.column_stack([Y, np.arange(N) == 3, ONES, 0 * ONES]),
        np.column_stack([ONES, 0 * ONES]),
    ],
    ids=["one rare", "one", "some constant", "all constant"],
)
def test_labels_that_are_constant_somewhere(base, labels):
    labels = labels.astype(float)
    (source,), (left_out,) = fit_evidence([base], X, labels, ONES, 0)
    assert left_out.shape == labels.shape
    found = source.evidence(ASK)
    assert np.isfinite(found).all()
    share = labels.mean(0)
    for j in np.flatnonzero((share == 0) | (share == 1)):
        assert (np.sign(found[:, j]) == (1 if share[j] else -1)).all()


def test_a_label_never_observed_is_as_likely_as_not():
    holes = Y.copy()
    holes[:, 1] = np.nan
    (source,), _ = fit_evidence([LOGISTIC], X, holes, ONES, 0)
    np.testing.assert_allclose(source.evidence(ASK)[:, 1], 0, atol=1e-9)


class Strange(ClassifierMixin, BaseEstimator):
    """Answers as it is told to."""

    def __init__(self, answer=None):
        self.answer = answer

    def fit(self, X, y):
        return self

    def predict_proba(self, X):
        return self.answer(len(X))


@pytest.mark.parametrize(
    ("base", "says"),
    [
        (LogisticRegression(), "base LogisticRegression failed to fit: .*OneVsRestClassifier"),
        (Strange(lambda n: np.full((n, L), np.nan)), "no probabilities"),
        (Strange(lambda n: np.full((n, L), 1.2)), "no probabilities"),
        (Strange(lambda n: np.full((n, L + 1), 0.2)), r"expected \(30, 3\)"),
    ],
    ids=["one label", "nan", "above one", "columns"],
)
def test_a_classifier_that_fails_is_named(base, says):
    with pytest.raises(ConfigError, match=says):
        fit_evidence([base], X, Y, ONES, 0)
    fit_evidence([Strange(lambda n: np.full((n, L), 0.2))], X, Y, ONES, 0)  # needs no classes_


def test_validation_rows_are_checked_before_anybody_is_asked(monkeypatch):
    monkeypatch.setattr(estimator, "fit_evidence", pytest.fail)
    with pytest.raises(DataError, match="X_val has 50 rows but y_val has 49"):
        small(base="auto").fit(X, Y, ASK, ANSWERS[:-1])


def test_sources_have_names():
    sources, _ = fit_evidence([*ALL, LOGISTIC], X, Y, ONES, 0)
    assert source_names(sources) == [*ALL, "OneVsRestClassifier"]


@pytest.mark.parametrize(
    "base",
    [
        *("Kernel", "svm", 3, True, {}, ["auto"], [None], ["kernel", "svm"], [["kernel"]]),
        *(LinearRegression(), RidgeClassifier(), LogisticRegression, np.ones(3)),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_named(base):
    wanted = "base must be None, 'auto', 'kernel', 'forest', 'boosting', a classifier with "
    wanted += "predict_proba, or a list of the last 4, got "
    for ask in (check_base, lambda base: small(base=base).fit(X, Y)):
        with pytest.raises(ConfigError, match=wanted):
            ask(base)


def test_nobody_asked_says_nothing():
    assert fit_evidence([], X, Y, ONES, 0) == ([], None)
    for base in (None, []):
        fitted = small(base=base, n_members=1).fit(X, Y)
        assert fitted.evidence_ == []
        assert fitted.networks_[0].trust is None
        assert fitted._encode(ASK).shape == (50, D)


@pytest.mark.parametrize(
    ("preset", "asked"),
    [
        *(("default", ALL), ("best", ALL), ("fast", ["kernel"])),
        *(("paper", []), ("authors_code", [])),
    ],
)
def test_whom_auto_asks(preset, asked):
    fewest, most = evidence.MIN_ROWS, evidence.MAX_ROWS
    for n_rows, by_rows in ((fewest - 1, []), (fewest, asked), (most, asked), (most + 1, [])):
        assert auto_asks(preset, n_rows, 1) == by_rows
    n_labels = evidence.MAX_ENTRIES // 1000
    assert auto_asks(preset, 1000, n_labels) == asked
    assert auto_asks(preset, 1000, n_labels + 1) == []


@pytest.mark.parametrize(
    ("n", "changes", "kinds"),
    [
        (N, {}, [KernelRidge, Forest, Boosting]),
        (N, {"preset": "fast"}, [KernelRidge]),
        (N, {"preset": "best"}, [KernelRidge, Forest, Boosting]),
        (N, {"preset": "paper"}, []),
        (N, {"preset": "authors_code"}, []),
        (N, {"preset": "paper", "base": "kernel"}, [KernelRidge]),  # asked by name
        (evidence.MIN_ROWS - 1, {}, []),
        (evidence.MIN_ROWS - 1, {"base": "forest"}, [Forest]),
        (evidence.MIN_ROWS - 1, {"base": "boosting"}, [Boosting]),
    ],
)
def test_a_model_asks_by_preset_and_rows(n, changes, kinds):
    fitted = small(**changes).fit(X[:n], Y[:n])
    assert [type(source) for source in fitted.evidence_] == kinds
    assert all((net.trust is None) == (not kinds) for net in fitted.networks_)


def test_sparse_features_are_asked_about_as_dense_ones_are():
    words = sp.csr_array(np.maximum(X, 0))
    kinds = [KernelRidge, Forest, Boosting]
    assert [type(s) for s in small().fit(words, Y).evidence_] == kinds
    assert [type(s) for s in small(preset="fast").fit(words, Y).evidence_] == [KernelRidge]


def test_every_source_says_its_own_and_none_is_certain():
    fits = {"kernel": fit_kernel_ridge, "forest": fit_forest, "boosting": fit_boosting}
    alone = {name: fit(X, Y, ONES, 0) for name, fit in fits.items()}
    for asked in (ALL, ("boosting", "kernel"), ["forest"]):
        told = []
        sources, left_out = fit_evidence(asked, X, Y, ONES, 0, told.append)
        assert told == list(asked)
        assert left_out.shape == (len(asked), N, L)
        assert left_out.dtype == np.float32
        found = evidence_of_each(sources, ASK)
        assert found.shape == (len(asked), 50, L)
        assert found.dtype == np.float32
        for k, name in enumerate(asked):
            expected = np.clip(alone[name][1], -5, 5).astype(np.float32)
            np.testing.assert_array_equal(left_out[k], expected)
            expected = np.clip(alone[name][0].evidence(ASK), -5, 5).astype(np.float32)
            np.testing.assert_array_equal(found[k], expected)
        together = evidence_of(sources, ASK)
        expected = sum(alone[name][0].evidence(ASK) for name in asked)
        # In float64 by either way, then rounded to float32.
        np.testing.assert_allclose(together, np.clip(expected, -5, 5), 0, 5e-7)
        assert together.dtype == np.float32


def test_evidence_beyond_all_bounds_is_brought_within():
    class Certain:
        def evidence(self, X):
            return np.array([[np.inf, -np.inf, 7.0]] * len(X))

    assert evidence_of([Certain()], ASK)[0].tolist() == [5, -5, 5]


def test_a_source_that_knows_nothing_gets_no_weight_beside_one_that_does():
    """Labels of its own rows put in another order: a classifier of noise."""

    class Noise(LogisticRegression):
        def fit(self, X, y):
            return super().fit(X, np.random.default_rng(len(y)).permutation(y))

    fitted = small(base=["kernel", OneVsRestClassifier(Noise())]).fit(X, Y)
    of_kernel, of_noise = (
        source.evidence(fitted.features_.apply(ASK)).std(0).mean()
        for source in fitted.evidence_
    )
    assert of_noise < 0.25 * of_kernel


def test_sparse_features_are_as_good_as_dense_ones(monkeypatch):
    """Of the forest this is in test_forest; the kernel machine has another kernel there."""
    monkeypatch.setattr(boosting_module, "features_tried", lambda x: 2)
    sources, left_out = fit_evidence(["boosting"], sp.csr_array(X), Y, ONES, 0)
    dense, also = fit_evidence(["boosting"], X, Y, ONES, 0)
    # Roundings of float32, of size 1; and lines fitted to values that differ by them.
    np.testing.assert_allclose(left_out, also, 0, 1e-5)
    wide = evidence_of(sources, sp.csr_array(ASK))
    np.testing.assert_allclose(wide, evidence_of(dense, ASK), 0, 1e-5)


def long_positions(X):
    wide = sp.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    return wide


@pytest.mark.parametrize("asked", [ALL, [TREES]], ids=["named", "own"])
def test_sparse_features_may_have_long_positions(asked):
    """scikit-learn's trees take positions of 32 bits alone."""
    assert with_short_positions(X) is X
    _, expected = fit_evidence(asked, sp.csr_array(X), Y, ONES, 0)
    sources, left_out = fit_evidence(asked, long_positions(X), Y, ONES, 0)
    np.testing.assert_array_equal(left_out, expected)
    np.testing.assert_array_equal(
        evidence_of(sources, long_positions(ASK)), evidence_of(sources, sp.csr_array(ASK))
    )


# ------------------------------------------------------------------- classifiers of one's own


def probability(model, X, n_labels):
    """Of each label being 1, from whatever scikit-learn returns."""
    found = model.predict_proba(X)
    if n_labels == 1:
        return found[:, [1]]
    if not isinstance(found, list):
        return found
    columns = []
    for p, classes in zip(found, model.classes_, strict=True):
        known = dict(zip(classes, p.T, strict=True))
        columns.append(known.get(1, np.zeros(len(p))))
    return np.stack(columns, 1)


RARE = np.hstack([Y[:, :2], (np.arange(N) == 3)[:, None]])  # constant without the fold of row 3
HOLES = np.where(np.random.default_rng(1).random(Y.shape) < 0.2, np.nan, Y)


@pytest.mark.parametrize(
    ("base", "labels"),
    [
        (LOGISTIC, Y),
        (TREES, Y),
        (TREES, RARE),
        (LOGISTIC, HOLES),
        (LOGISTIC, Y[:, :2]),
        (LogisticRegression(), Y[:, :1]),
        (TREES, Y[:, :1]),
    ],
    ids=["array", "list", "constant in a fold", "missing", "two labels", "one", "one, trees"],
)
def test_a_classifier_is_asked_out_of_fold(base, labels):
    seed, n_labels = 3, labels.shape[1]
    (source,), (left_out,) = fit_evidence([base], X, labels, ONES, seed)
    if labels is not HOLES:
        _, (also,) = fit_evidence([base], X, sp.csr_array(labels), ONES, seed)
        np.testing.assert_array_equal(also, left_out)
    filled = np.nan_to_num(labels).astype(int)  # not observed counts as absent
    filled = filled[:, 0] if n_labels == 1 else filled
    folds = stratified_folds(labels, 5, seed=seed)
    P = np.empty(labels.shape)
    for fold in range(5):
        fitted = type(base)(**base.get_params(deep=False))
        fitted.fit(X[folds != fold], filled[folds != fold])
        P[folds == fold] = probability(fitted, X[folds == fold], n_labels)
        seen = np.nan_to_num(labels[folds != fold])
        for j in np.flatnonzero(seen.min(0) == seen.max(0)):  # its share, with half a row more
            P[folds == fold, j] = (seen[:, j].sum() + 0.5) / (len(seen) + 1)
    q = np.clip(ndtri(P), -5, 5)
    slope, shift = fit_line(labels, q)
    np.testing.assert_allclose(left_out, np.clip(slope * q + shift, -5, 5), 0, 1e-6)  # float32
    whole = type(base)(**base.get_params(deep=False)).fit(X, filled)
    P = probability(whole, ASK, n_labels).astype(float)
    q = np.clip(ndtri(P), -5, 5)
    np.testing.assert_allclose(source.evidence(ASK), slope * q + shift, 0, 1e-9)
    weight = np.linspace(0.4, 1.2, n_labels)
    weighted = source.weighted(weight).evidence(ASK)
    np.testing.assert_allclose(weighted, weight * source.evidence(ASK), 0, 1e-12)


def test_the_classifier_given_is_left_as_it_was():
    base = OneVsRestClassifier(LogisticRegression())
    fitted = small(base=base, n_members=1).fit(X, Y)
    assert not hasattr(base, "classes_")
    assert fitted.get_params(deep=False)["base"] is base
    assert fitted.get_params()["base__estimator__C"] == 1.0


def test_what_remembers_its_rows_is_not_believed_about_them():
    """A tree for each row knows the labels it has seen by heart; out of fold it cannot."""
    noise = (np.random.default_rng(5).random((N, 2)) < 0.5).astype(float)
    by_heart = RandomForestClassifier(1, bootstrap=False, random_state=0)
    for base in (by_heart, *ALL):
        _, (left_out,) = fit_evidence([base], X, noise, ONES, 0)
        right = (left_out > 0) == (noise == 1)
        # Labels that nothing predicts are met half of the time, with this standard error. By
        # a little less, since a row's absence shifts the frequency against it.
        se = np.sqrt(0.25 / right.size)
        assert right.mean() < 0.5 + 4 * se


# ------------------------------------------------------------------- networks and evidence


def network(with_evidence=True, **changes):
    settings = resolve(
        "default", {"hidden": (8,), "latent_dim": 2} | changes, DataShape(N, D, L)
    )
    torch.manual_seed(0)
    return MPVAE(D, L, settings, with_evidence)


def on_evidence(rows=ASK, seed=0):
    """Rows, and evidence of standard normal size."""
    said = np.random.default_rng(seed).normal(size=(len(rows), L)).astype(np.float32)
    return beside(rows, said)


@pytest.mark.parametrize("z_draws", [0, 8])
def test_a_network_that_adds_nothing_says_what_the_evidence_says(z_draws):
    net = network(n_factors=3).double().eval()
    net.output.weight.data.zero_()
    net.output.bias.data.zero_()
    rows = on_evidence()
    for trust in (np.ones(L), np.array([0.3, 1.0, 2.0])):
        net.trust.data = torch.as_tensor(trust)
        found = inference.marginals([net], rows, z_draws)
        # m is multiplied by the scale of the utilities and divided by it again: two roundings
        # of an argument up to 6, whose Phi they move by 6 x 2e-16 x 0.4 and its own rounding.
        np.testing.assert_allclose(found, ndtr(trust * rows[:, D:]), 0, 1e-14)


def test_every_way_to_decode_has_the_evidence():
    net = network().double().eval()
    net.trust.fill_(0.7)
    x = torch.as_tensor(beside(ASK, np.ones((50, L), np.float32))).double()
    z = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    m = net.decode(x, z)
    offset = net.from_features(x).offset
    scale = (1 + net.B.square().sum(1)).sqrt()
    torch.testing.assert_close(offset, 0.7 * scale.expand(50, L))
    net.trust.zero_()
    without = net.decode(x, z)
    net.trust.fill_(0.7)
    torch.testing.assert_close(m, without + offset)
    given = net.from_features(x)
    several = net.decode_codes(given.for_draws(), torch.stack([z, z], 1))
    torch.testing.assert_close(several, torch.stack([m, m], 1))
    torch.testing.assert_close(net.decode_with_slope(given, z)[0], m)


def test_encoders_and_decoder_do_not_see_the_evidence():
    """What the network alone would say, and which codes it expects, is all the same."""
    one, other = (torch.as_tensor(on_evidence(seed=seed)).double() for seed in (0, 1))
    net, alone = network().double().eval(), network(with_evidence=False).double().eval()
    alone.load_state_dict({k: v for k, v in net.state_dict().items() if k != "trust"})
    y = torch.as_tensor(ANSWERS)
    for x in (one, other):
        for found, expected in (
            (net.prior(x), alone.prior(x[:, :D])),
            (net.posterior(x, y), alone.posterior(x[:, :D], y)),
        ):
            assert torch.equal(found.mean, expected.mean)
            assert torch.equal(found.stddev, expected.stddev)
        assert torch.equal(net.from_features(x).hidden, alone.from_features(x[:, :D]).hidden)
    assert not net.trust.any()  # until it is known what evidence is worth
    assert network(with_evidence=False).trust is None


def seen_by_training(monkeypatch):
    """Rows that networks are trained and stopped on, written down."""
    seen = []

    def watched(rows, validation, *args, **kwargs):
        seen.append((rows, validation))
        return train(rows, validation, *args, **kwargs)

    monkeypatch.setattr("mpvae.members.train", watched)
    return seen


def test_networks_are_trained_as_if_there_were_no_evidence(monkeypatch):
    seen = seen_by_training(monkeypatch)
    alone, joined = (small(base=base).fit(X, Y) for base in (None, "auto"))
    for rows, _ in seen:
        assert rows.X.shape[1] == D
    slopes, shifts = [], []
    for net, before in zip(joined.networks_, alone.networks_, strict=True):
        for name, value in before.state_dict().items():
            if not name.startswith("output"):
                assert torch.equal(net.state_dict()[name], value), name
        # The output layer alone is moved, by a slope and a shift for each label.
        slope = (net.output.weight / before.output.weight).detach()
        torch.testing.assert_close(slope, slope[:, [0]].expand_as(slope))
        slopes.append(slope[:, 0])
        scale = (1 + net.B.square().sum(1)).sqrt()
        shifts.append(((net.output.bias - slope[:, 0] * before.output.bias) / scale).detach())
    torch.testing.assert_close(slopes[0], slopes[1])  # the same for every member
    torch.testing.assert_close(shifts[0], shifts[1])
    assert len(set(shifts[0].tolist())) == L
    pd.testing.assert_frame_equal(joined.history_, alone.history_)


def members_of(base, monkeypatch, n_members=2, **changes):
    """Rows as fit has them, and what `fit_members` made of them."""
    made = []

    def watched(rows, validation, *args, **kwargs):
        fitted = fit_members(rows, validation, *args, **kwargs)
        made.append((rows, validation, fitted))
        return fitted

    monkeypatch.setattr("mpvae.members.fit_members", watched)
    model = small(base=base, n_members=n_members, **changes.pop("settings", {}))
    model.fit(X, Y, **changes)
    return model, *made[0]


def parts_of_members(rows, model):
    """What each member learnt from and was judged on."""
    splits = members._splits(rows, None, model.settings_, model._seed())
    return list(members._parts(rows, None, splits))


@pytest.mark.parametrize("n_members", [1, 3])
def test_held_out_probabilities_are_those_of_the_joined_networks(monkeypatch, n_members):
    model, rows, _, fitted = members_of("auto", monkeypatch, n_members)
    parts_of = parts_of_members(rows, model)
    found = [
        inference.marginals([net], judge.with_evidence(fitted.worth), 0)
        for net, (_, judge) in zip(fitted.networks, parts_of, strict=True)
    ]
    np.testing.assert_allclose(fitted.held_out.P, np.vstack(found), 0, 1e-10)
    np.testing.assert_array_equal(
        fitted.held_out.evidence,
        np.concatenate([judge.evidence for _, judge in parts_of], axis=1),
    )


def test_with_validation_rows_one_network_is_what_was_judged(monkeypatch):
    _, _, validation, fitted = members_of("auto", monkeypatch, 1, X_val=ASK, y_val=ANSWERS)
    found = inference.marginals(fitted.networks, validation.with_evidence(fitted.worth), 0)
    np.testing.assert_allclose(fitted.held_out.P, found, 0, 1e-10)


def test_evidence_is_of_rows_left_out_and_for_validation_of_all(monkeypatch):
    model, rows, validation, _ = members_of("kernel", monkeypatch, X_val=ASK, y_val=ANSWERS)
    ridge, left_out = fit_kernel_ridge(rows.X, rows.Y, rows.weight, 0)
    np.testing.assert_allclose(rows.evidence, left_out[None], rtol=1e-6)
    np.testing.assert_allclose(validation.X, model.features_.apply(ASK))
    np.testing.assert_allclose(
        validation.evidence, ridge.evidence(validation.X)[None], rtol=1e-6
    )


def test_rows_have_the_weighted_sum_of_their_evidence_beside_them():
    said = np.random.default_rng(0).normal(size=(2, N, L)).astype(np.float32)
    worth = np.array([[0.0, 1.0, 0.5], [2.0, 0.0, 9.0]])
    rows = Rows(X, Y, ONES, said)
    for some, index in ((rows, np.arange(N)), (rows.take(np.array([5, 3])), [5, 3])):
        wide = some.with_evidence(worth)
        assert wide.dtype == np.float32
        np.testing.assert_array_equal(wide[:, :D], X[index])
        total = worth[0] * said[0, index] + worth[1] * said[1, index]
        np.testing.assert_allclose(wide[:, D:], np.clip(total, -5, 5), 0, 1e-6)
        assert some.with_evidence(None) is some.X
    assert Rows(X, Y, ONES).with_evidence(worth) is X


def test_weights_come_from_held_out_rows_alone(monkeypatch):
    """What the networks say of the rows they learnt from, and evidence there, is not asked."""
    given = []

    def watched(Y, scores, weight):
        given.append((Y, scores, weight))
        return fit_weights(Y, scores, weight)

    monkeypatch.setattr("mpvae.members.calibration.fit_weights", watched)
    seen = seen_by_training(monkeypatch)
    unweighted = []

    def kept(*args):
        sources, left_out = fit_evidence(*args)
        unweighted.append(sources)
        return sources, left_out

    monkeypatch.setattr("mpvae.estimator.fit_evidence", kept)
    fitted = small(base=["kernel", LOGISTIC], n_members=3).fit(X, Y)
    ((labels, (q, e, also), _),) = given
    np.testing.assert_array_equal(labels, np.vstack([judge.Y for _, judge in seen]))
    honest = np.concatenate([judge.evidence for _, judge in seen], axis=1)
    np.testing.assert_array_equal([e, also], honest)
    assert q.shape == e.shape == (N, L)
    (_, *worth), _ = fit_weights(labels, [q, e, also], ONES)
    x = fitted.features_.apply(ASK)
    for source, before, weight in zip(fitted.evidence_, unweighted[0], worth, strict=True):
        expected = weight * before.evidence(x)
        np.testing.assert_allclose(source.evidence(x), expected, 0, 1e-12)
    for net in fitted.networks_:
        assert net.trust.tolist() == [1.0] * L


# ------------------------------------------------------------------- what each of them is worth

MANY = 4000


def planted(q_share, *e_shares, seed=0):
    """Held-out rows whose labels follow the network's probits and the evidence so much.

    A share is one number, or one for each label.
    """
    rng = np.random.default_rng(seed)
    q, *e = rng.normal(size=(1 + len(e_shares), MANY, L))
    v = np.asarray(q_share) * q
    for share, said in zip(e_shares, e, strict=True):
        v = v + np.asarray(share) * said
    Y = (rng.random((MANY, L)) < ndtr(v)).astype(float)
    return HeldOut(Y, ndtr(q), np.ones(MANY), np.stack(e).astype(np.float32))


ROWS = Rows(X, Y, ONES, np.random.default_rng(7).normal(size=(2, N, L)).astype(np.float32))


def joined(held_out, rows=ROWS):
    """The network before and after, the held-out rows after, and what evidence is worth."""
    before = network(with_evidence=False, n_factors=2).double()
    (after,), held_out, worth = _on_evidence([before], held_out, rows)
    return before, after, held_out, worth


def moved_by(before, after):
    """Slope and shift, (L,), that every network got on the probit scale."""
    slope = (after.output.weight / before.output.weight).detach()
    torch.testing.assert_close(slope, slope[:, [0]].expand_as(slope))
    scale = (1 + before.B.square().sum(1)).sqrt()
    shift = (after.output.bias - slope[:, 0] * before.output.bias) / scale
    return slope[:, 0].numpy(), shift.detach().numpy()


def standard_error(*shares):
    """Of a weight, at most: inverse Fisher information, of phi^2 / (Phi (1 - Phi)) q q^T."""
    held_out = planted(*shares)
    worst = 0.0
    for label in range(L):
        e = held_out.evidence[:, :, label]
        q = np.stack([ndtri(held_out.P[:, label]), *e, np.ones(MANY)])
        v = np.array([*(np.broadcast_to(s, L)[label] for s in shares), 0]) @ q
        fisher = (norm.pdf(v) ** 2 / (ndtr(v) * ndtr(-v)) * q) @ q.T
        worst = max(worst, np.sqrt(np.diag(np.linalg.inv(fisher))).max())
    return worst


BY_LABEL = ([1.0, 0.0, 0.3], [0.0, 0.9, 0.3], [0.2, 0.4, 0.6])


@pytest.mark.parametrize(
    "shares",
    [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.6, 0.9), (0.5, 0.8, 0.2), BY_LABEL],
    ids=["no evidence", "no network", "both noise", "both of use", "three", "by label"],
)
def test_each_gets_what_it_is_worth(shares):
    before, after, held_out, worth = joined(planted(*shares))
    # 20 rows that ask for the weights of all labels, beside 4,000 of a label and 0.7 away at
    # most, move a weight by 20 x 0.7 se^2: less than one standard error.
    se = standard_error(*shares)
    assert se < 0.04
    slope, shift = moved_by(before, after)
    assert worth.shape == (len(shares) - 1, L)
    for found, share in zip([slope, *worth], shares, strict=True):
        assert (np.abs(found - share) < 5 * se).all()
        assert (found >= 0).all()
    assert (np.abs(shift) < 5 * se).all()
    assert after.trust.tolist() == [1.0] * L
    # Exactly by the weights found; float32 holds a sum of evidence to within 3e-7.
    given = planted(*shares)
    said = (worth[:, None] * given.evidence).sum(0)
    expected = ndtr(slope * ndtri(given.P) + np.clip(said, -5, 5) + shift)
    np.testing.assert_allclose(held_out.P, expected, 0, 1e-6)
    np.testing.assert_array_equal(held_out.evidence, given.evidence)


def test_evidence_that_is_the_wrong_way_round_is_not_used():
    *_, worth = joined(planted(1.0, -0.5))
    assert not worth.any()


@pytest.mark.parametrize("held_out", [None, "without evidence"])
def test_without_held_out_rows_it_is_half_and_half(held_out):
    """Half of what is said is the networks', half evidence weighed as it is best alone."""
    if held_out is not None:
        held_out = HeldOut(Y, np.full(Y.shape, 0.5), ONES)
    before, after, left, worth = joined(held_out)
    assert left is held_out
    slope, shift = moved_by(before, after)
    weights, also = fit_weights(Y, list(ROWS.evidence.astype(float)), ONES)
    np.testing.assert_allclose(slope, 0.5, rtol=1e-12)
    np.testing.assert_allclose(worth, 0.5 * weights, rtol=1e-12)
    np.testing.assert_allclose(shift, 0.5 * also, 0, 1e-12)
    assert after.trust.tolist() == [1.0] * L


def test_without_evidence_held_out_rows_have_what_the_networks_say(monkeypatch):
    model, rows, _, fitted = members_of(None, monkeypatch, 2)
    assert all(net.trust is None for net in fitted.networks)
    assert fitted.held_out.evidence is None
    found = [
        inference.marginals([net], judge.X, 0)
        for net, (_, judge) in zip(fitted.networks, parts_of_members(rows, model), strict=True)
    ]
    np.testing.assert_array_equal(np.vstack(found), fitted.held_out.P)


def test_networks_given_are_left_as_they_were():
    before, after, *_ = joined(planted(0.5, 0.5))
    assert before.trust is None
    torch.testing.assert_close(
        before.output.weight, network(False, n_factors=2).double().output.weight
    )
    assert after.trust.dtype == after.B.dtype == torch.float64


@pytest.mark.parametrize("rows", [2, 30])
def test_a_model_of_rows_too_few_to_hold_any_out(rows):
    asked = {"base": ALL, "n_members": 1, "validation_fraction": 0.0}
    fitted = small(**asked).fit(X[:rows], Y[:rows])
    assert fitted.networks_[0].trust.tolist() == [1.0] * L
    assert np.isfinite(fitted.predict_proba(ASK)).all()
    alone = small(**asked | {"base": None}).fit(X[:rows], Y[:rows])
    np.testing.assert_allclose(moved_by(alone.networks_[0], fitted.networks_[0])[0], 0.5)


# ----------------------------------------------------------------------- after they are joined


def by_hand(networks, sources, x, n_features):
    """Phi of a network's own probits and the weighted evidence, its mean over networks."""
    said = np.clip(sum(source.evidence(x) for source in sources), -5, 5)
    found = []
    for net in networks:
        bare = copy.deepcopy(net)
        bare.trust = None
        assert net.trust.tolist() == [1.0] * L
        own = inference.marginals([bare], x[:, :n_features], 0)
        found.append(ndtr(ndtri(own) + said))
    return np.mean(found, 0)


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        ({}, {}),
        ({"n_members": 1}, {}),
        ({}, {"X_val": ASK, "y_val": ANSWERS}),
        ({"n_members": 1, "validation_fraction": 0.0}, {}),
    ],
    ids=["folds", "a part", "validation rows", "no held-out rows"],
)
def test_a_model_says_what_networks_and_evidence_say_together(changes, given):
    fitted = small(base="auto", z_draws=0, **changes).fit(X, Y, **given)
    assert len(fitted.evidence_) == 3
    expected = by_hand(fitted.networks_, fitted.evidence_, fitted.features_.apply(ASK), D)
    # Evidence is rounded to float32, by 3e-7 at most where it is within 5.
    np.testing.assert_allclose(fitted.predict_proba(ASK), expected, 0, 3e-7)
    # Every source has a say: without it something else is said.
    for k, source in enumerate(fitted.evidence_):
        others = [s for s in fitted.evidence_ if s is not source]
        less = by_hand(fitted.networks_, others, fitted.features_.apply(ASK), D)
        worthless = not source.evidence(fitted.features_.apply(ASK)).any()
        assert worthless or np.abs(less - expected).max() > 1e-4, k


@pytest.mark.parametrize("recalibrate", [False, True])
def test_of_a_fitted_model_without_its_outputs_evidence_is_left(recalibrate):
    fitted = small(base="auto", recalibrate=recalibrate).fit(X, Y)
    for net in fitted.networks_:
        net.output.weight.data.zero_()
        net.output.bias.data.zero_()
    q = evidence_of(fitted.evidence_, fitted.features_.apply(ASK)).astype(float)
    expected = [ndtr(net.trust.numpy(force=True) * q) for net in fitted.networks_]
    np.testing.assert_allclose(fitted.predict_proba(ASK), np.mean(expected, 0), 0, 1e-14)


def test_recalibration_moves_evidence_and_networks_alike():
    one = {"base": "auto", "n_members": 1, "z_draws": 0}
    before, after = (
        ndtri(small(**one, recalibrate=wanted).fit(X, Y).predict_proba(ASK))
        for wanted in (False, True)
    )
    for label in range(L):
        line = np.polyfit(before[:, label], after[:, label], 1)
        # Not by much: with a weight and a shift of its own a label is nearly calibrated.
        assert np.abs(after[:, label] - before[:, label]).max() > 1e-5
        # One member, one code: slope and shift on the probit scale, and nothing else.
        np.testing.assert_allclose(after[:, label], np.polyval(line, before[:, label]), 0, 1e-9)


def test_recalibrated_networks_say_what_the_held_out_rows_say(monkeypatch):
    model, rows, _, fitted = members_of("auto", monkeypatch, 2)
    moved = members.recalibrate(fitted)
    parts_of = parts_of_members(rows, model)
    found = [
        inference.marginals([net], judge.with_evidence(moved.worth), 0)
        for net, (_, judge) in zip(moved.networks, parts_of, strict=True)
    ]
    np.testing.assert_allclose(moved.held_out.P, np.vstack(found), 0, 1e-10)
    for net, before in zip(moved.networks, fitted.networks, strict=True):
        assert (net.trust != before.trust).all()


@pytest.mark.parametrize("when", ["joining", "judging", "answering"])
def test_an_interrupt_after_training_is_survived(monkeypatch, when):
    """Ctrl-C while networks and evidence are joined: that part is done again, whole."""
    place = {
        "joining": "mpvae.members._on_evidence",
        "judging": "mpvae.members.inference.code_loadings",
        "answering": "mpvae.members.best_answers",
    }[when]
    whole = small(base="auto").fit(X, Y)
    original, calls = pkgutil.resolve_name(place), []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(place, interrupted)
    model = small(base="auto")
    with pytest.raises(KeyboardInterrupt, match="the model holds the best so far"):
        model.fit(X, Y)
    np.testing.assert_array_equal(model.predict_proba(ASK), whole.predict_proba(ASK))
    for net, other in zip(model.networks_, whole.networks_, strict=True):
        assert torch.equal(net.trust, other.trust)  # weighted once, not twice


def test_an_interrupt_in_training_leaves_what_there_is_joined(monkeypatch):
    """The second member is interrupted: the first, and the evidence, make a model."""
    calls = []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*args, **kwargs)

    monkeypatch.setattr("mpvae.members.train", interrupted)
    model = small(base="auto", n_members=3)
    with pytest.raises(KeyboardInterrupt, match="the model holds the best so far"):
        model.fit(X, Y)
    assert len(model.networks_) == 1
    assert model.networks_[0].trust is not None
    assert np.isfinite(model.predict_proba(ASK)).all()


# ------------------------------------------------------------------------------ end to end


@pytest.mark.parametrize("base", [*ALL, ["kernel", LOGISTIC], TREES])
def test_any_base_makes_a_model(base):
    fitted = small(base=base).fit(X, Y)
    P = fitted.predict_proba(ASK)
    assert P.shape == (50, L)
    assert ((P > 0) & (P < 1)).all()
    assert fitted.predict(ASK).shape == (50, L)


def test_the_order_of_rows_does_not_matter(model):
    again = small(base="auto").fit(X[::-1], Y[::-1])
    np.testing.assert_array_equal(again.predict_proba(ASK), model.predict_proba(ASK))


def test_joint_answers_have_the_evidence_too(model):
    vectors = np.array(list(itertools.product([0, 1], repeat=L)), float)
    x = ASK[:10]
    P = model.predict_proba(x)
    log_p, se = (
        np.stack(parts, 1)
        for parts in zip(
            *(model.log_prob(x, np.tile(v, (10, 1)), return_std=True) for v in vectors),
            strict=True,
        )
    )
    joint = np.exp(log_p)  # (10, 8)
    errors = joint * se  # of log_prob, on the scale of probabilities
    assert (np.abs(joint.sum(1) - 1) < 4 * errors.sum(1) + 1e-6).all()
    for label in range(L):
        has = vectors[:, label] == 1
        found = joint[:, has].sum(1)
        # P averages codes z by quadrature of its own: some thousandths.
        assert (np.abs(found - P[:, label]) < 4 * errors[:, has].sum(1) + 0.01).all()
    known = np.full((10, L), np.nan)
    np.testing.assert_allclose(model.predict_conditional(x, known), P, 0, 0.02)
    known[:, 0] = 1
    given = model.predict_conditional(x, known)
    both = joint[:, (vectors[:, 0] == 1) & (vectors[:, 1] == 1)].sum(1)
    expected = both / joint[:, vectors[:, 0] == 1].sum(1)
    # 128 draws a member, weighed by a factor near 1: sqrt(0.25 / 256) is 0.03 at most.
    np.testing.assert_allclose(given[:, 1], expected, 0, 4 * 0.03)
    drawn = model.sample(x, 2000, random_state=0).mean(1)
    np.testing.assert_allclose(drawn, P, 0, 4.5 * np.sqrt(0.25 / 2000) + 0.01)


@pytest.mark.parametrize("base", ["auto", "kernel", ["kernel", "forest"]], ids=str)
def test_sparse_features_make_a_model(base):
    words = np.where(np.random.default_rng(0).random(X.shape) < 0.5, np.abs(X), 0)
    fitted = small(base=base).fit(sp.csr_array(words), sp.csr_array(Y))
    assert sp.issparse(fitted.evidence_[0].landmarks)
    wide = fitted._encode(sp.csr_array(words[:20]))
    assert isinstance(wide, sp.csr_array)
    assert wide.dtype == np.float32
    P = fitted.predict_proba(sp.csr_array(words[:20]))
    # Dense rows are added up in another order: roundings of float32 evidence.
    np.testing.assert_allclose(fitted.predict_proba(words[:20]), P, 0, 1e-6)
    np.testing.assert_array_equal(fitted.predict_proba(long_positions(words[:20])), P)


@pytest.mark.parametrize("base", ["auto", LOGISTIC])
def test_missing_labels_make_a_model(base):
    holes = HOLES.copy()
    fitted = small(base=base, allow_missing_labels=True).fit(X, holes)
    assert np.isfinite(fitted.predict_proba(ASK)).all()
    assert len(fitted.evidence_) == (3 if base == "auto" else 1)


@pytest.mark.parametrize("base", ["auto", "kernel", LogisticRegression(), TREES])
def test_one_binary_label_makes_a_model(base):
    y = np.where(Y[:, 0] == 1, "yes", "no")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = small(base=base).fit(X, y)
    P = fitted.predict_proba(ASK)
    assert P.shape == (50, 2)
    assert set(fitted.predict(ASK)) <= {"yes", "no"}
    # Share of right answers, against that of the usual one: 50 rows, three standard errors.
    right = (fitted.predict(ASK) == np.where(ANSWERS[:, 0] == 1, "yes", "no")).mean()
    usual = max(ANSWERS[:, 0].mean(), 1 - ANSWERS[:, 0].mean())
    assert right > usual - 3 * np.sqrt(usual * (1 - usual) / 50)


# ----------------------------------------------------------------------------- there and back


@pytest.mark.parametrize(
    ("base", "kind"),
    [
        ("auto", "dense"),
        ("auto", "sparse"),
        ("kernel", "missing"),
        (["forest", "boosting", "kernel", "forest"], "missing"),
        ("boosting", "dense"),
        (None, "dense"),
    ],
)
def test_a_loaded_model_is_the_saved_one(base, kind, tmp_path):
    x = sp.csr_array(np.maximum(X, 0)) if kind == "sparse" else X
    y = HOLES if kind == "missing" else Y
    fitted = small(base=base, n_members=1, allow_missing_labels=True).fit(x, y)
    fitted.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_proba(ASK), fitted.predict_proba(ASK))
    np.testing.assert_array_equal(loaded.predict_proba(x), fitted.predict_proba(x))
    np.testing.assert_array_equal(
        loaded.log_prob(ASK[:5], ANSWERS[:5]), fitted.log_prob(ASK[:5], ANSWERS[:5])
    )
    assert [type(s) for s in loaded.evidence_] == [type(s) for s in fitted.evidence_]
    loaded.save(tmp_path / "again")
    again = load_model(tmp_path / "again")
    np.testing.assert_array_equal(again.predict_proba(ASK), fitted.predict_proba(ASK))


def test_a_recalibrated_model_comes_back(tmp_path):
    """Slopes were multiplied into weights and trust in float64, and the file has them so."""
    fitted = small(base="auto", recalibrate=True).fit(X, Y)
    fitted.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_proba(ASK), fitted.predict_proba(ASK))


@pytest.mark.parametrize("base", [LOGISTIC, ["kernel", LOGISTIC]])
def test_a_classifier_of_ones_own_cannot_be_saved(base, tmp_path):
    fitted = small(base=base, n_members=1).fit(X, Y)
    with pytest.raises(ModelFileError, match=r"pickled; use base='kernel', "):
        fitted.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_dummy_adds_nothing_and_does_no_harm():
    fitted = small(base=DummyClassifier()).fit(X, Y)
    assert np.isfinite(fitted.predict_proba(ASK)).all()


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evidence") / "model"
    model.save(folder)
    return folder


@pytest.fixture
def copied(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "model"))


NAMES = [
    *("0.rates", "0.coef", "0.intercept", "0.landmarks"),
    *("1.roots", "1.left", "1.feature", "1.indptr", "1.rows", "1.prior", "1.slope"),
    *("1.present.indices", "1.present.indptr"),
    *("2.roots", "2.right", "2.feature", "2.value"),
    *("2.start", "2.slope", "2.shift"),
]


@pytest.mark.parametrize("change", TENSOR_CHANGES)
def test_changed_evidence_is_refused(copied, change):
    description, tensors = parts(copied)
    assert description["evidence"] == ALL
    for name in [f"evidence.{name}" for name in NAMES]:
        if name.endswith("roots") and change == "longer":
            continue  # every tree counts twice: another forest, but one
        if (name, change) == ("evidence.2.feature", "negative"):
            continue  # all nodes are leaves: trees of their roots alone
        changed = TENSOR_CHANGES[change](tensors[name])
        others = {k: v for k, v in tensors.items() if k != name}
        rewrite(copied, tensors=others if changed is None else others | {name: changed})
        refused(copied, "does not describe a model")


@pytest.mark.parametrize("change", ["gone", "longer", "half", "nan"])
def test_changed_trust_is_refused(copied, change):
    assert len(set(parts(copied)[1]["members.0.trust"])) == 1  # one number for all labels
    _, tensors = parts(copied)
    changed = TENSOR_CHANGES[change](tensors.pop("members.0.trust"))
    rewrite(copied, tensors=tensors | ({} if changed is None else {"members.0.trust": changed}))
    refused(copied, "does not describe a model")


@pytest.mark.parametrize(
    "kinds",
    [
        *([], ["kernel"], ["forest", "kernel"], ["kernel", "forest", "kernel"], ["svm"]),
        *("kernel", None, [None], [["kernel"]], {"kernel": 1}, 3),
    ],
    ids=str,
)
def test_evidence_of_another_kind_is_refused(copied, kinds):
    description, _ = parts(copied)
    rewrite(copied, description | {"evidence": kinds})
    if kinds == ["kernel"]:  # less evidence, of the same shape: another model, but one
        assert load_model(copied).predict_proba(ASK).shape == (50, L)
    else:
        refused(copied, "does not describe a model")


@pytest.mark.parametrize("base", ["svm", {"a": 1}, 5, ["auto"]], ids=str)
def test_a_base_that_makes_no_sense_is_refused(copied, base):
    description, _ = parts(copied)
    rewrite(copied, description | {"params": description["params"] | {"base": base}})
    refused(copied, "invalid setting", "base must be")


def test_a_model_of_before_there_was_evidence_is_read():
    old = load_model(FIXTURES / "model_v1")
    assert old.evidence_ == []
    assert all(net.trust is None for net in old.networks_)
