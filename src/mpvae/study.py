"""Optuna's side of a search: its study in a folder, its proposals, and what its trials say."""

import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pandas as pd

from mpvae.config import Settings
from mpvae.errors import ConfigError, MPVAEError
from mpvae.journal import open_journal
from mpvae.space import Choice, Knob
from mpvae.task import Task
from mpvae.tuned import TrialResult, Tuned

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
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


def open_study(folder: str | Path | None, task: Task) -> "Study":
    """New search, or the one in the folder, if it asks the same of the same data."""
    from optuna import create_study, get_all_study_names, load_study
    from optuna.pruners import MedianPruner
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
    study.sampler = new_sampler(study, task)
    return study


def new_sampler(study: "Study", task: Task) -> "BaseSampler":
    """A search that goes on must not propose the same random trials again."""
    from optuna.samplers import TPESampler

    seed = (task.seed + len(study.trials)) % 2**32
    return TPESampler(n_startup_trials=_RANDOM_TRIALS, seed=seed)


def want_default(study: "Study", task: Task) -> None:
    """Put the default first, unless it has been finished or is waiting already."""
    kinds = [t.state.name for t in study.trials if "default" in t.user_attrs]
    if not {"COMPLETE", "WAITING"} & set(kinds):
        study.enqueue_trial(task.space.default_point(), user_attrs={"default": True})


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna tells of warnings only, inside the block."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def require_optuna() -> None:
    """Refuse to begin without it."""
    if importlib.util.find_spec("optuna") is None:
        raise MPVAEError(
            "a search needs the package optuna, which is not installed; run: pip install optuna"
        )


def suggest(trial: "Trial", knobs: dict[str, Knob]) -> dict[str, Any]:
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


def _state(trial: "FrozenTrial") -> State | None:
    """How a trial ended; None while it runs, or if its process was killed."""
    if trial.state.name == "FAIL":
        return "failed" if "fault" in trial.user_attrs else "stopped"
    states: dict[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned"}
    return states.get(trial.state.name)


def tuned(study: "Study", task: Task) -> Tuned | None:
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


def _result(trial: "FrozenTrial", task: Task) -> TrialResult:
    try:
        settings = Settings(**trial.user_attrs["settings"])
    except (KeyError, TypeError, ConfigError) as error:
        raise ConfigError(
            f"trial {trial.number} in the journal is damaged; give another folder"
        ) from error
    assert trial.value is not None
    return TrialResult(trial.number, trial.value, settings, _base(trial, task))


def _base(trial: "FrozenTrial", task: Task) -> Any:
    """Base of a trial, so that it is the same one in every preset."""
    base = task.fixed.get("base", "auto")
    if "base" in task.space.knobs:
        base = trial.user_attrs.get("base")
    return task.auto if base == "auto" else None if base == "none" else base


def _row(trial: "FrozenTrial", task: Task) -> dict[str, Any]:
    """A trial as a row of the table: how it went, then the settings that are searched."""
    tried = dict(trial.user_attrs.get("settings", {}))
    tried["base"] = trial.user_attrs.get("base")
    state = _state(trial)
    return {
        "trial": trial.number,
        "state": state,
        task.metric: trial.value if state == "complete" else math.nan,
        "networks": len(trial.intermediate_values),
        "seconds": trial.user_attrs.get("seconds", _seconds(trial)),
        **{name: _cell(tried.get(name)) for name in task.space.settings},
        "fault": trial.user_attrs.get("fault", ""),
    }


def _seconds(trial: "FrozenTrial") -> float:
    took = trial.duration
    return math.nan if took is None else round(took.total_seconds(), 2)


def _cell(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value
