"""Figures of a fitted model: what it has learnt of labels, as Plotly figures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from sklearn.manifold import TSNE

from mpvae.associations import leaf_order
from mpvae.errors import DataError
from mpvae.estimator import MPVAEClassifier
from mpvae.report.look import (
    DIVERGING,
    OURS,
    PALETTE,
    RIVAL,
    SYMBOLS,
    drawn,
    named_rows,
    shortened,
)

MAX_HEAT_LABELS = 1000
"""Labels of a heat map; of more, those of the strongest pairs."""
_NAMED = 60  # labels of a map that are all written beside their points
_LEAST_RANGE = 0.3  # of the colours of correlations
_NAME_WIDTH, _NAME_HEIGHT = 0.16, 0.05  # of a name, as shares of the map
_TERMS = {
    "total": "loss",
    "ce_x": "cross-entropy, from features",
    "ce_y": "cross-entropy, from labels",
    "rank_x": "ranking, from features",
    "rank_y": "ranking, from labels",
    "entropy_x": "entropy, from features",
    "entropy_y": "entropy, from labels",
    "kl": "KL divergence",
}


def correlation_figure(model: MPVAEClassifier, max_labels: int = MAX_HEAT_LABELS) -> go.Figure:
    """Heat map of the residual correlations, labels that go together beside each other."""
    names = chosen_labels(model, max_labels)
    R = model.correlation_block(names).to_numpy()
    order = leaf_order(R)
    names = [names[k] for k in order]
    R = R[np.ix_(order, order)].astype(np.float32)
    np.fill_diagonal(R, np.nan)  # says nothing, and would set the colours
    most = max(_LEAST_RANGE, float(np.nanmax(np.abs(R))))  # what is faint looks faint
    side = int(np.clip(16 * len(names) + 160, 380, 820))
    return drawn(
        go.Heatmap(
            z=R,
            x=names,
            y=names,
            colorscale=[list(stop) for stop in DIVERGING],
            zmin=-most,
            zmax=most,
            hovertemplate="%{y}<br>%{x}<br>residual correlation %{z:.2f}<extra></extra>",
            colorbar={"title": {"text": "residual<br>correlation"}, "thickness": 14},
        ),
        height=side,
        xaxis=_named_cells(names) | {"tickangle": -60},
        yaxis=_named_cells(names) | {"autorange": "reversed"},
    )


def _named_cells(names: Sequence[str]) -> dict[str, Any]:
    """Axis of a heat map: names, shortened, where there are few."""
    axis = {"showgrid": False, "automargin": True, "ticks": ""}
    if len(names) > _NAMED:
        return axis | {"showticklabels": False}
    return axis | {"tickvals": names, "ticktext": [shortened(name, 20) for name in names]}


def chosen_labels(model: MPVAEClassifier, most: int) -> list[str]:
    """All labels, or those of the strongest associations where there are more than ``most``."""
    names = list(map(str, model.label_names_))
    if len(names) <= most:
        return names
    pairs = model.associations(top=20 * most)
    both = pairs[["label_a", "label_b"]].to_numpy().ravel()
    return list(dict.fromkeys(map(str, both)))[:most]


def label_map_figure(model: MPVAEClassifier) -> go.Figure:
    """Labels on a map: those with similar rows of the Cholesky factor are near (t-SNE)."""
    place = label_places(model)
    names, groups = list(place.index), place["group"].to_numpy()
    written = set(names if len(names) <= _NAMED else _apart(place, model))
    share = (place["x"] - place["x"].min()) / (np.ptp(place["x"]) or 1.0)
    traces = []
    for group in np.unique(groups):
        here = groups == group
        own = [name for name, inside in zip(names, here, strict=True) if inside]
        traces.append(
            go.Scatter(
                x=place["x"][here],
                y=place["y"][here],
                mode="markers+text",
                text=[shortened(name, 20) if name in written else "" for name in own],
                customdata=own,
                textposition=[_inwards(at) for at in share[here]],
                textfont={"size": 11},
                cliponaxis=False,
                marker={
                    "color": PALETTE[group % len(PALETTE)],
                    "symbol": SYMBOLS[group % len(SYMBOLS)],
                    "size": 10 if len(names) <= _NAMED else 7,
                },
                name=f"group {group + 1}",
                hovertemplate="%{customdata}<extra>group " + str(group + 1) + "</extra>",
            )
        )
    hidden = {"visible": False}
    return drawn(*traces, height=560, xaxis=hidden, yaxis=hidden)


def _inwards(share: float) -> str:
    """Where a name stands beside its point, so that it stays inside at both edges."""
    return "top right" if share < 0.1 else "top left" if share > 0.9 else "top center"


def _apart(place: pd.DataFrame, model: MPVAEClassifier) -> list[str]:
    """Labels of strong associations whose names do not stand in each other's way."""
    x, y = (place[c] / (np.ptp(place[c]) or 1.0) for c in "xy")
    kept: list[str] = []
    for name in chosen_labels(model, 4 * _NAMED):
        near = (np.abs(x[kept] - x[name]) < _NAME_WIDTH) & (
            np.abs(y[kept] - y[name]) < _NAME_HEIGHT
        )
        if not near.any():
            kept.append(name)
    return kept


