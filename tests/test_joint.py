"""Answers of the joint distribution against SciPy, quadrature, closed forms and brute force.

Draws are quasi-random, so errors computed as if they were independent err on the large side.
"""

import copy
import math
from itertools import combinations, product

import numpy as np
import pytest
import torch
from scipy.special import log_ndtr, ndtr
from scipy.stats import multivariate_normal

from mpvae import joint, probit
from mpvae.config import DataShape
from mpvae.inference import marginals
from mpvae.networks import MPVAE
from mpvae.presets import resolve

D = 3  # features
S = 4096  # draws
MANY = 400_000  # of brute force
SE = 4  # standard errors: one check in 16,000 is farther off by chance, and seeds are fixed
X = np.random.default_rng(1).normal(size=(3, D))


def member(n_labels, n_factors=2, *, seed=0, sd=1.0, loading=1.0):
    """An untrained network in double, with codes that matter; sd 0 leaves them no spread."""
    given = {"latent_dim": 2, "n_factors": n_factors, "hidden": (8,)}
    network = MPVAE(D, n_labels, resolve("default", given, DataShape(100, D, n_labels)))
    network = network.double().eval().requires_grad_(False)
    g = torch.Generator().manual_seed(seed)
    for name, p in network.named_parameters():
        p.copy_(torch.randn(p.shape, generator=g, dtype=p.dtype))
        p.mul_(loading if name == "B" else 0.3 if name.endswith("bias") else p.shape[1] ** -0.5)
    last = network.prior_net[-1]
    last.weight[network.latent_dim :] = 0
    last.bias[network.latent_dim :] = 2 * math.log(sd) if sd else -60
    return network


def means(network, x):
    """Mean utilities (n, L) at the mean code."""
    x = torch.as_tensor(x)
    return network.decode(x, network.prior(x).mean).numpy()


def vectors(n_labels):
    """Every label vector, (2^L, L)."""
    return np.array(list(product([0.0, 1.0], repeat=n_labels)))


def rows(x, n):
    """One row of features, n times over."""
    return np.repeat(np.atleast_2d(x), n, axis=0)


def hidden(Y, seed=0, share=0.5):
    """Label vectors with about this share of the labels made unknown."""
    Y = np.array(Y, float)
    Y[np.random.default_rng(seed).random(Y.shape) < share] = np.nan
    return Y


def prior_probabilities(network, x, n=MANY, seed=0):
    """P(y_l = 1 | xi) at plain random draws of xi for one row x, straight from the model."""
    g = torch.Generator().manual_seed(seed)
    eps = torch.randn(n, network.latent_dim, generator=g, dtype=torch.float64)
    u = torch.randn(n, network.B.shape[1], generator=g, dtype=torch.float64)
    x = torch.as_tensor(x)[None]
    p_z_x = network.prior(x)
    m = network.decode(x.expand(n, -1), p_z_x.mean + p_z_x.stddev * eps)
    return probit.normal_cdf(m + u @ network.B.T).numpy()


def likelihood(P, y):
    """Probability (n,) of the known labels of one vector y, given each draw of P (n, L)."""
    return np.where(np.isnan(y), 1, np.where(y == 1, P, 1 - P)).prod(1)


def mean_and_error(values):
    return values.mean(0), values.std(0) / math.sqrt(len(values))


def ratio_and_error(weight, values):
    """Weighted mean over draws and its standard error by the delta method."""
    weight = weight / weight.sum()
    mean = weight @ values
    return mean, np.sqrt((weight[:, None] ** 2 * (values - mean) ** 2).sum(0))


def own_error(network, x, y, n_draws=S):
    """Standard error of `joint.conditional` for one row, from its own weights."""
    draws = joint.draw(network, torch.as_tensor(x)[None], torch.as_tensor(y)[None], n_draws)
    weight = draws.log_weight[0].softmax(0).numpy()
    return ratio_and_error(weight, draws.prob[0].numpy())[1]


ABSEPS = 1e-6  # asked of SciPy, whose default is 1e-5


