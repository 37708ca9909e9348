"""docs/reproduction.md, written from the cells; only its words are typed by hand."""

import statistics
from collections.abc import Iterator
from pathlib import Path

from harness import figures, words
from harness.cells import MAX_GB, MAX_SECONDS, Cell
from harness.datasets import ROOT, SOURCES, split
from harness.experiments import (
    ABLATION_DATA,
    ABLATIONS,
    COVARIANCE_DATA,
    COVARIANCE_METHODS,
    DEFAULT_ABLATIONS,
    SEARCH_BELOW,
    SEEDS,
)
from harness.methods import METHODS
from harness.summary import METRICS, Summary, published, summary

FILE = ROOT / "docs" / "reproduction.md"
IMAGES = ROOT / "docs" / "images"
SAME = [name for name, source in SOURCES.items() if source.same]
RIVALS = [name for name, method in METHODS.items() if method.kind == "paper"]


def write(results: Path) -> str:
    """Write the page and its figures; return the page's name."""
    drawn = figures.draw_all(results, IMAGES)
    FILE.write_text(text(results, drawn))
    return str(FILE.relative_to(ROOT))


def text(results: Path, drawn: list[str]) -> str:
    """The page, showing the figures that were drawn."""
    return "\n".join(_lines(results, drawn)).rstrip() + "\n"


def _lines(results: Path, drawn: list[str]) -> Iterator[str]:
    tables = {
        (data, method): summary(results, "tables", data, method)
        for data in SOURCES
        for method in METHODS
    }
    yield "# Reproduction of the paper"
    yield ""
    yield from paragraph(words.INTRODUCTION)
    yield from _protocol(results)
    for number, names in {
        "Table 1: F1 scores": ["example_f1", "micro_f1", "macro_f1"],
        "Table 2: Hamming accuracy": ["hamming"],
    }.items():
        yield f"## {number}"
        yield ""
        for metric in names:
            if len(names) > 1:
                yield f"### {METRICS[metric]}"
                yield ""
            yield from _table(tables, metric)
    yield from _beside_published(results, tables)
    yield from _losses(tables)
    yield from _times(tables)
    yield from _figures(results, drawn)
    yield from _ablation(results)
    yield "## What differs from the paper, and why"
    yield ""
    yield from paragraph(words.DIFFERENCES)


def _protocol(results: Path) -> Iterator[str]:
    yield "## How it was run"
    yield ""
    bounds = {
        "seeds": len(SEEDS),
        "search": f"{SEARCH_BELOW:.0f}",
        "minutes": MAX_SECONDS // 60,
        "gb": f"{MAX_GB:.0f}",
    }
    yield from paragraph(words.PROTOCOL.format(**bounds))
    yield from paragraph(words.ROWS)
    yield "| data set | in the paper | rows: train / validation / test | |"
    yield "|---|---|---|---|"
    for name, source in SOURCES.items():
        part = split(name)
        counts = " / ".join(f"{int((part == code).sum()):,}" for code in range(3))
        kind = "the same" if source.same else f"stands in for **{source.paper}**"
        yield f"| {name} | {kind} | {counts} | {source.note} |"
    yield ""


def _table(tables: dict[tuple[str, str], Summary], metric: str) -> Iterator[str]:
    yield "| | " + " | ".join(SOURCES) + " |"
    yield "|---" * (len(SOURCES) + 1) + "|"
    best = {data: _best(tables, data, metric) for data in SOURCES}
    for method, what in METHODS.items():
        cells = []
        for data in SOURCES:
            found = tables[data, method]
            shown = _short(found, metric)
            cells.append(f"**{shown}**" if method in best[data] and found.runs else shown)
        yield f"| {what.title} | " + " | ".join(cells) + " |"
    yield ""
    reasons = _reasons(tables)
    if reasons and metric in ("macro_f1", "hamming"):
        yield "No score: " + "; ".join(reasons) + "."
        yield ""


def _reasons(tables: dict[tuple[str, str], Summary]) -> list[str]:
    return [
        f"{METHODS[method].title} on {data}: {found.reason}"
        for (data, method), found in tables.items()
        if not found.runs
    ]


