"""Labels in every form users have them."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp

from mpvae.errors import DataError
from mpvae.labels import as_pandas, read_labels

Y = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 1], [0, 0, 0]])
FRAME = pd.DataFrame(Y, columns=["a", "b", "c"])


@pytest.mark.parametrize(
    "y",
    [
        Y,
        Y.tolist(),
        Y.astype(bool),
        Y.astype(np.float32),
        Y.astype(np.uint8),
        sp.csr_matrix(Y),
        sp.csc_array(Y),
        sp.coo_array(Y),
        sp.csr_array(Y.astype(bool)),
        FRAME,
        FRAME.astype(bool),
        FRAME.astype("Int64"),
        FRAME.astype("category"),
        pl.DataFrame(FRAME.to_dict("list")),
        pl.DataFrame(FRAME.to_dict("list")).lazy(),
    ],
    ids=lambda y: type(y).__name__,
)
def test_every_form_of_the_same_labels_is_read_alike(y):
    labels = read_labels(y)
    read = labels.Y.toarray() if sp.issparse(labels.Y) else labels.Y
    np.testing.assert_array_equal(read, Y)
    assert read.dtype == np.float32
    assert labels.multilabel
    named = isinstance(y, pd.DataFrame | pl.DataFrame | pl.LazyFrame)
    assert labels.names == (("a", "b", "c") if named else ("label_0", "label_1", "label_2"))
    assert labels.classes.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        ([0, 1, 1], [0, 1]),
        ([-1, 1, -1], [-1, 1]),
        (["yes", "no", "yes"], ["no", "yes"]),
        (np.array(["yes", "no"], dtype=object), ["no", "yes"]),
        ([True, False], [False, True]),
        (pd.Series(["b", "a"]), ["a", "b"]),
        (pd.Categorical(["b", "a"]), ["a", "b"]),
        (pl.Series(["b", "a"]), ["a", "b"]),
        ([2.0, 5.0], [2.0, 5.0]),
    ],
)
def test_a_vector_is_one_binary_label_in_any_encoding(y, classes):
    labels = read_labels(y)
    assert not labels.multilabel
    assert labels.classes.tolist() == classes
    assert labels.classes[labels.Y[:, 0].astype(int)].tolist() == list(y)


def test_a_frame_of_one_column_is_a_table_of_one_label():
    labels = read_labels(FRAME[["b"]])
    assert labels.multilabel
    assert labels.names == ("b",)
    assert labels.Y.shape == (4, 1)


def test_an_array_of_one_column_is_a_vector_with_a_warning():
    with pytest.warns(Warning, match="column-vector y"):
        assert not read_labels(Y[:, :1]).multilabel


def test_stored_zeros_and_repeated_entries_of_a_sparse_matrix_count_once():
    stored = sp.csr_array(([0.0, 1.0], [0, 1], [0, 2]), shape=(1, 2))
    assert read_labels(stored).Y.nnz == 1
    twice = sp.coo_array(([1, 1], ([0, 0], [1, 1])), shape=(1, 2))
    with pytest.raises(DataError, match="got 2"):
        read_labels(twice)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([[0, 1], [2, 0]], "must hold 0 and 1, got 2 in row 1, column 0; turn counts"),
        ([[0.5, 1], [1, 0]], "got 0.5 in row 0, column 0"),
        ([[-1, 1], [1, 0]], "got -1"),
        (np.array([[0, np.nan], [1, 0]]), "y holds NaN in row 0, column 1: labels that were"),
        (FRAME.assign(b=[0, 1, 3, 0]), "got 3 in row 2, column b"),
        (FRAME.assign(b=[0, 1, None, 0]), "NaN in row 2, column b"),
        (FRAME.assign(b=pd.array([0, 1, None, 0], "Int64")), "NaN in row 2, column b"),
        (FRAME.assign(b=["no", "yes", "no", "no"]), "not numbers; labels must be 0 or 1"),
        ([["a", "b"], ["b", "a"]], "y must hold 0 and 1, got values of type"),
        (sp.csr_array(np.array([[0, 3.0]])), "got 3"),
        (sp.csr_array(np.array([[0, np.nan]])), "y holds NaN"),
        (pd.DataFrame(Y, columns=["a", "b", "a"]), "several columns named 'a'"),
        (pd.DataFrame(index=[0, 1]), "y has no columns"),
        (sp.csr_array((3, 0)), "y has no columns"),
        ([0, 1, 2], "Only binary classification is supported. The type of the target is multi"),
        (["a", "b", "c"], "Only binary classification"),
        ([1, 1, 1], "y holds one class, 1;"),
        (np.zeros(3), "y holds one class, 0.0;"),
        (["a", "a"], "y holds one class, 'a';"),
        ([0, 1, np.nan], "Input y contains NaN or None in row 2"),
        (["a", None, "b"], "Input y contains NaN or None in row 1"),
        ([b"a", b"b"], "bytes"),
    ],
)
def test_labels_that_make_no_sense_are_refused_in_one_clear_line(y, message):
    with pytest.raises(DataError) as refused:
        read_labels(y)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_continuous_and_mixed_values_are_refused():
    for y in ([0.1, 0.7, 0.3], np.array([1, "a", 1], dtype=object)):
        with pytest.raises(ValueError, match="continuous"):
            read_labels(y)


def test_many_label_names_are_checked_at_once():
    names = [f"species{i}" for i in range(20_000)]
    assert len(read_labels(pd.DataFrame(np.zeros((1, 20_000)), columns=names)).names) == 20_000
    names[-1] = "species0"
    with pytest.raises(DataError, match="several columns named 'species0'"):
        read_labels(pd.DataFrame(np.zeros((1, 20_000)), columns=names))


def test_as_pandas_leaves_other_tables_alone():
    assert as_pandas(FRAME) is FRAME
    assert as_pandas(Y) is Y
