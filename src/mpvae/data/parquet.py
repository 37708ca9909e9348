"""Tables in Parquet files."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mpvae.data.cells import label_matrix
from mpvae.data.columns import LabelChoice, check_unique, choose_columns
from mpvae.data.files import DAMAGE, one_line
from mpvae.data.pages import Checked, checked, written_out
from mpvae.data.table import LabelledTable
from mpvae.errors import DataError

PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def read_parquet(
    path: Path,
    *,
    labels: LabelChoice = None,
    exclude: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> LabelledTable:
    """Table in a ``.parquet`` file; a stored pandas index is left out.

    The parameters are those of `mpvae.data.read_table`.
    """
    file = path.name
    frame = _load(path)
    names = [str(name) for name in frame.columns]
    chosen = choose_columns(names, labels=labels, exclude=exclude, columns=columns, file=file)
    Y = None
    if chosen.labels:
        Y = label_matrix(
            frame.iloc[:, chosen.labels], where=lambda row: f"row {row + 1}", file=file
        )
    return LabelledTable(
        X=frame.iloc[:, chosen.features],
        Y=Y,
        feature_names=tuple(names[i] for i in chosen.features),
        label_names=tuple(names[i] for i in chosen.labels),
        name=path.stem,
    )


class Opened(NamedTuple):
    """A Parquet file whose pages are known to be harmless."""

    parquet: pq.ParquetFile
    file: str
    known: Checked

    def plain(self, table: pa.Table, text: frozenset[str] = frozenset()) -> pa.Table:
        """Rows that were read, as numbers and text.

        Decimals become numbers; columns of nothing, too, or text where ``text`` has them.
        """
        for i, field in enumerate(table.schema):
            column = table.column(i)
            if pa.types.is_decimal(field.type) or pa.types.is_null(field.type):
                column = column.cast(pa.string() if field.name in text else pa.float64())
            elif field.name in self.known.repeating and pa.types.is_dictionary(field.type):
                column = written_out(column, self.known.room, field.name, self.file)
            if not pa.types.is_primitive(field.type):
                _check_text(column, field.name, self.file)
            table = table.set_column(i, field.name, column)
        return table


def _check_text(column: pa.ChunkedArray, name: str, file: str) -> None:
    """Refuse what is no text: Arrow believes what a file says, and fails later."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file}: column {one_line(name)} is not UTF-8 text ({one_line(error)}); encode it "
            "so when you write the file"
        ) from error


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """A Parquet file; whatever is wrong with its bytes is a `DataError` with its name."""
    try:
        known = checked(path)
        # nothing in a file can have more parts than the file has bytes
        most = min(10**6, path.stat().st_size)
        with pq.ParquetFile(
            path,
            read_dictionary=known.repeating,
            thrift_string_size_limit=most,
            thrift_container_size_limit=most,
            arrow_extensions_enabled=False,
        ) as source:
            yield Opened(source, str(path), known)
    except DataError:
        raise
    except (pa.ArrowException, *DAMAGE) as error:
        raise DataError(
            f"{path} cannot be read as Parquet: {one_line(error)}; write the file anew"
        ) from error


def _load(path: Path) -> pd.DataFrame:
    file = path.name
    if not path.is_file():
        raise DataError(f"{path} does not exist; check the path")
    with opened(path) as source:
        schema = source.parquet.schema_arrow
        names = [name for name in schema.names if not PANDAS_INDEX.fullmatch(name)]
        check_unique(names, file=file)
        for field in schema:
            if pa.types.is_nested(field.type):
                raise DataError(
                    f"{file}: column {one_line(field.name)} holds {one_line(field.type)}; "
                    "give one value per cell, or exclude the column when writing the file"
                )
        table = source.plain(source.parquet.read(columns=names))
        frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    if frame.empty:
        raise DataError(f"{file} has no rows or no columns; give at least one row of data")
    return frame
