"""Several machines: Ray runs the training, the search and the predictions of this package.

Nothing here trains by itself. Ray starts processes on whatever machines it has, connects them,
restarts them when one is lost and hands them data; in each of them the code runs that runs on
one machine. `ray.init` finds a cluster by ``RAY_ADDRESS``; without one, Ray runs on this
machine alone. Tables and models are on a file system that all machines see.
"""

import contextlib
import importlib.util
import logging
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from mpvae.asked import Asked, beside
from mpvae.checkpoints import Kept
from mpvae.choosing import FitJob
from mpvae.data.parts import ParquetParts
from mpvae.distributed import team
from mpvae.errors import ConfigError, MPVAEError
from mpvae.estimator import MPVAEClassifier, load_model
from mpvae.progress import waiting
from mpvae.study import (
    new_sampler,
    open_study,
    quiet,
    require_optuna,
    suggest,
    tuned,
    want_default,
)
from mpvae.task import Task
from mpvae.tuned import Score, Tuned
from mpvae.tuning import check_question, evaluate
from mpvae.writing import appending

if TYPE_CHECKING:
    from optuna.trial import Trial

_FAILURES = 5  # workers that may be lost in one training


def fit(job: FitJob, folder: Path, *, workers: int) -> tuple[MPVAEClassifier, int]:
    """Train on a table with Ray Train, every batch shared by all workers.

    The state of the training is kept beside ``folder`` while it lasts. When a worker is lost,
    all begin again from there, and the result is what it would have been anyway.

    Returns
    -------
    model : MPVAEClassifier
        Fitted.
    n_rows : int
        Rows it has learnt from.
    """
    job.look()  # what is wrong with the table is told here, not by a worker
    with _ray(f"training by {workers} workers"):
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        place = folder.absolute().parent / f".{folder.name}.training"
        trainer = TorchTrainer(
            _train,
            train_loop_config={"job": replace(job, table=job.table.absolute())},
            torch_config=TorchConfig(backend="nccl" if job.on_gpus else "gloo"),
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=job.on_gpus),
            run_config=RunConfig(
                name="run",
                storage_path=str(place),
                failure_config=FailureConfig(max_failures=_FAILURES),
                checkpoint_config=CheckpointConfig(num_to_keep=1),
            ),
        )
        try:
            with _ours_raised():
                result = trainer.fit()
            if "fault" in result.metrics:
                raise result.metrics["fault"]
            with result.checkpoint.as_directory() as found:
                model = load_model(Path(found) / "model")
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return model, int(result.metrics["rows"])


def _train(config: dict[str, Any]) -> None:
    """What a worker does."""
    from ray import train

    job: FitJob = config["job"]
    with tempfile.TemporaryDirectory() as place:
        state, model_folder = Path(place) / "state", Path(place) / "done" / "model"
        before = train.get_checkpoint()
        if before is not None:
            with before.as_directory() as found:
                shutil.copytree(found, state)

        def report(folder: Path, n_rows: int = 0) -> None:
            """All workers do, one of them with the files."""
            kept = train.Checkpoint.from_directory(str(folder)) if team().writes else None
            train.report({"rows": n_rows}, checkpoint=kept)

        model = job.model()
        try:
            n_rows, _ = job.teach(model, checkpoint=Kept(state, lambda: report(state)))
        except MPVAEError as fault:
            # What is wrong for one is wrong for all, and would be again; if not, this raises,
            # and Ray begins anew.
            dist.monitored_barrier(timeout=timedelta(seconds=30))
            train.report({"fault": fault})
            return
        if team().writes:
            model.save(model_folder)
        report(model_folder.parent, n_rows)