def orthant(m, B, y):
    """Probability of the known labels of y given the code, as SciPy has it.

    P(t w > 0) is the cdf at t m of a normal with covariance D (I + B B^T) D, D = diag(t).
    """
    known = ~np.isnan(y)
    if not known.any():
        return 1.0
    t = 2 * y[known] - 1
    B = B[known]
    covariance = t[:, None] * (np.eye(len(t)) + B @ B.T) * t
    normal = multivariate_normal(cov=covariance, abseps=ABSEPS, releps=0, seed=0)
    return normal.cdf(t * m[known])


def quadrature(probabilities, y):
    """Evidence of y, conditional probabilities and their spread, by trapezoids over the plane.

    ``probabilities`` maps two standard normal numbers (n, 2) to P(y_l = 1) (n, L). The normal
    density and all its derivatives vanish at the ends, so for smooth integrands the error
    falls faster than any power of the step; with kinks (ReLU) it is of its square, 1e-3.
    """
    line = np.linspace(-9, 9, 601)
    u = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    P = probabilities(u)
    weight = np.exp(-0.5 * (u**2).sum(1)) * (line[1] - line[0]) ** 2 / (2 * np.pi)
    weight = weight * likelihood(P, y)
    evidence = weight.sum()
    mean = weight @ P / evidence
    return evidence, mean, np.sqrt(weight @ (P - mean) ** 2 / evidence)


# ---------------------------------------------------------------- given the code


@pytest.mark.parametrize("n_labels", [1, 2, 3, 5])
def test_log_prob_given_the_code_is_an_orthant_probability(n_labels):
    network = member(n_labels, seed=n_labels, sd=0)
    Y = vectors(n_labels)
    Y = Y[np.random.default_rng(0).permutation(len(Y))[:8]]
    value, error = joint.log_prob([network], rows(X[0], len(Y)), Y, S)
    m = means(network, X[:1])[0]
    exact = np.array([orthant(m, network.B.numpy(), y) for y in Y])
    assert (error > 0).all()
    assert (np.abs(np.exp(value) - exact) < SE * error * exact + ABSEPS).all()


def test_unknown_labels_are_integrated_out_of_the_orthant():
    network = member(5, seed=11, sd=0)
    Y = hidden(vectors(5)[::3])
    value, error = joint.log_prob([network], rows(X[1], len(Y)), Y, S)
    m = means(network, X[1:2])[0]
    exact = np.array([orthant(m, network.B.numpy(), y) for y in Y])
    assert (np.abs(np.exp(value) - exact) < SE * error * exact + ABSEPS).all()


@pytest.mark.parametrize("x", X)
def test_conditional_given_the_code_is_a_ratio_of_orthant_probabilities(x):
    network = member(4, seed=3, sd=0, loading=1.5)
    m, B = means(network, x[None])[0], network.B.numpy()
    for y in hidden(vectors(4)[::5], seed=7):
        P = joint.conditional([network], x[None], y[None], S).P[0]
        evidence = orthant(m, B, y)
        error = own_error(network, x, y)
        for label in np.flatnonzero(np.isnan(y)):
            with_it = y.copy()
            with_it[label] = 1
            exact = orthant(m, B, with_it) / evidence
            # both cdfs are off by ABSEPS at most
            assert abs(P[label] - exact) < SE * error[label] + 2 * ABSEPS / evidence


# ---------------------------------------------------------------- codes vary too


def test_log_prob_equals_brute_force():
    network = member(4, seed=5)
    Y = np.concatenate([vectors(4), hidden(vectors(4)[::3])])
    for x in X:
        value, error = joint.log_prob([network], rows(x, len(Y)), Y, S)
        P = prior_probabilities(network, x)
        for y, log_p, se in zip(Y, value, error, strict=True):
            brute, brute_se = mean_and_error(likelihood(P, y))
            assert abs(np.exp(log_p) - brute) < SE * math.hypot(se * brute, brute_se) + 1e-12


