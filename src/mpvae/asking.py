"""Commands that ask a trained model: predictions, scores, associations, what it knows."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import pandas as pd
import typer
from rich.table import Table

from mpvae import cluster, metrics
from mpvae.asked import Asked, beside
from mpvae.choosing import (
    choose_rows,
    kept_columns,
    kept_names,
    read_for,
    read_known,
    split_names,
    too_large,
)
from mpvae.config import Metric, setting_docs
from mpvae.conformal import Guarantee
from mpvae.data.parts import ParquetParts, is_parts, open_parts
from mpvae.errors import ConfigError, DataError
from mpvae.estimator import load_model
from mpvae.evidence import source_names
from mpvae.progress import counting
from mpvae.shell import (
    EngineOption,
    JsonOption,
    MetaOption,
    ModelArgument,
    OutOption,
    RowsOption,
    TableArgument,
    app,
    json_numbers,
    user_errors,
)
from mpvae.terminal import (
    hand_over,
    made_of,
    out,
    plain,
    print_held_out,
    print_pairs,
    print_scores,
    title,
)
from mpvae.writing import appending, check_suffix


@app.command()
@user_errors
def predict(
    model_folder: ModelArgument,
    table: TableArgument,
    file: OutOption = None,
    decide: Annotated[
        bool, typer.Option("--decide", help="Write 0/1 decisions instead of probabilities.")
    ] = False,
    metric: Annotated[
        Metric | None, typer.Option(help="Decide for this metric (as --decide does).")
    ] = None,
    given: Annotated[
        Path | None,
        typer.Option(
            help="Labels already known: a table with label columns of 0, 1 and empty cells, "
            "row by row as in TABLE. The others are predicted given these.",
        ),
    ] = None,
    sets: Annotated[
        float | None,
        typer.Option(help="Write sets of labels with this coverage, such as 0.9."),
    ] = None,
    guarantee: Annotated[
        Guarantee | None,
        typer.Option(
            help="With --sets, what is inside so often: all true labels of a row (the "
            "default), a share of them (recall), or each label by itself (label)."
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", "-k", help="Columns of TABLE to copy into the output, such as ids."
        ),
    ] = None,
    rows: RowsOption = "all",
    meta_offset: MetaOption = 0,
    engine: EngineOption = "local",
) -> None:
    """Write the probability of every label for every row of TABLE.

    Or 0/1 decisions (`--metric`), probabilities given labels already known (`--given`), or
    the labels that may be present, with a guarantee (`--sets`).

    Example: `mpvae predict model new_sites.csv --keep site_id --out probabilities.csv`

    Example: `mpvae predict model new_sites.csv --given seen_so_far.csv`

    Example: `mpvae predict model 'plots/*.parquet' --engine ray --out answers`
    """
    asked = Asked(decide or metric is not None, metric, sets, guarantee)
    if given is not None and asked != Asked():
        raise ConfigError("--given, and --decide, --metric or --sets: one of them at a time")
    if engine == "ray":
        _on_ray(model_folder, table, asked, given, split_names(keep), file)
        return
    if file is not None:
        check_suffix(file)  # refuse what cannot be written before the work
        if file.parent.exists() and not file.parent.is_dir():
            raise ConfigError(f"--out {file}: {file.parent} is a file, not a folder")
        for name, read in (("the table", table), ("the file of --given", given)):
            if read is not None and read.exists() and file.exists() and file.samefile(read):
                raise ConfigError(f"--out {file} is {name} itself; give another file")
    model = load_model(model_folder).set_output(transform="pandas")
    model.verbose = 1
    keep = split_names(keep)
    columns = list(map(str, getattr(model, "feature_names_in_", [])))
    parts = None
    if columns and given is None and is_parts(table):
        keep = kept_names(table, keep)
        parts = too_large(table, columns=columns, keep=keep, rows=rows)
    if parts is not None:
        n = _in_chunks(parts, columns, keep, partial(asked.answer, model), file)
    else:
        data, _ = choose_rows(read_for(model, table, meta_offset), rows, "all")
        X = data.features()
        if given is None:
            found = asked.answer(model, X)
        else:
            found = model.predict_conditional(X, read_known(model, given, table, rows))
        kept = [kept_columns(table, keep, rows)] if keep else []
        n = len(found)
        with appending(file) as add:
            add(beside(kept, found))
    if file is not None:
        out.print(f"{n} rows, {len(model.label_names_)} labels -> {plain(file)}")


def _in_chunks(
    parts: ParquetParts,
    columns: list[str],
    keep: list[str],
    answer: Callable[[pd.DataFrame], Any],
    file: Path | None,
) -> int:
    """Answer about some rows at a time; return how many there were."""
    if file is not None and file.suffix == ".json":
        raise ConfigError(f"{file}: so many rows cannot be one JSON list; use .csv or .parquet")
    with appending(file) as add, counting("predict", len(parts), True) as bar:
        for chunk in parts.chunks():
            kept = [chunk.X[keep]] if keep else []
            add(beside(kept, answer(chunk.X[columns])))
            bar.advance(bar.task_ids[0], len(chunk.X))
    return len(parts)


def _on_ray(
    model_folder: Path,
    table: Path,
    asked: Asked,
    given: Path | None,
    keep: list[str],
    folder: Path | None,
) -> None:
    """Answer by Ray Data: Parquet files to a folder of Parquet files."""
    if given is not None:
        raise ConfigError("--given works on this machine alone; leave out --engine ray")
    if folder is None or folder.suffix in (".csv", ".json"):
        raise ConfigError("with --engine ray, --out is a new folder, for Parquet files")
    if not is_parts(table):
        raise ConfigError(f"with --engine ray, TABLE is Parquet files, not {table.name}")
    model = load_model(model_folder)
    keep = kept_names(table, keep)
    columns = list(map(str, model.feature_names_in_))
    parts = open_parts(table.absolute(), columns=columns, keep=keep)
    cluster.predict(model_folder, asked, parts, keep, folder)
    out.print(f"{len(parts)} rows -> {plain(folder)}")


@app.command()
@user_errors
def evaluate(
    model_folder: ModelArgument,
    table: TableArgument,
    rows: RowsOption = "auto",
    meta_offset: MetaOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Score a model on TABLE, which holds the true labels.

    Every metric of decisions uses the threshold, or the rule, chosen for it when the model
    was trained.
    """
    model = load_model(model_folder)
    model.verbose = 0 if as_json else 1
    data, _ = choose_rows(read_for(model, table, meta_offset, with_labels=True), rows, "test")
    X, Y = data.features(), data.labels().to_numpy()
    if np.isnan(Y).any():
        raise DataError(
            f"{table.name} has empty label cells; evaluate needs every label: "
            "leave those rows out"
        )
    probabilities = model.predict_proba(X)
    if model.multilabel_:
        decided = {name: model.predict(X, metric=name) for name in get_args(Metric)}
    else:
        probabilities = probabilities[:, 1:]
        decided = dict.fromkeys(get_args(Metric), (probabilities > 0.5).astype(int))
    scores = metrics.all_metrics(Y, probabilities, decided)
    if as_json:
        print(json.dumps(json_numbers(scores)))
    else:
        print_scores(scores, f"{table.name}, {len(data)} rows")


