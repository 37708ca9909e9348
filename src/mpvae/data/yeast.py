"""The yeast data set, as shipped in the package river."""

import numpy as np

from mpvae.data.table import LabelledTable
from mpvae.errors import DataError

N_ROWS = 2417
N_TEST_ROWS = 917


def load_yeast() -> LabelledTable:
    """Functions of 2417 yeast genes: 103 features, 14 labels, official split.

    The 14 functional classes are named Class1 to Class14 (Elisseeff & Weston 2002). In river's
    row order the first 917 rows are the official test set, the other 1500 the training set.

    Raises
    ------
    DataError
        If river is not installed, or holds another version of the data.
    """
    try:
        from river.datasets import Yeast
    except ImportError:
        raise DataError(
            "the yeast data come with the package river, which is not installed or too old; "
            'run: pip install "mpvae[demo]"'
        ) from None
    samples = list(Yeast())  # type: ignore[no-untyped-call]
    feature_names = tuple(f"Att{i}" for i in range(1, 104))
    label_names = tuple(f"Class{i}" for i in range(1, 15))
    try:
        X = np.array([[x[name] for name in feature_names] for x, _ in samples], np.float32)
        Y = np.array([[y[name] for name in label_names] for _, y in samples], np.int32)
    except KeyError as error:
        raise DataError(
            f"river's yeast data lack the column {error}; "
            'run: pip install --upgrade "mpvae[demo]"'
        ) from None
    if len(samples) != N_ROWS:
        raise DataError(
            f"river's yeast data have {len(samples)} rows instead of {N_ROWS}; "
            'run: pip install --upgrade "mpvae[demo]"'
        )
    return LabelledTable(
        X=X,
        Y=Y,
        feature_names=feature_names,
        label_names=label_names,
        splits={"train": np.arange(N_TEST_ROWS, N_ROWS), "test": np.arange(N_TEST_ROWS)},
        name="yeast",
    )
