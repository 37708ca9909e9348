"""Several networks as one model: each trained without one fold of the rows, then averaged.

The rows a member has not seen serve three times: they stop its training, they yield honest
predictions to choose thresholds from, and they tell how good the model is.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch import Tensor

from mpvae import inference
from mpvae.config import Metric, Settings
from mpvae.data import stratified_folds, stratified_split
from mpvae.features import Matrix
from mpvae.loop import EpochRecord
from mpvae.networks import MPVAE
from mpvae.rows import Rows
from mpvae.training import train


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Labels of rows some member was not trained on, and that member's probabilities."""

    Y: Matrix
    P: NDArray[np.float64]
    weight: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Trained networks, and what they say about rows they were not trained on."""

    networks: list[MPVAE]
    code_loadings: list[Tensor]  # one (L, d) per network
    history: list[dict[str, Any]]
    held_out: HeldOut | None
    interrupted: bool


def fit_members(
    rows: Rows,
    validation: Rows | None,
    settings: Settings,
    *,
    metric: Metric,
    seed: int,
    device: str,
    on_epoch: Callable[[int, EpochRecord], None],
) -> Members:
    """Train every member.

    With ``validation`` rows all members learn from all ``rows`` and differ by their seed.
    Without, member k of several leaves out fold k; a single member leaves out
    ``validation_fraction`` of the rows (none, if that is less than one row).

    An interrupt (Ctrl-C) ends the training; members finished or begun by then are kept.
    """
    networks: list[MPVAE] = []
    loadings: list[Tensor] = []
    history: list[dict[str, Any]] = []
    judged: list[HeldOut] = []
    interrupted = False
    for member, (learn, judge) in enumerate(_partition(rows, validation, settings, seed)):
        try:
            trained = train(
                learn,
                judge,
                settings,
                metric=metric,
                seed=seed + member,
                device=device,
                on_epoch=partial(on_epoch, member),
            )
            network = trained.network.double()  # equal rows, equal answers, in any batch
            C = inference.code_loadings(network, learn.X)
            if judge is not None:
                P = inference.marginals([network], judge.X, settings.z_draws)
        except KeyboardInterrupt:
            if not networks:
                raise
            interrupted = True
            break
        networks.append(network)
        loadings.append(C)
        history.extend({"member": member, **record.row()} for record in trained.history)
        if judge is not None:
            judged.append(HeldOut(judge.Y, P, judge.weight))
        interrupted = trained.interrupted
        if interrupted:
            break
    held_out = _same_rows(judged) if validation is not None else _all_rows(judged)
    return Members(networks, loadings, history, held_out, interrupted)


def _partition(
    rows: Rows, validation: Rows | None, settings: Settings, seed: int
) -> Iterable[tuple[Rows, Rows | None]]:
    """Rows to learn from and rows to be judged on, member by member, made when needed."""
    n_members = settings.n_members
    if validation is not None:
        return [(rows, validation)] * n_members
    if n_members > 1:
        folds = stratified_folds(rows.Y, n_members, seed=seed)
        return (
            (rows.take(np.flatnonzero(folds != k)), rows.take(np.flatnonzero(folds == k)))
            for k in range(n_members)
        )
    share = settings.validation_fraction
    if share * len(rows) < 1 or len(rows) < 3:
        return [(rows, None)]
    split = stratified_split(rows.Y, {"learn": 1 - share, "judge": share}, seed=seed)
    if min(map(len, split.values())) == 0:
        return [(rows, None)]
    return [(rows.take(split["learn"]), rows.take(split["judge"]))]


def _same_rows(judged: list[HeldOut]) -> HeldOut:
    """Several members judged on one set of rows: their mean."""
    first = judged[0]
    return HeldOut(first.Y, np.mean([part.P for part in judged], axis=0), first.weight)


def _all_rows(judged: list[HeldOut]) -> HeldOut | None:
    """Members judged on a fold each: the folds one after the other."""
    if not judged:
        return None
    labels = [part.Y for part in judged]
    return HeldOut(
        sp.vstack(labels, format="csr") if sp.issparse(labels[0]) else np.vstack(labels),
        np.vstack([part.P for part in judged]),
        np.concatenate([part.weight for part in judged]),
    )
