"""Figures hold the numbers of the model, whatever the number of labels."""

import copy

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

pytest.importorskip("plotly", reason="the extra report is not installed")

from mpvae import MPVAEClassifier
from mpvae.data import simulate_probit
from mpvae.report import (
    associations_figure,
    correlation_figure,
    label_map_figure,
    latent_figure,
    moved_figure,
    precision_figure,
    reliability_figure,
    training_figure,
)
from mpvae.report.look import shortened
from mpvae.report.model_figures import chosen_labels, strongest_pairs
from mpvae.report.score_figures import reliability

SMALL = {"hidden": (16,), "latent_dim": 3, "n_draws": 8, "n_members": 2, "max_epochs": 4}


def fitted(n_labels, **given):
    data = simulate_probit(300, n_features=4, n_labels=n_labels, n_factors=2, seed=1)
    Y = pd.DataFrame(data.Y.astype(int), columns=[f"sp {k}" for k in range(n_labels)])
    model = MPVAEClassifier(base=None, random_state=0, **(SMALL | given)).fit(data.X, Y)
    return model, data.X, Y


@pytest.fixture(scope="module")
def six():
    return fitted(6)


def test_the_heat_map_is_the_correlation_in_another_order(six):
    model, _, _ = six
    (heat,) = correlation_figure(model).data
    assert sorted(heat.x) == sorted(model.label_names_)
    assert list(heat.x) == list(heat.y)
    place = [list(model.label_names_).index(name) for name in heat.x]
    wanted = model.correlation_[np.ix_(place, place)]
    z = np.asarray(heat.z, float)
    assert np.isnan(np.diag(z)).all()
    off = ~np.eye(6, dtype=bool)
    # Shown in float32: seven digits.
    np.testing.assert_allclose(z[off], wanted[off], rtol=0, atol=1e-6)
    assert heat.zmin == -heat.zmax == -max(0.3, np.abs(z[off]).max())


def test_of_many_labels_those_of_the_strongest_pairs_are_shown(six):
    model, _, _ = six
    (heat,) = correlation_figure(model, max_labels=3).data
    assert len(heat.x) == 3
    strongest = model.associations(top=1).iloc[0]
    assert {strongest.label_a, strongest.label_b} <= set(chosen_labels(model, 3))


@pytest.mark.parametrize("n_labels", [2, 3, 4, 5, 40, 70])
def test_every_label_is_on_the_map_once(n_labels):
    model, X, _ = fitted(n_labels, n_members=1, max_epochs=1)
    traces = label_map_figure(model).data
    names = [name for trace in traces for name in trace.customdata]
    assert sorted(names) == sorted(model.label_names_)
    groups = model.label_groups()
    for trace in traces:
        assert len({groups[name] for name in trace.customdata}) == 1
        assert np.isfinite(np.asarray(trace.x, float)).all()
    assert correlation_figure(model).data
    assert associations_figure(model).data
    assert latent_figure(model, X).data


@pytest.mark.parametrize("n_labels", [60, 100])
def test_of_many_labels_some_are_named_and_do_not_overlap(n_labels):
    model, _, _ = fitted(n_labels, n_members=1, max_epochs=1)
    traces = label_map_figure(model).data
    x, y = (np.concatenate([trace[c] for trace in traces]) for c in "xy")
    text = np.concatenate([trace.text for trace in traces])
    named = np.flatnonzero(text != "")
    assert len(named) == 60 if n_labels == 60 else 10 < len(named) < 100
    if n_labels > 60:  # a name takes a twentieth of the height, 16 hundredths of the width
        near_x = np.abs(np.subtract.outer(x[named], x[named])) < 0.16 * np.ptp(x)
        near_y = np.abs(np.subtract.outer(y[named], y[named])) < 0.05 * np.ptp(y)
        assert (near_x & near_y).sum() == len(named)  # each with itself


