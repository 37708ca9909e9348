"""Label sets: thresholds by hand and by brute force, and coverage on simulated rows."""

from math import floor
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from mpvae.conformal import Calibration, Guarantee, calibrate, coverage_report, label_sets
from mpvae.errors import ConfigError, DataError

GUARANTEES = get_args(Guarantee)
NAN = np.nan

# Ten rows of one label, all present: scores .05, .10, ..., .50.
TEN = np.arange(1, 11)[:, None] / 20


def simulate(rng, n_rows, n_labels=5):
    """Exchangeable rows with continuous, miscalibrated and dependent labels; some are empty."""
    p = rng.random((n_rows, n_labels))
    effort = rng.random((n_rows, 1)) ** 0.5
    return (rng.random(p.shape) < p**2 * effort).astype(int), p


def row_scores(truth, p):
    return np.where(truth == 1, p, 1.0).min(axis=1)


def exact_rank_threshold(scores, coverage):
    """Split conformal prediction as in textbooks."""
    # + 1e-9: (n + 1)(1 - .9) may miss a whole number by its last digit.
    rank = floor((scores.size + 1) * (1 - coverage) + 1e-9)
    return float(np.sort(scores)[rank - 1]) if rank > 0 else 0.0


def exact_recall_threshold(truth, p, coverage):
    """Largest of all candidates within the bound on the loss; the loss from the sets."""
    n = len(truth)
    best = 0.0
    for t in np.unique(np.append(p, 1.0)):
        lost = ((truth == 1) & (p < t)).sum(axis=1) / np.maximum(truth.sum(axis=1), 1)
        if n / (n + 1) * lost.mean() + 1 / (n + 1) <= 1 - coverage + 1e-9 / (n + 1):
            best = max(best, float(t))
    return best


def cases(max_rows=12, max_labels=4):
    """Small truths and probabilities with many ties, empty rows and empty labels."""
    shapes = st.tuples(st.integers(1, max_rows), st.integers(1, max_labels))
    levels = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0]) | st.floats(0, 1)
    return shapes.flatmap(
        lambda shape: st.tuples(arrays(np.int64, shape, elements=st.integers(0, 1)),
                                arrays(np.float64, shape, elements=levels))
    )  # fmt: skip


coverages = st.sampled_from([0.05, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95]) | st.floats(
    0.01, 0.99
)


# ---------------------------------------------------------------- by hand


def test_all_takes_the_order_statistic_of_the_smallest_true_probability():
    truth = [[1, 0], [1, 1], [0, 1], [1, 1]]
    p = [[0.9, 0.1], [0.8, 0.3], [0.2, 0.6], [0.5, 0.7]]  # scores .9, .3, .6, .5
    fitted = calibrate(truth, p)
    # n + 1 = 5: rank floor(5 (1 - coverage))
    assert fitted.threshold(0.8, "all") == 0.3
    assert fitted.threshold(0.79, "all") == 0.3
    assert fitted.threshold(0.6, "all") == 0.5
    assert fitted.threshold(0.4, "all") == 0.6
    assert fitted.threshold(0.2, "all") == 0.9
    assert fitted.threshold(0.81, "all") == 0.0


def test_recall_counts_the_share_of_true_labels_lost():
    truth = [[1, 1], [1, 0], [0, 1], [0, 1]]
    p = [[0.1, 0.8], [0.4, 0.9], [0.9, 0.5], [0.9, 0.7]]
    fitted = calibrate(truth, p)
    # Lost below .1, .4, .5, .7, .8, 1: 0, .5, 1.5, 2.5, 3.5, 4; allowed: 5 (1 - coverage) - 1.
    assert fitted.threshold(0.81, "recall") == 0.0
    assert fitted.threshold(0.8, "recall") == 0.1
    assert fitted.threshold(0.71, "recall") == 0.1
    assert fitted.threshold(0.7, "recall") == 0.4
    assert fitted.threshold(0.5, "recall") == 0.5
    assert fitted.threshold(0.3, "recall") == 0.7
    assert fitted.threshold(0.1, "recall") == 0.8


