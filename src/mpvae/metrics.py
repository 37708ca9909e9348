"""How good predictions are: every metric of the benchmark, one implementation for all methods.

Throughout, Y is the truth (n, L) in {0, 1}, Z a prediction (n, L) in {0, 1}, and P holds scores
(n, L), higher meaning more likely. Where a metric needs probabilities, its docstring says so.
Arrays of bool, int or float, nested lists, data frames and scipy sparse matrices are all taken.
"""

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.metrics import (
    average_precision_score,
    coverage_error,
    label_ranking_average_precision_score,
    label_ranking_loss,
    roc_auc_score,
)

from mpvae.config import Metric
from mpvae.errors import ConfigError, DataError

MatrixLike: TypeAlias = ArrayLike | sparse.sparray | sparse.spmatrix


# ---------------------------------------------------------------- metrics of 0/1 predictions


def example_f1(Y: MatrixLike, Z: MatrixLike) -> float:
    """Mean over rows of the row's F1, 2|Y ∩ Z| / (|Y| + |Z|).

    Rows where truth and prediction are both empty are left out of the mean, as in the authors'
    evaluation code (scikit-learn keeps them); when every row is left out the value is 1.
    """
    truth, taken = _truth_and_prediction(Y, Z)
    hits, size = _hits_and_size(truth, taken, axis=1)
    counted = size > 0
    if not counted.any():
        return 1.0
    return float(np.mean(2 * hits[counted] / size[counted]))


def micro_f1(Y: MatrixLike, Z: MatrixLike) -> float:
    """F1 of all n L entries pooled, 2 TP / (2 TP + FP + FN); 0 when the denominator is 0."""
    truth, taken = _truth_and_prediction(Y, Z)
    hits, size = _hits_and_size(truth, taken, axis=None)
    return float(2 * hits / size) if size > 0 else 0.0


def macro_f1(Y: MatrixLike, Z: MatrixLike) -> float:
    """Mean over labels of the label's F1, 2 TP_j / (2 TP_j + FP_j + FN_j).

    A label with neither a positive nor a predicted positive counts 0, as in the authors' code.
    """
    truth, taken = _truth_and_prediction(Y, Z)
    hits, size = _hits_and_size(truth, taken, axis=0)
    return float(np.mean(2 * hits / np.maximum(size, 1)))


def hamming_accuracy(Y: MatrixLike, Z: MatrixLike) -> float:
    """Share of the n L entries predicted right, mean of 1[y_ij = z_ij]."""
    truth, taken = _truth_and_prediction(Y, Z)
    return float(np.mean(truth == taken))


def subset_accuracy(Y: MatrixLike, Z: MatrixLike) -> float:
    """Share of rows whose labels are all predicted right, mean over i of 1[y_i = z_i]."""
    truth, taken = _truth_and_prediction(Y, Z)
    return float(np.mean(np.all(truth == taken, axis=1)))


# ---------------------------------------------------------------- metrics of scores


def precision_at_k(Y: MatrixLike, P: MatrixLike, k: int) -> float:
    """Share of true labels among the k highest scores of each row, mean over rows.

    Always divided by k, also where a row has fewer than k true labels. Equal scores are taken
    in label order, so the value does not depend on the machine.

    Raises
    ------
    DataError
        When k is below 1 or above the number of labels.
    """
    truth, scores = _truth_and_scores(Y, P)
    n_labels = truth.shape[1]
    if not 1 <= k <= n_labels:
        raise DataError(f"k must be between 1 and the number of labels {n_labels}, got {k}")
    top = np.argsort(-scores, axis=1, kind="stable")[:, :k]  # (n, k)
    return float(np.mean(np.take_along_axis(truth, top, axis=1)))


def ranking_loss(Y: MatrixLike, P: MatrixLike) -> float:
    """Share of (true, false) label pairs in the wrong order, mean over rows (scikit-learn's).

    A pair with equal scores counts as wrong. A row with all labels or none has no pair and
    counts 0.
    """
    truth, scores = _truth_and_scores(Y, P)
    if truth.shape[1] == 1:  # scikit-learn refuses one label; such rows have no pair
        return 0.0
    return float(label_ranking_loss(_int64(truth), scores))


def coverage(Y: MatrixLike, P: MatrixLike) -> float:
    """Depth of the ranking at which all true labels are found, mean over rows.

    The convention is scikit-learn's: counted from 1, equal scores all counted (the worst case),
    0 for a row without true labels. The least possible value is therefore the mean number of
    true labels per row; Tsoumakas et al. subtract 1 from every row.
    """
    truth, scores = _truth_and_scores(Y, P)
    if truth.shape[1] == 1:  # scikit-learn refuses one label
        return float(np.mean(truth))
    return float(coverage_error(_int64(truth), scores))


def label_ranking_average_precision(Y: MatrixLike, P: MatrixLike) -> float:
    """Mean over true labels, then rows, of the precision at that label's rank (scikit-learn's).

    For each true label: the share of true labels among those scored at least as high. A row
    with all labels or none counts 1.
    """
    truth, scores = _truth_and_scores(Y, P)
    return float(label_ranking_average_precision_score(_int64(truth), scores))


