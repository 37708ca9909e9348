"""Several networks as one model: each trained without one fold of the rows, then averaged.

The rows a member has not seen serve three times: they stop its training, they yield honest
predictions to choose thresholds from, and they tell how good the model is.
"""

import copy
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from multiprocessing import current_process
from typing import Any, TypeAlias, cast, get_args

import joblib
import numpy as np
import scipy.sparse as sp
import torch
from joblib.parallel import LokyBackend, get_active_backend
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from mpvae import calibration, inference, observed, probit
from mpvae.answers import N_DRAWS, JointMetric, best_answers
from mpvae.checkpoints import Checkpoint, Checkpoints
from mpvae.config import Metric, Settings
from mpvae.data import stratified_folds, stratified_split
from mpvae.features import Matrix
from mpvae.loop import EpochRecord
from mpvae.networks import MPVAE
from mpvae.rows import Learnt, Rows, in_sum, most_judged
from mpvae.training import TrainedNetwork, train

_Index: TypeAlias = NDArray[np.int64]
_ROWS, _ENTRIES = 200, 2**26  # rows, and draws x labels x rows, a member decides jointly


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Labels of rows some member was not trained on, and that member's probabilities."""

    Y: Matrix
    P: NDArray[np.float64]
    weight: NDArray[np.float64]
    evidence: NDArray[np.float32] | None = None  # (S, n, L)
    answers: dict[JointMetric, NDArray[np.int64]] = field(default_factory=dict)
    answered: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    """Decided jointly: some of the rows, and which, (n,)."""


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Trained networks, and what they say about rows they were not trained on."""

    networks: list[MPVAE]
    code_loadings: list[Tensor]  # one (L, d) per network
    feature_loadings: list[Tensor]  # one (L, r) per network
    history: list[dict[str, Any]]
    held_out: HeldOut | None
    worth: NDArray[np.float64] | None  # (S, L): of each source of evidence
    interrupted: bool


_Done: TypeAlias = tuple[TrainedNetwork, HeldOut | None]


def fit_members(
    rows: Rows,
    validation: Rows | None,
    settings: Settings,
    *,
    metric: Metric,
    seed: int,
    device: str,
    n_jobs: int = 1,
    on_epoch: Callable[[int, EpochRecord], None],
    on_member: Callable[[HeldOut], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Members:
    """Train every member.

    With ``validation`` rows all members learn from all ``rows`` and differ by their seed.
    Without, member k of several leaves out fold k; a single member leaves out
    ``validation_fraction`` of the rows (none, if that is less than one row).

    An interrupt (Ctrl-C) ends the training; members finished or begun by then are kept, of
    members in processes of their own (``n_jobs`` above 1) the finished ones.

    ``on_epoch`` is told of every epoch, or of the last one of a member from another process;
    ``on_member`` after every member but for an interrupted one, with what the members so far
    say about rows they have not seen. ``checkpoints``: where their states are kept meanwhile.
    """
    splits = _splits(rows, validation, settings, seed)
    return fit_parts(
        partial(_parts, rows, validation, splits),
        settings,
        evidence=None if rows.evidence is None else rows,
        validation=validation,
        metric=metric,
        seed=seed,
        device=device,
        n_jobs=n_jobs,
        on_epoch=on_epoch,
        on_member=on_member,
        checkpoints=checkpoints,
    )


def fit_parts(
    parts: Callable[[], Iterable[tuple[Learnt, Rows | None]]],
    settings: Settings,
    *,
    evidence: Rows | None = None,
    validation: Rows | None = None,
    metric: Metric,
    seed: int,
    device: str,
    n_jobs: int = 1,
    on_epoch: Callable[[int, EpochRecord], None],
    on_member: Callable[[HeldOut], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Members:
    """Train a member on each part: rows to learn from, and rows to be judged on.

    ``evidence``: all rows, where there is evidence about them. ``validation``: the rows that
    all members are judged on, where that is so. The rest is as in `fit_members`.
    """
    networks: list[MPVAE] = []
    history: list[dict[str, Any]] = []
    judged: list[HeldOut] = []
    interrupted = False
    train_one = partial(_train_one, settings=settings, metric=metric, device=device)
    todo = (
        (*part, seed + member, None if checkpoints is None else checkpoints.of(member))
        for member, part in enumerate(parts())
    )
    if n_jobs > 1:
        done = _in_processes(train_one, todo, n_jobs, on_epoch)
    else:
        done = (train_one(*one, partial(on_epoch, k)) for k, one in enumerate(todo))
    for member in range(settings.n_members):
        try:
            trained, found = next(done)
        except KeyboardInterrupt:
            if not networks:
                raise
            interrupted = True
            break
        networks.append(trained.network)
        history.extend({"member": member, **record.row()} for record in trained.history)
        if found is not None:
            judged.append(found)
        interrupted = trained.interrupted
        if interrupted:
            break
        if on_member is not None and judged:
            on_member(_together(judged, by_fold=validation is None))
    held_out = _together(judged, by_fold=validation is None) if judged else None
    finish = partial(_finished, networks, held_out, history, parts, evidence, validation)
    try:
        return finish(settings.z_draws, interrupted)
    except KeyboardInterrupt:  # of what remains nothing takes long
        return finish(settings.z_draws, True)


def _train_one(
    learn: Learnt,
    judge: Rows | None,
    seed: int,
    checkpoint: Checkpoint | None,
    on_epoch: Callable[[EpochRecord], None],
    *,
    settings: Settings,
    metric: Metric,
    device: str,
) -> _Done:
    """A trained member, and what it says about the rows it is judged on."""
    trained = train(
        learn,
        judge,
        settings,
        metric=metric,
        seed=seed,
        device=device,
        on_epoch=on_epoch,
        checkpoint=checkpoint,
    )
    trained.network.double()  # equal rows, equal answers, in any batch
    if judge is None:
        return trained, None
    P = inference.marginals([trained.network], judge.X, settings.z_draws)
    return trained, HeldOut(judge.Y, P, judge.weight, judge.evidence)


def _in_processes(
    train_one: Callable[..., _Done],
    todo: Iterable[tuple[Any, ...]],
    n_jobs: int,
    on_epoch: Callable[[int, EpochRecord], None],
) -> Iterator[_Done]:
    """As `_train_one` for each, some of them at the same time."""
    pool = joblib.Parallel(n_jobs=n_jobs, return_as="generator", backend=_watched_backend())
    here = os.getpid()
    each = (joblib.delayed(_on_one_thread)(here, train_one, *one) for one in todo)
    for member, (done, told) in enumerate(pool(each)):
        for warning in told:
            warnings.warn(warning, stacklevel=2)
        on_epoch(member, done[0].history[-1])
        yield done


def _watched_backend() -> Any:
    """The backend that joblib would take; of loky, one whose workers watch from their start.

    A task comes too late to begin: who is killed before it was sent leaves workers that wait
    for it. joblib below 1.5 takes no initializer but through `configure`.
    """
    backend, _ = get_active_backend()
    own = getattr(backend, "backend_kwargs", {})
    if isinstance(backend, LokyBackend) and "initializer" not in own:
        backend = copy.copy(backend)  # a caller may have others use it
        watch = {"initializer": _end_with, "initargs": (os.getpid(),)}
        backend.configure = partial(backend.configure, **watch)
    return backend


def _on_one_thread(
    parent: int, train_one: Callable[..., _Done], *one: Any
) -> tuple[_Done, list[Warning]]:
    """A trained member, and what was warned of: said by the process that people look at."""
    _end_with(parent)
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as told:
        done = train_one(*one, lambda record: None)
    return done, [cast("Warning", warning.message) for warning in told]


@cache
def _end_with(parent: int) -> None:
    """End this process once the one that has started it was killed.

    It would wait for work for ever, or train on and write over what a resumed training keeps.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)  # nobody is left who could be told

    if current_process().name.startswith("Loky"):  # else others see to our processes
        threading.Thread(target=watch, name="mpvae-parent", daemon=True).start()


