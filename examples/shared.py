"""What the examples share: their arguments, tables of the data folder, figures as files."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from mpvae.data import LabelledTable, data_folder, read_table

QUICK = {"hidden": (16,), "latent_dim": 3, "n_draws": 8, "n_members": 2, "max_epochs": 3}


def arguments() -> tuple[dict[str, Any], Path | None]:
    """Settings of a quick run, if one is asked for, and where figures go."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="few rows and epochs: a test")
    parser.add_argument("--figures", type=Path, help="folder for the figures, as PNG")
    args = parser.parse_args()
    return (QUICK | {"base": None} if args.quick else {}), args.figures


def load(name: str, quick: dict[str, Any]) -> LabelledTable:
    """A table of the data folder ($MPVAE_DATA); for a quick run, some rows of each part."""
    folder = data_folder() or Path(__file__).parents[2] / "shared" / "data"
    table = read_table(folder / f"{name}.npz")
    if not quick:
        return table
    parts = table.splits or {"all": np.arange(len(table))}
    index = [rows[:200] for rows in parts.values()]
    few = table.rows(np.concatenate(index))
    ends = np.cumsum([len(rows) for rows in index])
    own = np.split(np.arange(len(few)), ends[:-1])
    splits = dict(zip(table.splits, own, strict=False))
    return LabelledTable(few.X, few.Y, few.feature_names, few.label_names, splits, name)


def apart(table: LabelledTable) -> tuple[LabelledTable, LabelledTable]:
    """Four fifths of the rows to learn from, one to ask about."""
    order = np.random.default_rng(0).permutation(len(table))
    cut = len(order) * 4 // 5
    return table.rows(order[:cut]), table.rows(order[cut:])


def save(folder: Path | None, name: str, figure: Any) -> None:
    """Write a figure where it was asked for."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        still = figure.update_layout(paper_bgcolor="white", plot_bgcolor="white")
        still.write_image(folder / f"{name}.png", width=900, scale=1.5)
