"""The data format of the method's authors: one matrix, and row numbers in files beside it."""

from pathlib import Path

from mpvae.data.cells import as_float32
from mpvae.data.files import listing
from mpvae.data.npy import load_npy
from mpvae.data.npz import check_size, labels_of_numbers, numbered_names
from mpvae.data.table import LabelledTable
from mpvae.errors import DataError

PathLike = str | Path


def read_authors(
    data_npy: PathLike,
    *,
    n_labels: int,
    n_features: int | None = None,
    meta_offset: int = 0,
    train_idx: PathLike | None = None,
    val_idx: PathLike | None = None,
    test_idx: PathLike | None = None,
) -> LabelledTable:
    """Table in the authors' format.

    The columns of the matrix are ``meta_offset`` metadata columns (left out), then the labels,
    then the features. Features are named x1, x2, ... and labels y1, y2, ...

    Parameters
    ----------
    data_npy
        The ``.npy`` file of the matrix.
    n_labels
        Number of label columns; 0 for none.
    n_features
        Number of feature columns; ``None`` for all that follow the labels.
    meta_offset
        Number of metadata columns.
    train_idx, val_idx, test_idx
        ``.npy`` files of row numbers.
    """
    path = Path(data_npy)
    matrix = load_npy(path)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise DataError(
            f"{path.name} must hold a table of numbers, got {matrix.dtype} of shape "
            f"{matrix.shape}"
        )
    check_size(matrix, "the matrix", path.name)
    start = meta_offset + n_labels
    end = matrix.shape[1] if n_features is None else start + n_features
    if min(meta_offset, n_labels) < 0 or not start < end <= matrix.shape[1]:
        raise DataError(
            f"{path.name} has {matrix.shape[1]} columns, which cannot hold {meta_offset} "
            f"metadata, {n_labels} label and "
            f"{'some' if n_features is None else n_features} feature columns; "
            "correct the counts"
        )
    feature_names = numbered_names("x", end - start)
    parts = {"train": train_idx, "val": val_idx, "test": test_idx}
    return LabelledTable(
        X=as_float32(matrix[:, start:end], names=feature_names, file=path.name),
        Y=labels_of_numbers(matrix[:, meta_offset:start]) if n_labels else None,
        feature_names=feature_names,
        label_names=numbered_names("y", n_labels),
        splits={part: load_npy(Path(file)) for part, file in parts.items() if file is not None},
        name=path.stem.removesuffix("_data"),
    )


def read_authors_beside(path: Path, *, n_labels: int, meta_offset: int = 0) -> LabelledTable:
    """Table in the authors' format, with the row numbers found by the files' names.

    Parameters
    ----------
    path
        ``NAME_data.npy``, beside which ``NAME_train_idx.npy``, ``NAME_val_idx.npy`` and
        ``NAME_test_idx.npy`` are used where they exist; or a folder with one such matrix.
    n_labels, meta_offset
        As for `read_authors`.
    """
    if path.is_dir():
        found = sorted(path.glob("*_data.npy"))
        if len(found) != 1:
            raise DataError(
                f"the folder {path.name} holds {len(found)} files named *_data.npy "
                f"({listing(file.name for file in found) or 'none'}); give the file itself"
            )
        path = found[0]
    stem = path.stem.removesuffix("_data")
    beside = {
        part: path.with_name(f"{stem}_{part}_idx.npy") for part in ("train", "val", "test")
    }
    index = {part: file if file.is_file() else None for part, file in beside.items()}
    return read_authors(
        path,
        n_labels=n_labels,
        meta_offset=meta_offset,
        train_idx=index["train"],
        val_idx=index["val"],
        test_idx=index["test"],
    )