def _short(found: Summary, metric: str) -> str:
    mean, sd = found.mean(metric), found.sd(metric)
    if mean is None:
        return "-"
    digits = 4 if metric == "hamming" else 3
    text = f"{mean:.{digits}f}"[1:]
    spread = f" ± {sd:.{digits}f}".replace("0.", ".") if sd is not None else ""
    return text + spread + (f" ({len(found.runs)})" if found.lacking else "")


def _best(tables: dict[tuple[str, str], Summary], data: str, metric: str) -> set[str]:
    means = {m: tables[data, m].mean(metric) for m in METHODS}
    known = {m: round(value, 4) for m, value in means.items() if value is not None}
    return {m for m, value in known.items() if value == max(known.values())}


def _beside_published(results: Path, tables: dict[tuple[str, str], Summary]) -> Iterator[str]:
    yield "## Beside the published numbers"
    yield ""
    yield from paragraph(words.PUBLISHED)
    for metric, title in METRICS.items():
        yield f"### {title}"
        yield ""
        yield "| data set | method | validation | on test | at ½ | published | difference |"
        yield "|---|---|---|---|---|---|---|"
        for data in SAME:
            for method in [*RIVALS, "mpvae_paper", "mpvae"]:
                found = tables[data, method]
                paper = published(metric, data, method)
                mean = found.mean(metric)
                if mean is None:
                    cells = ["-", "-", "-", f"{paper:.4f}", found.reason or ""]
                else:
                    more = [f"{found.mean(metric, p):.4f}" for p in ("best_on_test", "half")]
                    gap = f"{mean - paper:+.4f}"
                    cells = [found.text(metric), *more, f"{paper:.4f}", gap]
                yield f"| {data} | {METHODS[method].title} | " + " | ".join(cells) + " |"
        yield ""
    yield "### Where a rival is off by more than .03 in micro-F1"
    yield ""
    for data in SAME:
        for method in RIVALS:
            mean = tables[data, method].mean("micro_f1")
            paper = published("micro_f1", data, method)
            if mean is None or abs(mean - paper) > words.CLOSE:
                shown = "no score" if mean is None else f"{mean:.4f}, {mean - paper:+.4f}"
                why = words.explanation(results, tables[data, method], data, method)
                title = METHODS[method].title
                yield f"- **{title} on {data}** ({shown}; published {paper:.4f}): {why}"
    yield ""


def _losses(tables: dict[tuple[str, str], Summary]) -> Iterator[str]:
    yield "## Who wins, and where we lose"
    yield ""
    yield "| data set | " + " | ".join(METRICS.values()) + " |"
    yield "|---" * (len(METRICS) + 1) + "|"
    behind = []
    for data in SOURCES:
        cells = []
        for metric in METRICS:
            winners = _best(tables, data, metric)
            cells.append(", ".join(METHODS[m].title for m in METHODS if m in winners))
            ours = tables[data, "mpvae"].mean(metric)
            if winners and ours is not None and "mpvae" not in winners:
                top = max(v for m in METHODS if (v := tables[data, m].mean(metric)) is not None)
                behind.append((data, metric, top - ours))
        yield f"| {data} | " + " | ".join(cells) + " |"
    yield ""
    if behind:
        mean = statistics.mean(gap for _, _, gap in behind)
        data, metric, gap = max(behind, key=lambda entry: entry[2])
        yield (
            f"Our networks are not first in {len(behind)} of {len(SOURCES) * len(METRICS)} "
            f"cells; there they are {mean:.4f} behind on average, most on {data} "
            f"({METRICS[metric]}, {gap:.4f})."
        )
        yield ""


def _times(tables: dict[tuple[str, str], Summary]) -> Iterator[str]:
    yield "## Time to fit"
    yield ""
    yield "Seconds of processor time on one core."
    yield ""
    yield "| | " + " | ".join(SOURCES) + " |"
    yield "|---" * (len(SOURCES) + 1) + "|"
    for method, what in METHODS.items():
        cells = [
            "-" if (s := tables[data, method].seconds()) is None else f"{s:.1f}"
            for data in SOURCES
        ]
        yield f"| {what.title} | " + " | ".join(cells) + " |"
    yield ""
    memory = [run["peak_gb"] for run in tables["delicious", "mpvae"].runs]
    if memory:
        yield f"MPVAE (our networks) on delicious, 983 labels: {max(memory):.1f} GB at most."
        yield ""


