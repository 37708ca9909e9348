"""Which cells make up each experiment, when a cell may run, and what running it does."""

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.manifold import TSNE

from harness import datasets
from harness.cells import RESULTS, Cell, Stopwatch, peak_gb, provenance, scores
from harness.datasets import EVERY
from harness.methods import METHODS, Method, fit, probabilities
from mpvae.associations import as_correlation

SEEDS = (0, 1, 2)
"""Of the tables."""
FIGURE_SEEDS = SEEDS[:1]
"""Of the noise and covariance figures and the ablation: many cells, each a training."""
SEARCH_BELOW = 20.0
"""Seconds: further settings of a grid are tried where the first one was faster than this."""

NOISE_DATA = ("fish_ebs", "mirflickr_tags")
NOISE_LEVELS = ("0.1", "0.2", "0.3", "0.4")
NOISE_METHODS = ("mpvae", "mlknn", "mlaram", "sleec", "c2ae", "dmvp", "lamp", "forest")
"""The paper's methods, and the peer users know best."""
PK_DATA = ("ebird_us32", "sider")

ABLATION_DATA = ("yeast", "sider")
ABLATIONS: dict[str, dict[str, Any]] = {  # part left out -> settings on top of preset "paper"
    "paper": {},
    "no_covariance": {"n_factors": 0},
    "no_label_branch": {"label_branch": False},
    "no_cross_entropy": {"lambda_ce": 0.0},
    "no_ranking": {"lambda_rank": 0.0},
    "no_entropy": {"lambda_entropy": 0.0},
    "beta_0": {"beta": 0.0},
    "beta_1": {"beta": 1.0},
    "beta_4": {"beta": 4.0},
    "draws_1": {"n_draws": 1},
    "draws_10": {"n_draws": 10},
    "likelihood_only": {"lambda_rank": 0.0, "lambda_entropy": 0.0, "lambda_ce": 1.0},
}

DEFAULT_ABLATIONS: dict[str, dict[str, dict[str, Any]]] = {  # data -> the same of the default
    "bibtex": {
        "default": {},
        "narrow": {
            "hidden": [256, 256],
            "hidden_labels": [256],
            "hidden_decoder": [256],
            "dropout_inputs": 0.0,
            "dropout_decoder": 0.0,
        },
        "default_no_ranking": {"lambda_rank": 0.0},
        "one_member": {"n_members": 1},
    },
    "delicious": {
        "default": {},
        "as_bibtex": {
            "n_factors": 16,
            "hidden": [512],
            "hidden_labels": [256],
            "hidden_decoder": [512],
            "dropout_inputs": 0.3,
            "lambda_rank": 20.0,
        },
    },
}

_BARE = {"dropout": 0.0, "max_epochs": 100, "patience": None}
_TO_THE_END = {"dropout": 0.0, "max_epochs": 200, "validation_fraction": 0.0}
EXPLANATIONS: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    # (data, method) -> name -> settings that account for a published number
    ("delicious", "mlknn"): {"own_neighbours": {"leave_one_out": False}},
    ("scene", "sleec"): {
        "one_bare_network": {
            "regressor": "neural",
            "n_learners": 1,
            "dropout": 0.0,
            "max_epochs": 100,
        }
    },
    ("bibtex", "sleec"): {"one_network": {"regressor": "neural", "n_learners": 1}},
    ("delicious", "sleec"): {"one_network": {"regressor": "neural", "n_learners": 1}},
    ("scene", "c2ae"): {"bare": _BARE},
    ("scene", "lamp"): {"bare": _BARE | {"max_epochs": 60}, "to_the_end": _TO_THE_END},
    ("yeast", "dmvp"): {"to_the_end": _TO_THE_END},
    ("scene", "dmvp"): {"to_the_end": _TO_THE_END, "five_epochs": {"max_epochs": 5}},
    ("bibtex", "lamp"): {"tokens": {"inputs": "tokens", "max_epochs": 12}},
}

COVARIANCE_DATA = ("bbs_birds", "eco_butterflies")
COVARIANCE_METHODS = ("mpvae", "mpvae_paper")


class Waiting(Exception):
    """The cell needs another one first."""


def table_cells(
    data: Iterable[str], methods: Iterable[str], seeds: Iterable[int]
) -> list[Cell]:
    """Cells of Tables 1 and 2 and of the precision@K figure, each after its search."""
    cells = []
    for name in data:
        for method in methods:
            cells += search_cells(name, method)
            cells += [Cell("tables", name, method, s) for s in seeds_of(name, method, seeds)]
    return cells


def search_cells(data: str, method: str) -> list[Cell]:
    """One cell for each setting of the method's grid; none where there is no choice."""
    n = len(METHODS[method].grid)
    return [Cell("search", data, method, 0, str(g)) for g in range(n)] if n > 1 else []


