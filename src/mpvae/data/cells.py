"""Label cells to 0, 1 and NaN; feature cells to float32."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mpvae.data.files import one_line
from mpvae.errors import DataError

LABEL_WORDS = {
    "0": 0.0,
    "0.0": 0.0,
    "false": 0.0,
    "no": 0.0,
    "1": 1.0,
    "1.0": 1.0,
    "true": 1.0,
    "yes": 1.0,
    "": np.nan,
}
"""Meaning of a label cell, in lower case."""


def label_matrix(
    frame: pd.DataFrame, *, where: Callable[[int], str], file: str
) -> NDArray[np.int32] | NDArray[np.float64]:
    """Labels (n, L): int32 of 0 and 1, or float64 with NaN where cells are empty.

    Parameters
    ----------
    frame
        The label columns.
    where
        Place of a row in the file, such as ``line 7``.
    file
        File name, for messages.
    """
    Y = np.empty(frame.shape, dtype=np.float64)
    for number, name in enumerate(frame.columns):
        values = _label_column(frame[name])
        Y[:, number] = values
        check_labels(
            values, name=name, cell=frame[name].iloc.__getitem__, where=where, file=file
        )
    return tight_labels(Y)


def check_labels(
    values: NDArray[np.float64],
    *,
    name: str,
    cell: Callable[[int], object],
    where: Callable[[int], str],
    file: str,
) -> None:
    """Refuse values of one label column that are not 0, 1 or NaN."""
    wrong = ~((values == 0) | (values == 1) | np.isnan(values))
    if not wrong.any():
        return
    row = int(np.argmax(wrong))
    value = cell(row)
    remedy = (
        "turn counts into 0/1 presence first"
        if _is_number(value)
        else "use 0/1, true/false or yes/no"
    )
    raise DataError(
        f"{file} {where(row)}, column {one_line(name)}: label value {_show(value)} is not "
        f"0 or 1; {remedy}"
    )


def tight_labels(Y: NDArray[np.float64]) -> NDArray[np.int32] | NDArray[np.float64]:
    """Labels as int32, or as they are when some are NaN."""
    return Y if np.isnan(Y).any() else Y.astype(np.int32)


def as_float32(
    values: NDArray[np.generic], *, names: Sequence[str], file: str
) -> NDArray[np.float32]:
    """Features (n, D) in single precision, refusing numbers too large for it."""
    if values.dtype.kind == "f" and values.dtype.itemsize > 4:  # no integer is too large
        too_large = np.isfinite(values) & (np.abs(values) > np.finfo(np.float32).max)
        if too_large.any():
            row, column = divmod(int(np.argmax(too_large)), values.shape[1])
            raise DataError(
                f"{file} row {row + 1}, column {one_line(names[column])}: "
                f"{one_line(values[row, column])} is too large for single precision; rescale "
                "the column"
            )
    with np.errstate(invalid="ignore"):  # a NaN may be of the kind that signals
        return values.astype(np.float32, copy=False)


_NOT_A_LABEL = -1.0


def _label_column(column: "pd.Series[Any]") -> NDArray[np.float64]:
    if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    cells = (
        "" if empty else str(cell) for cell, empty in zip(column, column.isna(), strict=True)
    )
    values = (LABEL_WORDS.get(cell.strip().lower(), _NOT_A_LABEL) for cell in cells)
    return np.fromiter(values, dtype=np.float64, count=len(column))


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _show(value: object) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:g}"
    return repr(one_line(value)) if isinstance(value, str) else one_line(value)
