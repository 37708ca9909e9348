r"""The multivariate probit model: probabilities of labels, alone and together.

A row with ``L`` labels has latent utilities, cut at zero::

    w ~ N(m, Sigma_g),   Sigma_g = I + Sigma_r,   Sigma_r = B B^T
    y_l = 1 if w_l > 0 else 0

Given the factors ``u ~ N(0, I_K)`` the labels are independent, label ``l`` being present
with probability ``Phi(m_l + B_l u)``: everything below follows from that.

Every function is pure: tensors in, tensors out, and any randomness is an argument.
Shape letters: ``N`` rows, ``S`` draws, ``L`` labels, ``K`` factors.
"""

import math

import torch
from torch import Tensor

_SQRT_HALF = math.sqrt(0.5)
# Beyond this argument erfc leaves the normal numbers (float32 at 9.2, float64 at 26.5); from
# here on the asymptotic series below is accurate to rounding.
_TAIL = {torch.float32: 8.5, torch.float64: 25.0}


def normal_cdf(t: Tensor) -> Tensor:
    """Normal cdf, accurate for rare labels too: ``torch.special.ndtr(-9)`` is exactly 0."""
    return 0.5 * torch.erfc(t * -_SQRT_HALF)


def signs(y: Tensor) -> Tensor:
    """Sign of each label: +1 present, -1 absent, 0 not observed (NaN); shape of ``y``."""
    return torch.where(y.isnan(), 0, 2 * y - 1)  # zero, not NaN: keeps gradients finite


def scale(B: Tensor) -> Tensor:
    r"""Standard deviation of each latent utility, :math:`\sqrt{1 + |B_l|^2}`, shape (L,)."""
    return (1 + B.square().sum(-1)).sqrt()


def marginal_prob(m: Tensor, B: Tensor) -> Tensor:
    r"""Probability that each label is present, whatever the other labels are.

    Alone, :math:`w_l` is normal with mean :math:`m_l` and variance
    :math:`\Sigma_{g,ll} = 1 + \lVert B_l \rVert^2`, hence

    .. math:: P(y_l = 1) = \Phi\left(m_l / \sqrt{1 + \lVert B_l \rVert^2}\right).

    Parameters
    ----------
    m : Tensor of shape (..., L)
        Mean of the latent utilities.
    B : Tensor of shape (L, K)
        Factor loadings, one row per label.

    Returns
    -------
    Tensor of shape (..., L)
        Exact probabilities: no draws, so equal inputs give equal outputs.
    """
    return normal_cdf(m / scale(B))


def joint_log_prob(y: Tensor, m: Tensor, B: Tensor, u: Tensor) -> Tensor:
    r"""Log-probability of whole label vectors, averaged over the factor draws ``u``.

    .. math:: P(y) = E_u \prod_l \Phi\left(t_l (m_l + B_l^\top u)\right), \quad t = 2y - 1

    Parameters
    ----------
    y : Tensor of shape (N, L)
        Labels in {0, 1}. NaN means "not observed" and is integrated out.
    m : Tensor of shape (N, L)
        Mean of the latent utilities.
    B : Tensor of shape (L, K)
        Factor loadings.
    u : Tensor of shape (N, S, K) or (1, S, K)
        Standard normal draws; pass the same ``u`` twice for common random numbers.

    Returns
    -------
    Tensor of shape (N,)
    """
    t = signs(y)[:, None]  # (N, 1, L)
    s = m[:, None] + u @ B.mT  # (N, S, L)
    # An unobserved label has t = 0 and log(2 Phi(0)) = 0: it drops out of the sum by itself.
    log_2p = log_erfc(t * s * -_SQRT_HALF).sum(-1)  # (N, S)
    n_observed = t.abs().sum((1, 2))
    return log_2p.logsumexp(1) - math.log(u.shape[1]) - n_observed * math.log(2)


def covariance(B: Tensor) -> Tensor:
    """Covariance of the latent utilities given their mean, ``I + B B^T``, shape (L, L)."""
    return torch.eye(len(B), dtype=B.dtype, device=B.device) + B @ B.mT


def log_erfc(v: Tensor) -> Tensor:
    """Logarithm of ``erfc(v)``, finite and accurate for any finite ``v``."""
    tail = v > _TAIL[v.dtype]
    inside = torch.where(tail, 0, v)  # clip first: no gradient flows through log(0)
    far = torch.where(tail, v, 10)
    asymptotic = (-far.square()).add(torch.log(_tail_series(far) / (far * math.sqrt(math.pi))))
    return torch.where(tail, asymptotic, torch.erfc(inside).log())


def erfc_hazard(v: Tensor) -> Tensor:
    """Ratio ``exp(-v^2) / erfc(v)``, finite and accurate for any finite ``v``."""
    tail = v > _TAIL[v.dtype]
    inside = torch.where(tail, 0, v)
    far = torch.where(tail, v, 10)
    asymptotic = far * math.sqrt(math.pi) / _tail_series(far)
    return torch.where(tail, asymptotic, inside.square().neg().exp() / torch.erfc(inside))


def has_tail(v: Tensor) -> bool:
    """Whether any ``erfc(v)`` is too small for plain arithmetic in the dtype of ``v``."""
    return bool(v.max() > _TAIL[v.dtype])


def _tail_series(v: Tensor) -> Tensor:
    # erfc(v) = exp(-v^2) / (v sqrt(pi)) * sum_k (-1)^k (2k - 1)!! / (2 v^2)^k; six terms leave
    # a relative error of 3e-15 at v = 25 and 2e-8 at v = 8.5: below rounding in each dtype.
    r = 0.5 / v.square()
    total = torch.ones_like(v)
    for k in (11, 9, 7, 5, 3, 1):
        total = 1 - k * r * total
    return total