@app.command()
@user_errors
def associations(
    model_folder: ModelArgument,
    file: OutOption = None,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
) -> None:
    """Write which labels go together once the features are accounted for, pair by pair.

    Columns: residual correlation with its interval, raw correlation, the part of it that the
    features bring about, and the group of either label by clustering.

    Example: `mpvae associations model --out pairs.csv`
    """
    if file is not None:
        check_suffix(file)
    model = load_model(model_folder)
    pairs = model.associations(level=level)
    groups = model.label_groups()
    for side in "ab":
        pairs[f"group_{side}"] = pairs[f"label_{side}"].map(groups)
    hand_over(pairs, file, f"{len(pairs)} pairs of {len(model.label_names_)} labels")


@app.command()
@user_errors
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
                    "base": source_names(model.evidence_),
                    "settings": settings,
                    "thresholds": {
                        k: np.asarray(v).tolist() for k, v in model.thresholds_.items()
                    },
                    "held_out_scores": json_numbers(model.validation_scores_),
                }
            )
        )
        return
    names = ", ".join(model.label_names_[:8]) + (", ..." if len(model.label_names_) > 8 else "")
    out.print(
        f"[b]{plain(model_folder)}[/b]: {model.n_features_in_} features -> "
        f"{len(model.label_names_)} labels ({plain(names)}); "
        f"{made_of(model)}; preset {model.preset}, metric {model.metric}"
    )
    print_held_out(model)
    cuts = Table("decisions for", "threshold")
    for name, cut in model.thresholds_.items():
        by_label = f"{np.min(cut):.3f} to {np.max(cut):.3f}, by label"
        cuts.add_row(title(name), f"{cut:.3f}" if np.ndim(cut) == 0 else by_label)
    out.print(cuts)
    print_pairs(model, 5)
    table = Table("setting", "value", "meaning")
    for name, value in settings.items():
        table.add_row(name, str(value), plain(setting_docs()[name]))
    out.print(table)
