"""Is the default ahead of what users would pick instead? The cells of ``paper.py peers``.

Every method is fitted on all learning rows: training and validation rows of the stored split.
Thresholds come from learning rows a fit did not see. MPVAE has them from its members; a rival
is fitted again without a fold, for each of 3 folds, or where rows are many without the first of
5 folds alone. Test rows are for scores. There is no search: one setting on every table.

Forest, kernel machine and their average share fits: running the average writes all three cells.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd

from harness import datasets
from harness.cells import Cell, Stopwatch, peak_gb, provenance, ranking
from harness.datasets import Part, join
from harness.experiments import need, parameters, same_reason, seeds_of
from harness.methods import PEERS, Method, probabilities
from mpvae import observed
from mpvae.config import DataShape, Metric
from mpvae.data import stratified_folds
from mpvae.decisions import apply_threshold
from mpvae.evidence import source_names
from mpvae.presets import resolve

DATA = (
    "norberg_birds",
    "norberg_vegetation",
    "sider",
    "scene",
    "yeast",
    "eco_butterflies",
    "eco_fungi_beech",
    "stackex_chess",
    "yahoo_arts",
    "yahoo_science",
    "rcv1subset1",
    "ebird_us32",
    "bibtex",
    "fish_ebs",
    "disdat_nz_plants",
    "ng20",
    "mirflickr_tags",
    "delicious",
)
"""By size, small ones first: the order in which cells are run."""
PAPER_DATA = ("yeast", "scene", "sider", "bibtex", "eco_butterflies")
"""Where the paper's six rivals run."""
SHARED = ("forest", "svm")
"""Methods whose fits the average takes, and whose cells it writes."""
FEW_ROWS = 5000
"""Learning rows up to which every row gets a prediction out of fold."""
CERTAIN = 1e-6
"""Log-loss takes no probability of a rival nearer to 0 or 1: one error would be all of it."""
MAX_SECONDS = 2 * 60 * 60
"""Of a cell: up to four fits."""
PROTOCOL = "held_out"


class Answers(NamedTuple):
    """Probabilities by one method, and what the fit on all learning rows took."""

    judged: np.ndarray  # (m, L), of the learning rows of `Folds.rows`, by fits without them
    test: np.ndarray  # (n, L)
    parameters: dict[str, Any]
    seconds: float
    cpu_seconds: float
    seconds_to_predict: float


class Folds(NamedTuple):
    """Fold of every learning row, and which folds are held out in turn."""

    fold: np.ndarray  # (n,)
    held_out: range

    @property
    def rows(self) -> np.ndarray:
        """Learning rows that are in a fold held out, rising."""
        return np.flatnonzero(np.isin(self.fold, self.held_out))


def cells(data: Iterable[str], methods: Iterable[str], seeds: Iterable[int]) -> list[Cell]:
    """Cells of the methods, and of those that share fits with them."""
    wanted, seeds = set(methods), tuple(seeds)
    if wanted & {*SHARED, "average"}:
        wanted |= {*SHARED, "average"}
    return [
        Cell("peers", name, method, seed)
        for name in data
        for method in PEERS
        if method in wanted and runs_on(method, name)
        for seed in seeds_of(name, method, seeds, PEERS)
    ]


def runs_on(method: str, data: str) -> bool:
    """Whether the comparison has the method on this table."""
    return PEERS[method].kind != "paper" or data in PAPER_DATA


def without_running(cell: Cell, results: Path) -> dict[str, Any] | None:
    """What the cell is known to hold already, or None if it has to be run.

    Raises
    ------
    Waiting
        When another cell has to come first: the average, or the first seed.
    """
    if cell.method in SHARED:
        average = need(Cell("peers", cell.data, "average", cell.seed), results)
        if (content := cell.read(results)) is not None:  # written by the average
            return {k: v for k, v in content.items() if k not in Cell.__dataclass_fields__}
        if "reason" in average:
            return same_reason(average)
    if cell.seed > 0:
        first = need(Cell("peers", cell.data, cell.method), results)
        if "reason" in first:
            return same_reason(first)
    return None


