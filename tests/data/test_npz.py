import io
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from mpvae.data import LabelledTable, read_authors, read_table
from mpvae.errors import DataError

X = np.array([[1, 0, 2], [0, 0, 0], [0, 3, 0.5]], dtype=np.float32)
Y = np.array([[0, 1], [1, 0], [1, 1]], dtype=np.uint8)


def csr_parts(matrix=X):
    sparse = csr_array(matrix)
    return {
        "data": sparse.data,
        "indices": sparse.indices,
        "indptr": sparse.indptr,
        "shape": np.array(sparse.shape),
    }


@pytest.fixture
def savez(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "set.npz", **arrays)
        return tmp_path / "set.npz"

    return save


def test_a_dense_file_round_trips(savez):
    table = read_table(
        savez(
            X=X.astype(np.float64),
            Y=Y,
            feature_names=np.array(["a", "b", "c"]),
            label_names=np.array(["p", "q"]),
            train_idx=np.array([0, 2]),
            test_idx=np.array([1]),
            coords=np.zeros((3, 2)),
        )
    )
    np.testing.assert_array_equal(table.X, X)
    np.testing.assert_array_equal(table.Y, Y)
    assert (table.X.dtype, table.Y.dtype) == (np.float32, np.int32)
    assert table.feature_names == ("a", "b", "c")
    assert table.label_names == ("p", "q")
    assert list(table.splits) == ["train", "test"]
    assert table.split("test").Y.tolist() == [[1, 0]]


def test_a_sparse_file_round_trips_and_gets_names(savez):
    table = read_table(savez(Y=Y, **csr_parts()))
    assert isinstance(table.X, csr_array)
    assert table.X.dtype == np.float32
    np.testing.assert_array_equal(table.X.toarray(), X)
    assert table.feature_names == ("x1", "x2", "x3")
    assert table.label_names == ("y1", "y2")


def test_columns_and_labels_of_a_file_can_be_chosen_by_name(savez):
    path = savez(X=X, Y=Y)
    table = read_table(path, labels="y2", columns=["x3", "x1"])
    np.testing.assert_array_equal(table.X, X[:, [2, 0]])
    np.testing.assert_array_equal(table.Y, Y[:, [1]])
    assert read_table(path, labels=2, exclude=["x1"]).feature_names == ("x2", "x3")
    with pytest.raises(DataError, match="marks its own 2 labels, not 1"):
        read_table(path, labels=1)
    with pytest.raises(DataError, match="holds no labels"):
        read_table(savez(X=X), labels="y1")