def label_places(model: MPVAEClassifier) -> pd.DataFrame:
    """Place ``x``, ``y`` and ``group`` of each label on the map."""
    names = list(map(str, model.label_names_))
    L = len(names)
    groups = model.label_groups().to_numpy()
    if L < 5:  # too few for neighbours: on a circle
        angle = 2 * np.pi * np.arange(L) / L
        places = np.column_stack([np.cos(angle), np.sin(angle)])
    else:
        vectors = model.label_embedding_
        near = TSNE(perplexity=min(30.0, (L - 1) / 3), init="pca", random_state=0)
        places = near.fit_transform(vectors.astype(np.float32))
    return pd.DataFrame({"x": places[:, 0], "y": places[:, 1], "group": groups}, index=names)


def associations_figure(model: MPVAEClassifier, n: int = 12) -> go.Figure:
    """The strongest positive and negative pairs: residual correlation, and the raw one."""
    pairs = strongest_pairs(model, n)
    both = list(zip(pairs["label_a"], pairs["label_b"], strict=True))
    whole = [f"{a} / {b}" for a, b in both]
    residual = pairs["residual_correlation"]
    share = [
        "" if np.isnan(s) else f"<br>features explain {100 * s:.0f} % of the raw correlation"
        for s in pairs["share_by_features"]
    ]
    rows = np.arange(len(pairs))
    return drawn(
        go.Scatter(
            x=residual,
            y=rows,
            mode="markers",
            name="given the features (residual), with 95 % interval",
            marker={"color": OURS, "size": 10},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": (pairs["high"] - residual).fillna(0),
                "arrayminus": (residual - pairs["low"]).fillna(0),
                "color": OURS,
            },
            text=whole,
            customdata=share,
            hovertemplate="%{text}<br>residual %{x:.2f}%{customdata}<extra></extra>",
        ),
        go.Scatter(
            x=pairs["raw_correlation"],
            y=rows,
            mode="markers",
            name="with what the features bring about (raw)",
            marker={"color": RIVAL, "size": 9, "symbol": "diamond-open"},
            text=whole,
            hovertemplate="%{text}<br>raw %{x:.2f}<extra></extra>",
        ),
        height=110 + 26 * len(rows),
        xaxis={"title": "correlation", "zeroline": True, "range": [-1.02, 1.02]},
        yaxis=named_rows([f"{shortened(a, 24)} / {shortened(b, 24)}" for a, b in both]),
    )


