"""docs/peers.md, written from the cells; only its words are typed by hand."""

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scipy.stats import rankdata

from harness import summary as summaries
from harness.cells import MAX_GB
from harness.datasets import EVERY, ROOT
from harness.experiments import SEEDS
from harness.methods import PEERS
from harness.page import paragraph
from harness.peers import CERTAIN, DATA, FEW_ROWS, MAX_SECONDS, PAPER_DATA, PROTOCOL
from harness.summary import Summary, summary

FILE = ROOT / "docs" / "peers.md"
METRICS = summaries.METRICS | {"log_loss": "log-loss"}
OURS = ("mpvae", "mpvae_alone")
RIVALS = tuple(name for name, method in PEERS.items() if method.kind in ("peer", "paper"))
EVERYWHERE = tuple(name for name, method in PEERS.items() if method.kind in ("ours", "peer"))
SIX = tuple(name for name, method in PEERS.items() if method.kind == "paper")
PRESETS = tuple(name for name, method in PEERS.items() if method.kind == "preset")
TIMED = ("mpvae", "mpvae_alone", "mpvae_fast", "mpvae_best", "svm", "boosting")
BARS = {  # (data, method) -> example-F1, micro-F1, macro-F1, Hamming accuracy to reach
    ("yeast", "mpvae"): (0.675, 0.687, 0.486, 0.815),
    ("yeast", "mpvae_alone"): (0.662, 0.673, 0.475, 0.805),
    ("scene", "mpvae"): (0.797, 0.794, 0.801, 0.927),
    ("scene", "mpvae_alone"): (0.781, 0.779, 0.786, 0.923),
    ("bibtex", "mpvae"): (0.46, 0.49, 0.39, 0.9876),
    ("delicious", "mpvae"): (0.38, 0.40, 0.19, 0.9824),
}

INTRODUCTION = """
Is `MPVAEClassifier()`, with no setting touched, ahead of what one would pick instead? This page
is written by `mpvae benchmark page` from the JSON files in `benchmarks/results/paper/peers`;
`mpvae benchmark peers` makes those.
"""

HOW = """
{tables} tables, {seeds} seeds, mean ± standard deviation over seeds; where fewer have run,
their number stands in brackets. Where the test rows are given (*official* below) they stay the
test rows, and the spread is that of the fit alone; elsewhere each seed has its own split,
80/10/10, stratified by labels, and the spread includes the choice of test rows. A method
without randomness runs once on official rows. One protocol for all:

1. A method is fitted on all learning rows, training and validation rows together.

2. Thresholds come from learning rows the fit did not see. MPVAE brings its own, from rows its
members were not trained on. A rival is fitted again without each of 3 stratified folds (beyond
{few:,} learning rows: without the first of 5 folds alone) and its thresholds are fitted to what
it says about the rows left out, by the code that fits MPVAE's and of the same kinds: the best
of all values, one per label for macro-F1.

3. Scores are of the test rows, which nothing else has seen. MPVAE's labels are those of
`predict(X, metric=...)`, what a user gets: by threshold, or, for example-F1 and subset
accuracy, by the joint distribution where that did better on held-out rows.

There is no search: one setting for each method on all tables. A cell may take {hours} hours on
one core, the fits for thresholds included, and {gb} GB.
"""

SETTINGS = """
- **MPVAE (default)**: `MPVAEClassifier()`, networks that start from a kernel machine and a
  forest. **MPVAE alone**: `base=None`, the networks by themselves. **MPVAE fast**, **MPVAE
  best**: the presets of these names, in a table of their own.
- **random forest**, **extra trees**: scikit-learn's, 300 trees. Half a vote for each label's
  frequency joins the trees, (300 p + ½ prior) / 300.5: where all trees agree a forest is
  certain, and a single error would ruin its log-loss. Trees of pure leaves do not fit into
  memory where rows times labels are many: the forest has `min_samples_leaf=5` on delicious,
  extra trees have 8 on delicious and disdat_nz_plants.
- **calibrated RBF SVM**: one machine a label, C = 1, gamma "scale", a sigmoid fitted to
  out-of-fold scores; beyond 400,000 rows times labels or 10,000 rows a Nystroem map of 500
  landmarks with logistic regression. **forest and SVM, averaged**: the mean of both
  probabilities.
- **logistic one-vs-rest**, **classifier chain** (random order): C = 1. **MLP**: scikit-learn's,
  512 and 256 units, about 2,000 steps of 200 rows. **boosting**: XGBoost, 100 trees of depth 6
  a label, learning rate 0.1. Trees see features as they are; the others of this list see them
  standardised, or, where sparse, divided by their largest value.
- The paper's six rivals, at their defaults, on {paper}.

Log-loss takes rivals' probabilities no nearer to 0 or 1 than {certain:g}; MPVAE's are left as
they are. Not every rival's scores are meant as probabilities (MLARAM, SLEEC, C2AE).
"""

