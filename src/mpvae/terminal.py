"""What the command line shows and writes: consoles, tables of scores, files of predictions."""

from glob import has_magic
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mpvae.errors import printable
from mpvae.estimator import MPVAEClassifier
from mpvae.evidence import source_names
from mpvae.tuned import Tuned
from mpvae.writing import appending

out = Console(highlight=False, soft_wrap=True, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def hand_over(frame: pd.DataFrame, file: Path | None, what: str) -> None:
    """Print a table as CSV, or write it to a file and say ``what`` it holds."""
    with appending(file) as add:
        add(frame)
    if file is not None:
        out.print(f"{what} -> {plain(file)}")


def print_scores(scores: dict[str, float], heading: str) -> None:
    """Print a table of scores under a heading; nothing where there are none."""
    if not scores:
        return
    table = Table(plain(heading), "score")
    table.columns[1].justify = "right"
    for name, value in scores.items():
        table.add_row(title(name), f"{value:.4f}")
    out.print(table)


def made_of(model: MPVAEClassifier) -> str:
    """Networks of a model, and who else was asked."""
    return ", ".join([f"{len(model.networks_)} networks", *source_names(model.evidence_)])


def print_held_out(model: MPVAEClassifier) -> None:
    """Print the scores on held-out rows, and what to think of them."""
    print_scores(model.validation_scores_, "on rows held out of training")
    if model.validation_scores_:
        out.print("Thresholds were chosen on the same rows: evaluate on others to be sure.\n")


def print_tuned(tuned: Tuned) -> None:
    """Print default and best side by side: the score, then the settings that differ."""
    table = Table("on rows held out of training", "default", "best found")
    for column in table.columns[1:]:
        column.justify = "right"
    scores = tuned.default.score, tuned.best.score
    table.add_row(title(tuned.metric), *(f"{score:.4f}" for score in scores), end_section=True)
    for name, pair in tuned.changed.items():
        table.add_row(name, *(plain(shown(value)) for value in pair))
    out.print(table)
    if tuned.changed:
        out.print("The best of many trials is partly luck: evaluate on other rows to be sure.")
    else:
        out.print("Nothing better than the default was found.")


def shown(value: object) -> str:
    """Value of a setting as one writes it: layer widths as 512,256."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


def print_pairs(model: MPVAEClassifier, n: int) -> None:
    """Label pairs with the strongest residual correlation, given the features."""
    if len(model.label_names_) < 2:
        return
    table = Table("labels that hang together, given the features", "residual correlation")
    table.columns[1].justify = "right"
    for pair in model.associations(top=n).itertuples():
        name = f"{pair.label_a} / {pair.label_b}"
        table.add_row(plain(name), f"{pair.residual_correlation:+.2f}")
    out.print(table)


def title(metric: str) -> str:
    """Name of a metric as people write it."""
    full = {"hamming": "Hamming accuracy", "subset": "subset accuracy"}
    return full.get(metric, metric.replace("_", " ").replace("f1", "F1"))


def named(table: Path) -> str:
    """What a table is called: its file or folder, or the whole pattern."""
    return str(table) if has_magic(table.name) else table.name


def plain(text: str | Path) -> str:
    """Text that came from outside, so that neither rich nor the terminal obeys it."""
    return escape(printable(str(text)))
