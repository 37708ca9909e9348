"""Joint answers against every label vector under the model's own joint distribution."""

import numpy as np
import pytest

from mpvae import joint
from mpvae.answers import N_DRAWS, best_answers
from test_joint import SE, D, S, member, vectors
from test_optimal import expected_f1, mixture

L, N = 8, 40
X = np.random.default_rng(0).normal(size=(N, D))
SETS = vectors(L).astype(np.int64)


@pytest.fixture(scope="module")
def networks():
    pair = [member(L, seed=seed, loading=1.5) for seed in (1, 2)]
    for network in pair:  # labels rarer, and features that say more about them
        network.output.weight.mul_(4)
        network.output.bias.sub_(1.5)
    return pair


@pytest.fixture(scope="module")
def drawn(networks):
    """Probabilities of the labels in the draws that answers rest on, (N, S, L)."""
    return np.concatenate([p for _, p in joint.probabilities(networks, X, N_DRAWS)])


@pytest.fixture(scope="module")
def probability(drawn):
    """Probability of every label vector under these draws, (N, 2^L)."""
    return mixture(np.broadcast_to(SETS, (N, *SETS.shape)), drawn)


def f1_table(empty_value):
    """F1 of every answer (rows) where every label vector is true (columns)."""
    return expected_f1(SETS, SETS[:, None], empty_value).T


def place(answers):
    """Row of each answer in SETS."""
    return answers @ 2 ** np.arange(L)[::-1]


@pytest.mark.parametrize("empty_value", [1.0, 0.5])
def test_f1_answers_are_as_good_as_the_best_of_all(networks, probability, empty_value):
    answers = best_answers(networks, X, ["example_f1"], empty_value=empty_value)["example_f1"]
    f1 = f1_table(empty_value)  # (answers, truths)
    expected = probability @ f1.T  # (N, answers)
    ours, best = place(answers), expected.argmax(1)
    rows = np.arange(N)
    gap = f1[best] - f1[ours]  # (N, truths)
    loss = expected[rows, best] - expected[rows, ours]
    # Ours is the best for N_DRAWS label vectors: where another is better on average, the
    # difference is within the error of its mean over so many.
    spread = np.sqrt((probability * (gap - loss[:, None]) ** 2).sum(1))
    assert (loss >= -1e-12).all()
    assert (loss <= SE * spread / np.sqrt(N_DRAWS)).all()


def test_f1_answers_beat_thresholds(networks, drawn, probability):
    answers = best_answers(networks, X, ["example_f1"])["example_f1"]
    f1 = f1_table(1.0)
    expected = probability @ f1.T
    rows = np.arange(N)
    marginal = drawn.mean(1)
    ours = expected[rows, place(answers)]
    levels = np.linspace(0.05, 0.95, 19)
    others = [expected[rows, place(marginal > level)] for level in levels]
    assert ours.mean() > np.mean(others, 1).max()  # also of the best one, chosen in hindsight
    assert ours.mean() > others[9].mean() + 0.1  # one half
    for level, other in zip(levels, others, strict=True):
        gap = f1[place(answers)] - f1[place(marginal > level)]
        spread = np.sqrt((probability * (gap - (ours - other)[:, None]) ** 2).sum(1))
        assert (ours >= other - SE * spread / np.sqrt(N_DRAWS) - 1e-12).all()


def test_subset_answers_are_the_most_probable_of_all(networks, probability):
    answers = best_answers(networks, X, ["subset"])["subset"]
    assert answers.dtype == np.int64
    attained = probability[np.arange(N), place(answers)]
    np.testing.assert_allclose(attained, probability.max(1), rtol=1e-9)


def test_subset_answers_are_most_probable_by_log_prob_too(networks, drawn):
    few = 5
    answers = best_answers(networks, X[:few], ["subset"])["subset"]
    for x, answer, draws in zip(X, answers, drawn[:few], strict=False):
        value, error = joint.log_prob(
            networks, np.repeat(x[None], 2**L, axis=0), SETS.astype(float), S // 8
        )
        p = np.exp(value)
        ours, best = place(answer), p.argmax()
        # The answer rests on N_DRAWS draws: the gap of these two probabilities is within the
        # error of its mean over them, and of both log-probabilities.
        pair = SETS[[ours, best]][:, None]
        each = np.where(pair == 1, draws, 1 - draws).prod(2)  # (2, draws)
        se = (each[1] - each[0]).std() / np.sqrt(N_DRAWS)
        se = np.linalg.norm([se, p[ours] * error[ours], p[best] * error[best]])
        assert p[best] - p[ours] <= SE * se


@pytest.mark.parametrize("metric", ["example_f1", "subset"])
def test_equal_rows_get_equal_answers_whatever_the_pieces(networks, metric, monkeypatch):
    twice = np.concatenate([X[:6], X[:6][::-1]])
    counted = []
    answers = best_answers(networks, twice, [metric], on_rows=counted.append)[metric]
    np.testing.assert_array_equal(answers[:6], answers[6:][::-1])
    assert sum(counted) == 12
    monkeypatch.setattr(joint, "_CELLS", 5 * N_DRAWS * L)  # a few rows at a time
    counted.clear()
    in_pieces = best_answers(networks, twice, [metric], on_rows=counted.append)[metric]
    np.testing.assert_array_equal(in_pieces, answers)
    assert sum(counted) == 12
    assert len(counted) > 1


def test_the_value_of_empty_answers_counts():
    network = member(3, 0, seed=3, sd=0)
    network.output.weight.zero_()
    network.output.bias.fill_(-1.5)  # no label is likely
    assert best_answers([network], X, ["example_f1"])["example_f1"].sum() == 0
    without = best_answers([network], X, ["example_f1"], empty_value=0.0)["example_f1"]
    assert (without.sum(1) > 0).all()
    assert best_answers([network], X, ["subset"])["subset"].sum() == 0


def test_no_rows_give_no_answers(networks):
    assert best_answers(networks, X[:0], ["subset"])["subset"].shape == (0, L)
