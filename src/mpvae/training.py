"""Training of one MPVAE network: what it starts from, and what a step minimises."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mpvae import inference, loop, losses, probit
from mpvae.adam import Adam, Group
from mpvae.checkpoints import Checkpoint
from mpvae.config import Metric, Settings
from mpvae.loop import EpochRecord
from mpvae.losses import LossTerms
from mpvae.networks import MPVAE
from mpvae.rows import Learnt, Rows
from mpvae.threads import threads_for


@dataclass(slots=True)
class TrainedNetwork:
    """A network at its best epoch, and how it got there."""

    network: MPVAE
    history: list[EpochRecord] = field(default_factory=list)
    interrupted: bool = False


@contextmanager
def threads_that_pay(rows: Learnt, settings: Settings, reading: int = 0) -> Iterator[None]:
    """One thread inside the block where steps are too small to share.

    See `mpvae.threads`.
    """
    with torch.device("meta"):  # counts weights without making them
        network = MPVAE(rows.n_features, rows.n_labels, settings)
    n_weights = sum(p.numel() for p in network.parameters())
    with threads_for(6 * n_weights * min(settings.batch_size, len(rows)), reading):
        yield


def train(
    rows: Learnt,
    validation: Rows | None,
    settings: Settings,
    *,
    metric: Metric,
    seed: int,
    device: str = "cpu",
    on_epoch: Callable[[EpochRecord], None] = lambda record: None,
    checkpoint: Checkpoint | None = None,
) -> TrainedNetwork:
    """Train one network and return it at the epoch with the best validation score.

    See `mpvae.loop.fit_network` for how it ends.
    """
    with loop.seeded(seed):
        network = MPVAE(rows.n_features, rows.n_labels, settings).to(device)
        _start_at_prevalence(network, rows)
        others = [p for name, p in network.named_parameters() if name != "B"]
        optimizer = Adam(
            [
                Group(others, weight_decay=settings.weight_decay),
                Group([network.B], factor=settings.lr_factors),
            ]
        )
        course = loop.fit_network(
            network,
            rows,
            validation,
            settings,
            optimizer=optimizer,
            loss=lambda x, y, weight: _loss(network, x, y, weight, settings),
            probabilities=lambda X: inference.marginals([network], X, settings.z_draws),
            metric=metric,
            on_epoch=on_epoch,
            checkpoint=checkpoint,
        )
    return TrainedNetwork(network, course.history, course.interrupted)


def _loss(
    network: MPVAE, x: Tensor, y: Tensor, weight: Tensor, settings: Settings
) -> LossTerms:
    n_normals = settings.n_draws // 2 if settings.antithetic else settings.n_draws
    eps = torch.randn(len(x), settings.latent_dim).to(x)
    u = losses.sets_of_draws(len(x), n_normals, network.B)
    seen = _partly_hidden(y, settings.hide_labels) if settings.hide_labels else y
    return losses.mpvae_loss(network(x, seen, eps), network.B, u, y, weight, settings)


def _partly_hidden(y: Tensor, share_of_rows: float) -> Tensor:
    """Labels with NaN put over some: in each chosen row over a random share of them."""
    chosen = torch.rand(len(y), 1) < share_of_rows
    hidden = torch.rand(y.shape) < torch.rand(len(y), 1) * chosen
    return torch.where(hidden.to(y.device), torch.nan, y)


def _start_at_prevalence(network: MPVAE, rows: Learnt) -> None:
    """Begin at the share of rows that have each label: rare labels need not be unlearnt."""
    share = torch.as_tensor(rows.prevalence())
    bias = torch.special.ndtri(share).to(network.B) * probit.scale(network.B)
    for layer in (network.output, network.output_y):
        if layer is not None:
            layer.bias.data = bias.detach().clone()
