"""What a command works on: which settings, which rows and columns of which table."""

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mpvae.checkpoints import Kept
from mpvae.config import parse_setting, setting_docs
from mpvae.data import LabelledTable, read_table
from mpvae.data.columns import LabelChoice, match_columns
from mpvae.data.files import one_line
from mpvae.data.parts import (
    IN_MEMORY_VALUES,
    ParquetParts,
    column_names,
    is_parts,
    open_parts,
)
from mpvae.errors import ConfigError, DataError
from mpvae.estimator import MPVAEClassifier
from mpvae.evidence import KINDS
from mpvae.opening import open_regular
from mpvae.terminal import err, plain

MAX_TOML_BYTES = 8 * 1024
"""Largest file of settings: the time of reading one key grows with the square of its length."""


def given_settings(config: Path | None, given: list[str]) -> dict[str, Any]:
    """Settings of a TOML file, then those given one by one as NAME=VALUE; base may be one."""
    values: dict[str, Any] = {}
    if config is not None:
        values = _read_toml(config)
        for name, value in values.items():  # TOML has no None: patience = "none"
            try:
                values[name] = _parse(name, value) if isinstance(value, str) else value
            except ConfigError as error:
                raise ConfigError(f"{config}: {one_line(error, 400)}") from None
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set takes NAME=VALUE, got {pair!r}")
        values[name.strip()] = _parse(name.strip(), text.strip())
    unknown = [name for name in values if name not in setting_docs() and name != "base"]
    if unknown:
        where = "" if config is None else f"{config}: "
        name = one_line(unknown[0])
        raise ConfigError(f"{where}there is no setting {name!r}; see mpvae settings")
    return values


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        with open_regular(file) as stream:
            content = stream.read(MAX_TOML_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}; check the path") from error
    if len(content) > MAX_TOML_BYTES:
        raise ConfigError(
            f"{file} has more than {MAX_TOML_BYTES:,} bytes; settings take few lines"
        )
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: also 5000 digits
        raise ConfigError(f"{file} is not valid TOML: {one_line(error)}") from error


def _parse(name: str, text: str) -> Any:
    if name == "base":  # a parameter of the model
        return named_base(text)
    return parse_setting(name, text)


def named_base(text: str) -> str | list[str] | None:
    """Base as the classifier takes it: "none" is None, "kernel,forest" a list."""
    names = split_names([text])
    alone = ("auto", "none")
    if not names or not set(names) <= ({*KINDS, *alone} if len(names) == 1 else {*KINDS}):
        raise ConfigError(
            f"base must be one of {', '.join((*alone, *KINDS))}, or several of the last "
            f"{len(KINDS)} with commas between, got {text!r}"
        )
    if len(names) > 1:
        return names
    return None if names == ["none"] else names[0]


def too_large(
    table: Path,
    labels: LabelChoice = None,
    exclude: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    *,
    keep: Sequence[str] = (),
    rows: str = "auto",
) -> ParquetParts | None:
    """Parquet files with more rows than belong in memory; None for anything else."""
    if not is_parts(table):
        return None
    parts = open_parts(table, labels=labels, exclude=exclude, columns=columns, keep=keep)
    if parts.n_values <= IN_MEMORY_VALUES:
        return None
    if rows not in ("auto", "all"):
        raise ConfigError(f"{table} has no split {rows!r}: it is Parquet; leave out --rows")
    return parts


@dataclass(frozen=True, slots=True)
class FitJob:
    """A table, which of its rows and columns, and the classifier that is to learn them."""

    table: Path
    labels: str | None
    exclude: tuple[str, ...]
    rows: str
    meta_offset: int
    parameters: dict[str, Any]

    @property
    def on_gpus(self) -> bool:
        """Whether GPUs are asked for."""
        return str(self.parameters.get("device", "auto")).startswith("cuda")

    def model(self, verbose: int = 0) -> MPVAEClassifier:
        """The classifier, to be taught."""
        return MPVAEClassifier(**self.parameters, verbose=verbose)

    def look(self) -> None:
        """Read the table, or what its files say of themselves: what is wrong is told."""
        if too_large(self.table, self.labels, self.exclude, rows=self.rows) is None:
            self.training_rows()

    def teach(
        self, model: MPVAEClassifier, checkpoint: str | Path | Kept | None = None
    ) -> tuple[int, bool]:
        """Fit the model, from rows that are read as needed if they are too many.

        Returns
        -------
        n_rows : int
            Rows it has learnt from.
        interrupted : bool
            Whether Ctrl-C ended that early; the model has the best networks so far.
        """
        parts = too_large(self.table, self.labels, self.exclude, rows=self.rows)
        if parts is not None:
            fit = partial(
                model.fit_stream, self.table, labels=self.labels, exclude=self.exclude
            )
            n = len(parts)
        else:
            learn, judge = self.training_rows()
            validation = () if judge is None else (judge.features(), judge.labels())
            fit = partial(model.fit, learn.features(), learn.labels(), *validation)
            n = len(learn)
        try:
            fit(checkpoint=checkpoint)
        except KeyboardInterrupt:
            if not hasattr(model, "thresholds_"):
                raise
            return n, True
        return n, False

    def training_rows(self) -> tuple[LabelledTable, LabelledTable | None]:
        """Rows to learn from and, if the file has such, to validate on."""
        data = read_table(
            self.table,
            labels=self.labels,
            exclude=self.exclude,
            meta_offset=self.meta_offset,
        )
        if data.Y is None:
            raise DataError(f"{self.table.name}: which columns are labels? give --labels")
        return choose_rows(data, self.rows, "train")


