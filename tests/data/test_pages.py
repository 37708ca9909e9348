"""Parquet is looked through before Arrow opens it: whole files pass, odd ones do not."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpvae.data import read_table
from mpvae.data.files import one_line
from mpvae.data.thrift import read_struct
from mpvae.errors import DataError

WAYS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]),
        "use_dictionary": st.booleans(),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "row_group_size": st.sampled_from([7, 40, 1000]),
        "data_page_size": st.sampled_from([16, 1000, 2**20]),
        "write_statistics": st.booleans(),
        "write_page_index": st.booleans(),
        "write_page_checksum": st.booleans(),
        "store_schema": st.booleans(),
    }
)


def table(n_rows, seed):
    rng = np.random.default_rng(seed)
    text = rng.choice(["", "mud", "a long name " * 60], n_rows)
    return pd.DataFrame(
        {
            "depth": np.where(rng.random(n_rows) < 0.1, np.nan, rng.normal(size=n_rows)),
            "count": rng.integers(-5, 5, n_rows).astype(np.int8),
            "ground": np.where(rng.random(n_rows) < 0.1, None, text),
            "all_zero": np.zeros(n_rows, np.float32),
            "y_1": rng.integers(0, 2, n_rows).astype(bool),
            "y_2": rng.integers(0, 2, n_rows),
        }
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), WAYS)
def test_what_arrow_writes_is_read_as_arrow_reads_it(tmp_path_factory, n_rows, way):
    file = tmp_path_factory.mktemp("pages") / "sites.parquet"
    frame = table(n_rows, seed=n_rows)
    pq.write_table(pa.Table.from_pandas(frame), file, **way)
    found = read_table(file, labels="y_*")
    pd.testing.assert_frame_equal(found.X, pd.read_parquet(file).iloc[:, :4])
    np.testing.assert_array_equal(found.Y, frame[["y_1", "y_2"]])


def test_what_polars_writes_is_read(tmp_path):
    polars = pytest.importorskip("polars")
    frame = table(5000, seed=0)
    polars.from_pandas(frame).write_parquet(tmp_path / "sites.parquet", row_group_size=1200)
    found = read_table(tmp_path / "sites.parquet", labels="y_*")
    np.testing.assert_array_equal(found.X["depth"], frame["depth"])
    np.testing.assert_array_equal(found.Y, frame[["y_1", "y_2"]])


def test_long_names_that_repeat_are_read_where_there_is_room(tmp_path):
    """The text takes 140 MB when written out: a large file may hold that, a small one not."""
    names = pa.DictionaryArray.from_arrays(np.zeros(140, np.int32), ["a" * 10**6])
    few = {"t": names, "y_1": pa.array([0, 1] * 70)}
    pq.write_table(pa.table(few), tmp_path / "few.parquet", store_schema=False)
    with pytest.raises(DataError, match=r"few\.parquet: column 't' holds 140,000,000 bytes"):
        read_table(tmp_path / "few.parquet", labels="y_*")
    rng = np.random.default_rng(0)
    noise = pa.array([rng.bytes(8_000).hex() for _ in range(140)])
    many = pa.table(few | {"noise": noise})
    pq.write_table(many, tmp_path / "many.parquet", store_schema=False)
    found = read_table(tmp_path / "many.parquet", labels="y_*")
    assert found.X["t"].str.len().eq(10**6).all()


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_delta_encoding_is_refused_by_name(tmp_path, encoding):
    pq.write_table(
        pa.table({"ground": ["sand", "mud"]}),
        tmp_path / "sites.parquet",
        use_dictionary=False,
        column_encoding={"ground": encoding},
    )
    with pytest.raises(DataError, match="column 'ground' has delta encoding"):
        read_table(tmp_path / "sites.parquet")


def test_a_file_that_changes_is_looked_at_again(tmp_path):
    file = tmp_path / "sites.parquet"
    table(20, seed=0).to_parquet(file)
    assert len(read_table(file)) == 20
    whole = file.read_bytes()
    file.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(DataError, match="does not end as a Parquet file does"):
        read_table(file)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_struct_or_none(data):
    try:
        _, end = read_struct(data)
    except (IndexError, ValueError):
        return
    assert 0 < end <= len(data)


@given(st.text(max_size=300), st.integers(4, 100))
def test_a_line_is_one_short_line_whatever_the_text(text, limit):
    line = one_line(text, limit)
    assert line.isprintable()
    assert len(line) <= limit


def test_a_struct_within_a_struct_within_a_struct_is_refused():
    with pytest.raises(ValueError, match="too deep"):
        read_struct(b"\x1c" * 1000)
    with pytest.raises(ValueError, match="twice"):
        read_struct(b"\x15\x02\x05\x02\x02\x00")
