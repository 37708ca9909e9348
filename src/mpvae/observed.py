"""Labels that were not observed (NaN): how thresholds and scores of held-out rows skip them."""

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import ndtr

from mpvae import calibration, metrics
from mpvae.config import Metric
from mpvae.decisions import apply_threshold, expected_f1_thresholds, fit_threshold
from mpvae.features import Matrix, dense

_NEVER = -1.0  # score of an entry that no sensible threshold takes
_OBSERVED = 0.1  # share of what was observed in what is expected


def has_missing(Y: Matrix) -> bool:
    """Whether some labels are NaN; a sparse matrix has none."""
    return not sp.issparse(Y) and bool(np.isnan(Y).any())


def has_observed(Y: Matrix) -> bool:
    """Whether some label of some row was observed."""
    return sp.issparse(Y) or not bool(np.isnan(Y).all())


def never_observed(Y: Matrix) -> NDArray[np.int64]:
    """Positions of labels that are NaN in every row."""
    return np.flatnonzero(np.isnan(Y).all(axis=0)) if has_missing(Y) else np.empty(0, np.int64)


def prevalence(Y: Matrix, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of the rows that have each label, among those where it was observed, (L,).

    Half a row is added to either side, so that no share is 0 or 1.
    """
    total = weight.sum()
    if has_missing(Y):
        total = weight @ ~np.isnan(Y)
        Y = np.nan_to_num(Y)
    return np.asarray((np.asarray(Y.T @ weight).ravel() + 0.5) / (total + 1))


def best_threshold(
    Y: Matrix, P: NDArray[np.float64], metric: Metric, kind: str
) -> float | NDArray[np.float64]:
    """Threshold as `decisions.fit_threshold` has it, from the observed labels alone.

    ``kind="expected"``, for Hamming accuracy and macro-F1: where its expectation is highest.
    """
    if kind == "expected":
        return _expected_threshold(Y, P, metric)
    Y, P = _settled(Y, P)
    found = fit_threshold(Y, P, metric=metric, kind=kind)  # type: ignore[arg-type]
    bounded = np.maximum(found, 0.0)  # below the lowest probability it may have met _NEVER
    return float(bounded) if np.ndim(found) == 0 else bounded


def _expected_threshold(
    Y: Matrix, P: NDArray[np.float64], metric: Metric
) -> float | NDArray[np.float64]:
    """Threshold from what probabilities let expect.

    They are first brought to the observed frequencies, by a slope and a shift that all labels
    share: of a model that is too sure of itself too much would be expected. For Hamming
    accuracy a label is then taken if it is more likely than not; for macro-F1 what was
    observed counts a little too, and a label that never was has a threshold of 0.5.
    """
    truth = dense(Y).astype(np.float64)
    q = calibration.probits(P)
    (slope,), shift = calibration.fit_common(truth, [q], np.ones(len(P)))
    if metric == "hamming":
        return float(ndtr(-shift / slope)) if slope > 0 else 0.5
    believed = ndtr(slope * q + shift)
    seen = ~np.isnan(truth)
    expected = np.where(seen, (1 - _OBSERVED) * believed + _OBSERVED * truth, 0)
    found = expected_f1_thresholds(expected, np.where(seen, P, _NEVER))
    return np.where(np.nansum(truth, axis=0) > 0, np.maximum(found, 0.0), 0.5)


def decision_score(
    Y: Matrix, P: NDArray[np.float64], metric: Metric, threshold: float | NDArray[np.float64]
) -> float:
    """Value of the metric at a threshold, over the observed labels."""
    return score(Y, apply_threshold(P, threshold), metric)


def score(Y: Matrix, Z: NDArray[np.int64], metric: Metric) -> float:
    """Value of the metric for a prediction (n, L), over the observed labels; NaN if none."""
    if not has_missing(Y):
        return metrics.DECISION_METRICS[metric](Y, Z)
    rows = ~np.isnan(Y).all(axis=1)
    if not rows.any():
        return float("nan")
    missing = np.isnan(Y[rows])
    value = metrics.DECISION_METRICS[metric](
        np.where(missing, 0, Y[rows]), np.where(missing, 0, Z[rows])
    )
    if metric == "hamming":  # the others do not see a certain "absent"
        share = 1 - missing.mean()
        return float((value - (1 - share)) / share)
    return value


def log_loss(Y: Matrix, P: NDArray[np.float64]) -> float:
    """`metrics.log_loss` over the observed labels; NaN if there are none."""
    if not has_missing(Y):
        return metrics.log_loss(Y, P)
    seen = ~np.isnan(Y)
    return metrics.log_loss(Y[seen][:, None], P[seen][:, None]) if seen.any() else float("nan")


def calibration_error(Y: Matrix, P: NDArray[np.float64]) -> float:
    """`metrics.calibration_error` over the observed labels; NaN if there are none."""
    if not has_missing(Y):
        return metrics.calibration_error(Y, P)
    seen = ~np.isnan(Y)
    if not seen.any():
        return float("nan")
    return metrics.calibration_error(Y[seen][:, None], P[seen][:, None])


def _settled(Y: Matrix, P: NDArray[np.float64]) -> tuple[Matrix, NDArray[np.float64]]:
    """Unobserved labels as absent ones that no threshold takes."""
    if not has_missing(Y):
        return Y, P
    missing = np.isnan(Y)
    return np.where(missing, 0, Y), np.where(missing, _NEVER, P)
