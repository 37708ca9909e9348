"""The best 0/1 answer under a joint distribution, for metrics not decided label by label.

The expected F1 of a row and the probability that all its labels are right depend on how labels
go together, so no threshold on the marginals finds the best answer. Here a row's distribution
is given by S equally likely draws: either label vectors y_s, or probabilities p_s of labels
that are independent given the draw,

    P(y) = 1/S sum_s prod_l p_sl^y_l (1 - p_sl)^(1 - y_l).
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpvae.errors import ConfigError, DataError

_ENTRIES = 2**22  # of a work array, at most (or one row's, where that is more)
_BLOCK = 16  # sizes of the answer tried at once
_SAME = 1e-13  # expected F1s nearer than this differ by rounding only
_GAIN = 1 + 1e-9  # a flip must make the answer this much more probable: rounding cannot cycle
_NEAR_ZERO = 1e-12  # probabilities are kept this far from 0 and 1 in logarithms
_STARTS = 5  # searches for the most probable labels of a row


# ---------------------------------------------------------------- expected F1


def best_for_f1(
    samples: ArrayLike, *, empty_value: float = 1.0
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Labels of each row with the highest expected F1, 2|y ∩ z| / (|y| + |z|).

    The general F-measure maximiser (Dembczyński, Waegeman, Cheng, Hüllermeier 2011; Waegeman et
    al. 2014): exact for the distribution that the draws form. Among answers with a labels, the
    best takes those with the highest Delta_la = 1/S sum_s y_sl 2 / (|y_s| + a), and its value
    is their sum.

    Parameters
    ----------
    samples : (n, S, L) in {0, 1}, integer or bool
        Label vectors drawn from each row's distribution.
    empty_value : float in [0, 1], default 1
        F1 of the empty answer where y is empty too. 1 is the usual convention.
        `metrics.example_f1` leaves such rows out of its mean, which is the same as giving them
        the mean: for it, pass the mean F1 that is expected.

    Returns
    -------
    decided : (n, L) in {0, 1}
        Of equally good answers the one with fewest labels, then with the lowest indices.
    expected : (n,)
        Its expected F1.

    Raises
    ------
    DataError
        When the samples are not 0/1 of shape (n, S, L).
    ConfigError
        When `empty_value` is outside [0, 1].
    """
    draws = _checked_samples(samples)
    n_rows, n_draws, n_labels = draws.shape
    if not 0 <= empty_value <= 1:
        raise ConfigError(f"empty_value must be between 0 and 1, got {empty_value}")

    decided = np.empty((n_rows, n_labels), dtype=np.int64)
    expected = np.empty(n_rows)
    for rows in _pieces(n_rows, max(n_draws, _BLOCK) * n_labels):
        decided[rows], expected[rows] = _best_sets(draws[rows].astype(np.float64), empty_value)
    return decided, expected


