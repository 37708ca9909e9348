"""The LaMP network: labels as nodes that hear the features, then each other."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, scaled_dot_product_attention

from mpvae.features import Matrix
from mpvae.networks import mlp

_NUMBERS = 2**24  # in the label embeddings of a pass: bounds the memory of a prediction


class LaMPLoss(NamedTuple):
    """Mean cross-entropies per label; ``total`` is what training minimises."""

    total: Tensor
    final: Tensor
    intermediate: Tensor


class Nodes(NamedTuple):
    """What the labels listen to: the features of each row as embedded nodes."""

    embedding: Tensor  # (N, S, d)
    present: Tensor | None  # (N, S), False for padding; None: all are there


class LaMPNetwork(nn.Module):
    """Embed labels and features, pass messages, read the labels off.

    Parameters
    ----------
    features : Module
        Maps x (N, D) to `Nodes`.
    prevalence : ndarray of shape (L,)
        Frequency of each label, strictly between 0 and 1; the readout's bias begins there.
    graph : bool ndarray of shape (L, L), optional
        ``graph[i, j]``: label i hears label j. None: every label hears every label.
    n_dims, n_heads, n_layers : int
        Width d of the embeddings, attention heads, rounds of messages T.
    dropout : float
        On every message and on every feed-forward output.
    intermediate_weight : float
        Weight of the loss of the predictions before the last.
    """

    graph: Tensor | None

    def __init__(
        self,
        features: nn.Module,
        prevalence: NDArray[np.float64],
        graph: NDArray[np.bool_] | None,
        *,
        n_dims: int,
        n_heads: int,
        n_layers: int,
        dropout: float,
        intermediate_weight: float,
    ) -> None:
        super().__init__()
        n_labels = len(prevalence)
        self.features = features
        self.labels = nn.Parameter(0.1 * torch.randn(n_labels, n_dims))
        self.from_features = nn.ModuleList(
            Messages(n_dims, n_heads, dropout) for _ in range(n_layers)
        )
        self.from_labels = nn.ModuleList(
            Messages(n_dims, n_heads, dropout) for _ in range(n_layers)
        )
        self.output = nn.Parameter(torch.randn(n_labels, n_dims) / n_dims)
        start = torch.as_tensor(np.log(prevalence / (1 - prevalence)))
        self.bias = nn.Parameter(start.to(self.output))
        self.register_buffer("graph", None if graph is None else torch.as_tensor(graph))
        self.intermediate_weight = intermediate_weight

    def embeddings(self, x: Tensor) -> Iterator[Tensor]:
        """Embeddings of the labels, (N, L, d), after every half of every layer."""
        nodes = self.features(x)
        mask = None if nodes.present is None else nodes.present[:, None, None]  # (N, 1, 1, S)
        u = self.labels[None]  # (1, L, d): the same for all rows until they hear features
        for hear_features, hear_labels in zip(
            self.from_features, self.from_labels, strict=True
        ):
            u = hear_features(u, nodes.embedding, mask)
            yield u
            u = hear_labels(u, u, self.graph)
            yield u

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the labels, (N, L)."""
        *_, u = self.embeddings(x)
        return self._read(u, self.output)

    def loss(self, x: Tensor, y: Tensor, weight: Tensor) -> LaMPLoss:
        """Cross-entropy of the answer, plus a share of that of every earlier half layer."""
        *earlier, last = self.embeddings(x)
        final = _mean_loss(self._read(last, self.output), y, weight)
        # As the authors do, earlier answers shape the messages but not the readout.
        fixed = self.output.detach()
        intermediate = torch.stack(
            [_mean_loss(self._read(u, fixed), y, weight) for u in earlier]
        ).sum()
        return LaMPLoss(final + self.intermediate_weight * intermediate, final, intermediate)

    def probabilities(self, x: Tensor) -> Tensor:
        """Probability of each label, (N, L)."""
        rows = max(1, _NUMBERS // (8 * self.labels.numel()))
        parts = [self(x[i : i + rows]).sigmoid() for i in range(0, len(x), rows)]
        return torch.cat(parts)

    def _read(self, u: Tensor, output: Tensor) -> Tensor:
        return (u * output).sum(-1) + self.bias  # (N, L)


class Messages(nn.Module):
    r"""One round of messages: attention, then a feed-forward layer, each with a residual.

    With :math:`H` heads of width :math:`d / H`,

    .. math::

        \alpha_{ij} &= \operatorname{softmax}_j\bigl((W^q u_i)^\top W^k v_j
            / \sqrt{d / H}\bigr), \quad j \text{ heard by } i \\
        u'_i &= u_i + W^o \textstyle\sum_j \alpha_{ij} W^v v_j \\
        u''_i &= u'_i + \operatorname{ff}(\operatorname{norm}(u'_i)),

    where the attention reads receivers, and senders that are labels, after a layer norm. The
    authors have the norms behind the sums instead; there, a label's own embedding drowns what
    it hears in the first epochs.
    """

    def __init__(self, n_dims: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(n_dims, n_dims, bias=False)
        self.key = nn.Linear(n_dims, n_dims, bias=False)
        self.value = nn.Linear(n_dims, n_dims, bias=False)
        self.output = nn.Linear(n_dims, n_dims, bias=False)
        self.norm = nn.LayerNorm(n_dims)
        self.feed_forward = mlp(n_dims, (2 * n_dims,), n_dims, 0.0)
        self.feed_forward_norm = nn.LayerNorm(n_dims)
        self.dropout = nn.Dropout(dropout)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.xavier_uniform_(weight)

    def forward(self, u: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Receivers after they have heard the senders.

        Parameters
        ----------
        u : Tensor of shape (N, L, d) or (1, L, d)
            Receivers.
        v : Tensor of shape (N, S, d)
            Senders.
        mask : bool Tensor that broadcasts to (N, H, L, S), optional
            Who hears whom.
        """
        receivers = self.norm(u)
        senders = receivers if v is u else v
        u = u + self.dropout(self.attend(receivers, senders, mask))  # (N, L, d)
        heard: Tensor = u + self.dropout(self.feed_forward(self.feed_forward_norm(u)))
        return heard

    def attend(self, u: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Messages as the receivers get them, (N, L, d); (N, 1, d) if there is one sender."""
        if v.shape[1] == 1 and mask is None:  # softmax over one sender is 1
            alone: Tensor = self.output(self.value(v))
            return alone
        q, k, w = (self._heads(f) for f in (self.query(u), self.key(v), self.value(v)))
        q = q.expand(len(v), -1, -1, -1)  # (N, H, L, d / H)
        heads = scaled_dot_product_attention(q, k, w, attn_mask=mask)
        messages: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return messages

    def _heads(self, t: Tensor) -> Tensor:
        n, senders, _ = t.shape
        return t.view(n, senders, self.n_heads, -1).transpose(1, 2)  # (N, H, ., d / H)


class VectorNodes(nn.Module):
    """A vector of features through the shared ReLU network into ``n_nodes`` nodes."""

    def __init__(
        self,
        n_features: int,
        hidden: tuple[int, ...],
        n_nodes: int,
        n_dims: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.n_nodes = n_nodes
        self.net = mlp(n_features, hidden, n_nodes * n_dims, dropout)
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight)  # so that labels hear it from the start

    def forward(self, x: Tensor) -> Nodes:
        """Nodes of rows x (N, D)."""
        return Nodes(self.net(x).view(len(x), self.n_nodes, -1), None)


class TokenNodes(nn.Module):
    """Every nonzero feature a node: its embedding times its value over the column's largest.

    One node more is in every row, so that a row of zeros has something to say.
    """

    scale: Tensor

    def __init__(self, largest: NDArray[np.float64], n_dims: int, dropout: float) -> None:
        super().__init__()
        # Small, because a rare token takes few steps, each about as long as the learning rate.
        self.embedding = nn.Parameter(0.1 * torch.randn(1 + len(largest), n_dims))
        self.dropout = nn.Dropout(dropout)
        scale = torch.as_tensor(np.where(largest > 0, largest, 1)).to(self.embedding)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Nodes:
        """Nodes of rows x (N, D), padded to the longest."""
        with_start = torch.cat([torch.ones_like(x[:, :1]), x / self.scale], 1)  # (N, 1 + D)
        row, column = with_start.nonzero(as_tuple=True)
        count = with_start.count_nonzero(1)  # (N,)
        place = torch.arange(len(row), device=x.device) - (count.cumsum(0) - count)[row]
        shape = (len(x), int(count.max()))
        token = column.new_zeros(shape).index_put((row, place), column)
        value = x.new_zeros(shape).index_put((row, place), with_start[row, column])
        # index_select's gradient is a plain scatter; that of indexing sorts first.
        embedding = self.embedding.index_select(0, token.flatten()).view(*shape, -1)
        return Nodes(self.dropout(embedding * value[..., None]), value != 0)


def cooccurrence_graph(Y: Matrix, least: int) -> NDArray[np.bool_]:
    """Whether two labels share at least ``least`` rows, or are the same; (L, L)."""
    S = sp.csr_array(Y).astype(np.float64)
    graph = np.asarray((S.T @ S).toarray() >= least)
    np.fill_diagonal(graph, True)
    return graph


def largest_values(X: Matrix) -> NDArray[np.float64]:
    """Largest absolute value of each column, (D,)."""
    largest: Any = abs(X).max(axis=0)
    dense = largest.toarray() if sp.issparse(largest) else largest
    return np.asarray(dense, dtype=np.float64).ravel()


def _mean_loss(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    rows = binary_cross_entropy_with_logits(logits, y, reduction="none").mean(-1)  # (N,)
    return (weight * rows).sum() / weight.sum()
