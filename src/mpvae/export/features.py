"""Nodes that do what `mpvae.features.FeatureMap` does to a table."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, ValueInfoProto, helper

from mpvae.export.graph import Graph, doubles
from mpvae.export.maths import DOMAIN
from mpvae.features import KNOT_SHARES, OUTER_SHARE, SMALLEST, FeatureMap

NUMBERS = "X"
"""Input with all numeric columns; that of a text column is this, a dot and its name."""
_PLACES = 256  # knots and what fills them up to a power of two, to be halved


class Features(NamedTuple):
    """Mapped features by name: as trees take them, and as networks and kernels do."""

    float32: str  # (N, D)
    float64: str  # the same numbers


def inputs_of(features: FeatureMap, names: list[str]) -> list[ValueInfoProto]:
    """What the graph takes: the numbers, and each text column by itself."""
    inputs = []
    if len(features.numeric):
        inputs.append(doubles(NUMBERS, "rows", len(features.numeric)))
    for position in features.levels:
        name = f"{NUMBERS}.{names[position]}"
        inputs.append(helper.make_tensor_value_info(name, TensorProto.STRING, ["rows", 1]))
    return inputs


def add_features(graph: Graph, features: FeatureMap, names: list[str]) -> Features:
    """Features as networks, kernels and trees see them, (N, D)."""
    if features.row_length is not None:
        parts = [_short(graph, _to_length(graph, features, features.row_length), "scaled")]
    else:
        parts = _numbers(graph, features) if len(features.numeric) else []
        for position, levels in features.levels.items():
            parts.append(_levels(graph, position, names[position], levels))
    short = parts[0]
    if len(parts) > 1:
        short = graph.add("Concat", *parts, name="features/all", axis=1)
    return Features(short, graph.to_double(short, name="features/float64"))


def _numbers(graph: Graph, features: FeatureMap) -> list[str]:
    """Numbers standardised or ranked, NaN as 0; and a marker for each column with gaps."""
    missing = graph.add("IsNaN", NUMBERS, name="features/missing")
    mean = graph.constant("features/mean", features.mean)
    filled = graph.add("Where", missing, mean, NUMBERS, name="features/filled")
    centred = graph.add("Sub", filled, mean, name="features/centred")
    scale = graph.constant("features/scale", features.scale)
    z = graph.add("Div", centred, scale, name="features/standardised")
    if features.knots is not None:
        z = _with_scores(graph, features.knots, filled, z)
        zero = graph.constant("features/zero", 0.0)
        z = graph.add("Where", missing, zero, z, name="features/without_gaps")
    parts = [_short(graph, z, "numbers")]
    if len(features.marked):
        which = graph.constant("features/marked", features.marked, np.int64)
        marked = graph.add("Gather", missing, which, name="features/marked_missing", axis=1)
        parts.append(graph.add("Cast", marked, name="features/markers", to=TensorProto.FLOAT))
    return parts


def _with_scores(graph: Graph, knots: NDArray[np.float64], x: str, z: str) -> str:
    """Columns that have knots by their normal scores, the others as they are in ``z``."""
    is_ranked = ~np.isnan(knots[:, 0])
    ranked, plain = np.flatnonzero(is_ranked), np.flatnonzero(~is_ranked)
    if not len(ranked):
        return z
    if not len(plain):
        return _normal_scores(graph, knots, x)
    which = graph.constant("scores/which", ranked, np.int64)
    scores = _normal_scores(
        graph,
        knots[ranked],
        graph.add("Gather", x, which, name="scores/of_columns", axis=1),
    )
    others = graph.constant("scores/others", plain, np.int64)
    rest = graph.add("Gather", z, others, name="scores/not_ranked", axis=1)
    both = graph.add("Concat", scores, rest, name="scores/beside_others", axis=1)
    back = graph.constant("scores/order", np.argsort(np.r_[ranked, plain]), np.int64)
    return graph.add("Gather", both, back, name="scores/in_order", axis=1)


def _normal_scores(graph: Graph, knots: NDArray[np.float64], x: str) -> str:
    """Ranks among the training rows as quantiles of a normal distribution, (N, columns).

    Where x equals knots, the middle of their shares counts; so the share is found from both
    sides, by halving: from the last knot that is at most x, from the first that is at least x.
    """
    n_columns, n_knots = knots.shape
    first = graph.constant("scores/first_knot", knots[:, 0])
    last = graph.constant("scores/last_knot", knots[:, -1])
    within = graph.add("Max", x, first, name="scores/not_below")
    within = graph.add("Min", within, last, name="scores/within_knots")
    width = np.diff(knots)
    with np.errstate(over="ignore"):
        slope = np.diff(KNOT_SHARES) / np.where(width > 0, width, 1.0)
    # x is never strictly between two equal knots; between knots 1e-310 apart it is halfway
    slope[(width == 0) | np.isinf(slope)] = 0.0
    flat = np.zeros((n_columns, 1))
    filled = np.hstack([knots, np.full((n_columns, _PLACES - n_knots), np.inf)])
    tables = {
        "knots": filled,
        "slopes_up": np.hstack([slope, flat]),  # from a knot to the next
        "slopes_down": np.hstack([flat, slope]),  # to a knot from the one before
        "shares": np.tile(KNOT_SHARES, (n_columns, 1)),
    }
    named = {
        name: (graph.constant(f"scores/{name}", table.ravel()), table.shape[1])
        for name, table in tables.items()
    }
    columns = np.arange(n_columns)

    def looked_up(table: str, place: str, name: str) -> str:
        values, n = named[table]
        begin = graph.constant(f"scores/begin_{n}", columns * n, np.int64)
        at = graph.add("Add", place, begin, name=f"{name}.at")
        return graph.add("Gather", values, at, name=name)

    def counted(op: str, side: str) -> str:
        """How many knots are before x, (N, columns)."""
        found = ""
        step = _PLACES
        while step > 1:
            step //= 2
            ahead = graph.constant(f"scores/step_{step}", step, np.int64)
            here = f"scores/{side}.{step}"
            if found:
                less = graph.constant(f"scores/step_{step}_less_one", step - 1, np.int64)
                place = graph.add("Add", found, less, name=f"{here}.place")
                knot = looked_up("knots", place, f"{here}.knot")
            else:  # all columns begin at the same place
                knot = graph.constant(f"{here}.knot", filled[:, step - 1])
            before = graph.add(op, knot, x, name=f"{here}.before")
            taken = graph.add("Cast", before, name=f"{here}.taken", to=TensorProto.INT64)
            moved = graph.add("Mul", taken, ahead, name=f"{here}.moved")
            found = graph.add("Add", found, moved, name=here) if found else moved
        return found

    one, none = (graph.constant(f"scores/{k}", k, np.int64) for k in (1, 0))
    up = graph.add("Sub", counted("LessOrEqual", "up"), one, name="scores/last_at_most")
    up = graph.add("Max", up, none, name="scores/knot_below")  # the first, where x is below all
    knot = looked_up("knots", up, "scores/knot_up")
    past = graph.add("Sub", within, knot, name="scores/past")
    steep = looked_up("slopes_up", up, "scores/slope_up")
    more = graph.add("Mul", steep, past, name="scores/more")
    below = graph.add("Add", looked_up("shares", up, "scores/share_up"), more, name="scores/up")
    top = graph.constant("scores/last_place", n_knots - 1, np.int64)
    down = graph.add("Min", counted("Less", "down"), top, name="scores/knot_above")
    knot = looked_up("knots", down, "scores/knot_down")
    short = graph.add("Sub", knot, within, name="scores/short")
    steep = looked_up("slopes_down", down, "scores/slope_down")
    less = graph.add("Mul", steep, short, name="scores/less")
    share = looked_up("shares", down, "scores/share_down")
    above = graph.add("Sub", share, less, name="scores/down")
    both = graph.add("Add", below, above, name="scores/both_sides")
    middle = graph.add("Mul", both, graph.constant("scores/half", 0.5), name="scores/middle")
    low = graph.constant("scores/outer_share", OUTER_SHARE)
    high = graph.constant("scores/inner_share", 1 - OUTER_SHARE)
    return add_probit(
        graph, graph.add("Clip", middle, low, high, name="scores/share"), "scores"
    )


def add_probit(graph: Graph, p: str, scope: str) -> str:
    """Phi^-1(p), from the smaller of p and 1 - p."""
    one = graph.constant("one", 1.0)
    rest = graph.add("Sub", one, p, name=f"{scope}/rest")
    smaller = graph.add("Min", p, rest, name=f"{scope}/smaller")
    log = graph.add("Log", smaller, name=f"{scope}/log")
    distance = graph.add(
        "TailProbit",
        graph.add("Neg", log, name=f"{scope}/minus_log"),
        name=f"{scope}/distance",
        domain=DOMAIN,
    )
    side = graph.add("Sub", p, rest, name=f"{scope}/side")
    sign = graph.add("Sign", side, name=f"{scope}/sign")
    return graph.add("Mul", sign, distance, name=f"{scope}/probit")


def _to_length(graph: Graph, features: FeatureMap, length: float) -> str:
    """Rows of a model fitted on sparse ones: scaled, then brought to one length."""
    zero, one = graph.constant("features/zero", 0.0), graph.constant("one", 1.0)
    missing = graph.add("IsNaN", NUMBERS, name="features/missing")
    filled = graph.add("Where", missing, zero, NUMBERS, name="features/filled")
    unit = graph.constant("features/unit", 1 / np.maximum(features.scale, SMALLEST))
    scaled = graph.add("Mul", filled, unit, name="features/in_units")

    def safe(value: str) -> str:
        there = graph.add("Greater", value, zero, name=f"{value}.there")
        return graph.add("Where", there, value, one, name=f"{value}.or_one")

    sizes = graph.add("Abs", scaled, name="features/sizes")
    largest = graph.add("ReduceMax", sizes, graph.axes(1), name="features/largest", keepdims=1)
    parts = graph.add("Div", scaled, safe(largest), name="features/parts")
    norm = graph.add("ReduceL2", parts, graph.axes(1), name="features/norm", keepdims=1)
    wanted = graph.constant("features/row_length", length)
    longer = graph.add("Div", wanted, safe(norm), name="features/longer")
    return graph.add("Mul", parts, longer, name="features/to_length")


def _levels(graph: Graph, position: int, name: str, levels: tuple[str, ...]) -> str:
    """A 0/1 column for each level; text that is none of them is all 0."""
    scope = f"levels_{position}"  # names of columns may be anything
    known = graph.constant(f"{scope}/known", [levels], object)
    equal = graph.add("Equal", f"{NUMBERS}.{name}", known, name=f"{scope}/is")
    return graph.add("Cast", equal, name=f"{scope}/columns", to=TensorProto.FLOAT)


def _short(graph: Graph, z: str, name: str) -> str:
    """In float32; what is too large becomes the largest, not infinity."""
    largest = float(np.finfo(np.float32).max)
    low, high = (
        graph.constant("features/low", -largest),
        graph.constant("features/high", largest),
    )
    within = graph.add("Clip", z, low, high, name=f"features/{name}.within")
    return graph.add("Cast", within, name=f"features/{name}", to=TensorProto.FLOAT)
