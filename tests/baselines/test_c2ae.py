"""C2AE's objective against its formulas written out in loops; what it learns."""

import math

import numpy as np
import pytest
import torch

from mpvae import probit
from mpvae.baselines.c2ae import C2AE, C2AENetwork, cca_terms, pair_loss
from mpvae.data import simulate_probit
from mpvae.decisions import best_on_test
from mpvae.errors import ConfigError
from mpvae.metrics import DECISION_METRICS

# Both sides are sums of some tens of float64 numbers of order one: 1e-12 is 5000 roundings.
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def network(n_features=4, n_labels=3, code_dim=2, alpha=10.0, penalty=0.5, seed=0):
    torch.manual_seed(seed)
    sizes = (n_features, n_labels, code_dim)
    net = C2AENetwork(
        *sizes, hidden=(6, 5), dropout=0.0, alpha=alpha, penalty=penalty, gain=5.0
    )
    return net.double()


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(2, 4, generator=g, dtype=torch.float64)
    y = torch.tensor([[1, 0, 0], [0, 1, 1]], dtype=torch.float64)
    return x, y, torch.tensor([1.0, 3.0], dtype=torch.float64)


def test_loss_of_two_rows_is_the_papers_formula_in_loops(batch):
    x, y, weight = batch
    net = network()
    code_x, code_y = net.feature_net(x).tolist(), net.label_net(y).tolist()
    p = net.decoder(net.label_net(y)).sigmoid().tolist()
    share = [0.25, 0.75]
    distance = penalty = pairs = 0.0
    for n in range(2):
        for k in range(2):
            distance += share[n] * (code_x[n][k] - code_y[n][k]) ** 2
    for code in (code_x, code_y):
        for a in range(2):
            for b in range(2):
                moment = sum(share[n] * code[n][a] * code[n][b] for n in range(2))
                penalty += (moment - (a == b)) ** 2
    for n, present, absent in ((0, [0], [1, 2]), (1, [1, 2], [0])):
        for i in present:
            for j in absent:
                pairs += share[n] * math.exp(-5 * (p[n][i] - p[n][j])) / 2
    terms = net.loss(x, y, weight)
    expected = (distance + 0.5 * penalty + 10 * pairs, distance, penalty, pairs)
    for term, value in zip(terms, expected, strict=True):
        torch.testing.assert_close(term.item(), value, **EXACT)


@pytest.mark.parametrize("gain", [1.0, 5.0])
def test_pair_loss_is_the_mean_over_all_pairs(gain):
    g = torch.Generator().manual_seed(0)
    p = torch.rand(20, 9, generator=g, dtype=torch.float64)
    y = (torch.rand(20, 9, generator=g) < 0.4).double()
    y[:, 0], y[:, 1] = 1, 0
    for n, loss in enumerate(pair_loss(p, y, gain)):
        gaps = p[n][y[n] == 1][:, None] - p[n][y[n] == 0]
        torch.testing.assert_close(loss, torch.exp(-gain * gaps).mean(), **EXACT)


def test_a_row_without_pairs_costs_nothing_and_teaches_nothing():
    p = torch.tensor([[0.2, 0.9], [0.2, 0.9]], requires_grad=True)
    loss = pair_loss(p, torch.tensor([[0.0, 0.0], [1.0, 1.0]]), 5.0)
    loss.sum().backward()
    assert loss.tolist() == [0, 0]
    assert p.grad.abs().max() == 0


def test_pair_loss_stays_finite_at_the_largest_gain_and_the_worst_scores():
    y = (torch.arange(1000) % 2).float()[None]
    p = (1 - y).requires_grad_()
    loss = pair_loss(p, y, 80.0)
    loss.sum().backward()
    torch.testing.assert_close(loss.item(), math.exp(80), rtol=1e-4, atol=0)  # float32 exp
    assert p.grad.isfinite().all()


def test_cca_terms_vanish_for_equal_whitened_codes():
    # Three columns of a Hadamard matrix: mean square 1, products of two of mean 0.
    code = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]).double()
    distance, penalty = cca_terms(code, code, torch.full((4,), 0.25, dtype=torch.float64))
    assert distance == 0
    assert penalty == 0


