"""Numbers of any size, labels of any share, steps that are not finite: what holds anyway."""

import copy
from collections import namedtuple

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from mpvae import MPVAEClassifier, MPVAEError, inference, load_model, loop
from mpvae.adam import Adam, Group
from mpvae.config import DataShape
from mpvae.features import fit_features, with_quantiles
from mpvae.presets import resolve
from mpvae.rows import Rows

N = 80
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4))
Y = (X[:, :3] + 0.3 * RNG.normal(size=(N, 3)) > 0.3).astype(int)
ANY_SIZE = np.exp(RNG.uniform(-700, 700, (N, 4))) * np.sign(X)
NONE = np.zeros((N, 1), int)
SOME = RNG.random((N, 4)) < 0.5
EVERY_THIRD = np.arange(N)[:, None] % 3 == 0


def quick(**given):
    small = {"preset": "fast", "hidden": (8,), "max_epochs": 2, "random_state": 0}
    return MPVAEClassifier(**small | given)


def sound(p):
    """Whether these are probabilities, and none is certain."""
    return bool(np.isfinite(p).all() and (p > 0).all() and (p < 1).all())


def fits_and_predicts(model, X, Y, **given):
    """Train, predict, look at what was learnt; warnings are errors here."""
    model.fit(X, Y, **given)
    assert sound(np.asarray(model.predict_proba(X)))
    assert np.asarray(model.predict(X)).shape == np.shape(Y)
    assert model.history_["skipped"].sum() == 0
    weights = [p for network in model.networks_ for p in network.parameters()]
    assert all(p.isfinite().all() for p in weights)
    assert np.isfinite(model.correlation_).all()
    return model


FEATURES = {
    "1e30": X * 1e30,
    "1e300": X * 1e300,
    "the largest there are": np.sign(X) * np.finfo(float).max,
    "1e-300": X * 1e-300,
    "denormal": X * 1e-310,
    "huge and tiny in one column": ANY_SIZE,
    "one cell of 1e300": np.where((np.arange(N)[:, None] == 3) & (np.arange(4) == 1), 1e300, X),
    "a constant column": np.c_[X, np.full(N, 7.0)],
    "constants alone": np.ones((N, 3)),
    "huge constants alone": np.full((N, 3), 1e300),
    "rows without a value": np.where(EVERY_THIRD, np.nan, X),
    "a column without a value": np.c_[X, np.full(N, np.nan)],
    "nothing known": np.full((N, 3), np.nan),
    "large integers": RNG.integers(-(2**62), 2**62, (N, 4)),
    "sparse, empty rows": sp.csr_array(np.where(SOME & ~EVERY_THIRD, X, 0)),
    "sparse, nothing there": sp.csr_array((N, 4)),
    "sparse, 1e300": sp.csr_array(np.where(SOME, X * 1e300, 0)),
    "sparse, denormal": sp.csr_array(np.where(SOME, X * 1e-310, 0)),
    "sparse, huge and tiny": sp.csr_array(np.where(SOME, ANY_SIZE, 0)),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_of_any_size_are_learnt_from(name):
    fits_and_predicts(quick(), FEATURES[name], Y)


@pytest.mark.parametrize("name", ["1e300", "huge and tiny in one column", "constants alone"])
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_base_learners_and_the_papers_presets_take_them_too(preset, name):
    fits_and_predicts(quick(preset=preset, n_draws=8), FEATURES[name], Y)


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e300, -1e300])
@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_rows_far_from_those_learnt_from_get_probabilities(preset, size):
    rows = np.full((2, 4), size)
    assert sound(quick(preset=preset).fit(X, Y).predict_proba(rows))
    assert sound(quick(preset=preset).fit(X, Y[:, 0]).predict_proba(rows))
    assert sound(quick(preset=preset).fit(X * 1e-300, Y).predict_proba(rows))


def test_codes_of_rows_far_away_are_averaged_too():
    model = quick(z_draws=4, quantiles=False, base=None).fit(X, Y)
    for size in (3e5, 1e9, 1e300):
        assert sound(model.predict_proba(np.full((2, 4), size)))


@pytest.mark.parametrize("unit", [2.0**900, 2.0**-900])
def test_the_unit_of_a_column_does_not_matter(unit):
    """Powers of two change no digit."""

    def seen(X):
        names, weight = tuple("abcd"), np.ones(len(X))
        features = fit_features(X, weight, names)
        return features.apply(X), with_quantiles(features, X, weight).apply(X)

    for a, b in zip(seen(X), seen(X * unit), strict=True):
        np.testing.assert_array_equal(a, b)


