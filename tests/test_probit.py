"""Probabilities of the multivariate probit against exact cases, SciPy and brute force."""

import math
from itertools import product

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm

from mpvae import probit

L, K, S = 3, 2, 200_000


@pytest.fixture(scope="module")
def model():
    g = torch.Generator().manual_seed(0)
    m = torch.randn(1, L, generator=g, dtype=torch.float64)
    B = torch.randn(L, K, generator=g, dtype=torch.float64)
    u = torch.randn(1, S, K, generator=g, dtype=torch.float64)
    return m, B, u


def test_joint_sums_to_one_over_all_label_vectors(model):
    m, B, u = model
    ys = torch.tensor(list(product([0.0, 1.0], repeat=L)), dtype=torch.float64)
    p = probit.joint_log_prob(ys, m.expand(len(ys), L), B, u).exp()
    torch.testing.assert_close(p.sum().item(), 1.0, rtol=0, atol=1e-12)


@pytest.mark.parametrize("y", list(product([0.0, 1.0], repeat=L)))
def test_joint_agrees_with_scipys_multivariate_normal(model, y):
    m, B, u = model
    t = 2 * torch.tensor(y, dtype=torch.float64) - 1
    # P(t w > 0) is the cdf at t m of a normal with covariance D Sigma_g D, D = diag(t)
    covariance = t[:, None] * probit.covariance(B) * t
    exact = multivariate_normal(cov=covariance.numpy(), seed=0).cdf((t * m[0]).numpy())
    ours = probit.joint_log_prob(torch.tensor([y], dtype=torch.float64), m, B, u).exp().item()
    # 5 standard errors of a mean of S values in [0, 1] with mean p: at most sqrt(p / S) each
    assert abs(ours - exact) < 5 * math.sqrt(exact / S) + 1e-5  # scipy's own error is 1e-5


@pytest.mark.parametrize("label", range(L))
def test_unobserved_labels_integrate_out_to_the_closed_form(model, label):
    m, B, u = model
    y = torch.full((1, L), torch.nan, dtype=torch.float64)
    y[0, label] = 1.0
    monte_carlo = probit.joint_log_prob(y, m, B, u).exp()
    # 5 standard errors of a mean of S values in [0, 1]
    torch.testing.assert_close(
        monte_carlo, probit.marginal_prob(m, B)[:, label], rtol=0, atol=5 * 0.5 / S**0.5
    )


def test_without_factors_labels_are_independent():
    m = torch.tensor([[0.3, -1.2, 2.0]], dtype=torch.float64)
    y = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    B, u = torch.zeros(3, 1, dtype=torch.float64), torch.zeros(1, 1, 1, dtype=torch.float64)
    expected = norm.logcdf([0.3, 1.2, 2.0]).sum()
    torch.testing.assert_close(
        probit.joint_log_prob(y, m, B, u).item(), expected, rtol=1e-14, atol=0
    )


def test_nothing_observed_has_probability_one(model):
    m, B, u = model
    y = torch.full((1, L), torch.nan, dtype=torch.float64)
    assert probit.joint_log_prob(y, m, B, u).item() == pytest.approx(0, abs=1e-12)


def test_gradient_is_finite_when_labels_are_missing(model):
    m, B, u = model
    m = m.clone().requires_grad_()
    y = torch.tensor([[1.0, torch.nan, 0.0]], dtype=torch.float64)
    probit.joint_log_prob(y, m, B, u[:, :100]).sum().backward()
    assert m.grad.isfinite().all()
    assert m.grad[0, 1] == 0  # an unobserved label teaches nothing directly


@settings(max_examples=50, deadline=None)
@given(st.floats(-30, 30), st.floats(-5, 5))
def test_marginals_of_a_label_and_its_absence_sum_to_one(mean, loading):
    m = torch.tensor([mean], dtype=torch.float64)
    B = torch.tensor([[loading]], dtype=torch.float64)
    total = probit.marginal_prob(m, B) + probit.marginal_prob(-m, B)
    torch.testing.assert_close(total, torch.ones_like(total))


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(L)))
def test_reordering_labels_does_not_change_a_joint_probability(model, order):
    m, B, u = model
    y = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    order = list(order)
    a = probit.joint_log_prob(y, m, B, u[:, :500])
    b = probit.joint_log_prob(y[:, order], m[:, order], B[order], u[:, :500])
    torch.testing.assert_close(a, b, rtol=1e-13, atol=0)


def test_a_rare_label_keeps_a_positive_probability():
    p = probit.marginal_prob(torch.tensor([-20.0], dtype=torch.float64), torch.zeros(1, 1))
    torch.testing.assert_close(p.item(), 2.753624118606234e-89, rtol=1e-10, atol=0)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-14), (torch.float32, 5e-7)])
@pytest.mark.parametrize("v", [-20, -3, 0, 0.5, 4, 8.4, 8.6, 12, 24.9, 25.1, 30, 100, 1e4])
def test_log_erfc_and_hazard_are_accurate_everywhere(v, dtype, rtol):
    """Against mpmath, on both sides of the point where the series takes over."""
    x = torch.tensor([v], dtype=dtype)
    exact = mpmath.mpf(x.double().item())
    with mpmath.workdps(60):
        log_erfc = mpmath.log(mpmath.erfc(exact))
        hazard = mpmath.exp(-(exact**2)) / mpmath.erfc(exact)
    # rtol: a few roundings; for log near 0 the absolute error of erfc near 1 or 2 counts
    torch.testing.assert_close(probit.log_erfc(x).item(), float(log_erfc), rtol=rtol, atol=rtol)
    # exp(-v^2) amplifies the rounding of v^2 by v^2 itself, where it is used (below the tail)
    amplified = rtol * max(1.0, min(v * v, 72 if dtype is torch.float32 else 625))
    torch.testing.assert_close(
        probit.erfc_hazard(x).item(),
        float(hazard),
        rtol=amplified,
        atol=torch.finfo(dtype).tiny,
    )
