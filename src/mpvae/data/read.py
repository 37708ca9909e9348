"""One function that reads every format, by the file's suffix."""

from collections.abc import Sequence
from glob import has_magic
from pathlib import Path

import pandas as pd

from mpvae.data.arff import read_arff
from mpvae.data.authors import read_authors_beside
from mpvae.data.columns import LabelChoice, as_count, choose_features, choose_labels
from mpvae.data.delimited import read_delimited
from mpvae.data.files import bare_name
from mpvae.data.npz import read_npz
from mpvae.data.parquet import read_parquet
from mpvae.data.parts import are_many, open_parts, read_parts
from mpvae.data.svmlight import read_extreme, read_svmlight
from mpvae.data.table import LabelledTable
from mpvae.errors import DataError

_COLUMN_READERS = {
    ".csv": read_delimited,
    ".tsv": read_delimited,
    ".parquet": read_parquet,
    ".arff": read_arff,
}
_SUFFIXES = ".csv, .tsv, .parquet, .npz, .npy, .arff, .svm, .libsvm, .txt"


def read_table(
    path: str | Path,
    *,
    labels: LabelChoice = None,
    exclude: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    meta_offset: int = 0,
) -> LabelledTable:
    """Table of features and labels in a file of any format known here.

    ====================  ==============================================================
    ``.csv``, ``.tsv``    text with a header line; mixed columns stay a DataFrame
    ``.parquet``          the same, binary; also a folder of such files, or a pattern
    ``.npz``              arrays X (or CSR parts), Y, names and split: `read_npz`
    ``.arff``             WEKA, with the labels of Mulan or MEKA: `read_arff`
    ``.svm``, ``.libsvm``  ``1,3 5:0.5 9:1``: `read_svmlight`
    ``.txt``              extreme classification: `read_extreme`
    ``.npy``, a folder    the authors' matrix: `read_authors`
    ====================  ==============================================================

    Text formats may be compressed (``.csv.gz``, ``.arff.bz2``).

    Parameters
    ----------
    path
        The file.
    labels
        Label columns: names or shell patterns, as comma-separated text (``"species_*,other"``)
        or as a list, in the order wanted; or a count (an integer, or digits as text): the last
        N columns, or the first N when negative. ``None``: those that the file itself marks as
        labels (``.npz``, ``.arff``, ``.svm``, ``.txt``), otherwise none. For ``.npy``, the
        number of columns after the metadata. A name that holds a comma or is a number must be
        given in a list.
    exclude
        Names or patterns of feature columns to leave out, such as row ids.
    columns
        For prediction: the feature columns that must be there, in this order; others are
        ignored, and ``exclude`` is not used.
    meta_offset
        For ``.npy`` only: number of metadata columns before the labels.

    Raises
    ------
    DataError
        If the file cannot be read or is malformed: file, place, fault and remedy in one line.
    """
    path = Path(path)
    suffix = bare_name(path)[1]
    if are_many(path) and (path.is_dir() or has_magic(str(path))):
        parts = open_parts(path, labels=labels, exclude=exclude, columns=columns)
        return read_parts(parts)
    if path.is_dir() and not any(path.glob("*_data.npy")):
        raise DataError(
            f"the folder {path} holds no table, neither .parquet files nor *_data.npy; "
            "give the file itself"
        )
    if path.is_dir() or suffix == ".npy":
        table = read_authors_beside(
            path, n_labels=_authors_count(labels, path.name), meta_offset=meta_offset
        )
        return _restrict(table, None, exclude, columns, path.name)
    if not path.exists():
        raise DataError(f"{path} does not exist; check the path")
    if suffix in _COLUMN_READERS:
        return _COLUMN_READERS[suffix](path, labels=labels, exclude=exclude, columns=columns)
    if suffix == ".npz":
        table = read_npz(path)
    elif suffix in {".svm", ".libsvm"}:
        table = read_svmlight(path, columns=columns)
    elif suffix == ".txt":
        table = read_extreme(path)
    else:
        raise DataError(
            f"{path.name} has the unknown suffix {suffix!r}; use one of {_SUFFIXES}"
        )
    return _restrict(table, labels, exclude, columns, path.name)


def _authors_count(labels: LabelChoice, file: str) -> int:
    if labels is None:
        return 0
    count = as_count(labels)
    if count is None or count < 1:
        raise DataError(
            f"{file} has no column names, so labels={labels!r} cannot be found; give the "
            "number of label columns"
        )
    return count


def _restrict(
    table: LabelledTable,
    labels: LabelChoice,
    exclude: Sequence[str],
    columns: Sequence[str] | None,
    file: str,
) -> LabelledTable:
    """Table with the chosen columns, for formats that keep labels apart from features."""
    X, Y, label_names = table.X, table.Y, table.label_names
    features = choose_features(table.feature_names, exclude, columns, file=file)
    if labels is None and features == list(range(len(table.feature_names))):
        return table
    if features != list(range(len(table.feature_names))):
        X = X.iloc[:, features] if isinstance(X, pd.DataFrame) else X[:, features]
    if labels is not None:
        if Y is None:
            raise DataError(f"{file} holds no labels; leave labels out")
        count = as_count(labels)
        if count is not None and abs(count) != len(label_names):
            raise DataError(
                f"{file} marks its own {len(label_names)} labels, not {abs(count)}; leave "
                "labels out, or choose among them by name"
            )
        chosen = choose_labels(label_names, labels, file=file)
        Y, label_names = Y[:, chosen], tuple(label_names[i] for i in chosen)
    return LabelledTable(
        X=X,
        Y=Y,
        feature_names=tuple(table.feature_names[i] for i in features),
        label_names=label_names,
        splits=table.splits,
        name=table.name,
    )