RANK = """
Rank 1 is best, equal scores share a rank; over the methods that have a score on every table.
"""

FIRST = """
Each of the two against all rivals that ran on the table, not against each other. *Within one
standard error*: behind the best rival by no more than sqrt(sd_a²/n_a + sd_b²/n_b), over the n
seeds of either; a method that ran once counts with sd 0. Where each seed has its own split,
both methods saw the same rows, which this error does not know: it is too large there.
"""

PRESET = """
Mean difference from the default over the tables where both ran (log-loss: lower is better), and
the scores themselves.
"""

TIME = """
CPU seconds of the one fit on all learning rows (without a rival's fits for thresholds), divided
by those of the random forest on the same rows, on one core.
"""

Table = dict[tuple[str, str], Summary]


class Duel(NamedTuple):
    """One of ours against the best rival on one table, by one metric."""

    data: str
    metric: str
    rival: str
    behind: float  # by how much; 0 or less where ours is first
    error: float  # standard error of the difference of both means

    @property
    def first(self) -> bool:
        return self.behind <= 0

    @property
    def close(self) -> bool:
        """First, or within one standard error of the first."""
        return self.behind <= self.error


def write(results: Path) -> str:
    """Write the page; return its name."""
    FILE.write_text(text(results))
    return str(FILE.relative_to(ROOT))


def text(results: Path) -> str:
    """The page as Markdown."""
    table = {
        (data, method): summary(results, "peers", data, method)
        for data in DATA
        for method in PEERS
    }
    return "\n".join(_lines(table)).rstrip() + "\n"


def duels(table: Table, ours: str, metric: str) -> list[Duel]:
    """Ours against the best rival on every table where both have a score."""
    found = []
    for data in DATA:
        mine = _loss(table[data, ours], metric)
        rivals = {m: v for m in RIVALS if (v := _loss(table[data, m], metric)) is not None}
        if mine is None or not rivals:
            continue
        best = min(rivals, key=rivals.__getitem__)
        error = standard_error(table[data, ours], table[data, best], metric)
        found.append(Duel(data, metric, best, mine - rivals[best], error))
    return found


def standard_error(a: Summary, b: Summary, metric: str) -> float:
    """Of the difference of two means over seeds."""
    return math.sqrt(sum((s.sd(metric, PROTOCOL) or 0.0) ** 2 / len(s.runs) for s in (a, b)))


def mean_ranks(
    table: Table, metric: str, methods: Sequence[str], data: Sequence[str]
) -> dict[str, float]:
    """Mean rank of each method over tables where all have a score; 1 is best."""
    ranks = [rankdata([_loss(table[name, m], metric) for m in methods]) for name in data]
    return {m: statistics.mean(r[i] for r in ranks) for i, m in enumerate(methods)}


def _lines(table: Table) -> Iterator[str]:
    yield "# Beside what one would pick instead"
    yield ""
    yield from paragraph(INTRODUCTION)
    yield from _first(table)
    yield from _ranks(table)
    yield from _losses(table)
    yield from _bars(table)
    yield "## Scores"
    yield ""
    for metric, title in METRICS.items():
        yield f"### {title}"
        yield ""
        if metric == "log_loss":
            yield "Lower is better."
            yield ""
        yield from _scores(table, metric, DATA, EVERYWHERE)
        yield from _scores(table, metric, PAPER_DATA, SIX)
    yield from _reasons(table)
    yield from _presets(table)
    yield from _times(table)
    yield from _how(table)


