r"""The training objective of MPVAE: each term by name, and their weighted sum.

For a branch with probit means ``m``, draws ``u`` and ``p_l = Phi(m_l + B_l u)`` the paper has

- cross-entropy: :math:`-\log E_u \prod_l p_l^{y_l} (1 - p_l)^{1 - y_l}`,
- ranking: :math:`E_u` of the mean over (present i, absent j) of :math:`e^{-g (p_i - p_j)} / g`,
- entropy: :math:`E_u` of the entropy of the softmax over labels of ``p``.

Two facts make them cheap. The sum over pairs factorises,

.. math:: \sum_{i, j} e^{-g (p_i - p_j)} = \sum_i e^{-g p_i} \; \sum_j e^{g p_j},

so nothing of size L x L is built; and with ``t = 2 y - 1`` all terms follow from the one
number ``Phi(t s)`` per label. The gradient is written by hand: it is linear in quantities
already at hand, needs no stored graph, and walks over the rows in pieces that stay in cache.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import kl_divergence

from mpvae import probit
from mpvae.config import Settings
from mpvae.networks import Branches

_PIECE = 2**19  # elements of a work array; measured fastest between 2^18 and 2^20


@dataclass(frozen=True, slots=True)
class TermWeights:
    """Weights and constants of the terms of one branch."""

    ce: float = 0.5
    rank: float = 10.0
    entropy: float = 0.5
    rank_gain: float = 1.0
    floor: float = 0.0


class LossTerms(NamedTuple):
    """One step's objective: the weighted ``total`` to minimise, the rest to look at.

    Every term but ``total`` is a detached mean over the rows of the batch; suffix ``_x`` is
    the feature branch, ``_y`` the label branch.
    """

    total: Tensor
    ce_x: Tensor
    ce_y: Tensor
    rank_x: Tensor
    rank_y: Tensor
    entropy_x: Tensor
    entropy_y: Tensor
    kl: Tensor


def mpvae_loss(
    branches: Branches,
    B: Tensor,
    u: Tensor,
    y: Tensor,
    row_weight: Tensor,
    settings: Settings,
) -> LossTerms:
    """Objective of a batch: reconstruction + prior + beta KL (Eq. 5 of the paper).

    Parameters
    ----------
    branches : Branches
        Both branches of the network for the batch.
    B : Tensor of shape (L, K)
        Factor loadings.
    u : Tensor of shape (N, H, K)
        Standard normal draws, shared by both branches.
    y : Tensor of shape (N, L)
        Labels in {0, 1}, NaN where not observed.
    row_weight : Tensor of shape (N,)
        Weights of the rows; the objective is their weighted mean.
    settings : Settings
        Weights of the terms.
    """
    weight = row_weight / row_weight.sum()
    m = torch.stack([branches.m_x, branches.m_y])  # (2, N, L)
    fitted, terms = probit_loss(m, B, u, y, weight, term_weights(settings), settings.antithetic)
    kl = weight @ kl_divergence(branches.q_z_y, branches.p_z_x)
    total = fitted + settings.beta**settings.beta_power * kl
    means = (terms @ weight).unbind()  # (3, 2) -> three pairs
    return LossTerms(total, *means[0], *means[1], *means[2], kl.detach())


def term_weights(settings: Settings) -> TermWeights:
    """Weights of one branch, as the settings have them."""
    return TermWeights(
        settings.lambda_ce,
        settings.lambda_rank,
        settings.lambda_entropy,
        settings.rank_gain,
        settings.probability_floor,
    )


def probit_loss(
    m: Tensor,
    B: Tensor,
    u: Tensor,
    y: Tensor,
    row_weight: Tensor,
    weights: TermWeights,
    antithetic: bool = True,
) -> tuple[Tensor, Tensor]:
    """Weighted sum over rows and branches of cross-entropy, ranking and entropy.

    Parameters
    ----------
    m : Tensor of shape (R, N, L)
        Probit means of R branches.
    B : Tensor of shape (L, K)
        Factor loadings.
    u : Tensor of shape (N, H, K)
        Standard normal draws.
    y : Tensor of shape (N, L)
        Labels in {0, 1}; NaN is not observed and takes part in no term.
    row_weight : Tensor of shape (N,)
        Factor of each row in the sum.
    weights : TermWeights
        Factor of each term. A term of weight zero is not computed and reported as 0.
    antithetic : bool
        Use ``-u`` beside ``u``: twice the draws from the same random numbers.

    Returns
    -------
    total : Tensor of shape ()
        Differentiable, once, in ``m`` and ``B``.
    terms : Tensor of shape (3, R, N)
        Unweighted cross-entropy, ranking and entropy of every row; no gradient.
    """
    total, terms = _ProbitLoss.apply(m, B, u, y, row_weight, weights, antithetic)
    return total, terms


class _ProbitLoss(torch.autograd.Function):
    """Value and gradient in one walk over the rows; backward only scales what it found."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        m: Tensor,
        B: Tensor,
        u: Tensor,
        y: Tensor,
        row_weight: Tensor,
        weights: TermWeights,
        antithetic: bool,
    ) -> tuple[Tensor, Tensor]:
        terms, dm, dB = _value_and_gradient(m, B, u, y, row_weight, weights, antithetic)
        ctx.save_for_backward(dm, dB)
        ctx.mark_non_differentiable(terms)
        factor = terms.new_tensor([weights.ce, weights.rank, weights.entropy])
        return factor @ (terms @ row_weight).sum(1), terms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        dm, dB = ctx.saved_tensors
        return g * dm, g * dB, None, None, None, None, None