def _figures(results: Path, drawn: list[str]) -> Iterator[str]:
    yield "## Figures"
    yield ""
    if "reproduction_pk.svg" in drawn:
        yield "### Precision@K"
        yield ""
        yield "![Precision at K](images/reproduction_pk.svg)"
        yield ""
    if "reproduction_noise.svg" in drawn:
        yield "### Noisy labels"
        yield ""
        yield from paragraph(words.NOISE)
        yield "![Micro-F1 under label noise](images/reproduction_noise.svg)"
        yield ""
    if "reproduction_cov.svg" in drawn:
        yield from _covariance(results)


def _covariance(results: Path) -> Iterator[str]:
    yield "### The covariance"
    yield ""
    yield from paragraph(words.COVARIANCE)
    yield "![Label map](images/reproduction_cov.svg)"
    yield ""
    yield from paragraph(words.NEIGHBOURS)
    yield "| data set | model | likeness by | same group | chance | p |"
    yield "|---|---|---|---|---|---|"
    kinds = {
        "cholesky_rows": "Cholesky rows (the paper's claim)",
        "sigma_g": "correlation from Sigma_g",
        "residual_correlation": "residual correlation, z and factors",
        "raw_co_occurrence": "raw correlation of the labels, no model",
    }
    for data in COVARIANCE_DATA:
        for method in COVARIANCE_METHODS:
            cells = [Cell("covariance", data, method, seed).read(results) for seed in SEEDS]
            found = [c["same_group_neighbours"] for c in cells if c and "reason" not in c]
            for kind, title in kinds.items() if found else ():
                share = [f[kind]["share"] for f in found]
                sd = f" ± {statistics.stdev(share):.3f}" if len(set(share)) > 1 else ""
                chance = statistics.mean(f[kind]["chance"] for f in found)
                p = max(f[kind]["p"] for f in found)
                yield (
                    f"| {data} | {METHODS[method].title} | {title} | "
                    f"{statistics.mean(share):.3f}{sd} | {chance:.3f} | {p:.4f} |"
                )
    yield ""


def _ablation(results: Path) -> Iterator[str]:
    yield "## What each part is worth"
    yield ""
    yield from paragraph(words.ABLATION)
    for data in ABLATION_DATA:
        yield f"### {data}"
        yield ""
        yield from _ablation_table(results, data, "mpvae_paper", list(ABLATIONS))
    yield "### Our networks, for many labels of many features"
    yield ""
    yield from paragraph(words.DEFAULT_ABLATION)
    for data, variants in DEFAULT_ABLATIONS.items():
        yield f"{data}:"
        yield ""
        yield from _ablation_table(results, data, "mpvae", list(variants))


def _ablation_table(
    results: Path, data: str, method: str, variants: list[str]
) -> Iterator[str]:
    held_out = "micro-F1 on held-out rows"
    yield "| | " + " | ".join(METRICS.values()) + f" | log-loss | {held_out} |"
    yield "|---" * (len(METRICS) + 3) + "|"
    for variant in variants:
        found = summary(results, "ablation", data, method, variant)
        cells = [found.text(metric) for metric in METRICS]
        if found.runs:
            log_loss = statistics.mean(run["ranking"]["log_loss"] for run in found.runs)
            judged = [run["on_validation_rows"]["micro_f1"] for run in found.runs]
            cells += [f"{log_loss:.4f}", f"{statistics.mean(judged):.4f}"]
        else:
            cells += [found.reason or "", "-"]
        yield f"| {words.ABLATIONS[variant]} | " + " | ".join(cells) + " |"
    yield ""


def paragraph(text: str) -> Iterator[str]:
    """Text as Markdown: lines of a paragraph or an item joined, an empty line behind each."""
    for block in text.strip().split("\n\n"):
        yield from (
            " ".join(part.split()) for part in block.replace("\n- ", "\0- ").split("\0")
        )
        yield ""
