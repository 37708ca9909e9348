"""Best answers under a joint distribution: against brute force, by hand, and their promises."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import ndtr

from mpvae import optimal
from mpvae.errors import ConfigError, DataError
from mpvae.optimal import best_for_f1, log_mixture, mode


def all_sets(n_labels):
    return np.array(list(product([0, 1], repeat=n_labels)))  # (2^L, L)


def expected_f1(z, samples, weight, empty_value):
    """Expected F1 of answers z (C, L) in each row, straight from the definition, (n, C)."""
    hits = np.einsum("cl,nsl->ncs", z, samples)
    size = z.sum(axis=1)[:, None] + samples.sum(axis=2)[:, None]  # (n, C, S)
    f1 = np.where(size > 0, 2 * hits / np.maximum(size, 1), empty_value)
    return np.einsum("ncs,ns->nc", f1, weight)


def random_samples(rng, n_rows, n_labels):
    """Label vectors that go together, some of them empty, and weights, some of them 0."""
    n_draws = int(rng.integers(1, 30))
    shared = rng.normal(size=(n_rows, n_draws, 1))
    level = rng.normal(-0.5, 1, (n_rows, 1, n_labels))
    samples = level + shared * rng.normal(size=n_labels) > rng.normal(
        size=(n_rows, n_draws, n_labels)
    )
    samples &= rng.random((n_rows, n_draws, 1)) < 0.8
    weight = rng.exponential(size=(n_rows, n_draws)) * (rng.random((n_rows, n_draws)) < 0.8)
    weight[:, 0] += 0.01
    return samples, weight / weight.sum(axis=1, keepdims=True)


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
        samples, weight = random_samples(rng, 5, n_labels)
        decided, expected = best_for_f1(samples, weight, empty_value=empty_value)
        best = expected_f1(sets, samples, weight, empty_value).max(axis=1)
        np.testing.assert_allclose(expected, best, rtol=0, atol=1e-12)
        attained = expected_f1(decided, samples, weight, empty_value).diagonal()
        np.testing.assert_allclose(attained, best, rtol=0, atol=1e-12)


@pytest.mark.parametrize("max_size", [1, 2, 5])
def test_a_bounded_f1_answer_is_the_best_of_the_sets_no_larger(max_size):
    samples, weight = random_samples(np.random.default_rng(max_size), 40, 7)
    sets = all_sets(7)
    sets = sets[sets.sum(axis=1) <= max_size]
    decided, expected = best_for_f1(samples, weight, max_size=max_size)
    assert decided.sum(axis=1).max() == max_size
    best = expected_f1(sets, samples, weight, 1.0).max(axis=1)
    np.testing.assert_allclose(expected, best, rtol=0, atol=1e-12)


# Worked by hand. Delta for a = 1: 4/15, 4/15, 3/10; a = 2: .2, .2, .2; a = 3: .16, .16, .15.
HAND_SAMPLES, HAND_WEIGHT = [[[1, 1, 0], [0, 0, 1], [0, 0, 0]]], [[0.4, 0.3, 0.3]]


@pytest.mark.parametrize(
    ("options", "labels", "value"),
    [
        ({}, [1, 1, 1], 0.47),  # though every marginal is below one half
        ({"max_size": 2}, [1, 1, 0], 0.4),  # any two labels score this: the lowest indices
        ({"max_size": 1}, [0, 0, 0], 0.3),  # as much as the last label alone: the smaller set
        ({"max_size": 1, "empty_value": 0.9}, [0, 0, 1], 0.3),
    ],
)
def test_f1_answer_by_hand(options, labels, value):
    decided, expected = best_for_f1(HAND_SAMPLES, HAND_WEIGHT, **options)
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


def test_equal_labels_are_taken_from_the_left():
    rng = np.random.default_rng(1)
    column = rng.random((30, 64, 1)) < 0.4
    weight = rng.dirichlet(np.ones(64), 30)
    decided, _ = best_for_f1(np.repeat(column, 37, axis=2), weight, empty_value=0, max_size=5)
    assert decided.tolist() == [[1] * 5 + [0] * 32] * 30


def test_equal_weights_are_the_default_and_integers_are_as_good_as_bool():
    samples, _ = random_samples(np.random.default_rng(2), 6, 5)
    weight = np.full(samples.shape[:2], 1 / samples.shape[1])
    plain = best_for_f1(samples)
    for same in (best_for_f1(samples, weight), best_for_f1(samples.astype(np.uint8))):
        np.testing.assert_array_equal(plain[0], same[0])
        np.testing.assert_allclose(plain[1], same[1], rtol=0, atol=1e-14)


@settings(max_examples=100, deadline=None)
@given(
    samples=st.tuples(st.just(1), st.integers(1, 8), st.integers(1, 25)).flatmap(
        lambda shape: arrays(np.int8, shape, elements=st.integers(0, 1))
    ),
    empty_value=st.floats(0, 1),
    data=st.data(),
)
def test_f1_answer_is_never_worse_than_thresholded_marginals(samples, empty_value, data):
    n_draws = samples.shape[1]
    weight = data.draw(arrays(np.float64, (1, n_draws), elements=st.floats(0.01, 1)))
    weight /= weight.sum()
    marginal = np.einsum("ns,nsl->nl", weight, samples)[0]
    thresholded = (marginal >= np.append(marginal, 2)[:, None]).astype(int)  # every one
    decided, expected = best_for_f1(samples, weight, empty_value=empty_value)
    values = expected_f1(thresholded, samples, weight, empty_value)
    assert expected[0] >= values.max() - 1e-12
    assert expected_f1(decided, samples, weight, empty_value)[0, 0] == pytest.approx(
        expected[0], abs=1e-12
    )


# ---------------------------------------------------------------- the most probable labels


def test_log_mixture_by_hand():
    prob, weight = [[[0.5, 0.2], [0.1, 1.0]]], [[0.25, 0.75]]
    expected = 0.25 * 0.5 * 0.2 + 0.75 * 0.1 * 1.0
    assert log_mixture([[1, 1]], prob, weight) == pytest.approx([np.log(expected)], abs=1e-11)
    both = log_mixture([[[1, 1], [0, 0]]], prob, weight)
    assert both.shape == (1, 2)
    np.testing.assert_allclose(np.exp(both), [[expected, 0.25 * 0.5 * 0.8]], atol=1e-11)


def test_the_mixture_sums_to_one_over_all_label_vectors():
    rng = np.random.default_rng(3)
    prob = probit_mixture(rng, 4, 20, 8, scale=3.0)
    vectors = np.broadcast_to(all_sets(8), (4, 256, 8))
    total = np.exp(log_mixture(vectors, prob, rng.dirichlet(np.ones(20), 4))).sum(axis=1)
    np.testing.assert_allclose(total, 1, rtol=0, atol=1e-12)


def test_a_draw_without_weight_counts_for_nothing():
    rng = np.random.default_rng(4)
    prob = rng.random((3, 2, 5))
    weight = np.array([[1.0, 0.0]] * 3)
    y = rng.integers(0, 2, (3, 5))
    np.testing.assert_allclose(
        log_mixture(y, prob, weight), log_mixture(y, prob[:, :1]), rtol=0, atol=1e-13
    )
    np.testing.assert_array_equal(mode(prob, weight)[0], prob[:, 0] > 0.5)


def test_rounding_in_the_sum_of_the_weights_is_divided_out():
    samples, weight = random_samples(np.random.default_rng(10), 5, 6)
    plain, off = best_for_f1(samples, weight), best_for_f1(samples, weight * (1 + 5e-6))
    np.testing.assert_array_equal(plain[0], off[0])
    np.testing.assert_allclose(plain[1], off[1], rtol=0, atol=1e-12)


def test_impossible_labels_have_a_finite_log_probability():
    # Two certain labels, both wrong: 1e-12 each.
    value = log_mixture([[1, 0]], [[[0, 1]]])
    assert value == pytest.approx([2 * np.log(1e-12)], rel=1e-5)


@pytest.mark.parametrize("seed", range(60))
def test_mode_is_the_most_probable_of_all_label_vectors(seed):
    rng = np.random.default_rng(seed)
    n_labels = int(rng.integers(2, 11))
    n_draws = int(rng.integers(2, 9 if seed < 30 else 65))  # with few, the search must climb
    prob = probit_mixture(rng, 20, n_draws, n_labels, scale=rng.choice([0.3, 0.6, 1, 3]))
    weight = rng.dirichlet(np.ones(n_draws), 20) if seed % 2 else None
    decided, log_prob = mode(prob, weight)
    sets = np.broadcast_to(all_sets(n_labels), (20, 2**n_labels, n_labels))
    best = log_mixture(sets, prob, weight).max(axis=1)
    np.testing.assert_allclose(log_prob, best, rtol=0, atol=1e-9)
    np.testing.assert_allclose(log_mixture(decided, prob, weight), best, rtol=0, atol=1e-9)


def test_mode_of_one_draw_takes_what_is_more_likely_than_not():
    prob = np.random.default_rng(5).random((50, 1, 200))
    decided, log_prob = mode(prob)
    assert decided.dtype == np.int64
    np.testing.assert_array_equal(decided, prob[:, 0] > 0.5)
    exact = np.log(np.maximum(prob, 1 - prob)).sum(axis=(1, 2))
    np.testing.assert_allclose(log_prob, exact, rtol=0, atol=1e-10)


def test_mode_differs_from_rounded_marginals_where_labels_exclude_each_other():
    # One of three labels, never two: every marginal is 1/3, yet the empty set is impossible.
    decided, log_prob = mode(np.eye(3)[None], [[0.3, 0.3, 0.4]])
    assert decided.tolist() == [[0, 0, 1]]
    assert log_prob == pytest.approx([np.log(0.4)], abs=1e-9)


def test_mode_climbs_above_all_rounded_draws():
    # Each draw denies one of three labels, weakly; all three together are most probable.
    prob = np.where(np.eye(3, dtype=bool), 0.45, 0.99)[None]
    decided, log_prob = mode(prob, n_starts=1)
    assert decided.tolist() == [[1, 1, 1]]
    assert log_prob == pytest.approx([np.log(0.45 * 0.99**2)], abs=1e-12)


def test_no_flip_improves_the_mode_and_more_starts_never_hurt():
    rng = np.random.default_rng(6)
    prob = rng.beta(3, 3, (40, 30, 12))  # no draw is near the mode: the search is needed
    few, many = mode(prob, n_starts=1), mode(prob, n_starts=20)
    assert (many[1] >= few[1] - 1e-12).all()
    assert (many[1] > few[1] + 1e-3).any()
    for decided, log_prob in (few, many):
        flipped = decided[:, None] ^ np.eye(12, dtype=int)
        assert (log_mixture(flipped, prob) <= log_prob[:, None] + 1e-8).all()
        rounded = log_mixture((prob > 0.5).astype(int), prob)
        assert (rounded <= log_prob[:, None] + 1e-12).all()


# ---------------------------------------------------------------- pieces and refusals


def test_pieces_bound_memory_and_change_no_result(monkeypatch):
    rng = np.random.default_rng(7)
    prob = probit_mixture(rng, 9, 20, 30)
    weight = rng.dirichlet(np.ones(20), 9)
    samples = rng.random(prob.shape) < prob
    vectors = samples[:, :7]

    def results():
        return [*best_for_f1(samples, weight), *mode(prob, weight),
                log_mixture(vectors, prob, weight)]  # fmt: skip

    whole = results()
    for entries in (1, 2000):  # one row and one vector at a time; a few
        monkeypatch.setattr(optimal, "_ENTRIES", entries)
        for value, expected in zip(results(), whole, strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-12)


def test_no_rows_give_no_answers():
    assert best_for_f1(np.empty((0, 4, 3), dtype=bool))[0].shape == (0, 3)
    decided, log_prob = mode(np.empty((0, 4, 3)))
    assert (decided.shape, log_prob.shape) == ((0, 3), (0,))
    assert log_mixture(np.empty((0, 3), dtype=bool), np.empty((0, 4, 3))).shape == (0,)


def test_inputs_are_left_as_they_were():
    rng = np.random.default_rng(9)
    prob, weight = rng.random((4, 6, 5)), rng.dirichlet(np.ones(6), 4)
    samples = (rng.random(prob.shape) < prob).astype(np.int8)
    before = [a.copy() for a in (prob, weight, samples)]
    best_for_f1(samples, weight)
    mode(prob, weight)
    for now, then in zip((prob, weight, samples), before, strict=True):
        np.testing.assert_array_equal(now, then)


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
    with pytest.raises(DataError, match=r"prob must lie in \[0, 1\] without NaN"):
        log_mixture(np.ones((2, 4), int), prob)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match=r"prob must have shape \(n, S, L\).* got \(3, 4\)"):
        mode(HALVES[0])
    with pytest.raises(DataError, match=r"y has shape \(2, 3\) but prob has 2 rows and 4 lab"):
        log_mixture(np.ones((2, 3), int), HALVES)
    with pytest.raises(DataError, match=r"y must have shape \(n, L\) or \(n, C, L\)"):
        log_mixture([0, 1], HALVES)
    with pytest.raises(DataError, match=r"weight has shape \(2, 4\) but there are 2 rows of 3"):
        mode(HALVES, np.full((2, 4), 0.25))


@pytest.mark.parametrize("row", [[0.5, 0.6, -0.1], [0.5, 0.5, 0.5], [0.5, np.nan, 0.5]])
def test_weights_that_are_no_distribution_are_refused(row):
    weight = [[0.2, 0.3, 0.5], row]
    with pytest.raises(DataError, match="weight must be at least 0 with sum 1 in each row"):
        mode(HALVES, weight)
    with pytest.raises(DataError, match="weight must be at least 0 with sum 1 in each row"):
        best_for_f1(HALVES > 0.4, weight)


def test_impossible_settings_are_refused():
    samples = HALVES > 0.4
    for value in (-0.1, 1.5, np.nan):
        with pytest.raises(ConfigError, match="empty_value must be between 0 and 1, got"):
            best_for_f1(samples, empty_value=value)
    with pytest.raises(ConfigError, match="max_size must be at least 1, got 0"):
        best_for_f1(samples, max_size=0)
    with pytest.raises(ConfigError, match="n_starts must be at least 1, got 0"):
        mode(HALVES, n_starts=0)
