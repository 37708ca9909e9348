"""The figures of docs/reproduction.md, drawn from the cells."""

import math
import statistics
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from harness.cells import Cell
from harness.datasets import SOURCES
from harness.experiments import (
    COVARIANCE_DATA,
    COVARIANCE_METHODS,
    NOISE_DATA,
    NOISE_LEVELS,
    NOISE_METHODS,
    PK_DATA,
)
from harness.methods import METHODS
from harness.summary import summary

# Okabe and Ito's colours, safe for colour-blind readers; markers tell lines apart in print.
COLOURS = (
    "#0072B2",
    "#56B4E9",
    "#E69F00",
    "#009E73",
    "#F0E442",
    "#D55E00",
    "#CC79A7",
    "#000000",
)
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*")
SHOWN = ("mpvae", "mpvae_paper", "mlknn", "mlaram", "sleec", "c2ae", "dmvp", "lamp", "forest")
plt.rcParams.update(
    {
        "svg.hashsalt": "mpvae",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)


def draw_all(results: Path, folder: Path) -> list[str]:
    """Draw what there are cells for; return the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, draw in {"pk": precision, "noise": noise, "cov": covariance}.items():
        figure = draw(results)
        if figure is None:
            continue
        file = f"reproduction_{name}.svg"
        figure.savefig(folder / file, bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)
        drawn.append(file)
    return drawn


def precision(results: Path):
    """Precision@K, K = 1..10."""
    figure, axes = plt.subplots(1, len(PK_DATA), figsize=(9, 3.6))
    for axis, data in zip(axes, PK_DATA, strict=True):
        for i, method in enumerate(SHOWN):
            runs = summary(results, "tables", data, method).runs
            if runs:
                curve = [
                    statistics.mean(k)
                    for k in zip(*(r["precision_at_k"] for r in runs), strict=True)
                ]
                axis.plot(range(1, len(curve) + 1), curve, **_style(i, method))
        _finish(axis, data, "K", "precision@K")
    axes[-1].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    return figure


def noise(results: Path):
    """Micro-F1 against the share of flipped labels, with one standard deviation."""
    if not (results / "noise").is_dir():
        return None
    figure, axes = plt.subplots(1, len(NOISE_DATA), figsize=(9, 3.6))
    levels = [0.0, *map(float, NOISE_LEVELS)]
    for axis, data in zip(axes, NOISE_DATA, strict=True):
        for i, method in enumerate(SHOWN):
            if method not in NOISE_METHODS:
                continue
            found = [summary(results, "tables", data, method)]
            found += [summary(results, "noise", data, method, level) for level in NOISE_LEVELS]
            points = [
                (level, s.mean("micro_f1"), s.sd("micro_f1") or 0.0)
                for level, s in zip(levels, found, strict=True)
                if s.runs
            ]
            if points:
                x, y, error = zip(*points, strict=True)
                axis.errorbar(x, y, error, capsize=2, **_style(i, method))
        _finish(axis, data, "share of training labels flipped", "micro-F1")
    axes[0].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    return figure


def covariance(results: Path):
    """t-SNE of the Cholesky rows of Sigma_g, the largest groups coloured."""
    panels = [
        (data, method, content)
        for data in COVARIANCE_DATA
        for method in COVARIANCE_METHODS
        if (content := Cell("covariance", data, method).read(results)) and "tsne" in content
    ]
    if not panels:
        return None
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(9, 4.4 * rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (data, method, content) in zip(axes.flat, panels, strict=False):
        groups = content["groups"]
        largest = sorted(set(groups) - {""}, key=lambda g: (-groups.count(g), g))[
            : len(COLOURS)
        ]
        x, y = zip(*content["tsne"], strict=True)
        axis.scatter(x, y, s=8, color="#cccccc", label="others")
        for group, colour, marker in zip(largest, COLOURS, MARKERS, strict=False):
            members = [i for i, g in enumerate(groups) if g == group]
            axis.scatter(
                [x[i] for i in members],
                [y[i] for i in members],
                s=28,
                color=colour,
                marker=marker,
                edgecolor="black",
                linewidth=0.3,
                label=f"{group} ({len(members)})",
            )
        axis.set_title(f"{data}, {METHODS[method].title}", loc="left", fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.legend(fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    return figure


def _style(i: int, method: str) -> dict:
    ours = method == "mpvae"
    return {
        "color": "#777777" if METHODS[method].kind == "peer" else COLOURS[i % len(COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "markersize": 5 if ours else 4,
        "linewidth": 2.2 if ours else 1.1,
        "linestyle": "-" if METHODS[method].kind != "peer" else "--",
        "label": METHODS[method].title,
    }


def _finish(axis, data: str, x: str, y: str) -> None:
    source = SOURCES[data]
    stands = "" if source.same else f", standing in for {source.paper}"
    axis.set_title(f"{data}{stands}", loc="left", fontsize=9)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
