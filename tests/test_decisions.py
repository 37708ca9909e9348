"""Thresholds: exact ones against brute force through the public metrics, and their promises."""

from itertools import product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mpvae.config import Metric
from mpvae.decisions import PAPER_THRESHOLDS, apply_threshold, best_on_test, fit_threshold
from mpvae.errors import ConfigError, DataError
from mpvae.metrics import DECISION_METRICS

METRICS = get_args(Metric)
SEPARABLE = ("hamming", "macro_f1", "micro_f1")

# fit_threshold holds scores within 1e-12 for equal, so it may fall short of the best by that.
SHORTFALL = 1e-12


def score(metric, truth, p, threshold):
    return DECISION_METRICS[metric](truth, apply_threshold(p, threshold))


def candidates(p):
    """One threshold for every prediction that any threshold can make of these scores."""
    return [*np.unique(p), np.inf]


def cases(max_rows=6, max_labels=4, min_labels=1):
    """Small truths and probabilities with many ties, empty rows and empty labels."""
    shapes = st.tuples(st.integers(1, max_rows), st.integers(min_labels, max_labels))
    levels = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0]) | st.floats(0, 1)
    return shapes.flatmap(
        lambda shape: st.tuples(arrays(np.int64, shape, elements=st.integers(0, 1)),
                                arrays(np.float64, shape, elements=levels))
    )  # fmt: skip


def best_per_label(metric, truth, p):
    """Best value over all combinations; labels without a positive keep the global threshold."""
    shared = fit_threshold(truth, p, metric=metric, kind="exact")
    choices = [
        candidates(p[:, j]) if truth[:, j].any() else [shared] for j in range(truth.shape[1])
    ]
    return max(score(metric, truth, p, np.array(t)) for t in product(*choices))


def test_paper_thresholds_are_the_27_of_the_authors():
    expected = [.01, .02, .03, .04, .05, .06, .07, .08, .09, .10,
                .15, .20, .25, .30, .35, .40, .45, .50, .55, .60,
                .65, .70, .75, .80, .85, .90, .95]  # fmt: skip
    assert list(PAPER_THRESHOLDS) == expected
    assert len(PAPER_THRESHOLDS) == 27


def test_a_probability_equal_to_the_threshold_is_taken():
    taken = apply_threshold([[0.2, 0.5, 0.7]], 0.5)
    assert taken.tolist() == [[0, 1, 1]]
    assert taken.dtype == np.int64


def test_thresholds_can_differ_by_label():
    taken = apply_threshold([[0.2, 0.5], [0.6, 0.4]], np.array([0.6, 0.5]))
    assert taken.tolist() == [[0, 1], [1, 0]]


def test_float32_probabilities_meet_the_threshold_unrounded():
    p = np.array([[np.float32(0.1)]])  # a little above 0.1
    assert apply_threshold(p, 0.1 + 1e-10).tolist() == [[1]]
    assert apply_threshold(p, 0.1 + 1e-8).tolist() == [[0]]


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_exact_threshold_is_the_best_of_all_thresholds(metric, case):
    truth, p = case
    best = max(score(metric, truth, p, t) for t in candidates(p))
    fitted = fit_threshold(truth, p, metric=metric, kind="exact")
    assert isinstance(fitted, float)
    assert score(metric, truth, p, fitted) >= best - SHORTFALL


@pytest.mark.parametrize("metric", METRICS)
def test_exact_threshold_is_the_best_on_larger_tables(metric):
    rng = np.random.default_rng(5)
    p = np.round(rng.random((60, 8)) ** 2, 2)
    truth = (rng.random(p.shape) < p * (rng.random((60, 1)) < 0.8)).astype(int)
    best = max(score(metric, truth, p, t) for t in candidates(p))
    fitted = fit_threshold(truth, p, metric=metric, kind="exact")
    assert score(metric, truth, p, fitted) == pytest.approx(best, abs=SHORTFALL)


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=50, deadline=None)
@given(case=cases())
def test_exact_is_at_least_as_good_as_paper_and_paper_as_half(metric, case):
    truth, p = case
    paper = score(metric, truth, p, fit_threshold(truth, p, metric=metric, kind="paper"))
    exact = score(metric, truth, p, fit_threshold(truth, p, metric=metric, kind="exact"))
    assert exact >= paper - SHORTFALL
    assert paper >= score(metric, truth, p, 0.5) - SHORTFALL


def test_exact_threshold_lies_midway_between_the_probabilities_it_parts():
    assert fit_threshold([[1, 0]], [[0.75, 0.25]], metric="hamming", kind="exact") == 0.5
    assert fit_threshold([[1, 1]], [[0.75, 0.25]], metric="hamming", kind="exact") == 0.125
    assert fit_threshold([[0, 0]], [[0.75, 0.25]], metric="hamming", kind="exact") == 0.875


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 5e-324), (0.5, np.nextafter(0.5, 1)), (np.nextafter(1, 0), 1.0), (-1e308, 1e308)],
)
def test_exact_threshold_parts_even_neighbouring_numbers(low, high):
    p = np.array([[high, low]])
    for truth in ([[1, 0]], [[0, 0]], [[1, 1]]):
        fitted = fit_threshold(truth, p, metric="hamming", kind="exact")
        assert apply_threshold(p, fitted).tolist() == truth


@pytest.mark.parametrize("kind", ["paper", "exact"])
def test_of_equally_good_thresholds_the_one_nearest_to_half_is_taken(kind):
    # Subset accuracy is 0 whatever the threshold: the two labels are in the wrong order.
    fitted = fit_threshold([[1, 0]], [[0.3, 0.7]], metric="subset", kind=kind)
    assert fitted == 0.5