LABELS = {
    "one": pd.DataFrame(Y[:, :1], columns=["a"]),
    "one that no row has": pd.DataFrame(NONE, columns=["a"]),
    "one that no row has among others": np.hstack([Y, NONE]),
    "one that all rows have among others": np.hstack([Y, 1 - NONE]),
    "none that any row has": np.hstack([NONE] * 3),
    "all that all rows have": 1 - np.hstack([NONE] * 3),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_of_any_share_are_learnt(name):
    fits_and_predicts(quick(), X, LABELS[name])


def test_base_learners_take_labels_that_no_row_has_or_all_have():
    fits_and_predicts(quick(preset="default"), X, np.hstack([Y, NONE, 1 - NONE]))


def test_two_rows_are_enough_and_one_is_not():
    fits_and_predicts(quick(), X[:2], np.array([[0, 1], [1, 0]]))
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        quick().fit(X[:1], Y[:1])


@pytest.mark.parametrize("preset", ["fast", "default"])
def test_weights_from_tiny_to_huge(preset):
    weight = 10.0 ** RNG.permutation(np.linspace(-12, 12, N))
    fits_and_predicts(quick(preset=preset), X, Y, sample_weight=weight)


def test_weights_that_add_up_to_infinity_are_told():
    with pytest.raises(MPVAEError, match="adds up to infinity"):
        quick().fit(X, Y, sample_weight=np.full(N, 1e308))


def test_few_rows_of_many_labels_make_no_matrix_of_labels_by_labels():
    deviation = torch.randn(3, 100_000, generator=torch.Generator().manual_seed(0))
    loadings = inference._largest_directions(deviation, 8)  # by 100,000 squared: 40 GB
    assert loadings.shape == (100_000, 3)
    wanted = deviation[:, :50].mT @ deviation[:, :50]
    # float32, sums of three products of some units
    torch.testing.assert_close(loadings[:50] @ loadings[:50].mT, wanted, rtol=0, atol=1e-4)


def test_one_row_in_a_million_has_the_label():
    n = 1_000_000
    x = np.random.default_rng(1).normal(size=(n, 1)).astype(np.float32)
    y = np.zeros((n, 2), np.int8)
    y[123, 0], y[:, 1] = 1, x[:, 0] > 0
    model = quick(max_epochs=1, batch_size=8192, n_members=1, n_draws=4, latent_dim=2).fit(x, y)
    P = model.predict_proba(x[:1000])
    assert sound(P)
    assert P[:, 0].max() < 0.01
    assert model.history_["skipped"].sum() == 0


# ------------------------------------------------------------------ steps that are not finite


def test_an_absurd_learning_rate_ends_with_batch_term_and_remedy():
    told = (
        r"10 steps in a row, to epoch 1, batch 1\d of 1\d \(rows \d+, \d+, \d+ and 1 more, "
        r"counted from 0\): the loss \(total.*\) is not finite; lower lr"
    )
    with (
        pytest.warns(UserWarning, match=r"epoch 1, batch 2 of .*such a step is not taken"),
        pytest.raises(MPVAEError, match=told),
    ):
        quick(lr=1e30, batch_size=4, n_members=1).fit(X, Y)


def test_networks_that_are_lost_at_the_end_of_an_epoch_are_told():
    with pytest.raises(MPVAEError, match=r"probabilities of the validation rows.*lower lr"):
        quick(lr=1e30, batch_size=N, n_members=1).fit(X, Y)


def test_steps_not_taken_are_counted_and_the_model_is_sound(tmp_path):
    """At this rate some steps lead to where the loss overflows, and the next ones back."""
    with pytest.warns(UserWarning, match="such a step is not taken, history_ counts them"):
        model = quick(lr=1.0, batch_size=16, max_epochs=12, patience=None, base=None).fit(X, Y)
    assert model.history_["skipped"].sum() > 0
    assert sound(model.predict_proba(X))
    model.save(tmp_path / "m")
    again = load_model(tmp_path / "m")
    assert again.history_["skipped"].tolist() == model.history_["skipped"].tolist()


Terms = namedtuple("Terms", "total growth")


def steep(size, lr, X, max_epochs=30):
    """A loss that falls without end, like -exp(w x): after some steps it overflows."""
    network = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(network.weight)
    optimizer = Adam([Group(list(network.parameters()))])

    def loss(x, y, weight):
        total = -network(x).exp().mean()
        return Terms(total, total.detach())

    given = {"batch_size": size, "max_epochs": max_epochs, "lr": lr, "lr_schedule": "constant"}
    rows = Rows(X, np.ones((len(X), 1)), np.ones(len(X)), number=np.arange(len(X)))
    seen = []

    def train():
        return loop.fit_network(
            network,
            rows,
            None,
            resolve("default", given, DataShape(len(X), 1, 1)),
            optimizer=optimizer,
            loss=loss,
            probabilities=lambda X: None,
            metric="micro_f1",
            on_epoch=lambda record: seen.append(network.weight.item()),
        )

    return train, network, optimizer, seen


def finite(optimizer):
    return all(value.isfinite().all() for value in optimizer.state().values())


@pytest.mark.parametrize("n_steps", [2, 3, 40])
def test_where_no_step_can_be_taken_the_best_epoch_is_kept(n_steps):
    rows = np.ones((n_steps, 1), np.float32)
    train, network, optimizer, seen = steep(1, 100 / (2.5 * n_steps), rows)
    with pytest.warns(UserWarning, match="not taken|ends with the best of") as told:
        course = train()
    first, last = (str(one.message) for one in (told[0], told[-1]))
    assert "such a step is not taken" in first
    assert "the training ends with the best of" in last
    assert len(told) == 2
    good = [value for value, record in zip(seen, course.history, strict=True) if record.is_best]
    assert network.weight.item() == good[-1]
    assert np.isfinite(np.exp(np.float32(good[-1])))
    assert finite(optimizer)


def test_a_gradient_too_large_for_the_optimiser_is_not_taken():
    """The loss is finite, the square of its gradient is not: Adam would never move again."""
    X = np.where(np.arange(40)[:, None] == 7, 1e25, 1e-3).astype(np.float32)
    train, network, optimizer, _ = steep(1, 1e-30, X, max_epochs=2)
    with pytest.warns(UserWarning, match=r"\(rows 7, counted.*the gradient is too large, or"):
        course = train()
    assert [record.skipped for record in course.history] == [1, 1]
    assert finite(optimizer)
    assert network.weight.isfinite().all()


# --------------------------------------------------------------------------- damaged weights

KNOWN = np.where(np.arange(3) == 0, Y, np.nan)
QUESTIONS = {
    "predict_proba": lambda model: model.predict_proba(X),
    "predict": lambda model: model.predict(X),
    "predict, F1": lambda model: model.predict(X, "example_f1", rule="joint"),
    "predict, subset": lambda model: model.predict(X, "subset", rule="joint"),
    "predict_top": lambda model: model.predict_top(X, 2),
    "predict_conditional": lambda model: model.predict_conditional(X, KNOWN),
    "log_prob": lambda model: model.log_prob(X, Y),
    "sample": lambda model: model.sample(X, random_state=0),
    "latent_effects": lambda model: model.latent_effects(X),
}


@pytest.fixture(scope="module")
def sane():
    return quick(base=None).fit(X, Y)


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_answers_that_are_not_finite_are_not_given(sane, ask):
    model = copy.deepcopy(sane)
    model.networks_[0].output.weight.fill_(torch.nan)
    ask(sane)
    with pytest.raises(MPVAEError, match=r"damaged, train it again$") as told:
        ask(model)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["B", "output.weight", "decoder.0.weight"])
def test_enormous_weights_are_told_of(sane, name):
    model = copy.deepcopy(sane)
    model.networks_[0].get_parameter(name).mul_(1e30)
    assert sound(model.predict_proba(X))
    with pytest.raises(MPVAEError, match="weights are damaged, train it again"):
        model.predict_conditional(X, KNOWN)


def test_enormous_loadings_have_no_embedding():
    model = quick(base=None, n_factors=1).fit(X, Y)
    for network in model.networks_:
        network.B.fill_(1e30)
    assert np.isfinite(model.correlation_).all()
    with pytest.raises(MPVAEError, match="weights are damaged, train it again"):
        _ = model.label_embedding_


def test_effects_of_a_code_without_bounds_are_finite(sane):
    model = copy.deepcopy(sane)
    model.networks_[0].prior_net[-1].bias.fill_(1e6)  # log of the variance, too
    assert np.isfinite(model.latent_effects(X).to_numpy()).all()