def predict(
    model_folder: Path, asked: Asked, parts: ParquetParts, keep: list[str], out: Path
) -> None:
    """Answers about the rows of Parquet files, as a folder of Parquet files, by Ray Data.

    Every row group becomes a file with its number, so that the rows keep their order whoever
    is done first; the folder appears under its name when all is written.
    """
    if out.exists():
        raise ConfigError(f"{out} exists; with Ray the answer is a new folder of Parquet files")
    with _ray("predict"):
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        partial = out.absolute().with_name(f".{out.name}.tmp")
        shutil.rmtree(partial, ignore_errors=True)
        todo = ray.data.range(parts.n_groups).map(
            _answer_group, fn_args=(model_folder.absolute(), asked, parts, keep, partial)
        )
        try:
            with _ours_raised():
                todo.materialize()
            partial.replace(out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _answer_group(
    one: dict[str, Any],
    model_folder: Path,
    asked: Asked,
    parts: ParquetParts,
    keep: list[str],
    folder: Path,
) -> dict[str, Any]:
    """What a process does with a row group."""
    model = _model_of(model_folder)
    columns = list(map(str, model.feature_names_in_))
    group = int(one["id"])
    with appending(folder / f"part-{group:06d}.parquet") as add:
        for chunk in parts.chunks([group]):
            kept = [chunk.X[keep]] if keep else []
            add(beside(kept, asked.answer(model, chunk.X[columns])))
    return one


@cache
def _model_of(folder: Path) -> MPVAEClassifier:
    """Read once in every process."""
    return load_model(folder).set_output(transform="pandas")


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
    workers: int | None = None,
    **fixed: Any,
) -> Tuned:
    """As `mpvae.tuning.tune`, with trials side by side: Ray Tune with Optuna's search.

    ``workers``: trials at the same time; as many as there are CPUs, unless given. A search
    in a folder may be begun by one of the two and continued by the other.
    """
    require_optuna()
    check_question(metric, minutes, trials, seed, fixed)
    task = Task(X, y, X_val, y_val, metric, int(seed), fixed)
    mode = "min" if metric == "log_loss" else "max"
    interrupted = False
    with quiet(), _ray("search"), tempfile.TemporaryDirectory() as place:
        from ray import tune as ray_tune
        from ray.tune.schedulers import MedianStoppingRule
        from ray.tune.search import ConcurrencyLimiter

        study = open_study(folder, task)
        want_default(study, task)
        before = sum(t.state.is_finished() for t in study.trials)
        left = -1 if trials is None else max(0, trials - before)
        if left:
            search = _optuna_search(study, task, mode)
            limit = workers or max(1, os.cpu_count() or 1)
            tuner = ray_tune.Tuner(
                ray_tune.with_parameters(_trial, task=task),
                tune_config=ray_tune.TuneConfig(
                    metric="score",
                    mode=mode,
                    search_alg=ConcurrencyLimiter(search, max_concurrent=limit),
                    scheduler=MedianStoppingRule(
                        time_attr="networks",
                        grace_period=1,
                        min_samples_required=4,
                        min_time_slice=math.inf,  # a trial that is paused would begin anew
                    ),
                    num_samples=left,
                    time_budget_s=None if minutes is None else 60 * minutes,
                ),
                run_config=ray_tune.RunConfig(storage_path=place, name="run", verbose=0),
            )
            try:
                with _ours_raised():
                    results = tuner.fit()
            except KeyboardInterrupt:
                interrupted = True
            else:
                for error in results.errors:
                    _raise_ours(error)
        found = tuned(study, task)
    if found is None:
        raise MPVAEError(
            "the search ended before the default was done; give more minutes, or look for "
            "what stopped it in Ray's logs"
        )
    if folder is not None:
        found.save(folder)
    return replace(found, interrupted=interrupted)


def _optuna_search(study: Any, task: Task, mode: str) -> Any:
    """Optuna's proposals for Ray; the study, and so the journal, is ours."""
    from ray.tune.search.optuna import OptunaSearch

    def define(trial: "Trial") -> None:
        point = suggest(trial, task.space.knobs)
        trial.set_user_attr("settings", asdict(task.settings_at(point)))
        if "base" in point:
            trial.set_user_attr("base", point["base"])

    class Search(OptunaSearch):  # type: ignore[misc]
        """Of trials that were ended early only that is told, not how far they had come."""

        def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None:
            """Nothing: Ray would pickle it, and the journal has all that there is."""

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            whole = result if result is not None and result.get("whole") else None
            super().on_trial_complete(trial_id, whole, error)

    return Search(
        define,
        metric="score",
        mode=mode,
        sampler=new_sampler(study, task),
        study_name=study.study_name,
        storage=study._storage,
    )


def _trial(config: dict[str, Any], task: Task) -> None:
    """One trial: a score after every network, then that of all together."""
    from ray import tune as ray_tune

    point = {name: config[name] for name in task.space.knobs if name in config}

    def on_score(score: float, n_done: int) -> None:
        ray_tune.report({"score": score, "networks": n_done, "whole": False})

    model, rows, validation = task.prepare(point)
    score = evaluate(task, model, rows, validation, on_score=on_score)
    n_networks = model.settings_.n_members
    ray_tune.report({"score": score, "networks": n_networks + 1, "whole": True})


@contextmanager
def _ray(doing: str) -> Iterator[None]:
    """Ray inside the block: the cluster of RAY_ADDRESS, or this machine.

    What Ray prints does not go where answers go.
    """
    if importlib.util.find_spec("ray") is None:
        raise MPVAEError(
            'the engine ray is not installed; run: pip install "mpvae[ray]", or leave out '
            "--engine ray"
        )
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # no tables of trials on the terminal
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of it
    import ray

    begun = not ray.is_initialized()
    if begun:
        quietly: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if "RAY_ADDRESS" not in os.environ:
            quietly["include_dashboard"] = False
        ray.init(**quietly)
    try:
        with contextlib.redirect_stdout(sys.stderr), waiting(f"{doing} (Ray)"):
            yield
    finally:
        if begun:
            ray.shutdown()


@contextmanager
def _ours_raised() -> Iterator[None]:
    """An error of this package, wherever in Ray's it is wrapped, comes out as itself."""
    try:
        yield
    except MPVAEError:
        raise
    except SystemExit:  # what Ray Train makes of Ctrl-C
        raise KeyboardInterrupt from None
    except Exception as error:
        _raise_ours(error)
        raise


def _raise_ours(error: BaseException) -> None:
    seen: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or one in seen:
            continue
        if isinstance(one, MPVAEError):
            raise type(one)(str(one)) from None
        seen.append(one)
        todo += [one.__cause__, one.__context__, getattr(one, "cause", None)]
        failures = getattr(one, "worker_failures", None)
        todo += list(failures.values()) if isinstance(failures, dict) else []
