r"""C2AE: labels and features meet in one code, from which a decoder ranks the labels.

With codes ``c_x = F_x(x)`` and ``c_y = F_e(y)``, as rows of ``C_x`` and ``C_y`` over a batch,
and the decoder's outputs ``p = F_d(c_y)`` in (0, 1), the objective is

.. math:: \lVert C_x - C_y \rVert^2 + \lambda \sum_{C \in \{C_x, C_y\}}
          \lVert C^\top C - I \rVert^2 + \alpha \, E(p, y),

    E = \frac{1}{|Y^1| |Y^0|} \sum_{i \in Y^1} \sum_{j \in Y^0} e^{-g (p_i - p_j)}.

The first two parts are deep canonical correlation analysis (CCA): codes that agree, of
uncorrelated coordinates with unit mean square. Here rows carry the root of their share of the
batch's weight, so that neither part depends on the size of the batch.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mpvae.baselines.base import require
from mpvae.baselines.neural import NeuralBaseline
from mpvae.networks import mlp
from mpvae.rows import Rows

_LARGEST_GAIN = 80  # e^gain must be a float32


class C2AETerms(NamedTuple):
    """The weighted ``total`` to minimise, and its parts before their weights."""

    total: Tensor
    distance: Tensor
    penalty: Tensor
    pairs: Tensor


class C2AE(NeuralBaseline):
    """Canonical correlated autoencoder: predict a label code, decode it into labels.

    A feature encoder learns to hit the code that a label encoder gives the row's labels; the
    decoder learns to rank present above absent labels from the label code. New rows go
    through the feature encoder and the decoder.

    As in the authors' code the outputs are sigmoids, which bounds every exponential, and the
    exponent carries a gain of 5; the ranking loss drives outputs of present labels to 1 and of
    absent ones to 0, so they can be cut at a threshold common to all rows. They are scores
    rather than calibrated probabilities, which is why ``monitor`` is micro-F1 by default. The
    ranking loss trains the label encoder and the decoder alone, not the feature encoder. A
    single label has nothing to be ranked against: its absence is then a second label.

    Cost of a step: three networks on a batch of N rows, N d^2 for the covariances of codes of
    dimension d, and N L for the ranking loss, whose sum over pairs factorises.

    Parameters
    ----------
    code_dim : int, optional
        Dimension of the codes; 0.8 L, at most 100, without it.
    alpha : float
        Weight of the ranking loss. The paper's 10 weighs a sum over rows beside codes with
        unit sum of squares; here both are means, which makes it 10 times the batch size.
    penalty : float
        Weight lambda of the departure of the codes' second moments from the identity.
    gain : float
        Factor g in the exponent of the ranking loss.
    hidden, dropout, lr, weight_decay, batch_size, max_epochs, patience, monitor
        As in `mpvae.baselines.neural.NeuralBaseline`; the decoder has ``hidden`` reversed.
    validation_fraction, device, random_state, verbose
        As there.

    References
    ----------
    C.-K. Yeh, W.-C. Wu, W.-J. Ko, Y.-C. F. Wang. Learning Deep Latent Spaces for Multi-Label
    Classification. AAAI 2017.
    """

    def __init__(
        self,
        *,
        code_dim: int | None = None,
        alpha: float = 1000.0,
        penalty: float = 0.5,
        gain: float = 5.0,
        hidden: tuple[int, ...] = (512, 256),
        dropout: float = 0.2,
        lr: float = 2e-3,
        weight_decay: float = 0.0,
        batch_size: int = 128,
        max_epochs: int = 30,
        patience: int | None = 10,
        monitor: str = "micro_f1",
        validation_fraction: float = 0.1,
        device: str = "cpu",
        random_state: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.code_dim = code_dim
        self.alpha = alpha
        self.penalty = penalty
        self.gain = gain
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
        d = self.code_dim
        ok = d is None or (isinstance(d, int) and d >= 1)
        require("code_dim", d, ok, "None or an integer >= 1")
        for name in ("alpha", "penalty"):
            value = getattr(self, name)
            require(name, value, 0 <= value < math.inf, "at least 0 and finite")
        require("gain", self.gain, 0 < self.gain <= _LARGEST_GAIN, f"in (0, {_LARGEST_GAIN}]")

    def _network(self, rows: Rows) -> "C2AENetwork":
        n_labels = rows.Y.shape[1]
        return C2AENetwork(
            rows.X.shape[1],
            n_labels,
            self.code_dim or max(1, min(100, round(0.8 * n_labels))),
            hidden=tuple(self.hidden),
            dropout=self.dropout,
            alpha=self.alpha,
            penalty=self.penalty,
            gain=self.gain,
        )


class C2AENetwork(nn.Module):
    """Feature encoder, label encoder and the decoder they share.

    Parameters
    ----------
    n_features, n_labels, code_dim : int
        Sizes D, L and d.
    hidden, dropout, alpha, penalty, gain
        As in `C2AE`.
    """

    def __init__(
        self,
        n_features: int,
        n_labels: int,
        code_dim: int,
        *,
        hidden: tuple[int, ...],
        dropout: float,
        alpha: float,
        penalty: float,
        gain: float,
    ) -> None:
        super().__init__()
        self.n_labels = n_labels
        self.alpha, self.penalty, self.gain = alpha, penalty, gain
        n_ranked = max(2, n_labels)
        self.feature_net = mlp(n_features, hidden, code_dim, dropout)  # F_x
        self.label_net = mlp(n_ranked, hidden, code_dim, dropout)  # F_e
        self.decoder = mlp(code_dim, hidden[::-1], n_ranked, dropout)  # F_d

    def loss(self, x: Tensor, y: Tensor, weight: Tensor) -> C2AETerms:
        """Objective of a batch: features (N, D), labels (N, L), row weights (N,)."""
        share = weight / weight.sum()
        if self.n_labels == 1:
            y = torch.cat([y, 1 - y], -1)
        code_x, code_y = self.feature_net(x), self.label_net(y)  # (N, d)
        distance, penalty = cca_terms(code_x, code_y, share)
        pairs = share @ pair_loss(self.decoder(code_y).sigmoid(), y, self.gain)
        total = distance + self.penalty * penalty + self.alpha * pairs
        return C2AETerms(total, distance.detach(), penalty.detach(), pairs.detach())

    def probabilities(self, x: Tensor) -> Tensor:
        """Outputs of the decoder for the code of the features, shape (N, L)."""
        score: Tensor = self.decoder(self.feature_net(x))
        if self.n_labels == 1:  # one half where presence and absence rank equal
            score = score[:, :1] - score[:, 1:]
        return score.sigmoid()


def cca_terms(code_x: Tensor, code_y: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean squared distance of two codes, and how far both are from being whitened.

    .. math:: \lVert C_x - C_y \rVert^2, \quad \lVert C_x^\top C_x - I \rVert^2
              + \lVert C_y^\top C_y - I \rVert^2

    Parameters
    ----------
    code_x, code_y : Tensor of shape (N, d)
        Codes of the features and of the labels; times the root of ``share``, C_x and C_y.
    share : Tensor of shape (N,)
        Weights of the rows, of sum 1.
    """
    root = share.sqrt()[:, None]
    C_x, C_y = root * code_x, root * code_y
    identity = torch.eye(C_x.shape[1]).to(C_x)
    penalty = sum((C.mT @ C - identity).square().sum() for C in (C_x, C_y))
    return (C_x - C_y).square().sum(), torch.as_tensor(penalty)


def pair_loss(p: Tensor, y: Tensor, gain: float) -> Tensor:
    r"""Mean of :math:`e^{-g (p_i - p_j)}` over pairs of a present i and an absent j, (N,).

    The sum over pairs is a product, :math:`\sum_i e^{-g p_i} \sum_j e^{g p_j}`. A row without
    a present or without an absent label has no pairs and a loss of 0.

    Parameters
    ----------
    p, y : Tensor of shape (N, L)
        Scores in [0, 1], which keeps every factor below :math:`e^g`; labels in {0, 1}.
    gain : float
        Factor g.
    """
    of_present, of_absent = (y * torch.exp(-gain * p), (1 - y) * torch.exp(gain * p))
    n_present = y.sum(-1)
    n_absent = y.shape[-1] - n_present
    # Means first: the product of the sums would overflow where that of the means does not.
    return (of_present.sum(-1) / n_present.clamp(min=1)) * (
        of_absent.sum(-1) / n_absent.clamp(min=1)
    )