def recalibrate(fitted: Members) -> Members:
    """Members whose probabilities match the held-out labels.

    Each label gets a slope and a shift on the probit scale, see `calibration.fit_probit`. They
    go into the output layers, so joint and conditional answers have them too.
    """
    held_out = fitted.held_out
    if held_out is None:
        return fitted
    slope, shift = calibration.fit_probit(held_out.Y, held_out.P, held_out.weight)
    return replace(
        fitted,
        networks=[_moved(network, slope, shift) for network in fitted.networks],
        code_loadings=[_by_label(slope, C) * C for C in fitted.code_loadings],
        feature_loadings=[_by_label(slope, F) * F for F in fitted.feature_loadings],
        held_out=replace(held_out, P=calibration.apply_probit(held_out.P, slope, shift)),
    )


def _finished(
    networks: list[MPVAE],
    held_out: HeldOut | None,
    history: list[dict[str, Any]],
    parts: Callable[[], Iterable[tuple[Learnt, Rows | None]]],
    evidence: Rows | None,
    validation: Rows | None,
    z_draws: int,
    interrupted: bool,
) -> Members:
    """Trained networks with evidence, if there is any, and with all that is asked of them."""
    C, F = [], []
    answers: list[dict[JointMetric, NDArray[np.int64]]] = []
    answered: list[NDArray[np.bool_]] = []
    worth = None
    if evidence is not None:
        networks, held_out, worth = _on_evidence(networks, held_out, evidence)
    if validation is not None and held_out is not None and held_out.evidence is not None:
        # Of several networks the mean of probabilities counts, not of probits.
        P = inference.marginals(networks, validation.with_evidence(worth), z_draws)
        held_out = replace(held_out, P=P)
    usual = 1.0 if held_out is None else _usual_f1(held_out)
    for network, (learn, judge) in zip(networks, parts(), strict=False):
        X = learn.sample.with_evidence(worth)
        C.append(inference.code_loadings(network, X))
        F.append(inference.feature_loadings(network, X))
        if validation is None and judge is not None and held_out is not None:
            answers.append(_some_answers([network], judge, worth, usual))
            answered.append(np.arange(len(judge)) < _most_rows(judge.Y.shape[1]))
    if validation is not None and held_out is not None:
        answers.append(_some_answers(networks, validation, worth, usual))
        answered.append(np.arange(len(validation)) < _most_rows(validation.Y.shape[1]))
    if held_out is not None:
        held_out = replace(
            held_out,
            answers={m: np.vstack([a[m] for a in answers]) for m in answers[0]},
            answered=np.concatenate(answered),
        )
    return Members(networks, C, F, history, held_out, worth, interrupted)


