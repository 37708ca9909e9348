"""Search for settings that suit a table better than the default, judged on held-out rows.

Every trial trains the networks as `MPVAEClassifier.fit` does and is judged by what they say
about rows they were not trained on. Optuna proposes the trials (tree-structured Parzen
estimators) and ends hopeless ones after a network or two (median rule).

With a folder every trial is written down when it ends, as lines of JSON in ``journal.jsonl``;
the same search on the same data goes on from there. Nothing pickled is written or read.
"""

import copy
import hashlib
import importlib.util
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import pandas as pd
import scipy.sparse as sp

from mpvae.config import DataShape, Settings, setting_docs
from mpvae.errors import ConfigError, DataError, MPVAEError
from mpvae.estimator import MPVAEClassifier
from mpvae.evidence import auto_asks
from mpvae.features import row_keys
from mpvae.journal import open_journal
from mpvae.judging import held_out_score
from mpvae.loop import EpochRecord, device_named
from mpvae.members import HeldOut, fit_members, recalibrate
from mpvae.progress import TuneProgress
from mpvae.rows import Rows
from mpvae.space import Choice, Knob, Space, search_space
from mpvae.training import threads_that_pay
from mpvae.tuned import Score, TrialResult, Tuned
from mpvae.version import __version__

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

State: TypeAlias = Literal["complete", "pruned", "failed", "stopped"]

_STUDY = "mpvae"
_ASKED = {
    "data": "other data (table, labels or rows)",
    "metric": "another metric",
    "seed": "another seed",
    "fixed": "other settings fixed",
    "version": "another version of mpvae",
}
_RANDOM_TRIALS = 8  # before the sampler begins to learn from what it has seen
_UNPRUNED_TRIALS = 4  # complete ones, before any is ended early


def tune(
    X: Any,
    y: Any,
    X_val: Any = None,
    y_val: Any = None,
    *,
    metric: Score = "micro_f1",
    minutes: float | None = 10.0,
    trials: int | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    verbose: int = 0,
    **fixed: Any,
) -> Tuned:
    """Search for settings whose score on rows held out of training is good.

    The first trial is the default. Ctrl-C ends the search and returns the best so far, if
    the default was finished by then.

    Parameters
    ----------
    X, y, X_val, y_val
        As in `MPVAEClassifier.fit`. Without validation rows a trial is scored on the rows of
        ``X`` that each of its networks was trained without. Test rows have no place here.
    metric : {"example_f1", "micro_f1", "macro_f1", "hamming", "subset", "log_loss"}
        What to search by; log_loss is minimised.
    minutes : float, optional
        Time for this call. The default is always tried to its end; a trial that is running
        when time is over is given up. None: no limit.
    trials : int, optional
        Stop when the search has so many trials, those of earlier calls included.
    folder : path, optional
        Where trials are kept, and ``best.toml`` and ``trials.csv`` are written after each.
        A folder that holds a search for the same data and question is continued.
    seed : int
        Of every model, and of the search.
    verbose : int
        1 shows a progress bar on a terminal.
    **fixed
        Parameters of `MPVAEClassifier`, settings among them, that are not searched.

    Returns
    -------
    Tuned
        Best and default settings with their scores, and all trials.
    """
    _require_optuna()
    _check(metric, minutes, trials, seed, fixed)
    task = _Task(X, y, X_val, y_val, metric, int(seed), fixed)
    with _quiet():
        study = _open_study(folder, task)
        return _Search(study, task, minutes, trials, folder, verbose > 0).run()


def _check(
    metric: str, minutes: float | None, trials: int | None, seed: int, fixed: dict[str, Any]
) -> None:
    if metric not in get_args(Score):
        raise ConfigError(f"metric must be one of {', '.join(get_args(Score))}, got {metric!r}")
    if minutes is None and trials is None:
        raise ConfigError("nothing ends the search; give minutes, trials, or both")
    if minutes is not None and not 0 < minutes < math.inf:
        raise ConfigError(f"minutes must be above 0, got {minutes}")
    if trials is not None and trials < 1:
        raise ConfigError(f"trials must be at least 1, got {trials}")
    if int(seed) != seed or not 0 <= seed < 2**32:
        raise ConfigError(f"seed must be a whole number from 0 to 2**32 - 1, got {seed!r}")
    known = set(MPVAEClassifier().get_params()) - {"metric", "random_state", "verbose"}
    unknown = [name for name in fixed if name not in known]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is no parameter that can be fixed in a search")