def run(cell: Cell, results: Path, method: Method | None = None) -> None:
    """Run a cell and write its file, and those of methods that share its fits.

    ``method`` stands for the one of that name with other settings.
    """
    warnings.simplefilter("ignore")  # of peers: rare labels, iterations
    watch = Stopwatch()
    parts = datasets.load(cell.data, cell.seed)
    learn = join(parts.train, parts.validation)
    if method is not None:
        found = {cell.method: ours(method, cell.seed, learn, parts.test)}
    else:
        found = contents(cell.method, cell.seed, learn, parts.test, _kept(cell, results))
    ended = {"peak_gb": round(peak_gb(), 2), "seconds_in_all": watch.seconds(), **provenance()}
    for name, content in found.items():  # its own comes last: once it is there, all are
        if cell.seed in seeds_of(cell.data, name, (0, cell.seed), PEERS):
            replace(cell, method=name).write(results, content | ended)


def _kept(cell: Cell, results: Path) -> Callable[[str], Path]:
    """File for the probabilities of a rival, beside the results and not among them."""
    folder = results.parent / f"{results.name}-kept" / cell.experiment / cell.data
    return lambda method: folder / f"{method}-seed{cell.seed}.npz"


def contents(
    method: str, seed: int, learn: Part, test: Part, kept: Callable[[str], Path] | None = None
) -> dict[str, dict[str, Any]]:
    """What the cell of each method holds that one run gives; ``method`` itself is the last.

    Probabilities of rivals are kept in files: with these, decisions are made anew without
    fits.
    """
    if PEERS[method].own_thresholds:
        return {method: ours(PEERS[method], seed, learn, test)}
    folds = folds_of(learn.Y, seed)
    names = SHARED if method == "average" else (method,)
    found = {}
    for name in names:
        given = _read_answers(kept(name)) if kept else None
        if given is None:
            given = answers(PEERS[name], seed, learn, test.X, folds)
            if kept:
                _keep_answers(given, kept(name))
        found[name] = given
    if method == "average":
        found[method] = average(list(found.values()))
    return {
        name: {
            "settings": dict(PEERS[name].grid[0]),
            "parameters": given.parameters,
            "seconds": given.seconds,
            "cpu_seconds": given.cpu_seconds,
            "seconds_to_predict": given.seconds_to_predict,
            "shape": _shape(learn, test),
            **_judged(given, learn, folds, test.Y),
        }
        for name, given in found.items()
    }


def _keep_answers(given: Answers, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".tmp{os.getpid()}.npz")
    np.savez(
        temporary,
        judged=given.judged,
        test=given.test,
        parameters=json.dumps(given.parameters, default=str),
        seconds=[given.seconds, given.cpu_seconds, given.seconds_to_predict],
    )
    temporary.replace(file)


def _read_answers(file: Path) -> Answers | None:
    if not file.exists():
        return None
    with np.load(file) as kept:
        return Answers(
            kept["judged"],
            kept["test"],
            json.loads(str(kept["parameters"])),
            *(float(s) for s in kept["seconds"]),
        )


def folds_of(Y: np.ndarray, seed: int) -> Folds:
    """3 folds, all held out in turn; 5 folds and the first alone where rows are many."""
    few = len(Y) <= FEW_ROWS
    n_folds = 3 if few else 5
    return Folds(stratified_folds(Y, n_folds, seed=seed), range(n_folds if few else 1))


def answers(method: Method, seed: int, learn: Part, X_test: Any, folds: Folds) -> Answers:
    """A rival's probabilities of learning rows held out and of test rows."""

    def built() -> Any:  # settings by the size of the table, also for the fits on parts of it
        return method.build(method.grid[0], seed, learn)

    judged = np.empty(learn.Y.shape)
    for k in folds.held_out:
        part = take(learn, np.flatnonzero(folds.fold != k))
        rows = np.flatnonzero(folds.fold == k)
        judged[rows] = probabilities(built().fit(*part), take(learn, rows).X)
    model = built()
    watch = Stopwatch()
    model.fit(*learn)
    seconds, cpu_seconds = watch.seconds(), watch.cpu_seconds()
    watch = Stopwatch()
    P = probabilities(model, X_test)
    return Answers(
        judged[folds.rows], P, parameters(model), seconds, cpu_seconds, watch.seconds()
    )


