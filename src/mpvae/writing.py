"""Files of answers: there whole or not at all, tables written frame by frame."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mpvae.errors import ConfigError


def check_suffix(file: Path) -> str:
    """Suffix of a file that can be written; an error names those that can."""
    if file.suffix not in (".csv", ".parquet", ".json"):
        raise ConfigError(f"{file}: unknown suffix; use .csv, .parquet or .json")
    return file.suffix


@contextmanager
def appending(file: Path | None) -> Iterator[Callable[[pd.DataFrame], None]]:
    """A function that adds a frame to the file, or to what is printed (CSV).

    The file appears under its name when all is written. JSON is one list, of one frame.
    """
    if file is None:
        yield _csv(sys.stdout)
        return
    suffix = check_suffix(file)
    with replacing(file) as partial:
        if suffix == ".csv":
            with partial.open("w", encoding="utf-8", newline="") as stream:
                yield _csv(stream)
        elif suffix == ".parquet":
            with _ParquetFile(partial) as parquet:
                yield parquet.add
        else:
            yield lambda frame: frame.to_json(partial, orient="records", double_precision=15)


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Another name to write to, that becomes the file's when the block ends well."""
    partial = file.with_name(f".{file.name}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(file)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(
            f"cannot write {file}: {error.strerror or error}; make room, or give another place"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _csv(stream: TextIO) -> Callable[[pd.DataFrame], None]:
    """Adds frames as CSV, the header once."""
    n_frames = 0

    def add(frame: pd.DataFrame) -> None:
        nonlocal n_frames
        frame.to_csv(stream, index=False, header=n_frames == 0)
        n_frames += 1

    return add


class _ParquetFile:
    """A Parquet file with the columns of the first frame."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.writer: pq.ParquetWriter | None = None

    def __enter__(self) -> "_ParquetFile":
        return self

    def add(self, frame: pd.DataFrame) -> None:
        schema = None if self.writer is None else self.writer.schema
        table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.file, table.schema)
        self.writer.write_table(table)

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a frame as JSON has them: null where a cell is empty."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [
        {str(k): v.item() if isinstance(v, np.generic) else v for k, v in row.items()}
        for row in plain.to_dict("records")
    ]
