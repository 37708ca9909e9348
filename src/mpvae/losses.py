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

Rows of a batch may share draws: then ``B u`` and its gradient cost little. What that does to
the gradient's variance is small: rows differ in labels and means. See `sets_of_draws`.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mpvae import compiled, kernel, probit
from mpvae.config import Settings
from mpvae.networks import Branches, Gaussian

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE = 2**20  # elements of a work array; measured equally fast from 2^19 to 2^22
_SETS = 16  # of draws, for the rows of a batch


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
    u : Tensor of shape (G, H, K)
        Standard normal draws, as `sets_of_draws` makes them; shared by both branches.
    y : Tensor of shape (N, L)
        Labels in {0, 1}, NaN where not observed.
    row_weight : Tensor of shape (N,)
        Weights of the rows; the objective is their weighted mean.
    settings : Settings
        Weights of the terms.
    """
    weight = row_weight / row_weight.sum()
    with_labels = [branches.m_y] if settings.label_branch else []
    m = torch.stack([branches.m_x, *with_labels])  # (R, N, L)
    total, terms = probit_loss(m, B, u, y, weight, term_weights(settings), settings.antithetic)
    kl_weight = settings.beta**settings.beta_power if settings.label_branch else 0.0
    kl = total.new_zeros(())
    if kl_weight:  # else nothing holds the codes together: the divergence may be infinite
        kl = weight @ _kl(branches.q_z_y, branches.p_z_x)
        total = total + kl_weight * kl
    x, y_ = (terms @ weight)[:, [0, -1]].unbind(1)  # (3,): the terms of each branch
    return LossTerms(total, x[0], y_[0], x[1], y_[1], x[2], y_[2], kl.detach())


def _kl(q: Gaussian, p: Gaussian) -> Tensor:
    """Kullback-Leibler divergence of q from p, shape (N,); torch's own takes twice the time."""
    scale = p.base_dist.scale
    ratio = q.base_dist.scale / scale
    gap = (q.mean - p.mean) / scale
    return 0.5 * (ratio.square() + gap.square() - 1).sum(-1) - ratio.log().sum(-1)


def term_weights(settings: Settings) -> TermWeights:
    """Weights of one branch, as the settings have them."""
    return TermWeights(
        settings.lambda_ce,
        settings.lambda_rank,
        settings.lambda_entropy,
        settings.rank_gain,
        settings.probability_floor,
    )


