"""The training loop: one network, minibatches, early stopping on validation rows."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpvae import inference, kernel, losses, metrics, probit
from mpvae.config import Metric, Settings
from mpvae.decisions import apply_threshold, fit_threshold
from mpvae.errors import MPVAEError
from mpvae.features import Matrix
from mpvae.losses import LossTerms
from mpvae.networks import MPVAE


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows to learn from or to be judged on: features, labels, weights."""

    X: Matrix
    Y: Matrix
    weight: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.weight)

    def take(self, index: NDArray[np.int64]) -> "Rows":
        """Those rows alone."""
        return Rows(self.X[index], self.Y[index], self.weight[index])


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


@dataclass(slots=True)
class TrainedNetwork:
    """A network at its best epoch, and how it got there."""

    network: MPVAE
    history: list[EpochRecord] = field(default_factory=list)
    interrupted: bool = False


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block; the caller's generators are restored after it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def threads_that_pay(rows: Rows, settings: Settings) -> Iterator[None]:
    """One thread inside the block where steps are too small to share.

    Measured on two cores: below some 4e8 operations a step a second thread gains nothing, and
    on a busy machine the wait for it makes training several times slower.
    """
    before = torch.get_num_threads()
    with torch.device("meta"):  # counts weights without making them
        network = MPVAE(rows.X.shape[1], rows.Y.shape[1], settings)
    n_weights = sum(p.numel() for p in network.parameters())
    if 6 * n_weights * min(settings.batch_size, len(rows)) < 4e8:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(
    rows: Rows,
    validation: Rows | None,
    settings: Settings,
    *,
    metric: Metric,
    seed: int,
    device: str = "cpu",
    on_epoch: Callable[[EpochRecord], None] = lambda record: None,
) -> TrainedNetwork:
    """Train one network and return it at the epoch with the best validation score.

    Without validation rows the last epoch is taken. An interrupt (Ctrl-C) after the first
    finished epoch ends the training early and keeps the best epoch so far.
    """
    if settings.monitor != "log_loss":
        metric = cast("Metric", settings.monitor)  # stop by it, so show it
    with seeded(seed):
        network = MPVAE(rows.X.shape[1], rows.Y.shape[1], settings).to(device)
        _start_at_prevalence(network, rows)
        result = TrainedNetwork(network)
        best_score, best_state = math.inf, _copy(network)
        try:
            for epoch, (lr, terms) in enumerate(_epochs(network, rows, settings), start=1):
                log_loss, value = _validate(network, validation, settings, metric)
                score = _to_minimise(log_loss, value, settings) if validation else -epoch
                is_best = score < best_score
                if is_best:
                    best_score, best_state = score, _copy(network)
                record = EpochRecord(epoch, lr, terms, log_loss, metric, value, is_best)
                result.history.append(record)
                on_epoch(record)
                if validation and _out_of_patience(result.history, settings.patience):
                    break
        except KeyboardInterrupt:
            if not result.history:
                raise
            result.interrupted = True
        network.load_state_dict(best_state)
        network.eval().requires_grad_(False)
    return result


def _epochs(
    network: MPVAE, rows: Rows, settings: Settings
) -> Iterator[tuple[float, dict[str, float]]]:
    """Train epoch by epoch; yield the learning rate and the mean of every loss term."""
    like = network.B
    others = [p for name, p in network.named_parameters() if name != "B"]
    optimizer = torch.optim.Adam(
        [
            {"params": others, "weight_decay": settings.weight_decay},
            {"params": [network.B], "factor": settings.lr_factors},
        ],
        lr=settings.lr,
        fused=True,
    )
    n, size = len(rows), settings.batch_size
    total_steps = settings.max_epochs * math.ceil(n / size)
    n_normals = settings.n_draws // 2 if settings.antithetic else settings.n_draws
    step = 0
    for _ in range(settings.max_epochs):
        network.train()
        sums = torch.zeros(len(LossTerms._fields), device=like.device)
        order = torch.randperm(n).numpy()
        for start in range(0, n, size):
            index = order[start : start + size]
            lr = settings.lr * _schedule(step / total_steps, settings)
            for group in optimizer.param_groups:
                group["lr"] = lr * group.get("factor", 1.0)
            x = inference.rows_tensor(rows.X, index, like)
            y = inference.rows_tensor(rows.Y, index, like)
            weight = torch.as_tensor(rows.weight[index]).to(like)
            eps = torch.randn(len(index), settings.latent_dim).to(like)
            u = normals((len(index), n_normals, settings.n_factors), like)
            loss = losses.mpvae_loss(network(x, y, eps), network.B, u, y, weight, settings)
            optimizer.zero_grad()
            loss.total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            sums += torch.stack(loss).detach() * (len(index) / n)
        means = LossTerms(*sums)._asdict()
        means = {name: value.item() for name, value in means.items()}
        _refuse_non_finite(means, step)
        yield lr, means


def normals(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Standard normal numbers; by the compiled generator, four times as fast, where it is."""
    if kernel.available and like.device.type == "cpu":
        return kernel.normal_draws(shape, int(torch.randint(2**62, ()))).to(like)
    return torch.randn(shape).to(like)


def _schedule(progress: float, settings: Settings) -> float:
    if settings.lr_schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    if settings.lr_schedule == "step":
        return settings.lr_decay ** math.floor(progress * settings.lr_decay_times)
    return 1.0


def _start_at_prevalence(network: MPVAE, rows: Rows) -> None:
    """Begin at the share of rows that have each label: rare labels need not be unlearnt."""
    counts = np.asarray(rows.Y.T @ rows.weight).ravel()
    share = (counts + 0.5) / (rows.weight.sum() + 1)
    bias = torch.special.ndtri(torch.as_tensor(share)).to(network.B) * probit.scale(network.B)
    for layer in (network.output, network.output_y):
        if layer is not None:
            layer.bias.data = bias.detach().clone()


def _validate(
    network: MPVAE, rows: Rows | None, settings: Settings, metric: Metric
) -> tuple[float | None, float | None]:
    """Log-loss of the validation rows, and the metric at its best paper threshold there."""
    if rows is None:
        return None, None
    network.eval()
    P = inference.marginals([network], rows.X, settings.z_draws)
    if not np.isfinite(P).all():
        raise _not_finite("the probabilities of the validation rows are")
    threshold = fit_threshold(rows.Y, P, metric=metric, kind="paper")
    value = metrics.DECISION_METRICS[metric](rows.Y, apply_threshold(P, threshold))
    return metrics.log_loss(rows.Y, P), value


def _to_minimise(log_loss: float | None, value: float | None, settings: Settings) -> float:
    score = log_loss if settings.monitor == "log_loss" else value
    if score is None or not math.isfinite(score):
        return math.inf
    return score if settings.monitor == "log_loss" else -score


def _out_of_patience(history: list[EpochRecord], patience: int | None) -> bool:
    if patience is None:
        return False
    since_best = next(i for i, record in enumerate(reversed(history)) if record.is_best)
    return since_best >= patience


def _copy(network: MPVAE) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _refuse_non_finite(means: dict[str, float], step: int) -> None:
    bad = [name for name, value in means.items() if not math.isfinite(value)]
    if bad:
        raise _not_finite(f"the loss after {step} steps ({', '.join(bad)}) is")


def _not_finite(what: str) -> MPVAEError:
    return MPVAEError(f"{what} not finite; lower lr, or look for extreme values in X")
