import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from mpvae.data import LabelledTable
from mpvae.errors import DataError


def make(**changes):
    parts = {
        "X": np.arange(8, dtype=np.float32).reshape(4, 2),
        "Y": np.array([[0, 1], [1, 0], [1, 1], [0, 0]], dtype=np.int32),
        "feature_names": ("a", "b"),
        "label_names": ("p", "q"),
        "splits": {"train": np.array([0, 2]), "test": np.array([1])},
        "name": "sites",
    }
    return LabelledTable(**(parts | changes))


@pytest.mark.parametrize("kind", [np.asarray, csr_array, pd.DataFrame])
def test_rows_takes_features_and_labels_together_and_drops_splits(kind):
    table = make(X=kind(np.arange(8, dtype=np.float32).reshape(4, 2))).rows([2, 0])
    X = table.X.toarray() if isinstance(table.X, csr_array) else np.asarray(table.X)
    np.testing.assert_array_equal(X, [[4, 5], [0, 1]])
    np.testing.assert_array_equal(table.Y, [[1, 1], [0, 1]])
    assert not table.splits
    assert len(table) == 2


def test_rows_takes_a_mask_and_an_empty_list():
    assert make().rows(np.array([True, False, False, True])).Y.tolist() == [[0, 1], [0, 0]]
    assert len(make().rows([])) == 0


def test_rows_works_without_labels_and_with_sparse_labels():
    assert make(Y=None, label_names=()).rows([1]).Y is None
    assert make(Y=csr_array(make().Y)).rows([1]).Y.toarray().tolist() == [[1, 0]]


def test_split_gives_the_rows_of_the_official_part():
    assert make().split("train").X.tolist() == [[0, 1], [4, 5]]


def test_an_absent_split_is_named_with_those_that_are_there():
    with pytest.raises(DataError, match=r"sites has no split 'val' \(available: train, test\)"):
        make().split("val")


def test_missing_labels_are_allowed():
    assert np.isnan(make(Y=np.array([[0, 1], [1, np.nan], [1, 1], [0, 0.0]])).Y).sum() == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Y": np.zeros((3, 2))}, "X has 4 rows but Y has 3"),
        ({"feature_names": ("a",)}, "2 feature columns but 1 feature names"),
        ({"feature_names": ("a", "a")}, "feature names occur more than once: a"),
        ({"label_names": ("p", "q", "r")}, "2 label columns but 3 label names"),
        ({"Y": None}, "0 label columns but 2 label names"),
        ({"Y": np.array([[0, 1], [1, 7], [1, 1], [0, 0]])}, "label q has the value 7 in row 2"),
        (
            {"Y": csr_array([[0, 1], [1, 0], [1, 1], [0, 5]])},
            "label q has the value 5 in row 4",
        ),
        ({"Y": np.full((4, 2), "x")}, "Y must be numeric"),
        ({"X": np.zeros(4)}, "X must have 2 dimensions"),
        ({"Y": np.zeros(4)}, "Y must have 2 dimensions"),
        (
            {"splits": {"train": np.array([0, 4])}},
            "asks for row number 4, but there are 4 rows",
        ),
        ({"splits": {"train": np.array([0.5])}}, "split 'train' must be a list of row numbers"),
        (
            {"splits": {"train": np.array([0, 1]), "test": np.array([1])}},
            "row 2 stands more than once in the splits train, test",
        ),
    ],
)
def test_parts_that_disagree_are_refused(changes, message):
    with pytest.raises(DataError, match=message.replace("(", r"\(")):
        make(**changes)


def test_rows_outside_the_table_are_refused():
    with pytest.raises(DataError, match="row number 9"):
        make().rows([9])
    with pytest.raises(DataError, match="one boolean per row"):
        make().rows([True])