def test_missing_labels_stay_missing(savez):
    table = read_table(savez(X=X, Y=np.array([[0, np.nan], [1, 0], [1, 1]], np.float32)))
    assert table.Y.dtype == np.float64
    assert np.isnan(table.Y[0, 1])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"Y": Y}, "labels only, no features"),
        ({"Z": Y}, "no arrays named X and Y"),
        ({"X": X, "Y": Y[:2]}, "X has 3 rows but Y has 2"),
        ({"X": X, "Y": Y * 3}, "label y2 has the value 3 in row 1"),
        ({"X": X, "Y": Y[:, 0]}, "Y must be a table of 0 and 1"),
        ({"X": X[0]}, "X must be a table of numbers"),
        ({"X": X.astype(str)}, "X must be a table of numbers"),
        ({"X": X.astype(np.float64) * 1e300}, "row 1, column x1: 1e.300 is too large"),
        (
            {"X": X, "feature_names": np.array([1, 2, 3])},
            "feature_names must be a list of text",
        ),
        ({"X": X, "train_idx": np.array([7])}, "row number 7"),
        ({"X": np.zeros((0, 10**12))}, "at least one row"),
        ({"X": np.array([[None]], dtype=object)}, "array X, .*pickle"),
        ({"X": np.zeros((2, 2), dtype="datetime64[s]")}, "array X, .*datetime64"),
        ({**csr_parts(), "indptr": np.array([0, 2, 1, 4])}, "row pointers do not fit"),
        ({**csr_parts(), "indptr": np.array([0, 2, 4])}, "row pointers do not fit"),
        ({**csr_parts(), "indices": np.array([0, 2, 1, 3])}, "outside 0 to 2"),
        ({**csr_parts(), "indices": np.array([0, 0, 1, 2])}, "occurs twice"),
        ({**csr_parts(), "indices": np.array([0.0, 2, 1, 2])}, "must be integers"),
        ({**csr_parts(), "indices": np.array([0, 2, 1])}, "column numbers"),
        ({**csr_parts(), "shape": np.array([3, 10**15])}, "impossible or beyond"),
        ({**csr_parts(), "shape": np.array([10**15, 3])}, "row pointers do not fit"),
        ({**csr_parts(), "shape": np.array([3.0, 3])}, "shape must be two integers"),
        ({"data": X[0], "shape": np.array([3, 3])}, "lacks indices, indptr"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(savez, arrays, message):
    with pytest.raises(DataError, match=message) as raised:
        read_table(savez(**arrays))
    assert "set" in str(raised.value)
    assert "\n" not in str(raised.value)


def npy_claiming(shape, dtype="<f4", content=b"1234"):
    stream = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + content


@pytest.mark.parametrize("shape", [(10**9, 10**9), (2, 2), (-1, -1), (0, 1)])
def test_a_header_that_claims_more_or_less_than_there_is_is_refused(tmp_path, write, shape):
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        archive.writestr("X.npy", npy_claiming(shape))
    with pytest.raises(DataError, match=r"declares shape .* damaged, write it anew"):
        read_table(tmp_path / "set.npz")
    with pytest.raises(DataError, match="declares shape"):
        read_table(write("set_data.npy", npy_claiming(shape)), labels=1)


def test_arrays_written_by_python_2_are_read_without_a_warning(write):
    old = npy_claiming((1, 2), content=np.array([1, 2], np.float32).tobytes())
    old = old.replace(b"(1, 2), } ", b"(1L, 2), }")
    assert read_table(write("set_data.npy", old), labels=1).X.tolist() == [[2]]


def test_a_file_that_unpacks_beyond_the_limit_is_refused_unread(savez, monkeypatch):
    monkeypatch.setattr("mpvae.data.npz.MAX_NPZ_BYTES", 1000)
    with pytest.raises(DataError, match=r"set.npz unpacks to 40,128 bytes, more than 1,000"):
        read_table(savez(X=np.zeros((100, 100), np.float32)))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(position=st.integers(0, 900), byte=st.integers(0, 255), body=st.binary(max_size=40))
def test_damaged_files_give_a_table_or_a_data_error(
    savez, write, attempt, position, byte, body
):
    whole = bytearray(savez(X=X, Y=Y).read_bytes())
    whole[position % len(whole)] = byte
    npy = bytearray(npy_claiming((1, 2), "<f4", b"12345678"))
    npy[position % len(npy)] = byte
    for name, content in (
        ("set.npz", bytes(whole)),
        ("set.npz", body),
        ("a_data.npy", bytes(npy)),
        ("a_data.npy", b"\x93NUMPY\x01\x00" + body),
    ):
        outcome = attempt(write(name, content), labels=1 if name == "a_data.npy" else None)
        assert isinstance(outcome, LabelledTable) or "\n" not in outcome


@pytest.fixture
def authors(tmp_path):
    meta = np.full((3, 1), 99.0)
    np.save(tmp_path / "yeast_data.npy", np.hstack([meta, Y, X]))
    np.save(tmp_path / "yeast_train_idx.npy", np.array([2, 0]))
    np.save(tmp_path / "yeast_test_idx.npy", np.array([1]))
    return tmp_path


def test_the_authors_matrix_is_metadata_then_labels_then_features(authors):
    for path in (authors, authors / "yeast_data.npy"):
        table = read_table(path, labels="2", meta_offset=1)
        np.testing.assert_array_equal(table.X, X)
        np.testing.assert_array_equal(table.Y, Y)
        assert (table.X.dtype, table.Y.dtype) == (np.float32, np.int32)
        assert table.splits["train"].tolist() == [2, 0]
        assert list(table.splits) == ["train", "test"]
        assert table.name == "yeast"


def test_read_authors_takes_the_index_files_by_name(authors):
    table = read_authors(
        authors / "yeast_data.npy",
        n_labels=2,
        n_features=2,
        meta_offset=1,
        val_idx=authors / "yeast_test_idx.npy",
    )
    assert table.feature_names == ("x1", "x2")
    assert table.splits["val"].tolist() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": 6}, "has 6 columns, which cannot hold 0 metadata, 6 label"),
        ({"labels": 1}, "label y1 has the value 99"),
        ({"labels": "a"}, "has no column names"),
        ({"labels": -2}, "give the number of label columns"),
        ({"labels": 2, "meta_offset": -1}, "correct the counts"),
    ],
)
def test_counts_that_do_not_fit_the_matrix_are_refused(authors, options, message):
    with pytest.raises(DataError, match=message):
        read_table(authors / "yeast_data.npy", **options)


@pytest.mark.parametrize("labels", [1, "y"])
def test_a_folder_must_hold_one_matrix(tmp_path, labels):
    with pytest.raises(DataError, match=r"holds no table, neither .parquet .* nor \*_data.npy"):
        read_table(tmp_path, labels=labels)
    for name in "ab":
        np.save(tmp_path / f"{name}_data.npy", np.eye(3))
    with pytest.raises(DataError, match=r"holds 2 files named \*_data.npy"):
        read_table(tmp_path, labels=1)


def test_object_arrays_are_refused_unloaded(tmp_path):
    np.save(tmp_path / "a_data.npy", np.array([[print]], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="pickle"):
        read_table(tmp_path / "a_data.npy", labels=1)
