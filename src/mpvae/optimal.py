"""The best 0/1 answer under a joint distribution, for metrics not decided label by label.

The expected F1 of a row and the probability that all its labels are right depend on how labels
go together, so no threshold on the marginals finds the best answer. Here a row's distribution
is given by S draws with weights w_s >= 0 that sum to 1: either label vectors y_s, or
probabilities p_s of labels that are independent given the draw,

    P(y) = sum_s w_s prod_l p_sl^y_l (1 - p_sl)^(1 - y_l).
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
_WEIGHT_SUM = 1e-5  # how far the weights of a row may be from 1 in sum: float32 rounding


# ---------------------------------------------------------------- expected F1


def best_for_f1(
    samples: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    empty_value: float = 1.0,
    max_size: int | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Labels of each row with the highest expected F1, 2|y ∩ z| / (|y| + |z|).

    The general F-measure maximiser (Dembczyński, Waegeman, Cheng, Hüllermeier 2011; Waegeman et
    al. 2014): exact for the distribution that the draws and their weights form. Among answers
    with a labels, the best takes those with the highest
    Delta_la = sum_s w_s y_sl 2 / (|y_s| + a), and its value is their sum.

    Parameters
    ----------
    samples : (n, S, L) in {0, 1}, integer or bool
        Label vectors drawn from each row's distribution.
    weight : (n, S), optional
        Their weights, at least 0, with sum 1 in each row (up to 1e-5, which is divided out);
        equal when not given.
    empty_value : float in [0, 1], default 1
        F1 of the empty answer where y is empty too. 1 is the usual convention.
        `metrics.example_f1` leaves such rows out of its mean, which is the same as giving them
        the mean: for it, pass the mean F1 that is expected.
    max_size : int, optional
        Most labels in an answer; all L when not given.

    Returns
    -------
    decided : (n, L) in {0, 1}
        Of equally good answers the one with fewest labels, then with the lowest indices.
    expected : (n,)
        Its expected F1.

    Raises
    ------
    DataError
        When the samples are not 0/1 of shape (n, S, L), or the weights do not fit them.
    ConfigError
        When `empty_value` is outside [0, 1] or `max_size` below 1.
    """
    draws = _checked_binary(samples, "samples", ndim=(3,))
    n_rows, n_draws, n_labels = draws.shape
    w = _checked_weight(weight, n_rows, n_draws)
    if not 0 <= empty_value <= 1:
        raise ConfigError(f"empty_value must be between 0 and 1, got {empty_value}")
    if max_size is not None and max_size < 1:
        raise ConfigError(f"max_size must be at least 1, got {max_size}; leave it out for L")
    limit = n_labels if max_size is None else min(max_size, n_labels)

    decided = np.empty((n_rows, n_labels), dtype=np.int64)
    expected = np.empty(n_rows)
    for rows in _pieces(n_rows, max(n_draws, _BLOCK) * n_labels):
        y = draws[rows].astype(np.float64)
        decided[rows], expected[rows] = _best_sets(y, w[rows], empty_value, limit)
    return decided, expected


