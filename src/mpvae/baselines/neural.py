"""What the neural rivals share: the paper's 512/256 ReLU networks and our training loop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor, nn

from mpvae.adam import Adam, Group
from mpvae.baselines.base import Baseline, is_integer, require
from mpvae.config import Metric, Schedule
from mpvae.data import stratified_split
from mpvae.errors import DataError
from mpvae.features import Matrix
from mpvae.loop import EpochRecord, Terms, device_named, fit_network, seeded
from mpvae.progress import FitProgress
from mpvae.rows import Rows, rows_tensor

_CELLS = 2**24  # entries of the features per pass of a prediction: bounds memory


class RivalNetwork(Protocol):
    """What a rival's module offers beside being a `torch.nn.Module`."""

    def loss(self, x: Tensor, y: Tensor, weight: Tensor) -> Terms:
        """Objective of a batch, a NamedTuple of scalars with the field ``total``."""

    def probabilities(self, x: Tensor) -> Tensor:
        """Probability of each label, shape (N, L)."""


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """What `mpvae.loop.fit_network` reads."""

    lr: float
    lr_schedule: Schedule
    lr_decay: float
    lr_decay_times: int
    batch_size: int
    max_epochs: int
    patience: int | None
    monitor: str


class NeuralBaseline(Baseline):
    """Base of the neural rivals; a subclass builds its network in `_network`.

    Every subclass takes, beside its own, the parameters

    hidden : tuple of int
        Widths of the hidden layers; (512, 256) as in the MPVAE paper.
    dropout, lr, weight_decay, batch_size, max_epochs, patience
        The optimisation, by Adam with a cosine schedule. ``patience=None`` trains to the end.
    monitor : str
        Validation score that picks the epoch: "log_loss", or the name of a metric.
    validation_fraction : float
        Share of the rows held out for that when `fit` is given none; 0 trains on all.
    device, random_state, verbose
        As in `mpvae.MPVAEClassifier`.
    """

    hidden: tuple[int, ...]
    dropout: float
    lr: float
    weight_decay: float
    batch_size: int
    max_epochs: int
    patience: int | None
    monitor: str
    validation_fraction: float
    device: str
    verbose: int

    def fit(self, X: Any, y: Any, X_val: Any = None, y_val: Any = None) -> Self:
        """Learn from features and labels.

        Parameters
        ----------
        X : array-like, DataFrame (pandas or polars) or sparse matrix of shape (n, D)
            Features. Columns of a DataFrame may be categories (text). NaN is a missing value.
        y : array-like, DataFrame or sparse matrix of shape (n, L), or (n,)
            A 0/1 indicator matrix, or one binary label in any encoding.
        X_val, y_val : like X and y, optional
            Rows for early stopping. Without them ``validation_fraction`` of X is held out.
        """
        self.__dict__.pop("fitted_", None)
        self._check_options()
        self._check()
        if (X_val is None) != (y_val is None):
            raise DataError("X_val and y_val belong together; give both or neither")
        X, Y = self._read_training(X, y)
        self.features_ = self._fit_features(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows = Rows(
            self._seen(self.features_.apply(X), reset=True),
            Y.astype(np.float32),
            np.ones(X.shape[0]),
        )
        validation = None
        if X_val is not None:
            Z, Y_val = self._read_validation(X_val, y_val)
            validation = Rows(self._seen(Z, reset=False), Y_val, np.ones(Z.shape[0]))
        elif self.validation_fraction * len(rows) >= 1 and len(rows) >= 3:
            shares = {"learn": 1 - self.validation_fraction, "judge": self.validation_fraction}
            split = stratified_split(rows.Y, shares, seed=seed)
            if min(map(len, split.values())):
                rows, validation = rows.take(split["learn"]), rows.take(split["judge"])
        self.network_, self.history_ = self._train(rows, validation, seed)
        self.fitted_ = True
        return self

    def _network(self, rows: Rows) -> Any:
        """New network (a `nn.Module` and `RivalNetwork`) for these rows."""
        raise NotImplementedError

    def _probabilities(self, X: Matrix) -> NDArray[np.float64]:
        return predict_in_pieces(self.network_, X)

    def _train(
        self, rows: Rows, validation: Rows | None, seed: int
    ) -> tuple[Any, pd.DataFrame]:
        options = LoopOptions(
            self.lr,
            "cosine",
            1.0,
            0,
            self.batch_size,
            self.max_epochs,
            self.patience,
            self.monitor,
        )
        with seeded(seed), FitProgress(self.verbose > 0) as progress:
            network = self._network(rows).to(device_named(self.device))
            optimizer = Adam([Group(list(network.parameters()), self.weight_decay)])
            course = fit_network(
                network,
                rows,
                validation,
                options,
                optimizer=optimizer,
                loss=network.loss,
                probabilities=lambda X: predict_in_pieces(network, X),
                metric="micro_f1",
                on_epoch=self._show(progress),
            )
        network.double()  # equal rows, equal answers, in any batch
        if course.interrupted:
            raise KeyboardInterrupt("fit was interrupted")
        return network, pd.DataFrame([record.row() for record in course.history])

    def _show(self, progress: FitProgress) -> Callable[[EpochRecord], None]:
        def show(record: EpochRecord) -> None:
            scores = f"loss {record.terms['total']:.3f}"
            if record.val_metric is not None:
                scores += f"  validation {record.metric} {record.val_metric:.4f}"
            progress.update(
                member=0,
                n_members=1,
                epoch=record.epoch,
                max_epochs=self.max_epochs,
                scores=scores,
            )

        return show

    def _check_options(self) -> None:
        check_network_options(self)
        fraction = self.validation_fraction
        require("validation_fraction", fraction, 0 <= fraction < 1, "in [0, 1)")
        patience = self.patience
        require("patience", patience, patience is None or patience >= 1, "None or >= 1")
        known = ("log_loss", *get_args(Metric))
        require("monitor", self.monitor, self.monitor in known, f"one of {', '.join(known)}")


def check_network_options(estimator: Any) -> None:
    """Raise a ConfigError unless layers and optimisation of a network make sense."""
    for name in ("batch_size", "max_epochs"):
        value = getattr(estimator, name)
        require(name, value, is_integer(value) and value >= 1, "an integer >= 1")
    hidden = estimator.hidden
    is_widths = isinstance(hidden, list | tuple) and len(hidden) > 0
    ok = is_widths and all(is_integer(w) and w >= 1 for w in hidden)
    require("hidden", hidden, ok, "a sequence of layer widths, as (512, 256)")
    require("lr", estimator.lr, estimator.lr > 0, "above 0")
    require("weight_decay", estimator.weight_decay, estimator.weight_decay >= 0, "at least 0")
    require("dropout", estimator.dropout, 0 <= estimator.dropout < 1, "in [0, 1)")
    device_named(estimator.device)


def predict_in_pieces(network: Any, X: Matrix) -> NDArray[np.float64]:
    """Probabilities (n, L) from a rival's network, some rows at a time."""
    like = next(network.parameters())
    n = X.shape[0]
    rows = max(1, min(1024, _CELLS // int(X.shape[1])))
    with torch.inference_mode():
        parts = [
            network.probabilities(rows_tensor(X, slice(i, i + rows), like)).double().cpu()
            for i in range(0, n, rows)
        ]
    return torch.cat(parts).numpy()


def label_bias(network_output: nn.Linear, start: Tensor) -> None:
    """Let an output layer begin at ``start`` (L,): rare labels need not be unlearnt."""
    network_output.bias.data = start.detach().to(network_output.bias).clone()