def _best_sets(
    y: NDArray[np.float64], empty_value: float
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Best answers and their values for a few rows; y is (r, S, L)."""
    n_rows, n_draws, n_labels = y.shape
    n_true = y.sum(axis=2)  # (r, S)
    best = empty_value * (n_true == 0).mean(axis=1)  # (r,), of the empty answer
    size = np.zeros(n_rows, dtype=np.int64)  # (r,)

    # The largest sample does not bound the best size: where exactly one of L labels is true,
    # each as likely, all L labels score 2 / (L + 1) and one label 1 / L. But Delta_la is at
    # most 2 p_l / (1 + a), as |y| >= 1 where y_l = 1; so with the marginals p in falling order
    # no answer of size a scores more than 2 (p_1 + ... + p_a) / (1 + a). Rows whose best so far
    # is no less than this for all larger sizes are done.
    sizes = np.arange(1, n_labels + 1)
    marginal = -np.sort(-y.mean(axis=1), axis=1)  # (r, L)
    bound = 2 * np.cumsum(marginal, axis=1) / (1 + sizes)
    bound = np.maximum.accumulate(bound[:, ::-1], axis=1)[:, ::-1]  # of this size or larger

    for first in range(0, n_labels, _BLOCK):
        rows = np.flatnonzero(bound[:, first] > best + _SAME)
        if not rows.size:
            break
        a = sizes[first : first + _BLOCK]  # (A,)
        coefficient = 2 / n_draws / (n_true[rows, None] + a[:, None])  # (r, A, S)
        delta = coefficient @ (y if rows.size == n_rows else y[rows])  # (r, A, L)
        value = _sums_of_largest(delta, a)  # (r, A)
        for i in range(a.size):
            better = value[:, i] > best[rows] + _SAME
            best[rows[better]] = value[better, i]
            size[rows[better]] = a[i]

    coefficient = 2 / n_draws / np.maximum(n_true + size[:, None], 1)  # (r, S)
    delta = (coefficient[:, None] @ y)[:, 0]  # (r, L)
    taken = _largest(delta, size)
    value = np.where(taken, delta, 0.0).sum(axis=1)
    return taken, np.where(size > 0, value, best)


def _sums_of_largest(
    delta: NDArray[np.float64], sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """For the i-th size a, the sum of the a largest of delta[:, i]; (r, A, L) to (r, A)."""
    rest = delta.shape[2] - sizes[-1]
    top = np.partition(delta, rest, axis=2)[:, :, rest:]
    top = np.sort(top, axis=2)[:, :, ::-1]
    return np.asarray(np.cumsum(top, axis=2)[:, np.arange(sizes.size), sizes - 1])


def _largest(delta: NDArray[np.float64], size: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The `size` largest of each row, equal ones from the left; (r, L)."""
    last = np.take_along_axis(
        -np.sort(-delta, axis=1), np.maximum(size - 1, 0)[:, None], axis=1
    )
    above = delta > last + _SAME
    level = ~above & (delta >= last - _SAME)
    n_missing = (size - above.sum(axis=1))[:, None]
    chosen = above | (level & (np.cumsum(level, axis=1) <= n_missing))
    return np.asarray(chosen & (size > 0)[:, None])


# ---------------------------------------------------------------- the most probable labels


def mode(prob: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Labels of each row that are most probable together: the best answer for subset accuracy.

    A local search. Each draw rounded at 1/2, and the marginals rounded, are ranked by their
    probability under the mixture; from the five best distinct ones, the label whose flip raises
    the probability most is flipped until none raises it. Exact for one draw, or where one draw
    dominates; otherwise no single flip improves the answer, nor is any rounded draw better.

    Parameters
    ----------
    prob : (n, S, L) in [0, 1]
        P(y_l = 1) in each draw, labels independent given the draw; clipped to
        [1e-12, 1 - 1e-12].

    Returns
    -------
    decided : (n, L) in {0, 1}
    log_prob : (n,)
        Its log-probability.

    Raises
    ------
    DataError
        When `prob` does not hold probabilities of shape (n, S, L).
    """
    p = _checked_prob(prob)
    n_rows, n_draws, n_labels = p.shape
    n_starts = min(_STARTS, n_draws + 1)
    decided = np.empty((n_rows, n_labels), dtype=np.int64)
    log_prob = np.empty(n_rows)
    for rows in _pieces(n_rows, (n_draws + 1) * max(n_draws, n_labels)):
        marginal = p[rows].mean(axis=1, dtype=np.float64, keepdims=True)
        candidates = np.concatenate([p[rows] > 0.5, marginal > 0.5], axis=1)  # (r, S + 1, L)
        logit, base = _logits(p[rows])
        starts = _best_distinct(candidates, _log_mixture(candidates, logit, base), n_starts)
        y = _ascend(starts, logit, base)  # (r, n_starts, L)
        value = _log_mixture(y, logit, base)
        best = value.argmax(axis=1)[:, None]
        decided[rows] = np.take_along_axis(y, best[:, :, None], axis=1)[:, 0]
        log_prob[rows] = np.take_along_axis(value, best, axis=1)[:, 0]
    return decided, log_prob


def _logits(
    prob: NDArray[np.floating],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Slope (r, S, L) and base (r, S) of log P(s, y), which is linear in y.

    The slopes are the logits of the probabilities; the base is the value at y = 0.
    """
    p = np.clip(prob.astype(np.float64), _NEAR_ZERO, 1 - _NEAR_ZERO)
    log_not = np.log1p(-p)
    return np.log(p) - log_not, np.log(1 / p.shape[1]) + log_not.sum(axis=2)


def _log_joint(
    y: NDArray[np.bool_], logit: NDArray[np.float64], base: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Logarithm of P(s, y), (r, C, L) to (r, C, S)."""
    y_float = y.astype(np.float64)
    return np.asarray(np.matmul(y_float, logit.transpose(0, 2, 1)) + base[:, None])


def _log_mixture(
    y: NDArray[np.bool_], logit: NDArray[np.float64], base: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Logarithm of P(y), (r, C, L) to (r, C), a few vectors at a time."""
    n_rows, n_vectors, n_labels = y.shape
    value = np.empty((n_rows, n_vectors))
    for some in _pieces(n_vectors, n_rows * max(n_labels, base.shape[1])):
        joint = _log_joint(y[:, some], logit, base)
        highest = joint.max(axis=2, keepdims=True)
        value[:, some] = highest[:, :, 0] + np.log(np.exp(joint - highest).sum(axis=2))
    return value


def _best_distinct(
    candidates: NDArray[np.bool_], value: NDArray[np.float64], n_starts: int
) -> NDArray[np.bool_]:
    """The best candidates of each row without repeats, (r, n_starts, L).

    A row with fewer distinct ones has its best again in the places left.
    """
    order = np.argsort(-value, axis=1, kind="stable")
    packed = np.packbits(candidates, axis=2)
    chosen = np.repeat(order[:, :1], n_starts, axis=1)
    for i, ranked in enumerate(order):
        first: dict[bytes, int] = {}
        for c in ranked:
            first.setdefault(packed[i, c].tobytes(), c)
            if len(first) == n_starts:
                break
        chosen[i, : len(first)] = list(first.values())
    return np.take_along_axis(candidates, chosen[:, :, None], axis=1)


def _ascend(
    y: NDArray[np.bool_], logit: NDArray[np.float64], base: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Label vectors (r, C, L) after flips, the best one first, until no flip improves."""
    y = y.copy()
    odds = np.exp(logit)  # (r, S, L)
    inverse = np.exp(-logit)
    moving = np.arange(len(y))
    while moving.size:
        now = y[moving]  # (m, C, L)
        joint = _log_joint(now, logit[moving], base[moving])
        given = np.exp(joint - joint.max(axis=2, keepdims=True))
        given /= given.sum(axis=2, keepdims=True)  # P(s | y), (m, C, S)
        # P(y with l flipped) / P(y) is the mean over P(s | y) of the flip's odds in draw s.
        gain = np.where(now, given @ inverse[moving], given @ odds[moving])  # (m, C, L)
        label = gain.argmax(axis=2)[:, :, None]
        better = np.take_along_axis(gain, label, axis=2) > _GAIN  # (m, C, 1)
        np.put_along_axis(now, label, np.take_along_axis(now, label, axis=2) ^ better, axis=2)
        y[moving] = now
        moving = moving[better.any(axis=(1, 2))]
    return y


# ---------------------------------------------------------------- pieces and checks


def _pieces(n: int, entries_each: int) -> Iterator[slice]:
    """Slices of n things that need `entries_each` entries of a work array each."""
    step = max(1, _ENTRIES // max(entries_each, 1))
    for start in range(0, n, step):
        yield slice(start, start + step)


def _checked_samples(samples: ArrayLike) -> NDArray[np.bool_]:
    y = np.asarray(samples)
    if y.ndim != 3 or 0 in y.shape[1:]:
        raise DataError(f"samples must have shape (n, S, L), only n may be 0, got {y.shape}")
    if y.dtype.kind not in "biu":
        raise DataError(
            f"samples must be integers or bool, got {y.dtype}; convert 0/1 with astype(bool)"
        )
    if y.size and (y.min() < 0 or y.max() > 1):
        raise DataError(
            f"samples must be 0 or 1, got {y.min()} to {y.max()}; pass label vectors"
        )
    return y.astype(np.bool_, copy=False)


def _checked_prob(prob: ArrayLike) -> NDArray[np.floating]:
    p = np.asarray(prob)
    if p.dtype.kind != "f":
        p = p.astype(np.float64)
    if p.ndim != 3 or 0 in p.shape[1:]:
        raise DataError(f"prob must have shape (n, S, L), only n may be 0, got {p.shape}")
    if p.size and not (p.min() >= 0 and p.max() <= 1):  # also where one is NaN
        raise DataError(
            f"prob must lie in [0, 1] without NaN, got {p.min()} to {p.max()}; "
            "pass probabilities, not scores"
        )
    return p
