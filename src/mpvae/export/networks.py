"""Nodes of the networks, all members at once: their weights are stacked along the first axis."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mpvae import probit
from mpvae.export.graph import Graph, doubles
from mpvae.export.maths import DOMAIN
from mpvae.inference import normal_points
from mpvae.networks import MPVAE


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
    layers = [_linears([n.prior_net[i] for n in networks]) for i in _places(networks)]
    if z_draws == 0:  # the other half of the last layer, the spread, is not asked for
        W, b = layers[-1]
        layers[-1] = W[..., :d], b[..., :d]
    code = _mlp(graph, x, layers, "prior")
    first = [n.decoder[0] for n in networks]
    W, b = _linears(first)
    given = _linear(graph, x, (W[:, :-d], b), "decoder_0/features")
    offset = None if evidence is None else _offset(graph, networks, evidence)
    decoder = _Decoder(graph, networks, W[:, -d:], given, offset)
    if z_draws == 0:
        return decoder.add(graph, code)
    half = graph.axes(d)
    mean = graph.add("Slice", code, graph.axes(0), half, graph.axes(-1), name="code/mean")
    log_var = graph.add("Slice", code, half, graph.axes(2 * d), graph.axes(-1), name="code/log_var")
    halved = graph.add("Mul", log_var, graph.constant("half", 0.5), name="code/log_sd")
    sd = graph.add("Exp", halved, name="code/sd")
    return _averaged(graph, decoder, mean, sd, normal_points(z_draws, d).numpy(), x)


def _averaged(
    graph: Graph, decoder: "_Decoder", mean: str, sd: str, eps: NDArray[np.float64], x: str
) -> str:
    """The decoder's answer for each of the codes, one after the other, and their mean."""
    L = decoder.n_labels
    body = Graph()
    spread = body.add("Mul", sd, "draw/eps", name="draw/spread")
    p = decoder.add(body, body.add("Add", mean, spread, name="draw/code"))
    body.add("Add", "draw/before", p, name="draw/after")
    for constant in body.constants.values():  # they belong to the graph: one copy of each
        graph.constants[constant.name] = constant
    body.constants = {}
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


class _Decoder:
    """From a code to probabilities; what does not depend on the code is there already."""

    def __init__(
        self,
        graph: Graph,
        networks: Sequence[MPVAE],
        from_code: NDArray[np.float64],
        given: str,
        offset: str | None,
    ) -> None:
        later = [i for i in range(1, len(networks[0].decoder)) if _is_linear(networks, i)]
        self.layers = [_linears([n.decoder[i] for n in networks]) for i in later]
        scale = np.stack([_array(probit.scale(n.B)) for n in networks])[:, None]  # (M, 1, L)
        W, b = _linears([n.output for n in networks])
        self.output = W / scale, b / scale  # so that utilities have variance 1
        self.n_labels = scale.shape[-1]
        self.from_code = graph.weights("decoder_0/code.weight", from_code)
        self.given, self.offset = given, offset

    def add(self, graph: Graph, code: str) -> str:
        """Probability of each label, the mean over members, (N, L)."""
        added = graph.add("MatMul", code, self.from_code, name="decoder_0/code")
        hidden = graph.add("Add", self.given, added, name="decoder_0")
        hidden = graph.add("Relu", hidden, name="decoder_0/relu")
        for i, layer in enumerate(self.layers, start=1):
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


def _mlp(
    graph: Graph, x: str, layers: list[tuple[NDArray[np.float64], NDArray[np.float64]]], scope: str
) -> str:
    """Layers with ReLU between them."""
    for i, layer in enumerate(layers):
        x = _linear(graph, x, layer, f"{scope}_{i}")
        if i < len(layers) - 1:
            x = graph.add("Relu", x, name=f"{scope}_{i}/relu")
    return x


def _linear(
    graph: Graph, x: str, layer: tuple[NDArray[np.float64], NDArray[np.float64]], name: str
) -> str:
    W, b = layer
    product = graph.add("MatMul", x, graph.weights(f"{name}.weight", W), name=f"{name}/product")
    return graph.add("Add", product, graph.weights(f"{name}.bias", b), name=name)


def _places(networks: Sequence[MPVAE]) -> list[int]:
    return [i for i, layer in enumerate(networks[0].prior_net) if isinstance(layer, nn.Linear)]


def _is_linear(networks: Sequence[MPVAE], i: int) -> bool:
    return isinstance(networks[0].decoder[i], nn.Linear)


def _linears(layers: Sequence[nn.Module]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights (M, in, out) and biases (M, 1, out) of one layer of every member."""
    W = np.stack([_array(layer.weight).T for layer in layers])
    return np.ascontiguousarray(W), np.stack([_array(layer.bias)[None] for layer in layers])


def _array(values: Tensor) -> NDArray[np.float64]:
    return values.detach().to("cpu", torch.float64).numpy()
