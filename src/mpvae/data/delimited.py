"""Tables as text: comma-, semicolon- and tab-separated files."""

import csv
import io
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mpvae.data.cells import label_matrix
from mpvae.data.columns import LabelChoice, check_unique, choose_columns
from mpvae.data.files import bare_name, one_line, read_text
from mpvae.data.table import LabelledTable
from mpvae.errors import DataError

MISSING = ["", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL"]
"""Cells that mean "unknown", as written by R, spreadsheets and databases."""

_INTEGER = re.compile(r"\s*[-+]?\d+\s*")
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+(,\d+)?\s*")
# pandas 3.1 reads numbers to the last digit, and wants not to be told so; those before do not.
_OLD_PANDAS = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
EXACT: dict[str, Any] = {"float_precision": "round_trip"} if _OLD_PANDAS else {}
"""How `pandas.read_csv` is told to read numbers as they were written."""


def read_delimited(
    path: Path,
    *,
    labels: LabelChoice = None,
    exclude: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> LabelledTable:
    """Table in a ``.csv`` or ``.tsv`` file, compressed or not.

    The first line names the columns. A CSV file whose header has semicolons and no comma is
    read as semicolon-separated. Columns of numbers become numbers, all others stay text.
    The parameters are those of `mpvae.data.read_table`.
    """
    file, text = path.name, read_text(path)
    separator = _separator(path, text)
    names, lines = _scan(text, separator, file)
    frame = _parse(text, separator, names, file)
    if len(frame) != len(lines):
        raise DataError(
            f"{file}: {len(lines)} rows by count but {len(frame)} when parsed; look for stray "
            "quotes or blank cells alone on a line"
        )
    chosen = choose_columns(names, labels=labels, exclude=exclude, columns=columns, file=file)
    X = frame.iloc[:, chosen.features]
    if separator == ";":
        _refuse_decimal_commas(X, lines, file)
    Y = None
    if chosen.labels:
        Y = label_matrix(
            frame.iloc[:, chosen.labels], where=lambda row: f"line {lines[row]}", file=file
        )
    return LabelledTable(
        X=X,
        Y=Y,
        feature_names=tuple(names[i] for i in chosen.features),
        label_names=tuple(names[i] for i in chosen.labels),
        name=bare_name(path)[0],
    )


def _separator(path: Path, text: str) -> str:
    if bare_name(path)[1] == ".tsv":
        return "\t"
    header = text.lstrip("\r\n").splitlines()[0]
    return ";" if ";" in header and "," not in header else ","


def _scan(text: str, separator: str, file: str) -> "tuple[list[str], array[int]]":
    """Column names, and the line on which each row ends; refuses ragged rows.

    pandas fills short rows with missing values, so the count of cells is checked here.
    """
    names: list[str] = []
    lines = array("q")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        for row in reader:
            if not row:
                continue
            if not names:
                names = [name.strip() for name in row]
            elif len(row) != len(names):
                raise DataError(
                    f"{file} line {reader.line_num} has {len(row)} cells but the header has "
                    f"{len(names)}; give every row one cell per column"
                )
            else:
                lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(
            f"{file} line {reader.line_num} cannot be read: {one_line(error)}; look for stray "
            "quotes"
        ) from None
    check_unique(names, file=file)
    if not lines:
        raise DataError(f"{file} has a header but no rows; give at least one row of data")
    return names, lines


def _parse(text: str, separator: str, names: list[str], file: str) -> pd.DataFrame:
    try:
        frame: pd.DataFrame = pd.read_csv(
            io.StringIO(text, newline=""),
            sep=separator,
            header=0,
            names=names,
            index_col=False,
            keep_default_na=False,
            na_values=MISSING,
            low_memory=False,
            **EXACT,
        )
        return _with_huge_integers(frame)
    except (ValueError, OverflowError, pd.errors.ParserError) as error:
        raise DataError(
            f"{file} cannot be read as a table: {one_line(error, 160)}; look for stray quotes"
        ) from error


def _with_huge_integers(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns of integers as numbers; pandas leaves them text where one has over 64 bits."""
    for position, kind in enumerate(frame.dtypes):
        if pd.api.types.is_numeric_dtype(kind):
            continue
        cells = frame.iloc[:, position].dropna()
        if len(cells) and all(_INTEGER.fullmatch(str(cell)) for cell in cells):
            numbers = frame.iloc[:, position].astype(object).map(_as_float, na_action="ignore")
            frame.isetitem(position, numbers.to_numpy(float))
    return frame


def _as_float(cell: object) -> float:
    return float(str(cell))  # "1" and 400 digits: the latter infinite, and refused later on


def _refuse_decimal_commas(X: pd.DataFrame, lines: Sequence[int], file: str) -> None:
    for name in X.columns:
        if pd.api.types.is_numeric_dtype(X[name].dtype):
            continue
        cells = X[name].dropna().astype(str)
        with_comma = cells[cells.str.contains(",", regex=False)]
        if len(with_comma) and all(map(_DECIMAL_COMMA.fullmatch, cells)):
            row = int(with_comma.index[0])
            raise DataError(
                f"{file} line {lines[row]}, column {one_line(name)}: {with_comma.iloc[0]!r} "
                "has a decimal comma; write numbers with a decimal point"
            )