def _on_evidence(
    networks: list[MPVAE], held_out: HeldOut | None, rows: Rows
) -> tuple[list[MPVAE], HeldOut | None, NDArray[np.float64]]:
    """Networks and evidence together, each weighted by what it is worth on held-out rows.

    All are honest there. On rows the networks learnt from they look better than they are, so
    weights learnt in training trust the evidence too little, and the networks learn less.

    Returns
    -------
    networks : list of MPVAE
        With their weights, to which evidence is added as it is.
    held_out : HeldOut or None
        With the probabilities of all together.
    worth : ndarray of shape (S, L)
        Weight of each source of evidence.
    """
    L = len(networks[0].B)
    if held_out is not None and held_out.evidence is not None:
        q = calibration.probits(held_out.P)
        e = held_out.evidence.astype(np.float64)
        weights, shift = calibration.fit_weights(held_out.Y, [q, *e], held_out.weight)
        of_networks, worth = weights[0], weights[1:]
        P = ndtr(of_networks * q + in_sum(worth[:, None] * e) + shift)
        held_out = replace(held_out, P=P)
    else:  # of the networks nothing is known: half of the answer is theirs
        e = np.asarray(rows.evidence, np.float64)
        weights, shift = calibration.fit_weights(rows.Y, list(e), rows.weight)
        of_networks, worth, shift = np.full(L, 0.5), 0.5 * weights, 0.5 * shift
    together = []
    for network in networks:
        moved = _moved(network, of_networks, shift)
        moved.trust = moved.B.new_ones(L)
        together.append(moved)
    return together, held_out, worth


