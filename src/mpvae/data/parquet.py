"""Tables in Parquet files."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mpvae.data.cells import label_matrix
from mpvae.data.columns import LabelChoice, check_unique, choose_columns
from mpvae.data.files import DAMAGE, one_line
from mpvae.data.table import LabelledTable
from mpvae.errors import DataError

MAX_PARQUET_BYTES = 8 * 1024**3
"""Largest uncompressed size read."""

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


@contextmanager
def opened(path: Path) -> Iterator[pq.ParquetFile]:
    """A Parquet file; whatever is wrong with its bytes is a `DataError` with its name."""
    try:
        with pq.ParquetFile(path) as source:
            yield source
    except DataError:
        raise
    except (pa.ArrowException, *DAMAGE) as error:
        raise DataError(
            f"{path} cannot be read as Parquet: {one_line(error)}; write the file anew"
        ) from error


def with_plain_columns(table: pa.Table, text: frozenset[str] = frozenset()) -> pa.Table:
    """Decimals as numbers; columns of nothing as numbers too, or as text where ``text`` is."""
    for i, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) or pa.types.is_null(field.type):
            kind = pa.string() if field.name in text else pa.float64()
            table = table.set_column(i, field.name, table.column(i).cast(kind))
    return table


def _load(path: Path) -> pd.DataFrame:
    file = path.name
    if not path.is_file():
        raise DataError(f"{path} does not exist; check the path")
    with opened(path) as source:
        schema = source.schema_arrow
        names = [name for name in schema.names if not PANDAS_INDEX.fullmatch(name)]
        check_unique(names, file=file)
        _check_size(source.metadata, file)
        for field in schema:
            if pa.types.is_nested(field.type):
                raise DataError(
                    f"{file}: column {one_line(field.name)} holds {one_line(field.type)}; "
                    "give one value per cell, or exclude the column when writing the file"
                )
        table = with_plain_columns(source.read(columns=names))
        frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    if frame.empty:
        raise DataError(f"{file} has no rows or no columns; give at least one row of data")
    return frame


def _check_size(metadata: pq.FileMetaData, file: str) -> None:
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if size > MAX_PARQUET_BYTES:
        raise DataError(
            f"{file} unpacks to {size:,} bytes, more than {MAX_PARQUET_BYTES:,}; split the file"
        )