def quick_cells(data: Iterable[str], methods: Iterable[str]) -> list[Cell]:
    """One seed, settings as an earlier search found them: a first look."""
    return [Cell("quick", name, method) for name in data for method in methods]


def noise_cells(methods: Iterable[str], seeds: Iterable[int]) -> list[Cell]:
    """Cells of the noise figure; no noise is the cell of the tables."""
    methods, seeds = tuple(methods), tuple(seeds)
    return [
        Cell("noise", data, method, seed, level)
        for data in NOISE_DATA
        for level in NOISE_LEVELS
        for method in NOISE_METHODS
        if method in methods
        for seed in seeds_of(data, method, seeds)
    ]


def ablation_cells(seeds: Iterable[int]) -> list[Cell]:
    seeds = tuple(seeds)
    return [
        Cell("ablation", data, "mpvae_paper", seed, variant)
        for data in ABLATION_DATA
        for variant in ABLATIONS
        for seed in seeds
    ] + [
        Cell("ablation", data, "mpvae", seed, variant)
        for data, variants in DEFAULT_ABLATIONS.items()
        for variant in variants
        for seed in (seeds if data == "bibtex" else seeds[:1])  # delicious takes long
    ]


def explanation_cells() -> list[Cell]:
    """Runs that account for the difference between a rival and its published number."""
    return [
        Cell("explain", data, method, 0, variant)
        for (data, method), variants in EXPLANATIONS.items()
        for variant in variants
    ]


def covariance_cells(seeds: Iterable[int]) -> list[Cell]:
    seeds = tuple(seeds)
    return [
        Cell("covariance", data, method, seed)
        for data in COVARIANCE_DATA
        for method in COVARIANCE_METHODS
        for seed in seeds
    ]


def without_running(cell: Cell, results: Path) -> dict[str, Any] | None:
    """What the cell is known to hold already, or None if it has to be run.

    A setting of a search is not tried where the first took long; the first seed of the tables
    is the run the search found best; and where the first seed met a bound, so would the rest.

    Raises
    ------
    Waiting
        When another cell has to come first.
    """
    if cell.experiment == "search" and cell.variant != "0":
        first = need(Cell("search", cell.data, cell.method, 0, "0"), results)
        if "reason" in first:
            return same_reason(first, "not tried: ")
        if first["cpu_seconds"] > SEARCH_BELOW:
            took = first["cpu_seconds"]
            return {"reason": f"not tried: the first setting took {took:.0f} s"}
    if cell.experiment == "ablation" and cell.variant == "default":
        found = need(Cell("tables", cell.data, cell.method, cell.seed), results)
        return {k: v for k, v in found.items() if k not in Cell.__dataclass_fields__}
    if cell.experiment == "tables":
        option = chosen_option(cell.data, cell.method, results)
        if option is not None and cell.seed == 0:
            found = need(Cell("search", cell.data, cell.method, 0, str(option)), results)
            return {k: v for k, v in found.items() if k not in Cell.__dataclass_fields__}
    leader = None
    if cell.experiment == "noise":
        leader = Cell("tables", cell.data, cell.method)
    elif cell.experiment in ("tables", "ablation", "covariance") and cell.seed > 0:
        leader = Cell(cell.experiment, cell.data, cell.method, 0, cell.variant)
    if leader is not None:
        first = need(leader, results)
        if "reason" in first:
            return same_reason(first)
    return None