def _first(table: Table) -> Iterator[str]:
    yield "## How often first"
    yield ""
    yield from paragraph(FIRST)
    heads = [
        f"{PEERS[m].title}: {what}" for m in OURS for what in ("first", "within one error")
    ]
    yield from _header(["", *heads])
    in_all: dict[str, list[Duel]] = {m: [] for m in OURS}
    for metric, title in METRICS.items():
        cells = []
        for method in OURS:
            found = duels(table, method, metric)
            in_all[method] += found
            cells += _counts(found)
        yield _row([title, *cells])
    yield _row(["**all**", *(text for m in OURS for text in _counts(in_all[m]))])
    yield ""


def _counts(found: list[Duel]) -> list[str]:
    if not found:
        return ["not run", "not run"]
    first, close = sum(d.first for d in found), sum(d.close for d in found)
    return [f"{first} of {len(found)}", f"{close} of {len(found)}"]


def _ranks(table: Table) -> Iterator[str]:
    yield "## Mean rank"
    yield ""
    data = [name for name in DATA if table[name, "mpvae"].runs]
    methods = [m for m in EVERYWHERE if data and all(table[name, m].runs for name in data)]
    if not data:
        yield "Not run."
        yield ""
        return
    yield from paragraph(RANK)
    yield from _header(["", *METRICS.values(), "mean"])
    ranks = {metric: mean_ranks(table, metric, methods, data) for metric in METRICS}
    in_all = {m: statistics.mean(ranks[metric][m] for metric in METRICS) for m in methods}
    for method in sorted(methods, key=in_all.__getitem__):
        cells = [
            _bold(f"{found[method]:.2f}", found[method] == min(found.values()))
            for found in (*ranks.values(), in_all)
        ]
        yield _row([PEERS[method].title, *cells])
    yield ""
    left_out = [PEERS[m].title for m in EVERYWHERE if m not in methods]
    without = f"; without {', '.join(left_out)}, which lack a table" if left_out else ""
    yield f"{len(methods)} methods on {len(data)} of {len(DATA)} tables{without}."
    yield ""


def _losses(table: Table) -> Iterator[str]:
    yield "## Where we lose"
    yield ""
    found = [d for metric in METRICS for d in duels(table, "mpvae", metric)]
    lost = sorted(
        (d for d in found if not d.first), key=lambda d: (DATA.index(d.data), d.metric)
    )
    if not lost:
        yield "Nowhere." if found else "Not run."
        yield ""
        return
    yield (
        f"MPVAE (default) is behind a rival in {len(lost)} of {len(found)} cells, in "
        f"{sum(not d.close for d in lost)} of them by more than one standard error."
    )
    yield ""
    yield from _header(["data set", "metric", "ours", "best rival", "", "behind by", "errors"])
    for d in lost:
        ours, best = (_shown(table[d.data, m], d.metric) for m in ("mpvae", d.rival))
        errors = f"{d.behind / d.error:.1f}" if d.error > 0 else "-"
        title, behind = PEERS[d.rival].title, f"{d.behind:.4f}"
        yield _row([d.data, METRICS[d.metric], ours, best, title, behind, errors])
    yield ""


def _bars(table: Table) -> Iterator[str]:
    yield "## The bars we set ourselves"
    yield ""
    yield "Score, bar in brackets, and whether it is met."
    yield ""
    yield from _header(["data set", "", *summaries.METRICS.values()])
    for (data, method), bars in BARS.items():
        cells = []
        for metric, bar in zip(summaries.METRICS, bars, strict=True):
            mean = table[data, method].mean(metric, PROTOCOL)
            if mean is None:
                cells.append(f"not run ({bar:g})")
            else:
                met = "met" if mean >= bar else f"**{bar - mean:.4f} short**"
                cells.append(f"{mean:.4f} ({bar:g}) {met}")
        yield _row([data, PEERS[method].title, *cells])
    yield ""


def _scores(
    table: Table, metric: str, data: Sequence[str], methods: Sequence[str]
) -> Iterator[str]:
    yield from _header(["", *(PEERS[m].title for m in methods)])
    for name in data:
        losses = [_loss(table[name, m], metric) for m in (*EVERYWHERE, *SIX)]
        best = min((round(v, 4) for v in losses if v is not None), default=None)
        cells = []
        for method in methods:
            found = table[name, method]
            loss = _loss(found, metric)
            first = loss is not None and round(loss, 4) == best
            cells.append(_bold(_shown(found, metric), first))
        yield _row([name, *cells])
    yield ""


