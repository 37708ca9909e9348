"""Parquet files read some rows at a time: all rows once, and what is wrong with which file."""

import os
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mpvae import DataError
from mpvae.data import parts as parts_module
from mpvae.data import read_table
from mpvae.data.parts import column_names, is_parts, open_parts

N = 500


def frame(n=N, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "depth": rng.normal(size=n),
            "number": np.arange(n),
            "ground": rng.choice(["mud", "sand"], n),
            "sp_a": rng.integers(0, 2, n),
            "sp_b": rng.random(n) < 0.3,
        }
    )


@pytest.fixture
def folder(tmp_path):
    """Two files of 200 and 300 rows, the second a folder deeper."""
    whole = frame()
    (tmp_path / "deep").mkdir()
    whole[:200].to_parquet(tmp_path / "a.parquet", row_group_size=70)
    whole[200:].to_parquet(tmp_path / "deep" / "b.parquet", row_group_size=130)
    return tmp_path


@pytest.mark.parametrize("values", [1, 100, 10**6])
@pytest.mark.parametrize("at_once", [1, 3, 10])
@pytest.mark.parametrize("order", [None, [5, 0, 3, 1, 2, 4]])
def test_every_row_comes_once_with_its_number(monkeypatch, folder, values, at_once, order):
    monkeypatch.setattr(parts_module, "CHUNK_VALUES", values)
    parts = open_parts(folder, labels="sp_*")
    assert (len(parts), parts.n_groups, parts.n_values) == (N, 6, 5 * N)
    assert parts.feature_names == ("depth", "number", "ground")
    assert parts.label_names == ("sp_a", "sp_b")
    chunks = list(parts.chunks(order, at_once))
    assert max(len(c.Y) for c in chunks) <= max(1, values // 5)
    for chunk in chunks:
        np.testing.assert_array_equal(chunk.X["number"], chunk.first + np.arange(len(chunk.X)))
        assert chunk.Y.dtype == np.float32
    if order is None and at_once == 1:
        assert [c.first for c in chunks] == sorted(c.first for c in chunks)
    chunks.sort(key=lambda chunk: chunk.first)
    found = pd.concat([c.X for c in chunks], ignore_index=True)
    pd.testing.assert_frame_equal(found, frame().iloc[:, :3])
    np.testing.assert_array_equal(np.vstack([c.Y for c in chunks]), frame().iloc[:, 3:])


def test_row_groups_take_turns(monkeypatch, folder):
    monkeypatch.setattr(parts_module, "CHUNK_VALUES", 5 * 10)
    first = [c.first for c in open_parts(folder, labels="sp_*").chunks(at_once=3)]
    assert first[:4] == [0, 70, 140, 10]
    assert sorted(first) == [*range(0, 200, 10), *range(200, 500, 10)]


def test_one_file_a_folder_or_a_pattern(folder):
    assert len(open_parts(folder / "a.parquet")) == 200
    assert len(open_parts(f"{folder}/**/*.parquet")) == N
    assert len(open_parts(f"{folder}/de*/*.parquet")) == 300
    assert all(map(is_parts, (folder, folder / "a.parquet", folder / "*.parquet")))
    assert not is_parts(folder / "a.csv")
    with pytest.raises(DataError, match="no Parquet file is there"):
        open_parts(folder / "c.parquet")
    with pytest.raises(DataError, match="no Parquet file is there"):
        open_parts(f"{folder}/c*.parquet")


def test_small_ones_are_read_whole(monkeypatch, folder):
    table = read_table(folder, labels=2, exclude=["number"])
    assert table.feature_names == ("depth", "ground")
    pd.testing.assert_frame_equal(table.X, frame()[["depth", "ground"]])
    np.testing.assert_array_equal(table.Y, frame()[["sp_a", "sp_b"]])
    assert read_table(f"{folder}/*.parquet").Y is None
    monkeypatch.setattr(parts_module, "IN_MEMORY_VALUES", 100)
    with pytest.raises(DataError, match="2,500 cells, more than 100; let fit_stream"):
        read_table(folder)


def test_columns_may_stand_in_another_order(folder):
    frame(50, seed=1).iloc[:, ::-1].to_parquet(folder / "c.parquet")
    found = read_table(folder, labels="sp_*")
    assert found.feature_names == ("depth", "number", "ground")
    assert len(found) == N + 50


def test_empty_label_cells_are_nan(tmp_path):
    some = frame(6).assign(sp_a=[1, None, 0, None, 1, 0])
    some.to_parquet(tmp_path / "a.parquet")
    (chunk,) = open_parts(tmp_path, labels="sp_a").chunks()
    np.testing.assert_array_equal(chunk.Y[:, 0], [1, np.nan, 0, np.nan, 1, 0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.drop(columns="depth"), r"lacks column depth, which .*a.parquet has"),
        (lambda f: f.assign(depth="deep"), r"column depth holds text, in .*a.parquet numbers"),
        (lambda f: f.assign(ground=1), r"column ground holds numbers, in .*a.parquet text"),
        (lambda f: f.assign(depth=[[1]] * len(f)), "column depth holds list"),
        (lambda f: f.assign(depth=pd.Timestamp("2020-01-01")), "column depth holds timestamp"),
    ],
)
def test_a_file_that_does_not_fit_is_named_before_any_row_is_read(folder, change, says):
    change(frame(20)).to_parquet(folder / "z.parquet")
    with pytest.raises(DataError, match=rf"z\.parquet.*{says}"):
        open_parts(folder, labels="sp_*")


def test_a_truncated_file_is_named(folder):
    file = folder / "deep" / "b.parquet"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"deep/b\.parquet cannot be read as Parquet"):
        open_parts(folder)


