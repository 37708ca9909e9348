"""Recalibration against planted truths, an independent optimiser, and its promises."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtr, ndtri
from scipy.stats import norm

from mpvae import calibration
from mpvae.calibration import apply_probit, fit_common, fit_probit, fit_weights

N = 20_000
PRIOR = 20.0  # rows that the penalty stands for
TRUTH = np.array([[1.0, 0.0], [0.5, -0.3], [1.6, 0.4], [0.8, -1.5]])  # slope, shift by label


def simulated(n=N, truth=TRUTH, seed=0):
    """Labels (n, L) and their probabilities as a model with these faults would give them."""
    rng = np.random.default_rng(seed)
    q = rng.normal(scale=1.2, size=(n, len(truth)))
    Y = (rng.random(q.shape) < ndtr(truth[:, 0] * q + truth[:, 1])).astype(float)
    return Y, ndtr(q)


def information(q, slope, shift):
    """Fisher information (2, 2) about slope and shift: sum of phi^2 / (Phi (1 - Phi)) d d^T."""
    s = slope * q + shift
    each = norm.pdf(s) ** 2 / (ndtr(s) * ndtr(-s))
    d = np.stack([q, np.ones_like(q)])
    return (each * d) @ d.T


def test_planted_slopes_and_shifts_are_found():
    Y, P = simulated()
    found = np.stack(fit_probit(Y, P), 1)
    for label, truth in enumerate(TRUTH):
        fisher = information(ndtri(P[:, label]), *truth)
        inverse = np.linalg.inv(fisher + PRIOR * np.eye(2))
        bias = -inverse @ (PRIOR * (truth - [1, 0]))  # towards no change
        se = np.sqrt(np.diag(inverse @ fisher @ inverse))
        assert (np.abs(found[label] - truth - bias) < 4 * se).all()
        assert (se < 0.03).all()  # so that the test above says something


def penalised(coefficients, y, p, weight):
    """Minus the penalised log-likelihood, straight from the definition."""
    a, b = coefficients
    s = a * np.clip(ndtri(p), -8, 8) + b
    likelihood = weight * np.where(y == 1, log_ndtr(s), log_ndtr(-s))
    return 10 * ((a - 1) ** 2 + b**2) - likelihood.sum()


@pytest.mark.parametrize("spread", [0.3, 1.0, 6.0])  # 6: many probabilities beyond the clip
@pytest.mark.parametrize("truth", [(1.0, 0.0), (0.3, 1.0), (2.0, -2.0)])
def test_an_independent_optimiser_agrees(truth, spread):
    rng = np.random.default_rng(1)
    q = spread * rng.normal(size=500)
    y = (rng.random(500) < ndtr(truth[0] * q + truth[1])).astype(float)
    y[:5] = 1 - y[:5]  # some wrong whatever the probability
    weight = rng.uniform(0.5, 1.5, 500)
    slope, shift = fit_probit(y[:, None], ndtr(q)[:, None], weight)
    best = minimize(
        penalised,
        [1, 0],
        args=(y, ndtr(q), weight),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 2000},
    )
    # The objective is some hundreds with rounding of 1e-13 of it and a curvature of 20 at
    # least: its minimum is flat to within sqrt(1e-11 / 20), below 1e-6.
    assert [slope[0], shift[0]] == pytest.approx(best.x, abs=1e-6)


def test_every_label_is_fitted_by_itself():
    Y, P = simulated(500)
    together = np.stack(fit_probit(Y, P), 1)
    for label in range(len(TRUTH)):
        alone = fit_probit(Y[:, [label]], P[:, [label]])
        np.testing.assert_allclose(np.ravel(alone), together[label], rtol=1e-10)


def test_labels_that_are_not_observed_are_left_out():
    Y, P = simulated(600)
    Y[np.random.default_rng(2).random(Y.shape) < 0.3] = np.nan
    Y[:, 3] = np.nan
    slope, shift = fit_probit(Y, P)
    for label in range(3):
        seen = ~np.isnan(Y[:, label])
        alone = np.ravel(fit_probit(Y[seen][:, [label]], P[seen][:, [label]]))
        np.testing.assert_allclose([slope[label], shift[label]], alone, rtol=1e-10)
    assert (slope[3], shift[3]) == (1, 0)  # never observed: nothing to change


@pytest.mark.parametrize("n", [1, 2, 10])
def test_few_rows_barely_move_a_label(n):
    """All present at probability one half: likelihood alone would move without end."""
    slope, shift = fit_probit(np.ones((n, 1)), np.full((n, 1), 0.5))
    # The gradient n phi(0) / Phi(0) at no change falls as the shift grows: it ends before
    # the penalty's 20 b equals it.
    assert 0 < shift[0] < n * np.sqrt(2 / np.pi) / PRIOR
    assert slope[0] == 1


def test_weights_count_as_repetition():
    Y, P = simulated(300)
    times = np.random.default_rng(3).integers(0, 4, 300)
    weighted = fit_probit(Y, P, times)
    repeated = fit_probit(np.repeat(Y, times, 0), np.repeat(P, times, 0))
    np.testing.assert_allclose(weighted, repeated, rtol=1e-9)


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array])
@pytest.mark.parametrize("dtype", [float, int, bool])
def test_sparse_labels_are_as_good_as_dense_ones(kind, dtype):
    Y, P = simulated(300)
    dense = fit_probit(Y, P)
    np.testing.assert_array_equal(fit_probit(kind(Y.astype(dtype)), P), dense)


def test_a_ranking_is_never_turned_round():
    rng = np.random.default_rng(4)
    q = rng.normal(size=(1000, 1))
    Y = (rng.random(q.shape) < ndtr(-q)).astype(float)  # probabilities the wrong way round
    slope, shift = fit_probit(Y, ndtr(q))
    assert 0 < slope[0] < 0.1
    assert (np.diff(apply_probit(np.sort(ndtr(q), 0), slope, shift), axis=0) >= 0).all()


def test_certain_probabilities_are_fitted_and_changed_without_infinities():
    Y = np.array([[0.0], [1.0]] * 200)
    P = Y.copy()
    P[:8] = 1 - P[:8]  # certain, and wrong
    slope, shift = fit_probit(Y, P)
    assert 0 < slope[0] < 1
    assert np.isfinite(shift).all()
    assert np.isfinite(apply_probit(P, slope, shift)).all()


def test_no_change_is_no_change():
    P = np.concatenate([[0, 1], 10.0 ** -np.arange(1, 300), 1 - 10.0 ** -np.arange(1, 16)])
    same = apply_probit(P[:, None], np.ones(1), np.zeros(1))[:, 0]
    # Phi amplifies the rounding of q by q^2 in the tail: 37^2 roundings at 1e-300
    np.testing.assert_allclose(same, P, rtol=1400 * 2.3e-16, atol=1e-300)


def test_changes_are_monotone_and_by_label():
    P = np.repeat(np.linspace(0, 1, 1001)[:, None], 3, 1)
    changed = apply_probit(P, np.array([0.4, 1.0, 2.5]), np.array([1.0, -0.5, 0.0]))
    assert (np.diff(changed, axis=0) >= 0).all()
    assert ((changed >= 0) & (changed <= 1)).all()
    assert changed[500] == pytest.approx(ndtr([1.0, -0.5, 0.0]))


def test_calibrated_frequencies_match_on_other_rows():
    Y, P = simulated(seed=5)
    slope, shift = fit_probit(Y, P)
    Y, P = simulated(seed=6)
    better = apply_probit(P, slope, shift)
    # The mean of Y - p has standard error sqrt(mean p (1 - p) / N), and that of the fit as
    # much again from its own N rows; the penalty's pull of 20 rows in 20,000 is below both.
    se = np.sqrt(2 * (better * (1 - better)).mean(0) / N)
    assert (np.abs((Y - better).mean(0)) < 4 * se).all()
    off = np.abs((Y - P).mean(0)) / se
    assert (off[1:] > 8).all()  # before, all but the first label were


# ------------------------------------------------------------------- weights of several scores


def several(weights, shift, n=4000, n_labels=3, seed=0, mix=0.5):
    """Labels (n, L) that follow so much of each of the scores, which resemble one another.

    A weight, as the shift, is one number or one for each label.
    """
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, n_labels))
    scores = [mix * shared + rng.normal(size=shared.shape) for _ in weights]
    v = sum(np.asarray(w) * q for w, q in zip(weights, scores, strict=True)) + shift
    return (rng.random(v.shape) < ndtr(v)).astype(float), scores


def expected_error(q, truth, centre):
    """Mean and standard deviation of penalised estimates less the truth, for scores (S, n)."""
    q = np.vstack([q, np.ones(q.shape[1])])
    v = truth @ q
    fisher = (norm.pdf(v) ** 2 / (ndtr(v) * ndtr(-v)) * q) @ q.T
    inverse = np.linalg.inv(fisher + PRIOR * np.eye(len(truth)))
    bias = -inverse @ (PRIOR * (truth - centre))
    return bias, np.sqrt(np.diag(inverse @ fisher @ inverse))


def loss_of_all(a, Y, scores, weight):
    """Minus the penalised log-likelihood of one set of weights (..., shift) for all labels."""
    s = sum(w * q for w, q in zip(a[:-1], scores, strict=True)) + a[-1]
    seen = ~np.isnan(Y)
    likelihood = (weight[:, None] * np.where(Y == 1, log_ndtr(s), log_ndtr(-s)))[seen]
    equal = np.append(np.full(len(scores), 1 / len(scores)), 0)
    return 10 * np.square(a - equal).sum() - likelihood.sum()


def loss_of_label(a, y, q, weight, centre):
    """Minus the penalised log-likelihood of one label, of scores (S, n), and its gradient."""
    q, t = np.vstack([q, np.ones(len(y))]), 2 * y - 1
    seen = ~np.isnan(y)
    q, t, weight = q[:, seen], t[seen], weight[seen]
    v = t * (a @ q)
    gradient = PRIOR * (a - centre) - q @ (weight * t * norm.pdf(v) / ndtr(v))
    return 10 * np.square(a - centre).sum() - weight @ log_ndtr(v), gradient


def assert_same(found, expected, rtol=0.0, atol=0.0):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol, atol)


@pytest.mark.parametrize(
    ("weights", "shift"),
    [((1.0,), 0.0), ((0.7, 0.3), -0.4), ((1.2, 0.1), 0.5), ((0.3, 0.3, 0.9), -1.0)],
    ids=str,
)
def test_planted_weights_of_all_labels_are_found(weights, shift):
    Y, scores = several(weights, shift)
    found, moved = fit_common(Y, scores, np.ones(len(Y)))
    truth = np.array([*weights, shift])
    equal = np.append(np.full(len(weights), 1 / len(weights)), 0)  # pulled towards these
    bias, se = expected_error(np.stack([q.ravel() for q in scores]), truth, equal)
    assert (se < 0.03).all()  # so that the next line says something
    assert (np.abs(np.array([*found, moved]) - truth - bias) < 4 * se).all()


def test_every_label_has_weights_of_its_own():
    """Labels that follow one score, the other, both; weights of all labels lie between."""
    weights, shift = np.array([[1.0, 0.0, 0.5], [0.1, 0.8, 0.5]]), np.array([0.3, -0.6, 0.0])
    Y, scores = several(weights, shift)
    ones = np.ones(len(Y))
    found, moved = fit_weights(Y, scores, ones)
    assert found.shape == (2, 3)
    assert moved.shape == (3,)
    centre = np.append(*fit_common(Y, scores, ones))
    for label in range(3):
        truth = np.append(weights[:, label], shift[label])
        bias, se = expected_error(np.stack([q[:, label] for q in scores]), truth, centre)
        assert (se < 0.06).all()
        off = np.append(found[:, label], moved[label]) - truth - bias
        assert (np.abs(off) < 4 * se).all()
    # Those of all labels are far from those of the first two.
    assert (np.abs(centre[:2] - weights[:, :2].T).max(1) > 0.3).all()


@pytest.mark.parametrize("weights", [(1.0, -0.5), (-1.0, -1.0), (0.8, 0.0, -0.2)], ids=str)
def test_no_weight_is_below_zero(weights):
    Y, scores = several(weights, 0.2)
    found, shift = fit_weights(Y, scores, np.ones(len(Y)))
    assert np.isfinite(shift).all()
    assert (found >= 0).all()
    for w, truth in zip(found, weights, strict=True):
        if truth < 0:
            assert (w == 0).all()


def test_equal_scores_share():
    Y, (score,) = several((1.0,), 0.0, n=500)
    alone = fit_weights(Y, [score], np.ones(500))[0][0]
    for n in (2, 3):
        found, _ = fit_weights(Y, [score] * n, np.ones(500))
        assert_same(found, np.tile(found[0], (n, 1)), rtol=1e-9)
        # n equal weights are one of n times the size, held by n times fewer rows.
        np.testing.assert_allclose(found.sum(0), alone, 0, 0.02)


def test_an_independent_optimiser_finds_the_same_weights_of_all_labels():
    Y, scores = several((0.7, 0.3), -0.4, n=300)
    weight = np.random.default_rng(1).uniform(0.5, 1.5, 300)
    options = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000, "maxfev": 4000}
    best = minimize(
        loss_of_all,
        [0.5, 0.5, 0],
        args=(Y, scores, weight),
        method="Nelder-Mead",
        options=options,
    )
    found, shift = fit_common(Y, scores, weight)
    # L-BFGS-B ends where a step gains less than 2e-9 of the loss, some 500: with a curvature
    # of 100 or more that is within sqrt(2e-6 / 100) of the minimum at worst.
    assert [*found, shift] == pytest.approx(best.x, abs=2e-4)


@pytest.mark.parametrize("n", [40, 600])
@pytest.mark.parametrize("mix", [0.0, 0.5, 2.0])  # 2: scores correlate by 0.8
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_an_independent_optimiser_finds_the_same_weights_of_each_label(n, mix, missing):
    weights = np.array([[1.0, 0.2, -0.8, 0.0], [0.3, 0.9, 0.4, -0.5], [0.0, -0.6, 0.7, -1.0]])
    Y, scores = several(weights, [0.0, -1.0, 0.5, 2.0], n=n, n_labels=4, mix=mix)
    rng = np.random.default_rng(1)
    Y[rng.random(Y.shape) < missing] = np.nan
    weight = rng.uniform(0.5, 1.5, n)
    found, shift = fit_weights(Y, scores, weight)
    centre = np.append(*fit_common(Y, scores, weight))
    at_bound = 0
    for label in range(4):
        q = np.stack([score[:, label] for score in scores])
        args = (Y[:, label], q, weight, centre)
        best = minimize(
            loss_of_label,
            centre,
            args=args,
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, None)] * 3 + [(None, None)],
            options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 2000},
        )
        here = np.append(found[:, label], shift[label])
        # Both end with gradients below some 1e-5, where the curvature is 20 at least.
        np.testing.assert_allclose(here, best.x, 0, 1e-6)
        # Karush, Kuhn and Tucker: no gain by moving, or none but by leaving the bounds.
        _, gradient = loss_of_label(here, *args)
        free = np.append(found[:, label] > 0, True)
        np.testing.assert_allclose(gradient[free], 0, 0, 1e-5)
        assert (gradient[~free] >= 0).all()
        at_bound += (~free).sum()
    assert at_bound > 0  # so that the line above says something


def test_a_line_is_a_label_with_one_score():
    Y, scores = several((1.3,), [0.0, -1.0, 0.5], n=300)
    slope, shift = calibration.fit_line(Y, scores[0], shift=0.25)
    for label in range(3):
        args = (Y[:, label], scores[0][:, [label]].T, np.ones(300), np.array([1, 0.25]))
        _, gradient = loss_of_label(np.array([slope[label], shift[label]]), *args)
        np.testing.assert_allclose(gradient, 0, 0, 1e-5)


def test_weights_leave_out_labels_that_are_not_observed():
    Y, scores = several((0.7, 0.3), -0.4, n=400)
    hidden = np.random.default_rng(2).random(Y.shape) < 0.3
    holes = np.where(hidden, np.nan, Y)
    found = fit_weights(holes, scores, np.ones(400))
    wild = [np.where(hidden, 1e3 * (1 + i), score) for i, score in enumerate(scores)]
    assert_same(fit_weights(holes, wild, np.ones(400)), found)
    seen = ~hidden
    flat = fit_common(Y[seen][:, None], [s[seen][:, None] for s in scores], np.ones(seen.sum()))
    assert_same(fit_common(holes, scores, np.ones(400)), flat, rtol=1e-9)


def test_a_label_never_observed_has_the_weights_of_all():
    Y, scores = several((0.7, 0.3), -0.4, n=400)
    Y[:, 1] = np.nan
    found, shift = fit_weights(Y, scores, np.ones(400))
    together = fit_common(Y, scores, np.ones(400))
    assert_same((found[:, 1], shift[1]), together)
    assert (found[:, 0] != together[0]).all()


def test_where_nothing_was_observed_scores_share_equally():
    scores = [np.ones((5, 2)), np.zeros((5, 2))]
    found = fit_weights(np.full((5, 2), np.nan), scores, np.ones(5))
    assert_same(found, (np.full((2, 2), 0.5), np.zeros(2)))


def test_weights_of_rows_count_as_repetition():
    Y, scores = several((0.7, 0.3), -0.4, n=300)
    times = np.random.default_rng(3).integers(0, 4, 300)
    weighted = fit_weights(Y, scores, times.astype(float))
    again = [np.repeat(score, times, 0) for score in scores]
    repeated = fit_weights(np.repeat(Y, times, 0), again, np.ones(times.sum()))
    assert_same(weighted, repeated, rtol=1e-6)


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array])
def test_sparse_labels_weigh_as_dense_ones(kind):
    Y, scores = several((0.7, 0.3), -0.4, n=300)
    dense = fit_weights(Y, scores, np.ones(300))
    assert_same(fit_weights(kind(Y), scores, np.ones(300)), dense)


def test_of_very_many_rows_every_kth_is_enough_for_all_labels(monkeypatch):
    Y, scores = several((0.7, 0.3), -0.4, n=1000)
    weight = np.random.default_rng(4).uniform(0.5, 1.5, 1000)
    monkeypatch.setattr(calibration, "_ENTRIES", 700)  # of 3,000 entries: every fourth row
    found = fit_common(Y, scores, weight)
    monkeypatch.undo()
    part = fit_common(Y[::4], [score[::4] for score in scores], weight[::4])
    assert_same(found, part)
    assert (found[0] != fit_common(Y, scores, weight)[0]).all()


@pytest.mark.parametrize("entries", [1, 300 * 3 * 2])  # one label at a time, or two of three
def test_labels_are_fitted_in_pieces(monkeypatch, entries):
    Y, scores = several((0.7, 0.3), [-0.4, 0.0, 1.0], n=300)
    centre = np.array([[0.5] * 3, [0.2] * 3]), np.full(3, 0.1)
    whole = calibration._fit_each(Y, scores, np.ones(300), *centre)
    monkeypatch.setattr(calibration, "_ENTRIES", entries)
    pieces = calibration._fit_each(Y, scores, np.ones(300), *centre)
    # Newton ends for all labels of a piece at once: some take one more step, of 1e-12.
    assert_same(pieces, whole, atol=1e-9)


def test_scores_beyond_all_bounds_are_weighed_without_infinities():
    Y = np.array([[0.0], [1.0]] * 50)
    certain = np.where(Y == 1, 8.0, -8.0)
    found, shift = fit_weights(Y, [certain, -certain], np.ones(100))
    assert np.isfinite(found).all()
    assert np.isfinite(shift).all()
    assert found[0, 0] > found[1, 0] >= 0


@pytest.mark.parametrize("seed", range(8))
def test_weights_of_scores_that_say_nearly_the_same_are_the_best(seed):
    """Full steps went back and forth between two places here, neither of them the best."""
    draws = np.random.default_rng(seed)
    shared = draws.normal(size=(800, 1))
    scores = [shared + 0.1 * draws.normal(size=(800, 1)) for _ in range(3)]
    Y = (draws.random((800, 1)) < ndtr(scores[0] - 0.7 * scores[1])).astype(float)
    weights, shift = fit_weights(Y, scores, np.ones(800))
    common, common_shift = fit_common(Y, scores, np.ones(800))
    centre = np.append(common, common_shift)
    A = np.column_stack([*scores, np.ones(800)])

    def loss(a):
        fit = log_ndtr((2 * Y[:, 0] - 1) * (A @ a)).sum()
        return 10 * np.square(a - centre).sum() - fit

    bounds = [(0, None)] * 3 + [(None, None)]
    best = minimize(loss, centre, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-14})
    # Newton ends where a step is below 1e-6: a loss of curvature 1,000 is then within 1e-9.
    assert loss(np.append(weights[:, 0], shift)) <= best.fun + 1e-6