def _reasons(table: Table) -> Iterator[str]:
    reasons = [
        f"{PEERS[method].title} on {data}: {found.reason}"
        for (data, method), found in table.items()
        if found.reason not in (None, "not run")
    ]
    if reasons:
        yield "No score: " + "; ".join(reasons) + "."
        yield ""


def _presets(table: Table) -> Iterator[str]:
    yield "## The presets fast and best"
    yield ""
    yield from paragraph(PRESET)
    yield from _header(["", *METRICS.values(), "tables"])
    for method in PRESETS:
        data = [d for d in DATA if table[d, method].runs and table[d, "mpvae"].runs]
        if not data:
            yield _row([PEERS[method].title, *["not run"] * len(METRICS), "0"])
            continue
        gaps = []
        for metric in METRICS:
            gap = [
                _mean(table[d, method], metric) - _mean(table[d, "mpvae"], metric) for d in data
            ]
            gaps.append(f"{statistics.mean(gap):+.4f}")
        yield _row([PEERS[method].title, *gaps, str(len(data))])
    yield ""
    shown = [d for d in DATA if any(table[d, m].runs for m in PRESETS)]
    if shown:
        yield from _header(["", "", *METRICS.values()])
        for data in shown:
            for method in PRESETS:
                cells = [_shown(table[data, method], metric) for metric in METRICS]
                yield _row([data, PEERS[method].title, *cells])
        yield ""


def _times(table: Table) -> Iterator[str]:
    yield "## Time to fit"
    yield ""
    yield from paragraph(TIME)
    yield from _header(["", "forest, seconds", *(PEERS[m].title for m in TIMED)])
    ratios: dict[str, list[float]] = {m: [] for m in TIMED}
    for data in DATA:
        forest = table[data, "forest"].seconds()
        cells = []
        for method in TIMED:
            seconds = table[data, method].seconds()
            if not forest or seconds is None:
                cells.append("not run")
            else:
                ratios[method].append(seconds / forest)
                cells.append(f"{seconds / forest:.2f}")
        yield _row([data, "not run" if forest is None else f"{forest:.1f}", *cells])
    medians = [f"**{statistics.median(r):.2f}**" if r else "not run" for r in ratios.values()]
    yield _row(["**median**", "", *medians])
    yield ""


def _how(table: Table) -> Iterator[str]:
    yield "## How it was run"
    yield ""
    bounds = {
        "tables": len(DATA),
        "seeds": len(SEEDS),
        "few": FEW_ROWS,
        "hours": MAX_SECONDS // 3600,
        "gb": f"{MAX_GB:.0f}",
    }
    yield from paragraph(HOW.format(**bounds))
    yield from _header(["", "learning rows", "test rows", "features", "labels", "split"])
    for data in DATA:
        shapes = [run["shape"] for m in PEERS for run in table[data, m].runs]
        keys = ("learning_rows", "test_rows", "features", "labels")
        counts = [f"{shapes[0][key]:,}" for key in keys] if shapes else ["not run"] * 4
        yield _row([data, *counts, "official" if EVERY[data].official else "one a seed"])
    yield ""
    yield from paragraph(SETTINGS.format(paper=", ".join(PAPER_DATA), certain=CERTAIN))


# ---------------------------------------------------------------- cells of a table


def _mean(found: Summary, metric: str) -> float | None:
    return found.mean(metric, PROTOCOL)


def _loss(found: Summary, metric: str) -> float | None:
    """Mean turned so that lower is better."""
    mean = _mean(found, metric)
    return mean if mean is None or metric == "log_loss" else -mean


def _shown(found: Summary, metric: str) -> str:
    """Mean and spread; the reason stands below the tables where there is none."""
    mean, sd = _mean(found, metric), found.sd(metric, PROTOCOL)
    if mean is None:
        return "not run" if found.reason == "not run" else "-"
    digits = 4 if metric in ("hamming", "log_loss") else 3
    spread = f" ± {sd:.{digits}f}" if sd is not None else ""
    few = f" ({len(found.runs)})" if found.lacking else ""
    return f"{mean:.{digits}f}{spread}{few}"


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _header(cells: Sequence[str]) -> Iterator[str]:
    yield _row(cells)
    yield "|---" * len(cells) + "|"
