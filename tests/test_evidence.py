"""Evidence: honest on the rows it was learnt from, and where the networks start."""

import itertools
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.special import ndtr, ndtri
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.multiclass import OneVsRestClassifier

from mpvae import ConfigError, ModelFileError, MPVAEClassifier, evidence, inference, load_model
from mpvae import forest as forest_module
from mpvae.calibration import fit_line
from mpvae.config import DataShape, resolve
from mpvae.data import simulate_probit, stratified_folds
from mpvae.evidence import AUTO, beside, check_base, fit_evidence, with_evidence
from mpvae.features import with_short_positions
from mpvae.forest import Forest, fit_forest
from mpvae.losses import mpvae_loss
from mpvae.members import fit_members
from mpvae.networks import MPVAE
from mpvae.ridge import KernelRidge, fit_kernel_ridge
from mpvae.training import _start_at_evidence
from test_model_file import TENSOR_CHANGES, parts, refused, rewrite

FIXTURES = Path(__file__).parent / "fixtures"
N, D, L = 150, 4, 3
DATA = simulate_probit(N + 50, n_features=D, n_labels=L, n_factors=1, seed=0)
X, Y = DATA.X[:N].astype(np.float32), DATA.Y[:N].astype(float)
ASK, ANSWERS = DATA.X[N:].astype(np.float32), DATA.Y[N:].astype(float)
ONES = np.ones(N)
LOGISTIC = OneVsRestClassifier(LogisticRegression())
TREES = RandomForestClassifier(10, max_depth=4, random_state=0)


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr(forest_module, "N_TREES", 20)


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
        patch.setattr(forest_module, "N_TREES", 20)
        return small(base="auto").fit(X, Y)


# -------------------------------------------------------------------------------- who is asked


@pytest.mark.parametrize(
    "base", [None, "auto", "kernel", "forest", LOGISTIC, TREES, [], ["kernel", TREES], AUTO]
)
def test_what_can_be_asked(base):
    check_base(base)