def same_reason(first: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The reason of another cell; what failed there is to be tried again here too."""
    return {"reason": prefix + first["reason"], "error": first.get("error", False)}


def chosen_option(data: str, method: str, results: Path) -> int | None:
    """Entry of the grid best in micro-F1 on validation rows; None if there is no choice."""
    cells = search_cells(data, method)
    if not cells:
        return None
    found = [need(cell, results) for cell in cells]
    values = [c["on_validation_rows"]["micro_f1"] if "scores" in c else -1.0 for c in found]
    return int(np.argmax(values))


def settings(cell: Cell, results: Path) -> dict[str, Any]:
    """Settings the cell is run with, on top of the method's defaults."""
    if cell.experiment == "ablation":
        of_default = DEFAULT_ABLATIONS.get(cell.data, {})
        return (
            ABLATIONS[cell.variant]
            if cell.method == "mpvae_paper"
            else of_default[cell.variant]
        )
    if cell.experiment == "explain":
        return EXPLANATIONS[cell.data, cell.method][cell.variant]
    if cell.experiment == "search":
        return dict(METHODS[cell.method].grid[int(cell.variant)])
    if cell.experiment == "covariance":
        return {}
    try:
        searched = RESULTS if cell.experiment == "quick" else results
        option = chosen_option(cell.data, cell.method, searched) or 0
    except Waiting:  # a quick look before any search
        option = 0
    return dict(METHODS[cell.method].grid[option])


def run(cell: Cell, results: Path) -> None:
    """Run a cell and write its file; every exception is the caller's."""
    warnings.simplefilter("ignore")  # of peers: rare labels, iterations
    given = settings(cell, results)
    watch = Stopwatch()
    content = (
        _covariance(cell, given) if cell.experiment == "covariance" else _score(cell, given)
    )
    cell.write(
        results,
        {
            "settings": given,
            **content,
            "peak_gb": round(peak_gb(), 2),
            "seconds_in_all": watch.seconds(),
            **provenance(),
        },
    )


def _score(cell: Cell, given: dict[str, Any]) -> dict[str, Any]:
    method = METHODS[cell.method]
    noise = float(cell.variant) if cell.experiment == "noise" else 0.0
    parts = datasets.load(cell.data, cell.seed, noise=noise)
    watch = Stopwatch()
    model = fit(method, given, cell.seed, parts)
    seconds, cpu_seconds = watch.seconds(), watch.cpu_seconds()
    watch = Stopwatch()
    P = probabilities(model, parts.test.X)
    predicting = watch.seconds()
    P_validation = probabilities(model, parts.validation.X)
    return {
        "parameters": parameters(model),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "seconds_to_predict": predicting,
        **scores(model, P, parts, P_validation, own=method.own_thresholds),
    }


def parameters(model: Any) -> dict[str, Any]:
    """Parameters the estimator was made with, those of its size-dependent settings included."""
    estimator = getattr(model, "estimator", model)
    if not hasattr(estimator, "get_params"):
        return {}
    plain = (bool, int, float, str, type(None))
    return {k: v for k, v in estimator.get_params().items() if isinstance(v, plain)}


def _covariance(cell: Cell, given: dict[str, Any]) -> dict[str, Any]:
    """How well labels of one group lie together in the learnt covariance."""
    table = datasets.read(cell.data)
    rows = datasets.Part(table.features(), table.labels().to_numpy())
    model = METHODS[cell.method].build(given, cell.seed, rows)
    watch = Stopwatch()
    model.fit(table.features(), table.labels())
    seconds = watch.seconds()
    groups = label_groups(table.label_names)
    V = np.asarray(model.label_embedding_)  # rows of the Cholesky factor, as in the paper
    content = {
        "seconds": seconds,
        "groups": groups,
        "label_names": list(table.label_names),
        "same_group_neighbours": {
            "cholesky_rows": _same_group(V @ V.T, groups),  # inner products are Sigma_g
            "sigma_g": _same_group(as_correlation(np.asarray(model.sigma_g_)), groups),
            "residual_correlation": _same_group(np.asarray(model.correlation_), groups),
            "raw_co_occurrence": _same_group(
                np.nan_to_num(np.corrcoef(table.labels().to_numpy().T)), groups
            ),
        },
    }
    if cell.seed == 0:
        perplexity = min(30.0, (len(V) - 1) / 3)
        points = TSNE(perplexity=perplexity, random_state=0, init="pca").fit_transform(V)
        content["tsne"] = np.round(points, 2).tolist()
    return content


def label_groups(names: Iterable[str]) -> list[str]:
    """Group of each label: the last word of a common name, "Blue-winged Teal" -> "teal"."""
    words = [re.split(r"[\s_.]+", name.strip())[-1].lower() for name in names]
    counts = Counter(words)
    return [word if counts[word] > 1 else "" for word in words]


def _same_group(likeness: np.ndarray, groups: list[str]) -> dict[str, float]:
    """Share of labels whose most alike label is of their group, and what chance gives.

    Labels alone in their group can have no such neighbour and are left out, as neighbours too.
    Chance: groups shuffled over the labels 2,000 times; ``p`` is the share of shuffles that
    did at least as well, counting the real one.
    """
    names = np.array(groups)
    kept = np.flatnonzero(names != "")
    names = names[kept]
    likeness = likeness[np.ix_(kept, kept)].copy()
    np.fill_diagonal(likeness, -np.inf)
    nearest = likeness.argmax(1)
    share = float(np.mean(names[nearest] == names))
    generator = np.random.default_rng(0)
    shuffled = [generator.permutation(names) for _ in range(2000)]
    by_chance = np.array([np.mean(s[nearest] == s) for s in shuffled])
    return {
        "share": share,
        "chance": float(by_chance.mean()),
        "p": float((1 + (by_chance >= share).sum()) / (1 + len(by_chance))),
        "labels": len(kept),
    }


def seeds_of(
    data: str, method: str, seeds: Iterable[int], methods: Mapping[str, Method] = METHODS
) -> tuple[int, ...]:
    """A method without randomness runs once on rows that are always the same."""
    seeds = tuple(seeds)
    return seeds[:1] if EVERY[data].official and not methods[method].random else seeds


def need(cell: Cell, results: Path) -> dict[str, Any]:
    """What a cell left that another one asks for."""
    content = cell.read(results)
    if content is None:
        raise Waiting(cell)
    return content
