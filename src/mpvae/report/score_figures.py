"""Figures of how good predictions are, from the truth and probabilities."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from mpvae.metrics import precision_at_k
from mpvae.report.look import OURS, PALETTE, RIVAL, SYMBOLS, drawn, named_rows, shortened

_BINS = 10
_MOST_K = 20
_COLOURS = (OURS, RIVAL)


def scores_figure(scores: pd.DataFrame) -> go.Figure:
    """Scores with their intervals, as `Judged.scores` has them."""
    titles = list(dict.fromkeys(scores["metric"]))
    traces = []
    for k, (method, part) in enumerate(scores.groupby("method", sort=False)):
        place = np.array([titles.index(title) for title in part["metric"]])
        traces.append(
            go.Scatter(
                x=part["score"],
                y=place + 0.24 * k,  # side by side: intervals overlap
                mode="markers",
                name=str(method),
                customdata=part["metric"],
                marker={"color": _COLOURS[k % 2], "size": 11, "symbol": SYMBOLS[k]},
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": part["high"] - part["score"],
                    "arrayminus": part["score"] - part["low"],
                },
                hovertemplate="%{customdata} %{x:.4f}<extra>" + str(method) + "</extra>",
            )
        )
    return drawn(
        *traces,
        height=120 + 44 * len(titles),
        xaxis={"title": "score, 95 % interval"},
        yaxis={
            "autorange": "reversed",
            "automargin": True,
            "tickvals": np.arange(len(titles)) + 0.12 * (len(traces) - 1),
            "ticktext": titles,
            "showgrid": False,
            "zeroline": False,
        },
    )


def reliability_figure(
    Y: NDArray[np.float64], probabilities: Mapping[str, NDArray[np.float64]]
) -> go.Figure:
    """How often labels are present that were given a probability: the diagonal is honest."""
    traces: list[go.Scatter] = [
        go.Scatter(
            x=[0, 1],
            y=[0, 1],
            mode="lines",
            line={"dash": "dot", "color": "gray"},
            name="as promised",
            hoverinfo="skip",
        )
    ]
    for k, (method, P) in enumerate(probabilities.items()):
        bins = reliability(Y, P)
        traces.append(
            go.Scatter(
                x=bins["promised"],
                y=bins["found"],
                mode="lines+markers",
                name=method,
                marker={"color": _COLOURS[k % 2], "size": 9, "symbol": SYMBOLS[k]},
                line={"color": _COLOURS[k % 2]},
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": bins["high"] - bins["found"],
                    "arrayminus": bins["found"] - bins["low"],
                    "width": 2,
                },
                customdata=bins["n"],
                hovertemplate="promised %{x:.2f}, found %{y:.2f}<br>%{customdata} cells"
                "<extra>" + method + "</extra>",
            )
        )
    return drawn(
        *traces,
        height=430,
        xaxis={"title": "probability promised", "range": [-0.02, 1.02]},
        yaxis={"title": "share present", "range": [-0.02, 1.02]},
    )


def reliability(Y: NDArray[np.float64], P: NDArray[np.float64]) -> pd.DataFrame:
    """Mean probability and share present of cells in bins of equal width.

    With the 95 % interval of Wilson (1927), which tells few cells from many at 0 and 1 too.
    """
    truth, p = np.ravel(Y), np.ravel(P)
    known = ~np.isnan(truth)
    truth, p = truth[known], p[known]
    inside = np.minimum((p * _BINS).astype(int), _BINS - 1)
    n = np.bincount(inside, minlength=_BINS)
    kept = n > 0
    promised = np.bincount(inside, p, _BINS)[kept] / n[kept]
    found = np.bincount(inside, truth, _BINS)[kept] / n[kept]
    m, z2 = n[kept], 1.96**2
    middle = (found + z2 / (2 * m)) / (1 + z2 / m)
    half = 1.96 / (1 + z2 / m) * np.sqrt(found * (1 - found) / m + z2 / (4 * m**2))
    return pd.DataFrame(
        {
            "promised": promised,
            "found": found,
            "low": np.clip(middle - half, 0, found),
            "high": np.clip(middle + half, found, 1),
            "n": m,
        }
    )


def precision_figure(
    Y: NDArray[np.float64], probabilities: Mapping[str, NDArray[np.float64]]
) -> go.Figure:
    """Share of true labels among the K most probable ones."""
    ks = np.arange(1, min(Y.shape[1], _MOST_K) + 1)
    traces = [
        go.Scatter(
            x=ks,
            y=[precision_at_k(Y, P, int(k)) for k in ks],
            mode="lines+markers",
            name=method,
            marker={"color": _COLOURS[i % 2], "symbol": SYMBOLS[i], "size": 8},
            line={"color": _COLOURS[i % 2]},
            hovertemplate="precision@%{x} %{y:.3f}<extra>" + method + "</extra>",
        )
        for i, (method, P) in enumerate(probabilities.items())
    ]
    return drawn(
        *traces,
        height=380,
        xaxis={"title": "K", "dtick": max(1, len(ks) // 10)},
        yaxis={"title": "precision@K", "rangemode": "tozero"},
    )


def moved_figure(
    names: Sequence[str],
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    known: str,
    most: int = 10,
) -> go.Figure:
    """Probabilities of one row before and after one label is known to be present."""
    change = np.abs(after - before)
    change[list(names).index(known)] = -1
    shown = np.argsort(-change, kind="stable")[: min(most, len(names) - 1)]
    shown = shown[np.argsort(-(after - before)[shown], kind="stable")]
    labels = [str(names[k]) for k in shown]
    lines = [
        go.Scatter(
            x=[before[k], after[k]],
            y=[row, row],
            mode="lines",
            line={"color": "gray", "width": 2},
            showlegend=False,
            hoverinfo="skip",
        )
        for row, k in enumerate(shown)
    ]
    points = [
        go.Scatter(
            x=values[shown],
            y=np.arange(len(shown)),
            mode="markers",
            name=name,
            text=labels,
            marker={"color": colour, "size": 11, "symbol": symbol},
            hovertemplate="%{text} %{x:.3f}<extra>" + name + "</extra>",
        )
        for name, values, colour, symbol in (
            ("features alone", before, PALETTE[7], "circle-open"),
            (f"and {shortened(known)} is present", after, OURS, "circle"),
        )
    ]
    return drawn(
        *lines,
        *points,
        height=120 + 28 * len(shown),
        xaxis={"title": "probability", "range": [-0.02, 1.02]},
        yaxis=named_rows([shortened(label) for label in labels]),
    )
