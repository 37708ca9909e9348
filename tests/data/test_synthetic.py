import numpy as np
import pytest
from scipy.special import ndtr

from mpvae.data import simulate_probit
from mpvae.errors import DataError

N = 40_000


@pytest.fixture(scope="module")
def draw():
    return simulate_probit(N, n_features=4, n_labels=6, n_factors=2, prevalence=0.2, seed=1)


def test_frequencies_match_the_marginal_probabilities(draw):
    p = ndtr(draw.m / np.sqrt(1 + (draw.B**2).sum(axis=1)))
    # given m, the count of a label is a sum of independent Bernoulli draws
    standard_error = np.sqrt((p * (1 - p)).mean(axis=0) / N)
    assert (np.abs(draw.Y.mean(axis=0) - p.mean(axis=0)) < 4 * standard_error).all()


def test_the_prevalence_is_as_asked(draw):
    # frequencies over random features: at most the Bernoulli error 0.5 / sqrt(N), four times
    np.testing.assert_allclose(draw.Y.mean(axis=0), 0.2, atol=4 * 0.5 / np.sqrt(N))


def test_residual_correlations_match_the_model(draw):
    found = np.corrcoef((draw.w - draw.m).T)
    # the standard error of a correlation r is (1 - r^2) / sqrt(N), at most 1 / sqrt(N)
    np.testing.assert_allclose(found, draw.correlation, atol=4.5 / np.sqrt(N))
    np.testing.assert_allclose(np.diag(draw.covariance), 1 + (draw.B**2).sum(axis=1))
    np.testing.assert_allclose(np.diag(draw.correlation), 1)


def test_labels_are_thresholded_utilities_of_the_stated_shapes(draw):
    np.testing.assert_array_equal(draw.Y, draw.w > 0)
    assert draw.Y.dtype == np.int32
    assert (draw.X.shape, draw.m.shape, draw.B.shape) == ((N, 4), (N, 6), (6, 2))


def test_the_seed_decides():
    assert (simulate_probit(9, seed=3).w == simulate_probit(9, seed=3).w).all()
    assert (simulate_probit(9, seed=3).w != simulate_probit(9, seed=4).w).any()


def test_without_factors_labels_are_independent():
    np.testing.assert_array_equal(simulate_probit(5, n_factors=0).correlation, np.eye(20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_labels": 0}, "n_labels must be at least 1, got 0"),
        ({"prevalence": 1.0}, "prevalence must lie between 0 and 1, got 1.0"),
        ({"factor_strength": -1}, "must not be negative"),
    ],
)
def test_impossible_models_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        simulate_probit(5, **options)
