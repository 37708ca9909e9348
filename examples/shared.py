"""What the examples share: their arguments, tables of the data folder, figures as files."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from mpvae.data import LabelledTable, data_folder, read_table


def arguments() -> tuple[dict[str, Any], Path | None]:
    """Settings for a quick run, if asked for, and where figures go."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="few rows and epochs: a test")
    parser.add_argument("--figures", type=Path, help="folder for the figures, as PNG")
    args = parser.parse_args()
    quick = {"hidden": (16,), "latent_dim": 3, "n_draws": 8, "n_members": 2, "max_epochs": 3}
    return (quick | {"base": None} if args.quick else {}), args.figures


def load(name: str, quick: dict[str, Any], labels: int | None = None) -> LabelledTable:
    """A table of the data folder ($MPVAE_DATA); for a quick run some of its rows and labels."""
    folder = data_folder() or Path(__file__).parents[2] / "shared" / "data"
    table = read_table(folder / f"{name}.npz")
    if not quick:
        return table
    splits, start = {}, 0
    rows = []
    for part, index in (table.splits or {"all": np.arange(len(table))}).items():
        some = index[:200]
        rows.append(some)
        splits[part] = np.arange(start, start + len(some))
        start += len(some)
    few = table.rows(np.concatenate(rows))
    L = labels or len(few.label_names)
    return LabelledTable(
        few.X,
        few.Y[:, :L],
        few.feature_names,
        few.label_names[:L],
        splits if table.splits else {},
        table.name,
    )


def save(folder: Path | None, name: str, figure: Any) -> None:
    """Write a figure where it was asked for."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        still = figure.update_layout(paper_bgcolor="white", plot_bgcolor="white")
        still.write_image(folder / f"{name}.png", width=900, scale=1.5)
