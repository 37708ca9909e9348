r"""Label sets with a guarantee: which labels may be present, and which are excluded.

The set of a row holds the labels with p >= t. Held-out rows choose t so that, for new rows,

- "all": all true labels of a row are inside with probability at least `coverage`;
- "recall": the expected share of a row's true labels that are inside is at least `coverage`
  (1 for a row without true labels);
- "label": each label, where it is present, is inside with probability at least `coverage`;
  one threshold per label.

All three are one rule, conformal risk control [1]_. Raising t loses true labels: let l_i(t) be
the loss of row i, between 0 and 1 and growing with t. With n held-out rows, t is the largest
with

    l_1(t) + ... + l_n(t) + 1 <= (n + 1) (1 - coverage),

and 0, everything inside, where there is none: n is then too small for the coverage. The loss is
1[a true label has p < t] for "all", the share of true labels with p < t for "recall", and
1[p_l < t] over the rows that have label l for "label". For losses of 0 and 1 the rule is split
conformal prediction: t is the score of rank floor((n + 1)(1 - coverage)) from below, the score
of a row being the smallest probability of its true labels, or 1 where it has none.

The guarantee holds for any model and any n, on average over held-out and new rows, as long as
these are exchangeable. The held-out rows must therefore have had no part in training, and the
probabilities of new rows must be made in the same way as theirs.

References
----------
.. [1] Angelopoulos, Bates, Fisch, Lei, Schuster (2024). Conformal risk control. ICLR.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mpvae.decisions import apply_threshold
from mpvae.errors import ConfigError, DataError
from mpvae.metrics import MatrixLike, binary_matrix, check_same_shape, score_matrix

Guarantee: TypeAlias = Literal["all", "recall", "label"]

_Floats: TypeAlias = NDArray[np.float64]

_CURVES: dict[str, slice] = {"all": slice(0, 1), "recall": slice(1, 2), "label": slice(2, None)}

_MAX_POINTS = 4096  # of the curves of "all" and "recall"
_MAX_POINTS_LABEL = 256
_ROUNDING = 1e-9  # in rows: (n + 1)(1 - .9) must not miss a whole number by its last digit


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """What held-out rows say about every coverage: loss against threshold, as L + 2 curves.

    The curves of "all", of "recall" and of each label follow one another in `thresholds` and
    `lost`. They are bounded in size: at most 4096 points for the first two, 256 per label.

    Parameters
    ----------
    thresholds : (m,) in [0, 1], increasing within a curve
        Where the loss may be read off.
    lost : (m,)
        Total loss of the held-out rows at this threshold.
    lengths : (L + 2,)
        Number of points of each curve.
    counts : (L + 2,)
        Number of rows behind each curve: the n of its guarantee. For a label, its positives.
    """

    thresholds: _Floats
    lost: _Floats
    lengths: _Floats
    counts: _Floats

    @property
    def n_labels(self) -> int:
        """Number of labels L."""
        return self.lengths.size - 2

    def too_few(self, coverage: float, guarantee: Guarantee) -> NDArray[np.bool_]:
        """Where the rows are too few for the coverage, however good the model; (1,) or (L,)."""
        _check_question(coverage, guarantee)
        counts = self.counts[_CURVES[guarantee]]
        return (counts + 1) * (1 - coverage) + _ROUNDING < 1

    def threshold(self, coverage: float, guarantee: Guarantee) -> float | _Floats:
        """Largest threshold that keeps the guarantee; 0 where there are too few rows for it.

        Parameters
        ----------
        coverage : float in (0, 1)
            What is guaranteed to be inside.
        guarantee : Guarantee
            See the module.

        Returns
        -------
        float, or (L,) for "label"

        Raises
        ------
        ConfigError
            When coverage is not between 0 and 1, or the guarantee is unknown.
        """
        _check_question(coverage, guarantee)
        allowed = (self.counts + 1) * (1 - coverage) - 1 + _ROUNDING  # (L + 2,)
        curve = _curve_numbers(self.lengths)  # (m,)
        kept = self.lost <= allowed[curve]
        best = np.zeros(self.lengths.size)
        np.maximum.at(best, curve[kept], self.thresholds[kept])
        asked = best[_CURVES[guarantee]]
        return asked if guarantee == "label" else float(asked[0])

    def arrays(self) -> dict[str, _Floats]:
        """The four arrays by name, for a file."""
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Calibration from what `arrays` gave.

        Raises
        ------
        ValueError
            When the arrays cannot be those of a calibration.
        """
        reason = _fault(arrays)
        if reason:
            raise ValueError(f"not a calibration: {reason}")
        return cls(**{name: arrays[name] for name in _NAMES})


_NAMES = ("thresholds", "lost", "lengths", "counts")