def test_of_two_thresholds_equally_near_to_half_the_lower_is_taken():
    # Going up, .45 -> .50 loses a true label and .50 -> .55 sheds a false one.
    truth, p = [[1, 1, 0, 0]], [[0.47, 0.9, 0.52, 0.1]]
    assert score("hamming", truth, p, 0.45) == score("hamming", truth, p, 0.55) == 0.75
    assert score("hamming", truth, p, 0.5) == 0.5
    assert fit_threshold(truth, p, metric="hamming", kind="paper") == 0.45


@pytest.mark.parametrize("metric", METRICS)
def test_best_on_test_is_the_best_of_the_27_and_its_score(metric):
    rng = np.random.default_rng(2)
    p = rng.random((30, 5))
    truth = (rng.random(p.shape) < p / 2).astype(int)
    threshold, value = best_on_test(truth, p, metric)
    assert value == max(score(metric, truth, p, t) for t in PAPER_THRESHOLDS)
    assert value == score(metric, truth, p, threshold)
    assert threshold == fit_threshold(truth, p, metric=metric, kind="paper")


@pytest.mark.parametrize("metric", SEPARABLE)
@settings(max_examples=60, deadline=None)
@given(case=cases(max_rows=5, max_labels=3, min_labels=2))
def test_per_label_thresholds_are_the_best_of_all_combinations(metric, case):
    truth, p = case
    if len(truth) < 2:
        return  # one row says too little, tested below
    fitted = fit_threshold(truth, p, metric=metric, kind="per_label")
    assert fitted.shape == (truth.shape[1],)
    assert score(metric, truth, p, fitted) >= best_per_label(metric, truth, p) - SHORTFALL


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_per_label_thresholds_are_never_worse_than_the_global_one(metric, case):
    truth, p = case
    shared = fit_threshold(truth, p, metric=metric, kind="exact")
    fitted = fit_threshold(truth, p, metric=metric, kind="per_label")
    assert np.isfinite(fitted).all()
    assert score(metric, truth, p, fitted) >= score(metric, truth, p, shared)


@pytest.mark.parametrize("metric", METRICS)
def test_per_label_thresholds_gain_where_labels_live_on_different_scales(metric):
    rng = np.random.default_rng(7)
    truth = rng.integers(0, 2, (40, 3))
    p = (0.2 * truth + 0.15 * rng.random(truth.shape)) + np.array([0.0, 0.3, 0.6])
    fitted = fit_threshold(truth, p, metric=metric, kind="per_label")
    shared = fit_threshold(truth, p, metric=metric, kind="exact")
    assert score(metric, truth, p, fitted) > score(metric, truth, p, shared)
    if metric in SEPARABLE:
        assert score(metric, truth, p, fitted) == 1.0  # each label is separable by itself


@pytest.mark.parametrize("metric", METRICS)
def test_a_label_without_a_positive_keeps_the_global_threshold(metric):
    rng = np.random.default_rng(3)
    p = rng.random((20, 4))
    truth = (rng.random(p.shape) < p).astype(int)
    truth[:, 2] = 0
    shared = fit_threshold(truth, p, metric=metric, kind="exact")
    assert fit_threshold(truth, p, metric=metric, kind="per_label")[2] == shared


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("truth", [[[1, 0, 1]], [[0, 0, 0], [0, 0, 0]]])
def test_one_row_or_no_positive_at_all_gives_the_global_threshold_everywhere(metric, truth):
    p = np.array([[0.2, 0.6, 0.4]] * len(truth))
    shared = fit_threshold(truth, p, metric=metric, kind="exact")
    fitted = fit_threshold(truth, p, metric=metric, kind="per_label")
    assert fitted.tolist() == [shared] * 3


@pytest.mark.parametrize("kind", ["paper", "exact", "per_label"])
def test_fitting_leaves_its_inputs_as_they_were(kind):
    rng = np.random.default_rng(0)
    p = rng.random((10, 3))
    truth = rng.integers(0, 2, p.shape)
    p_before, truth_before = p.copy(), truth.copy()
    for metric in METRICS:
        fit_threshold(truth, p, metric=metric, kind=kind)
    np.testing.assert_array_equal(p, p_before)
    np.testing.assert_array_equal(truth, truth_before)


def test_bad_data_is_refused():
    with pytest.raises(DataError, match=r"Y has shape \(1, 2\) but P has shape \(1, 3\)"):
        fit_threshold([[0, 1]], [[0.1, 0.2, 0.3]], metric="micro_f1", kind="exact")
    with pytest.raises(DataError, match="Y holds 1 of 2 values other than 0 and 1, first 2"):
        best_on_test([[0, 2]], [[0.1, 0.2]], "micro_f1")
    with pytest.raises(DataError, match="P holds 1 of 2 values that are NaN or infinite"):
        apply_threshold([[np.nan, 0.2]], 0.5)
    with pytest.raises(DataError, match=r"threshold has shape \(3,\) but P has 2 labels"):
        apply_threshold([[0.1, 0.2]], np.array([0.1, 0.2, 0.3]))
    with pytest.raises(DataError, match="threshold must not be NaN"):
        apply_threshold([[0.1, 0.2]], float("nan"))


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match=r"metric must be one of .* got 'f1'"):
        fit_threshold([[0, 1]], [[0.1, 0.2]], metric="f1", kind="exact")
    with pytest.raises(ConfigError, match=r"kind must be one of .* got 'best'"):
        fit_threshold([[0, 1]], [[0.1, 0.2]], metric="micro_f1", kind="best")