def macro_auc(Y: MatrixLike, P: MatrixLike) -> float:
    """Mean over labels of the area under the ROC curve, P(score of a 1 > score of a 0).

    Labels with one class only are left out of the mean; NaN when none remains.
    """
    return _mean_over_mixed_labels(roc_auc_score, Y, P)


def micro_auc(Y: MatrixLike, P: MatrixLike) -> float:
    """Area under the ROC curve of all n L entries pooled; NaN when Y has one class only."""
    truth, scores = _truth_and_scores(Y, P)
    if truth.all() or not truth.any():
        return float("nan")
    return float(roc_auc_score(_int64(truth).ravel(), scores.ravel()))


def macro_average_precision(Y: MatrixLike, P: MatrixLike) -> float:
    """Mean over labels of average precision, the sum over recall steps of step x precision.

    Labels with one class only are left out of the mean, as for `macro_auc`; NaN when none
    remains.
    """
    return _mean_over_mixed_labels(average_precision_score, Y, P)


def log_loss(Y: MatrixLike, P: MatrixLike) -> float:
    """Mean over entries of -[y log p + (1 - y) log(1 - p)], in nats; P are probabilities.

    Probabilities are clipped to [2.2e-308, 1 - 2.2e-16] (float64's smallest normal number and
    1 - eps) so that the value stays finite: a certain 0 that was a 1 costs 708 nats, a certain
    1 that was a 0 costs 36.
    """
    truth, p = _truth_and_probabilities(Y, P)
    info = np.finfo(np.float64)
    p = np.clip(p, info.tiny, 1.0 - info.eps)
    return float(-np.mean(np.where(truth, np.log(p), np.log1p(-p))))


def brier(Y: MatrixLike, P: MatrixLike) -> float:
    """Mean over entries of (p - y)^2; P are probabilities."""
    truth, p = _truth_and_probabilities(Y, P)
    return float(np.mean((p - truth) ** 2))


def calibration_error(Y: MatrixLike, P: MatrixLike, n_bins: int = 15) -> float:
    """Gap between probability and frequency (ECE), all n L entries pooled; P are probabilities.

    Sum over bins b of (n_b / nL) |mean of y in b - mean of p in b|. The bins are
    [i / n_bins, (i + 1) / n_bins), equal in width; the last one holds p = 1 as well.
    """
    if n_bins < 1:
        raise ConfigError(f"n_bins must be at least 1, got {n_bins}")
    truth, p = _truth_and_probabilities(Y, P)
    p_flat = p.ravel()
    bins = np.minimum((p_flat * n_bins).astype(np.int64), n_bins - 1)  # (n L,)
    seen = np.bincount(bins, weights=truth.ravel(), minlength=n_bins)
    foretold = np.bincount(bins, weights=p_flat, minlength=n_bins)
    return float(np.abs(seen - foretold).sum() / p_flat.size)


# ---------------------------------------------------------------- all of them

DECISION_METRICS: Mapping[Metric, Callable[[MatrixLike, MatrixLike], float]] = MappingProxyType(
    {
        "example_f1": example_f1,
        "micro_f1": micro_f1,
        "macro_f1": macro_f1,
        "hamming": hamming_accuracy,
        "subset": subset_accuracy,
    }
)
"""Metrics of 0/1 predictions by their names in the settings; all: higher is better."""

_PRECISION_KS = {f"precision_at_{k}": k for k in (1, 3, 5)}

SCORE_METRICS: Mapping[str, Callable[[MatrixLike, MatrixLike], float]] = MappingProxyType(
    {
        **{name: partial(precision_at_k, k=k) for name, k in _PRECISION_KS.items()},
        "ranking_loss": ranking_loss,
        "coverage": coverage,
        "label_ranking_average_precision": label_ranking_average_precision,
        "macro_auc": macro_auc,
        "micro_auc": micro_auc,
        "macro_average_precision": macro_average_precision,
        "log_loss": log_loss,
        "calibration_error": calibration_error,
        "brier": brier,
    }
)
"""Metrics of scores by name; `precision_at_k` needs at least k labels."""


def all_metrics(
    Y: MatrixLike, P: MatrixLike, Z: Mapping[Metric, NDArray[Any]] | MatrixLike
) -> dict[str, float]:
    """Every decision metric, then every score metric, by name.

    Parameters
    ----------
    Y : (n, L) in {0, 1}
        The truth.
    P : (n, L) in [0, 1]
        Probabilities.
    Z : (n, L) in {0, 1}, or mapping from each of the five decision metrics to such an array
        Predictions; with a mapping, each metric is computed on the prediction meant for it.

    Returns
    -------
    dict of str to float
        `precision_at_k` is left out where there are fewer than k labels.

    Raises
    ------
    DataError
        When shapes differ, values are not 0/1 or not probabilities, or the mapping lacks a
        metric.
    """
    truth, p = _truth_and_probabilities(Y, P)
    # A data frame is not a Mapping, so this tells the two apart.
    if isinstance(Z, Mapping):
        lacking = [name for name in DECISION_METRICS if name not in Z]
        if lacking:
            raise DataError(
                f"Z lacks predictions for {len(lacking)} of {len(DECISION_METRICS)} metrics: "
                f"{', '.join(lacking)}; give them all, or one array for all"
            )
        predictions: Mapping[Metric, Any] = Z
    else:
        taken = binary_matrix(Z, "Z")
        predictions = dict.fromkeys(get_args(Metric), taken)
    values = {
        str(name): metric(truth, predictions[name]) for name, metric in DECISION_METRICS.items()
    }
    for name, score_metric in SCORE_METRICS.items():
        if _PRECISION_KS.get(name, 1) <= truth.shape[1]:
            values[name] = score_metric(truth, p)
    return values