def calibrate(Y: MatrixLike, P: MatrixLike) -> Calibration:
    """Calibration of label sets on held-out rows, for every coverage and guarantee at once.

    An unobserved label is not a true label, and a row without any observed label is left out:
    the guarantees are about observed labels. That of "label" carries over to unobserved ones
    if, among the rows that have the label, observing it does not depend on its probability.

    Parameters
    ----------
    Y : (n, L) in {0, 1, NaN}
        The truth of held-out rows, dense or sparse; NaN means "not observed".
    P : (n, L) in [0, 1]
        Their probabilities.

    Returns
    -------
    Calibration

    Raises
    ------
    DataError
        When shapes differ, Y holds anything but 0, 1 and NaN, or P anything but probabilities.
    """
    (truth, observed), p = _truth_and_observed(Y), _probabilities(P)
    check_same_shape(truth, p, "P")
    n_rows = int(observed.any(axis=1).sum())
    n_true = truth.sum(axis=1)  # (n,)
    row_scores = np.where(truth, p, 1.0).min(axis=1)[n_true > 0]
    rows, _ = np.nonzero(truth)
    curves = [
        _curve(row_scores, np.ones(row_scores.size), _MAX_POINTS),
        _curve(p[truth], 1 / n_true[rows], _MAX_POINTS),
    ]
    for y_l, p_l in zip(truth.T, p.T, strict=True):
        curves.append(_curve(p_l[y_l], np.ones(int(y_l.sum())), _MAX_POINTS_LABEL))
    return Calibration(
        thresholds=np.concatenate([t for t, _ in curves]),
        lost=np.concatenate([lost for _, lost in curves]),
        lengths=np.array([t.size for t, _ in curves], dtype=np.float64),
        counts=np.array([n_rows, n_rows, *truth.sum(axis=0)], dtype=np.float64),
    )


def label_sets(P: MatrixLike, threshold: float | _Floats) -> NDArray[np.int64]:
    """Labels that may be present, 1[p_ij >= t_j]; all others are excluded.

    Parameters
    ----------
    P : (n, L) in [0, 1]
        Probabilities; compared in float64.
    threshold : float or (L,)
        From `Calibration.threshold`.

    Returns
    -------
    (n, L) in {0, 1}

    Raises
    ------
    DataError
        When P holds anything but probabilities, or the thresholds are not one per label.
    """
    return apply_threshold(_probabilities(P), threshold)


def coverage_report(Y: MatrixLike, sets: MatrixLike) -> dict[str, float]:
    """Shares of true labels found inside the sets, and the mean size of the sets.

    Standard errors are those of the rows given here. They leave out the chance in the held-out
    rows: about sqrt(coverage (1 - coverage) / n) more for "all" with n held-out rows.

    Parameters
    ----------
    Y : (n, L) in {0, 1, NaN}
        The truth; NaN means "not observed", and a row without any observed label is left out.
    sets : (n, L) in {0, 1}
        From `label_sets`.

    Returns
    -------
    dict of str to float
        "all": share of rows with all true labels inside. "recall": mean over rows of the share
        of true labels inside, 1 for rows without true labels. "label": mean over the labels
        that have positives of the share of these inside. "size": mean number of labels inside,
        over all rows. "all_se" and so on: their standard errors. NaN where there are no rows or
        no positives to average over, and for standard errors from one row.

    Raises
    ------
    DataError
        When shapes differ, Y holds anything but 0, 1 and NaN, or sets anything but 0 and 1.
    """
    (truth, observed), inside = _truth_and_observed(Y), binary_matrix(sets, "sets")
    check_same_shape(truth, inside, "sets")
    size = inside.sum(axis=1).astype(np.float64)  # (n,)
    seen = observed.any(axis=1)
    truth, inside = truth[seen], inside[seen]
    n_true = truth.sum(axis=1)  # (n,)
    missed = (truth & ~inside).sum(axis=1)  # (n,)
    present = truth.any(axis=0)
    y, found = truth[:, present], (truth & inside)[:, present]  # (n, L')
    n_l = y.sum(axis=0)  # (L',)
    share = found.sum(axis=0) / n_l  # (L',)
    # A mean of ratios: to first order it varies as the sum over rows of these effects.
    effect = ((found - share * y) / (n_l * max(n_l.size, 1))).sum(axis=1)  # (n,)
    values = {
        "all": (missed == 0).astype(np.float64),
        "recall": 1 - missed / np.maximum(n_true, 1),
        "label": effect * y.shape[0] if n_l.size else np.empty(0),
        "size": size,
    }
    report = {name: float(v.mean()) if v.size else np.nan for name, v in values.items()}
    if n_l.size:
        report["label"] = float(share.mean())
    for name, v in values.items():
        report[f"{name}_se"] = float(v.std(ddof=1) / v.size**0.5) if v.size > 1 else np.nan
    return report


# ---------------------------------------------------------------- curves


def _curve(scores: _Floats, losses: _Floats, limit: int) -> tuple[_Floats, _Floats]:
    """Thresholds (k,) and the total loss at each (k,), of losses (m,) due above scores (m,).

    Between scores nothing changes, and at a score nothing is lost yet: the largest threshold
    for any bound on the loss is a score, or 1.
    """
    thresholds, at = np.unique(np.append(scores, 1.0), return_inverse=True)
    due = np.bincount(at, weights=np.append(losses, 0.0))  # (k,)
    lost = np.append(0.0, np.cumsum(due)[:-1])
    kept = _kept_points(lost, limit)
    return thresholds[kept], lost[kept]


