r"""DMVP: a network gives the means of a multivariate probit, one covariance serves all rows.

The model is that of `mpvae.probit` with ``m = f(x)``: no latent code, no label encoder. What
remains is the likelihood of whole label vectors,

.. math:: -\log E_u \prod_l \Phi\left(t_l (f_l(x) + B_l^\top u)\right), \quad t = 2 y - 1,

estimated by independent draws of ``u`` that all rows and labels share in parallel.
"""

from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from mpvae import losses, probit
from mpvae.baselines.base import is_integer, require
from mpvae.baselines.neural import NeuralBaseline, label_bias
from mpvae.losses import TermWeights
from mpvae.networks import mlp
from mpvae.rows import Rows

_LIKELIHOOD = TermWeights(ce=1, rank=0, entropy=0)
_FULL_RANK = 200  # labels up to which K = L: beyond, draws cost more than the network
_FACTORS_BEYOND = 64


class DMVPTerms(NamedTuple):
    """The ``total`` to minimise: the mean negative log-likelihood of a row's labels."""

    total: Tensor


class DMVP(NeuralBaseline):
    """Deep multivariate probit model, trained end to end by its joint likelihood.

    A network maps features to the means of latent normal utilities whose covariance
    ``I + B B^T`` is common to all rows; a label is present where its utility is positive. The
    likelihood is estimated as in the paper, by draws of the factors taken for all rows in
    parallel. The probability of a single label needs no draws: where the paper's code samples
    at test time, the exact normal marginal is taken here. The output layer starts at the
    frequency of each label.

    Cost of a step: the network on a batch of N rows, and N S L K for S draws of K factors.

    Parameters
    ----------
    n_factors : int, optional
        Columns K of B. Without it K = L, the full rank of the paper, up to 200 labels and 64
        beyond; 0 makes the labels independent given the features.
    n_draws : int
        Draws S per row and step, an even number: they come in pairs u, -u.
    hidden, dropout, lr, weight_decay, batch_size, max_epochs, patience, monitor
        As in `mpvae.baselines.neural.NeuralBaseline`.
    validation_fraction, device, random_state, verbose
        As there.

    References
    ----------
    D. Chen, Y. Xue, C. Gomes. End-to-End Learning for the Deep Multivariate Probit Model.
    ICML 2018.
    """

    def __init__(
        self,
        *,
        n_factors: int | None = None,
        n_draws: int = 32,
        hidden: tuple[int, ...] = (512, 256),
        dropout: float = 0.5,
        lr: float = 1e-3,
        weight_decay: float = 1e-5,
        batch_size: int = 128,
        max_epochs: int = 30,
        patience: int | None = 10,
        monitor: str = "micro_f1",
        validation_fraction: float = 0.1,
        device: str = "cpu",
        random_state: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_factors = n_factors
        self.n_draws = n_draws
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
        K, S = self.n_factors, self.n_draws
        ok = K is None or (is_integer(K) and K >= 0)
        require("n_factors", K, ok, "None or an integer >= 0")
        ok = is_integer(S) and S >= 2 and S % 2 == 0
        require("n_draws", S, ok, "an even integer >= 2")

    def _network(self, rows: Rows) -> "DMVPNetwork":
        n_labels = rows.Y.shape[1]
        K = self.n_factors
        if K is None:
            K = n_labels if n_labels <= _FULL_RANK else _FACTORS_BEYOND
        network = DMVPNetwork(
            rows.X.shape[1],
            n_labels,
            K,
            hidden=tuple(self.hidden),
            dropout=self.dropout,
            n_draws=self.n_draws,
        )
        share = (np.asarray(rows.Y.sum(axis=0)).ravel() + 0.5) / (len(rows) + 1)
        start = torch.special.ndtri(torch.as_tensor(share)) * probit.scale(network.B)
        label_bias(cast("nn.Linear", network.mean_net[-1]), start)
        return network


class DMVPNetwork(nn.Module):
    """Network of the means, and the loadings of the covariance.

    Parameters
    ----------
    n_features, n_labels, n_factors : int
        Sizes D, L and K.
    hidden, dropout, n_draws
        As in `DMVP`.
    """

    def __init__(
        self,
        n_features: int,
        n_labels: int,
        n_factors: int,
        *,
        hidden: tuple[int, ...],
        dropout: float,
        n_draws: int,
    ) -> None:
        super().__init__()
        self.n_draws = n_draws
        self.mean_net = mlp(n_features, hidden, n_labels, dropout)
        self.B = nn.Parameter(torch.empty(n_labels, n_factors))
        if n_factors:
            nn.init.xavier_uniform_(self.B)

    def loss(self, x: Tensor, y: Tensor, weight: Tensor) -> DMVPTerms:
        """Objective of a batch: features (N, D), labels (N, L), row weights (N,)."""
        u = losses.sets_of_draws(len(x), self.n_draws // 2, self.B)
        share = weight / weight.sum()
        total, _ = losses.probit_loss(self.mean_net(x)[None], self.B, u, y, share, _LIKELIHOOD)
        return DMVPTerms(total)

    def probabilities(self, x: Tensor) -> Tensor:
        """Probability of each label, exact, shape (N, L)."""
        return probit.marginal_prob(self.mean_net(x), self.B)
