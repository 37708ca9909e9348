"""The fused objective against the paper's formulas written out; its gradient by gradcheck."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpvae.losses import TermWeights, probit_loss

R, N, L, K, H = 2, 5, 11, 3, 4


def _problem(seed=0, missing=False, spread=1.0):
    g = torch.Generator().manual_seed(seed)
    m = spread * torch.randn(R, N, L, generator=g, dtype=torch.float64)
    B = torch.randn(L, K, generator=g, dtype=torch.float64)
    u = torch.randn(N, H, K, generator=g, dtype=torch.float64)
    y = (torch.rand(N, L, generator=g) < 0.3).double()
    y[0], y[1] = 0, 1  # a row without present labels, and one without absent ones
    if missing:
        y[torch.rand(N, L, generator=g) < 0.3] = torch.nan
        y[2] = torch.nan  # a row with no observed label at all
    weight = torch.rand(N, generator=g, dtype=torch.float64)
    return m, B, u, y, weight


def written_out(m, B, u, y, weights, antithetic):
    """Terms (3, R, N) formula by formula: all pairs, both cdfs, no mask tricks."""
    draws = torch.cat([u, -u], 1) if antithetic else u
    terms = torch.zeros(3, *m.shape[:2], dtype=m.dtype)
    for r, n in itertools.product(range(m.shape[0]), range(m.shape[1])):
        seen = ~y[n].isnan()
        labels = y[n][seen]
        s = (m[r, n] + draws[n] @ B.T)[:, seen]  # (S, L)
        p = torch.special.erfc(-s / math.sqrt(2)) / 2
        p = p * (1 - 2 * weights.floor) + weights.floor
        q = torch.special.erfc(s / math.sqrt(2)) / 2
        q = q * (1 - 2 * weights.floor) + weights.floor
        log_lik = (labels * p.log() + (1 - labels) * q.log()).sum(1)
        terms[0, r, n] = math.log(len(s)) - log_lik.logsumexp(0)
        present, absent = p[:, labels == 1], p[:, labels == 0]
        if present.shape[1] and absent.shape[1]:
            gaps = present[:, :, None] - absent[:, None, :]
            terms[1, r, n] = (torch.exp(-weights.rank_gain * gaps) / weights.rank_gain).mean()
        if seen.any():
            softmax = p.softmax(1)
            terms[2, r, n] = -(softmax * softmax.log()).sum(1).mean()
    return terms


ON_OFF = [
    TermWeights(ce, rank, entropy, gain, floor)
    for ce, rank, entropy in itertools.product((0.0, 0.7), (0.0, 3.0), (0.0, 0.4))
    for gain, floor in ((1.0, 0.0), (5.0, 5e-7))
    if ce or rank or entropy
]


@pytest.mark.parametrize("weights", ON_OFF, ids=str)
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("antithetic", [False, True])
def test_terms_equal_the_papers_formulas(weights, missing, antithetic):
    m, B, u, y, weight = _problem(missing=missing)
    total, terms = probit_loss(m, B, u, y, weight, weights, antithetic)
    expected = written_out(m, B, u, y, weights, antithetic)
    factor = torch.tensor([weights.ce, weights.rank, weights.entropy], dtype=m.dtype)
    # float64, sums of at most a hundred terms of size ten: 1e-12 is some thousand roundings
    torch.testing.assert_close(terms[0], expected[0], rtol=1e-12, atol=1e-12)
    for k in (1, 2):
        if factor[k]:
            torch.testing.assert_close(terms[k], expected[k], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        total, (factor[:, None, None] * expected * weight).sum(), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("weights", ON_OFF, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_share_draws_are_as_rows_with_equal_draws(monkeypatch, weights, dtype):
    m, B, u, y, weight = (x.to(dtype) for x in _problem(missing=True))
    m, B = m.requires_grad_(), B.requires_grad_()
    few = u[: -(-len(y) // 2)]
    both = []
    for draws in (few, few.repeat_interleave(2, 0)[: len(y)]):
        total, terms = probit_loss(m, B, draws, y, weight, weights)
        both.append((terms, *torch.autograd.grad(total, (m, B))))
    # sums of at most a hundred numbers of size one, in another order
    close = {"rtol": 0, "atol": 100 * torch.finfo(dtype).eps}
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b, **close)


@pytest.mark.parametrize("weights", ON_OFF, ids=str)
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("antithetic", [False, True])
def test_gradient_passes_gradcheck(weights, missing, antithetic):
    m, B, u, y, weight = _problem(seed=1, missing=missing)
    m.requires_grad_()
    B.requires_grad_()
    torch.autograd.gradcheck(
        lambda m, B: probit_loss(m, B, u, y, weight, weights, antithetic)[0], (m, B)
    )


@pytest.mark.parametrize("missing", [False, True])
def test_gradient_passes_gradcheck_far_in_the_tail(missing):
    """Utilities 40 standard deviations on the wrong side: erfc underflows, we do not."""
    m, B, u, y, weight = _problem(seed=2, missing=missing)
    m = (m - 60 * (2 * y.nan_to_num(0) - 1)).requires_grad_()
    B.requires_grad_()
    weights = TermWeights(1.0, 2.0, 0.0)
    torch.autograd.gradcheck(lambda m, B: probit_loss(m, B, u, y, weight, weights)[0], (m, B))


def test_a_row_without_present_or_absent_labels_has_no_ranking_term():
    m, B, u, y, weight = _problem()
    _, terms = probit_loss(m, B, u, y, weight, TermWeights())
    assert (terms[1, :, :2] == 0).all()
    assert (terms[1, :, 2:] > 0).all()
    assert terms.isfinite().all()


def test_an_unobserved_label_teaches_nothing_directly():
    m, B, u, y, weight = _problem(missing=True)
    m.requires_grad_()
    probit_loss(m, B, u, y, weight, TermWeights())[0].backward()
    assert (m.grad[:, y.isnan()] == 0).all()
    assert m.grad.isfinite().all()


def test_many_labels_walk_over_rows_in_pieces_to_the_same_result(monkeypatch):
    m, B, u, y, weight = _problem(missing=True)
    whole = probit_loss(m, B, u, y, weight, TermWeights())
    monkeypatch.setattr("mpvae.losses._PIECE", 1)  # one row at a time
    pieces = probit_loss(m, B, u, y, weight, TermWeights())
    for a, b in zip(whole, pieces, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(-300, 300), st.floats(-50, 50), st.sampled_from([torch.float32, torch.float64])
)
def test_value_and_gradient_stay_finite_at_extremes(mean, loading, dtype):
    m = torch.tensor([[[mean, -mean, 0.0]]], dtype=dtype, requires_grad=True)
    B = torch.full((3, 1), loading, dtype=dtype, requires_grad=True)
    u = torch.tensor([[[0.5], [-2.0]]], dtype=dtype)
    y = torch.tensor([[1.0, 0.0, 1.0]], dtype=dtype)
    total, _ = probit_loss(m, B, u, y, torch.ones(1, dtype=dtype), TermWeights())
    total.backward()
    assert total.isfinite()
    assert m.grad.isfinite().all()
    assert B.grad.isfinite().all()


def test_float32_agrees_with_float64_to_single_precision():
    m, B, u, y, weight = _problem(missing=True, spread=2.0)
    exact, _ = probit_loss(m, B, u, y, weight, TermWeights())
    rounded, _ = probit_loss(
        m.float(), B.float(), u.float(), y.float(), weight.float(), TermWeights()
    )
    # some 50 roundings of 6e-8 each
    torch.testing.assert_close(rounded.double(), exact, rtol=3e-6, atol=0)