def test_conditional_equals_brute_force():
    network = member(4, seed=6, loading=1.5)
    known = hidden(vectors(4)[::2], seed=2)
    for x in X:
        P = prior_probabilities(network, x)
        ours = joint.conditional([network], rows(x, len(known)), known, S).P
        for y, p in zip(known, ours, strict=True):
            brute, brute_se = ratio_and_error(likelihood(P, y), P)
            gap = np.abs(p - brute) / np.hypot(own_error(network, x, y), brute_se)
            assert (gap[np.isnan(y)] < SE).all()


def test_probabilities_of_all_label_vectors_sum_to_one():
    network = member(5, seed=8)
    Y = vectors(5)
    for x in X:
        value, error = joint.log_prob([network], rows(x, len(Y)), Y, S)
        p = np.exp(value)
        # each vector has draws of its own, so errors add as if independent
        assert abs(p.sum() - 1) < SE * np.sqrt(((error * p) ** 2).sum())


def test_conditional_times_evidence_is_the_joint():
    """Chain rule, label after label: log P(a) + log P(b | a) = log P(a, b)."""
    network = member(6, seed=9, loading=1.5)
    target = np.array([1.0, 0, 0, 1, 1, 0])
    known = np.full((7, 6), np.nan)
    for n in range(7):
        known[n, :n] = target[:n]
    value, error = joint.log_prob([network], rows(X[2], 7), known, S)
    P = joint.conditional([network], rows(X[2], 7), known, S).P
    for n in range(6):
        p = P[n, n] if target[n] else 1 - P[n, n]
        se = own_error(network, X[2], known[n])[n] / p
        gap = value[n] + math.log(p) - value[n + 1]
        assert abs(gap) < SE * math.hypot(error[n], se, error[n + 1])


# ---------------------------------------------------------------- evidence beside the network


def on_evidence(network, seed=0):
    """The network with evidence, and X with columns of it, of standard normal size."""
    both = copy.deepcopy(network)
    L = len(network.B)
    g = torch.Generator().manual_seed(seed)
    both.trust = 0.5 + torch.rand(L, generator=g, dtype=torch.float64)
    return both, np.hstack([X, np.random.default_rng(seed).normal(size=(len(X), L))])


@pytest.mark.parametrize("n_factors", [0, 2])
def test_evidence_is_a_shift_of_the_utilities_in_every_answer(n_factors):
    """For one row, a network whose output bias has the evidence says the same of everything."""
    network = member(4, n_factors, seed=20)
    both, wide = on_evidence(network)
    Y, holes = vectors(4), hidden(vectors(4))
    scale = (1 + network.B.square().sum(1)).sqrt()
    for x in wide:
        moved = copy.deepcopy(network)
        moved.output.bias += both.trust * scale * torch.as_tensor(x[D:])
        for y in (Y, holes):
            found, expected = (
                (*joint.log_prob([net], at, y, 64), *joint.conditional([net], at, y, 64))
                for net, at in ((both, rows(x, 16)), (moved, rows(x[:D], 16)))
            )
            for a, b in zip(found, expected, strict=True):
                # The same draws: Newton steps and weights of them differ by rounding alone.
                np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
        drawn, also = (
            joint.sample([net], rows(at, 5), 20, torch.Generator().manual_seed(1))
            for net, at in ((both, x), (moved, x[:D]))
        )
        np.testing.assert_array_equal(drawn, also)


def test_with_evidence_probabilities_of_all_vectors_have_the_marginals_of_the_model():
    network, wide = on_evidence(member(4, seed=21))
    Y = vectors(4)
    for x in wide:
        value, error = joint.log_prob([network], rows(x, 16), Y, S)
        p = np.exp(value)
        assert abs(p.sum() - 1) < SE * np.sqrt(((error * p) ** 2).sum())
        P = marginals([network], x[None], 4096)[0]
        for label in range(4):
            has = Y[:, label] == 1
            se = np.sqrt(((error * p)[has] ** 2).sum())
            # P is a mean over 4,096 codes of its own: sqrt(0.25 / 4096) at the very most.
            assert abs(p[has].sum() - P[label]) < SE * math.hypot(se, 0.5 / 64)


