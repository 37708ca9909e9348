"""Probabilities that match frequencies: a slope and a shift per label on the probit scale."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtr, ndtri

from mpvae.features import Matrix, dense

_PRIOR_ROWS = 20.0  # a label is moved as if it also had this many rows that need no change
_STEPS = 25
_ENTRIES = 2**21  # labels x rows that weights are fitted to, about
_FARTHEST = 8.0  # on the probit scale


def fit_probit(
    Y: Matrix, P: NDArray[np.float64], weight: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Slope a and shift b of each label for which :math:`\Phi(a\,\Phi^{-1}(p) + b)` fits best.

    Penalised maximum likelihood by Newton's method, all labels at once; the penalty
    :math:`10 [(a - 1)^2 + b^2]` stands for 20 rows that ask for no change, so that a rare
    label keeps what it has.

    Parameters
    ----------
    Y : (n, L)
        Labels of rows that were not trained on; NaN where not observed.
    P : (n, L)
        Their probabilities.
    weight : (n,), optional
        Weights of the rows.

    Returns
    -------
    slope, shift : ndarrays of shape (L,)
    """
    return fit_line(Y, probits(P), weight)


def probits(P: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities on the probit scale, within bounds."""
    return np.asarray(np.clip(ndtri(P), -_FARTHEST, _FARTHEST))


def fit_line(
    Y: Matrix,
    q: NDArray[np.float64],
    weight: NDArray[np.float64] | None = None,
    shift: NDArray[np.float64] | float = 0.0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Slope a and shift b of each label for which :math:`\Phi(a q + b)` fits best.

    As `fit_probit`, for any scores ``q`` (n, L); what needs no change is slope 1 and ``shift``.
    """
    truth = dense(Y)
    seen = ~np.isnan(truth)
    t = np.where(seen, 2 * np.nan_to_num(truth) - 1, 0.0)  # (n, L)
    w = np.ones(len(t)) if weight is None else np.asarray(weight, np.float64)
    a, b = np.ones(t.shape[1]), np.zeros(t.shape[1]) + shift
    for _ in range(_STEPS):
        v = t * (a * q + b)
        hazard = np.exp(-0.5 * v * v - log_ndtr(v)) / np.sqrt(2 * np.pi)
        slope = w[:, None] * t * hazard  # 0 where not observed
        curve = w[:, None] * seen * hazard * (hazard + v)
        gradient = np.stack([(slope * q).sum(0), slope.sum(0)])
        gradient -= _PRIOR_ROWS * np.stack([a - 1, b - shift])
        h_aa = (curve * q * q).sum(0) + _PRIOR_ROWS
        h_ab = (curve * q).sum(0)
        h_bb = curve.sum(0) + _PRIOR_ROWS
        determinant = h_aa * h_bb - h_ab**2
        step_a = (h_bb * gradient[0] - h_ab * gradient[1]) / determinant
        step_b = (h_aa * gradient[1] - h_ab * gradient[0]) / determinant
        length = np.maximum(1.0, np.abs(np.stack([step_a, step_b])).max(0))
        a, b = a + step_a / length, b + step_b / length
    return np.maximum(a, 0.05), b  # a slope below zero would turn the ranking round


def fit_weights(
    Y: Matrix, scores: Sequence[NDArray[np.float64]], weight: NDArray[np.float64]
) -> tuple[list[float], float]:
    r"""Weights w >= 0 and shift b for which :math:`\Phi(\sum_s w_s q_s + b)` fits best.

    One weight per score for all labels together: maximum likelihood, with as many rows as in
    `fit_probit` that ask for equal weights which sum to 1. Of very many rows a part is enough.

    Parameters
    ----------
    Y : (n, L)
        Labels, NaN where not observed.
    scores : list of (n, L)
        On the probit scale, from models that have not seen the row.
    weight : (n,)
        Weights of the rows.
    """
    rows = slice(None, None, max(1, scores[0].size // _ENTRIES))
    truth = dense(Y[rows])
    seen = ~np.isnan(truth)
    w = np.broadcast_to(weight[rows][:, None], truth.shape)[seen]
    t = 2 * truth[seen] - 1
    q = np.stack([score[rows][seen] for score in scores] + [np.ones(len(t))])  # (S + 1, N)
    start = np.append(np.full(len(scores), 1 / len(scores)), 0.0)

    def loss(a: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        v = t * (a @ q)
        log_p = log_ndtr(v)
        hazard = np.exp(-0.5 * v * v - log_p) / np.sqrt(2 * np.pi)
        away = _PRIOR_ROWS * (a - start)
        return float(away @ (a - start) / 2 - w @ log_p), away - q @ (w * t * hazard)

    bounds = [(0.0, None)] * len(scores) + [(None, None)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return [float(a) for a in found[:-1]], float(found[-1])


def apply_probit(
    P: NDArray[np.float64], slope: NDArray[np.float64], shift: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Probabilities after the change, (n, L)."""
    return np.asarray(ndtr(slope * np.clip(ndtri(P), -38, 38) + shift))
