import gzip

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpvae.data import LabelledTable, read_table
from mpvae.errors import DataError

CSV = "id,ph,soil,a,b\ns1,5.5,clay,0,1\ns2,6,sand,1,0\ns3,,clay,1,1\n"


def test_a_csv_file_keeps_numbers_as_numbers_and_text_as_text(write):
    table = read_table(write("sites.csv", CSV), labels="a,b", exclude=["id"])
    assert table.name == "sites"
    assert table.feature_names == ("ph", "soil") == tuple(table.X.columns)
    assert table.X["ph"].tolist()[:2] == [5.5, 6]
    assert np.isnan(table.X["ph"][2])
    assert table.X["soil"].tolist() == ["clay", "sand", "clay"]
    assert table.Y.dtype == np.int32
    assert table.Y.tolist() == [[0, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sites.tsv", CSV.replace(",", "\t").encode()),
        ("sites.csv", CSV.replace(",", ";").encode()),
        ("sites.csv", b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode()),
        ("sites.csv.gz", gzip.compress(CSV.encode(), mtime=0)),
        ("SITES.CSV", ("\n" + CSV + "\n\n").encode()),
    ],
)
def test_every_dialect_gives_the_same_table(write, name, content):
    table = read_table(write(name, content), labels=2)
    plain = read_table(write("plain.csv", CSV), labels=2)
    pd.testing.assert_frame_equal(table.X, plain.X)
    np.testing.assert_array_equal(table.Y, plain.Y)
    assert table.name.lower() == "sites"


def test_parquet_gives_the_same_table(tmp_path, write):
    plain = read_table(write("plain.csv", CSV), labels=2)
    frame = pd.read_csv(write("again.csv", CSV)).set_index(pd.Index([5, 6, 9]))
    frame.to_parquet(tmp_path / "sites.parquet")
    table = read_table(tmp_path / "sites.parquet", labels=2)
    assert table.feature_names == plain.feature_names
    pd.testing.assert_frame_equal(table.X, plain.X)
    np.testing.assert_array_equal(table.Y, plain.Y)


def test_without_labels_all_columns_are_features(write):
    table = read_table(write("sites.csv", CSV))
    assert table.Y is None
    assert table.label_names == ()
    assert table.feature_names == ("id", "ph", "soil", "a", "b")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["true", "FALSE", "True"], [1, 0, 1]),
        (["Yes", "no", "YES"], [1, 0, 1]),
        (["1.0", "0.0", "1"], [1, 0, 1]),
        (["yes", "0", "TRUE"], [1, 0, 1]),
        (["1", "", "0"], [1, np.nan, 0]),
        (["1", "NA", "0"], [1, np.nan, 0]),
        (["true", "", "false"], [1, np.nan, 0]),
        (["yes", "", "no"], [1, np.nan, 0]),
    ],
)
def test_label_cells_may_be_written_in_several_ways(write, tmp_path, cells, expected):
    path = write("sites.csv", "x,y\n" + "".join(f"1,{cell}\n" for cell in cells))
    Y = read_table(path, labels="y").Y
    np.testing.assert_array_equal(Y[:, 0], expected)
    assert Y.dtype == (np.float64 if np.isnan(expected).any() else np.int32)
    pd.read_csv(path).to_parquet(tmp_path / "sites.parquet")
    np.testing.assert_array_equal(
        read_table(tmp_path / "sites.parquet", labels="y").Y[:, 0], expected
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "x,y\n1,0\n2,3\n",
            "sites.csv line 3, column y: label value 3 is not 0 or 1; turn counts",
        ),
        ("x,y\n1,0\n\n2,\n1,3\n", "line 5, column y: label value 3 is not 0 or 1; turn counts"),
        ("x,y\n1,0\n2,maybe\n", "line 3, column y: label value 'maybe' .* use 0/1, true/false"),
        ("x,y\n1,yes\n2,4\n", "line 3, column y: label value '4' .* turn counts"),
        ("x,x,y\n1,1,0\n", "columns 1 and 2 are both named 'x'; rename"),
        (",x,y\n1,1,0\n", "column 1 has no name in the header"),
        ("x,y\n1,0\n1\n", "line 3 has 1 cells but the header has 2"),
        ("x,y\n1,0,7\n1,0,7\n", "line 2 has 3 cells but the header has 2"),
        ("", "sites.csv is empty"),
        (" \n\n", "sites.csv is empty"),
        ("x,y\n", "has a header but no rows"),
        (b"x,y\n1,0\n\xff,1\n", "line 3 is not UTF-8 text .*; save the file as UTF-8"),
        (b"x,y\n1,\0\n", "line 2 holds a NUL"),
        ('x,y\n1,"0\n2,1\n', "sites.csv"),
        ("x;y\n3,5;1\n", "line 2, column x: '3,5' has a decimal comma; .* decimal point"),
        ("x;y\n3;1\n1,5;0\n", "line 3, column x: '1,5' has a decimal comma"),
    ],
)
def test_malformed_text_is_refused_in_one_line_with_place_and_remedy(write, content, message):
    with pytest.raises(DataError, match=message) as raised:
        read_table(write("sites.csv", content), labels="y")
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("sites.csv")


