"""Thresholds from expectations, against every threshold tried one by one."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import ndtr, ndtri

from mpvae import observed
from mpvae.config import DataShape
from mpvae.decisions import apply_threshold, expected_f1_thresholds
from mpvae.presets import resolve

rng = np.random.default_rng(0)


def expected_f1(expected, taken):
    """2 E[hits] / (taken + E[positives]), the plug-in value of one label."""
    return 2 * expected[taken].sum() / (taken.sum() + expected.sum())


@pytest.mark.parametrize("ties", [False, True])
def test_no_threshold_has_a_higher_expected_f1(ties):
    P = rng.random((40, 6))
    if ties:
        P = P.round(1)
    expected = np.clip(P + 0.3 * rng.normal(size=P.shape), 0, 1)
    found = expected_f1_thresholds(expected, P)
    for j in range(6):
        best = max(expected_f1(expected[:, j], P[:, j] >= t) for t in P[:, j])
        mine = expected_f1(expected[:, j], P[:, j] >= found[j])
        assert mine == pytest.approx(best, rel=1e-12)  # sums of 40 terms in another order


def test_a_threshold_stands_midway_between_two_probabilities():
    P = np.array([[0.9], [0.6], [0.2]])
    expected = np.array([[1.0], [1.0], [0.0]])
    assert expected_f1_thresholds(expected, P) == pytest.approx([0.4])


def test_a_threshold_that_takes_all_lies_below_all():
    P = np.array([[0.9], [0.6]])
    assert expected_f1_thresholds(np.ones((2, 1)), P) == pytest.approx([0.3])


def simulated(n, L, seed=0):
    draws = np.random.default_rng(seed)
    q = draws.normal(size=(n, L)) - 1
    P = ndtr(q)
    return (draws.random((n, L)) < P).astype(float), P


def test_with_right_probabilities_half_is_the_threshold_of_hamming_accuracy():
    Y, P = simulated(4000, 5)
    found = observed.best_threshold(Y, P, "hamming", "expected")
    # The shift has a standard error of about sqrt(2 / (20,000 x .6)) = .013 on the probit
    # scale, some .005 in probability; four of them.
    assert found == pytest.approx(0.5, abs=0.02)


def test_a_model_too_sure_of_itself_is_not_believed():
    Y, P = simulated(4000, 5)
    sure = ndtr(3 * ndtri(P) + 1)  # the same order: the same decisions are right
    for metric in ("hamming", "macro_f1"):
        plain = observed.best_threshold(Y, P, metric, "expected")
        moved = observed.best_threshold(Y, sure, metric, "expected")
        same = apply_threshold(P, plain) == apply_threshold(sure, moved)
        assert same.mean() > 0.995  # the penalty of 20 rows among 4,000 holds the line back


def test_rare_labels_score_better_on_new_rows_than_with_the_best_on_the_old():
    gains = []
    for seed in range(5):
        draws = np.random.default_rng(seed)
        q = 0.7 * draws.normal(size=(600, 20)) - 2.2  # some 3 % of the rows
        P = ndtr(q)
        Y = (draws.random(P.shape) < P).astype(float)
        old, new = slice(0, 200), slice(200, 600)
        score = {
            kind: observed.decision_score(
                Y[new],
                P[new],
                "macro_f1",
                observed.best_threshold(Y[old], P[old], "macro_f1", kind),
            )
            for kind in ("per_label", "expected")
        }
        gains.append(score["expected"] - score["per_label"])
    assert np.mean(gains) > 2 * np.std(gains, ddof=1) / np.sqrt(len(gains))


def test_labels_not_observed_take_no_part():
    Y, P = simulated(300, 4)
    holes = Y.copy()
    holes[100:, 0] = np.nan
    holes[:, 3] = np.nan
    found = observed.best_threshold(holes, P, "macro_f1", "expected")
    wild = P.copy()
    wild[100:, 0] = 0.999
    again = observed.best_threshold(holes, wild, "macro_f1", "expected")
    assert found[0] == pytest.approx(again[0])
    assert found[3] == 0.5


def test_a_label_never_found_is_not_expected_everywhere():
    """If all rows are as unlikely, taking all of them has the highest expected F1."""
    Y, P = simulated(100, 3)
    Y[:, 1], P[:, 1] = 0, 1e-6
    assert observed.best_threshold(Y, P, "macro_f1", "expected")[1] == 0.5


def test_sparse_labels_are_as_dense_ones():
    Y, P = simulated(200, 3)
    for metric in ("hamming", "macro_f1"):
        dense = observed.best_threshold(Y, P, metric, "expected")
        sparse = observed.best_threshold(sp.csr_array(Y), P, metric, "expected")
        np.testing.assert_array_equal(dense, sparse)


def test_the_kinds_that_auto_stands_for():
    settings = resolve("default", {}, DataShape(100, 5, 3))
    kinds = {
        m: settings.threshold_kind(m)
        for m in ("example_f1", "micro_f1", "macro_f1", "hamming", "subset")
    }
    expected = {"hamming", "macro_f1"}
    assert {m for m, kind in kinds.items() if kind == "expected"} == expected
    assert {kind for m, kind in kinds.items() if m not in expected} == {"exact"}
