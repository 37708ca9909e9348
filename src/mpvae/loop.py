"""The loop that trains every network: minibatches, a schedule, stopping on validation rows."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
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
from mpvae.rows import Batch, Learnt, Rows

Terms: TypeAlias = Any  # a NamedTuple of tensors of shape (); its field `total` is minimised
MAX_SKIPPED = 10
"""Steps in a row that could not be taken: there is no way on."""
_STEEPEST = 1e18  # norm of a gradient: its square has to be a number of float32
_REMEDY = "lower lr, or look for extreme values in X"


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
    skipped: int = 0
    """Steps not taken, since loss or gradient were not finite."""

    def row(self) -> dict[str, float | int | bool | str | None]:
        """As a row of the history table."""
        return {
            "epoch": self.epoch,
            "lr": self.lr,
            **self.terms,
            "val_log_loss": self.val_log_loss,
            f"val_{self.metric}": self.val_metric,
            "is_best": self.is_best,
            "skipped": self.skipped,
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

    A step whose loss or gradient is not finite is not taken: a warning names the first, the
    history counts them. After `MAX_SKIPPED` in a row, or where the validation rows get no
    finite probabilities, the training ends with the best epoch so far, or without one in an
    MPVAEError.

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
        epochs = _epochs(network, rows, settings, optimizer, loss, run, seed)
        while not run.over and (done := next(epochs, None)) is not None:
            lr, terms, skipped = done
            epoch = len(run.history) + 1
            network.eval()
            now = (0.0, 0.0) if checkpoint is None else (checkpoint.due(), checkpoint.lasts())
            log_loss, value, due, lasts = distributed.agreed(
                [*_validate(probabilities, validation, metric), *map(float, now)]
            )
            score = _to_minimise(log_loss, value, settings) if validation else -epoch
            # Weights with which the last step could not be taken come after all others.
            ranked = (run.skipped > 0, score)
            is_best = math.isfinite(score) and ranked < run.best_score
            if is_best:
                run.best_score, run.best = ranked, _copy(network)
            record = EpochRecord(epoch, lr, terms, log_loss, metric, value, is_best, skipped)
            run.history.append(record)
            on_epoch(record)
            run.over = epoch == settings.max_epochs or bool(
                validation and _out_of_patience(run.history, settings.patience)
            )
            if checkpoint is not None and (due or (run.over and lasts)):
                checkpoint.write(*run.state())
    except KeyboardInterrupt:
        if not run.history:
            raise
        interrupted = True
    except _NoWayOn as end:
        if not run.has_something_better():
            raise MPVAEError(f"{end}; {_REMEDY}") from None
        warnings.warn(
            f"{end}; the training ends with the best of {len(run.history)} epochs; {_REMEDY}",
            stacklevel=2,
        )
    network.load_state_dict(run.best)
    network.eval().requires_grad_(False)
    return Course(run.history, interrupted)


class _NoWayOn(Exception):
    """The training cannot go on; its text says why."""


@dataclass(slots=True, eq=False)
class _Run:
    """All that a training has come to after some epochs."""

    network: nn.Module
    optimizer: Adam
    best: dict[str, Tensor]
    best_score: tuple[bool, float] = (True, math.inf)
    history: list[EpochRecord] = field(default_factory=list)
    over: bool = False
    skipped: int = 0  # steps not taken, the last ones in a row
    warned: bool = False

    def has_something_better(self) -> bool:
        """Whether some epoch was the best, with other weights than those of now."""
        now = self.network.state_dict()
        moved = any(not torch.equal(now[name], value) for name, value in self.best.items())
        return moved and any(record.is_best for record in self.history)

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
            "skipped": self.skipped,
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
            stuck, score = facts["best_score"]
            self.best_score = bool(stuck), float(score)
            self.history = [EpochRecord(**record) for record in facts["history"]]
            self.over = bool(facts["over"])
            self.skipped = int(facts["skipped"])
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
    run: _Run,
    seed: int,
) -> Iterator[tuple[float, dict[str, float], int]]:
    """Train epoch by epoch; yield learning rate, means of the loss terms, steps not taken."""
    like = next(network.parameters())
    n, size = len(rows), settings.batch_size
    us = distributed.team()
    n_steps = math.ceil(n / size)
    total_steps = settings.max_epochs * n_steps
    n_done = len(run.history)
    step = n_done * n_steps
    for epoch in range(n_done + 1, settings.max_epochs + 1):
        generator = None
        if us.size > 1:  # one order of the rows in all processes, noise of its own in each
            generator = torch.Generator().manual_seed(seed + step)
            torch.manual_seed(seed + step + (us.rank + 1) * 2**40)
        network.train()
        sums: Tensor | float = 0.0
        taken, skipped = 0.0, 0  # share of the rows; steps
        for number, batch in enumerate(rows.batches(size, like, generator), 1):
            lr = settings.lr * _schedule(step / total_steps, settings)
            terms = loss(batch.x, batch.y, batch.weight)
            optimizer.zero_grad()
            terms.total.backward()
            names, values = terms._fields, torch.stack(tuple(terms)).detach()
            if us.size > 1:
                values = distributed.add_up(network.parameters(), batch.weight.sum(), terms)
            step += 1
            done = min(size, n - (number - 1) * size) / n  # share of the whole batch
            if can_be_taken(values, network.parameters()):
                optimizer.step(lr)
                sums = sums + values * done
                taken += done
                run.skipped = 0
                continue
            skipped += 1
            run.skipped += 1
            place = f"epoch {epoch}, batch {number} of {n_steps}{_rows_of(batch)}"
            what = _not_finite_terms(dict(zip(names, values.tolist(), strict=True)))
            if run.skipped == MAX_SKIPPED:
                raise _NoWayOn(f"{MAX_SKIPPED} steps in a row, to {place}: {what} not finite")
            if not run.warned:
                run.warned = True
                warnings.warn(
                    f"{place}: {what} not finite; such a step is not taken, history_ counts "
                    f"them; {_REMEDY}",
                    stacklevel=3,
                )
        share = taken if skipped else 1.0
        means = (cast("Tensor", sums) / share).tolist() if taken else [math.nan] * len(names)
        yield lr, dict(zip(names, means, strict=True)), skipped


def can_be_taken(terms: Tensor, parameters: Iterable[Tensor]) -> bool:
    """Whether loss and gradient of a step are finite, and so will be the optimiser's state."""
    norms = torch._foreach_norm([p.grad for p in parameters if p.grad is not None])
    return bool(torch.stack([*norms, terms.abs().max()]).max() < _STEEPEST)


def _not_finite_terms(terms: dict[str, float]) -> str:
    bad = [name for name, value in terms.items() if not math.isfinite(value)]
    return f"the loss ({', '.join(bad)}) is" if bad else "the gradient is too large, or"


def _rows_of(batch: Batch) -> str:
    """Rows of a batch, those with the largest values first, where their numbers are known."""
    if batch.number is None or not len(batch.number):
        return ""
    order = batch.x.abs().amax(1).argsort(descending=True).tolist()
    some = ", ".join(str(batch.number[i]) for i in order[:3])
    more = f" and {len(order) - 3} more" if len(order) > 3 else ""
    return f" (rows {some}{more}, counted from 0)"


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
        raise _NoWayOn("the probabilities of the validation rows are not finite")
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