def test_label_has_a_threshold_for_each_label_from_its_positives():
    truth = [[1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 1, 0]]
    p = [[0.9, 0.1, 0.5], [0.3, 0.2, 0.5], [0.6, 0.3, 0.5], [0.5, 0.4, 0.5]]
    fitted = calibrate(truth, p)
    assert fitted.n_labels == 3
    assert fitted.threshold(0.8, "label").tolist() == [0.3, 0.0, 0.0]  # 2 are too few for .8
    assert fitted.threshold(0.6, "label").tolist() == [0.5, 0.1, 0.0]
    assert fitted.threshold(0.3, "label").tolist() == [0.6, 0.4, 0.0]


@pytest.mark.parametrize(("coverage", "rank"), [(0.9, 1), (0.8, 2), (0.7, 3), (0.3, 7)])
def test_a_coverage_written_in_decimals_gets_its_whole_rank(coverage, rank):
    # In floating point 10 (1 - .9) is .9999999999999998.
    fitted = calibrate(np.ones((9, 1)), TEN[:9])
    for guarantee in GUARANTEES:
        assert fitted.threshold(coverage, guarantee) == rank / 20


def test_with_too_few_rows_everything_is_inside():
    truth, p = np.ones((9, 1)), TEN[:9]
    fitted = calibrate(truth, p)
    for guarantee in GUARANTEES:
        threshold = fitted.threshold(0.901, guarantee)
        assert threshold == 0
        assert fitted.too_few(0.901, guarantee).all()
        assert not fitted.too_few(0.9, guarantee).any()  # 9 rows are just enough
        assert label_sets([[0.0], [1e-300]], threshold).all()


def test_rows_without_labels_count_as_covered():
    # 10 of 19 rows are empty: scores .05, ..., .45 and ten times 1.
    truth = np.r_[np.ones((9, 1)), np.zeros((10, 1))]
    fitted = calibrate(truth, np.r_[TEN[:9], TEN])
    for guarantee in ("all", "recall"):
        assert fitted.threshold(0.9, guarantee) == 0.1  # rank 2 of 19
        assert fitted.threshold(0.55, guarantee) == 0.45  # rank 9
        assert fitted.threshold(0.5, guarantee) == 1  # rank 10
    assert fitted.threshold(0.9, "label") == 0.05  # rank 1 of 9


def test_without_any_true_label_only_certain_ones_are_inside():
    fitted = calibrate(np.zeros((9, 2)), np.full((9, 2), 0.5))
    assert fitted.threshold(0.9, "all") == fitted.threshold(0.9, "recall") == 1
    assert fitted.threshold(0.9, "label").tolist() == [0, 0]


def test_equal_probabilities_stay_together():
    fitted = calibrate(np.ones((9, 1)), np.array([[0.2]] * 3 + [[0.4]] * 6))
    for guarantee in GUARANTEES:
        found = [fitted.threshold(c, guarantee) for c in (0.95, 0.9, 0.8, 0.7, 0.6, 0.1)]
        assert found == [0, 0.2, 0.2, 0.2, 0.4, 0.4]
    assert label_sets([[0.2], [0.4]], 0.2).tolist() == [[1], [1]]


def test_a_label_is_inside_from_the_threshold_on_compared_in_float64():
    sets = label_sets(
        np.array([[0.1, 0.3], [0.3, 0.1]], dtype=np.float32), np.array([0.1, 0.3])
    )
    assert sets.tolist() == [[1, 1], [1, 0]]  # float32(.1) and float32(.3) lie a little above
    assert sets.dtype == np.int64
    assert label_sets(np.array([[np.float32(0.1)]]), 0.1 + 1e-8).tolist() == [[0]]


# ---------------------------------------------------------------- against brute force


@settings(max_examples=200, deadline=None, derandomize=True)
@given(case=cases(), coverage=coverages)
def test_thresholds_are_the_exact_ones(case, coverage):
    truth, p = case
    fitted = calibrate(truth, p)
    assert fitted.threshold(coverage, "all") == exact_rank_threshold(
        row_scores(truth, p), coverage
    )
    assert fitted.threshold(coverage, "recall") == exact_recall_threshold(truth, p, coverage)
    assert fitted.threshold(coverage, "label").tolist() == [
        exact_rank_threshold(p[truth[:, j] == 1, j], coverage) for j in range(truth.shape[1])
    ]


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("digits", [2, 15])
def test_recall_threshold_is_exact_on_a_larger_table(coverage, digits):
    truth, p = simulate(np.random.default_rng(3), 300)
    p = p.round(digits)
    fitted = calibrate(truth, p)
    assert fitted.threshold(coverage, "recall") == exact_recall_threshold(truth, p, coverage)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(case=cases(), pair=st.tuples(coverages, coverages))