# ---------------------------------------------------------------- what is asked


@dataclass(eq=False)
class _Task:
    """Data and question of a search."""

    X: Any
    y: Any
    X_val: Any
    y_val: Any
    metric: Score
    seed: int
    fixed: dict[str, Any]
    space: Space = field(init=False)
    fingerprint: str = field(init=False)
    _prepared: dict[Any, tuple[MPVAEClassifier, Rows, Rows | None]] = field(
        init=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        model = self._model({"base": None})  # reads the data; evidence can wait
        MPVAEClassifier(**self.fixed)._check_parameters()
        rows, validation = self._read(model)
        n, L = rows.Y.shape
        settings = {name: self.fixed[name] for name in setting_docs() if name in self.fixed}
        sparse = sp.issparse(rows.X)
        some = auto_asks(model.preset, n, L, sparse=sparse)
        leave_out = ["base"] if "base" in self.fixed or not some else []
        if sparse:
            leave_out.append("quantiles")  # sparse columns have no ranks
        self.space = search_space(
            model.settings_,
            DataShape(n, model.features_.n_outputs, L, sparse),
            fixed=settings,
            preset=model.preset,
            objective=model.objective,
            leave_out=tuple(leave_out),
        )
        self.fingerprint = _fingerprint(model, rows, validation)

    def question(self) -> dict[str, Any]:
        """All that has to be the same for a search to be continued, as JSON values."""
        asked = {
            "data": self.fingerprint,
            "metric": self.metric,
            "seed": self.seed,
            "fixed": self.fixed,
            "version": __version__,
        }
        return dict(json.loads(json.dumps(asked, default=repr)))

    def parameters(self, found: dict[str, Any]) -> dict[str, Any]:
        """Parameters of a classifier with what was found, and what was fixed."""
        metric = "micro_f1" if self.metric == "log_loss" else self.metric
        return {"metric": metric, "random_state": self.seed} | self.fixed | found

    def prepare(self, point: dict[str, Any]) -> tuple[MPVAEClassifier, Rows, Rows | None]:
        """Model with its settings, and rows as its networks see them.

        Evidence depends on the base and on how features are scaled alone, so it is made once
        for each pair of these.
        """
        given = self.space.parameters(point)
        key = point.get("base"), given.get("quantiles")
        if key not in self._prepared:
            model = self._model(given)
            self._prepared[key] = (model, *self._read(model))
        model, rows, validation = self._prepared[key]
        model = copy.copy(model).set_params(**given)
        model.settings_ = model._resolve(
            rows.Y, sparse=sp.issparse(rows.X), validated=validation is not None
        )
        return model, rows, validation

    def _model(self, given: dict[str, Any]) -> MPVAEClassifier:
        return MPVAEClassifier(**self.parameters(given))

    def _read(self, model: MPVAEClassifier) -> tuple[Rows, Rows | None]:
        return model._read_rows(self.X, self.y, self.X_val, self.y_val, None, model._seed())


def _fingerprint(model: MPVAEClassifier, rows: Rows, validation: Rows | None) -> str:
    """Hash of names, features and labels; the order of the rows does not count."""
    names = [*model._names(), "labels", *map(str, model.label_names_)]
    digest = hashlib.sha256(json.dumps(names).encode())
    for part in (rows, validation):
        if part is not None:
            for content in (row_keys(part.X), row_keys(part.Y), part.weight):
                digest.update(content.tobytes())
    return digest.hexdigest()


# ---------------------------------------------------------------- the search


class _OutOfTime(Exception):
    """Ends a trial when the time of the search is over."""


@dataclass(eq=False)
class _Search:
    """Trials one after the other, until time or their number is over."""

    study: "Study"
    task: _Task
    minutes: float | None
    trials: int | None
    folder: str | Path | None
    show: bool
    found: Tuned | None = None
    n_ended: int = 0  # trials that count
    start: float = field(default_factory=time.monotonic)

    def run(self) -> Tuned:
        self._want_default()
        self._look()
        interrupted = False
        try:
            with TuneProgress(self.show) as progress:
                while self.found is None or self._share_done() < 1:
                    self._one_trial(progress)
                    self._look()
        except KeyboardInterrupt:
            self._look()
            interrupted = True
        if self.found is None:
            raise KeyboardInterrupt("the search was interrupted before the default was done")
        return replace(self.found, interrupted=interrupted)

    def _look(self) -> None:
        """See what has been found so far, and write it down."""
        self.found = _tuned(self.study, self.task)
        if self.found is None:
            return
        self.n_ended = int((self.found.trials["state"] != "stopped").sum())
        if self.folder is not None:
            self.found.save(self.folder)

    def _want_default(self) -> None:
        """Put the default first, unless it has been finished or is waiting already."""
        kinds = [t.state.name for t in self.study.trials if "default" in t.user_attrs]
        if not {"COMPLETE", "WAITING"} & set(kinds):
            self.study.enqueue_trial(
                self.task.space.default_point(), user_attrs={"default": True}
            )

    def _share_done(self) -> float:
        shares = [0.0]
        if self.minutes is not None:
            shares.append((time.monotonic() - self.start) / (60 * self.minutes))
        if self.trials is not None:
            shares.append(self.n_ended / self.trials)
        return max(shares)

    def _one_trial(self, progress: TuneProgress) -> None:
        from optuna import TrialPruned
        from optuna.trial import TrialState

        trial = self.study.ask()
        is_default = "default" in trial.user_attrs
        start = time.monotonic()
        outcome: dict[str, Any] = {"state": TrialState.FAIL}
        try:
            outcome = {"values": self._objective(trial, progress)}
        except TrialPruned:
            outcome = {"state": TrialState.PRUNED}
        except _OutOfTime:
            pass
        except (ConfigError, DataError):
            raise  # not the fault of these settings
        except MPVAEError as error:
            if is_default:
                raise
            trial.set_user_attr("fault", str(error))
        finally:
            trial.set_user_attr("seconds", round(time.monotonic() - start, 2))
            self.study.tell(trial, **outcome)

    def _objective(self, trial: "Trial", progress: TuneProgress) -> float:
        from optuna import TrialPruned

        task, is_default = self.task, "default" in trial.user_attrs
        point = _suggest(trial, task.space.knobs)
        self._tell(progress, f"trial {trial.number}")
        model, rows, validation = task.prepare(point)
        settings = model.settings_
        trial.set_user_attr("settings", asdict(settings))
        if "base" in point:
            trial.set_user_attr("base", point["base"])
        scores: list[float] = []

        def on_epoch(member: int, _record: EpochRecord) -> None:
            doing = f"trial {trial.number}, network {member + 1}/{settings.n_members}"
            self._tell(progress, doing)
            if not is_default and self._time_is_over():
                raise _OutOfTime

        def on_member(held_out: HeldOut) -> None:
            scores.append(held_out_score(held_out, settings, task.metric))
            trial.report(scores[-1], len(scores))
            if not is_default and len(scores) < settings.n_members and trial.should_prune():
                raise TrialPruned

        with threads_that_pay(rows, settings):
            fitted = fit_members(
                rows,
                validation,
                settings,
                metric=model.metric,
                seed=model._seed(),
                device=device_named(model.device),
                on_epoch=on_epoch,
                on_member=on_member,
            )
        if fitted.interrupted:
            raise KeyboardInterrupt
        if model.recalibrate:
            fitted = recalibrate(fitted)
        if fitted.held_out is None:
            raise DataError("too few rows to hold any out, so nothing to search by; add rows")
        score = held_out_score(fitted.held_out, settings, task.metric)
        if not math.isfinite(score):
            raise MPVAEError(f"{task.metric} is not defined on the rows held out of training")
        return score

    def _time_is_over(self) -> bool:
        return self.minutes is not None and time.monotonic() - self.start > 60 * self.minutes

    def _tell(self, progress: TuneProgress, doing: str) -> None:
        scores = ""
        if self.found is not None:
            best, default = self.found.best.score, self.found.default.score
            scores = f"best {self.task.metric} {best:.4f} (default {default:.4f})"
        progress.update(doing=doing, done=self._share_done(), scores=scores)


def _suggest(trial: "Trial", knobs: dict[str, Knob]) -> dict[str, Any]:
    """Point of the space that the sampler proposes."""
    point: dict[str, Any] = {}
    for name, knob in knobs.items():
        if name == "lambda_rank" and not point["ranking"]:
            continue
        if isinstance(knob, Choice):
            point[name] = trial.suggest_categorical(name, knob.values)
        elif knob.whole:
            point[name] = trial.suggest_int(name, int(knob.low), int(knob.high), log=knob.log)
        else:
            point[name] = trial.suggest_float(name, knob.low, knob.high, log=knob.log)
    return point


# ---------------------------------------------------------------- what was found


def _state(trial: "FrozenTrial") -> State | None:
    """How a trial ended; None while it runs, or if its process was killed."""
    if trial.state.name == "FAIL":
        return "failed" if "fault" in trial.user_attrs else "stopped"
    states: dict[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned"}
    return states.get(trial.state.name)


def _tuned(study: "Study", task: _Task) -> Tuned | None:
    """Best and default of the finished trials; None before the default is."""
    trials = study.trials
    done = [_result(t, task) for t in trials if _state(t) == "complete"]
    defaults = {t.number for t in trials if "default" in t.user_attrs}
    default = next((result for result in done if result.number in defaults), None)
    if default is None:
        return None
    sign = -1 if task.metric == "log_loss" else 1
    better = [result for result in done if sign * result.score > sign * default.score]
    best = max(better, key=lambda result: sign * result.score, default=default)
    values = asdict(best.settings) | {"base": best.base}
    rows = [_row(t, task) for t in trials if _state(t) is not None]
    return Tuned(task.metric, default, best, pd.DataFrame(rows), task.parameters(values))


def _result(trial: "FrozenTrial", task: _Task) -> TrialResult:
    try:
        settings = Settings(**trial.user_attrs["settings"])
    except (KeyError, TypeError, ConfigError) as error:
        raise ConfigError(
            f"trial {trial.number} in the journal is damaged; give another folder"
        ) from error
    assert trial.value is not None
    return TrialResult(trial.number, trial.value, settings, _base(trial, task))


def _base(trial: "FrozenTrial", task: _Task) -> Any:
    if "base" in task.space.knobs:
        base = trial.user_attrs.get("base")
        return None if base == "none" else base
    base = task.fixed.get("base", "auto")
    return None if base == "auto" and task.space.preset != "default" else base


def _row(trial: "FrozenTrial", task: _Task) -> dict[str, Any]:
    """A trial as a row of the table: how it went, then the settings that are searched."""
    tried = dict(trial.user_attrs.get("settings", {}))
    tried["base"] = trial.user_attrs.get("base")
    state = _state(trial)
    return {
        "trial": trial.number,
        "state": state,
        task.metric: trial.value if state == "complete" else math.nan,
        "networks": len(trial.intermediate_values),
        "seconds": trial.user_attrs.get("seconds", math.nan),
        **{name: _cell(tried.get(name)) for name in task.space.settings},
        "fault": trial.user_attrs.get("fault", ""),
    }


def _cell(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


# ---------------------------------------------------------------- Optuna


def _open_study(folder: str | Path | None, task: _Task) -> "Study":
    """New search, or the one in the folder, if it asks the same of the same data."""
    from optuna import create_study, get_all_study_names, load_study
    from optuna.pruners import MedianPruner
    from optuna.samplers import TPESampler
    from optuna.study import StudyDirection

    storage = None if folder is None else open_journal(Path(folder))
    if storage is not None and _STUDY in get_all_study_names(storage):
        study = load_study(study_name=_STUDY, storage=storage)
    else:
        least = task.metric == "log_loss"
        direction = StudyDirection.MINIMIZE if least else StudyDirection.MAXIMIZE
        study = create_study(study_name=_STUDY, storage=storage, direction=direction)
    study.pruner = MedianPruner(n_startup_trials=_UNPRUNED_TRIALS)
    asked = task.question()
    before = study.user_attrs.get("question")
    if before is None and not study.trials:
        study.set_user_attr("question", asked)
    elif before != asked:
        before = before if isinstance(before, dict) else {}
        other = [_ASKED[name] for name in asked if before.get(name) != asked[name]]
        raise ConfigError(
            f"{folder} holds a search with {' and '.join(other)}; give another folder, or ask "
            "the same again to go on with that search"
        )
    # A search that goes on must not propose the same random trials again.
    study.sampler = TPESampler(
        n_startup_trials=_RANDOM_TRIALS, seed=(task.seed + len(study.trials)) % 2**32
    )
    return study


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna tells of warnings only, inside the block."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _require_optuna() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise MPVAEError(
            "a search needs the package optuna, which is not installed; "
            'run: pip install "mpvae[tune]"'
        )
