"""LaMP: labels pass messages to each other by attention."""

from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse as sp

from mpvae.baselines.base import is_integer, require
from mpvae.baselines.lamp_network import (
    LaMPNetwork,
    TokenNodes,
    VectorNodes,
    cooccurrence_graph,
    largest_values,
)
from mpvae.baselines.neural import NeuralBaseline
from mpvae.rows import Rows

Graph = Literal["full", "prior"]
Inputs = Literal["auto", "vector", "tokens"]


class LaMP(NeuralBaseline):
    r"""Labels as nodes of a graph that hear the features and then each other, by attention.

    Every label and every feature node has an embedding. In each of ``n_layers`` layers the
    labels attend first to the features of the row, then to the labels they are joined to;
    both times the message is added, normalised and sent through a small feed-forward network
    (see `mpvae.baselines.lamp_network.Messages`). With :math:`u_l` the embedding of label l
    after the last layer,

    .. math:: P(y_l = 1) = \operatorname{sigmoid}(w_l^\top u_l + b_l).

    All labels are predicted at once, and learnt by cross-entropy; answers read off after each
    earlier half layer join the loss with a small weight, as in the authors' code.

    Time of an epoch and of a prediction is O(n T L (S d + L d + d^2)) with T layers, width d
    and S feature nodes (nonzeros of a row, or ``n_nodes``): quadratic in the labels.
    Dense features add O(n D) for the first hidden layer. Attention is not stored, so memory
    is O(batch_size T L d).

    Parameters
    ----------
    n_dims : int
        Width d of the embeddings, a multiple of ``n_heads``. The authors have 512.
    n_heads : int
        Attention heads.
    n_layers : int
        Layers T, each one hearing of the features and one of the labels.
    label_graph : {"full", "prior"}
        Which labels hear each other: all, or those that share training rows.
    min_cooccurrence : int
        Training rows two labels must share to be joined in the "prior" graph.
    inputs : {"auto", "vector", "tokens"}
        Feature nodes: "tokens", one for each nonzero feature of a row, its embedding times
        its value; or "vector", ``n_nodes`` made by the ``hidden`` layers from all features.
        "auto" takes tokens for sparse X.
    n_nodes : int
        Feature nodes of a "vector". With one, all labels get the same message.
    intermediate_weight : float
        Weight of the loss of the earlier answers.
    hidden : tuple of int
        Widths of the hidden layers that read a "vector".
    dropout, lr, weight_decay, batch_size, max_epochs, patience, monitor
        See `mpvae.baselines.neural.NeuralBaseline`.
    validation_fraction, device, random_state, verbose
        See `mpvae.baselines.neural.NeuralBaseline`.

    Notes
    -----
    Four things differ from the authors' code beside the sizes: the vector that reads a label
    off is not its first embedding; it has a bias, which begins at the log-odds of the
    label's frequency; attention weights are not dropped out, only messages; and layer norms
    stand before attention and feed-forward layers, not behind the sums.

    References
    ----------
    J. Lanchantin, A. Sekhon, Y. Qi: Neural Message Passing for Multi-Label Classification.
    ECML PKDD 2019.
    """

    def __init__(
        self,
        *,
        n_dims: int = 64,
        n_heads: int = 2,
        n_layers: int = 1,
        label_graph: Graph = "full",
        min_cooccurrence: int = 1,
        inputs: Inputs = "vector",
        n_nodes: int = 4,
        intermediate_weight: float = 0.2,
        hidden: tuple[int, ...] = (512, 256),
        dropout: float = 0.2,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        batch_size: int = 32,
        max_epochs: int = 12,
        patience: int | None = 5,
        monitor: str = "micro_f1",
        validation_fraction: float = 0.1,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_dims = n_dims
        self.n_heads = n_heads
        self.n_layers = n_layers
        self.label_graph = label_graph
        self.min_cooccurrence = min_cooccurrence
        self.inputs = inputs
        self.n_nodes = n_nodes
        self.intermediate_weight = intermediate_weight
        self.hidden = hidden
        self.dropout = dropout
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.monitor = monitor
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check(self) -> None:
        for name in ("n_dims", "n_heads", "n_layers", "min_cooccurrence", "n_nodes"):
            value = getattr(self, name)
            require(name, value, is_integer(value) and value >= 1, "an integer >= 1")
        heads = f"a multiple of n_heads={self.n_heads}"
        require("n_dims", self.n_dims, self.n_dims % self.n_heads == 0, heads)
        for name, known in (("label_graph", get_args(Graph)), ("inputs", get_args(Inputs))):
            value = getattr(self, name)
            require(name, value, value in known, f"one of {', '.join(known)}")
        weight = self.intermediate_weight
        require("intermediate_weight", weight, weight >= 0, "at least 0")

    def _network(self, rows: Rows) -> LaMPNetwork:
        tokens = self.inputs == "tokens" or (self.inputs == "auto" and sp.issparse(rows.X))
        n, n_features = rows.X.shape
        features: TokenNodes | VectorNodes
        if tokens:
            features = TokenNodes(largest_values(rows.X), self.n_dims, self.dropout)
        else:
            features = VectorNodes(
                n_features,
                tuple(self.hidden),
                n_nodes=self.n_nodes,
                n_dims=self.n_dims,
                dropout=self.dropout,
            )
        counts = np.asarray(rows.Y.sum(axis=0), dtype=np.float64).ravel()
        graph = None
        if self.label_graph == "prior":
            graph = cooccurrence_graph(rows.Y, self.min_cooccurrence)
        return LaMPNetwork(
            features,
            (counts + 0.5) / (n + 1),
            graph,
            n_dims=self.n_dims,
            n_heads=self.n_heads,
            n_layers=self.n_layers,
            dropout=self.dropout,
            intermediate_weight=self.intermediate_weight,
        )
