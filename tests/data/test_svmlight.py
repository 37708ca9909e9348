import gzip

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.datasets import dump_svmlight_file

from mpvae.data import LabelledTable, read_table
from mpvae.errors import DataError

SVM = "1,3 2:0.5 4:1 # first\n\n# only a comment\n2 1:-1e-2\n 4:2\n"
EXTREME = "4 5 3\n0,2 1:0.5 3:1\n 0:2\n1\n\n"


def test_libsvm_rows_are_named_from_one_when_zero_does_not_occur(write):
    table = read_table(write("toy.svm", SVM))
    assert isinstance(table.X, csr_array)
    assert table.X.dtype == np.float32
    np.testing.assert_allclose(
        table.X.toarray(), [[0, 0.5, 0, 1], [-0.01, 0, 0, 0], [0, 0, 0, 2]]
    )
    assert table.Y.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert table.Y.dtype == np.int32
    assert table.feature_names == ("1", "2", "3", "4")
    assert table.label_names == ("1", "2", "3")


def test_libsvm_files_of_scikit_learn_round_trip(tmp_path):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20, 4)).round(3), rng.integers(0, 2, size=(20, 3))
    X[0], Y[0] = 1, 1
    path = tmp_path / "toy.libsvm"
    dump_svmlight_file(X, Y, str(path), multilabel=True, zero_based=True)
    table = read_table(path)
    np.testing.assert_allclose(table.X.toarray(), X, rtol=1e-6)
    np.testing.assert_array_equal(table.Y, Y)
    assert table.label_names == ("0", "1", "2")


def test_features_that_do_not_occur_in_a_prediction_file_are_zero(write):
    table = read_table(write("new.svm", " 2:1\n"), columns=["0", "2", "7"])
    assert table.X.toarray().tolist() == [[0, 1, 0]]
    assert table.Y is None
    with pytest.raises(DataError, match="lacks 1 of 1 feature columns: ph"):
        read_table(write("new.svm", " 2:1\n"), columns=["ph"])


def test_extreme_classification_rows_are_sparse_on_both_sides(write):
    for path in (
        write("toy.txt", EXTREME),
        write("toy.txt.gz", gzip.compress(EXTREME.encode())),
    ):
        table = read_table(path)
        assert table.X.toarray().tolist() == [
            [0, 0.5, 0, 1, 0],
            [2, 0, 0, 0, 0],
            [0] * 5,
            [0] * 5,
        ]
        assert isinstance(table.Y, csr_array)
        assert table.Y.dtype == np.int32
        assert table.Y.toarray().tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
        assert table.label_names == ("0", "1", "2")
    assert read_table(path, labels=["2", "0"]).Y.toarray()[0].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1 2:x\n", "line 1: feature value 'x' is not a finite number"),
        ("1 2:1\n1 2:inf\n", "line 2: feature value 'inf'"),
        ("1 2:1_0\n", "line 1: feature value '1_0'"),
        ("1 2:1e99\n", "too large for single precision"),
        ("-1 2:1\n", "line 1: '-1' is not a label number from 0"),
        ("1.5 2:1\n", "line 1: '1.5' is not a label number"),
        ("1, 2:1\n", "line 1: '' is not a label number"),
        ("999999999 2:1\n", "line 1: '999999999' is not a label number from 0 to 2999999"),
        ("1 99999999999999:1\n", "is not a feature number"),
        ("1 qid:3 2:1\n", "line 1: 'qid' is not a feature number"),
        ("1 2\n", "line 1: '2' is not of the form number:value"),
        ("1 2:1 2:3\n", "line 1 names feature 2 twice"),
        ("1,1 2:1\n", "line 1 names label 1 twice"),
        ("# nothing\n", "toy.svm has no rows"),
        ("1\n2\n", "no feature columns"),
        (b"\x00\x01", "NUL"),
    ],
)
def test_malformed_libsvm_is_refused_with_its_line(write, content, message):
    with pytest.raises(DataError, match=message) as raised:
        read_table(write("toy.svm", content))
    assert str(raised.value).startswith("toy.svm")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "line 1: expected 'rows features labels', got 'a,b'; name a table"),
        ("2 5\n", "line 1: expected 'rows features labels'"),
        ("2 5 0\n", "line 1: 2 rows, 5 features and 0 labels cannot be"),
        ("1 999999999 3\n0 1:1\n", "features and labels 1 to 3,000,000"),
        ("99999999999 5 3\n0 1:1\n", "declares 99999999999 rows but 1 follow"),
        ("1 5 3\n0 1:1\n1 1:1\n", "line 3: the header declares 1 rows but more follow"),
        ("1 5 3\n3 1:1\n", "line 2: '3' is not a label number from 0 to 2"),
        ("1 5 3\n0 5:1\n", "line 2: '5' is not a feature number from 0 to 4"),
    ],
)
def test_extreme_files_must_keep_to_their_header(write, content, message):
    with pytest.raises(DataError, match=message) as raised:
        read_table(write("toy.txt", content))
    assert str(raised.value).startswith("toy.txt")


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    body=st.one_of(
        st.binary(max_size=60),
        st.text(alphabet="012 :,.#\n\te-", max_size=60).map(str.encode),
        st.text(alphabet="01 :,\n", max_size=30).map(lambda text: ("2 2 2\n" + text).encode()),
    ),
    suffix=st.sampled_from([".svm", ".txt"]),
)
def test_any_text_gives_a_table_or_a_data_error(write, attempt, body, suffix):
    outcome = attempt(write("junk" + suffix, body))
    assert isinstance(outcome, LabelledTable) or "\n" not in outcome
