"""How figures look: colours that colour-blind readers tell apart, one template for all."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

# Okabe and Ito (2008); the first is ours, the second the rival's.
PALETTE = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#8c6bb1",
    "#7f7f7f",
)
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")
OURS, RIVAL = PALETTE[:2]
# Blue to orange by lightness and hue (after ColorBrewer's PuOr and RdBu): safe to print too.
DIVERGING = (
    (0.0, "#053061"),
    (0.15, "#2166ac"),
    (0.35, "#92c5de"),
    (0.5, "#f7f7f7"),
    (0.65, "#fdb863"),
    (0.85, "#d95f02"),
    (1.0, "#7f2704"),
)
_GRID = "rgba(128,128,128,0.25)"


def drawn(*traces: Any, height: int = 420, **layout: Any) -> go.Figure:
    """A figure with these traces, in the look of all."""
    figure = go.Figure(list(traces))
    axis = {"gridcolor": _GRID, "zerolinecolor": "rgba(128,128,128,0.6)", "automargin": True}
    figure.update_layout(
        template="none",
        font={"family": "system-ui, sans-serif", "size": 13},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 10, "r": 10, "t": 30, "b": 10},
        height=height,
        colorway=PALETTE,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hoverlabel={"align": "left"},
        xaxis=axis,
        yaxis=axis,
    )
    figure.update_layout(**layout)
    return figure


def named_rows(names: Sequence[str]) -> dict[str, Any]:
    """Axis with a name at 0, 1, ... from the top: two may be shortened to the same."""
    return {
        "tickvals": list(range(len(names))),
        "ticktext": list(names),
        "range": [len(names) - 0.5, -0.5],
        "automargin": True,
        "zeroline": False,
    }


def shortened(name: str, length: int = 28) -> str:
    """Name that fits beside an axis."""
    return name if len(name) <= length else name[: length - 1] + "…"
