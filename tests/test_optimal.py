"""Best answers under a joint distribution: against brute force, by hand, and their promises."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import ndtr

from mpvae import optimal
from mpvae.errors import ConfigError, DataError
from mpvae.optimal import best_for_f1, mode


def all_sets(n_labels):
    return np.array(list(product([0, 1], repeat=n_labels)))  # (2^L, L)


def expected_f1(z, samples, empty_value):
    """Expected F1 of answers z (C, L) in each row, straight from the definition, (n, C)."""
    hits = np.einsum("cl,nsl->ncs", z, samples)
    size = z.sum(axis=1)[:, None] + samples.sum(axis=2)[:, None]  # (n, C, S)
    return np.where(size > 0, 2 * hits / np.maximum(size, 1), empty_value).mean(axis=2)


def mixture(y, prob):
    """Probability of label vectors y (n, C, L), straight from the definition, (n, C)."""
    rows = zip(y[:, :, None] == 1, prob, strict=True)
    return np.array([np.where(v, p, 1 - p).prod(axis=2).mean(axis=1) for v, p in rows])


def random_samples(rng, n_rows, n_labels):
    """Label vectors that go together, some of them empty."""
    n_draws = int(rng.integers(1, 30))
    shared = rng.normal(size=(n_rows, n_draws, 1))
    level = rng.normal(-0.5, 1, (n_rows, 1, n_labels))
    samples = level + shared * rng.normal(size=n_labels) > rng.normal(
        size=(n_rows, n_draws, n_labels)
    )
    return samples & (rng.random((n_rows, n_draws, 1)) < 0.8)


def probit_mixture(rng, n_rows, n_draws, n_labels, scale=1.0):
    """Probabilities Phi(m + B u) given draws u, (n, S, L), of a multivariate probit model."""
    m = rng.normal(size=(n_rows, 1, n_labels))
    n_factors = int(rng.integers(1, 5))
    loadings = scale * rng.normal(size=(n_factors, n_labels))
    return ndtr(m + rng.normal(size=(n_rows, n_draws, n_factors)) @ loadings)


# ---------------------------------------------------------------- expected F1


@pytest.mark.parametrize("empty_value", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("n_labels", range(1, 11))
def test_f1_answer_is_the_best_of_all_sets(n_labels, empty_value):
    rng = np.random.default_rng(n_labels)
    sets = all_sets(n_labels)
    for _ in range(4):
        samples = random_samples(rng, 5, n_labels)
        decided, expected = best_for_f1(samples, empty_value=empty_value)
        best = expected_f1(sets, samples, empty_value).max(axis=1)
        np.testing.assert_allclose(expected, best, rtol=0, atol=1e-12)
        attained = expected_f1(decided, samples, empty_value).diagonal()
        np.testing.assert_allclose(attained, best, rtol=0, atol=1e-12)


def test_of_equally_good_f1_answers_the_smallest_with_the_lowest_indices_is_taken():
    # Labels 0, 3, 4 score .44, as do 2, 3, 4 and these four together; in every order of labels.
    tied = np.eye(5, dtype=int)[[3, 3, 2, 0, 1]]
    tied[[0, 4], 4] = 1
    samples = np.array([tied[:, order] for order in permutations(range(5))])
    sets = np.array(sorted(all_sets(5), key=lambda z: (z.sum(), *-z)))
    value = expected_f1(sets, samples, 1.0)
    best = value >= value.max(axis=1, keepdims=True) - 1e-12  # (n, sets)
    assert (best.sum(axis=1) == 3).all()
    decided, expected = best_for_f1(samples)
    np.testing.assert_array_equal(decided, sets[best.argmax(axis=1)])
    np.testing.assert_allclose(expected, 0.44, rtol=0, atol=1e-15)


# Worked by hand. Delta for a = 1: 4/15, 4/15, 3/10; a = 2: .2, .2, .2; a = 3: .16, .16, .15.
HAND = [[1, 1, 0]] * 4 + [[0, 0, 1]] * 3 + [[0, 0, 0]] * 3


@pytest.mark.parametrize(
    ("samples", "empty_value", "labels", "value"),
    [
        (HAND, 1, [1, 1, 1], 0.47),  # though every marginal is below one half
        ([[1], [0]], 1, [0], 0.5),  # as much as with the label: the smaller set
        ([[1], [0]], 0.9, [1], 0.5),
    ],
)
def test_f1_answer_by_hand(samples, empty_value, labels, value):
    decided, expected = best_for_f1([samples], empty_value=empty_value)
    assert decided.tolist() == [labels]
    assert decided.dtype == np.int64
    assert expected == pytest.approx([value], abs=1e-15)


def test_the_best_f1_answer_can_be_larger_than_every_sample():
    # One of 40 labels is true, each as likely: one label scores 1/40, all of them 2/41.
    decided, expected = best_for_f1(np.eye(40, dtype=bool)[None])
    assert decided.sum() == 40
    assert expected == pytest.approx([2 / 41], abs=1e-14)


def test_f1_answers_with_many_labels_match_the_plain_algorithm():
    rng = np.random.default_rng(8)
    share = np.linspace(0.03, 1, 12)[:, None, None]  # rows with few to many labels
    p = share * probit_mixture(rng, 12, 50, 70)
    samples = rng.random(p.shape) < p
    decided, expected = best_for_f1(samples, empty_value=0)
    sizes = decided.sum(axis=1)
    assert sizes.min() < optimal._BLOCK < 2 * optimal._BLOCK < sizes.max()
    n_true = samples.sum(axis=2)
    value = []
    for a in range(1, 71):
        delta = np.einsum("nsl,ns->nl", samples, 2 / (n_true + a)) / 50
        value.append(np.sort(delta, axis=1)[:, -a:].sum(axis=1))
    np.testing.assert_allclose(expected, np.max(value, axis=0), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(sizes, np.argmax(value, axis=0) + 1)


def test_integers_are_as_good_as_bool():
    samples = random_samples(np.random.default_rng(2), 6, 5)
    for plain, same in zip(
        best_for_f1(samples), best_for_f1(samples.astype(np.uint8)), strict=True
    ):
        np.testing.assert_array_equal(plain, same)


@settings(max_examples=100, deadline=None)
@given(
    samples=st.tuples(st.just(1), st.integers(1, 8), st.integers(1, 25)).flatmap(
        lambda shape: arrays(np.int8, shape, elements=st.integers(0, 1))
    ),
    empty_value=st.floats(0, 1),
)
def test_f1_answer_is_never_worse_than_thresholded_marginals(samples, empty_value):
    marginal = samples[0].mean(axis=0)
    thresholded = (marginal >= np.append(marginal, 2)[:, None]).astype(int)  # every one
    decided, expected = best_for_f1(samples, empty_value=empty_value)
    assert expected[0] >= expected_f1(thresholded, samples, empty_value).max() - 1e-12
    attained = expected_f1(decided, samples, empty_value)[0]
    assert attained == pytest.approx(expected, abs=1e-12)


# ---------------------------------------------------------------- the most probable labels


@pytest.mark.parametrize("seed", range(60))
def test_mode_is_the_most_probable_of_all_label_vectors(seed):
    rng = np.random.default_rng(seed)
    n_labels = int(rng.integers(2, 11))
    n_draws = int(rng.integers(2, 9 if seed < 30 else 65))  # with few, the search must climb
    prob = probit_mixture(rng, 20, n_draws, n_labels, scale=rng.choice([0.3, 0.6, 1, 3]))
    decided, log_prob = mode(prob)
    sets = np.broadcast_to(all_sets(n_labels), (20, 2**n_labels, n_labels))
    best = mixture(sets, prob).max(axis=1)
    np.testing.assert_allclose(np.exp(log_prob), best, rtol=1e-9)
    np.testing.assert_allclose(mixture(decided[:, None], prob)[:, 0], best, rtol=1e-9)


def test_mode_of_one_draw_takes_what_is_more_likely_than_not():
    prob = np.random.default_rng(5).random((50, 1, 200))
    decided, log_prob = mode(prob)
    assert decided.dtype == np.int64
    np.testing.assert_array_equal(decided, prob[:, 0] > 0.5)
    exact = np.log(np.maximum(prob, 1 - prob)).sum(axis=(1, 2))
    np.testing.assert_allclose(log_prob, exact, rtol=0, atol=1e-10)


def test_mode_differs_from_rounded_marginals_where_labels_exclude_each_other():
    # One of three labels, never two: every marginal is 1/3, yet the empty set is impossible.
    decided, log_prob = mode(np.eye(3)[[0, 0, 0, 1, 1, 1, 2, 2, 2, 2]][None])
    assert decided.tolist() == [[0, 0, 1]]
    assert log_prob == pytest.approx([np.log(0.4)], abs=1e-9)


def test_mode_climbs_above_all_rounded_draws():
    # Each draw denies one of three labels, weakly; all three together are most probable.
    prob = np.where(np.eye(3, dtype=bool), 0.45, 0.99)[None]
    decided, log_prob = mode(prob)
    assert decided.tolist() == [[1, 1, 1]]
    assert log_prob == pytest.approx([np.log(0.45 * 0.99**2)], abs=1e-12)


def test_no_flip_improves_the_mode_and_more_starts_never_hurt(monkeypatch):
    rng = np.random.default_rng(6)
    prob = rng.beta(3, 3, (40, 30, 12))  # no draw is near the mode: the search is needed
    many = mode(prob)
    monkeypatch.setattr(optimal, "_STARTS", 1)
    few = mode(prob)
    assert (many[1] >= few[1] - 1e-12).all()
    assert (many[1] > few[1] + 1e-3).any()
    for decided, log_prob in (few, many):
        flipped = decided[:, None] ^ np.eye(12, dtype=int)
        assert (np.log(mixture(flipped, prob)) <= log_prob[:, None] + 1e-8).all()
        assert (np.log(mixture(prob > 0.5, prob)) <= log_prob[:, None] + 1e-12).all()


# ---------------------------------------------------------------- pieces and refusals


def test_pieces_bound_memory_and_change_no_result(monkeypatch):
    rng = np.random.default_rng(7)
    prob = probit_mixture(rng, 9, 20, 30)
    samples = rng.random(prob.shape) < prob

    def results():
        return *best_for_f1(samples), *mode(prob)

    whole = results()
    for entries in (1, 2000):  # one row and one vector at a time; a few
        monkeypatch.setattr(optimal, "_ENTRIES", entries)
        for value, expected in zip(results(), whole, strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-12)


def test_no_rows_give_no_answers():
    assert best_for_f1(np.empty((0, 4, 3), dtype=bool))[0].shape == (0, 3)
    decided, log_prob = mode(np.empty((0, 4, 3)))
    assert (decided.shape, log_prob.shape) == ((0, 3), (0,))


def test_inputs_are_left_as_they_were():
    rng = np.random.default_rng(9)
    prob = rng.random((4, 6, 5))
    samples = (rng.random(prob.shape) < prob).astype(np.int8)
    before = prob.copy(), samples.copy()
    best_for_f1(samples)
    mode(prob)
    np.testing.assert_array_equal(prob, before[0])
    np.testing.assert_array_equal(samples, before[1])


HALVES = np.full((2, 3, 4), 0.5)


@pytest.mark.parametrize("samples", [np.ones((2, 3), int), np.ones((2, 0, 3), int)])
def test_samples_of_the_wrong_shape_are_refused(samples):
    with pytest.raises(DataError, match=r"samples must have shape \(n, S, L\)"):
        best_for_f1(samples)


def test_samples_that_are_not_labels_are_refused():
    with pytest.raises(DataError, match="samples must be integers or bool, got float64"):
        best_for_f1(HALVES)
    with pytest.raises(DataError, match="samples must be 0 or 1, got -1 to 2"):
        best_for_f1([[[0, 2, -1]]])


@pytest.mark.parametrize("wrong", [-0.1, 1.1, np.nan])
def test_impossible_probabilities_are_refused(wrong):
    prob = HALVES.copy()
    prob[1, 2, 3] = wrong
    with pytest.raises(DataError, match=r"prob must lie in \[0, 1\] without NaN"):
        mode(prob)


def test_probabilities_of_the_wrong_shape_are_refused():
    with pytest.raises(DataError, match=r"prob must have shape \(n, S, L\).* got \(3, 4\)"):
        mode(HALVES[0])


@pytest.mark.parametrize("value", [-0.1, 1.5, np.nan])
def test_impossible_values_of_the_empty_answer_are_refused(value):
    with pytest.raises(ConfigError, match="empty_value must be between 0 and 1, got"):
        best_for_f1(HALVES > 0.4, empty_value=value)