def test_a_higher_coverage_never_shrinks_a_set(case, pair):
    truth, p = case
    fitted = calibrate(truth, p)
    for guarantee in GUARANTEES:
        low, high = (label_sets(p, fitted.threshold(c, guarantee)) for c in sorted(pair))
        assert (low <= high).all()


def test_recall_sets_lie_within_the_sets_for_all():
    # The share lost is at most 1[any lost], so the same bound allows a higher threshold.
    fitted = calibrate(*simulate(np.random.default_rng(4), 300))
    for coverage in (0.5, 0.8, 0.95):
        assert fitted.threshold(coverage, "recall") >= fitted.threshold(coverage, "all")


# ---------------------------------------------------------------- coverage of new rows


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_coverage_of_new_rows_is_as_guaranteed(coverage):
    rng = np.random.default_rng(0)
    n_cal, n_new, n_repeats = 200, 100, 400
    found = {guarantee: [] for guarantee in GUARANTEES}
    for _ in range(n_repeats):
        truth, p = simulate(rng, n_cal + n_new)
        fitted = calibrate(truth[:n_cal], p[:n_cal])
        for guarantee in GUARANTEES:
            sets = label_sets(p[n_cal:], fitted.threshold(coverage, guarantee))
            found[guarantee].append(coverage_report(truth[n_cal:], sets)[guarantee])
    mean = {g: np.mean(values) for g, values in found.items()}
    # Repeats are independent, so the mean of their coverages has standard error sd / sqrt(400)
    # and is normal to good approximation: one of these five comparisons fails by chance with
    # probability below 5 x 3.2e-5.
    slack = {g: 4 * np.std(values, ddof=1) / n_repeats**0.5 for g, values in found.items()}
    for guarantee in GUARANTEES:
        assert mean[guarantee] >= coverage - slack[guarantee]
    # Scores without ties: not more than one rank too much for "all"; for "recall" the excess
    # is at most 2 / (n + 1) (theorem 2 of conformal risk control).
    assert mean["all"] <= coverage + 1 / (n_cal + 1) + slack["all"]
    assert mean["recall"] <= coverage + 2 / (n_cal + 1) + slack["recall"]


# ---------------------------------------------------------------- thinning


@pytest.fixture(scope="module")
def large():
    truth, p = simulate(np.random.default_rng(1), 20_000, n_labels=4)
    truth[:, 3] &= np.arange(20_000) < 300  # a label with few positives
    return truth, p, calibrate(truth, p)


LARGE_COVERAGES = [0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 0.99999]


def exact_thresholds(truth, p, coverage):
    """Unthinned, for the large table: "all", "recall", then the labels."""
    n_true = truth.sum(axis=1)
    order = np.argsort(p[truth == 1])
    scores = p[truth == 1][order]  # no ties
    losses = (1 / n_true[np.nonzero(truth)[0]])[order]
    lost = np.append(0, np.cumsum(losses))  # at each score, then at 1
    within = lost + 1 <= (len(truth) + 1) * (1 - coverage) + 1e-9
    return [
        exact_rank_threshold(row_scores(truth, p), coverage),
        float(np.append(scores, 1.0)[within].max(initial=0.0)),
        *(
            exact_rank_threshold(p[truth[:, j] == 1, j], coverage)
            for j in range(truth.shape[1])
        ),
    ]


def thinned_thresholds(fitted, coverage):
    shared = [fitted.threshold(coverage, guarantee) for guarantee in ("all", "recall")]
    return [*shared, *fitted.threshold(coverage, "label")]


def test_a_calibration_is_bounded_in_size(large):
    _, _, fitted = large
    assert fitted.lengths[:2].min() > 3000
    assert fitted.lengths[:2].max() <= 4096
    assert fitted.lengths[2:].max() <= 256
    assert fitted.counts[2:5].min() > 3000  # many more positives than points
    assert fitted.lengths.sum() == fitted.thresholds.size == fitted.lost.size