@pytest.mark.parametrize(
    "base",
    [
        *("Kernel", "svm", 3, True, {}, ["auto"], [None], ["kernel", "svm"], [["kernel"]]),
        *(LinearRegression(), RidgeClassifier(), LogisticRegression, np.ones(3)),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_named(base):
    wanted = r"base must be None, 'auto', 'kernel', 'forest', a classifier with predict_proba"
    for ask in (check_base, lambda base: small(base=base).fit(X, Y)):
        with pytest.raises(ConfigError, match=f"{wanted}, or a list of the last three, got "):
            ask(base)


def test_nobody_asked_says_nothing():
    for base in (None, []):
        assert fit_evidence(base, X, Y, ONES, 0) == ([], None)
    assert with_evidence(X, []) is X
    fitted = small(base=None, n_members=1).fit(X, Y)
    assert fitted.evidence_ == []
    assert fitted.networks_[0].trust is None
    assert fitted.networks_[0].prior_net[0].in_features == D


def test_auto_asks_kernel_and_forest_where_rows_are_enough_and_not_too_many(monkeypatch):
    def asked(n):
        return [type(s) for s in fit_evidence("auto", X[:n], Y[:n], ONES[:n], 0)[0]]

    assert asked(evidence.MIN_ROWS - 1) == []
    assert asked(evidence.MIN_ROWS) == [KernelRidge, Forest]
    monkeypatch.setattr(evidence, "MAX_ENTRIES", 60 * L)
    assert asked(60) == [KernelRidge, Forest]
    assert asked(61) == []
    monkeypatch.setattr(evidence, "MAX_ENTRIES", 10**9)
    monkeypatch.setattr(evidence, "MAX_ROWS", 60)
    assert asked(61) == []
    assert len(fit_evidence("kernel", X[:61], Y[:61], ONES[:61], 0)[0]) == 1  # asked by name


def test_several_are_averaged_and_none_is_certain():
    kernel, forest = (fit(X, Y, ONES, 0) for fit in (fit_kernel_ridge, fit_forest))
    for base in ("auto", ["kernel", "forest"], ("forest", "kernel")):
        sources, left_out = fit_evidence(base, X, Y, ONES, 0)
        expected = np.clip((kernel[1] + forest[1]) / 2, -5, 5)
        np.testing.assert_allclose(left_out, expected, rtol=1e-6)  # float32
        assert left_out.dtype == np.float32
        asked = with_evidence(ASK, sources)
        expected = np.clip((kernel[0].evidence(ASK) + forest[0].evidence(ASK)) / 2, -5, 5)
        np.testing.assert_array_equal(asked[:, :D], ASK)
        np.testing.assert_allclose(asked[:, D:], expected, rtol=1e-6)

    class Certain:
        def evidence(self, X):
            return np.array([[np.inf, -np.inf, 7.0]] * len(X))

    assert with_evidence(ASK, [Certain()])[0, D:].tolist() == [5, -5, 5]


def test_sparse_features_stay_sparse():
    sources, left_out = fit_evidence("auto", sp.csr_array(X), Y, ONES, 0)
    dense, also = fit_evidence("auto", X, Y, ONES, 0)
    np.testing.assert_allclose(left_out, also, 0, 1e-6)  # float32, of size 1
    wide = with_evidence(sp.csr_array(ASK), sources)
    assert isinstance(wide, sp.csr_array)
    assert wide.dtype == np.float32
    np.testing.assert_allclose(wide.toarray(), with_evidence(ASK, dense), 0, 1e-6)
    np.testing.assert_array_equal(beside(sp.csr_array(X), also).toarray(), beside(X, also))


def long_positions(X):
    wide = sp.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    return wide


@pytest.mark.parametrize("base", ["auto", TREES])
def test_sparse_features_may_have_long_positions(base):
    """scikit-learn's trees take positions of 32 bits alone."""
    assert with_short_positions(X) is X
    _, expected = fit_evidence(base, sp.csr_array(X), Y, ONES, 0)
    sources, left_out = fit_evidence(base, long_positions(X), Y, ONES, 0)
    np.testing.assert_array_equal(left_out, expected)
    wide = with_evidence(long_positions(ASK), sources)
    np.testing.assert_array_equal(
        wide.toarray(), with_evidence(sp.csr_array(ASK), sources).toarray()
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
    (source,), left_out = fit_evidence(base, X, labels, ONES, seed)
    if labels is not HOLES:
        _, also = fit_evidence(base, X, sp.csr_array(labels), ONES, seed)
        np.testing.assert_array_equal(also, left_out)
    filled = np.nan_to_num(labels).astype(int)  # not observed counts as absent
    filled = filled[:, 0] if n_labels == 1 else filled
    folds = stratified_folds(labels, 5, seed=seed)
    P = np.empty(labels.shape)
    for fold in range(5):
        fitted = type(base)(**base.get_params(deep=False))
        fitted.fit(X[folds != fold], filled[folds != fold])
        P[folds == fold] = probability(fitted, X[folds == fold], n_labels)
    q = np.clip(ndtri(P), -5, 5)
    slope, shift = fit_line(labels, q)
    np.testing.assert_allclose(left_out, np.clip(slope * q + shift, -5, 5), 0, 1e-6)  # float32
    whole = type(base)(**base.get_params(deep=False)).fit(X, filled)
    P = probability(whole, ASK, n_labels).astype(float)
    q = np.clip(ndtri(P), -5, 5)
    np.testing.assert_allclose(source.evidence(ASK), slope * q + shift, 0, 1e-9)


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
    for base in (by_heart, "forest", "kernel"):
        _, left_out = fit_evidence(base, X, noise, ONES, 0)
        right = (left_out > 0) == (noise == 1)
        # Labels that nothing predicts are met half of the time, with this standard error. By
        # a little less, since a row's absence shifts the frequency against it.
        se = np.sqrt(0.25 / right.size)
        assert right.mean() < 0.5 + 4 * se


# ---------------------------------------------------------------------- where networks start


def network(with_evidence=True, **changes):
    settings = resolve(
        "default", {"hidden": (8,), "latent_dim": 2} | changes, DataShape(N, D, L)
    )
    torch.manual_seed(0)
    return MPVAE(D + L * with_evidence, L, settings, with_evidence), settings


@pytest.mark.parametrize("z_draws", [0, 8])
def test_a_network_that_adds_nothing_says_what_the_evidence_says(z_draws):
    net, _ = network(n_factors=3)
    net = net.double().eval()
    net.output.weight.data.zero_()
    net.output.bias.data.zero_()
    rows = beside(ASK, np.random.default_rng(0).normal(size=(50, L)).astype(np.float32))
    for trust in (np.ones(L), np.array([0.3, 1.0, 2.0])):
        net.trust.data = torch.as_tensor(trust)
        found = inference.marginals([net], rows, z_draws)
        # m is multiplied by the scale of the utilities and divided by it again: two roundings
        # of an argument up to 6, whose Phi they move by 6 x 2e-16 x 0.4 and its own rounding.
        np.testing.assert_allclose(found, ndtr(trust * rows[:, D:]), 0, 1e-14)


def test_training_starts_near_the_evidence():
    rows = beside(ASK, np.random.default_rng(0).normal(size=(50, L)).astype(np.float32))
    net, _ = network()
    before = net.output.weight.detach().clone()
    _start_at_evidence(net)
    assert not net.output.bias.any()
    torch.testing.assert_close(net.output.weight.detach(), 0.1 * before)
    found = inference.marginals([net.double().eval()], rows, 8)
    assert np.abs(ndtri(found) - rows[:, D:]).max() < 0.2  # of a spread of 1


def test_every_way_to_decode_starts_from_the_evidence():
    net, _ = network()
    net = net.double().eval()
    x = torch.as_tensor(beside(ASK, np.ones((50, L), np.float32))).double()
    z = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    m = net.decode(x, z)
    offset = net.from_features(x).offset
    scale = (1 + net.B.square().sum(1)).sqrt()
    torch.testing.assert_close(offset, scale.expand(50, L))
    net.trust.data.zero_()
    without = net.decode(x, z)
    net.trust.data.fill_(1)
    torch.testing.assert_close(m, without + offset)
    given = net.from_features(x)
    several = net.decode_codes(given.for_draws(), torch.stack([z, z], 1))
    torch.testing.assert_close(several, torch.stack([m, m], 1))
    torch.testing.assert_close(net.decode_with_slope(given, z)[0], m)
    prior = net.prior(x)
    eps = torch.zeros(50, 2, dtype=torch.float64)
    both = net(x, torch.as_tensor(ANSWERS), eps)
    torch.testing.assert_close(both.m_x, net.decode(x, prior.mean))


def test_the_gradient_reaches_trust():
    net, settings = network(shared_output=False)
    x = torch.as_tensor(beside(X, fit_evidence("kernel", X, Y, ONES, 0)[1]))
    y, eps = torch.as_tensor(Y).float(), torch.zeros(N, 2)
    u = torch.zeros(N, 1, settings.n_factors)
    terms = mpvae_loss(net(x, y, eps), net.B, u, y, torch.ones(N), settings)
    terms.total.backward()
    assert (net.trust.grad != 0).all()
    assert network(with_evidence=False)[0].trust is None


def test_trust_is_learnt(model):
    for net in model.networks_:
        assert (net.trust != 1).all()
        assert np.isfinite(net.trust.numpy(force=True)).all()


@pytest.mark.parametrize("recalibrate", [False, True])
def test_of_a_fitted_model_without_its_outputs_evidence_is_left(recalibrate):
    fitted = small(base="auto", recalibrate=recalibrate).fit(X, Y)
    for net in fitted.networks_:
        net.output.weight.data.zero_()
        net.output.bias.data.zero_()
    q = with_evidence(fitted.features_.apply(ASK), fitted.evidence_)[:, D:].astype(float)
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
        assert abs(line[0] - 1) > 1e-3
        # One member, one code: slope and shift on the probit scale, and nothing else.
        np.testing.assert_allclose(after[:, label], np.polyval(line, before[:, label]), 0, 1e-9)


def test_networks_learn_from_rows_left_out_and_are_judged_by_all(monkeypatch):
    seen = []

    def watched(rows, validation, *args, **kwargs):
        seen.extend([rows, validation])
        return fit_members(rows, validation, *args, **kwargs)

    monkeypatch.setattr("mpvae.members.fit_members", watched)
    fitted = small(base="kernel").fit(X, Y, X_val=ASK, y_val=ANSWERS)
    rows, validation = seen
    assert rows.with_evidence
    assert validation.with_evidence
    ridge, left_out = fit_kernel_ridge(rows.X[:, :D], rows.Y, rows.weight, 0)
    np.testing.assert_allclose(rows.X[:, D:], left_out, rtol=1e-6)
    by_all = ridge.evidence(validation.X[:, :D])
    np.testing.assert_allclose(validation.X[:, D:], by_all, rtol=1e-6)
    np.testing.assert_allclose(validation.X[:, :D], fitted.features_.apply(ASK))


# ------------------------------------------------------------------------------ end to end


@pytest.mark.parametrize("base", ["kernel", "forest", ["kernel", LOGISTIC], TREES])
def test_any_base_makes_a_model(base):
    fitted = small(base=base).fit(X, Y)
    P = fitted.predict_proba(ASK)
    assert P.shape == (50, L)
    assert ((P > 0) & (P < 1)).all()
    assert fitted.predict(ASK).shape == (50, L)


def test_the_order_of_rows_does_not_matter(model):
    again = small(base="auto").fit(X[::-1], Y[::-1])
    np.testing.assert_array_equal(again.predict_proba(ASK), model.predict_proba(ASK))


def test_joint_answers_start_from_the_evidence_too(model):
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


def test_sparse_features_make_a_model():
    words = np.where(np.random.default_rng(0).random(X.shape) < 0.5, np.abs(X), 0)
    fitted = small(base="auto").fit(sp.csr_array(words), sp.csr_array(Y))
    assert sp.issparse(fitted.evidence_[0].landmarks)
    P = fitted.predict_proba(sp.csr_array(words[:20]))
    # Dense rows are added up in another order: roundings of float32 evidence.
    np.testing.assert_allclose(fitted.predict_proba(words[:20]), P, 0, 1e-6)
    np.testing.assert_array_equal(fitted.predict_proba(long_positions(words[:20])), P)


@pytest.mark.parametrize("base", ["auto", LOGISTIC])
def test_missing_labels_make_a_model(base):
    holes = HOLES.copy()
    fitted = small(base=base, allow_missing_labels=True).fit(X, holes)
    assert np.isfinite(fitted.predict_proba(ASK)).all()
    assert len(fitted.evidence_) == (2 if base == "auto" else 1)


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
        (["forest", "kernel", "forest"], "missing"),
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
    fitted = small(base="auto", recalibrate=True).fit(X, Y)
    fitted.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    # Slopes were multiplied into weights and trust in float64; the file has float32.
    np.testing.assert_allclose(loaded.predict_proba(ASK), fitted.predict_proba(ASK), rtol=1e-5)


@pytest.mark.parametrize("base", [LOGISTIC, ["kernel", LOGISTIC]])
def test_a_classifier_of_ones_own_cannot_be_saved(base, tmp_path):
    fitted = small(base=base, n_members=1).fit(X, Y)
    with pytest.raises(ModelFileError, match=r"pickled; use base='kernel', 'forest' or 'auto'"):
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
    *("0.gamma", "0.coef", "0.intercept", "0.landmarks"),
    *("1.roots", "1.left", "1.feature", "1.indptr", "1.rows", "1.prior", "1.slope"),
    *("1.present.indices", "1.present.indptr"),
]


@pytest.mark.parametrize("change", TENSOR_CHANGES)
def test_changed_evidence_is_refused(copied, change):
    description, tensors = parts(copied)
    assert description["evidence"] == ["kernel", "forest"]
    for name in [f"evidence.{name}" for name in NAMES]:
        if (name, change) == ("evidence.1.roots", "longer"):
            continue  # every tree votes twice: another forest, but one
        changed = TENSOR_CHANGES[change](tensors[name])
        others = {k: v for k, v in tensors.items() if k != name}
        rewrite(copied, tensors=others if changed is None else others | {name: changed})
        refused(copied, "does not describe a model")


@pytest.mark.parametrize("change", ["gone", "longer", "half", "nan"])
def test_changed_trust_is_refused(copied, change):
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