def _kept_points(lost: _Floats, limit: int) -> NDArray[np.intp]:
    """Points of a curve to keep, at most `limit`.

    Dropping points is safe: the largest kept threshold within a bound on the loss is at most
    the largest of all, so sets can only grow, and with them what is inside.

    Kept are the answers to a grid of bounds g on the loss, so the answer to a bound between two
    of them is the exact answer to the lower one, that is, to a higher coverage. In mean steps
    of the loss the grid is 0, 1, ..., e and from there geometric with steps of about g / e,
    for 1 - coverage to lose the same small share of itself, 1 / e, at every coverage. As many
    as e + e log(steps / e) points are needed, which gives e.
    """
    steps = lost.size - 1
    if steps < limit:
        return np.arange(lost.size)
    e = np.arange(1, limit)
    exact = int(e[e * (1 + np.log(steps / e)) <= limit - 1].max())
    coarse = np.geomspace(exact, steps, limit - exact)[1:]
    grid = np.concatenate([np.arange(exact + 1), coarse]) * (lost[-1] / steps)
    return np.unique(np.searchsorted(lost, grid, side="right") - 1)


def _curve_numbers(lengths: _Floats) -> NDArray[np.intp]:
    """Number of the curve that each point belongs to, (m,)."""
    return np.repeat(np.arange(lengths.size), lengths.astype(np.intp))


# ---------------------------------------------------------------- checks


def _truth_and_observed(Y: MatrixLike) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where a label is known to be present, and where it is known at all: (n, L) both."""
    dense: Any = Y.toarray() if sparse.issparse(Y) else Y  # type: ignore[union-attr]
    labels = np.asarray(dense)
    if labels.dtype == object:  # a data frame of mixed columns
        with contextlib.suppress(TypeError, ValueError):  # refused just below
            labels = labels.astype(np.float64)
    if labels.dtype.kind != "f":
        truth = binary_matrix(labels, "Y")
        return truth, np.ones_like(truth)
    missing = np.isnan(labels)
    return binary_matrix(np.where(missing, 0, labels), "Y"), ~missing


def _probabilities(P: MatrixLike) -> _Floats:
    p = score_matrix(P, "P")
    if p.min() < 0 or p.max() > 1:
        raise DataError(
            f"P must hold probabilities between 0 and 1, got values from {p.min():g} to "
            f"{p.max():g}"
        )
    return p


def _fault(arrays: Mapping[str, NDArray[Any]]) -> str | None:
    """Why these arrays cannot be a calibration, or None."""
    if set(arrays) != set(_NAMES):
        return f"needs the arrays {', '.join(_NAMES)}, got {', '.join(sorted(arrays))}"
    for name, a in arrays.items():
        if not isinstance(a, np.ndarray) or a.dtype != np.float64 or a.ndim != 1:
            return f"{name} must be a float64 vector"
        if not np.isfinite(a).all():
            return f"{name} must be finite"
    t, lost, lengths, counts = (arrays[name] for name in _NAMES)
    if lengths.size < 3 or counts.size != lengths.size:
        return "lengths and counts must be of equal size, at least 3"
    if lost.size != t.size:
        return "thresholds and lost must be of equal size"
    if not _whole(lengths, 1, t.size) or lengths.sum() != t.size:
        return "lengths must be whole, at least 1, and add up to the number of thresholds"
    if not _whole(counts, 0, 2.0**53):  # up to there float64 counts without gaps
        return "counts must be whole and not negative"
    if counts[1] != counts[0] or (counts[2:] > counts[0]).any():
        return "counts must start with the number of rows, twice, and not exceed it"
    if t.min() < 0 or t.max() > 1:
        return "thresholds must be in [0, 1]"
    curve = _curve_numbers(lengths)
    # The loss of a row is at most 1; sums of shares carry a rounding error.
    if lost.min() < 0 or (lost > counts[curve] * (1 + 1e-9)).any():
        return "lost must be between 0 and counts"
    within = curve[1:] == curve[:-1]
    if (np.diff(t)[within] <= 0).any() or (np.diff(lost)[within] < 0).any():
        return "thresholds must increase, and lost not decrease, within each curve"
    return None


def _whole(a: _Floats, low: float, high: float) -> bool:
    return bool(((a >= low) & (a <= high) & (a == np.floor(a))).all())


def _check_question(coverage: float, guarantee: Guarantee) -> None:
    if guarantee not in _CURVES:
        raise ConfigError(f"guarantee must be one of {', '.join(_CURVES)}, got {guarantee!r}")
    if not (isinstance(coverage, Real) and 0 < coverage < 1):
        raise ConfigError(f"coverage must be in (0, 1), as 0.9, got {coverage!r}")
