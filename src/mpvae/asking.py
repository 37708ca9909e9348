"""Commands that ask a trained model: predictions, scores, associations, what it knows."""

import json
from pathlib import Path
from typing import Annotated, get_args

import numpy as np
import pandas as pd
import typer
from rich.table import Table

from mpvae import metrics
from mpvae.choosing import choose_rows, kept_columns, read_for, read_known
from mpvae.config import Metric, setting_docs
from mpvae.conformal import Guarantee
from mpvae.errors import ConfigError, DataError
from mpvae.estimator import load_model
from mpvae.evidence import source_names
from mpvae.shell import (
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
    check_suffix,
    hand_over,
    made_of,
    out,
    plain,
    print_held_out,
    print_pairs,
    print_scores,
    title,
)


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
) -> None:
    """Write the probability of every label for every row of TABLE.

    Or 0/1 decisions (`--metric`), probabilities given labels already known (`--given`), or
    the labels that may be present, with a guarantee (`--sets`).

    Example: `mpvae predict model new_sites.csv --keep site_id --out probabilities.csv`

    Example: `mpvae predict model new_sites.csv --given seen_so_far.csv`
    """
    decide = decide or metric is not None
    if decide + (given is not None) + (sets is not None) > 1:
        raise ConfigError("--decide or --metric, --given and --sets: one of them at a time")
    if guarantee is not None and sets is None:
        raise ConfigError("--guarantee says what --sets should hold; add --sets 0.9")
    if file is not None:
        check_suffix(file)  # refuse an unknown suffix before the work
        for name, read in (("the table", table), ("the file of --given", given)):
            if read is not None and read.exists() and file.exists() and file.samefile(read):
                raise ConfigError(f"--out {file} is {name} itself; give another file")
    model = load_model(model_folder).set_output(transform="pandas")
    model.verbose = 1
    data, _ = choose_rows(read_for(model, table, meta_offset), rows, "all")
    X = data.features()
    if given is not None:
        answer = model.predict_conditional(X, read_known(model, given, table, rows))
    elif sets is not None:
        answer = model.predict_set(X, sets, guarantee=guarantee or "all")
    else:
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
    hand_over(answer, file, f"{len(answer)} rows, {len(model.label_names_)} labels")


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
