"""Probabilities that match frequencies: a slope and a shift per label on the probit scale."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import erfcx, log_ndtr, ndtr, ndtri

from mpvae.features import Matrix, dense

_PRIOR_ROWS = 20.0  # a label is moved as if it also had this many rows that need no change
_STEPS = 25
_CLOSE = 1e-6  # a step that ends the search
_ROUNDING = 1e-12  # of a sum of very many terms, as a share of it
_HALVINGS = 12  # of a step that leads to a worse place
_UNIT = np.sqrt(2 / np.pi)  # hazard of the normal distribution: _UNIT / erfcx(-v / sqrt 2)
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
    usual = np.ones(q.shape[1])
    slopes, b = _fit_each(Y, [q], weight, usual[None], usual * shift)
    return np.maximum(slopes[0], 0.05), b  # without slope there would be no ranking


def fit_weights(
    Y: Matrix, scores: Sequence[NDArray[np.float64]], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Weights w >= 0 and shifts b for which :math:`\Phi(\sum_s w_s q_s + b)` fits best.

    First for all labels together, then for each one, penalised as in `fit_probit` for moving
    away from what all have.

    Parameters
    ----------
    Y : (n, L)
        Labels, NaN where not observed.
    scores : list of S arrays of shape (n, L)
        On the probit scale, from models that have not seen the row.
    weight : (n,)
        Weights of the rows.

    Returns
    -------
    weights : ndarray of shape (S, L)
    shift : ndarray of shape (L,)
    """
    together, shift = fit_common(Y, scores, weight)
    usual = np.ones(scores[0].shape[1])
    return _fit_each(Y, scores, weight, together[:, None] * usual, shift * usual)


def _fit_each(
    Y: Matrix,
    scores: Sequence[NDArray[np.float64]],
    weight: NDArray[np.float64] | None,
    usual: NDArray[np.float64],
    usual_shift: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights (S, L) and shifts (L,) of each label on its own, beginning at the usual ones."""
    truth = dense(Y)
    n, L = truth.shape
    w = np.ones(n) if weight is None else np.asarray(weight, np.float64)
    centre = np.vstack([usual, usual_shift])  # (S + 1, L)
    found = np.empty(centre.shape)
    step = max(1, _ENTRIES // max(1, n * len(centre)))
    for begin in range(0, L, step):  # labels at a time: bounds memory
        piece = slice(begin, begin + step)
        columns = [score[:, piece].T for score in scores]
        Q = np.stack([*columns, np.ones(columns[0].shape)], axis=1)
        found[:, piece] = _newton(truth[:, piece].T, Q, w, centre[:, piece].T).T
    return found[:-1], found[-1]


def _newton(
    truth: NDArray[np.float64],
    Q: NDArray[np.float64],
    w: NDArray[np.float64],
    centre: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Coefficients (L, S + 1) of scores Q (L, S + 1, n), penalised for leaving the centre.

    All but the last are at least zero: one that reaches zero stays there as long as the
    likelihood would have it negative.
    """
    seen = ~np.isnan(truth)
    t = np.where(seen, 2 * np.nan_to_num(truth) - 1, 0.0)  # (L, n)
    eye = np.eye(centre.shape[1])

    def loss(a: NDArray[np.float64]) -> NDArray[np.float64]:
        fit = log_ndtr(t * (a[:, None] @ Q)[:, 0]) @ w
        return np.asarray(0.5 * _PRIOR_ROWS * np.square(a - centre).sum(1) - fit)

    a, before = centre, loss(centre)
    for _ in range(_STEPS):
        v = t * (a[:, None] @ Q)[:, 0]
        hazard = _UNIT / erfcx(-v / np.sqrt(2))
        gradient = (Q @ (w * t * hazard)[..., None])[..., 0] + _PRIOR_ROWS * (centre - a)
        curve = w * seen * hazard * (hazard + v)
        H = (Q * curve[:, None]) @ Q.mT + _PRIOR_ROWS * eye
        held = (a <= 0) & (gradient < 0)
        held[:, -1] = False
        H = np.where(held[:, :, None] | held[:, None], eye, H)
        step = np.linalg.solve(H, np.where(held, 0, gradient)[..., None])[..., 0]
        step /= np.maximum(1.0, np.abs(step).max(1, keepdims=True))
        length = np.ones((len(a), 1))
        for _ in range(_HALVINGS):
            moved = a + length * step
            moved[:, :-1] = np.maximum(moved[:, :-1], 0)
            after = loss(moved)
            worse = after > before + _ROUNDING * np.abs(before)
            if not worse.any():
                break
            length[worse] *= 0.5
        moved[worse] = a[worse]
        done = np.abs(moved - a).max() < _CLOSE
        a, before = moved, np.minimum(before, after)
        if done:
            break
    return a


def fit_common(
    Y: Matrix, scores: Sequence[NDArray[np.float64]], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """One weight per score (S,) and one shift, as `fit_weights` has them for all labels.

    As many rows as in `fit_probit` ask for equal weights which sum to 1. Of very many rows a
    part is enough.
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
    return found[:-1], float(found[-1])


def apply_probit(
    P: NDArray[np.float64], slope: NDArray[np.float64], shift: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Probabilities after the change, (n, L)."""
    return np.asarray(ndtr(slope * np.clip(ndtri(P), -38, 38) + shift))