def test_with_evidence_conditional_times_joint_of_the_known_is_the_joint():
    network, wide = on_evidence(member(4, seed=22, loading=1.5))
    target = np.array([1.0, 0, 0, 1])
    known = np.full((5, 4), np.nan)
    for n in range(5):
        known[n, :n] = target[:n]
    for x in wide:
        value, error = joint.log_prob([network], rows(x, 5), known, S)
        P = joint.conditional([network], rows(x, 5), known, S).P
        for n in range(4):
            p = P[n, n] if target[n] else 1 - P[n, n]
            se = own_error(network, x, known[n])[n] / p
            gap = value[n] + math.log(p) - value[n + 1]
            assert abs(gap) < SE * math.hypot(error[n], se, error[n + 1])


# ---------------------------------------------------------------- one label, or none


def one_known(n_labels):
    """Each label known alone, once present and once absent: (2 L, L)."""
    eye = np.eye(n_labels)
    return np.concatenate([np.where(eye == 1, value, np.nan) for value in (1.0, 0.0)])


def test_one_known_label_has_the_closed_form_given_the_code():
    network = member(4, seed=10, sd=0)
    p = ndtr(means(network, X[:1])[0] / probit.scale(network.B).numpy())
    value, error = joint.log_prob([network], rows(X[0], 8), one_known(4), S)
    assert (np.abs(value - np.log(np.concatenate([p, 1 - p]))) < SE * error).all()
    nothing = np.full((1, 4), np.nan)
    answer = joint.conditional([network], X[:1], nothing, S).P[0]
    assert (np.abs(answer - p) < SE * own_error(network, X[0], nothing[0])).all()


