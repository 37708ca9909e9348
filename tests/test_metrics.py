"""Metrics: hand-computed cases, scikit-learn as the second opinion, invariances, bad input."""

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse
from sklearn import metrics as sk

from mpvae import metrics
from mpvae.config import Metric
from mpvae.errors import ConfigError, DataError

# Rows: 1 of 2 found and 1 wrong; nothing there, nothing said; nothing there, 1 said; all right.
Y = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0]])
Z = np.array([[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]])
P = np.array([[0.9, 0.2, 0.5], [0.1, 0.1, 0.1], [0.8, 0.3, 0.3], [0.4, 0.7, 0.4]])

# Means of at most 1e4 values in [0, 1], summed in another order: 1e4 * 2.2e-16 at worst.
SAME = {"rtol": 0, "atol": 1e-11}


@pytest.fixture(params=[0, 1, 2])
def random_case(request):
    rng = np.random.default_rng(request.param)
    shape = [(40, 6), (9, 30), (200, 2)][request.param]
    truth = rng.integers(0, 2, shape) * rng.integers(0, 2, shape)
    scores = rng.integers(0, 12, shape) / 11  # with ties
    return truth, scores, (scores > 0.6).astype(int)


def test_example_f1_leaves_out_rows_empty_in_truth_and_prediction():
    # rows: 2*1/(2+2), left out, 0/(0+1), 2/(1+1)
    assert metrics.example_f1(Y, Z) == pytest.approx((0.5 + 0 + 1) / 3, abs=1e-15)


def test_example_f1_is_one_when_every_row_is_left_out():
    assert metrics.example_f1(np.zeros((3, 2)), np.zeros((3, 2))) == 1.0


def test_micro_f1_pools_the_counts():
    # TP 2, FP 2, FN 1
    assert metrics.micro_f1(Y, Z) == pytest.approx(4 / 7, abs=1e-15)


def test_micro_f1_is_zero_when_nothing_is_there_and_nothing_said():
    assert metrics.micro_f1(np.zeros((3, 2)), np.zeros((3, 2))) == 0.0


def test_macro_f1_counts_an_empty_label_as_zero():
    # labels: TP 1 FP 1 FN 0; TP 1 FN 1; FP 1
    assert metrics.macro_f1(Y, Z) == pytest.approx((2 / 3 + 2 / 3 + 0) / 3, abs=1e-15)
    with_empty = [np.hstack([A, np.zeros((4, 1), int)]) for A in (Y, Z)]
    assert metrics.macro_f1(*with_empty) == pytest.approx((4 / 3) / 4, abs=1e-15)


def test_hamming_and_subset_accuracy_count_right_entries_and_right_rows():
    assert metrics.hamming_accuracy(Y, Z) == 9 / 12
    assert metrics.subset_accuracy(Y, Z) == 2 / 4


def test_precision_at_k_counts_true_labels_among_the_first_k():
    assert metrics.precision_at_k(Y, P, 1) == 2 / 4
    # top two: {0, 2}: 1 hit, none, none, {1, 0}: 1 hit
    assert metrics.precision_at_k(Y, P, 2) == 2 / 8
    assert metrics.precision_at_k(Y, P, 3) == 3 / 12


def test_precision_at_k_takes_equal_scores_in_label_order():
    assert metrics.precision_at_k([[1, 0, 0]], [[0.5, 0.5, 0.5]], 1) == 1.0
    assert metrics.precision_at_k([[0, 0, 1]], [[0.5, 0.5, 0.5]], 2) == 0.0


@pytest.mark.parametrize("k", [0, -1, 4])
def test_precision_at_k_refuses_k_outside_the_labels(k):
    with pytest.raises(DataError, match=rf"number of labels 3, got {k}"):
        metrics.precision_at_k(Y, P, k)


def test_ranking_metrics_match_hand_counts():
    # row 0: pairs (0,2) right, (1,2) wrong; rows 1, 2: no pairs; row 3: none wrong
    assert metrics.ranking_loss(Y, P) == pytest.approx(0.5 / 4, abs=1e-15)
    # row 0 needs all 3, row 3 needs 1
    assert metrics.coverage(Y, P) == 4 / 4
    # row 0: (1/1 + 2/3) / 2, the others 1
    assert metrics.label_ranking_average_precision(Y, P) == pytest.approx(
        (5 / 6 + 3) / 4, abs=1e-15
    )


