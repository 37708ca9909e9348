"""Cells put together: mean and spread over seeds, the published value beside them."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import datasets
from harness.cells import Cell
from harness.datasets import EVERY, SOURCES
from harness.experiments import SEEDS, seeds_of
from harness.methods import METHODS, PEERS

METRICS = {
    "example_f1": "example-F1",
    "micro_f1": "micro-F1",
    "macro_f1": "macro-F1",
    "hamming": "Hamming accuracy",
}


@dataclass(frozen=True)
class Summary:
    """Runs of one method on one data set."""

    runs: list[dict[str, Any]]
    reason: str | None  # why there are none
    lacking: bool  # whether some seeds have no scores

    def of_seeds(self, seeds: set[int]) -> "Summary":
        """Of these seeds alone."""
        return replace(self, runs=[run for run in self.runs if run["seed"] in seeds])

    @property
    def seeds(self) -> set[int]:
        return {run["seed"] for run in self.runs}

    def values(self, metric: str, protocol: str = "validation") -> list[float]:
        return [run["scores"][protocol][metric] for run in self.runs]

    def mean(self, metric: str, protocol: str = "validation") -> float | None:
        values = self.values(metric, protocol)
        return statistics.mean(values) if values else None

    def sd(self, metric: str, protocol: str = "validation") -> float | None:
        values = self.values(metric, protocol)
        return statistics.stdev(values) if len(values) > 1 else None

    def seconds(self) -> float | None:
        """Mean processor time of a fit."""
        return statistics.mean(run["cpu_seconds"] for run in self.runs) if self.runs else None

    def text(self, metric: str, protocol: str = "validation") -> str:
        """Mean and spread, or a dash where there is none."""
        mean, sd = self.mean(metric, protocol), self.sd(metric, protocol)
        if mean is None:
            return "-"
        spread = f" ± {sd:.4f}" if sd is not None else ""
        return f"{mean:.4f}{spread}" + (f" ({len(self.runs)})" if self.lacking else "")


def summary(
    results: Path,
    experiment: str,
    data: str,
    method: str,
    variant: str = "",
    seeds: Iterable[int] = SEEDS,
) -> Summary:
    seeds = tuple(seeds)
    cells = [Cell(experiment, data, method, seed, variant) for seed in seeds]
    if data in EVERY and experiment in ("tables", "noise", "peers"):
        methods = PEERS if experiment == "peers" else METHODS
        kept = seeds_of(data, method, seeds, methods)
        cells = [cell for cell in cells if cell.seed in kept]
    found = [content for cell in cells if (content := cell.read(results)) is not None]
    runs = [content for content in found if "reason" not in content]
    reasons = [content["reason"] for content in found if "reason" in content]
    reason = reasons[0] if reasons else ("not run" if not runs else None)
    return Summary(runs, reason, lacking=bool(runs) and len(runs) < len(cells))


def published(metric: str, data: str, method: str) -> float | None:
    """Score in the paper; None where the paper has no such cell, or had other data."""
    source = SOURCES[data]
    name = "hamming_accuracy" if metric == "hamming" else metric
    if not source.same:
        return None
    return datasets.published().get((name, source.paper, METHODS[method].published))
