"""A cell: one method on one data set with one seed, and the JSON file it leaves.

A file holds what was run (settings, seed, versions, git hash), how long it took, the peak
memory, and every metric under three ways to choose a threshold:

- ``validation``: one threshold per metric, the best of the paper's 27 on validation rows;
- ``best_on_test``: the same chosen on the test rows, as the authors' code does (optimistic);
- ``half``: probability one half.

Where a cell could not be had it holds a ``reason`` instead of scores.
"""

import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from harness import datasets
from mpvae.decisions import apply_threshold, best_on_test, fit_threshold
from mpvae.metrics import DECISION_METRICS, SCORE_METRICS, precision_at_k

RESULTS = Path(__file__).parents[1] / "results" / "paper"
MAX_SECONDS, MAX_GB = 20 * 60, 8.0
_COMMIT = "MPVAE_BENCHMARK_COMMIT"
_PACKAGES = ("mpvae", "torch", "numpy", "scipy", "scikit-learn", "numba", "xgboost-cpu")


@dataclass(frozen=True)
class Cell:
    """What identifies a run; settings follow from it and from the search results."""

    experiment: str  # search, tables, noise, ablation, covariance, peers
    data: str
    method: str
    seed: int = 0
    variant: str = ""  # option of a search, noise level, part left out

    def file(self, results: Path) -> Path:
        name = "-".join(filter(None, (self.method, self.variant, f"seed{self.seed}")))
        return results / self.experiment / self.data / f"{name}.json"

    def read(self, results: Path) -> dict[str, Any] | None:
        """What the cell left, or None where it has not run."""
        file = self.file(results)
        return json.loads(file.read_text()) if file.exists() else None

    def write(self, results: Path, content: Mapping[str, Any]) -> None:
        """Write the file whole or not at all."""
        file = self.file(results)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".tmp{os.getpid()}")
        temporary.write_text(json.dumps({**asdict(self), **content}, indent=1) + "\n")
        temporary.replace(file)


def scores(
    model: Any, P: np.ndarray, parts: datasets.Parts, P_validation: np.ndarray, *, own: bool
) -> dict[str, Any]:
    """Every metric under every protocol; ``own``: the model brings its thresholds."""
    Y, Y_validation = parts.test.Y, parts.validation.Y
    validation, judged, test, half = {}, {}, {}, {}
    for name, metric in DECISION_METRICS.items():
        if own:
            threshold = model.thresholds_[name]
            judged[name] = model.validation_scores_[name]
        else:
            threshold = fit_threshold(Y_validation, P_validation, metric=name, kind="paper")
            judged[name] = metric(Y_validation, apply_threshold(P_validation, threshold))
        validation[name] = metric(Y, apply_threshold(P, threshold))
        test[name] = best_on_test(Y, P, name)[1]
        half[name] = metric(Y, (P >= 0.5).astype(np.int64))
    return {
        "scores": {"validation": validation, "best_on_test": test, "half": half},
        "on_validation_rows": judged,
        **ranking(Y, P),
    }


def ranking(Y: np.ndarray, P: np.ndarray) -> dict[str, Any]:
    """Every metric of the probabilities themselves."""
    return {
        "ranking": {
            name: number(metric(Y, P))
            for name, metric in SCORE_METRICS.items()
            if not name.startswith("precision_at")
        },
        "precision_at_k": [precision_at_k(Y, P, k) for k in range(1, min(10, Y.shape[1]) + 1)],
    }


def provenance() -> dict[str, Any]:
    """Versions, machine and git hash; part of every cell."""
    commit = os.environ.get(_COMMIT) or git_hash()
    return {"versions": _versions(), "python": platform.python_version(), "git": commit}


def pin_git_hash() -> None:
    """Let cells started from here on name the commit of now, whose code they have loaded."""
    os.environ[_COMMIT] = git_hash()


def peak_gb() -> float:
    """Largest memory this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class Stopwatch:
    """Seconds since it was made: on the clock, and of the processor alone."""

    def __init__(self) -> None:
        self.start, self.cpu_start = time.perf_counter(), time.process_time()

    def seconds(self) -> float:
        return round(time.perf_counter() - self.start, 2)

    def cpu_seconds(self) -> float:
        return round(time.process_time() - self.cpu_start, 2)


def number(value: float) -> float | None:
    """As JSON has it: null where it is not finite."""
    return float(value) if np.isfinite(value) else None


@cache
def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@cache
def git_hash() -> str:
    """Commit of the project; "+" behind it where tracked source files differ from it."""
    root = Path(__file__).parents[2]

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "src", "benchmarks/harness")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
