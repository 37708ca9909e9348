"""Search for settings that suit a table better than the default, judged on held-out rows.

Every trial trains the networks as `MPVAEClassifier.fit` does and is judged by what they say
about rows they were not trained on. Optuna proposes the trials (tree-structured Parzen
estimators) and ends hopeless ones after a network or two (median rule).

With a folder every trial is written down when it ends, as lines of JSON in ``journal.jsonl``;
the same search on the same data goes on from there. Nothing pickled is written or read.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mpvae.errors import ConfigError, DataError, MPVAEError
from mpvae.estimator import MPVAEClassifier
from mpvae.judging import held_out_score
from mpvae.loop import EpochRecord, device_named
from mpvae.members import HeldOut, fit_members, recalibrate
from mpvae.progress import TuneProgress
from mpvae.rows import Rows
from mpvae.study import open_study, quiet, require_optuna, suggest, tuned, want_default
from mpvae.task import Task
from mpvae.training import threads_that_pay
from mpvae.tuned import Score, Tuned

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial


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
    require_optuna()
    check_question(metric, minutes, trials, seed, fixed)
    task = Task(X, y, X_val, y_val, metric, int(seed), fixed)
    with quiet():
        study = open_study(folder, task)
        return _Search(study, task, minutes, trials, folder, verbose > 0).run()


def check_question(
    metric: str, minutes: float | None, trials: int | None, seed: int, fixed: dict[str, Any]
) -> None:
    """Refuse what cannot be searched for."""
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
    own = {"metric", "random_state", "verbose", "n_jobs"}
    known = set(MPVAEClassifier().get_params()) - own
    unknown = [name for name in fixed if name not in known]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is no parameter that can be fixed in a search")


def evaluate(
    task: Task,
    model: MPVAEClassifier,
    rows: Rows,
    validation: Rows | None,
    *,
    on_epoch: Callable[[int, EpochRecord], None] = lambda member, record: None,
    on_score: Callable[[float, int], None],
) -> float:
    """Score of a model's settings on rows held out of training.

    ``on_score`` is told, after every network, the score so far and the number of networks.
    """
    settings = model.settings_
    n_done = 0

    def on_member(held_out: HeldOut) -> None:
        nonlocal n_done
        n_done += 1
        on_score(held_out_score(held_out, settings, task.metric), n_done)

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


class _OutOfTime(Exception):
    """Ends a trial when the time of the search is over."""


@dataclass(eq=False)
class _Search:
    """Trials one after the other, until time or their number is over."""

    study: "Study"
    task: Task
    minutes: float | None
    trials: int | None
    folder: str | Path | None
    show: bool
    found: Tuned | None = None
    n_ended: int = 0  # trials that count
    start: float = field(default_factory=time.monotonic)

    def run(self) -> Tuned:
        want_default(self.study, self.task)
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
        self.found = tuned(self.study, self.task)
        if self.found is None:
            return
        self.n_ended = int((self.found.trials["state"] != "stopped").sum())
        if self.folder is not None:
            self.found.save(self.folder)

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
        point = suggest(trial, task.space.knobs)
        self._tell(progress, f"trial {trial.number}")
        model, rows, validation = task.prepare(point)
        settings = model.settings_
        trial.set_user_attr("settings", asdict(settings))
        if "base" in point:
            trial.set_user_attr("base", point["base"])

        def on_epoch(member: int, _record: EpochRecord) -> None:
            doing = f"trial {trial.number}, network {member + 1}/{settings.n_members}"
            self._tell(progress, doing)
            if not is_default and self._time_is_over():
                raise _OutOfTime

        def on_score(score: float, n_done: int) -> None:
            trial.report(score, n_done)
            if not is_default and n_done < settings.n_members and trial.should_prune():
                raise TrialPruned

        return evaluate(task, model, rows, validation, on_epoch=on_epoch, on_score=on_score)

    def _time_is_over(self) -> bool:
        return self.minutes is not None and time.monotonic() - self.start > 60 * self.minutes

    def _tell(self, progress: TuneProgress, doing: str) -> None:
        scores = ""
        if self.found is not None:
            best, default = self.found.best.score, self.found.default.score
            scores = f"best {self.task.metric} {best:.4f} (default {default:.4f})"
        progress.update(doing=doing, done=self._share_done(), scores=scores)