def _moved(network: MPVAE, slope: NDArray[np.float64], shift: NDArray[np.float64]) -> MPVAE:
    """A copy whose probits, label by label, are slope times what they were, plus shift."""
    moved = copy.deepcopy(network)
    a, b = (torch.as_tensor(v).to(moved.B) for v in (slope, shift))
    for output in filter(None, (moved.output, moved.output_y)):
        output.weight.data = a[:, None] * output.weight
        output.bias.data = a * output.bias + b * probit.scale(moved.B)
    if moved.trust is not None:
        moved.trust = a * moved.trust
    return moved


def _by_label(values: NDArray[np.float64], like: Tensor) -> Tensor:
    return torch.as_tensor(values).to(like)[:, None]


def _splits(
    rows: Rows, validation: Rows | None, settings: Settings, seed: int
) -> list[tuple[_Index | None, _Index | None]]:
    """Rows each member learns from and is judged on; None: all, and the validation rows."""
    n_members = settings.n_members
    if validation is not None:
        return [(None, None)] * n_members
    if n_members > 1:
        folds = stratified_folds(rows.Y, n_members, seed=seed)
        most = most_judged(rows.Y.shape[1])
        return [
            (np.flatnonzero(folds != k), np.flatnonzero(folds == k)[:most])
            for k in range(n_members)
        ]
    share = settings.validation_fraction
    if share * len(rows) < 1 or len(rows) < 3:
        return [(None, None)]
    split = stratified_split(rows.Y, {"learn": 1 - share, "judge": share}, seed=seed)
    if min(map(len, split.values())) == 0:
        return [(None, None)]
    return [(split["learn"], split["judge"][: most_judged(rows.Y.shape[1])])]


def _parts(
    rows: Rows, validation: Rows | None, splits: list[tuple[_Index | None, _Index | None]]
) -> Iterable[tuple[Rows, Rows | None]]:
    """The rows of each split, made when needed."""
    for learn, judge in splits:
        yield (
            rows if learn is None else rows.take(learn),
            validation if judge is None else rows.take(judge),
        )


def _most_rows(n_labels: int) -> int:
    """Rows a member decides jointly."""
    return min(_ROWS, _ENTRIES // (N_DRAWS * n_labels)) if n_labels > 1 else 0


def _usual_f1(held_out: HeldOut) -> float:
    """Example-F1 of a usual row: what an empty answer to an empty row is worth."""
    threshold = observed.best_threshold(held_out.Y, held_out.P, "example_f1", "paper")
    usual = observed.decision_score(held_out.Y, held_out.P, "example_f1", threshold)
    return 1.0 if np.isnan(usual) else usual  # no label of these rows was observed


def _some_answers(
    networks: list[MPVAE], rows: Rows, worth: NDArray[np.float64] | None, usual: float
) -> dict[JointMetric, NDArray[np.int64]]:
    """Joint decisions about the first of some rows the networks have not seen."""
    some = np.arange(min(_most_rows(rows.Y.shape[1]), len(rows)))
    if len(some) == 0:
        return {}
    X = rows.take(some).with_evidence(worth)
    return best_answers(networks, X, get_args(JointMetric), empty_value=usual)


def _together(judged: list[HeldOut], *, by_fold: bool) -> HeldOut:
    """Members judged on a fold each, one after the other; or on the same rows, their mean."""
    if not by_fold:
        return replace(judged[0], P=np.mean([part.P for part in judged], axis=0))
    labels = [part.Y for part in judged]
    evidence = [part.evidence for part in judged if part.evidence is not None]
    return HeldOut(
        sp.vstack(labels, format="csr") if sp.issparse(labels[0]) else np.vstack(labels),
        np.vstack([part.P for part in judged]),
        np.concatenate([part.weight for part in judged]),
        np.concatenate(evidence, axis=1) if evidence else None,
    )
