"""What held-out rows decide: thresholds, rules, scores, and how wide label sets must be."""

from dataclasses import dataclass, field
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from mpvae import conformal, observed
from mpvae.config import Metric, Settings
from mpvae.conformal import Calibration
from mpvae.features import Matrix
from mpvae.members import HeldOut
from mpvae.merging import as_repeats

_ENTRIES = 2**24  # rows x labels that thresholds are fitted to, where weights are no counts


@dataclass(slots=True, eq=False)
class Judgement:
    """Choices made on held-out rows; without any, one half and no more."""

    thresholds: dict[str, float | NDArray[np.float64]] = field(
        default_factory=lambda: dict.fromkeys(get_args(Metric), 0.5)
    )
    rules: dict[str, str] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    calibration: Calibration | None = None


def judge(held_out: HeldOut | None, settings: Settings) -> Judgement:
    """Threshold and score of every metric, the rule for joint ones, and the calibration."""
    made = Judgement()
    if held_out is None:
        return made
    made.rules = _rules(held_out, settings)
    Y, P = _repeated(held_out)
    for metric in get_args(Metric):
        threshold = observed.best_threshold(Y, P, metric, settings.threshold_kind(metric))
        made.thresholds[metric] = threshold
        made.scores[metric] = observed.decision_score(Y, P, metric, threshold)
    made.scores["log_loss"] = observed.log_loss(Y, P)
    made.scores["calibration_error"] = observed.calibration_error(Y, P)
    made.calibration = conformal.calibrate(Y, P)
    return made


def held_out_score(held_out: HeldOut, settings: Settings, score: str) -> float:
    """One of the scores of `judge` alone: a metric at its best threshold, or "log_loss"."""
    Y, P = _repeated(held_out)
    if score == "log_loss":
        return observed.log_loss(Y, P)
    metric = cast("Metric", score)
    threshold = observed.best_threshold(Y, P, metric, settings.threshold_kind(metric))
    return observed.decision_score(Y, P, metric, threshold)


def _repeated(held_out: HeldOut) -> tuple[Matrix, NDArray[np.float64]]:
    """Labels and probabilities, a row of weight 2 twice."""
    repeats = as_repeats(held_out.weight, _ENTRIES // held_out.P.shape[1])
    if repeats is None:
        return held_out.Y, held_out.P
    return held_out.Y[repeats], held_out.P[repeats]


def _rules(held_out: HeldOut, settings: Settings) -> dict[str, str]:
    """Decide jointly where that scored better than the best threshold on the same rows."""
    judged = np.flatnonzero(held_out.answered)
    Y, P = held_out.Y[judged], held_out.P[judged]
    rules = {}
    for metric, Z in held_out.answers.items():
        threshold = observed.best_threshold(Y, P, metric, settings.threshold_kind(metric))
        by_threshold = observed.decision_score(Y, P, metric, threshold)
        better = observed.score(Y, Z, metric) > by_threshold
        rules[str(metric)] = "joint" if better else "threshold"
    return rules
