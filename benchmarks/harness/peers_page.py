"""docs/peers.md, written from the cells; only its words and bars are typed by hand."""

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scipy.stats import rankdata

from harness import peers_words as words
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
        against = []
        for rival in RIVALS:
            a, b = comparable([table[data, ours], table[data, rival]], data)
            if a.runs and b.runs:
                behind = _loss(a, metric) - _loss(b, metric)
                error = standard_error(a, b, metric, paired=not EVERY[data].official)
                against.append(Duel(data, metric, rival, behind, error))
        if against:
            found.append(max(against, key=lambda duel: duel.behind))
    return found


def comparable(found: Sequence[Summary], data: str) -> list[Summary]:
    """Where every seed has its own test rows, the seeds that all have run."""
    if EVERY[data].official:
        return list(found)
    seeds = set.intersection(*(one.seeds for one in found))
    return [one.of_seeds(seeds) for one in found]


def standard_error(a: Summary, b: Summary, metric: str, *, paired: bool) -> float:
    """Of the difference of two means over seeds; paired where a seed has its own test rows."""
    if paired:
        pairs = zip(a.values(metric, PROTOCOL), b.values(metric, PROTOCOL), strict=True)
        apart = [x - y for x, y in pairs]
        return statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0
    return math.sqrt(sum((s.sd(metric, PROTOCOL) or 0.0) ** 2 / len(s.runs) for s in (a, b)))


def mean_ranks(
    table: Table, metric: str, methods: Sequence[str], data: Sequence[str]
) -> dict[str, float]:
    """Mean rank of each method over tables where all have a score; 1 is best."""
    ranks = []
    for name in data:
        found = comparable([table[name, m] for m in methods], name)
        ranks.append(rankdata([_loss(one, metric) for one in found]))
    return {m: statistics.mean(r[i] for r in ranks) for i, m in enumerate(methods)}


def _lines(table: Table) -> Iterator[str]:
    yield "# Beside what one would pick instead"
    yield ""
    yield from paragraph(words.INTRODUCTION)
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
    yield from paragraph(words.FIRST)
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
    methods = [m for m in EVERYWHERE if any(table[name, m].runs for name in DATA)]
    data = [
        name
        for name in DATA
        if methods and all(s.runs for s in comparable([table[name, m] for m in methods], name))
    ]
    if not data:
        yield "Not run."
        yield ""
        return
    yield from paragraph(words.RANK)
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
    left_out = [name for name in DATA if name not in data]
    without = f"; without {', '.join(left_out)}, where one has none" if left_out else ""
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
        f"{sum(not d.close for d in lost)} of them by more than one standard error (of one run "
        "each: by anything)."
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
        if not any(table[name, m].runs for m in RIVALS):
            best = None  # first of one
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
    yield from paragraph(words.PRESET)
    yield from _header(["", *METRICS.values(), "tables"])
    for method in PRESETS:
        both = [comparable([table[d, method], table[d, "mpvae"]], d) for d in DATA]
        both = [pair for pair in both if all(one.runs for one in pair)]
        if not both:
            yield _row([PEERS[method].title, *["not run"] * len(METRICS), "0"])
            continue
        gaps = []
        for metric in METRICS:
            gap = [_mean(ours, metric) - _mean(default, metric) for ours, default in both]
            gaps.append(f"{statistics.mean(gap):+.4f}")
        yield _row([PEERS[method].title, *gaps, str(len(both))])
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
    yield from paragraph(words.TIME)
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
    yield from paragraph(words.HOW.format(**bounds))
    yield from _header(["", "learning rows", "test rows", "features", "labels", "split"])
    for data in DATA:
        shapes = [run["shape"] for m in PEERS for run in table[data, m].runs]
        keys = ("learning_rows", "test_rows", "features", "labels")
        counts = [f"{shapes[0][key]:,}" for key in keys] if shapes else ["not run"] * 4
        yield _row([data, *counts, "official" if EVERY[data].official else "one a seed"])
    yield ""
    yield from paragraph(words.SETTINGS.format(paper=", ".join(PAPER_DATA), certain=CERTAIN))


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