def normals(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Standard normal numbers; by the compiled generator, four times as fast, where it is."""
    if compiled.available and like.device.type == "cpu":
        return kernel.normal_draws(shape, int(torch.randint(2**62, ()))).to(like)
    return torch.randn(shape).to(like)


def sets_of_draws(n_rows: int, n_draws: int, B: Tensor) -> Tensor:
    """Standard normal draws (G, H, K) for a batch: at most 16 sets, which rows share.

    With independent draws the variance of a batch's mean gradient is V; were all rows to
    share one set, it would be V + C. With G sets it is about V + C / G.
    """
    share = -(-n_rows // _SETS)
    return normals((-(-n_rows // share), n_draws, B.shape[1]), B)


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
    u : Tensor of shape (G, H, K)
        Standard normal draws; ceil(N / G) rows, one after the other, share a set of them.
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
    result: tuple[Tensor, Tensor] = _ProbitLoss.apply(  # type: ignore[no-untyped-call]
        m, B, u, y, row_weight, weights, antithetic
    )
    return result


class _ProbitLoss(torch.autograd.Function):
    """Value and gradient in one walk over the rows; backward only scales what it found."""

    @staticmethod
    def forward(
        ctx: Any,
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
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
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
    H = u.shape[1]
    t = probit.signs(y)
    # v = -t s / sqrt 2, so that 2 Phi(t s) = erfc(v): scale and sign go into the small m and
    # B u once, and an unobserved label has v = 0, erfc(v) = 1, log 0: it drops out by itself.
    tc = t * -math.sqrt(0.5)  # (N, L)
    v_mean = (m * tc).transpose(0, 1).contiguous()  # (N, R, L)
    found = []
    dB = torch.zeros_like(B)
    share = -(-N // len(u))  # rows that share draws
    on_rows: Callable[..., tuple[Tensor, Tensor, Tensor]]
    if kernel.supports(v_mean, weights):
        on_rows, of_a_set = kernel.rows_value_and_gradient, H * L
    else:  # work arrays for every row of a set
        on_rows, of_a_set = _rows_value_and_gradient, 2 * R * H * L * share
    sets = max(1, _PIECE // of_a_set)
    for start in range(0, len(u), sets):
        u_piece = u[start : start + sets].flatten(0, 1)  # (sets H, K)
        piece = slice(start * share, (start + sets) * share)
        v_draw = (u_piece @ B.mT).mul_(-math.sqrt(0.5)).view(-1, H, L)
        terms, dv_mean, dv_draw = on_rows(
            v_mean[piece], v_draw, t[piece], row_weight[piece], weights, antithetic, share
        )
        dB.addmm_(dv_draw.view(-1, L).mT, u_piece, alpha=-math.sqrt(0.5))
        found.append((terms, dv_mean.mul_(tc[piece, None])))
    terms, dm = found[0] if len(found) == 1 else _joined(found)
    return terms, dm.transpose(0, 1), dB


def _joined(found: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Terms (3, R, N) and gradients (N, R, L) of all rows, from those of pieces."""
    terms, dm = zip(*found, strict=True)
    return torch.cat(terms, -1), torch.cat(dm)


def _rows_value_and_gradient(
    v_mean: Tensor,
    v_draw: Tensor,
    t: Tensor,
    row_weight: Tensor,
    weights: TermWeights,
    antithetic: bool,
    share: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Terms of some rows, and the gradient of their weighted sum.

    Parameters
    ----------
    v_mean : Tensor of shape (n, R, L)
        ``-t m / sqrt 2`` of each branch.
    v_draw : Tensor of shape (G, H, L)
        ``-B u / sqrt 2`` of each draw; ``v = v_mean + t v_draw``, and with antithetic draws
        also ``v = v_mean - t v_draw``.
    t : Tensor of shape (n, L)
        Signs of the labels: 1, -1, or 0 where not observed.
    share : int
        Rows, one after the other, that share draws.

    Returns
    -------
    terms : Tensor of shape (3, R, n)
        Cross-entropy, ranking, entropy; unweighted.
    dv_mean : Tensor of shape (n, R, L)
        Gradient of ``sum_rows row_weight * sum_terms weight * term`` in ``v_mean``.
    dv_draw : Tensor of shape (G, H, L)
        The same in ``v_draw``.
    """
    n, R, L = v_mean.shape
    G, H = v_draw.shape[:2]
    A = 2 if antithetic else 1  # u and -u
    S = A * H
    present, absent = (t > 0).to(t.dtype), (t < 0).to(t.dtype)
    observed = present + absent
    n_pairs = present.sum(1) * absent.sum(1)
    g = weights.rank_gain
    # Rows without a present or without an absent label have no pair to rank: their term is 0.
    per_pair = torch.where(n_pairs > 0, math.exp(g) / (g * n_pairs.clamp(min=1)), 0)

    terms = v_mean.new_zeros(3, R, n)
    v5 = v_mean.new_empty(n, R, A, H, L)
    of_row = v_draw.repeat_interleave(share, 0)[:n].mul_(t[:, None])
    torch.add(v_mean[:, :, None], of_row[:, None], out=v5[:, :, 0])
    if antithetic:
        torch.sub(v_mean[:, :, None], of_row[:, None], out=v5[:, :, 1])
    v = v5.view(n, R * S, L)

    # Cross-entropy: log-mean-exp over draws; its gradient weighs each draw by softmax.
    p = torch.erfc(v)  # 2 Phi(t s)
    tail = False
    if weights.floor:
        p.mul_(1 - 2 * weights.floor).add_(2 * weights.floor)
    else:
        tail = probit.has_tail(v)
    log_p = (probit.log_erfc(v).sum(-1) if tail else _log_product(p)).view(n, R, S)
    n_observed = observed.sum(1, keepdim=True)
    terms[0] = (math.log(S) + n_observed * math.log(2) - log_p.logsumexp(-1)).mT
    by_draw = log_p.softmax(-1).mul_((weights.ce * row_weight)[:, None, None]).view(n, R * S, 1)
    hazard = probit.erfc_hazard(v).mul_(by_draw) if tail else None

    # First slope = -dLoss/d(2 Phi); then dLoss/dv = 2 exp(-v^2) slope / sqrt pi.
    density = torch.addcmul(v.new_zeros(()), v, v, value=-1, out=v).exp_()
    slope = v.new_zeros(()) if hazard is not None else torch.div(by_draw, p)
    if weights.rank:
        e = torch.mul(p, -g / 2).exp_()  # e^{-g Phi(t s)}
        if bool((observed < 1).any()):
            e.mul_(observed[:, None])
        e_present = e * present[:, None]
        sum_present = e_present.sum(-1)
        sum_absent = e.sum(-1) - sum_present
        pairs = (sum_present * sum_absent).view(n, R, S)
        terms[1] = (pairs.mean(-1) * per_pair[:, None]).mT
        factor = (per_pair * row_weight)[:, None] * (weights.rank * g / (2 * S))
        by_absent = (sum_present * factor)[..., None]
        by_present = (sum_absent * factor)[..., None]
        slope = slope + e.mul_(by_absent).add_(e_present.mul_(by_present - by_absent))
    if weights.entropy:
        contribution, terms[2] = _entropy(p, t, R)
        slope = slope + contribution.mul_((weights.entropy / S * row_weight)[:, None, None])
    slope = density.mul_(slope)
    if hazard is not None:
        slope.add_(hazard)
    slope.mul_(2 / math.sqrt(math.pi) * (1 - 2 * weights.floor))

    by_sign = slope.view(n, R, A, H, L).sum(1)
    of_row = by_sign[:, 0] - by_sign[:, 1] if antithetic else by_sign[:, 0]
    filled = torch.nn.functional.pad(of_row.mul_(t[:, None]), (0, 0, 0, 0, 0, G * share - n))
    return terms, slope.view(n, R, S, L).sum(2), filled.view(G, share, H, L).sum(1)


def _log_product(p: Tensor) -> Tensor:
    """Sum of logarithms over the last axis, most of it as the logarithm of products of eight.

    A logarithm costs as much as eight products. Where a product leaves the normal numbers,
    the plain sum is taken instead.
    """
    width = p.shape[-1] // 8
    if width == 0:
        return p.log().sum(-1)
    four = p[..., : 4 * width] * p[..., 4 * width : 8 * width]
    two = four[..., : 2 * width] * four[..., 2 * width :]
    one = two[..., :width] * two[..., width:]
    if one.min() < torch.finfo(p.dtype).tiny:
        return p.log().sum(-1)
    total = one.log_().sum(-1)
    rest = p[..., 8 * width :]
    return total.add_(rest.log().sum(-1)) if rest.shape[-1] else total


def _entropy(p: Tensor, t: Tensor, R: int) -> tuple[Tensor, Tensor]:
    """Contribution of the entropy term to the slope (n, R S, L), and the term itself (R, n)."""
    n = len(p)
    t = t[:, None]  # (n, 1, L)
    Phi = torch.where(t > 0, 0.5 * p, 1 - 0.5 * p)  # Phi(s), from 2 Phi(t s)
    f = Phi.exp().mul_(t.abs())
    Z = f.sum(-1, keepdim=True)
    Z = torch.where(Z > 0, Z, 1)  # a row with no observed label
    f.div_(Z)  # the paper's p_i
    log_f = Phi - Z.log()
    entropy = -(f * log_f).sum(-1, keepdim=True)
    # dH/dPhi_k = -p_k (log p_k + H), and Phi = (1 + t (2 Phi(t s) - 1)) / 2
    return f.mul_(log_f + entropy).mul_(0.5 * t), entropy.view(n, R, -1).mean(-1).mT
