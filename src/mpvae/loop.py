"""The loop that trains every network: minibatches, a schedule, stopping on validation rows."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mpvae import distributed, observed
from mpvae.adam import Adam
from mpvae.checkpoints import Checkpoint
from mpvae.config import Metric, Schedule
from mpvae.errors import ConfigError, ModelFileError, MPVAEError
from mpvae.features import Matrix
from mpvae.rows import Learnt, Rows

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
    rows: Learnt,
    validation: Rows | None,
    settings: LoopSettings,
    *,
    optimizer: Adam,
    loss: Callable[[Tensor, Tensor, Tensor], Terms],
    probabilities: Callable[[Matrix], NDArray[np.float64]],
    metric: Metric,
    on_epoch: Callable[[EpochRecord], None] = lambda record: None,
    checkpoint: Checkpoint | None = None,
) -> Course:
    """Train a network and leave it at the epoch with the best validation score.

    Without validation rows the last epoch is taken. An interrupt (Ctrl-C) after the first
    finished epoch ends the training early and keeps the best epoch so far. With a checkpoint
    a training that was killed goes on, bit for bit as if it had not been.

    Parameters
    ----------
    network : Module
        Trained in place; left in evaluation mode, its parameters without gradient.
    rows, validation : Learnt, Rows
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
    checkpoint : Checkpoint, optional
        Where the state is kept while the training lasts, and taken up.
    """
    if settings.monitor != "log_loss":
        metric = cast("Metric", settings.monitor)  # stop by it, so show it
    if validation is not None and not observed.has_observed(validation.Y):
        validation = None  # nothing to judge by
    run = _Run(network, optimizer, _copy(network))
    seed = torch.initial_seed()  # before what is taken up brings its own
    if checkpoint is not None:
        run.take_up(checkpoint)
    interrupted = False
    try:
        epochs = _epochs(network, rows, settings, optimizer, loss, len(run.history), seed)
        while not run.over and (done := next(epochs, None)) is not None:
            lr, terms = done
            epoch = len(run.history) + 1
            network.eval()
            due = None if checkpoint is None else float(checkpoint.due())
            log_loss, value, due = distributed.agreed(
                [*_validate(probabilities, validation, metric), due]
            )
            score = _to_minimise(log_loss, value, settings) if validation else -epoch
            is_best = score < run.best_score
            if is_best:
                run.best_score, run.best = score, _copy(network)
            record = EpochRecord(epoch, lr, terms, log_loss, metric, value, is_best)
            run.history.append(record)
            on_epoch(record)
            run.over = epoch == settings.max_epochs or bool(
                validation and _out_of_patience(run.history, settings.patience)
            )
            if checkpoint is not None and (due or run.over):
                checkpoint.write(*run.state())
    except KeyboardInterrupt:
        if not run.history:
            raise
        interrupted = True
    network.load_state_dict(run.best)
    network.eval().requires_grad_(False)
    return Course(run.history, interrupted)


@dataclass(slots=True, eq=False)
class _Run:
    """All that a training has come to after some epochs."""

    network: nn.Module
    optimizer: Adam
    best: dict[str, Tensor]
    best_score: float = math.inf
    history: list[EpochRecord] = field(default_factory=list)
    over: bool = False

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values it can be taken up from."""
        tensors = {f"now.{name}": value for name, value in _copy(self.network).items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        tensors |= {f"adam.{name}": value for name, value in self.optimizer.state().items()}
        tensors["random"] = torch.get_rng_state()
        facts = {
            "best_score": self.best_score,
            "history": [asdict(record) for record in self.history],
            "over": self.over,
        }
        return tensors, facts

    def take_up(self, checkpoint: Checkpoint) -> None:
        """Go on from what was written, if anything was."""
        found = checkpoint.read()
        if found is None:
            return
        tensors, facts = found
        try:
            self.network.load_state_dict(_part(tensors, "now."))
            self.best = {
                name: tensors[f"best.{name}"].to(value) for name, value in self.best.items()
            }
            self.optimizer.load_state(_part(tensors, "adam."))
            torch.set_rng_state(tensors["random"])
            self.best_score = float(facts["best_score"])
            self.history = [EpochRecord(**record) for record in facts["history"]]
            self.over = bool(facts["over"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ModelFileError(
                f"{checkpoint.file} is no state of this training; delete it to begin anew"
            ) from error


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}


def _epochs(
    network: nn.Module,
    rows: Learnt,
    settings: LoopSettings,
    optimizer: Adam,
    loss: Callable[[Tensor, Tensor, Tensor], Terms],
    n_done: int,
    seed: int,
) -> Iterator[tuple[float, dict[str, float]]]:
    """Train epoch by epoch; yield the learning rate and the mean of every loss term."""
    like = next(network.parameters())
    n, size = len(rows), settings.batch_size
    us = distributed.team()
    n_steps = math.ceil(n / size)
    total_steps = settings.max_epochs * n_steps
    step = n_done * n_steps
    for _ in range(n_done, settings.max_epochs):
        generator = None
        if us.size > 1:  # one order of the rows in all processes, noise of its own in each
            generator = torch.Generator().manual_seed(seed + step)
            torch.manual_seed(seed + step + (us.rank + 1) * 2**40)
        network.train()
        sums: Tensor | float = 0.0
        names: tuple[str, ...] = ()
        for x, y, weight in rows.batches(size, like, generator):
            lr = settings.lr * _schedule(step / total_steps, settings)
            terms = loss(x, y, weight)
            optimizer.zero_grad()
            terms.total.backward()
            names, values = terms._fields, torch.stack(tuple(terms)).detach()
            if us.size > 1:
                values = distributed.add_up(network.parameters(), weight.sum(), terms)
            optimizer.step(lr)
            step += 1
            done = min(size, n - (step - 1) % n_steps * size)  # rows of the whole batch
            sums = sums + values * (done / n)
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
