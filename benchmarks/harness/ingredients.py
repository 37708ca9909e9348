"""What each part of the default is worth, by leaving it out: ``paper.py ingredients``.

The protocol is that of `harness.peers`; the whole default is its cell.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import peers
from harness.cells import Cell
from harness.datasets import ROOT
from harness.experiments import need
from harness.methods import PEERS
from harness.page import paragraph
from harness.peers import PROTOCOL
from harness.peers_page import METRICS
from harness.summary import Summary, summary
from mpvae.evidence import KINDS

FILE = ROOT / "docs" / "accuracy.md"
DATA = (
    "yeast",
    "scene",
    "sider",
    "norberg_birds",
    "norberg_vegetation",
    "stackex_chess",
    "yahoo_arts",
)
LEFT_OUT: dict[str, tuple[str, dict[str, Any]]] = {
    "no_base": ("base learners", {"base": None}),
    "no_forest": ("the forest", {"base": ["kernel", "boosting"]}),
    "no_kernel": ("the kernel machine", {"base": ["forest", "boosting"]}),
    "no_boosting": ("boosted trees", {"base": ["kernel", "forest"]}),
    "no_kernel_features": ("kernel features", {"kernel_features": 0}),
    "one_member": ("all networks but one", {"n_members": 1}),
    "no_dropout": ("dropout", {"dropout": 0.0, "dropout_inputs": 0.0, "dropout_decoder": 0.0}),
    "no_quantiles": ("ranks: features standardised", {"quantiles": False}),
    "paper_objective": ("the likelihood: the paper's objective", {"objective": "paper"}),
    "networks_only": ("all of it but networks", {"base": None, "kernel_features": 0}),
}


def cells(data: Iterable[str], seeds: Iterable[int]) -> list[Cell]:
    seeds = tuple(seeds)
    return peers.cells(data, ["mpvae"], seeds) + [
        Cell("ingredients", name, "mpvae", seed, variant)
        for name in data
        for variant in LEFT_OUT
        for seed in seeds
    ]


def known(cell: Cell, results: Path) -> dict[str, Any] | None:
    """As in `peers`; a part the default does not have on a table is not left out there."""
    if cell.experiment == "peers":
        return peers.without_running(cell, results)
    whole = need(Cell("peers", cell.data, "mpvae", cell.seed), results)
    if cell.variant in _absent(whole):
        return {"reason": "not part of the default here"}
    return None


def run(cell: Cell, results: Path) -> None:
    """Run a cell and write its file."""
    settings = LEFT_OUT[cell.variant][1] if cell.experiment == "ingredients" else {}
    peers.run(cell, results, replace(PEERS["mpvae"], grid=(settings,)))


def _absent(whole: dict[str, Any]) -> set[str]:
    """Parts that the default did not have, going by the settings its cell tells of."""
    had = whole["resolved"]
    absent = set()
    if not had["kernel_features"]:
        absent |= {"no_kernel_features"}
    if not had["quantiles"]:
        absent |= {"no_quantiles"}
    return absent | {f"no_{name}" for name in KINDS if name not in had["evidence"]}


# ---------------------------------------------------------------- page

INTRODUCTION = """
What the parts of `MPVAEClassifier()` are worth: each is left out in turn, all else stays.
This page is written by `mpvae benchmark page` from the cells that `mpvae benchmark ingredients`
makes; rows, thresholds and scores are as in [peers.md](peers.md). The first row is the default;
the others are differences from it, so that a minus is what the part is worth (for log-loss: a
plus).
"""

LEARNT = """
## What we learnt

Seen on rows left out or held out of training while the default was made; no command repeats
these comparisons, but for the parts in the tables below.

- **Base learners join after training.** The networks are trained alone; then their answers and
  those of a kernel machine, a forest and boosted trees meet on the probit scale, with weights
  fitted on rows that none has seen, for all labels first and then, held back by a penalty, for
  each. To start training at the base learner's answer was the first design.
  It needs the networks to learn from rows on which they soon look better than they are, so that
  they trust the evidence too little and stop too early: on texts with many labels it cost more
  than the evidence brought.

- **Kernel features** are for dense tables of 30 features and more. With fewer, networks on
  normal scores do as well without; on sparse rows, which have next to no near ones, they add
  nothing.

- **Leaves of three rows and more**: a forest of fully grown trees gives worse probabilities on
  every table tried, and takes longer. Of few features all are tried at each split, of more half
  of them, of sparse ones the square root.

- **Boosted trees share their splits among labels.** One randomised tree a round for all labels
  costs what one label's would, and measured better than boosting each label by itself.

- **Sparse columns by how rare they are.** Texts as counts divided by the largest count in a
  column make a common word weigh as much as a rare one. Inverse document frequency and one unit
  for all columns is the largest gain of the networks on texts, and a kernel machine has
  something to say there.
"""


def write(results: Path) -> str:
    """Write the page; return its name."""
    FILE.write_text(text(results))
    return str(FILE.relative_to(ROOT))


def text(results: Path) -> str:
    """The page as Markdown."""
    return "\n".join(_lines(results)).rstrip() + "\n"


def _lines(results: Path) -> Iterator[str]:
    yield "# Where the accuracy comes from"
    yield ""
    yield from paragraph(INTRODUCTION)
    yield LEARNT.strip()
    yield ""
    for data in DATA:
        yield f"## {data}"
        yield ""
        yield "| left out | " + " | ".join(METRICS.values()) + " | CPU s |"
        yield "|---" * (len(METRICS) + 2) + "|"
        whole = summary(results, "peers", data, "mpvae")
        yield _row("nothing: the default", [whole.text(m, PROTOCOL) for m in METRICS], whole)
        for variant, (title, _) in LEFT_OUT.items():
            found = summary(results, "ingredients", data, "mpvae", variant)
            if found.runs:
                yield _row(title, [_difference(found, whole, m) for m in METRICS], found)
        yield ""


def _difference(found: Summary, whole: Summary, metric: str) -> str:
    values, before = found.values(metric, PROTOCOL), whole.values(metric, PROTOCOL)
    if not before:
        return "-"
    n = min(len(values), len(before))
    mean = sum(a - b for a, b in zip(values[:n], before[:n], strict=True)) / n
    return f"{mean:+.4f}" + (f" ({n})" if n > 1 else "")


def _row(title: str, cells: list[str], found: Summary) -> str:
    seconds = found.seconds()
    return f"| {title} | " + " | ".join(cells) + f" | {seconds or 0:.0f} |"