def test_equal_scores_are_the_worst_case_for_ranking_loss_and_coverage():
    assert metrics.ranking_loss([[1, 0]], [[0.5, 0.5]]) == 1.0
    assert metrics.coverage([[1, 0]], [[0.5, 0.5]]) == 2.0


def test_auc_and_average_precision_leave_out_labels_of_one_class():
    # label 0: its positive .9 is above all; label 1: .2 and .7 against .1, .3; label 2: no 1
    auc_1 = 3 / 4
    ap_1 = 0.5 * 1 + 0.5 * 2 / 3
    assert metrics.macro_auc(Y, P) == pytest.approx((1 + auc_1) / 2, abs=1e-15)
    assert metrics.macro_average_precision(Y, P) == pytest.approx((1 + ap_1) / 2, abs=1e-15)


def test_auc_and_average_precision_are_nan_when_no_label_has_two_classes():
    for truth in (np.zeros((3, 2)), np.ones((3, 2))):
        assert math.isnan(metrics.macro_auc(truth, np.full((3, 2), 0.5)))
        assert math.isnan(metrics.micro_auc(truth, np.full((3, 2), 0.5)))
        assert math.isnan(metrics.macro_average_precision(truth, np.full((3, 2), 0.5)))


def test_log_loss_and_brier_match_hand_values():
    assert metrics.log_loss([[1, 0]], [[0.5, 0.75]]) == pytest.approx(
        (math.log(2) + math.log(4)) / 2, abs=1e-15
    )
    assert metrics.brier([[1, 0]], [[0.5, 0.75]]) == (0.25 + 0.5625) / 2


def test_log_loss_stays_finite_for_certain_mistakes():
    info = np.finfo(float)
    assert metrics.log_loss([[1]], [[0.0]]) == pytest.approx(-math.log(info.tiny), rel=1e-15)
    assert metrics.log_loss([[0]], [[1.0]]) == pytest.approx(-math.log(info.eps), rel=1e-15)
    # certain and right costs at most the clip itself
    assert metrics.log_loss([[1, 0]], [[1.0, 0.0]]) <= info.eps


def test_calibration_error_is_the_weighted_gap_of_the_bins():
    # bins [0, .5) and [.5, 1]: mean p .2 against 1/2, and mean p .8 against 1
    truth, p = [[0, 1, 1, 1]], [[0.1, 0.3, 0.6, 1.0]]
    assert metrics.calibration_error(truth, p, n_bins=2) == pytest.approx(
        0.5 * 0.3 + 0.5 * 0.2, abs=1e-15
    )
    with pytest.raises(ConfigError, match="n_bins must be at least 1, got 0"):
        metrics.calibration_error(truth, p, n_bins=0)


def test_calibration_error_matches_a_plain_loop_over_bins(random_case):
    truth, p, _ = random_case
    y, q = truth.ravel(), p.ravel() * 0.999  # away from the bin edges k / 11 * 11
    total = 0.0
    for i in range(15):
        inside = (q >= i / 15) & (q < (i + 1) / 15)
        if inside.any():
            total += inside.sum() * abs(y[inside].mean() - q[inside].mean())
    np.testing.assert_allclose(
        metrics.calibration_error(truth, p * 0.999), total / q.size, **SAME
    )


def test_decision_metrics_match_scikit_learn(random_case):
    truth, _, taken = random_case
    counted = (truth + taken).any(axis=1)
    expected = {
        "example_f1": sk.f1_score(truth[counted], taken[counted], average="samples"),
        "micro_f1": sk.f1_score(truth, taken, average="micro"),
        "macro_f1": sk.f1_score(truth, taken, average="macro", zero_division=0),
        "hamming": 1 - sk.hamming_loss(truth, taken),
        "subset": sk.accuracy_score(truth, taken),
    }
    assert list(expected) == list(get_args(Metric)) == list(metrics.DECISION_METRICS)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics.DECISION_METRICS[name](truth, taken), value, **SAME)