def test_cca_penalty_of_a_code_of_zeros_is_its_dimension():
    zero = torch.zeros(4, 3)
    distance, penalty = cca_terms(zero, zero, torch.full((4,), 0.25))
    assert (distance, penalty) == (0, 2 * 3)  # |0 - I|^2 = 3 for each of the two codes


def test_a_row_of_weight_two_is_a_row_given_twice(batch):
    x, y, _ = batch
    net = network()
    weighted = net.loss(x, y, torch.tensor([2.0, 1.0], dtype=torch.float64))
    index = [0, 0, 1]
    twice = net.loss(x[index], y[index], torch.ones(3, dtype=torch.float64))
    for a, b in zip(weighted, twice, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_the_ranking_loss_does_not_train_the_feature_encoder(batch):
    gradients = []
    for alpha in (0.0, 1000.0):
        net = network(alpha=alpha)
        net.loss(*batch).total.backward()
        gradients.append(torch.cat([p.grad.ravel() for p in net.feature_net.parameters()]))
        assert net.label_net[0].weight.grad.abs().max() > 0
    assert gradients[0].abs().max() > 0
    assert torch.equal(*gradients)


def test_prediction_decodes_the_code_of_the_features(batch):
    net = network()
    expected = net.decoder(net.feature_net(batch[0])).sigmoid()
    assert torch.equal(net.probabilities(batch[0]), expected)


FAST = {"hidden": (64, 32), "dropout": 0.0, "lr": 0.01, "max_epochs": 20, "random_state": 0}


def test_gains_most_of_what_the_true_model_has_over_prevalence():
    table = simulate_probit(1700, n_labels=8, feature_strength=2.0, prevalence=0.3)
    model = C2AE(**FAST).fit(table.X[:1200], table.Y[:1200])
    X, Y = table.X[1200:], table.Y[1200:]
    micro_f1 = DECISION_METRICS["micro_f1"]
    # All labels are equally frequent: knowing no more, naming all of them is best.
    all_present = micro_f1(Y, np.ones_like(Y))
    m, B = torch.as_tensor(table.m[1200:]), torch.as_tensor(table.B)
    true = best_on_test(Y, probit.marginal_prob(m, B).numpy(), "micro_f1")[1]
    # 500 rows have some 1200 present labels, so an F1 a standard error of at most
    # 0.5 / sqrt(1200) = 0.015; half the way, 0.1, is seven of them above prevalence.
    assert micro_f1(Y, model.predict(X)) > (true + all_present) / 2


def test_a_single_label_is_learnt_against_its_absence():
    table = simulate_probit(600, n_labels=1, feature_strength=3.0, prevalence=0.5)
    y = np.where(table.Y[:, 0] == 1, "yes", "no")
    model = C2AE(**FAST).fit(table.X[:400], y[:400])
    best = ((table.m[400:, 0] > 0) == (y[400:] == "yes")).mean()
    # Two accuracies on 200 rows: each has a standard error of at most 0.5 / sqrt(200) = 0.035;
    # twice that below the true model allows for 400 training rows.
    assert model.score(table.X[400:], y[400:]) > best - 0.07


def test_codes_have_four_fifths_of_the_labels_dimensions():
    table = simulate_probit(60, n_labels=10)
    model = C2AE(hidden=(8,), max_epochs=1).fit(table.X, table.Y)
    assert model.network_.feature_net[-1].out_features == 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"code_dim": 0}, "code_dim must be None or an integer >= 1, got 0"),
        ({"alpha": -1.0}, "alpha must be at least 0 and finite, got -1.0"),
        ({"penalty": math.inf}, "penalty must be at least 0 and finite, got inf"),
        ({"gain": 100.0}, r"gain must be in \(0, 80\], got 100.0"),
    ],
)
def test_parameters_out_of_range_are_named(given, message):
    with pytest.raises(ConfigError, match=message):
        C2AE(**given).fit(np.zeros((4, 2)), np.eye(4, 2))