def test_a_prediction_file_must_have_the_feature_columns(write):
    path = write("sites.csv", CSV)
    assert read_table(path, columns=["soil", "ph"]).feature_names == ("soil", "ph")
    with pytest.raises(DataError, match=r"sites\.csv lacks 1 of 2 feature columns: slope"):
        read_table(path, columns=["ph", "slope"])


def test_files_that_are_not_there_or_of_no_known_kind_are_named(write, tmp_path):
    for name in ("no.csv", "no.parquet", "no.npz", "no.npy", "no.arff"):
        with pytest.raises(DataError, match=f"{name} does not exist"):
            read_table(tmp_path / name)
    with pytest.raises(DataError, match=r"unknown suffix '.xlsx'; use one of .csv"):
        read_table(write("sites.xlsx", "x"))


def test_damaged_compression_is_refused(write):
    with pytest.raises(DataError, match=r"sites.csv.gz cannot be read"):
        read_table(write("sites.csv.gz", b"no gzip"))
    with pytest.raises(DataError, match=r"sites.csv.gz cannot be read"):
        read_table(write("sites.csv.gz", gzip.compress(CSV.encode())[:-9]))


def test_text_beyond_the_limit_is_refused(write, monkeypatch):
    monkeypatch.setattr("mpvae.data.files.read_bytes.__kwdefaults__", {"limit": 10})
    with pytest.raises(DataError, match=r"more than 10 bytes; write it as .parquet"):
        read_table(write("sites.csv.gz", gzip.compress(CSV.encode())))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"x": [[1], [2]], "y": [0, 1]}), "column x holds list"),
        (pd.DataFrame({"x": [1, 2], "y": [0, 2]}), "row 2, column y: label value 2 .* counts"),
        (pd.DataFrame({"x": [], "y": []}), "no rows"),
    ],
)
def test_unfit_parquet_is_refused(tmp_path, frame, message):
    frame.to_parquet(tmp_path / "sites.parquet")
    with pytest.raises(DataError, match=r"sites.parquet.*" + message):
        read_table(tmp_path / "sites.parquet", labels="y")


def test_junk_parquet_is_refused(write, tmp_path):
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_table(write("sites.parquet", b"PAR1 junk PAR1"))
    pd.DataFrame({"x": range(1000)}).to_parquet(tmp_path / "cut.parquet")
    cut = (tmp_path / "cut.parquet").read_bytes()
    for keep in (len(cut) // 2, len(cut) - 3):
        with pytest.raises(DataError, match="cannot be read as Parquet"):
            read_table(write("cut.parquet", cut[:keep]))


def test_parquet_with_damaged_metadata_is_refused(write, tmp_path):
    pd.DataFrame({"x": [1, 2]}).to_parquet(tmp_path / "sites.parquet")
    whole = (tmp_path / "sites.parquet").read_bytes()
    damaged = whole.replace(b'{"index_columns"', b"{'index_columns'")
    assert damaged != whole
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_table(write("sites.parquet", damaged))


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    body=st.one_of(
        st.binary(max_size=60),
        st.text(alphabet="ab,;\n\r\t\"'01 .-NA\u2028", max_size=60).map(str.encode),
    ),
    suffix=st.sampled_from([".csv", ".tsv", ".csv.gz", ".parquet"]),
)
def test_any_bytes_give_a_table_or_a_data_error(write, attempt, body, suffix):
    path = write("junk" + suffix, body)
    for labels in (None, 1):
        outcome = attempt(path, labels=labels)
        assert isinstance(outcome, LabelledTable) or "\n" not in outcome


def test_integers_of_any_length_are_numbers(write):
    rows = ["a,b,y", "1,-1,0", f"{2**64},9223372036854775808,1", ",7,0"]
    X = read_table(write("huge.csv", "\n".join(rows).encode()), labels=["y"]).features()
    assert X["a"].tolist()[:2] == [1.0, 2.0**64]
    assert np.isnan(X["a"][2])
    assert X["b"].tolist() == [-1.0, 2.0**63, 7.0]
