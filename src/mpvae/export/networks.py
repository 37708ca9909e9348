"""Nodes of the networks, all members at once: weights are stacked along the first axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mpvae import probit
from mpvae.export.graph import Graph, doubles
from mpvae.export.maths import DOMAIN
from mpvae.inference import SD_BOUNDS, normal_points
from mpvae.networks import MPVAE

Layer: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Weights (M, in, out) and biases (M, 1, out) of one layer of every member."""


def add_networks(
    graph: Graph, networks: Sequence[MPVAE], x: str, evidence: str | None, z_draws: int
) -> str:
    """Probability of each label, (N, L): closed form given z, averaged over members.

    Parameters
    ----------
    graph : Graph
        Gets the nodes.
    networks : sequence of MPVAE
        The members, all of one shape.
    x : str
        Features and kernel features, (N, D).
    evidence : str or None
        What the sources say, (N, L).
    z_draws : int
        Codes to average; 0 takes the mean of p(z | x).
    """
    d = networks[0].latent_dim
    layers = _layers([n.prior_net for n in networks])
    if z_draws == 0:  # the other half of the last layer, the spread, is not asked for
        W, b = layers[-1]
        layers[-1] = W[..., :d], b[..., :d]
    code = _mlp(graph, x, layers, "prior")
    (W, b), *later = _layers([n.decoder for n in networks])
    given = _linear(graph, x, (W[:, :-d], b), "decoder_0/features")
    offset = None if evidence is None else _offset(graph, networks, evidence)
    from_code = graph.weights("decoder_0/code.weight", np.ascontiguousarray(W[:, -d:]))
    decoder = _Decoder(from_code, given, later, _output(networks), offset)
    if z_draws == 0:
        return decoder.add(graph, code)
    half = graph.axes(d)
    mean = graph.add("Slice", code, graph.axes(0), half, graph.axes(-1), name="code/mean")
    log_var = graph.add(
        "Slice", code, half, graph.axes(2 * d), graph.axes(-1), name="code/log_var"
    )
    halved = graph.add("Mul", log_var, graph.constant("half", 0.5), name="code/log_sd")
    bounds = (graph.constant(f"sd_{k}", bound) for k, bound in enumerate(SD_BOUNDS))
    sd = graph.add("Clip", graph.add("Exp", halved, name="code/exp"), *bounds, name="code/sd")
    return _averaged(graph, decoder, mean, sd, normal_points(z_draws, d).numpy(), x)


def _averaged(
    graph: Graph, decoder: "_Decoder", mean: str, sd: str, eps: NDArray[np.float64], x: str
) -> str:
    """The decoder's answer for each of the codes, one after the other, and their mean."""
    L = decoder.output[0].shape[-1]
    body = Graph(outside=graph)
    spread = body.add("Mul", sd, "draw/eps", name="draw/spread")
    p = decoder.add(body, body.add("Add", mean, spread, name="draw/code"))
    body.add("Add", "draw/before", p, name="draw/after")
    step = body.finished(
        "one code",
        [doubles("draw/before", "rows", L), doubles("draw/eps", eps.shape[1])],
        [doubles("draw/after", "rows", L)],
    )
    rows = graph.add("Shape", x, name="draws/rows", start=0, end=1)
    shape = graph.add("Concat", rows, graph.axes(L), name="draws/shape", axis=0)
    zero = graph.constant("zero", 0.0)
    start = graph.add("Expand", zero, shape, name="draws/start")
    points = graph.constant("draws/points", eps)
    total = graph.add("Scan", start, points, name="draws/total", body=step, num_scan_inputs=1)
    return graph.add("Div", total, graph.constant("draws/count", len(eps)), name="draws/mean")


@dataclass(frozen=True, slots=True)
class _Decoder:
    """From a code to probabilities; what does not depend on the code is there already."""

    from_code: str  # weights (M, d, H)
    given: str  # what the features add to the first layer, (M, N, H)
    later: list[Layer]
    output: Layer
    offset: str | None  # what the evidence adds, (M, N, L)

    def add(self, graph: Graph, code: str) -> str:
        """Probability of each label, the mean over members, (N, L)."""
        added = graph.add("MatMul", code, self.from_code, name="decoder_0/code")
        hidden = graph.add("Add", self.given, added, name="decoder_0")
        hidden = graph.add("Relu", hidden, name="decoder_0/relu")
        for i, layer in enumerate(self.later, start=1):
            hidden = _linear(graph, hidden, layer, f"decoder_{i}")
            hidden = graph.add("Relu", hidden, name=f"decoder_{i}/relu")
        m = _linear(graph, hidden, self.output, "output")
        if self.offset is not None:
            m = graph.add("Add", m, self.offset, name="output/with_evidence")
        p = graph.add("NormalCdf", m, name="members/probabilities", domain=DOMAIN)
        return graph.add("ReduceMean", p, graph.axes(0), name="members/mean", keepdims=0)


def _offset(graph: Graph, networks: Sequence[MPVAE], evidence: str) -> str:
    trust = np.stack([_array(n.trust) for n in networks if n.trust is not None])[:, None]
    weight = graph.constant("evidence/trust", trust)
    return graph.add("Mul", evidence, weight, name="evidence/weighted")  # (M, N, L)


def _mlp(graph: Graph, x: str, layers: list[Layer], scope: str) -> str:
    """Layers with ReLU between them."""
    for i, layer in enumerate(layers):
        x = _linear(graph, x, layer, f"{scope}_{i}")
        if i < len(layers) - 1:
            x = graph.add("Relu", x, name=f"{scope}_{i}/relu")
    return x


def _linear(graph: Graph, x: str, layer: Layer, name: str) -> str:
    W, b = layer
    product = graph.add("MatMul", x, graph.weights(f"{name}.weight", W), name=f"{name}/product")
    return graph.add("Add", product, graph.weights(f"{name}.bias", b), name=name)


def _layers(networks: Sequence[nn.Sequential]) -> list[Layer]:
    """Linear layers of networks of one shape, in their order."""
    linear = [[layer for layer in n if isinstance(layer, nn.Linear)] for n in networks]
    return [_stacked(layers) for layers in zip(*linear, strict=True)]


def _output(networks: Sequence[MPVAE]) -> Layer:
    """The last layer, divided so that utilities have variance 1."""
    scale = np.stack([_array(probit.scale(n.B)) for n in networks])[:, None]  # (M, 1, L)
    W, b = _stacked([n.output for n in networks])
    return W / scale, b / scale


def _stacked(layers: Sequence[nn.Linear]) -> Layer:
    W = np.stack([_array(layer.weight).T for layer in layers])
    return np.ascontiguousarray(W), np.stack([_array(layer.bias)[None] for layer in layers])


def _array(values: Tensor) -> NDArray[np.float64]:
    return values.detach().to("cpu", torch.float64).numpy()