@pytest.mark.parametrize("coverage", LARGE_COVERAGES)
def test_thinning_never_takes_a_label_out_of_a_set(large, coverage):
    truth, p, fitted = large
    thinned, exact = thinned_thresholds(fitted, coverage), exact_thresholds(truth, p, coverage)
    assert all(a <= b for a, b in zip(thinned, exact, strict=True))


@pytest.mark.parametrize("coverage", LARGE_COVERAGES)
def test_thinning_costs_little_coverage(large, coverage):
    # With 5,000 to 20,000 steps the grid is exact up to e = 1,000 points of 4,096 or 39 of 256,
    # and 1 - coverage is spent but for a share 1 / e or for two steps of about one row.
    truth, p, fitted = large
    thinned = thinned_thresholds(fitted, coverage)
    n_rows = fitted.counts
    for i, share in enumerate([0.002, 0.002, 0.04, 0.04, 0.04, 0.04]):
        spent = (1 - coverage) * (1 - share) - 2 / (n_rows[i] + 1)
        if spent > 0:
            assert thinned[i] >= exact_thresholds(truth, p, 1 - spent)[i]


def test_thinning_of_many_labels_in_few_rows_costs_a_fraction_of_a_row():
    truth, p = simulate(np.random.default_rng(7), 300, n_labels=120)
    fitted = calibrate(truth, p)
    assert truth.sum() > 4096 >= fitted.lengths[1] > 3000
    for coverage in (0.5, 0.8, 0.9, 0.95, 0.99):
        thinned = fitted.threshold(coverage, "recall")
        # The steps of the loss are about 300 rows / 8,000 labels = .04 rows.
        nearly = coverage + 0.2 / 301 + 0.001 * (1 - coverage)
        assert exact_thresholds(truth, p, nearly)[1] <= thinned
        assert thinned <= exact_thresholds(truth, p, coverage)[1]


def test_thinning_is_safe_with_ties(large):
    truth, p, _ = large
    p = np.round(p, 3)
    fitted = calibrate(truth, p)
    assert fitted.lengths[2:5].min() > 100
    for coverage in LARGE_COVERAGES:
        for j, t in enumerate(fitted.threshold(coverage, "label")):
            assert t <= exact_rank_threshold(p[truth[:, j] == 1, j], coverage)


# ---------------------------------------------------------------- unobserved labels, inputs


def same(a, b):
    return all(np.array_equal(a.arrays()[name], b.arrays()[name]) for name in a.arrays())


def test_an_unobserved_label_is_as_if_it_were_not_there():
    truth, p = simulate(np.random.default_rng(2), 200)
    blind = truth.astype(float)
    blind[:, 1] = NAN
    fitted, without = calibrate(blind, p), calibrate(np.delete(truth, 1, 1), np.delete(p, 1, 1))
    for coverage in (0.5, 0.8, 0.9, 0.95):
        for guarantee in ("all", "recall"):
            assert fitted.threshold(coverage, guarantee) == without.threshold(
                coverage, guarantee
            )
        labels = fitted.threshold(coverage, "label")
        assert labels[1] == 0
        assert np.delete(labels, 1).tolist() == without.threshold(coverage, "label").tolist()


def test_rows_without_any_observed_label_are_left_out():
    truth, p = simulate(np.random.default_rng(2), 200)
    blind = np.r_[truth, np.full((50, 5), NAN)]
    fitted = calibrate(blind, np.r_[p, p[:50]])
    assert same(fitted, calibrate(truth, p))
    nothing = calibrate(np.full((30, 2), NAN), np.full((30, 2), 0.5))
    for guarantee in GUARANTEES:
        assert np.all(nothing.threshold(0.5, guarantee) == 0)


def test_single_unobserved_entries_are_not_true_labels():
    truth = [[1, NAN], [NAN, 1], [1, 1]]
    p = [[0.5, 0.1], [0.2, 0.6], [0.7, 0.8]]
    fitted = calibrate(truth, p)
    assert fitted.counts.tolist() == [3, 3, 2, 2]
    assert fitted.threshold(0.75, "all") == 0.5
    assert fitted.threshold(0.6, "label").tolist() == [0.5, 0.6]


@pytest.mark.parametrize(
    "form",
    [sparse.csr_array, sparse.csc_matrix, np.ndarray.tolist, lambda y: y.astype(bool),
     lambda y: y.astype(object)],
)  # fmt: skip
def test_truth_comes_in_many_forms(form):
    truth, p = simulate(np.random.default_rng(2), 40)
    assert same(calibrate(form(truth), p), calibrate(truth, p))


