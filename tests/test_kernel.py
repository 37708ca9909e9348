"""The compiled kernel against the torch code in float64, and its normal numbers."""

import importlib.util
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import erfcx

from mpvae import kernel, kernel_loops, losses
from mpvae.losses import TermWeights

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="the kernel needs numba"
)
EPS = float(torch.finfo(torch.float32).eps)


def problem(n, R, H, L, seed=0, missing=False, spread=1.0, share=1):
    """Arguments of the function under test, float32: v_mean, v_draw, t, row_weight."""
    g = torch.Generator().manual_seed(seed)
    t = 2 * (torch.rand(n, L, generator=g) < 0.3).float() - 1
    t[0] = 1
    t[1] = -1  # rows without absent and without present labels
    if missing:
        t[torch.rand(n, L, generator=g) < 0.3] = 0
        t[2] = 0  # no observed label at all
    v_mean = t[:, None] * spread * torch.randn(n, R, L, generator=g)
    v_draw = torch.randn(-(-n // share), H, L, generator=g)
    return v_mean, v_draw, t, torch.rand(n, generator=g)


def exact(v_mean, v_draw, t, row_weight, weights, antithetic, share=1):
    """The torch code; where t = 0 its gradient is a number that the caller multiplies by t."""
    doubles = [x.double() for x in (v_mean, v_draw, t, row_weight)]
    terms, dv_mean, dv_draw = losses._rows_value_and_gradient(
        *doubles, weights, antithetic, share
    )
    return terms, dv_mean * t.abs()[:, None], dv_draw


def assert_agrees(arguments, weights, antithetic, share=1):
    """Compare with float64, up to the roundings that float32 cannot avoid.

    A label's log-probability is off by some roundings of itself, at most v^2 + log(L), and
    of its factor, erfcx: 4 EPS. They add up over labels to the error of a draw's
    log-likelihood, which is the relative error of its weight. All contributions to dv_mean
    are positive, so that the relative error carries over; dv_draw is a difference of them.

    The entropy term adds log Z - E p, with p = Phi(s) off by 3 EPS at most, and Z and E p by
    up to one rounding for each of the n labels. Its gradient in v_k is a mean over draws of
    +-exp(-v^2) / sqrt(pi) e^{p_k} / Z (p_k - E p): of either sign, but in each factor no
    larger than 1, 1 / sqrt(pi), e / n and 1.
    """
    v_mean, v_draw, t, row_weight = arguments
    terms, dv_mean, dv_draw = kernel.rows_value_and_gradient(
        *arguments, weights, antithetic, share
    )
    terms_, dv_mean_, dv_draw_ = exact(*arguments, weights, antithetic, share)
    positive = exact(*arguments, replace(weights, entropy=0.0), antithetic, share)[1]
    of_row = np.arange(len(t)) // share
    size = v_mean.abs().amax(1) + v_draw.abs().amax(1)[of_row]  # (n, L)
    labels = (size.square() + 4).sum(1).double()  # roundings in a row's log-likelihood
    relative = 2 * EPS * (labels + 8 + 2 * weights.rank_gain)[:, None, None]
    floor = 1e-30  # far below it exp(-v^2) is cut off
    assert ((terms[0] - terms_[0]).abs() <= relative[:, 0, 0]).all()
    torch.testing.assert_close(
        terms[1].double(), terms_[1], rtol=EPS * (20 + 4 * weights.rank_gain), atol=0
    )
    n = t.abs().sum(1).double()
    if not weights.entropy:
        assert (terms[2] == 0).all()
    assert ((terms[2] - terms_[2]).abs() <= EPS * (4 + 1.5 * n + terms_[2])).all()
    mixed = weights.entropy * row_weight * EPS * (16 + 2 * n) * math.e / n.clamp(min=1)
    mixed = (mixed / math.sqrt(math.pi))[:, None, None]
    assert ((dv_mean - dv_mean_).abs() <= relative * positive + mixed + floor).all()
    # A sum over the rows that share draws: rounded once for each of them and each branch.
    summed = relative + EPS * share * positive.shape[1]
    bound = torch.zeros_like(dv_draw_[:, :1])
    bound.index_add_(
        0, torch.as_tensor(of_row), (summed * positive + mixed).sum(1, keepdim=True) + floor
    )
    assert ((dv_draw - dv_draw_).abs() <= bound).all()


VARIANTS = [(0.0, 0.0), (0.5, 0.0), (0.0, 5e-7), (0.5, 5e-7)]  # entropy, floor


@pytest.mark.parametrize(("entropy", "floor"), VARIANTS)
@pytest.mark.parametrize("n_labels", [1, 2, 7, 8, 14, 33, 100, 300])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("antithetic", [False, True])
def test_kernel_equals_the_torch_code_in_float64(n_labels, missing, antithetic, entropy, floor):
    weights = TermWeights(0.5, 10.0, entropy, floor=floor)
    for seed, n_draws in enumerate((1, 4, 13, 50)):
        arguments = problem(6, 2, n_draws, n_labels, seed, missing)
        assert_agrees(arguments, weights, antithetic)


@pytest.mark.parametrize("share", [2, 3, 6, 7])
@pytest.mark.parametrize("antithetic", [False, True])
def test_rows_that_share_draws(share, antithetic):
    arguments = problem(7, 2, 9, 21, missing=True, share=share)
    assert_agrees(arguments, TermWeights(0.5, 10.0, 0.5), antithetic, share)


@pytest.mark.parametrize("ce", [0.0, 0.7])
@pytest.mark.parametrize("rank", [0.0, 3.0])
@pytest.mark.parametrize("gain", [1.0, 5.0])
@pytest.mark.parametrize("entropy", [0.0, 2.0])
@pytest.mark.parametrize("floor", [0.0, 1e-9, 0.05])
@pytest.mark.parametrize("n_branches", [1, 2, 3])
def test_every_weight_of_the_terms_counts(ce, rank, gain, entropy, floor, n_branches):
    arguments = problem(7, n_branches, 9, 21, missing=True)
    assert_agrees(arguments, TermWeights(ce, rank, entropy, gain, floor), True)


@pytest.mark.parametrize(("entropy", "floor"), VARIANTS)
def test_rows_without_a_pair_have_no_ranking_term_and_unobserved_labels_no_gradient(
    entropy, floor
):
    arguments = problem(9, 2, 10, 12, missing=True)
    terms, dv_mean, dv_draw = kernel.rows_value_and_gradient(
        *arguments, TermWeights(0.5, 10.0, entropy, floor=floor), True
    )
    assert (terms[2, :, 2] == 0).all()
    assert (terms[1, :, :3] == 0).all()
    assert (terms[1, :, 3:] > 0).all()
    unobserved = arguments[2] == 0
    assert (dv_mean.transpose(1, 2)[unobserved] == 0).all()
    assert (dv_draw.transpose(1, 2)[unobserved] == 0).all()  # no other row has these draws


@pytest.mark.parametrize(("entropy", "floor"), VARIANTS)
@pytest.mark.parametrize("size", [5.0, 9.0, 9.3, 30.0, 1e3, 1e4, 1e6, 1e8])
def test_tails_are_accurate_where_erfc_underflows(size, entropy, floor):
    """One draw, so that no softmax amplifies the rounding of v^2."""
    v_mean, v_draw, t, row_weight = problem(6, 2, 1, 40)
    v_mean *= size
    v_draw *= 0
    weights = TermWeights(0.5, 10.0, entropy, floor=floor)
    arguments = v_mean, v_draw, t, row_weight
    terms, dv_mean, _ = kernel.rows_value_and_gradient(*arguments, weights, False)
    terms_, dv_mean_, _ = exact(*arguments, weights, False)
    # 40 summands, each some roundings off
    torch.testing.assert_close(terms.double(), terms_, rtol=20 * EPS, atol=0)
    # exp(-v^2), where it counts against the hazard, is at least 1e-9: v^2 EPS < 20 EPS; over
    # the floor, from 1e-10 on (less of it is off by less than 1e-9): 1.5 v^2 EPS < 35 EPS
    torch.testing.assert_close(dv_mean.double(), dv_mean_, rtol=50 * EPS, atol=1e-9)


@pytest.mark.parametrize("size", [10.0, 100.0, 1e4])
@pytest.mark.parametrize("antithetic", [False, True])
def test_values_and_gradients_are_always_finite(size, antithetic):
    g = torch.Generator().manual_seed(3)
    _, _, t, row_weight = problem(40, 2, 1, 31, missing=True)
    v_mean = size * (2 * torch.rand(40, 2, 31, generator=g) - 1) * t.abs()[:, None]
    v_draw = size * (2 * torch.rand(40, 20, 31, generator=g) - 1) * t.abs()[:, None]
    v_mean[5], v_draw[5] = size, 0
    v_mean[6], v_draw[6] = -size, 0
    for weights in (
        TermWeights(0.5, 10.0, 0.0),
        TermWeights(1.0, 1.0, 0.0, 80.0),
        TermWeights(0.5, 10.0, 0.5),
        TermWeights(0.5, 10.0, 0.5, floor=1e-9),
    ):
        for x in kernel.rows_value_and_gradient(
            v_mean, v_draw, t, row_weight, weights, antithetic
        ):
            assert x.isfinite().all()


@pytest.mark.parametrize("own_pool", [False, True])
def test_the_number_of_threads_changes_no_bit(monkeypatch, own_pool):
    if own_pool:
        monkeypatch.setattr(kernel, "_torch_team", lambda: None)
    arguments = (*problem(23, 2, 11, 19), TermWeights(0.5, 10.0, 0.5), True)
    before = torch.get_num_threads()
    results = []
    try:
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            draws = kernel.normal_draws((5, 7001), 8)
            results.append((*kernel.rows_value_and_gradient(*arguments), draws))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_what_the_kernel_cannot_do_it_refuses():
    v = torch.zeros(3, 2, 5)
    weights = TermWeights(0.5, 10.0, 0.0)
    assert kernel.supports(v, weights)
    assert kernel.supports(v, TermWeights(entropy=0.5, floor=1e-9))
    assert not kernel.supports(v.double(), weights)
    assert not kernel.supports(v.mT, weights)
    assert not kernel.supports(v, TermWeights(floor=1e-10))
    assert not kernel.supports(v, TermWeights(rank_gain=100.0))


@pytest.mark.parametrize("without", [True, False])
def test_importing_the_module_neither_needs_nor_loads_numba(without):
    code = "import sys\n"
    if without:
        code += "sys.modules['numba'] = None\n"
    code += "import mpvae.kernel\nimport mpvae.similarity\n"
    code += f"assert mpvae.compiled.available is {not without}\n"
    code += "assert sys.modules.get('numba') is None"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_where_nothing_can_be_cached_it_compiles_without(monkeypatch):
    import numba

    def njit(_, cache=False, **__):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    assert kernel._rows_loop.__wrapped__(True, False, False) is kernel_loops.rows_loop
    assert kernel._normal_loop.__wrapped__() is kernel_loops.normal_loop


def minimax(function, low, high, degree):
    """Polynomial of least largest relative error: its coefficients and that error."""
    n = 4000
    x = (low + high) / 2 + (high - low) / 2 * np.cos((np.arange(n) + 0.5) * np.pi / n)
    basis = np.polynomial.chebyshev.chebvander((2 * x - low - high) / (high - low), degree)
    basis /= function(x)[:, None]
    weight, best, error = np.ones(n), None, np.inf
    for _ in range(200):
        root = np.sqrt(weight)
        coefficients = np.linalg.lstsq(basis * root[:, None], root, rcond=None)[0]
        off = np.abs(basis @ coefficients - 1)
        if off.max() < error:
            best, error = coefficients, off.max()
        weight *= off / off.max() + 1e-3
        weight /= weight.mean()
    series = np.polynomial.Chebyshev(best, domain=[low, high])
    return series.convert(kind=np.polynomial.Polynomial).coef, error


ROOT = math.sqrt(0.5)
SLOPE = 0.45


@pytest.mark.parametrize(
    ("name", "function", "low", "high", "error"),
    [
        ("_EXP2", np.exp2, -0.5, 0.5, 7.5e-8),
        ("_EXP", np.exp, 0, 1, 2.5e-8),
        ("_ERFCX", lambda q: erfcx((1 / q - 1) / SLOPE) / (2 * q), 0, 1, 3.3e-8),
        ("_LOG2", lambda z: np.log2(1 + z) / z, ROOT - 1, 2 * ROOT - 1, 1.7e-7),
        ("_SIN", lambda y: np.sin(np.pi / 4 * np.sqrt(y)) / np.sqrt(y), 0, 1, 3.3e-9),
        ("_COS", lambda y: np.cos(np.pi / 4 * np.sqrt(y)), 0, 1, 3.3e-8),
    ],
)
def test_polynomials_are_the_best_of_their_degree(name, function, low, high, error):
    given = np.array(getattr(kernel_loops, name), dtype=float)
    derived, attained = minimax(function, low, high, len(given) - 1)
    assert attained < error
    x = np.linspace(low, high, 10_001)[1:-1]
    x = x[x != 0]
    ours = np.polynomial.polynomial.polyval(x, given) / function(x) - 1
    # coefficients of size one and less, each rounded to float32
    assert np.abs(ours).max() < error + 2 * EPS
    np.testing.assert_allclose(
        np.polynomial.polynomial.polyval(x, derived), function(x), rtol=error
    )


N = 1_000_000


@pytest.mark.parametrize("seed", [0, 1, 2, 12345, 2**63])
def test_normal_draws_are_normal(seed):
    x = kernel.normal_draws((N,), seed).double().numpy()
    assert np.isfinite(x).all()
    # moments of the normal: each within five standard errors
    for k, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs((x**k).mean() - mean) < 5 * math.sqrt(variance / N)
    assert stats.kstest(x, "norm").pvalue > 1e-4
    for beyond in (3.0, 4.0, 4.5):
        for side in (x, -x):
            expected = N * stats.norm.sf(beyond)
            assert abs((side > beyond).sum() - expected) < 5 * math.sqrt(expected) + 1
    # 32 generators side by side, pairs of cosine and sine 32 apart, blocks of 4096
    for lag in (1, 2, 8, 31, 32, 33, 64, 128, 4096):
        for z in (x, (x**2 - 1) / math.sqrt(2)):
            assert abs((z[lag:] * z[:-lag]).mean()) < 5 / math.sqrt(N - lag)


def test_normal_draws_of_neighbouring_seeds_have_nothing_in_common():
    x = [kernel.normal_draws((N,), seed).double() for seed in (0, 1, 2, 2**32, 2**64 - 1)]
    for i in range(len(x)):
        for j in range(i):
            assert abs((x[i] * x[j]).mean()) < 5 / math.sqrt(N)
            # the second half against the first: no stream is another one moved on
            assert abs((x[i][N // 2 :] * x[j][: N // 2]).mean()) < 5 / math.sqrt(N // 2)


def test_normal_draws_depend_on_seed_and_shape_alone():
    a = kernel.normal_draws((3, 5, 7), 4)
    torch.manual_seed(0)
    torch.rand(3)
    b = kernel.normal_draws((3, 5, 7), 4)
    assert a.shape == (3, 5, 7)
    assert a.dtype == torch.float32
    assert torch.equal(a, b)
    assert not torch.equal(a, kernel.normal_draws((3, 5, 7), 5))
    assert kernel.normal_draws((0, 4), 1).shape == (0, 4)