def closed_form_marginals(network, x):
    """Marginals of one row, closed form given z, averaged over random codes; and errors."""
    eps = torch.randn(
        MANY // 4, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    p_z_x = network.prior(torch.as_tensor(x)[None])
    m = network.decode(torch.as_tensor(rows(x, len(eps))), p_z_x.mean + p_z_x.stddev * eps)
    return mean_and_error(probit.marginal_prob(m, network.B).numpy())


def test_marginals_agree_with_the_closed_form_averaged_over_codes():
    network = member(4, seed=12)
    for x in X:
        p, p_se = closed_form_marginals(network, x)
        value, error = joint.log_prob([network], rows(x, 8), one_known(4), S)
        exact = np.concatenate([p, 1 - p])
        combined = np.hypot(error * exact, np.tile(p_se, 2))
        assert (np.abs(np.exp(value) - exact) < SE * combined).all()
        nothing = np.full((1, 4), np.nan)
        answer = joint.conditional([network], x[None], nothing, S).P[0]
        combined = np.hypot(own_error(network, x, nothing[0]), p_se)
        assert (np.abs(answer - p) < SE * combined).all()


def test_nothing_known_has_probability_one():
    network = member(4, seed=13)
    blank = np.full((3, 4), np.nan)
    value, error = joint.log_prob([network], X, blank, S)
    np.testing.assert_array_equal(value, 0)
    np.testing.assert_array_equal(error, 0)
    # The draws agree: log-densities 5 % apart in width differ by .05 (|xi|^2 - P), of sd
    # .05 sqrt(2 P) = .14
    drawn = joint.draw(network, torch.as_tensor(X), torch.as_tensor(blank), S)
    assert (drawn.log_evidence().abs() < SE * 0.2 / math.sqrt(S)).all()


def test_known_labels_are_returned_as_given_and_probabilities_are_probabilities():
    network = member(8, seed=15, loading=2.0)
    known = hidden(vectors(8)[::16], seed=4)
    P, effective = joint.conditional([network], rows(X[0], len(known)), known, 256)
    seen = ~np.isnan(known)
    np.testing.assert_array_equal(P[seen], known[seen])
    assert ((P >= 0) & (P <= 1)).all()
    assert ((effective > 0) & (effective <= 256 * (1 + 1e-9))).all()


@pytest.mark.parametrize("sd", [0.1, 0.5])
def test_most_draws_count_where_a_gaussian_fits(sd):
    """Codes of little spread see a linear decoder, and what labels say is near normal."""
    network = member(8, seed=38, sd=sd)
    network.output.weight.mul_(0.5 / sd)
    Y = vectors(8)[::32]
    effective = joint.conditional([network], rows(X[0], len(Y)), Y, 256).effective_draws
    # one draw in eight is from the prior and counts for little
    assert (effective > 0.7 * 256).all()


def test_draws_carry_the_probability_of_what_is_known():
    """Of a known label the probability of its value, of another that it is present."""
    network = member(3, seed=16)
    y = torch.tensor([[0.0, torch.nan, 1.0]], dtype=torch.float64)
    x = torch.as_tensor(X[:1])
    draws = joint.draw(network, x, y, 64)
    p_z_x = network.prior(x)
    z = p_z_x.mean + p_z_x.stddev * draws.xi[0, :, :2]
    m = network.decode(x.expand(64, -1), z)
    p = probit.normal_cdf(m + draws.xi[0, :, 2:] @ network.B.T)
    p[:, 0] = 1 - p[:, 0]
    torch.testing.assert_close(draws.prob[0], p, rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------- members


def test_members_are_a_mixture_weighted_by_evidence():
    networks = [member(4, seed=17, loading=1.5), member(4, seed=18)]
    known = hidden(vectors(4)[::2], seed=6)
    known[0] = [1, 1, 0, np.nan]
    x = X[1]
    value, error = joint.log_prob(networks, rows(x, len(known)), known, S)
    ours = joint.conditional(networks, rows(x, len(known)), known, S)
    brute = [prior_probabilities(network, x) for network in networks]
    for i, y in enumerate(known):
        evidence, evidence_se = np.transpose([mean_and_error(likelihood(P, y)) for P in brute])
        se = math.hypot(error[i] * evidence.mean(), np.linalg.norm(evidence_se) / 2)
        assert abs(np.exp(value[i]) - evidence.mean()) < SE * se + 1e-12
        given, given_se = zip(
            *(ratio_and_error(likelihood(P, y), P) for P in brute), strict=True
        )
        share = evidence / evidence.sum()
        expected = share @ np.array(given)
        own = np.array([own_error(network, x, y) for network in networks])
        # Shares of two members move by s (1 - s) times the relative errors of their evidence,
        # and the answer by that times the gap between the members.
        relative = math.hypot(*(evidence_se / evidence), 2 * error[i])
        moved = share.prod() * relative * np.abs(given[0] - given[1])
        total = np.sqrt(
            (share[:, None] ** 2 * (np.square(given_se) + own**2)).sum(0) + moved**2
        )
        unknown = np.isnan(y)
        assert (np.abs(ours.P[i] - expected)[unknown] < SE * total[unknown]).all()
    assert ((ours.effective_draws > 0) & (ours.effective_draws <= 2 * S)).all()


def test_a_member_twice_is_the_member():
    network = member(4, seed=19)
    known = hidden(vectors(4)[:3], seed=1)
    once, twice = (joint.conditional([network] * k, X, known, 256) for k in (1, 2))
    np.testing.assert_allclose(twice.P, once.P, rtol=1e-12)
    np.testing.assert_allclose(twice.effective_draws, 2 * once.effective_draws, rtol=1e-12)
    single, double = (joint.log_prob([network] * k, X, known, 256)[0] for k in (1, 2))
    np.testing.assert_allclose(double, single, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- pieces, rows, repetition


def questions(networks, x, known):
    """Everything the module says about some rows without a generator."""
    drawn = np.concatenate([p for _, p in joint.probabilities(networks, x, 100)])
    return [
        *joint.log_prob(networks, x, known, 100),
        *joint.conditional(networks, x, known, 100),
        drawn,
    ]


@pytest.fixture(params=["weighted", "moved"])
def draws_are(request, monkeypatch):
    """Weighted draws, or all of them moved."""
    if request.param == "moved":
        monkeypatch.setattr(joint, "_LEAST_SHARE", 2.0)
    return request.param


@pytest.fixture
def seven_rows():
    networks = [member(4, seed=20, loading=1.5), member(4, seed=21)]
    x = np.random.default_rng(2).normal(size=(7, D))
    return networks, x, hidden(vectors(4)[2:9], seed=3)


@pytest.mark.usefixtures("draws_are")
def test_equal_questions_get_equal_answers(seven_rows):
    torch.manual_seed(1)
    first = questions(*seven_rows)
    torch.manual_seed(2)
    for a, b in zip(first, questions(*seven_rows), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("draws_are")
def test_no_question_moves_the_global_random_numbers(seven_rows):
    before = torch.get_rng_state()
    questions(*seven_rows)
    joint.sample(*seven_rows[:2], 5, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("draws_are")
@pytest.mark.parametrize("cells", [1, 3000])  # one row at a time; two or three
def test_pieces_bound_memory_and_change_no_result(seven_rows, cells, monkeypatch):
    whole = questions(*seven_rows)
    monkeypatch.setattr(joint, "_CELLS", cells)
    for value, expected in zip(questions(*seven_rows), whole, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("draws_are")
def test_a_row_alone_gets_the_same_answer(seven_rows):
    networks, x, known = seven_rows
    together = questions(networks, x, known)
    for i in (0, 4):
        alone = questions(networks, x[i : i + 1], known[i : i + 1])
        for value, expected in zip(alone, together, strict=True):
            np.testing.assert_allclose(value[0], expected[i], rtol=1e-10, atol=1e-12)


def test_rows_are_counted_as_they_are_done(seven_rows, monkeypatch):
    monkeypatch.setattr(joint, "_CELLS", 3000)
    for ask in (joint.log_prob, joint.conditional):
        counted = []
        ask(*seven_rows, 100, counted.append)
        assert sum(counted) == 7
        assert len(counted) > 1


# ---------------------------------------------------------------- moved draws


def test_moved_draws_have_the_conditional_distribution(monkeypatch):
    monkeypatch.setattr(joint, "_LEAST_SHARE", 2.0)
    network = member(4, seed=22, loading=1.5)
    known = hidden(vectors(4)[::3], seed=8)
    x = X[0]
    P = prior_probabilities(network, x)
    ours = joint.conditional([network], rows(x, len(known)), known, S)
    assert (ours.effective_draws > 0).all()
    for y, p in zip(known, ours.P, strict=True):
        weight = likelihood(P, y)
        brute, brute_se = ratio_and_error(weight, P)
        variance = weight @ (P - brute) ** 2 / weight.sum()
        # Resampling adds the variance of S draws to that of the weighted mean; moves leave
        # the distribution as it is and can only make draws forget each other.
        se = np.sqrt(variance / S + own_error(network, x, y) ** 2 + brute_se**2)
        assert (np.abs(p - brute) < SE * se)[np.isnan(y)].all()


@pytest.mark.parametrize("moved", [False, True])
def test_contradictory_labels_with_strong_loadings(moved, monkeypatch):
    """Eleven of twelve labels known, half of them against what their loadings say."""
    if moved:
        monkeypatch.setattr(joint, "_LEAST_SHARE", 2.0)
    network = member(12, seed=23, sd=0)
    angle = torch.linspace(0, 0.5, 12, dtype=torch.float64)
    network.B.copy_(3 * torch.stack([angle.cos(), angle.sin()], 1))
    y = np.resize([1.0, 0.0], 12)
    y[5] = np.nan
    m, B = means(network, X[:1]), network.B.numpy()
    evidence, exact, sd = quadrature(lambda u: ndtr(m + u @ B.T), y)
    value, error = joint.log_prob([network], X[:1], y[None], S)
    assert abs(value[0] - math.log(evidence)) < SE * error[0]
    answer = joint.conditional([network], X[:1], y[None], S)
    # Resampling adds the error of a mean of S draws to that of the weighted mean
    se = math.hypot(own_error(network, X[0], y)[5], sd[5] / math.sqrt(S) if moved else 0)
    assert abs(answer.P[0, 5] - exact[5]) < SE * se
    assert 0 < answer.effective_draws[0] <= S


@pytest.mark.parametrize(("steep", "seed"), [(4, 1), (4, 3), (4, 9), (10, 3), (10, 6)])
def test_collapsed_weights_are_made_up_for_by_moves(steep, seed):
    """A decoder so steep that no Gaussian fits what eleven labels say about the code.

    Networks chosen so that a few draws count, of 256. Steeper ones, where hardly more than one
    does, can be farther off than the tolerance below: 24 moves are not enough for them.
    """
    network = member(12, 0, seed=seed)
    network.output.weight.mul_(steep)
    y = np.resize([1.0, 0.0, 0.0], 12)
    y[3] = np.nan
    n = 256
    x = torch.as_tensor(X[:1])
    weight = joint.draw(network, x, torch.as_tensor(y)[None], n).log_weight.softmax(1)
    assert 1 / weight.square().sum() < joint._LEAST_SHARE * n
    p_z_x = network.prior(x)

    def probabilities(u):
        z = p_z_x.mean + p_z_x.stddev * torch.as_tensor(u)
        return ndtr(network.decode(x.expand(len(u), -1), z).numpy())

    _, exact, sd = quadrature(probabilities, y)
    answer = joint.conditional([network], X[:1], y[None], n)
    assert 0 < answer.effective_draws[0] <= n
    # as n independent draws would have it, once they have forgotten where they started
    assert abs(answer.P[0, 3] - exact[3]) < SE * sd[3] / math.sqrt(n)


# ---------------------------------------------------------------- samples and probabilities


@pytest.mark.parametrize("n_members", [1, 2])
def test_samples_have_the_marginals_and_pairs_of_the_model(n_members):
    networks = [member(4, seed=25 + k, loading=1.5) for k in range(n_members)]
    n = 20_000
    drawn = joint.sample(networks, X, n, torch.Generator().manual_seed(0))
    assert drawn.shape == (3, n, 4)
    assert drawn.dtype == np.int8
    assert set(np.unique(drawn)) <= {0, 1}
    for x, Y in zip(X, drawn.astype(float), strict=True):
        p = np.mean([closed_form_marginals(network, x)[0] for network in networks], 0)
        # brute force has five to twenty times as many draws: its error is left to the slack
        # of rounding 4 standard errors up to 4.2
        assert (np.abs(Y.mean(0) - p) < 1.05 * SE * np.sqrt(p * (1 - p) / n)).all()
        P = [prior_probabilities(network, x) for network in networks]
        for i, j in combinations(range(4), 2):
            both = np.mean([(q[:, i] * q[:, j]).mean() for q in P])
            se = math.sqrt(both * (1 - both) / n)
            assert abs((Y[:, i] * Y[:, j]).mean() - both) < 1.05 * SE * se


def test_the_same_generator_gives_the_same_samples():
    networks = [member(4, seed=27), member(4, seed=28)]
    a, b, c = (
        joint.sample(networks, X, 50, torch.Generator().manual_seed(s)) for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


def test_the_mean_of_probabilities_is_the_marginal_with_codes_integrated():
    networks = [member(4, seed=29), member(4, seed=30, loading=1.5)]
    drawn = np.concatenate([p for _, p in joint.probabilities(networks, X, S)])
    assert drawn.shape == (3, S, 4)
    for x, P in zip(X, drawn, strict=True):
        exact, exact_se = zip(
            *(closed_form_marginals(network, x) for network in networks), strict=True
        )
        mean, se = mean_and_error(P)  # as if independent, and members were drawn too
        combined = np.hypot(se, np.linalg.norm(exact_se, axis=0) / 2)
        assert (np.abs(mean - np.mean(exact, 0)) < SE * combined).all()


def test_every_member_has_its_share_of_the_probabilities():
    networks = [member(3, seed=31 + k) for k in range(3)]
    ((piece, drawn),) = joint.probabilities(networks, X, 100)
    assert piece == slice(0, 3)
    assert drawn.shape == (3, 102, 3)  # 34 each
    for k, network in enumerate(networks):
        ((_, own),) = joint.probabilities([network], X, 34)
        np.testing.assert_array_equal(drawn[:, 34 * k : 34 * (k + 1)], own)


# ---------------------------------------------------------------- edges


def test_without_factors_and_codes_labels_are_independent():
    network = member(4, 0, seed=34, sd=0)
    m = means(network, X)
    Y = vectors(4)[[1, 6, 15]]
    value, error = joint.log_prob([network], X, Y, 256)
    exact = log_ndtr((2 * Y - 1) * m).sum(1)
    # only the weights vary, between prior and widened prior
    assert (np.abs(value - exact) < SE * error).all()
    known = hidden(Y)
    answer = joint.conditional([network], X, known, 256).P
    unknown = np.isnan(known)
    np.testing.assert_allclose(answer[unknown], ndtr(m)[unknown], rtol=1e-6)  # codes' spread
    drawn = joint.sample([network], X, 20_000, torch.Generator().manual_seed(0))
    p = ndtr(m)
    assert (np.abs(drawn.mean(1) - p) < SE * np.sqrt(p * (1 - p) / 20_000)).all()


def test_without_factors_codes_still_tie_labels():
    network = member(3, 0, seed=35)
    P = prior_probabilities(network, X[0])
    value, error = joint.log_prob([network], rows(X[0], 8), vectors(3), S)
    for y, log_p, se in zip(vectors(3), value, error, strict=True):
        brute, brute_se = mean_and_error(likelihood(P, y))
        assert abs(np.exp(log_p) - brute) < SE * math.hypot(se * brute, brute_se)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_factors", [0, 2])
def test_extreme_means_give_finite_and_right_values(n_factors, dtype):
    """Labels 40 standard deviations away: probabilities far below the smallest double."""
    network = member(4, n_factors, seed=36, sd=0, loading=0.0).to(dtype)
    network.output.weight.zero_()
    network.output.bias.copy_(torch.tensor([40.0, -40.0, 40.0, -40.0]))
    m = np.array([40.0, -40.0, 40.0, -40.0])
    Y = vectors(4)
    value, error = joint.log_prob([network], rows(X[0], 16), Y, 256)
    exact = log_ndtr((2 * Y - 1) * m).sum(1)  # down to -3,218
    rounding = 1e-6 if dtype is torch.float32 else 1e-13
    assert np.isfinite(value).all()
    assert (np.abs(value - exact) < SE * error + rounding * np.abs(exact)).all()
    answer = joint.conditional([network], rows(X[0], 16), hidden(Y), 256)
    assert np.isfinite(answer.P).all()


def test_a_label_far_from_its_mean_with_loadings():
    """The mode of the factors is 5 standard deviations out, where no prior draw falls."""
    network = member(2, 1, seed=37, sd=0)
    network.B.fill_(1.0)
    network.output.weight.zero_()
    network.output.bias.fill_(-10.0)
    y = np.array([[1.0, np.nan]])
    value, error = joint.log_prob([network], X[:1], y, S)
    assert abs(value[0] - log_ndtr(-10 / math.sqrt(2))) < SE * error[0]
    assert error[0] < 0.1


def test_one_draw_has_a_value_and_no_error():
    network = member(3, seed=39)
    Y = vectors(3)[:3]
    value, error = joint.log_prob([network], X, Y, 1)
    assert np.isfinite(value).all()
    assert np.isinf(error).all()
    P, effective = joint.conditional([network], X, hidden(Y), 1)
    assert ((P >= 0) & (P <= 1)).all()
    np.testing.assert_allclose(effective, 1)