def strongest_pairs(model: MPVAEClassifier, n: int) -> pd.DataFrame:
    """The ``n`` most positive and the ``n`` most negative pairs, from the one to the other."""
    L = len(model.label_names_)
    if L < 2:
        raise DataError("one label has no pairs")
    many = L > MAX_HEAT_LABELS
    pairs = model.associations(top=100_000) if many else model.associations()
    pairs = pairs.sort_values("residual_correlation", ascending=False, ignore_index=True)
    up = pairs[pairs["residual_correlation"] > 0].head(n)
    down = pairs[pairs["residual_correlation"] < 0].tail(n)
    return pd.concat([up, down], ignore_index=True)


def training_figure(model: MPVAEClassifier) -> go.Figure:
    """Every loss term, and the score on held-out rows, after each epoch of each network."""
    history = model.history_
    scores = [name for name in map(str, history) if name.startswith("val_")]
    shown = {name: title for name, title in _TERMS.items() if _varies(history, name)}
    shown |= {
        name: f"held out: {name.removeprefix('val_').replace('_', ' ')}"
        for name in scores
        if history[name].notna().any()
    }
    columns = 3
    rows = max(1, -(-len(shown) // columns))
    figure = make_subplots(rows, columns, subplot_titles=list(shown.values()))
    for k, name in enumerate(shown):
        for member in range(len(model.networks_)):
            part = history[history["member"] == member]
            figure.add_scatter(
                x=part["epoch"],
                y=part[name],
                mode="lines",
                line={"width": 1.5, "color": PALETTE[member % len(PALETTE)]},
                name=f"network {member + 1}",
                legendgroup=str(member),
                showlegend=k == 0,
                hovertemplate="epoch %{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
                row=k // columns + 1,
                col=k % columns + 1,
            )
    look = drawn(height=80 + 230 * rows).layout
    figure.update_layout(
        template="none",
        font=look.font,
        height=look.height,
        paper_bgcolor=look.paper_bgcolor,
        plot_bgcolor=look.plot_bgcolor,
        margin={"l": 40, "r": 10, "t": 60, "b": 30},
        legend={"orientation": "h", "y": -0.12},
        showlegend=len(model.networks_) > 1,
    )
    figure.update_annotations(font_size=12)
    figure.update_xaxes(gridcolor="rgba(128,128,128,0.25)", automargin=True)
    figure.update_xaxes(title="epoch", title_font_size=11, title_standoff=4)
    figure.update_yaxes(gridcolor="rgba(128,128,128,0.25)", automargin=True)
    return figure


def _varies(history: pd.DataFrame, name: str) -> bool:
    return name in history and bool(history[name].notna().any() and history[name].any())


def latent_figure(model: MPVAEClassifier, X: Any, most: int = 25) -> go.Figure:
    """What moving each latent dimension does to the probability of each label.

    From one standard deviation below its mean given the features to one above, on average
    over the rows; first network. Dimensions that do most come first.
    """
    effects = model.latent_effects(X).to_numpy()
    strongest = np.argsort(-np.abs(effects).max(1), kind="stable")[:most]
    which = np.argsort(-np.abs(effects).max(0), kind="stable")[: 4 * _NAMED]
    E = effects[np.ix_(strongest, which)]
    with np.errstate(invalid="ignore", divide="ignore"):  # labels that nothing moves
        alike = np.nan_to_num(np.atleast_2d(np.corrcoef(E.T)))
    order = leaf_order(alike)
    E = E[:, order].astype(np.float32)
    names = [str(model.label_names_[which[k]]) for k in order]
    largest = float(np.abs(E).max()) or 1.0
    return drawn(
        go.Heatmap(
            z=E,
            x=names,
            y=[f"z{k + 1}" for k in strongest],
            colorscale=[list(stop) for stop in DIVERGING],
            zmin=-largest,
            zmax=largest,
            hovertemplate="%{y} up by two sd<br>%{x}: %{z:+.3f}<extra></extra>",
            colorbar={"title": {"text": "change of<br>probability"}, "thickness": 14},
        ),
        height=140 + 22 * len(strongest),
        xaxis=_named_cells(names) | {"tickangle": -60},
        yaxis={"autorange": "reversed", "showgrid": False, "title": "latent dimension"},
    )
