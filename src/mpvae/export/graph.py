"""An ONNX graph that is written node by node, each node named by what it computes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

_LARGE = 1000  # numbers; of fewer nobody counts the bytes


class Graph:
    """Nodes and constants so far; a value is known by its name.

    Parameters
    ----------
    outside : Graph, optional
        The graph in which this one is repeated; it keeps the constants of both.
    """

    def __init__(self, outside: "Graph | None" = None) -> None:
        self.outside = outside
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {} if outside is None else outside.constants

    def add(self, op: str, *inputs: str, name: str, domain: str = "", **attributes: Any) -> str:
        """A node with one output; both are called ``name``."""
        node = helper.make_node(op, inputs, [name], name, domain=domain, **attributes)
        self.nodes.append(node)
        return name

    def constant(self, name: str, values: Any, dtype: Any = np.float64) -> str:
        """Numbers, or texts (dtype object), that belong to the graph."""
        array = np.ascontiguousarray(np.asarray(values, dtype))
        array = array.reshape(np.shape(values))  # a number stays one
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def axes(self, *axes: int) -> str:
        """Axes or positions, for nodes that want them as an input."""
        return self.constant(f"axes_{'_'.join(map(str, axes))}", axes, np.int64)

    def weights(self, name: str, values: NDArray[Any]) -> str:
        """Numbers in float64; many of them are kept in float32 where that is exact.

        Runtimes convert constants once, when the file is opened.
        """
        short = values.astype(np.float32)
        if values.size < _LARGE or not np.array_equal(short, values):
            return self.constant(name, values)
        where = self.outside or self  # once, not in every repetition
        return where.to_double(self.constant(f"{name}.float32", short, np.float32), name=name)

    def to_double(self, value: str, *, name: str) -> str:
        """The same numbers in float64."""
        return self.add("Cast", value, name=name, to=TensorProto.DOUBLE)

    def as_float32(self, value: str, *, name: str) -> str:
        """Numbers rounded to float32, still as float64: as the classifier rounds them."""
        short = self.add("Cast", value, name=f"{name}.float32", to=TensorProto.FLOAT)
        return self.to_double(short, name=name)

    def finished(
        self, name: str, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]
    ) -> GraphProto:
        """All of it."""
        constants = [] if self.outside else list(self.constants.values())
        return helper.make_graph(self.nodes, name, inputs, outputs, constants)


def doubles(name: str, *shape: int | str) -> ValueInfoProto:
    """An input or output of float64 numbers."""
    return helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape)
