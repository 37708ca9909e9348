"""LaMP: attention against loops, who hears whom, and what may not matter."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from mpvae.baselines.lamp import LaMP
from mpvae.baselines.lamp_network import (
    LaMPNetwork,
    Messages,
    TokenNodes,
    VectorNodes,
    cooccurrence_graph,
)
from mpvae.data import simulate_probit
from mpvae.errors import ConfigError
from mpvae.metrics import log_loss

# Sums of under 1e3 numbers of order 1 in float64: rounding stays below 1e3 * 2.2e-16.
ROUNDING = {"rtol": 0, "atol": 1e-12}
FAST = {
    "n_dims": 16,
    "n_heads": 2,
    "n_layers": 1,
    "hidden": (32,),
    "max_epochs": 8,
    "lr": 0.01,
    "random_state": 0,
}


def network(features, n_labels, *, graph=None, n_layers=1, n_dims=4):
    torch.manual_seed(0)
    net = LaMPNetwork(
        features,
        np.full(n_labels, 0.3),
        graph,
        n_dims=n_dims,
        n_heads=2,
        n_layers=n_layers,
        dropout=0.0,
        intermediate_weight=0.2,
    )
    return net.double().eval()


def tokens(n_features, n_dims=4):
    torch.manual_seed(1)
    return TokenNodes(np.ones(n_features), n_dims, 0.0)


def test_attention_of_one_head_equals_loops_over_two_labels_and_two_tokens():
    layer = Messages(2, 1, 0.0).double()
    Wq, Wk = np.array([[1.0, 0.5], [0.0, 1.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    Wv, Wo = np.array([[2.0, 0.0], [1.0, -1.0]]), np.array([[1.0, 1.0], [0.0, 0.5]])
    for linear, W in zip(
        (layer.query, layer.key, layer.value, layer.output), (Wq, Wk, Wv, Wo), strict=True
    ):
        linear.weight.data = torch.as_tensor(W)
    labels = np.array([[1.0, 0.0], [-1.0, 2.0]])
    nodes = np.array([[0.5, 1.0], [2.0, -1.0]])

    expected = np.zeros((2, 2))
    for i in range(2):
        scores = [(Wq @ labels[i]) @ (Wk @ nodes[j]) / np.sqrt(2) for j in range(2)]
        shares = [np.exp(s) / sum(np.exp(t) for t in scores) for s in scores]
        expected[i] = Wo @ sum(shares[j] * (Wv @ nodes[j]) for j in range(2))
    # By hand for label 0: query (1, 0), keys (1, .5) and (-1, 2): scores 1 and -1 over
    # sqrt 2, so the first token has the share 1 / (1 + exp(-sqrt 2)).
    share = 1 / (1 + np.exp(-np.sqrt(2)))
    np.testing.assert_allclose(
        expected[0], Wo @ (share * np.array([1, -0.5]) + (1 - share) * np.array([4, 3]))
    )

    u, v = torch.as_tensor(labels)[None], torch.as_tensor(nodes)[None]
    found = layer.attend(u, v, None)[0].detach().numpy()
    np.testing.assert_allclose(found, expected, **ROUNDING)


def test_one_sender_is_heard_in_full_by_every_label():
    layer = Messages(4, 2, 0.0).double()
    u, v = torch.randn(1, 3, 4).double(), torch.randn(5, 1, 4).double()
    everyone = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    with torch.no_grad():
        short, long = layer.attend(u, v, None), layer.attend(u, v, everyone)
    torch.testing.assert_close(short.expand_as(long), long, **ROUNDING)


@pytest.mark.parametrize(("kind", "is_heard"), [("prior", False), ("full", True)])
def test_a_label_hears_another_only_along_the_graph(kind, is_heard):
    Y = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]])  # label 2 is always alone
    graph = cooccurrence_graph(Y, 1) if kind == "prior" else None
    net = network(tokens(3), 3, graph=graph)
    logit = net(torch.ones(1, 3, dtype=torch.float64))[0, 2]
    (gradient,) = torch.autograd.grad(logit, net.labels)
    assert bool((gradient[:2] != 0).any()) is is_heard
    assert (gradient[2] != 0).any()


def test_padding_does_not_change_the_answer():
    net = network(tokens(6), 3, n_layers=2)
    short = torch.tensor([[0.0, 2.0, 0.0, 0.0, -1.0, 0.0]], dtype=torch.float64)
    long = torch.ones(1, 6, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(net(torch.cat([short, long]))[:1], net(short), **ROUNDING)


def test_order_of_the_tokens_does_not_change_the_answer():
    net = network(tokens(6), 3, n_layers=2)
    x = torch.tensor([[0.0, 2.0, 0.0, 0.5, -1.0, 0.0]], dtype=torch.float64)
    order = torch.tensor([4, 3, 0, 5, 2, 1])
    with torch.no_grad():
        before = net(x)
        shuffled = torch.cat([torch.tensor([0]), 1 + order])  # the start token stays first
        net.features.embedding.copy_(net.features.embedding[shuffled])
        torch.testing.assert_close(net(x[:, order]), before, **ROUNDING)


def test_a_token_is_its_embedding_times_its_share_of_the_largest_value():
    nodes = TokenNodes(np.array([4.0, 1.0, 0.0]), 2, 0.0)
    nodes.embedding.data = torch.arange(8.0).reshape(4, 2)
    found = nodes(torch.tensor([[2.0, 0.0, 0.0], [0.0, -1.0, 3.0]]))
    assert found.present.tolist() == [[True, True, False], [True, True, True]]
    assert found.embedding[0].tolist() == [[0, 1], [1, 1.5], [0, 0]]
    assert found.embedding[1].tolist() == [[0, 1], [-4, -5], [18, 21]]


def test_a_row_without_tokens_has_a_finite_answer():
    net = network(tokens(6), 3)
    with torch.no_grad():
        assert net(torch.zeros(2, 6, dtype=torch.float64)).isfinite().all()


def test_permuting_the_labels_permutes_the_answer():
    graph = cooccurrence_graph(np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]), 1)
    net = network(
        VectorNodes(5, (8,), n_nodes=2, n_dims=4, dropout=0.0), 4, graph=graph, n_layers=2
    )
    x = torch.randn(3, 5, dtype=torch.float64)
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        before = net(x)
        for parameter in (net.labels, net.output, net.bias):
            parameter.copy_(parameter[order].clone())
        net.graph = net.graph[order][:, order]
        torch.testing.assert_close(net(x), before[:, order], **ROUNDING)


def test_the_prior_graph_joins_labels_that_occur_together_often_enough():
    Y = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 0]])
    once = [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    twice = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    for labels in (Y, sp.csr_array(Y)):
        np.testing.assert_array_equal(cooccurrence_graph(labels, 1), np.array(once, dtype=bool))
        np.testing.assert_array_equal(
            cooccurrence_graph(labels, 2), np.array(twice, dtype=bool)
        )


def test_the_loss_adds_a_fifth_of_every_earlier_answer_without_moving_the_readout():
    net = network(tokens(4), 3, n_layers=2)
    x = torch.eye(4, dtype=torch.float64)
    y = (torch.arange(12).reshape(4, 3) % 2).double()
    weight = torch.tensor([1.0, 0.0, 2.0, 1.0]).double()
    terms = net.loss(x, y, weight)

    def cross_entropy(u):
        p = ((u * net.output).sum(-1) + net.bias).sigmoid()
        rows = -(y * p.log() + (1 - y) * (1 - p).log()).mean(-1)
        return (weight * rows).sum() / 4

    *earlier, last = net.embeddings(x)
    assert len(earlier) == 3  # two halves of two layers, less the last
    torch.testing.assert_close(terms.final, cross_entropy(last), **ROUNDING)
    expected = sum(map(cross_entropy, earlier))
    torch.testing.assert_close(terms.intermediate, expected, **ROUNDING)
    torch.testing.assert_close(terms.total, terms.final + 0.2 * expected, **ROUNDING)
    assert torch.autograd.grad(terms.intermediate, net.output, allow_unused=True) == (None,)


@pytest.mark.parametrize("settings", [{}, {"inputs": "tokens"}, {"label_graph": "prior"}])
def test_learns_simulated_labels_better_than_their_prevalence(settings):
    data = simulate_probit(600, n_features=6, n_labels=5, feature_strength=2.0, seed=0)
    X, Y = np.asarray(data.X), np.asarray(data.Y)
    model = LaMP(**FAST, **settings).fit(X[:400], Y[:400])
    by_prevalence = np.broadcast_to(Y[:400].mean(0), Y[400:].shape)
    # The features carry 4 of the 6 parts of the variance of w: a tenth is a modest gain.
    learnt = log_loss(Y[400:], model.predict_proba(X[400:]))
    assert learnt < 0.9 * log_loss(Y[400:], by_prevalence)


def test_auto_makes_tokens_of_sparse_features_and_a_vector_of_dense_ones():
    rng = np.random.default_rng(0)
    X = (rng.random((60, 8)) < 0.3).astype(float)
    Y = (X[:, :3] > 0).astype(int)
    fast = {**FAST, "max_epochs": 1, "inputs": "auto"}
    sparse, dense = LaMP(**fast).fit(sp.csr_array(X), Y), LaMP(**fast).fit(X, Y)
    assert isinstance(sparse.network_.features, TokenNodes)
    assert isinstance(dense.network_.features, VectorNodes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_dims": 10, "n_heads": 4}, "n_dims must be a multiple of n_heads=4, got 10"),
        ({"n_layers": 0}, "n_layers must be an integer >= 1, got 0"),
        ({"label_graph": "tree"}, "label_graph must be one of full, prior, got 'tree'"),
        ({"inputs": "text"}, "inputs must be one of auto, vector, tokens, got 'text'"),
        ({"intermediate_weight": -1.0}, "intermediate_weight must be at least 0, got -1.0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        LaMP(**settings).fit(np.eye(4), np.eye(4, dtype=int))