def test_damage_inside_a_file_is_found_when_it_is_opened(folder):
    file = folder / "deep" / "b.parquet"
    content = bytearray(file.read_bytes())
    content[100:2000] = bytes(1900)
    file.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"deep/b\.parquet cannot be read as Parquet"):
        open_parts(folder)


def test_damage_of_values_is_found_when_they_are_read(folder):
    file = folder / "deep" / "b.parquet"
    whole = pd.read_parquet(file)
    whole.to_parquet(file, compression="zstd")
    content = bytearray(file.read_bytes())
    at = content.index(b"\x28\xb5\x2f\xfd")  # how zstd begins
    content[at : at + 8] = bytes(8)
    file.write_bytes(bytes(content))
    parts = open_parts(folder)
    with pytest.raises(DataError, match=r"deep/b\.parquet cannot be read as Parquet"):
        list(parts.chunks())


def test_a_label_that_is_none_is_named(tmp_path):
    frame(90).assign(sp_a=np.arange(90) // 80 * 3).to_parquet(
        tmp_path / "a.parquet", row_group_size=30
    )
    with pytest.raises(
        DataError, match=r"a\.parquet row 21 of row group 3, column sp_a: .* 3 "
    ):
        list(open_parts(tmp_path, labels="sp_*").chunks())


def test_no_rows_are_not_enough(tmp_path):
    frame(0).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="has no rows"):
        open_parts(tmp_path)


def test_decimals_are_numbers(tmp_path):
    some = frame(6).assign(depth=[Decimal("1.50"), None, *[Decimal("-2.25")] * 4])
    some.to_parquet(tmp_path / "a.parquet")
    (chunk,) = open_parts(tmp_path, labels="sp_*").chunks()
    one = read_table(tmp_path / "a.parquet", labels="sp_*").X
    for found in (chunk.X["depth"], one["depth"]):
        np.testing.assert_array_equal(found.astype(float), [1.5, np.nan, *[-2.25] * 4])


@pytest.mark.parametrize("column", ["depth", "ground"])
@pytest.mark.parametrize("first", [True, False])
def test_a_column_of_nothing_is_what_the_other_files_have(tmp_path, column, first):
    empty = frame(5).assign(**{column: None})
    names = ("a", "b") if first else ("b", "a")
    for name, some in zip(names, (empty, frame(5, seed=1)), strict=True):
        some.to_parquet(tmp_path / f"{name}.parquet")
    found = read_table(tmp_path, labels="sp_*").X[column]
    assert found.isna().sum() == 5
    assert pd.api.types.is_numeric_dtype(found) == (column == "depth")


def test_hidden_files_are_left_out(folder):
    for name in (".a.parquet", "_temporary/0/a.parquet", "deep/.x/b.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((folder / "a.parquet").read_bytes())
    assert len(open_parts(folder)) == N
    assert len(open_parts(f"{folder}/**/*.parquet")) == N


@pytest.mark.parametrize("pattern", ["", "/*.parquet"])
def test_a_link_to_nothing_is_not_left_out(folder, pattern):
    (folder / "z.parquet").symlink_to(folder / "gone" / "z.parquet")
    with pytest.raises(DataError, match=r"z\.parquet leads to no file; is a disk missing"):
        open_parts(f"{folder}{pattern}")


def test_a_pipe_among_the_files_is_refused(folder):
    os.mkfifo(folder / "z.parquet")
    with pytest.raises(DataError, match=r"z\.parquet"):
        open_parts(folder)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_of_another_encoding_is_refused_by_column(folder, kind):
    raw = pa.binary() if kind == pa.string() else pa.large_binary()
    text = pa.array([b"\xe9t\xe9", b"abc"] * 10, raw).view(kind)
    for name, column in (("ground", text), ("coded", text.dictionary_encode())):
        file = folder / f"{name}.parquet"
        pq.write_table(pa.table({"x": np.arange(20.0), name: column, "y": [0, 1] * 10}), file)
        with pytest.raises(DataError, match=rf"{name}\.parquet: column {name} is not UTF-8"):
            list(open_parts(file, labels="y").chunks())
        with pytest.raises(DataError, match=rf"column {name} is not UTF-8 text"):
            read_table(file, labels=name)


def test_names_of_folders_are_not_read_and_that_is_said(tmp_path):
    for year in (2000, 2001):
        (tmp_path / f"year={year}").mkdir()
        frame(5).to_parquet(tmp_path / f"year={year}" / "a.parquet")
    for path in (tmp_path, f"{tmp_path}/*/*.parquet"):
        with pytest.warns(UserWarning, match="named year=.*write it into a column"):
            assert len(open_parts(path)) == 10


def test_a_name_with_brackets_is_a_file(tmp_path):
    frame(5).to_parquet(tmp_path / "a[1].parquet")
    assert is_parts(tmp_path / "a[1].parquet")
    assert len(open_parts(tmp_path / "a[1].parquet")) == 5


def test_kept_columns_may_be_of_any_type(tmp_path):
    day = pd.Timestamp("2020-01-01")
    frame(5).assign(day=day).to_parquet(tmp_path / "a.parquet")
    parts = open_parts(tmp_path, columns=["depth"], keep=["day", "number"])
    (chunk,) = parts.chunks()
    assert list(chunk.X) == ["depth", "day", "number"]
    assert (chunk.X["day"] == day).all()
    assert column_names(tmp_path)[-1] == "day"
    with pytest.raises(DataError, match="lacks column nothing; add it"):
        open_parts(tmp_path, columns=["depth"], keep=["nothing"])