# ---------------------------------------------------------------- checked inputs


def binary_matrix(values: MatrixLike, name: str) -> NDArray[np.bool_]:
    """Dense bool array (n, L) of a 0/1 matrix; `name` is what errors call it.

    Raises
    ------
    DataError
        When it is not a matrix with rows and columns, or holds anything but 0 and 1.
    """
    matrix = _dense_matrix(values, name)
    if matrix.dtype == np.bool_:
        return matrix
    # NaN compares unequal to itself, so it is caught here as well.
    wrong = (matrix != 0) & (matrix != 1)
    if wrong.any():
        raise DataError(
            f"{name} holds {int(wrong.sum())} of {matrix.size} values other than 0 and 1, "
            f"first {matrix[wrong][0]!s}; encode labels as 0 and 1"
        )
    return matrix.astype(np.bool_)


def score_matrix(values: MatrixLike, name: str) -> NDArray[np.float64]:
    """Dense float64 array (n, L) of scores; `name` is what errors call them.

    Raises
    ------
    DataError
        When it is not a matrix with rows and columns, or holds NaN or infinity.
    """
    matrix = _dense_matrix(values, name).astype(np.float64, copy=False)
    finite = np.isfinite(matrix)
    if not finite.all():
        raise DataError(
            f"{name} holds {int((~finite).sum())} of {matrix.size} values that are NaN or "
            "infinite; scores must be finite"
        )
    return matrix


def check_same_shape(truth: NDArray[Any], other: NDArray[Any], name: str) -> None:
    """Raise `DataError` unless the array called `name` has the shape of the truth Y."""
    if truth.shape != other.shape:
        raise DataError(
            f"Y has shape {truth.shape} but {name} has shape {other.shape}; "
            "give one row per example and one column per label in both"
        )


def _dense_matrix(values: MatrixLike, name: str) -> NDArray[Any]:
    dense: Any = values.toarray() if sparse.issparse(values) else values  # type: ignore[union-attr]
    matrix = np.asarray(dense)
    if matrix.dtype == object:  # a data frame of mixed columns
        with contextlib.suppress(TypeError, ValueError):  # refused just below
            matrix = matrix.astype(np.float64)
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"{name} must hold numbers, got dtype {matrix.dtype}")
    if matrix.ndim != 2 or matrix.size == 0:
        raise DataError(
            f"{name} must be a matrix (rows, labels) with at least one row and one label, "
            f"got shape {matrix.shape}"
        )
    return matrix


def _truth_and_prediction(
    Y: MatrixLike, Z: MatrixLike
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    truth, taken = binary_matrix(Y, "Y"), binary_matrix(Z, "Z")
    check_same_shape(truth, taken, "Z")
    return truth, taken


def _truth_and_scores(
    Y: MatrixLike, P: MatrixLike
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    truth, scores = binary_matrix(Y, "Y"), score_matrix(P, "P")
    check_same_shape(truth, scores, "P")
    return truth, scores


def _truth_and_probabilities(
    Y: MatrixLike, P: MatrixLike
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    truth, p = _truth_and_scores(Y, P)
    if p.min() < 0 or p.max() > 1:
        raise DataError(
            f"P must hold probabilities between 0 and 1, got values from {p.min():g} to "
            f"{p.max():g}"
        )
    return truth, p


def _hits_and_size(
    truth: NDArray[np.bool_], taken: NDArray[np.bool_], axis: int | None
) -> tuple[Any, Any]:
    """TP and 2 TP + FP + FN = |Y| + |Z| along an axis."""
    hits = np.sum(truth & taken, axis=axis)
    return hits, np.sum(truth, axis=axis) + np.sum(taken, axis=axis)


def _int64(truth: NDArray[np.bool_]) -> NDArray[np.int64]:
    # int64, not uint8: with more than 255 labels scikit-learn's label binarizer permutes
    # columns of narrow integers.
    return truth.astype(np.int64)


def _mean_over_mixed_labels(
    metric: Callable[..., float], Y: MatrixLike, P: MatrixLike
) -> float:
    truth, scores = _truth_and_scores(Y, P)
    mixed = np.flatnonzero(truth.any(axis=0) & ~truth.all(axis=0))
    if mixed.size == 0:
        return float("nan")
    y, p = _int64(truth), scores
    return float(np.mean([metric(y[:, j], p[:, j]) for j in mixed]))