def _best_sets(
    y: NDArray[np.float64], w: NDArray[np.float64], empty_value: float, limit: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Best answers and their values for a few rows; y is (r, S, L), w is (r, S)."""
    n_true = y.sum(axis=2)  # (r, S)
    best = empty_value * np.where(n_true == 0, w, 0.0).sum(axis=1)  # (r,), of the empty answer
    size = np.zeros(len(y), dtype=np.int64)  # (r,)

    # The largest sample does not bound the best size: where exactly one of L labels is true,
    # each as likely, all L labels score 2 / (L + 1) and one label 1 / L. But Delta_la is at
    # most 2 p_l / (1 + a), as |y| >= 1 where y_l = 1; so with the marginals p in falling order
    # no answer of size a scores more than 2 (p_1 + ... + p_a) / (1 + a). Rows whose best so far
    # is no less than this for all larger sizes are done.
    sizes = np.arange(1, limit + 1)
    marginal = -np.sort(-_weighted(w[:, None], y)[:, 0], axis=1)[:, :limit]  # (r, A)
    bound = 2 * np.cumsum(marginal, axis=1) / (1 + sizes)
    bound = np.maximum.accumulate(bound[:, ::-1], axis=1)[:, ::-1]  # of this size or larger

    for first in range(0, limit, _BLOCK):
        rows = np.flatnonzero(bound[:, first] > best + _SAME)
        if not rows.size:
            break
        a = sizes[first : first + _BLOCK]  # (A,)
        coefficient = 2 * w[rows, None] / (n_true[rows, None] + a[:, None])  # (r, A, S)
        delta = _weighted(coefficient, y if rows.size == len(y) else y[rows])  # (r, A, L)
        value = _sums_of_largest(delta, a)  # (r, A)
        for i in range(a.size):
            better = value[:, i] > best[rows] + _SAME
            best[rows[better]] = value[better, i]
            size[rows[better]] = a[i]

    coefficient = 2 * w / np.maximum(n_true + size[:, None], 1)
    delta = _weighted(coefficient[:, None], y)[:, 0]  # (r, L)
    taken = _largest(delta, size)
    value = np.where(taken, delta, 0.0).sum(axis=1)
    return taken, np.where(size > 0, value, best)


def _weighted(coefficient: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums over draws, (r, A, S) times (r, S, L) to (r, A, L)."""
    return np.asarray(np.matmul(coefficient, y))


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


def log_mixture(
    y: ArrayLike, prob: ArrayLike, weight: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Log-probability of label vectors, log sum_s w_s prod_l p_sl^y_l (1 - p_sl)^(1 - y_l).

    Parameters
    ----------
    y : (n, L) or (n, C, L) in {0, 1}, integer or bool
        One or C label vectors per row.
    prob : (n, S, L) in [0, 1]
        P(y_l = 1) in each draw; clipped to [1e-12, 1 - 1e-12], so that the value is finite.
    weight : (n, S), optional
        Weights of the draws, as in `best_for_f1`.

    Returns
    -------
    (n,) or (n, C)

    Raises
    ------
    DataError
        When shapes do not fit, y is not 0/1, or probabilities or weights are impossible.
    """
    p = _checked_prob(prob)
    n_rows, n_draws, n_labels = p.shape
    w = _checked_weight(weight, n_rows, n_draws)
    vectors = _checked_binary(y, "y", ndim=(2, 3))
    if (vectors.shape[0], vectors.shape[-1]) != (n_rows, n_labels):
        raise DataError(
            f"y has shape {vectors.shape} but prob has {n_rows} rows and {n_labels} labels; "
            "give one or several label vectors for each row"
        )
    several = vectors if vectors.ndim == 3 else vectors[:, None]  # (n, C, L)
    value = np.empty(several.shape[:2])
    for rows in _pieces(n_rows, n_draws * n_labels):
        value[rows] = _log_mixture(several[rows], *_logits(p[rows], w[rows]))
    return value.reshape(vectors.shape[:-1])


def mode(
    prob: ArrayLike, weight: ArrayLike | None = None, *, n_starts: int = 5
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Labels of each row that are most probable together: the best answer for subset accuracy.

    A local search. Each draw rounded at 1/2, and the marginals rounded, are ranked by their
    probability under the mixture; from the `n_starts` best distinct ones, the label whose flip
    raises the probability most is flipped until none raises it. Exact for one draw, or where
    one draw dominates; otherwise no single flip improves the answer, nor is any rounded draw
    better.

    Parameters
    ----------
    prob : (n, S, L) in [0, 1]
        P(y_l = 1) in each draw, labels independent given the draw.
    weight : (n, S), optional
        Weights of the draws, as in `best_for_f1`.
    n_starts : int, default 5
        Searches per row; at most S + 1 candidates are there to start from.

    Returns
    -------
    decided : (n, L) in {0, 1}
    log_prob : (n,)
        Its log-probability, as `log_mixture` has it.

    Raises
    ------
    DataError
        When shapes do not fit, or probabilities or weights are impossible.
    ConfigError
        When `n_starts` is below 1.
    """
    p = _checked_prob(prob)
    n_rows, n_draws, n_labels = p.shape
    w = _checked_weight(weight, n_rows, n_draws)
    if n_starts < 1:
        raise ConfigError(f"n_starts must be at least 1, got {n_starts}")
    n_starts = min(n_starts, n_draws + 1)
    decided = np.empty((n_rows, n_labels), dtype=np.int64)
    log_prob = np.empty(n_rows)
    for rows in _pieces(n_rows, (n_draws + 1) * max(n_draws, n_labels)):
        marginal = _weighted(w[rows, None], p[rows].astype(np.float64))
        candidates = np.concatenate([p[rows] > 0.5, marginal > 0.5], axis=1)  # (r, S + 1, L)
        logit, base = _logits(p[rows], w[rows])
        starts = _best_distinct(candidates, _log_mixture(candidates, logit, base), n_starts)
        y = _ascend(starts, logit, base)  # (r, n_starts, L)
        value = _log_mixture(y, logit, base)
        best = value.argmax(axis=1)[:, None]
        decided[rows] = np.take_along_axis(y, best[:, :, None], axis=1)[:, 0]
        log_prob[rows] = np.take_along_axis(value, best, axis=1)[:, 0]
    return decided, log_prob


def _logits(
    prob: NDArray[np.floating], w: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Slope (r, S, L) and base (r, S) of log w_s P(y | s), which is linear in y.

    The slopes are the logits of the probabilities; the base is the value at y = 0.
    """
    p = np.clip(prob.astype(np.float64), _NEAR_ZERO, 1 - _NEAR_ZERO)
    log_not = np.log1p(-p)
    with np.errstate(divide="ignore"):  # a draw without weight: log 0 = -inf is right
        return np.log(p) - log_not, np.log(w) + log_not.sum(axis=2)


def _log_joint(
    y: NDArray[np.bool_], logit: NDArray[np.float64], base: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Logarithm of w_s P(y | s), (r, C, L) to (r, C, S)."""
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
        gain = np.where(
            now, _weighted(given, inverse[moving]), _weighted(given, odds[moving])
        )  # (m, C, L)
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


def _checked_binary(
    values: ArrayLike, name: str, *, ndim: tuple[int, ...]
) -> NDArray[np.bool_]:
    array = np.asarray(values)
    if array.ndim not in ndim or 0 in array.shape[1:]:
        wanted = "(n, L) or (n, C, L)" if 2 in ndim else "(n, S, L)"
        raise DataError(f"{name} must have shape {wanted}, only n may be 0, got {array.shape}")
    if array.dtype.kind not in "biu":
        raise DataError(
            f"{name} must be integers or bool, got {array.dtype}; convert 0/1 with astype(bool)"
        )
    if array.size and (array.min() < 0 or array.max() > 1):
        raise DataError(
            f"{name} must be 0 or 1, got {array.min()} to {array.max()}; pass label vectors"
        )
    return array.astype(np.bool_, copy=False)


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


def _checked_weight(weight: ArrayLike | None, n_rows: int, n_draws: int) -> NDArray[np.float64]:
    if weight is None:
        return np.full((n_rows, n_draws), 1 / n_draws)
    w = np.asarray(weight, dtype=np.float64)
    if w.shape != (n_rows, n_draws):
        raise DataError(
            f"weight has shape {w.shape} but there are {n_rows} rows of {n_draws} draws; "
            f"give one weight per draw, ({n_rows}, {n_draws})"
        )
    total = w.sum(axis=1, keepdims=True)
    if not ((w >= 0).all() and (np.abs(total - 1) <= _WEIGHT_SUM).all()):  # also where NaN
        raise DataError(
            "weight must be at least 0 with sum 1 in each row; divide each row by its sum"
        )
    return np.asarray(w / total)
