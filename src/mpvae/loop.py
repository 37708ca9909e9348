"""The loop that trains every network: minibatches, a schedule, stopping on validation rows."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mpvae import observed
from mpvae.adam import Adam
from mpvae.config import Metric, Schedule
from mpvae.errors import ConfigError, MPVAEError
from mpvae.features import Matrix
from mpvae.rows import Rows, rows_tensor

Terms: TypeAlias = Any  # a NamedTuple of tensors of shape (); its field `total` is minimised


class LoopSettings(Protocol):
    """What the loop reads of a model's settings."""

    @property
    def lr(self) -> float: ...  # noqa: D102
    @property
    def lr_schedule(self) -> Schedule: ...  # noqa: D102
    @property
    def lr_decay(self) -> float: ...  # noqa: D102
    @property
    def lr_decay_times(self) -> int: ...  # noqa: D102
    @property
    def batch_size(self) -> int: ...  # noqa: D102
    @property
    def max_epochs(self) -> int: ...  # noqa: D102
    @property
    def patience(self) -> int | None: ...  # noqa: D102
    @property
    def monitor(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One line of the history: means of the loss terms, then the validation scores."""

    epoch: int
    lr: float
    terms: dict[str, float]
    val_log_loss: float | None
    metric: Metric
    val_metric: float | None
    is_best: bool

    def row(self) -> dict[str, float | int | bool | str | None]:
        """As a row of the history table."""
        return {
            "epoch": self.epoch,
            "lr": self.lr,
            **self.terms,
            "val_log_loss": self.val_log_loss,
            f"val_{self.metric}": self.val_metric,
            "is_best": self.is_best,
        }


@dataclass(frozen=True, slots=True)
class Course:
    """How a training went."""

    history: list[EpochRecord]
    interrupted: bool


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block; the caller's generators are restored after it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def device_named(name: str) -> str:
    """Device torch can use: "auto" is a GPU if there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used here; try 'cpu'") from error
    return name


def fit_network(
    network: nn.Module,
    rows: Rows,
    validation: Rows | None,
    settings: LoopSettings,
    *,
    optimizer: Adam,
    loss: Callable[[Tensor, Tensor, Tensor], Terms],
    probabilities: Callable[[Matrix], NDArray[np.float64]],
    metric: Metric,
    on_epoch: Callable[[EpochRecord], None] = lambda record: None,
) -> Course:
    """Train a network and leave it at the epoch with the best validation score.

    Without validation rows the last epoch is taken. An interrupt (Ctrl-C) after the first
    finished epoch ends the training early and keeps the best epoch so far.

    Parameters
    ----------
    network : Module
        Trained in place; left in evaluation mode, its parameters without gradient.
    rows, validation : Rows
        To learn from; to stop by.
    settings : LoopSettings
        Learning rate and its course, batch size, number of epochs, when to stop.
    optimizer : Adam
        Over the network's parameters.
    loss : callable
        Features, labels and row weights of a batch to the named terms of the objective.
    probabilities : callable
        Features, as the network sees them, to probabilities of shape (n, L).
    metric : Metric
        Shown beside the log-loss; `settings.monitor` says which of the two stops.
    """
    if settings.monitor != "log_loss":
        metric = cast("Metric", settings.monitor)  # stop by it, so show it
    if validation is not None and not observed.has_observed(validation.Y):
        validation = None  # nothing to judge by
    history: list[EpochRecord] = []
    interrupted = False
    best_score, best_state = math.inf, _copy(network)
    epochs = _epochs(network, rows, settings, optimizer, loss)
    try:
        for epoch, (lr, terms) in enumerate(epochs, start=1):
            network.eval()
            log_loss, value = _validate(probabilities, validation, metric)
            score = _to_minimise(log_loss, value, settings) if validation else -epoch
            is_best = score < best_score
            if is_best:
                best_score, best_state = score, _copy(network)
            record = EpochRecord(epoch, lr, terms, log_loss, metric, value, is_best)
            history.append(record)
            on_epoch(record)
            if validation and _out_of_patience(history, settings.patience):
                break
    except KeyboardInterrupt:
        if not history:
            raise
        interrupted = True
    network.load_state_dict(best_state)
    network.eval().requires_grad_(False)
    return Course(history, interrupted)


def _epochs(
    network: nn.Module,
    rows: Rows,
    settings: LoopSettings,
    optimizer: Adam,
    loss: Callable[[Tensor, Tensor, Tensor], Terms],
) -> Iterator[tuple[float, dict[str, float]]]:
    """Train epoch by epoch; yield the learning rate and the mean of every loss term."""
    like = next(network.parameters())
    n, size = len(rows), settings.batch_size
    total_steps = settings.max_epochs * math.ceil(n / size)
    step = 0
    for _ in range(settings.max_epochs):
        network.train()
        sums: Tensor | float = 0.0
        names: tuple[str, ...] = ()
        order = torch.randperm(n).numpy()
        for start in range(0, n, size):
            index = order[start : start + size]
            lr = settings.lr * _schedule(step / total_steps, settings)
            x = rows_tensor(rows.X, index, like)
            y = rows_tensor(rows.Y, index, like)
            terms = loss(x, y, torch.as_tensor(rows.weight[index]).to(like))
            optimizer.zero_grad()
            terms.total.backward()
            optimizer.step(lr)
            step += 1
            names = terms._fields
            sums = sums + torch.stack(tuple(terms)).detach() * (len(index) / n)
        means = dict(zip(names, cast("Tensor", sums).tolist(), strict=True))
        _refuse_non_finite(means, step)
        yield lr, means


def _schedule(progress: float, settings: LoopSettings) -> float:
    if settings.lr_schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    if settings.lr_schedule == "step":
        return settings.lr_decay ** math.floor(progress * settings.lr_decay_times)
    return 1.0


def _validate(
    probabilities: Callable[[Matrix], NDArray[np.float64]], rows: Rows | None, metric: Metric
) -> tuple[float | None, float | None]:
    """Log-loss of the validation rows, and the metric at its best paper threshold there."""
    if rows is None:
        return None, None
    P = probabilities(rows.X)
    if not np.isfinite(P).all():
        raise _not_finite("the probabilities of the validation rows are")
    threshold = observed.best_threshold(rows.Y, P, metric, "paper")
    value = observed.decision_score(rows.Y, P, metric, threshold)
    return observed.log_loss(rows.Y, P), value


def _to_minimise(log_loss: float | None, value: float | None, settings: LoopSettings) -> float:
    score = log_loss if settings.monitor == "log_loss" else value
    if score is None or not math.isfinite(score):
        return math.inf
    return score if settings.monitor == "log_loss" else -score


def _out_of_patience(history: list[EpochRecord], patience: int | None) -> bool:
    if patience is None:
        return False
    ages = (i for i, record in enumerate(reversed(history)) if record.is_best)
    since_best = next(ages, len(history))
    return since_best >= patience


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _refuse_non_finite(means: dict[str, float], step: int) -> None:
    bad = [name for name, value in means.items() if not math.isfinite(value)]
    if bad:
        raise _not_finite(f"the loss after {step} steps ({', '.join(bad)}) is")


def _not_finite(what: str) -> MPVAEError:
    return MPVAEError(f"{what} not finite; lower lr, or look for extreme values in X")