def test_score_metrics_match_scikit_learn(random_case):
    truth, p, _ = random_case
    mixed = truth.any(axis=0) & ~truth.all(axis=0)
    inner = np.clip(p, 0.05, 0.95)
    pairs = [
        (metrics.ranking_loss(truth, p), sk.label_ranking_loss(truth, p)),
        (metrics.coverage(truth, p), sk.coverage_error(truth, p)),
        (
            metrics.label_ranking_average_precision(truth, p),
            sk.label_ranking_average_precision_score(truth, p),
        ),
        (
            metrics.macro_auc(truth, p),
            sk.roc_auc_score(truth[:, mixed], p[:, mixed], average="macro"),
        ),
        (metrics.micro_auc(truth, p), sk.roc_auc_score(truth.ravel(), p.ravel())),
        (
            metrics.macro_average_precision(truth, p),
            sk.average_precision_score(truth[:, mixed], p[:, mixed], average="macro"),
        ),
        (metrics.log_loss(truth, inner), sk.log_loss(truth.ravel(), inner.ravel())),
        (metrics.brier(truth, p), sk.brier_score_loss(truth.ravel(), p.ravel())),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)


@pytest.mark.parametrize(
    "cast",
    [
        lambda A: A.astype(bool),
        lambda A: A.astype(np.uint8),
        lambda A: A.astype(np.float32),
        lambda A: A.astype(object),
        sparse.csr_array,
        sparse.csc_matrix,
        lambda A: A.tolist(),
    ],
)
def test_every_container_and_type_gives_the_same_values(cast):
    truth, p, taken = Y, P, Z
    assert metrics.all_metrics(cast(truth), p, cast(taken)) == metrics.all_metrics(
        truth, p, taken
    )


def test_more_than_255_labels_in_uint8_are_ranked_as_in_int64():
    rng = np.random.default_rng(0)
    truth, p = rng.integers(0, 2, (5, 300)), rng.random((5, 300))
    for name in ("ranking_loss", "coverage", "label_ranking_average_precision"):
        metric = metrics.SCORE_METRICS[name]
        assert metric(truth.astype(np.uint8), p) == metric(truth, p)
    assert metrics.coverage(truth.astype(np.uint8), p) == sk.coverage_error(truth, p)


def test_one_label_is_enough_for_every_metric():
    truth, p = np.array([[1], [0], [0]]), np.array([[0.7], [0.2], [0.4]])
    values = metrics.all_metrics(truth, p, p > 0.5)
    assert values["macro_auc"] == values["label_ranking_average_precision"] == 1.0
    assert values["ranking_loss"] == 0.0
    assert values["coverage"] == pytest.approx(1 / 3)
    assert "precision_at_1" in values
    assert "precision_at_3" not in values


def test_all_metrics_holds_every_name_where_labels_allow(random_case):
    truth, p, taken = random_case
    expected = [*metrics.DECISION_METRICS, *metrics.SCORE_METRICS]
    if truth.shape[1] == 2:
        expected = [
            name for name in expected if name not in ("precision_at_3", "precision_at_5")
        ]
    assert list(metrics.all_metrics(truth, p, taken)) == expected


def test_all_metrics_judges_each_metric_on_its_own_prediction(random_case):
    truth, p, taken = random_case
    meant = dict.fromkeys(get_args(Metric), taken) | {"subset": truth}
    values = metrics.all_metrics(truth, p, meant)
    assert values["subset"] == 1.0
    assert values["micro_f1"] == metrics.micro_f1(truth, taken)


def test_all_metrics_names_the_predictions_it_lacks():
    with pytest.raises(DataError, match="lacks predictions for 4 of 5 metrics: example_f1"):
        metrics.all_metrics(Y, P, {"subset": Z})


binary_pairs = st.tuples(st.integers(1, 6), st.integers(1, 5)).flatmap(
    lambda shape: st.tuples(arrays(bool, shape), arrays(bool, shape))
)


