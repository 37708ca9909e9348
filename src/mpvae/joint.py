r"""Questions to the joint distribution of the labels of a row, answered by weighted draws.

Given xi = (eps, u), all standard normal, the labels of a row are independent:

.. math:: z = \mu(x) + \sigma(x)\,\epsilon, \quad s = m(x, z) + B u, \quad
          P(y_l = 1 \mid \xi) = \Phi(s_l).

So what some labels say about the others, they say about xi. Draws of xi come from a Gaussian
fitted to :math:`N(\xi; 0, I) \prod_{l\,known} \Phi(t_l s_l)` around its mode, which Newton's
method finds from where the label encoder points, mixed with a few draws from N(0, I) so that no
weight can be large. Weights make up for the difference; where they collapse nevertheless,
elliptical slice sampling (Murray, Adams and MacKay 2010) moves the draws.

Several members are one mixture: each counts by how well it explains the known labels.
Points are quasi-random and always the same, so equal questions get equal answers.
Shape letters: ``N`` rows, ``S`` draws, ``L`` labels, ``P = d + K`` entries of xi.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpvae import probit
from mpvae.errors import MPVAEError
from mpvae.features import Matrix
from mpvae.inference import code_given, normal_points, refuse_not_a_number
from mpvae.networks import MPVAE
from mpvae.rows import rows_tensor
from mpvae.threads import threads_for

_CELLS = 2**22  # entries of an array of draws: bounds memory
_PRIOR_SHARE = 8  # one draw in so many is from N(0, I)
_WIDEN = 1.05  # of the fitted Gaussian: tails must not be missed
_NEWTON_STEPS = 5  # at most; three do for most rows, and at a kink more do not help
_MAX_STEP = 3.0  # standard deviations
_STEP_DONE = 0.01
_FEW = 5  # draws that count; an error estimated from fewer means nothing
_LEAST_SHARE = 1 / 16  # of the draws that must count, or they are moved
_MOVES = 24
_MAX_SHRINKS = 60
_AS_PRODUCTS = 30  # products that take as long as a normal cdf


class Draws(NamedTuple):
    """Draws of xi for some rows, weighted by what is known about their labels."""

    xi: Tensor  # (N, S, P)
    log_weight: Tensor  # (N, S); prior x likelihood / proposal
    prob: Tensor  # (N, S, L); P(y_l = 1 | xi), or of its known value where it is known

    def log_evidence(self) -> Tensor:
        """Log-probability of the known labels, shape (N,)."""
        return self.log_weight.logsumexp(1) - math.log(self.log_weight.shape[1])


class Conditional(NamedTuple):
    """Probabilities given known labels, and how many draws they rest on."""

    P: NDArray[np.float64]  # (n, L)
    effective_draws: NDArray[np.float64]  # (n,)


def log_prob(
    networks: Sequence[MPVAE],
    X: Matrix,
    Y: NDArray[np.float64],
    n_draws: int,
    on_rows: Callable[[int], None] = lambda n: None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log-probability of label vectors (n, L), NaN integrated out, and its standard error.

    The error takes the draws as independent; quasi-random ones are more even than that, so it
    errs on the large side. It is infinite where fewer than five draws count.
    """
    values, errors = np.empty(len(Y)), np.empty(len(Y))
    for piece, x, y in _pieces(networks, X, Y, n_draws):
        log_weight = torch.cat([draw(net, x, y, n_draws).log_weight for net in networks], 1)
        n = log_weight.shape[1]
        log_mean = log_weight.logsumexp(1) - math.log(n)
        ratio = (log_weight - log_mean[:, None]).exp()  # mean 1 in each row
        mean_square = ratio.square().mean(1)  # n / mean_square draws count
        error = ((mean_square - 1).clamp(min=0) / max(n - 1, 1)).sqrt()
        error = torch.where(n / mean_square < _FEW, torch.inf, error)
        nothing = y.isnan().all(1)  # is known: probability one, no need to draw
        values[piece] = torch.where(nothing, 0, log_mean).cpu().numpy()
        errors[piece] = torch.where(nothing, 0, error).cpu().numpy()
        on_rows(len(x))
    return refuse_not_a_number(values), errors


