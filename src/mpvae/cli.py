"""Command line: a thin shell over the library. No maths, no torch."""

import json
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec, get_args

import numpy as np
import pandas as pd
import typer
from rich.table import Table

from mpvae import __version__, metrics
from mpvae.choosing import choose_rows, given_settings, kept_columns, read_for, split_names
from mpvae.config import DataShape, Metric, Preset, resolve, setting_docs
from mpvae.data import load_yeast, read_table
from mpvae.errors import ConfigError, DataError, MPVAEError
from mpvae.estimator import MPVAEClassifier, load_model
from mpvae.terminal import (
    check_suffix,
    err,
    out,
    plain,
    print_held_out,
    print_pairs,
    print_scores,
    title,
    write_frame,
)

EXPERIMENTS = Path(__file__).parents[2] / "benchmarks" / "paper.py"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
P = ParamSpec("P")

# Bai, Kong and Gomes (IJCAI 2020), Tables 1 and 2, column MPVAE, row yeast.
PAPER_YEAST: dict[Metric, float] = {
    "example_f1": 0.6479,
    "micro_f1": 0.6554,
    "macro_f1": 0.4817,
    "hamming": 0.7920,
}

TableArgument = Annotated[
    Path,
    typer.Argument(
        help="CSV, TSV, Parquet, ARFF, .npz, .npy, libsvm or extreme-classification text."
    ),
]
ModelArgument = Annotated[Path, typer.Argument(help="Folder written by `mpvae fit`.")]
MetaOption = Annotated[
    int, typer.Option("--meta-offset", help="For .npy: columns before the labels.")
]
RowsOption = Annotated[
    str, typer.Option("--rows", help="auto, all, or a split of the file: train, val, test.")
]
PresetOption = Annotated[Preset, typer.Option(help="Where settings not given come from.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def main() -> None:
    """Entry point of the ``mpvae`` command."""
    app()


def _user_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn errors about data, files or settings into one line and exit code 2."""

    @wraps(command)
    def shell(*args: P.args, **kwargs: P.kwargs) -> None:
        # A model of nameless columns may meet a table with names, or the other way round.
        warnings.filterwarnings("ignore", "X (has|does not have valid) feature names")
        try:
            command(*args, **kwargs)
        except BrokenPipeError:
            raise  # the reader of our output has gone: typer ends without a word
        except (MPVAEError, ValueError, OSError) as error:
            text = " ".join(str(error).split())
            err.print(f"[red]mpvae:[/red] {plain(text)}")
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            err.print("[yellow]mpvae:[/yellow] interrupted; nothing was written")
            raise typer.Exit(130) from None

    return shell


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
@_user_errors
def demo(
    folder: Annotated[
        Path, typer.Option("--out", "-o", help="Where to save the model.")
    ] = Path("demo/yeast-model"),
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Train on the paper's yeast data (official split) and compare with its scores.

    Needs the small package `river`, which carries the data: `pip install "mpvae[demo]"`.
    """
    data = load_yeast()
    train, test = data.split("train"), data.split("test")
    out.print(
        f"[b]yeast[/b]: {len(train)} training and {len(test)} test rows, "
        f"{train.X.shape[1]} features, {len(train.label_names)} labels (gene functions)"
    )
    start = time.perf_counter()
    model = MPVAEClassifier(random_state=seed, verbose=1).fit(train.features(), train.labels())
    took = time.perf_counter() - start
    out.print(f"{len(model.networks_)} networks trained in {took:.0f} s\n")
    table = Table("on the test rows", "mpvae", "published MPVAE", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    Y = test.labels().to_numpy()
    for name, published in PAPER_YEAST.items():
        score = metrics.DECISION_METRICS[name](Y, model.predict(test.features(), metric=name))
        table.add_row(title(name), f"{score:.4f}", f"{published:.4f}")
    out.print(table)
    out.print("Thresholds come from training rows only (the paper's: validation rows).\n")
    print_pairs(model, 4)
    model.save(folder)
    place = plain(folder)
    out.print(f"\nModel saved in {place}; look at it with: mpvae info {place}")


@app.command()
@_user_errors
def fit(
    table: TableArgument,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model.")],
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            "-l",
            help="Label columns: names or patterns ('species_*,other'), or a count "
            "(14: the last 14 columns, -14: the first). Not needed where the file marks them.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", "-x", help="Feature columns to leave out, such as ids."),
    ] = None,
    metric: Annotated[
        Metric, typer.Option(help="What predictions should do well at.")
    ] = "micro_f1",
    preset: PresetOption = "default",
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings; see `mpvae settings`.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="One setting, as NAME=VALUE; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed: same seed, same model.")] = 0,
    rows: RowsOption = "auto",
    meta_offset: MetaOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Train a model on TABLE and save it.

    Columns that are not labels are features: numbers are standardised, text becomes
    categories, missing values are allowed. Decision thresholds are chosen on rows held out of
    training. Ctrl-C stops early and keeps the best model so far.

    Example: `mpvae fit sites.csv --labels 'species_*' --exclude site_id --out model`
    """
    settings = given_settings(config, given or [])
    data = read_table(
        table, labels=labels, exclude=split_names(exclude), meta_offset=meta_offset
    )
    if data.Y is None:
        raise DataError(f"{table.name}: which columns are labels? give --labels")
    learn, judge = choose_rows(data, rows, "train")
    model = MPVAEClassifier(
        metric=metric,
        preset=preset,
        random_state=seed,
        verbose=0 if as_json else 1,
        **settings,
    )
    start = time.perf_counter()
    interrupted = False
    before = signal.signal(signal.SIGINT, _interrupt_once)
    try:
        if judge is None:
            model.fit(learn.features(), learn.labels())
        else:
            model.fit(learn.features(), learn.labels(), judge.features(), judge.labels())
    except KeyboardInterrupt:
        if not hasattr(model, "thresholds_"):
            raise
        interrupted = True
    finally:
        signal.signal(signal.SIGINT, before)
    model.save(folder)
    summary = {
        "folder": str(folder),
        "rows": len(learn),
        "features": model.n_features_in_,
        "labels": len(model.label_names_),
        "networks": len(model.networks_),
        "epochs": model.n_epochs_,
        "seconds": round(time.perf_counter() - start, 2),
        "interrupted": interrupted,
        "held_out_scores": _json_numbers(model.validation_scores_),
    }
    if as_json:
        print(json.dumps(summary))
    else:
        out.print(
            f"[b]{plain(table.name)}[/b]: {summary['rows']} rows, "
            f"{summary['features']} features, {summary['labels']} labels; "
            f"{summary['networks']} networks in {summary['seconds']:.1f} s"
        )
        print_held_out(model)
        out.print(f"Model saved in {plain(folder)}")
    if interrupted:
        err.print("[yellow]mpvae:[/yellow] interrupted; the best model so far was saved")
        raise typer.Exit(130)


@app.command()
@_user_errors
def predict(
    model_folder: ModelArgument,
    table: TableArgument,
    file: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="CSV, Parquet or JSON file; without it CSV is printed."
        ),
    ] = None,
    decide: Annotated[
        bool, typer.Option("--decide", help="Write 0/1 decisions instead of probabilities.")
    ] = False,
    metric: Annotated[
        Metric | None, typer.Option(help="With --decide: the metric to decide for.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", "-k", help="Columns of TABLE to copy into the output, such as ids."
        ),
    ] = None,
    rows: RowsOption = "all",
    meta_offset: MetaOption = 0,
) -> None:
    """Write the probability of every label for every row of TABLE.

    Example: `mpvae predict model new_sites.csv --keep site_id --out probabilities.csv`
    """
    if metric and not decide:
        raise ConfigError("--metric chooses how to decide; add --decide")
    if file is not None:
        check_suffix(file)  # refuse an unknown suffix before the work
        if file.exists() and file.samefile(table):
            raise ConfigError(f"--out {file} is the table itself; give another file")
    model = load_model(model_folder).set_output(transform="pandas")
    model.verbose = 1
    data, _ = choose_rows(read_for(model, table, meta_offset), rows, "all")
    X = data.features()
    answer = model.predict(X, metric=metric) if decide else model.predict_proba(X)
    if not model.multilabel_ and decide:
        answer = pd.DataFrame({model.label_names_[0]: answer}, index=getattr(X, "index", None))
    answer.columns = answer.columns.astype(str)  # classes may be numbers
    if keep:
        kept = kept_columns(table, keep, rows)
        twice = [str(name) for name in kept.columns if name in set(answer.columns)]
        if twice:
            raise DataError(f"--keep {twice[0]} is a label of the model; keep other columns")
        answer = pd.concat([kept, answer], axis=1)
    if file is None:
        answer.to_csv(sys.stdout, index=False)
        return
    write_frame(answer, file)
    out.print(f"{len(answer)} rows, {len(model.label_names_)} labels -> {plain(file)}")


@app.command()
@_user_errors
def evaluate(
    model_folder: ModelArgument,
    table: TableArgument,
    rows: RowsOption = "auto",
    meta_offset: MetaOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Score a model on TABLE, which holds the true labels.

    Every metric of decisions uses the threshold chosen for it when the model was trained.
    """
    model = load_model(model_folder)
    model.verbose = 0 if as_json else 1
    data, _ = choose_rows(read_for(model, table, meta_offset, with_labels=True), rows, "test")
    X, Y = data.features(), data.labels().to_numpy()
    if np.isnan(Y).any():
        raise DataError(f"{table.name} lacks some labels; evaluate needs all of them")
    probabilities = model.predict_proba(X)
    if model.multilabel_:
        decided = {name: model.predict(X, metric=name) for name in get_args(Metric)}
    else:
        probabilities = probabilities[:, 1:]
        decided = dict.fromkeys(get_args(Metric), (probabilities > 0.5).astype(int))
    scores = metrics.all_metrics(Y, probabilities, decided)
    if as_json:
        print(json.dumps(_json_numbers(scores)))
    else:
        print_scores(scores, f"{table.name}, {len(data)} rows")