def average(parts: Sequence[Answers]) -> Answers:
    """Mean of the probabilities; the time of all."""
    return Answers(
        judged=np.mean([part.judged for part in parts], axis=0),
        test=np.mean([part.test for part in parts], axis=0),
        parameters={},
        seconds=sum(part.seconds for part in parts),
        cpu_seconds=sum(part.cpu_seconds for part in parts),
        seconds_to_predict=sum(part.seconds_to_predict for part in parts),
    )


def take(part: Part, rows: np.ndarray) -> Part:
    """Some rows."""
    X = part.X.iloc[rows] if isinstance(part.X, pd.DataFrame) else part.X[rows]
    return Part(X, part.Y[rows])


def thresholds(Y: np.ndarray, P: np.ndarray, n_features: int) -> dict[str, Any]:
    """Threshold of every metric, of the kind and by the code of MPVAE's default."""
    settings = resolve("default", {}, DataShape(len(Y), n_features, Y.shape[1]))
    return {
        metric: observed.best_threshold(Y, P, metric, settings.threshold_kind(metric))
        for metric in get_args(Metric)
    }


def _judged(given: Answers, learn: Part, folds: Folds, Y_test: np.ndarray) -> dict[str, Any]:
    Y = learn.Y[folds.rows]
    chosen = thresholds(Y, given.judged, learn.X.shape[1])
    decided = {name: apply_threshold(given.test, t) for name, t in chosen.items()}
    on_held_out = {
        name: observed.decision_score(Y, given.judged, name, t) for name, t in chosen.items()
    }
    P = np.clip(given.test, CERTAIN, 1 - CERTAIN)
    return _scores(Y_test, P, decided) | {"on_held_out_rows": on_held_out}


def _shape(learn: Part, test: Part) -> dict[str, int]:
    return {
        "learning_rows": len(learn.Y),
        "test_rows": len(test.Y),
        "features": learn.X.shape[1],
        "labels": learn.Y.shape[1],
    }


def ours(method: Method, seed: int, learn: Part, test: Part) -> dict[str, Any]:
    """MPVAE as users have it: its own thresholds, or its joint rule where it chose that."""
    settings = method.grid[0]
    model = method.build(settings, seed, learn)
    watch = Stopwatch()
    model.fit(*learn)
    seconds, cpu_seconds = watch.seconds(), watch.cpu_seconds()
    watch = Stopwatch()
    P = probabilities(model, test.X)
    predicting = watch.seconds()
    by_threshold = {
        name: apply_threshold(P, model.thresholds_[name]) for name in get_args(Metric)
    }
    jointly = {
        name: np.asarray(model.predict(test.X, metric=name))
        for name, rule in model.rules_.items()
        if rule == "joint"
    }
    found = _scores(test.Y, P, by_threshold | jointly)
    found["scores"]["threshold"] = _scores(test.Y, P, by_threshold)["scores"][PROTOCOL]
    return {
        "settings": dict(settings),
        "parameters": parameters(model),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "seconds_to_predict": predicting,
        "shape": _shape(learn, test),
        "resolved": {
            "kernel_features": model.settings_.kernel_features,
            "quantiles": model.settings_.quantiles,
            "evidence": source_names(model.evidence_),
        },
        "rules": model.rules_,
        **found,
        "on_held_out_rows": {name: model.validation_scores_.get(name) for name in by_threshold},
    }


def _scores(Y: np.ndarray, P: np.ndarray, decided: dict[str, np.ndarray]) -> dict[str, Any]:
    """Every metric of the decisions made for it, and of the probabilities."""
    found = ranking(Y, P)
    scores = {name: observed.score(Y, Z, name) for name, Z in decided.items()}
    scores["log_loss"] = found["ranking"]["log_loss"]
    return {"scores": {PROTOCOL: scores}, **found}