def conditional(
    networks: Sequence[MPVAE],
    X: Matrix,
    known: NDArray[np.float64],
    n_draws: int,
    on_rows: Callable[[int], None] = lambda n: None,
) -> Conditional:
    """Probability of every label given those of ``known`` (n, L) that are not NaN."""
    P, effective = np.empty(known.shape), np.empty(len(known))
    for piece, x, y in _pieces(networks, X, known, n_draws):
        evidences, answers, counts = [], [], []
        for network in networks:
            draws = draw(network, x, y, n_draws)
            evidences.append(draws.log_evidence())
            answer, count = _answer(draws)
            few = torch.nonzero(count < _LEAST_SHARE * n_draws)[:, 0]
            if len(few):
                moved = _moved(network, x[few], y[few], draws, few)
                # A chain starts at each draw that counted, and moves that often.
                answer[few] = moved.prob.mean(1)
                count[few] = (count[few] * _MOVES).clamp(max=n_draws)
            answers.append(answer)
            counts.append(count)
        share = torch.stack(evidences).softmax(0)  # (members, N)
        answer = (share[..., None] * torch.stack(answers)).sum(0)
        # Of draws weighted by share / S within a member, 1 / sum of squares
        total = 1 / (share.square() / torch.stack(counts)).sum(0)
        P[piece] = torch.where(y.isnan(), answer, y).cpu().numpy()
        effective[piece] = total.cpu().numpy()
        on_rows(len(x))
    return Conditional(refuse_not_a_number(P), effective)


