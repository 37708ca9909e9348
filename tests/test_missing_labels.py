"""Labels that were not observed: refused unless allowed, and then part of nothing."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.model_selection import KFold, cross_val_score

from mpvae import ConfigError, DataError, metrics, observed
from mpvae.data import simulate_probit
from mpvae.decisions import PAPER_THRESHOLDS, apply_threshold, fit_threshold
from test_questions import small as small_model

DATA = simulate_probit(400, n_features=4, n_labels=4, n_factors=1, seed=2)
X, Y = DATA.X[:300], DATA.Y[:300].astype(float)
X_NEW, Y_NEW = DATA.X[300:], DATA.Y[300:]
GAPS = np.random.default_rng(0).random(Y.shape) < 0.5
Y_GAPS = np.where(GAPS, np.nan, Y)
METRICS = ("example_f1", "micro_f1", "macro_f1", "hamming", "subset")
small = partial(small_model, max_epochs=3, allow_missing_labels=True)


def check_fit(fitted, n_labels=4):
    losses = fitted.history_.filter(regex="^(total|ce_|rank_|entropy_|kl|val_log_loss)")
    assert np.isfinite(losses.to_numpy(float)).all()
    P = fitted.predict_proba(X_NEW)
    assert P.shape == (100, n_labels)
    assert ((P > 0) & (P < 1)).all()


# ------------------------------------------------------------------------------- not allowed


@pytest.mark.parametrize(
    ("y", "place"),
    [
        (Y_GAPS, "in row 0, column 1"),
        (pd.DataFrame(Y_GAPS, columns=["trout", "pike", "eel", "perch"]), "column pike"),
        (pd.DataFrame(Y_GAPS).astype("Int64"), "in row 0, column 1"),
        (sp.csr_array(Y_GAPS), "y holds NaN"),
        (Y_GAPS[:, 1], "NaN or None in row 0"),
        (np.where(GAPS[:, 1], None, np.where(Y[:, 1] == 1, "yes", "no")), "in row 0"),
    ],
    ids=["array", "frame", "nullable", "sparse", "vector", "text"],
)
def test_without_the_flag_nan_is_an_error_that_says_how_to_turn_it_on(y, place):
    assert GAPS[0, 1]
    assert not GAPS[0, 0]
    with pytest.raises(DataError) as refused:
        small(allow_missing_labels=False).fit(X, y)
    assert place in str(refused.value)
    assert "allow_missing_labels=True" in str(refused.value)
    assert "mpvae fit --allow-missing-labels" in str(refused.value)


def test_without_the_flag_validation_rows_must_be_whole_too():
    with pytest.raises(DataError, match="allow_missing_labels=True"):
        small(allow_missing_labels=False).fit(X, Y, X, Y_GAPS)
    with pytest.raises(DataError, match="y_val holds other classes"):
        small(allow_missing_labels=False).fit(X, Y[:, 0], X, Y_GAPS[:, 0])


@pytest.mark.parametrize("name", ["allow_missing_labels", "recalibrate"])
def test_a_flag_is_true_or_false(name):
    with pytest.raises(ConfigError, match=f"{name} must be True or False, got 'no'"):
        small(**{name: "no"}).fit(X, Y)


# ----------------------------------------------------------------------------------- allowed


@pytest.mark.parametrize(
    "y",
    [
        Y_GAPS,
        pd.DataFrame(Y_GAPS),
        pd.DataFrame(Y_GAPS).astype("Int64"),
        sp.csr_array(Y_GAPS),
    ],
    ids=["array", "frame", "nullable", "sparse"],
)
def test_gaps_in_every_form_give_one_model(y):
    fitted = small().fit(X, y)
    check_fit(fitted)
    expected = small().fit(X, Y_GAPS).predict_proba(X_NEW)
    np.testing.assert_array_equal(fitted.predict_proba(X_NEW), expected)


def test_the_flag_changes_nothing_where_all_labels_are_observed():
    allowed, not_allowed = (
        small(allow_missing_labels=flag).fit(X, Y) for flag in (True, False)
    )
    np.testing.assert_array_equal(
        allowed.predict_proba(X_NEW), not_allowed.predict_proba(X_NEW)
    )
    assert allowed.validation_scores_ == not_allowed.validation_scores_


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "paper"},
        {"preset": "paper", "validation_fraction": 0.2},
        {"preset": "authors_code", "n_members": 1},
        {"label_branch": False, "hide_labels": 0.0},
        {"recalibrate": True},
        {"monitor": "hamming"},
        {"n_members": 1, "validation_fraction": 0},
    ],
    ids=str,
)
def test_every_objective_stays_finite(changes):
    with_scores = changes.get("validation_fraction") != 0
    fitted = small(**changes).fit(X, Y_GAPS)
    assert np.isfinite(fitted.history_["total"].to_numpy(float)).all()
    P = fitted.predict_proba(X_NEW)
    assert ((P > 0) & (P < 1)).all()
    assert all(np.isfinite(list(fitted.validation_scores_.values())))
    assert bool(fitted.validation_scores_) == with_scores


def test_not_knowing_is_better_than_taking_for_absent():
    honest = small(max_epochs=20).fit(X, Y_GAPS).predict_proba(X_NEW)
    zeros = small(max_epochs=20).fit(X, np.nan_to_num(Y_GAPS)).predict_proba(X_NEW)
    assert metrics.log_loss(Y_NEW, honest) < 0.95 * metrics.log_loss(Y_NEW, zeros)
    # Half of the labels gone at random: shares are kept, where zeros would halve them.
    bias, bias_of_zeros = (P.mean(0) - Y_NEW.mean(0) for P in (honest, zeros))
    assert np.abs(bias).mean() < 0.5 * np.abs(bias_of_zeros).mean()


def test_rows_without_any_label_may_be_among_the_others():
    some = Y_GAPS.copy()
    some[::2] = np.nan
    fitted = small().fit(X, some)
    check_fit(fitted)
    assert fitted.calibration_.counts[0] == (~np.isnan(some)).any(axis=1).sum()


def test_a_label_never_observed_keeps_even_odds_and_leaves_the_others_alone():
    never = Y_GAPS.copy()
    never[:, 2] = np.nan
    with pytest.warns(UserWarning, match="never observed: column label_2"):
        fitted = small().fit(X, never)
    check_fit(fitted)
    # Nothing pulls it from where it began, but for what shared layers do to it.
    assert np.abs(fitted.predict_proba(X_NEW)[:, 2] - 0.5).mean() < 0.2
    with pytest.warns(UserWarning, match=r"too few .* 1 of \d+ labels are always inside"):
        inside = fitted.predict_set(X_NEW, guarantee="label")
    assert inside[:, 2].all()  # cannot be excluded
    assert np.isfinite(fitted.log_prob(X_NEW, Y_NEW)).all()


def test_one_observed_row_is_enough_not_to_crash():
    one = np.full(Y.shape, np.nan)
    one[0] = Y[0]
    assert np.isfinite(small().fit(X, one).predict_proba(X_NEW)).all()


@pytest.mark.parametrize("y", [np.full(Y.shape, np.nan), np.full(300, np.nan)])
def test_nan_alone_is_refused(y):
    with pytest.raises(DataError, match="no observed label"):
        small().fit(X, y)


def test_observed_rows_of_weight_0_do_not_count():
    some = np.where(np.arange(300)[:, None] < 5, Y, np.nan)
    with pytest.raises(DataError, match="no observed label"):
        small().fit(X, some, sample_weight=np.arange(300) >= 5)


def test_the_label_encoder_must_be_told_what_is_known():
    with pytest.raises(ConfigError, match="hide_labels is 0, but y holds NaN"):
        small(hide_labels=0).fit(X, Y_GAPS)
    assert small(hide_labels=0).fit(X, Y).settings_.hide_labels == 0
    assert small(preset="paper", max_epochs=1).fit(X, Y_GAPS).settings_.hide_labels > 0


def test_validation_rows_may_have_gaps():
    fitted = small().fit(X, Y, X_NEW, np.where(GAPS[:100], np.nan, Y_NEW))
    check_fit(fitted)
    seen = ~GAPS[:100]
    P = fitted.predict_proba(X_NEW)
    expected = metrics.log_loss(Y_NEW[seen][:, None], P[seen][:, None])
    assert fitted.validation_scores_["log_loss"] == pytest.approx(expected)
    with pytest.raises(DataError, match="y_val holds no observed label"):
        small().fit(X, Y_GAPS, X_NEW, np.full(Y_NEW.shape, np.nan))


def test_weights_and_gaps_go_together():
    times = np.random.default_rng(1).integers(0, 3, 300)
    rows = np.repeat(np.arange(300), times)
    weighted = small().fit(X, Y_GAPS, sample_weight=times)
    repeated = small().fit(X[rows], Y_GAPS[rows])
    check_fit(weighted)
    np.testing.assert_array_equal(weighted.predict_proba(X_NEW), repeated.predict_proba(X_NEW))
    check_fit(small().fit(X, Y_GAPS, sample_weight=np.random.default_rng(1).random(300)))


@pytest.mark.parametrize("classes", [(0, 1), ("no", "yes")])
def test_one_binary_vector_may_have_gaps(classes):
    y = np.where(GAPS[:, 0], None, np.array(classes, dtype=object)[Y[:, 0].astype(int)])
    if classes == (0, 1):
        y = y.astype(float)
    fitted = small().fit(X, y)
    assert fitted.classes_.tolist() == list(classes)
    assert fitted.predict_proba(X_NEW).shape == (100, 2)
    assert set(fitted.predict(X_NEW)) <= set(classes)
    judged = small().fit(X, y, X, y)
    assert np.isfinite(judged.validation_scores_["log_loss"])


def test_scores_and_cross_validation_leave_gaps_out():
    fitted = small(metric="hamming").fit(X, Y_GAPS)
    right = (fitted.predict(X) == Y)[~GAPS]
    assert fitted.score(X, Y_GAPS) == pytest.approx(right.mean())
    assert np.isfinite(cross_val_score(small(max_epochs=1), X, Y_GAPS, cv=KFold(2))).all()
    with pytest.raises(DataError, match="y holds NaN"):
        small(allow_missing_labels=False).fit(X, Y).score(X, Y_GAPS)


# ------------------------------------------------------------- observed entries, one by one


def by_hand(metric, truth, decided, seen):
    """A metric from the observed entries alone: counts of a row, a label, or everything."""
    hits, wrong = seen & truth & decided, seen & (truth != decided)
    if metric == "hamming":
        return (truth == decided)[seen].mean()
    if metric == "subset":
        return 1 - wrong.any(axis=1)[seen.any(axis=1)].mean()
    axis = {"example_f1": 1, "macro_f1": 0, "micro_f1": None}[metric]
    hits, wrong = np.atleast_1d(hits.sum(axis)), np.atleast_1d(wrong.sum(axis))
    counted = hits + wrong > 0  # a row without present and predicted labels is left out
    return (2 * hits[counted] / (2 * hits + wrong)[counted]).mean()


@pytest.fixture(scope="module")
def judged():
    """Labels with gaps, and probabilities that know something about them."""
    noise = np.random.default_rng(3).random(Y.shape)
    return Y_GAPS, np.clip(0.3 * Y + 0.7 * noise, 0.01, 0.99)


@pytest.mark.parametrize("metric", METRICS)
def test_scores_are_those_of_the_observed_entries(judged, metric):
    labels, P = judged
    for threshold in (0.2, 0.5, np.array([0.1, 0.4, 0.6, 0.8])):
        decided = apply_threshold(P, threshold) == 1
        expected = by_hand(metric, Y == 1, decided, ~GAPS)
        assert observed.decision_score(labels, P, metric, threshold) == pytest.approx(expected)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["paper", "exact"])
def test_a_threshold_is_the_best_for_the_observed_entries(judged, metric, kind):
    labels, P = judged
    threshold = observed.best_threshold(labels, P, metric, kind)
    assert 0 <= threshold <= 1
    grid = np.linspace(0, 1, 101) if kind == "exact" else PAPER_THRESHOLDS
    best = max(by_hand(metric, Y == 1, apply_threshold(P, t) == 1, ~GAPS) for t in grid)
    assert observed.decision_score(labels, P, metric, threshold) >= best - 1e-12


def test_a_threshold_per_label_is_that_of_its_observed_rows(judged):
    labels, P = judged
    found = observed.best_threshold(labels, P, "macro_f1", "per_label")
    for j in range(4):
        seen = ~GAPS[:, j]
        alone = fit_threshold(
            Y[seen][:, [j]], P[seen][:, [j]], metric="macro_f1", kind="per_label"
        )
        np.testing.assert_array_equal(P[seen, j] >= found[j], P[seen, j] >= alone[0])


def test_log_loss_calibration_and_prevalence_are_those_of_the_observed_entries(judged):
    labels, P = judged
    truth, p = Y[~GAPS][:, None], P[~GAPS][:, None]
    assert observed.log_loss(labels, P) == pytest.approx(metrics.log_loss(truth, p))
    assert observed.calibration_error(labels, P) == metrics.calibration_error(truth, p)
    weight = np.random.default_rng(4).random(300)
    for j, share in enumerate(observed.prevalence(labels, weight)):
        seen = ~GAPS[:, j]
        present = (weight * Y[:, j])[seen].sum()
        assert share == pytest.approx((present + 0.5) / (weight[seen].sum() + 1))


def test_without_gaps_everything_is_as_usual(judged):
    _, P = judged
    for labels in (Y, sp.csr_array(Y)):
        assert not observed.has_missing(labels)
        assert observed.has_observed(labels)
        assert observed.log_loss(labels, P) == metrics.log_loss(Y, P)
        usual = fit_threshold(Y, P, metric="micro_f1", kind="exact")
        assert observed.best_threshold(labels, P, "micro_f1", "exact") == usual


def test_where_nothing_is_observed_scores_are_undefined(judged):
    nothing = np.full(Y.shape, np.nan)
    assert not observed.has_observed(nothing)
    for score in (observed.log_loss, observed.calibration_error):
        assert np.isnan(score(nothing, judged[1]))
    for metric in METRICS:
        assert np.isnan(observed.decision_score(nothing, judged[1], metric, 0.5))
    np.testing.assert_array_equal(observed.prevalence(nothing, np.ones(300)), 0.5)