def read_for(
    model: MPVAEClassifier, table: Path, meta_offset: int, *, with_labels: bool = False
) -> LabelledTable:
    """Table with the columns the model was trained on, in its order."""
    columns = getattr(model, "feature_names_in_", None)
    names: list[str] | int | None = list(model.label_names_) if with_labels else None
    if not is_parts(table) and (table.suffix == ".npy" or table.is_dir()):
        # the authors' format: columns have no names
        return read_table(table, labels=len(model.label_names_), meta_offset=meta_offset)
    return read_table(table, labels=names, columns=None if columns is None else list(columns))


def choose_rows(
    data: LabelledTable, rows: str, split: str
) -> tuple[LabelledTable, LabelledTable | None]:
    """Rows to use and, for fitting on a file's own split, its validation rows."""
    if rows == "all" or (rows == "auto" and split not in data.splits):
        return data, None
    if rows == "auto":
        judge = data.split("val") if split == "train" and "val" in data.splits else None
        err.print(
            f"{plain(data.name)} has an official split: using its {split} rows "
            "(--rows all: all)"
        )
        return data.split(split), judge
    return data.split(rows), None


def kept_names(table: Path, keep: list[str]) -> list[str]:
    """Columns of Parquet files that are to be kept, patterns resolved."""
    names = column_names(table)
    return [names[i] for i in match_columns(names, keep, role="kept", file=table.name)]


def kept_columns(table: Path, keep: list[str], rows: str) -> pd.DataFrame:
    """Columns of the input table to stand beside the predictions."""
    if is_parts(table):
        parts = open_parts(table, columns=[], keep=kept_names(table, keep))
        return pd.concat([chunk.X for chunk in parts.chunks()], ignore_index=True)
    frame = choose_rows(read_table(table), rows, "all")[0].features()
    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"{table.name} is sparse and has no columns to keep; leave out --keep")
    names = list(map(str, frame.columns))
    return frame.iloc[:, match_columns(names, split_names(keep), role="kept", file=table.name)]


def read_known(model: MPVAEClassifier, file: Path, table: Path, rows: str) -> pd.DataFrame:
    """Labels already known, one row per row of the table: 0, 1, or an empty cell.

    A column that also stands in the table, as an id, must be the same there: rows are matched
    by position. Any other column that is no label is a mistake.
    """
    found = read_table(file).features()
    if not isinstance(found, pd.DataFrame):
        raise DataError(f"{file.name} has no named columns; write the known labels as CSV")
    beside = choose_rows(read_table(table), rows, "all")[0].features()
    beside = beside if isinstance(beside, pd.DataFrame) else pd.DataFrame()
    if len(beside) and len(found) != len(beside):
        raise DataError(
            f"{file.name} has {len(found)} rows, {table.name} {len(beside)}; give a row of "
            "known labels for each row of the table"
        )
    labels = list(model.label_names_)
    names = [name for name in map(str, found.columns) if name in set(labels)]
    for name in map(str, found.columns):
        if name in names:
            continue
        if name not in beside.columns:
            near = difflib.get_close_matches(name, labels, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "; leave it out"
            raise DataError(
                f"{file.name}: column {name!r} is no label of the model and no column of "
                f"{table.name}{hint}"
            )
        differs = found[name].astype(str).to_numpy() != beside[name].astype(str).to_numpy()
        if differs.any():
            i = int(np.argmax(differs))
            raise DataError(
                f"{file.name} and {table.name} differ in {name!r}, row {i + 1}: "
                f"{found[name].iloc[i]} and {beside[name].iloc[i]}; "
                "bring the rows into one order"
            )
    if not names:
        some = ", ".join(labels[:3])
        raise DataError(f"{file.name} has no column that is a label of the model ({some}, ...)")
    return read_table(file, labels=names, columns=[]).labels()


def split_names(given: list[str] | None) -> list[str]:
    """Names and patterns given one by one, or several with commas between."""
    return [name.strip() for text in given or [] for name in text.split(",") if name.strip()]