def test_associations_are_those_of_the_model(six):
    model, _, _ = six
    pairs = strongest_pairs(model, 3)
    all_pairs = model.associations().sort_values("residual_correlation")
    assert pairs["residual_correlation"].is_monotonic_decreasing
    assert pairs["residual_correlation"].iloc[0] == all_pairs["residual_correlation"].iloc[-1]
    residual, raw = associations_figure(model, 3).data
    np.testing.assert_array_equal(residual.x, pairs["residual_correlation"])
    np.testing.assert_array_equal(raw.x, pairs["raw_correlation"])
    high = np.asarray(residual.x) + np.asarray(residual.error_x.array)
    np.testing.assert_allclose(high, pairs["high"], rtol=0, atol=1e-12)


def test_training_shows_every_term_of_every_network(six):
    model, _, _ = six
    figure = training_figure(model)
    history = model.history_
    titles = {note.text for note in figure.layout.annotations}
    assert "loss" in titles
    assert any(title.startswith("held out") for title in titles)
    assert len(figure.data) == 2 * len(titles)
    shown = next(trace for trace in figure.data if trace.name == "network 2")
    own = history[history["member"] == 1]
    np.testing.assert_array_equal(shown.y, own["total"])


def test_latent_effects_are_differences_of_probabilities(six):
    """Against the networks called row by row."""
    import torch

    model, X, _ = six
    network = model.networks_[0]
    effects = model.latent_effects(X[:5]).to_numpy()
    assert effects.shape == (3, 6)
    x = torch.as_tensor(model._encode(X[:5])).to(network.B)
    with torch.no_grad():
        p = network.prior(x)
        for j in range(3):
            z = [p.mean.clone(), p.mean.clone()]
            z[0][:, j] += p.stddev[:, j]
            z[1][:, j] -= p.stddev[:, j]
            sd = (1 + (network.B**2).sum(1)).sqrt()
            up, down = (
                torch.special.ndtr(network.decode(x, one).double() / sd.double()) for one in z
            )
            # float32 networks: some 1e-7 of a probability each
            np.testing.assert_allclose(effects[j], (up - down).mean(0), rtol=0, atol=1e-6)


def test_reliability_counts_cells():
    Y = np.array([[1.0, 0], [1, 1], [0, np.nan]])
    P = np.array([[0.91, 0.95], [0.99, 0.15], [0.11, 0.5]])
    bins = reliability(Y, P)
    assert bins["n"].tolist() == [2, 3]
    np.testing.assert_allclose(bins["promised"], [0.13, 0.95])
    np.testing.assert_allclose(bins["found"], [0.5, 2 / 3])
    for (k, n), low, high in zip([(1, 2), (2, 3)], bins["low"], bins["high"], strict=True):
        wilson = binomtest(k, n).proportion_ci(0.95, method="wilson")
        # 1.96 for the normal quantile 1.959964
        np.testing.assert_allclose([low, high], wilson, rtol=1e-4)


def test_figures_of_scores_have_a_trace_for_each_method(six):
    model, X, Y = six
    P = {"mpvae": model.predict_proba(X), "other": np.full(Y.shape, 0.3)}
    truth = Y.to_numpy(float)
    names = [trace.name for trace in reliability_figure(truth, P).data]
    assert names == ["as promised", "mpvae", "other"]
    ours, _ = precision_figure(truth, P).data
    best = np.take_along_axis(truth, np.argmax(P["mpvae"], axis=1)[:, None], 1).mean()
    assert ours.y[0] == pytest.approx(best)


def test_a_training_of_which_nothing_is_known_has_an_empty_figure(six):
    still = copy.copy(six[0])
    still.history_ = still.history_.assign(
        **{name: 0.0 for name in still.history_ if name not in ("member", "epoch")}
    ).filter(regex="^(?!val_)")
    assert len(training_figure(still).data) == 0


def test_what_is_known_is_not_among_the_moved():
    names = ["a", "b", "c"]
    figure = moved_figure(names, np.array([0.2, 0.5, 0.5]), np.array([1.0, 0.9, 0.4]), "a")
    before, after = figure.data[-2:]
    assert list(after.text) == ["b", "c"]
    assert list(after.x) == [0.9, 0.4]
    assert list(before.x) == [0.5, 0.5]


def test_long_names_are_cut():
    assert shortened("short") == "short"
    assert shortened("x" * 50) == "x" * 27 + "…"
