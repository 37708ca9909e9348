"""DMVP's likelihood against SciPy's normal cdfs; what it learns."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import log_ndtr
from scipy.stats import multivariate_normal

from mpvae import probit
from mpvae.baselines.dmvp import DMVP, DMVPNetwork
from mpvae.data import simulate_probit
from mpvae.errors import ConfigError
from mpvae.metrics import log_loss


def network(n_labels=3, n_factors=2, n_draws=8, seed=0):
    torch.manual_seed(seed)
    net = DMVPNetwork(4, n_labels, n_factors, hidden=(6, 5), dropout=0.0, n_draws=n_draws)
    return net.double()


def test_without_factors_the_loss_is_that_of_independent_probits():
    net = network(n_labels=5, n_factors=0)
    x = torch.randn(7, 4, dtype=torch.float64)
    y = (torch.rand(7, 5) < 0.5).double()
    weight = torch.arange(1.0, 8.0, dtype=torch.float64)
    m = net.mean_net(x).detach().numpy()
    log_lik = log_ndtr((2 * y.numpy() - 1) * m).sum(1)
    expected = -np.average(log_lik, weights=weight.numpy())
    # float64 sums of 35 terms, and two implementations of log Phi, each good to some ulp
    np.testing.assert_allclose(net.loss(x, y, weight).total.item(), expected, rtol=1e-12)


def test_many_draws_approach_the_multivariate_normal_cdf():
    n_draws = 2**18
    net = network(n_draws=n_draws)
    net.B.data = torch.tensor([[1.5, 0.0], [1.0, 0.5], [-1.0, 1.0]], dtype=torch.float64)
    x = torch.randn(1, 4, dtype=torch.float64)
    m = net.mean_net(x).detach().numpy()[0]
    Sigma = probit.covariance(net.B.detach()).numpy()
    total = 0.0
    for labels in itertools.product([0.0, 1.0], repeat=3):
        y = torch.tensor([labels], dtype=torch.float64)
        t = 2 * np.array(labels) - 1
        # All t w > 0, where t w ~ N(t m, t Sigma t): the cdf at t m of N(0, t Sigma t).
        p = multivariate_normal.cdf(
            t * m, cov=t[:, None] * Sigma * t, abseps=1e-7, releps=1e-7, maxpts=10**6, rng=0
        )
        estimate = np.exp(-net.loss(x, y, torch.ones(1, dtype=torch.float64)).total.item())
        # A draw's product lies in [0, 1], so its variance is at most p (1 - p), and so is that
        # of the mean of a pair u, -u: five standard errors of n_draws / 2 pairs.
        assert abs(estimate - p) < 5 * np.sqrt(p * (1 - p) / (n_draws / 2))
        total += p
    np.testing.assert_allclose(total, 1, atol=1e-5)  # of the test: SciPy's eight cdfs


def test_a_row_of_weight_two_is_a_row_given_twice():
    net = network(n_factors=0)
    x = torch.randn(2, 4, dtype=torch.float64)
    y = torch.tensor([[1.0, 0, 0], [0, 1, 1]], dtype=torch.float64)
    weighted = net.loss(x, y, torch.tensor([2.0, 1.0], dtype=torch.float64)).total
    twice = net.loss(x[[0, 0, 1]], y[[0, 0, 1]], torch.ones(3, dtype=torch.float64)).total
    torch.testing.assert_close(weighted, twice, rtol=1e-14, atol=0)


def test_probabilities_are_the_exact_marginals():
    net = network()
    x = torch.randn(5, 4, dtype=torch.float64)
    sd = np.sqrt(np.diag(probit.covariance(net.B.detach()).numpy()))
    expected = log_ndtr(net.mean_net(x).detach().numpy() / sd)
    np.testing.assert_allclose(
        net.probabilities(x).log().detach().numpy(), expected, rtol=1e-12, atol=1e-14
    )


def test_the_likelihood_trains_means_and_loadings():
    net = network()
    y = torch.tensor([[1.0, 0, 0], [0, 1, 1]], dtype=torch.float64)
    x = torch.randn(2, 4, dtype=torch.float64)
    net.loss(x, y, torch.ones(2, dtype=torch.float64)).total.backward()
    assert all(p.grad.abs().max() > 0 for p in net.parameters())


def test_training_starts_at_the_prevalence_of_each_label():
    table = simulate_probit(200, n_labels=6, prevalence=0.2)
    model = DMVP(hidden=(8,), lr=1e-12, max_epochs=1, validation_fraction=0)
    model.fit(table.X, table.Y)
    output = model.network_.mean_net[-1]
    output.weight.data.zero_()  # what is left is the intercept
    p = model.predict_proba(table.X)
    expected = (table.Y.sum(0) + 0.5) / 201
    np.testing.assert_allclose(p[0], expected, rtol=1e-5)  # the intercept was a float32


FAST = {"hidden": (32,), "dropout": 0.0, "lr": 0.01, "max_epochs": 15, "random_state": 0}


def test_the_signs_of_strong_correlations_are_recovered():
    table = simulate_probit(
        3000, n_features=4, n_labels=6, n_factors=2, prevalence=0.5, factor_strength=2.0
    )
    model = DMVP(**FAST).fit(table.X, table.Y)

    def correlation(B):
        Sigma = np.eye(len(B)) + B @ B.T
        sd = np.sqrt(np.diag(Sigma))
        return (Sigma / np.outer(sd, sd))[np.triu_indices(len(B), 1)]

    true, found = correlation(table.B), correlation(model.network_.B.detach().numpy())
    # A correlation of two halved normals has a standard error of (pi / 2) / sqrt(n) near 0
    # (0.030 of 2700 rows); five of them, and as much again for the features' share of w.
    strong = np.abs(true) > 0.3
    assert strong.sum() >= 5
    assert (np.sign(found) == np.sign(true))[strong].all()
    np.testing.assert_allclose(found, true, rtol=0, atol=0.3)


def test_gains_most_of_what_the_true_model_has_over_prevalence():
    table = simulate_probit(1700, n_labels=8, feature_strength=2.0)
    X, Y = table.X[:1200], table.Y[:1200]
    model = DMVP(**FAST).fit(X, Y)
    X, Y = table.X[1200:], table.Y[1200:]
    m, B = torch.as_tensor(table.m[1200:]), torch.as_tensor(table.B)
    true = log_loss(Y, probit.marginal_prob(m, B).numpy())
    constant = log_loss(Y, np.full(Y.shape, table.Y[:1200].mean(0)))
    # Half the way is far from noise: 500 rows give a log-loss a standard error of some 0.01.
    assert log_loss(Y, model.predict_proba(X)) < (true + constant) / 2


@pytest.mark.parametrize(("given", "n_factors"), [(None, 7), (2, 2), (0, 0)])
def test_the_covariance_has_full_rank_unless_told(given, n_factors):
    table = simulate_probit(40, n_labels=7)
    model = DMVP(n_factors=given, hidden=(8,), max_epochs=1).fit(table.X, table.Y)
    assert model.network_.B.shape == (7, n_factors)
    assert np.isfinite(model.predict_proba(table.X)).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_factors": -1}, "n_factors must be None or an integer >= 0, got -1"),
        ({"n_draws": 7}, "n_draws must be an even integer >= 2, got 7"),
    ],
)
def test_parameters_out_of_range_are_named(given, message):
    with pytest.raises(ConfigError, match=message):
        DMVP(**given).fit(np.zeros((4, 2)), np.eye(4, 2))