def probabilities(
    networks: Sequence[MPVAE], X: Matrix, n_draws: int
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Draws of the labels' probabilities, for some rows at a time: (rows, draws, L).

    Labels are independent given a draw, so the mean over draws of products of these is their
    joint distribution. Every member has its share of the draws.
    """
    each = -(-n_draws // len(networks))
    L = networks[0].B.shape[0]
    blank = np.broadcast_to(np.nan, (X.shape[0], L))
    points = normal_points(each, _n_dims(networks[0]))
    for piece, x, _ in _pieces(networks, X, blank, n_draws):
        xi = points.to(x).expand(len(x), -1, -1)
        parts = [probit.normal_cdf(_utilities(network, x)(xi)) for network in networks]
        yield piece, refuse_not_a_number(torch.cat(parts, 1).double().cpu().numpy())


def sample(
    networks: Sequence[MPVAE], X: Matrix, n: int, generator: torch.Generator
) -> NDArray[np.int8]:
    """Label vectors from the joint distribution, ``n`` for each row: (rows, n, L)."""
    L = networks[0].B.shape[0]
    drawn = np.empty((X.shape[0], n, L), np.int8)
    member = torch.randint(len(networks), drawn.shape[:2], generator=generator)
    blank = np.broadcast_to(np.nan, (X.shape[0], L))
    for piece, x, _ in _pieces(networks, X, blank, n):
        N = len(x)
        P = _n_dims(networks[0])
        xi = torch.randn(N, n, P, generator=generator, dtype=torch.float64).to(x)
        own = torch.rand(N, n, L, generator=generator, dtype=torch.float64).to(x)
        y = torch.zeros(N, n, L, dtype=torch.bool, device=x.device)
        for k, network in enumerate(networks):
            chosen = (member[piece] == k).to(x.device)
            if chosen.any():
                p = probit.normal_cdf(_utilities(network, x)(xi))
                refuse_not_a_number(p.cpu().numpy())
                y = torch.where(chosen[..., None], own < p, y)
        drawn[piece] = y.cpu().numpy()
    return drawn


def draw(network: MPVAE, x: Tensor, y: Tensor, n_draws: int) -> Draws:
    """Draws of xi given the labels in ``y`` (N, L) that are not NaN.

    Parameters
    ----------
    network : MPVAE
        A trained member.
    x : Tensor of shape (N, D)
        Features.
    y : Tensor of shape (N, L)
        Labels, NaN where not known.
    n_draws : int
        Draws per row.
    """
    t = probit.signs(y)
    utilities = _utilities(network, x)
    mode, root = _fitted_gaussian(network, x, y, t)
    n_prior = max(1, n_draws // _PRIOR_SHARE)
    points = normal_points(n_draws, mode.shape[1]).to(x)
    # root root^T is the precision: root^-T n has covariance 1 / precision.
    spread = torch.linalg.solve_triangular(root.mT, points[n_prior:].mT, upper=True)
    near = mode[:, None] + _WIDEN * spread.mT  # (N, S - n_prior, P)
    xi = torch.cat([points[:n_prior].expand(len(x), -1, -1), near], 1)
    log_weight, prob = _likelihood(utilities(xi), t)
    log_prior = -0.5 * xi.square().sum(-1)  # both densities lack the same constant
    standard = (xi - mode[:, None]) @ root / _WIDEN
    log_det = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    log_near = log_det[:, None] - xi.shape[-1] * math.log(_WIDEN)
    log_near = log_near - 0.5 * standard.square().sum(-1)
    share = n_prior / n_draws
    log_proposal = torch.logaddexp(
        log_prior + math.log(share), log_near + math.log(max(1 - share, 1e-300))
    )
    return Draws(xi, log_weight + log_prior - log_proposal, prob)


def _pieces(
    networks: Sequence[MPVAE], X: Matrix, Y: NDArray[np.float64], n_draws: int
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows, their features and labels, as many at a time as memory allows."""
    like = networks[0].B
    widest = max(len(like), *(layer.shape[0] for layer in networks[0].decoder.parameters()))
    dims = _n_dims(networks[0])
    at_once = max(1, _CELLS // (n_draws * max(widest, dims) + len(like) * dims + dims**2))
    n_rows = min(at_once, X.shape[0])
    with torch.no_grad(), threads_for(2 * n_rows * n_draws * widest * (dims + _AS_PRODUCTS)):
        for start in range(0, X.shape[0], at_once):
            piece = slice(start, min(X.shape[0], start + at_once))
            y = torch.as_tensor(np.array(Y[piece], np.float64)).to(like)
            yield piece, rows_tensor(X, piece, like), y


def _n_dims(network: MPVAE) -> int:
    return network.latent_dim + network.B.shape[1]


def _utilities(network: MPVAE, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Function from xi (N, S, P) to s (N, S, L)."""
    mean, sd = (v[:, None] for v in code_given(network, x))
    given = network.from_features(x).for_draws()
    d = network.latent_dim

    def utilities(xi: Tensor) -> Tensor:
        m = network.decode_codes(given, mean + sd * xi[..., :d])
        return m + xi[..., d:] @ network.B.mT

    return utilities


def _likelihood(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Log-likelihood (N, S) of the known labels, and probabilities (N, S, L)."""
    is_known = (t != 0)[:, None]  # (N, 1, L)
    v = s * (torch.where(t == 0, 1, t) * -math.sqrt(0.5))[:, None]
    twice = torch.erfc(v)  # 2 Phi(t s), with t = 1 where the label is not known
    v_known = torch.where(is_known, v, 0)
    if probit.has_tail(v_known):
        log_lik = probit.log_erfc(v_known).sum(-1)
    else:
        log_lik = torch.where(is_known, twice, 1).log().sum(-1)
    return log_lik - is_known.sum((1, 2))[:, None] * math.log(2), 0.5 * twice


def _fitted_gaussian(network: MPVAE, x: Tensor, y: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Mode (N, P) of xi given the labels, and the Cholesky factor (N, P, P) of its precision.

    Newton's method with the curvature of the labels alone (that of the decoder is zero almost
    everywhere): log Phi is concave, so the precision is at least the identity.
    """
    mean, sd = code_given(network, x)
    given = network.from_features(x)
    d, B = network.latent_dim, network.B
    start = (network.posterior(x, y).mean - mean) / sd
    shrink = (_MAX_STEP / start.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)
    eps = torch.where((t != 0).any(1, keepdim=True), start * shrink, 0)
    xi = torch.cat([eps, eps.new_zeros(len(x), B.shape[1])], 1)

    root = xi.new_empty(len(x), xi.shape[1], xi.shape[1])
    identity = torch.eye(xi.shape[1]).to(xi)
    moving = torch.arange(len(x), device=x.device)  # a row that has arrived stays where it is
    for step in range(_NEWTON_STEPS + 1):
        at, signs = xi[moving], t[moving]
        z = mean[moving] + sd[moving] * at[:, :d]
        m, slope = network.decode_with_slope(given.of_rows(moving), z)
        loadings = B.expand(len(moving), *B.shape)
        A = torch.cat([slope * sd[moving, None], loadings], 2)  # (rows, L, P)
        v = signs * (m + at[:, d:] @ B.mT)
        hazard = probit.erfc_hazard(v * -math.sqrt(0.5)) * math.sqrt(2 / math.pi)  # phi / Phi
        weight = (hazard * (hazard + v)).clamp(0, 1) * signs.abs()
        root[moving] = half = _cholesky(identity + (A * weight[..., None]).mT @ A)
        if step == _NEWTON_STEPS:
            break
        gradient = (A.mT @ (signs * hazard)[..., None])[..., 0] - at
        change = torch.cholesky_solve(gradient[..., None], half)[..., 0]
        length = change.norm(dim=1, keepdim=True).clamp(min=1e-12)
        far = (length >= _STEP_DONE)[:, 0]
        moving = moving[far]
        if len(moving) == 0:
            break
        xi[moving] = (at + change * (_MAX_STEP / length).clamp(max=1))[far]
    return xi, root


def _cholesky(precision: Tensor) -> Tensor:
    root: Tensor
    root, wrong = torch.linalg.cholesky_ex(precision)
    if wrong.any():
        raise MPVAEError(
            f"the model's precision of {precision.shape[-1]} factors has no root; its weights "
            "are damaged, train it again"
        )
    return root


def _answer(draws: Draws) -> tuple[Tensor, Tensor]:
    """Weighted mean of the probabilities (N, L), and the effective number of draws (N,)."""
    weight = draws.log_weight.softmax(1)
    return (weight[:, None] @ draws.prob)[:, 0], 1 / weight.square().sum(1)


def _moved(network: MPVAE, x: Tensor, y: Tensor, draws: Draws, rows: Tensor) -> Draws:
    """Draws of some rows resampled by weight, then moved until they no longer coincide.

    All rows share the random numbers, so the answer to one does not depend on the others.
    """
    log_weight, xi = draws.log_weight[rows], draws.xi[rows]
    t = probit.signs(y)
    utilities = _utilities(network, x)
    N, S, _ = xi.shape
    middles = (torch.arange(S).to(xi) + 0.5) / S
    chosen = torch.searchsorted(log_weight.softmax(1).cumsum(1), middles.expand(N, S).clone())
    chosen = chosen.clamp(max=S - 1)
    xi = xi.gather(1, chosen[..., None].expand_as(xi))
    log_lik, prob = _likelihood(utilities(xi), t)
    for move in range(_MOVES):
        generator = torch.Generator().manual_seed(move)
        other = torch.randn(xi.shape[1:], generator=generator, dtype=torch.float64).to(xi)
        uniform = torch.rand(2, S, generator=generator, dtype=torch.float64).to(xi)
        level = log_lik + uniform[0].log()
        angle = (uniform[1] * 2 * math.pi).expand(N, S)
        low, high = angle - 2 * math.pi, angle.clone()
        waiting = torch.ones_like(level, dtype=torch.bool)
        for _ in range(_MAX_SHRINKS):
            proposed = xi * angle.cos()[..., None] + other * angle.sin()[..., None]
            new_lik, new_prob = _likelihood(utilities(proposed), t)
            accepted = waiting & (new_lik > level)
            xi = torch.where(accepted[..., None], proposed, xi)
            prob = torch.where(accepted[..., None], new_prob, prob)
            log_lik = torch.where(accepted, new_lik, log_lik)
            waiting &= ~accepted
            if not waiting.any():
                break
            low = torch.where(waiting & (angle < 0), angle, low)
            high = torch.where(waiting & (angle >= 0), angle, high)
            share = torch.rand(S, generator=generator, dtype=torch.float64).to(xi)
            angle = torch.where(waiting, low + share * (high - low), angle)
    return Draws(xi, torch.zeros_like(log_lik), prob)