@pytest.mark.parametrize(
    ("truth", "p", "message"),
    [
        ([[1, 2]], [[0.5, 0.5]], "Y holds 1 of 2 values other than 0 and 1"),
        ([[1, np.inf]], [[0.5, 0.5]], "Y holds 1 of 2 values other than 0 and 1"),
        ([["a", None]], [[0.5, 0.5]], "Y must hold numbers"),
        ([[1, 0]], [[0.5]], r"Y has shape \(1, 2\) but P has shape \(1, 1\)"),
        ([[1, 0]], [[0.5, 1.5]], "P must hold probabilities between 0 and 1"),
        ([[1, 0]], [[0.5, NAN]], "P holds 1 of 2 values that are NaN"),
        (np.empty((0, 2)), np.empty((0, 2)), "at least one row"),
    ],
)
def test_impossible_tables_are_refused(truth, p, message):
    with pytest.raises(DataError, match=message):
        calibrate(truth, p)


def test_impossible_settings_are_refused():
    fitted = calibrate(np.ones((9, 1)), TEN[:9])
    for coverage in (0, 1, 1.5, -0.1, NAN):
        with pytest.raises(
            ConfigError, match=rf"coverage must be in \(0, 1\), as 0.9, got {coverage}"
        ):
            fitted.threshold(coverage, "all")
    with pytest.raises(ConfigError, match=r"guarantee must be one of .*, got 'some'"):
        fitted.threshold(0.9, "some")
    with pytest.raises(DataError, match="P must hold probabilities"):
        label_sets([[-0.5]], 0.5)
    with pytest.raises(DataError, match="give one number, or one per label"):
        label_sets([[0.5, 0.5]], np.array([0.1, 0.2, 0.3]))


# ---------------------------------------------------------------- report


def test_report_by_hand():
    truth = [[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]]
    sets = [[1, 0, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]]
    report = coverage_report(truth, sets)
    # all: 0 1 1 1; recall: .5 1 1 1; labels: 3 of 3, 1 of 2, none; size: 2 1 0 3
    assert report["all"] == 0.75
    assert report["recall"] == 0.875
    assert report["label"] == 0.75
    assert report["size"] == 1.5
    assert report["all_se"] == pytest.approx(0.25)  # sd .5, 4 rows
    assert report["recall_se"] == pytest.approx(0.125)
    # Label 2 weighs half: its mean of 0 and 1 has effects -+ .125; sqrt(4/3 x 2 x .125^2).
    assert report["label_se"] == pytest.approx((4 / 3 * 2 * 0.125**2) ** 0.5)
    assert report["size_se"] == pytest.approx((5 / 3) ** 0.5 / 2)


def test_report_leaves_out_what_was_not_observed():
    truth = [[1, NAN], [NAN, NAN], [0, 1]]
    report = coverage_report(truth, [[1, 0], [1, 1], [0, 0]])
    assert report["all"] == report["recall"] == report["label"] == 0.5
    assert report["size"] == 1


def test_report_is_nan_where_nothing_can_be_said():
    report = coverage_report([[0, 0]], [[1, 0]])
    assert (report["all"], report["recall"], report["size"]) == (1, 1, 1)
    assert np.isnan([report[k] for k in ("label", "label_se", "all_se", "size_se")]).all()
    report = coverage_report([[NAN], [NAN]], [[1], [0]])
    assert np.isnan([report[k] for k in ("all", "recall", "label", "all_se")]).all()
    assert report["size"] == 0.5


def test_report_standard_errors_match_the_spread_over_repeats():
    rng = np.random.default_rng(6)
    reports = []
    for _ in range(400):
        truth, p = simulate(rng, 150)
        reports.append(coverage_report(truth, label_sets(p, 0.5)))
    for name in (*GUARANTEES, "size"):
        spread = np.std([r[name] for r in reports], ddof=1)
        # The sd of 400 values has relative standard error 1 / sqrt(800) = 3.5 %; four of them.
        claimed = np.mean([r[f"{name}_se"] for r in reports])
        assert claimed == pytest.approx(spread, rel=0.15)


def test_report_refuses_sets_of_another_shape():
    with pytest.raises(DataError, match="but sets has shape"):
        coverage_report([[1, 0]], [[1]])


