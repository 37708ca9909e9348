r"""Functions ONNX lacks, or runtimes have in float32 alone: normal cdf and probit.

Both are smooth functions of a suitable variable, so a polynomial through Chebyshev points has
them to rounding (a relative error of 1e-14 in the cdf, an absolute one of 2e-12 in the probit,
tested); it is fitted here, by NumPy, when a model is exported. In a file they are functions
of the domain ``mpvae``, which viewers show as one node each.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from onnx import FunctionProto, NodeProto, helper, numpy_helper
from scipy.special import erfcx, ndtri_exp

DOMAIN = "mpvae"
OPSETS = {"": 19, "ai.onnx.ml": 3, DOMAIN: 1}
_BEND = 3.75  # of erfcx: half of its polynomial is spent below
_FARTHEST = 800.0  # -log of a probability; smaller ones count as this
_NEAREST = np.log(2)  # the same at one half


def functions() -> list[FunctionProto]:
    """What a file has to hold for nodes `NormalCdf` and `TailProbit`."""
    return [_normal_cdf(), _tail_probit()]


def opsets(*domains: str) -> list[Any]:
    """Versions of the operators used."""
    return [helper.make_opsetid(domain, OPSETS[domain]) for domain in domains]


@cache
def _cdf_coefficients() -> NDArray[np.float64]:
    """Of (1 + 2 v) erfcx(v), by powers of (v - bend) / (v + bend)."""

    def value(t: NDArray[np.float64]) -> NDArray[np.float64]:
        v = _BEND * (1 + t) / (1 - t)
        return np.asarray((1 + 2 * v) * erfcx(v))

    return _polynomial(value, 20)


@cache
def _probit_coefficients() -> NDArray[np.float64]:
    """Of -Phi^-1(q), q <= 1/2, by powers of log(-log q), scaled to [-1, 1]."""
    low, high = np.log(_NEAREST), np.log(_FARTHEST)

    def value(t: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(-ndtri_exp(-np.exp(low + (t + 1) / 2 * (high - low))))

    return _polynomial(value, 22)


def _polynomial(
    value: Callable[[NDArray[np.float64]], NDArray[np.float64]], degree: int
) -> NDArray[np.float64]:
    """Coefficients, the constant first, of a polynomial close to ``value`` on [-1, 1]."""
    points = chebyshev.chebpts1(degree + 1)
    through = chebyshev.chebfit(points, value(points), degree)
    return np.asarray(chebyshev.cheb2poly(through), np.float64)


def _normal_cdf() -> FunctionProto:
    """Phi(t) = erfc(v) / 2 for t <= 0, v = |t| / sqrt 2; erfc(v) = exp(-v^2) erfcx(v)."""
    body = _Body()
    body.add("Abs", "t", to="size")
    v = body.add("Mul", "size", body.number(np.sqrt(0.5)), to="v")
    below = body.add("Sub", v, body.number(_BEND), to="below")
    above = body.add("Add", v, body.number(_BEND), to="above")
    top = body.polynomial(_cdf_coefficients(), body.add("Div", below, above, to="place"))
    twice = body.add("Add", v, v, to="twice")
    under = body.add("Add", twice, body.number(1.0), to="under")
    square = body.add("Mul", v, v, to="square")
    peak = body.add("Exp", body.add("Neg", square, to="minus_square"), to="peak")
    scaled = body.add("Div", top, under, to="erfcx")
    erfc = body.add("Mul", peak, scaled, to="erfc")
    tail = body.add("Mul", erfc, body.number(0.5), to="tail")
    rest = body.add("Sub", body.number(1.0), tail, to="rest")
    positive = body.add("Greater", "t", body.number(0.0), to="positive")
    body.add("Where", positive, rest, tail, to="p")
    return helper.make_function(DOMAIN, "NormalCdf", ["t"], ["p"], body.nodes, opsets(""))


def _tail_probit() -> FunctionProto:
    """How far below 0 a normal variable is with probability q <= 1/2, from a = -log q."""
    body = _Body()
    a = body.add("Min", "a", body.number(_FARTHEST), to="bounded")
    log = body.add("Log", a, to="log")
    low, high = np.log(_NEAREST), np.log(_FARTHEST)
    away = body.add("Sub", log, body.number((low + high) / 2), to="away")
    place = body.add("Div", away, body.number((high - low) / 2), to="place")
    far = body.polynomial(_probit_coefficients(), place)
    body.add("Max", far, body.number(0.0), to="distance")  # rounding at one half
    return helper.make_function(
        DOMAIN, "TailProbit", ["a"], ["distance"], body.nodes, opsets("")
    )


class _Body:
    """Nodes of a function; it has no constants but nodes."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []

    def add(self, op: str, *inputs: str, to: str) -> str:
        self.nodes.append(helper.make_node(op, inputs, [to]))
        return to

    def number(self, value: float) -> str:
        name = f"number_{len(self.nodes)}"
        tensor = numpy_helper.from_array(np.array(value, np.float64))
        self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def polynomial(self, coefficients: NDArray[np.float64], x: str) -> str:
        """Horner's rule, the highest power first."""
        total = self.number(coefficients[-1])
        for k in range(len(coefficients) - 2, -1, -1):
            product = self.add("Mul", total, x, to=f"product_{k}")
            total = self.add("Add", product, self.number(coefficients[k]), to=f"sum_{k}")
        return total