@app.command()
@_user_errors
def info(model_folder: ModelArgument, as_json: JsonOption = False) -> None:
    """Show what a model knows: labels, settings, thresholds, strongest label pairs."""
    model = load_model(model_folder)
    settings = {name: getattr(model.settings_, name) for name in setting_docs()}
    if as_json:
        print(
            json.dumps(
                {
                    "labels": list(model.label_names_),
                    "features": list(getattr(model, "feature_names_in_", [])),
                    "networks": len(model.networks_),
                    "settings": settings,
                    "thresholds": {
                        k: np.asarray(v).tolist() for k, v in model.thresholds_.items()
                    },
                    "held_out_scores": _json_numbers(model.validation_scores_),
                }
            )
        )
        return
    names = ", ".join(model.label_names_[:8]) + (", ..." if len(model.label_names_) > 8 else "")
    out.print(
        f"[b]{plain(model_folder)}[/b]: {model.n_features_in_} features -> "
        f"{len(model.label_names_)} labels ({plain(names)}); {len(model.networks_)} networks, "
        f"preset {model.preset}, metric {model.metric}"
    )
    print_held_out(model)
    print_pairs(model, 5)
    table = Table("setting", "value", "meaning")
    for name, value in settings.items():
        table.add_row(name, str(value), plain(setting_docs()[name]))
    out.print(table)


@app.command()
@_user_errors
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
@_user_errors
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
    raise typer.Exit(subprocess.call([sys.executable, str(EXPERIMENTS), *context.args]))


def _interrupt_once(_number: int, _frame: object) -> None:
    """Stop training at the first Ctrl-C; an impatient second one must not lose the model."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _json_numbers(values: dict[str, float]) -> dict[str, float | None]:
    """Scores as JSON has them: null where a score is not defined."""
    return {name: value if np.isfinite(value) else None for name, value in values.items()}
