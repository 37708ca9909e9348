"""Several networks as one model: each trained without one fold of the rows, then averaged.

The rows a member has not seen serve three times: they stop its training, they yield honest
predictions to choose thresholds from, and they tell how good the model is.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpvae import calibration, inference, observed, probit
from mpvae.answers import N_DRAWS, JointMetric, best_answers
from mpvae.config import Metric, Settings
from mpvae.data import stratified_folds, stratified_split
from mpvae.features import Matrix
from mpvae.loop import EpochRecord
from mpvae.networks import MPVAE
from mpvae.rows import Rows
from mpvae.training import train

_ROWS, _ENTRIES = 200, 2**26  # rows, and draws x labels x rows, a member decides jointly


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Labels of rows some member was not trained on, and that member's probabilities."""

    Y: Matrix
    P: NDArray[np.float64]
    weight: NDArray[np.float64]
    answers: dict[JointMetric, NDArray[np.int64]]  # decided jointly, for some of the rows
    answered: NDArray[np.bool_]  # (n,): which


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Trained networks, and what they say about rows they were not trained on."""

    networks: list[MPVAE]
    code_loadings: list[Tensor]  # one (L, d) per network
    feature_loadings: list[Tensor]  # one (L, r) per network
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
    on_member: Callable[[HeldOut], None] | None = None,
) -> Members:
    """Train every member.

    With ``validation`` rows all members learn from all ``rows`` and differ by their seed.
    Without, member k of several leaves out fold k; a single member leaves out
    ``validation_fraction`` of the rows (none, if that is less than one row).

    An interrupt (Ctrl-C) ends the training; members finished or begun by then are kept.

    ``on_epoch`` is told of every epoch, ``on_member`` after every member but for an
    interrupted one, with what the members so far say about rows they have not seen.
    """
    networks: list[MPVAE] = []
    loadings: list[Tensor] = []
    by_features: list[Tensor] = []
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
            F = inference.feature_loadings(network, learn.X)
            if judge is not None:
                P = inference.marginals([network], judge.X, settings.z_draws)
                alone = [network] if validation is None else []
                part = _held_out(alone, judge, P)
        except KeyboardInterrupt:
            if not networks:
                raise
            interrupted = True
            break
        networks.append(network)
        loadings.append(C)
        by_features.append(F)
        history.extend({"member": member, **record.row()} for record in trained.history)
        if judge is not None:
            judged.append(part)
        interrupted = trained.interrupted
        if interrupted:
            break
        if on_member is not None and judged:
            on_member(_together(judged, validation, []))
    held_out = _together(judged, validation, networks) if judged else None
    return Members(networks, loadings, by_features, history, held_out, interrupted)


def recalibrate(fitted: Members) -> Members:
    """Members whose probabilities match the held-out labels.

    Each label gets a slope and a shift on the probit scale, see `calibration.fit_probit`. They
    go into the output layers, so joint and conditional answers have them too.
    """
    held_out = fitted.held_out
    if held_out is None:
        return fitted
    slope, shift = calibration.fit_probit(held_out.Y, held_out.P, held_out.weight)
    a, b = (torch.as_tensor(v).to(fitted.networks[0].B) for v in (slope, shift))
    for network in fitted.networks:
        output = network.output
        output.weight.data = a[:, None] * output.weight
        output.bias.data = a * output.bias + b * probit.scale(network.B)
        if network.trust is not None:
            network.trust.data = a * network.trust
    return replace(
        fitted,
        code_loadings=[a[:, None] * C for C in fitted.code_loadings],
        feature_loadings=[a[:, None] * F for F in fitted.feature_loadings],
        held_out=replace(held_out, P=calibration.apply_probit(held_out.P, slope, shift)),
    )


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


def _held_out(networks: list[MPVAE], rows: Rows, P: NDArray[np.float64]) -> HeldOut:
    """What networks say about rows they have not seen; some of them are decided jointly."""
    n, L = P.shape
    most = min(_ROWS, _ENTRIES // (N_DRAWS * L)) if networks and L > 1 else 0
    answered = np.arange(n) < most
    answers: dict[JointMetric, NDArray[np.int64]] = {}
    if answered.any():
        X = rows.X[np.flatnonzero(answered)]
        threshold = observed.best_threshold(rows.Y, P, "example_f1", "paper")
        usual = observed.decision_score(rows.Y, P, "example_f1", threshold)
        usual = 1.0 if np.isnan(usual) else usual  # no label of these rows was observed
        answers = best_answers(networks, X, get_args(JointMetric), empty_value=usual)
    return HeldOut(rows.Y, P, rows.weight, answers, answered)


def _together(judged: list[HeldOut], validation: Rows | None, networks: list[MPVAE]) -> HeldOut:
    """Members judged on a fold each, one after the other; or on the same rows, their mean."""
    if validation is not None:
        return _held_out(networks, validation, np.mean([part.P for part in judged], axis=0))
    labels = [part.Y for part in judged]
    return HeldOut(
        sp.vstack(labels, format="csr") if sp.issparse(labels[0]) else np.vstack(labels),
        np.vstack([part.P for part in judged]),
        np.concatenate([part.weight for part in judged]),
        {m: np.vstack([part.answers[m] for part in judged]) for m in judged[0].answers},
        np.concatenate([part.answered for part in judged]),
    )