# ---------------------------------------------------------------- arrays for a file


@settings(max_examples=50, deadline=None, derandomize=True)
@given(case=cases())
def test_arrays_make_the_same_calibration_again(case):
    fitted = calibrate(*case)
    stored = fitted.arrays()
    assert all(a.dtype == np.float64 and a.ndim == 1 for a in stored.values())
    assert same(Calibration.from_arrays(stored), fitted)


def test_arrays_of_a_large_calibration_are_taken_back(large):
    _, _, fitted = large
    assert same(Calibration.from_arrays(fitted.arrays()), fitted)


GOOD = {
    "thresholds": [0.1, 1.0, 0.1, 1.0, 0.1, 1.0],
    "lost": [0.0, 2.0, 0.0, 2.0, 0.0, 2.0],
    "lengths": [2.0, 2.0, 2.0],
    "counts": [3.0, 3.0, 2.0],
}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("thresholds", [0.1, NAN, 0.1, 1.0, 0.1, 1.0], "thresholds must be finite"),
        ("lost", [0.0, np.inf, 0.0, 2.0, 0.0, 2.0], "lost must be finite"),
        ("thresholds", [0.1, 1.5, 0.1, 1.0, 0.1, 1.0], r"thresholds must be in \[0, 1\]"),
        ("thresholds", [-0.1, 1.0, 0.1, 1.0, 0.1, 1.0], r"thresholds must be in \[0, 1\]"),
        ("thresholds", [1.0, 0.1, 0.1, 1.0, 0.1, 1.0], "must increase"),
        ("thresholds", [0.1, 0.1, 0.1, 1.0, 0.1, 1.0], "must increase"),
        ("thresholds", [0.1, 1.0], "thresholds and lost must be of equal size"),
        ("thresholds", [[0.1, 1.0, 0.1, 1.0, 0.1, 1.0]], "must be a float64 vector"),
        ("lost", [0.0, 2.0, 1.0, 0.0, 0.0, 2.0], "lost not decrease"),
        ("lost", [-1.0, 2.0, 0.0, 2.0, 0.0, 2.0], "lost must be between"),
        ("lost", [0.0, 2.0, 0.0, 2.0, 0.0, 3.0], "lost must be between"),
        ("lengths", [3.0, 3.0, 0.0], "lengths must be whole"),
        ("lengths", [2.5, 1.5, 2.0], "lengths must be whole"),
        ("lengths", [2.0, 2.0, 1.0], "lengths must be whole"),
        ("lengths", [1e308, 1e308, 1e308], "lengths must be whole"),
        ("lengths", [3.0, 3.0], "lengths and counts must be of equal size"),
        ("counts", [3.0, 3.0], "lengths and counts must be of equal size"),
        ("counts", [3.0, 3.0, -1.0], "counts must be whole"),
        ("counts", [3.0, 3.0, 2.5], "counts must be whole"),
        ("counts", [1e308, 1e308, 2.0], "counts must be whole"),
        ("counts", [3.0, 2.0, 2.0], "counts must start with the number of rows"),
        ("counts", [3.0, 3.0, 4.0], "counts must start with the number of rows"),
    ],
)
def test_arrays_that_are_no_calibration_are_refused(name, value, reason):
    stored = {k: np.array(v) for k, v in GOOD.items()}
    Calibration.from_arrays(stored)
    with pytest.raises(ValueError, match=reason):
        Calibration.from_arrays({**stored, name: np.array(value)})


def test_arrays_of_other_names_or_types_are_refused():
    stored = {k: np.array(v) for k, v in GOOD.items()}
    with pytest.raises(ValueError, match="needs the arrays"):
        Calibration.from_arrays({k: v for k, v in stored.items() if k != "lost"})
    with pytest.raises(ValueError, match="needs the arrays"):
        Calibration.from_arrays({**stored, "more": np.ones(1)})
    # Rounded to float32, a threshold may lie above the exact one.
    with pytest.raises(ValueError, match="thresholds must be a float64 vector"):
        Calibration.from_arrays({**stored, "thresholds": stored["thresholds"].astype("f4")})
    with pytest.raises(ValueError, match="lost must be a float64 vector"):
        Calibration.from_arrays({**stored, "lost": GOOD["lost"]})
