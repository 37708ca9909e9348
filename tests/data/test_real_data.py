"""The real data sets: what is read agrees with the manifest."""

import sys
from pathlib import Path

import numpy as np
import pytest

from mpvae.data import data_folder, load_yeast, read_table
from mpvae.errors import DataError


def manifest(folder):
    """Name, n, d, L, cardinality and split of every data set in the manifest's table."""
    for line in (folder / "MANIFEST.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) > 8 and cells[1].isdecimal():
            yield cells[0], *map(int, cells[1:4]), float(cells[4].split()[0]), cells[7]


@pytest.mark.realdata
def test_every_data_set_has_the_sizes_of_the_manifest(real_data):
    sets = list(manifest(real_data))
    assert len(sets) == 26
    for name, n, d, n_labels, cardinality, split in sets:
        if d == 0:
            with pytest.raises(DataError, match=f"{name}.npz has labels only"):
                read_table(real_data / f"{name}.npz")
            continue
        table = read_table(real_data / f"{name}.npz")
        assert (table.X.shape, table.Y.shape) == ((n, d), (n, n_labels)), name
        assert (table.X.dtype, table.Y.dtype) == (np.float32, np.int32), name
        # sider has 21868 positives, 15.3245 per row; the manifest says 15.325
        tolerance = 6e-4 if name == "sider" else 5e-4
        assert table.Y.sum(axis=1).mean() == pytest.approx(cardinality, abs=tolerance), name
        sizes = [len(table.splits[p]) for p in ("train", "val", "test") if p in table.splits]
        assert sizes == [int(part) for part in split.split("/") if part.isdecimal()], name


@pytest.mark.realdata
def test_yeast_of_river_is_the_official_data_set(real_data):
    pytest.importorskip("river")
    yeast, official = load_yeast(), read_table(real_data / "yeast.npz")
    with np.load(real_data / "yeast.npz", allow_pickle=False) as arrays:
        row = arrays["mulan_full_row"]
    np.testing.assert_array_equal(yeast.Y[row], official.Y)
    np.testing.assert_allclose(yeast.X[row], official.X, rtol=1e-6)
    assert yeast.label_names == official.label_names
    for part in ("train", "test"):
        assert set(row[official.splits[part]]) == set(yeast.splits[part])


def test_yeast_has_its_official_sizes():
    pytest.importorskip("river")
    yeast = load_yeast()
    assert yeast.X.shape == (2417, 103)
    assert yeast.split("train").Y.shape == (1500, 14)
    assert yeast.split("test").Y.shape == (917, 14)
    assert yeast.Y.sum(axis=1).mean() == pytest.approx(4.237, abs=5e-4)


def test_without_river_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "river.datasets", None)
    with pytest.raises(DataError, match=r'pip install "mpvae\[demo\]"'):
        load_yeast()


def test_the_data_folder_is_named_by_the_environment(monkeypatch):
    with monkeypatch.context() as context:
        context.setenv("MPVAE_DATA", "some/where")
        assert data_folder() == Path("some/where")
        context.delenv("MPVAE_DATA")
        assert data_folder() is None
