"""What a search for settings has found, and the two files it leaves for people."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from mpvae.config import Metric, Settings
from mpvae.estimator import MPVAEClassifier
from mpvae.model_file import write_atomically

Score = Literal[Metric, "log_loss"]
BEST, TRIALS = "best.toml", "trials.csv"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Settings that were tried, and their score on rows held out of training."""

    number: int
    score: float
    settings: Settings
    base: Any


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """What a search has found.

    The score of the best of many trials is optimistic: part of it is luck on these rows.
    """

    metric: Score
    default: TrialResult
    best: TrialResult
    trials: pd.DataFrame  # one row per trial that has ended
    parameters: dict[str, Any]  # of `MPVAEClassifier`: the best settings, all of them
    interrupted: bool = False

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Settings in which the best differs from the default: (default, best) by name."""
        pairs = zip(_described(self.default), _described(self.best), strict=True)
        return {name: (a, b) for (name, a), (_, b) in pairs if a != b}

    def estimator(self) -> MPVAEClassifier:
        """Classifier with the best settings, to be fitted."""
        return MPVAEClassifier(**self.parameters)

    def to_toml(self) -> str:
        """The best settings as a file for ``mpvae fit --config``."""
        lines = [
            f"# Best of {len(self.trials)} trials (number {self.best.number}) "
            f"by {self.metric} on rows held out of training:",
            f"# {self.best.score:.4f}; the default has {self.default.score:.4f}.",
            "# The score of the best of many trials is optimistic.",
        ]
        changed = self.changed
        values = dict(_described(self.best))
        same = values.keys() - changed
        parts = {"found by the search": changed, "as by default, or as fixed": same}
        for heading, names in parts.items():
            lines += ["", f"# {heading}:"] if names else []
            for name, value in values.items():
                text = _toml(value) if name in names else ""
                was = f"  # default {_toml(changed[name][0])}" if name in changed else ""
                lines += [f"{name} = {text}{was}"] if text else []
        return "\n".join(lines) + "\n"

    def save(self, folder: str | Path) -> None:
        """Write best.toml and trials.csv into a folder, each whole or not at all."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / BEST, self.to_toml().encode())
        write_atomically(folder / TRIALS, self.trials.to_csv(index=False).encode())


def _described(result: TrialResult) -> list[tuple[str, Any]]:
    return [("base", result.base), *asdict(result.settings).items()]


def _toml(value: Any) -> str:
    """Value as TOML has it; "" for what no file can hold, as a classifier."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        parts = [_toml(part) for part in value]
        return f"[{', '.join(parts)}]" if all(parts) else ""
    return ""