def _value_and_gradient(
    m: Tensor,
    B: Tensor,
    u: Tensor,
    y: Tensor,
    row_weight: Tensor,
    weights: TermWeights,
    antithetic: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    R, N, L = m.shape
    H, K = u.shape[1:]
    A = 2 if antithetic else 1  # u and -u
    S = A * H
    t = probit.signs(y)
    present, absent = (t > 0).to(m.dtype), (t < 0).to(m.dtype)
    observed = present + absent
    all_observed = bool(observed.all())
    # v = -t s / sqrt 2, so that 2 Phi(t s) = erfc(v): scale and sign go into the small m and
    # B u once, and an unobserved label has v = 0, erfc(v) = 1, log 0: it drops out by itself.
    tc = t * -math.sqrt(0.5)  # (N, L)
    v_mean = (m * tc).transpose(0, 1)  # (N, R, L)

    n_pairs = present.sum(1) * absent.sum(1)
    g = weights.rank_gain
    # Rows without a present or without an absent label have no pair to rank: their term is 0.
    per_pair = torch.where(n_pairs > 0, math.exp(g) / (g * n_pairs.clamp(min=1)), 0)

    terms = m.new_zeros(3, R, N)
    dv = m.new_empty(N, R, L)
    dB = torch.zeros_like(B)
    rows = max(1, min(N, _PIECE // (R * S * L)))
    work = m.new_empty(3, rows, R, A, H, L)  # reused by every piece: no allocation inside
    zero = m.new_zeros(())
    for start in range(0, N, rows):
        piece = slice(start, min(N, start + rows))
        n = piece.stop - start
        u_piece = u[piece].reshape(n * H, K)
        Bu = (u_piece @ B.mT).view(n, 1, H, L) * tc[piece, None, None]
        v5, p5, e5 = work[:, :n]
        torch.add(v_mean[piece, :, None], Bu, out=v5[:, :, 0])
        if antithetic:
            torch.sub(v_mean[piece, :, None], Bu, out=v5[:, :, 1])
        v, p, e = (array.view(n, R * S, L) for array in (v5, p5, e5))

        # Cross-entropy: log-mean-exp over draws; its gradient weighs each draw by softmax.
        torch.erfc(v, out=p)  # 2 Phi(t s)
        tail = False
        if weights.floor:
            p.mul_(1 - 2 * weights.floor).add_(2 * weights.floor)
        else:
            tail = probit.has_tail(v)
        log_p = probit.log_erfc(v).sum(-1) if tail else _log_product(p, e)
        log_p = log_p.view(n, R, S)
        terms[0, :, piece] = (
            math.log(S) + observed[piece].sum(1, keepdim=True) * math.log(2) - log_p.logsumexp(-1)
        ).mT
        by_draw = log_p.softmax(-1) * (weights.ce * row_weight[piece])[:, None, None]

        # G = -dLoss/d(2 Phi) / 1, then times d(2 Phi)/dv = -2 / sqrt(pi) exp(-v^2).
        hazard = probit.erfc_hazard(v) if tail else None
        torch.addcmul(zero, v, v, value=-1, out=v).exp_()  # exp(-v^2) from here on
        if weights.rank:
            torch.mul(p, -g / 2, out=e).exp_()  # e^{-g Phi(t s)}
            if not all_observed:
                e.mul_(observed[piece, None])
            sum_all = e.sum(-1)
            e_present = e * present[piece, None]
            sum_present = e_present.sum(-1)
            sum_absent = sum_all - sum_present
            terms[1, :, piece] = (
                (sum_present * sum_absent).view(n, R, S).mean(-1) * per_pair[piece, None]
            ).mT
            factor = (per_pair * row_weight)[piece, None] * (weights.rank * g / (2 * S))
            by_absent = (sum_present * factor)[..., None]
            by_present = (sum_absent * factor)[..., None]
            G = e.mul_(by_absent).add_(e_present.mul_(by_present - by_absent))
        else:
            G = e.zero_()
        if weights.entropy:
            G.add_(_entropy(p, t[piece], row_weight[piece], weights.entropy / S, terms[2, :, piece]))
        by_draw = by_draw.view(n, R * S, 1)
        if hazard is None:
            G.addcdiv_(by_draw, p).mul_(v)
        else:
            G.mul_(v).add_(hazard.mul_(by_draw))

        G5 = e5
        torch.sum(G5.view(n, R, S, L), 2, out=dv[piece])
        dBu = G5.sum(1)  # (n, A, H, L)
        dBu = (dBu[:, 0] - dBu[:, 1]) if antithetic else dBu[:, 0]
        dB.addmm_(dBu.mul_(tc[piece, None]).view(n * H, L).mT, u_piece)

    slope = 2 / math.sqrt(math.pi) * (1 - 2 * weights.floor)  # -d(2 Phi)/dv without exp(-v^2)
    dm = (dv * tc[:, None]).mul_(slope).transpose(0, 1)
    return terms, dm, dB.mul_(slope)


def _log_product(p: Tensor, scratch: Tensor) -> Tensor:
    """Sum of logarithms over the last axis, most of it as the logarithm of products of eight.

    A logarithm costs as much as eight products. Where a product leaves the normal numbers,
    the plain sum is taken instead.
    """
    L = p.shape[-1]
    width = L // 8
    if width == 0:
        return p.log().sum(-1)
    a, b = p[..., : 4 * width], p[..., 4 * width : 8 * width]
    four = torch.mul(a, b, out=scratch[..., : 4 * width])
    two = torch.mul(four[..., : 2 * width], four[..., 2 * width :])
    one = torch.mul(two[..., :width], two[..., width:])
    if one.min() < torch.finfo(p.dtype).tiny:
        return p.log().sum(-1)
    total = one.log_().sum(-1)
    return total if 8 * width == L else total.add_(p[..., 8 * width :].log().sum(-1))


def _entropy(p: Tensor, t: Tensor, row_weight: Tensor, weight: float, term: Tensor) -> Tensor:
    """Contribution of the entropy term to G; writes the term's value into ``term``."""
    R, n = term.shape
    t = t[:, None]  # (n, 1, L)
    Phi = torch.where(t > 0, 0.5 * p, 1 - 0.5 * p)  # Phi(s), from 2 Phi(t s)
    f = Phi.exp().mul_(t.abs())
    Z = f.sum(-1, keepdim=True)
    Z = torch.where(Z > 0, Z, 1)  # a row with no observed label
    f.div_(Z)  # the paper's p_i
    log_f = Phi - Z.log()
    entropy = -(f * log_f).sum(-1, keepdim=True)
    term.copy_(entropy.view(n, R, -1).mean(-1).mT)
    # dH/dPhi_k = -p_k (log p_k + H), and Phi = (1 + t (2 Phi(t s) - 1)) / 2
    return (f * (log_f + entropy)).mul_(0.5 * weight * t * row_weight[:, None, None])
