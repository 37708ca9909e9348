"""Command line: a thin shell over the library. No maths, no torch."""

import json
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mpvae import __version__, cluster, demo  # noqa: F401  the demo is the first in the help
from mpvae.checkpoints import keeping
from mpvae.choosing import FitJob, given_settings, named_base, split_names
from mpvae.config import DataShape, Metric, Objective, setting_docs
from mpvae.distributed import joined
from mpvae.errors import ConfigError, MPVAEError
from mpvae.evidence import source_names
from mpvae.model_file import TRAINING, refuse_foreign
from mpvae.presets import resolve
from mpvae.shell import (
    EngineOption,
    ExcludeOption,
    JsonOption,
    LabelsOption,
    MetaOption,
    MissingOption,
    PresetOption,
    RowsOption,
    TableArgument,
    WorkersOption,
    app,
    json_numbers,
    require,
    user_errors,
)
from mpvae.terminal import (
    err,
    made_of,
    named,
    out,
    plain,
    print_held_out,
    print_tuned,
)
from mpvae.tuned import BEST, Score
from mpvae.tuning import tune

EXPERIMENTS = Path(__file__).parents[2] / "benchmarks" / "paper.py"


def main() -> None:
    """Entry point of the ``mpvae`` command."""
    app()


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Predict many yes/no labels at once, and learn how they hang together.

    Start with `mpvae demo`; then `mpvae fit` on your own table.
    """
    if version:
        out.print(__version__)
        raise typer.Exit


@app.command()
@user_errors
def fit(
    table: TableArgument,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model.")],
    labels: LabelsOption = None,
    exclude: ExcludeOption = None,
    metric: Annotated[
        Metric, typer.Option(help="What predictions should do well at.")
    ] = "micro_f1",
    preset: PresetOption = "default",
    objective: Annotated[
        Objective,
        typer.Option(help="likelihood: calibrated joint probabilities; paper: F1 alone."),
    ] = "auto",
    base: Annotated[
        str | None,
        typer.Option(
            help="Who is asked beside the networks: auto, kernel, forest, boosting, several "
            "with commas between, or none: nobody, as in the paper.",
            show_default="auto",
        ),
    ] = None,
    allow_missing_labels: MissingOption = False,
    recalibrate: Annotated[
        bool,
        typer.Option("--recalibrate", help="Fit probabilities to rows held out of training."),
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings; see `mpvae settings`.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="One setting, as NAME=VALUE; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed: same seed, same model.")] = 0,
    jobs: Annotated[
        int,
        typer.Option(help="Networks trained at the same time; -1: as many as cores.", min=-1),
    ] = 1,
    rows: RowsOption = "auto",
    meta_offset: MetaOption = 0,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with a training that was killed or interrupted."),
    ] = False,
    engine: EngineOption = "local",
    workers: WorkersOption = 2,
    as_json: JsonOption = False,
) -> None:
    """Train a model on TABLE and save it.

    Columns that are not labels are features: numbers are standardised, text becomes
    categories, missing values are allowed. Decision thresholds are chosen on rows held out of
    training. Ctrl-C while the networks are trained stops early and keeps the best so far.

    TABLE may be a folder of Parquet files or a pattern ('plots/*.parquet'). Rows that would
    not fit into memory are read some at a time, in every epoch anew. Under `torchrun`, or with
    `--engine ray` on the machines of a Ray cluster, several processes share every batch; one
    of them writes the model.

    A training that takes longer than two seconds keeps its state in the model's folder, after
    every epoch. Killed at any moment, the same command with `--resume` goes on from there and
    ends with the same model, bit for bit.

    Example: `mpvae fit sites.csv --labels 'species_*' --exclude site_id --out model`
    """
    settings = given_settings(config, given or [])
    if base is not None:
        settings["base"] = named_base(base)
    settings |= {
        "metric": metric,
        "preset": preset,
        "objective": objective,
        "allow_missing_labels": allow_missing_labels,
        "recalibrate": recalibrate,
        "n_jobs": jobs,
        "random_state": seed,
    }
    job = FitJob(table, labels, tuple(split_names(exclude)), rows, meta_offset, settings)
    refuse_foreign(folder)  # before the work, not after it
    start = time.perf_counter()
    interrupted = False
    if engine == "ray":
        if resume:
            raise ConfigError("--engine ray resumes by itself; leave out --resume")
        model, n_rows = cluster.fit(job, folder, workers=workers)
        model.save(folder)
    else:
        try:
            with joined() as team, keeping(folder / TRAINING, resume=resume) as kept:
                model = job.model(verbose=int(team.writes and not as_json))
                if team.writes:
                    _tell_of_state(folder, found=kept.found, resume=resume)
                before = signal.signal(signal.SIGINT, _interrupt_once)
                try:
                    n_rows, interrupted = job.teach(model, kept)
                finally:
                    signal.signal(signal.SIGINT, before)
                if team.writes:  # all processes have the same model
                    model.save(folder)
                if not interrupted:
                    kept.clear()
        except KeyboardInterrupt:
            if not (folder / TRAINING).exists():
                raise
            _tell_interrupted("no model was written; --resume goes on with what was done")
            raise typer.Exit(130) from None
        if not team.writes:
            return
    summary = {
        "folder": str(folder),
        "rows": n_rows,
        "features": model.n_features_in_,
        "labels": len(model.label_names_),
        "networks": len(model.networks_),
        "base": source_names(model.evidence_),
        "epochs": model.n_epochs_,
        "seconds": round(time.perf_counter() - start, 2),
        "interrupted": interrupted,
        "held_out_scores": json_numbers(model.validation_scores_),
    }
    if as_json:
        print(json.dumps(summary))
    else:
        out.print(
            f"[b]{plain(named(table))}[/b]: {summary['rows']} rows, "
            f"{summary['features']} features, {summary['labels']} labels; "
            f"{made_of(model)} in {summary['seconds']:.1f} s"
        )
        print_held_out(model)
        out.print(f"Model saved in {plain(folder)}")
    if interrupted:
        more = "; --resume goes on" if (folder / TRAINING).exists() else ""
        _tell_interrupted(f"the best model so far was saved{more}")
        raise typer.Exit(130)


@app.command("tune")
@user_errors
def tune_table(
    table: TableArgument,
    folder: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for trials and the best settings.")
    ],
    labels: LabelsOption = None,
    exclude: ExcludeOption = None,
    metric: Annotated[
        Score, typer.Option(help="What to search by, on rows held out of training.")
    ] = "micro_f1",
    minutes: Annotated[float, typer.Option(help="Time for this run.")] = 10.0,
    trials: Annotated[
        int | None,
        typer.Option(help="Stop at so many trials, those of earlier runs included."),
    ] = None,
    preset: PresetOption = "default",
    base: Annotated[
        str | None,
        typer.Option(help="Keep this base, named as in `mpvae fit`.", show_default="searched"),
    ] = None,
    allow_missing_labels: MissingOption = False,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings to keep as they are.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="Setting to keep, as NAME=VALUE; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    rows: RowsOption = "auto",
    meta_offset: MetaOption = 0,
    engine: EngineOption = "local",
    workers: WorkersOption = 2,
    as_json: JsonOption = False,
) -> None:
    """Search for settings that suit TABLE better than the default.

    Every trial trains a model and scores it on rows held out of training; test rows are never
    looked at. The first trial is the default; trials that lag behind are ended early. The best
    settings go to best.toml in the folder, for `mpvae fit --config`; all trials to trials.csv.

    Ctrl-C ends the search and keeps the best so far. The same command again goes on where
    it stopped, with new time. Needs Optuna: `pip install optuna`. With `--engine ray` trials
    run side by side, on all machines of a Ray cluster.

    Example: `mpvae tune sites.csv --labels 'species_*' -x site_id --out tuned --minutes 30`
    """
    fixed: dict[str, Any] = given_settings(config, given or [])
    if base is not None:
        fixed["base"] = named_base(base)
    if preset != "default":
        fixed["preset"] = preset
    if allow_missing_labels:
        fixed["allow_missing_labels"] = True
    job = FitJob(table, labels, tuple(split_names(exclude)), rows, meta_offset, {})
    learn, judge = job.training_rows()
    validation = () if judge is None else (judge.features(), judge.labels())
    start = time.perf_counter()
    run = partial(tune, verbose=0 if as_json else 1)
    search = partial(cluster.tune, workers=workers) if engine == "ray" else run
    before = signal.signal(signal.SIGINT, _interrupt_once)
    try:
        tuned = search(
            learn.features(),
            learn.labels(),
            *validation,
            metric=metric,
            minutes=minutes,
            trials=trials,
            folder=folder,
            seed=seed,
            **fixed,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    took = time.perf_counter() - start
    states = tuned.trials["state"].value_counts().to_dict()
    best = folder / BEST
    if as_json:
        summary = {
            "folder": str(folder),
            "best_file": str(best),
            "metric": metric,
            "default": tuned.default.score,
            "best": tuned.best.score,
            "best_trial": tuned.best.number,
            "changed": {name: value for name, (_, value) in tuned.changed.items()},
            "trials": states,
            "seconds": round(took, 2),
            "interrupted": tuned.interrupted,
        }
        print(json.dumps(summary))
    else:
        told = ", ".join(f"{count} {state}" for state, count in states.items())
        out.print(f"[b]{plain(named(table))}[/b]: {len(tuned.trials)} trials ({told})")
        print_tuned(tuned)
        words = ["mpvae", "fit", str(table), "--config", str(best), "--out", "model"]
        words += ["--labels", labels] if labels is not None else []
        words += [word for name in exclude or [] for word in ("--exclude", name)]
        words += ["--metric", metric] if metric not in ("micro_f1", "log_loss") else []
        words += ["--allow-missing-labels"] if allow_missing_labels else []
        words += ["--meta-offset", str(meta_offset)] if meta_offset else []
        words += ["--rows", rows] if rows != "auto" else []
        words += ["--seed", str(seed)] if seed else []
        out.print(f"Settings saved in {plain(best)}; train with them:\n  ", end="")
        out.print(plain(shlex.join(words)))
    if tuned.interrupted:
        _tell_interrupted("the best settings so far were saved")
        raise typer.Exit(130)


@app.command()
@user_errors
def settings(
    preset: PresetOption = "default",
    n_rows: Annotated[int, typer.Option("--n-rows", help="Rows of the data.")] = 2000,
    n_features: Annotated[int, typer.Option("--n-features", help="Features.")] = 100,
    n_labels: Annotated[int, typer.Option("--n-labels", help="Labels.")] = 20,
) -> None:
    """Explain every setting, with its value in a preset for data of this shape.

    Change one with `mpvae fit --set NAME=VALUE`, or several in a TOML file.
    """
    values = resolve(preset, {}, DataShape(n_rows, n_features, n_labels))
    table = Table("setting", f"{preset} value", "meaning")
    for name, meaning in setting_docs().items():
        table.add_row(name, str(getattr(values, name)), plain(meaning))
    out.print(table)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
)
@user_errors
def benchmark(context: typer.Context) -> None:
    """Rerun the paper's tables and figures: `mpvae benchmark table1 --quick` for a first look.

    The experiments are part of the source tree, not of the installed package; everything
    behind `benchmark` goes to benchmarks/paper.py, so `mpvae benchmark --help` is its help.
    """
    if not EXPERIMENTS.is_file():
        raise MPVAEError(
            "the experiments are not part of the installed package; clone the project, "
            "`pip install -e .[bench]` there, and run this again"
        )
    require("matplotlib", "bench")
    raise typer.Exit(subprocess.call([sys.executable, str(EXPERIMENTS), *context.args]))


def _tell_of_state(folder: Path, *, found: bool, resume: bool) -> None:
    """Say what becomes of a training that did not end, where there is one or should be."""
    place = plain(folder)
    if found and resume:
        err.print(f"going on with the training in {place}, if it is the same")
    elif found:
        err.print(f"a training in {place} did not end; begun anew (--resume: go on with it)")
    elif resume:
        err.print(f"nothing to resume in {place}; begun from the start")


def _tell_interrupted(left: str) -> None:
    err.print(f"[yellow]mpvae:[/yellow] interrupted; {left}")


def _interrupt_once(_number: int, _frame: object) -> None:
    """Stop training at the first Ctrl-C; an impatient second one must not lose the model."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


from mpvae import asking, exporting, showing  # noqa: E402, F401  theirs come after these in the help