@settings(max_examples=100, deadline=None)
@given(binary_pairs, st.randoms(use_true_random=False))
def test_decision_metrics_ignore_the_order_of_rows_and_labels(pair, random):
    truth, taken = pair
    rows = random.sample(range(truth.shape[0]), truth.shape[0])
    labels = random.sample(range(truth.shape[1]), truth.shape[1])
    for metric in metrics.DECISION_METRICS.values():
        shuffled = metric(truth[rows][:, labels], taken[rows][:, labels])
        np.testing.assert_allclose(shuffled, metric(truth, taken), **SAME)


@settings(max_examples=100, deadline=None)
@given(binary_pairs)
def test_decision_metrics_lie_in_the_unit_interval_and_are_symmetric(pair):
    truth, taken = pair
    for metric in metrics.DECISION_METRICS.values():
        assert 0 <= metric(truth, taken) <= 1
        assert metric(truth, taken) == metric(taken, truth)


@settings(max_examples=100, deadline=None)
@given(binary_pairs)
def test_a_perfect_prediction_scores_one(pair):
    truth, _ = pair
    for name in ("example_f1", "hamming", "subset"):
        assert metrics.DECISION_METRICS[name](truth, truth) == 1.0
    assert metrics.micro_f1(truth, truth) == float(truth.any())
    # labels without a positive count 0 even then
    assert metrics.macro_f1(truth, truth) == pytest.approx(truth.any(axis=0).mean())


@settings(max_examples=50, deadline=None)
@given(
    st.tuples(st.integers(2, 6), st.integers(2, 5)).flatmap(
        lambda shape: st.tuples(
            arrays(bool, shape), arrays(np.int64, shape, elements=st.integers(0, 9))
        )
    )
)
def test_ranking_metrics_ignore_any_increasing_change_of_scores(case):
    truth, level = case
    names = ("precision_at_1", "ranking_loss", "coverage", "label_ranking_average_precision",
             "macro_auc", "micro_auc", "macro_average_precision")  # fmt: skip
    for name in names:
        metric = metrics.SCORE_METRICS[name]
        np.testing.assert_array_equal(metric(truth, level), metric(truth, np.exp(level) - 50.0))


@pytest.mark.parametrize("metric", metrics.DECISION_METRICS.values())
def test_decision_metrics_name_unequal_shapes(metric):
    with pytest.raises(DataError, match=r"Y has shape \(4, 3\) but Z has shape \(3, 3\)"):
        metric(Y, Z[:3])


@pytest.mark.parametrize("metric", metrics.SCORE_METRICS.values())
def test_score_metrics_name_unequal_shapes(metric):
    with pytest.raises(DataError, match=r"Y has shape \(4, 3\) but P has shape \(4, 2\)"):
        metric(Y, P[:, :2])


@pytest.mark.parametrize("value", [2, -1, 0.5, np.nan])
def test_values_other_than_zero_and_one_are_refused_and_shown(value):
    wrong = Y.astype(float)
    wrong[1, 1] = value
    with pytest.raises(DataError, match=f"Y holds 1 of 12 values .* first {value}"):
        metrics.micro_f1(wrong, Z)
    with pytest.raises(DataError, match="Z holds 1 of 12 values"):
        metrics.micro_f1(Y, wrong)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_refused(value):
    wrong = P.copy()
    wrong[0, 0] = value
    with pytest.raises(DataError, match="P holds 1 of 12 values that are NaN or infinite"):
        metrics.macro_auc(Y, wrong)


@pytest.mark.parametrize("metric", [metrics.log_loss, metrics.brier, metrics.calibration_error])
def test_metrics_of_probabilities_refuse_other_scores(metric):
    with pytest.raises(DataError, match=r"between 0 and 1, got values from 0.1 to 1.9"):
        metric(Y, P + (P == 0.9))


@pytest.mark.parametrize("shape", [(3,), (0, 3), (3, 0), (2, 2, 2)])
def test_anything_but_a_filled_matrix_is_refused(shape):
    with pytest.raises(DataError, match="Y must be a matrix"):
        metrics.micro_f1(np.zeros(shape), np.zeros(shape))


@pytest.mark.parametrize("values", [[["a", "b"]], np.array([["a", None]], dtype=object)])
def test_text_is_refused(values):
    with pytest.raises(DataError, match="Y must hold numbers, got dtype"):
        metrics.micro_f1(values, [[1, 0]])
