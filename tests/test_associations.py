"""Tables and groups of labels: worked by hand, and planted ones found."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student_t

from mpvae import associations
from mpvae.associations import group_labels, group_many, pair_table, strongest_pairs
from mpvae.errors import ConfigError


def pair(*correlations):
    """Covariances (M, 2, 2) of two labels with unit variance, one correlation per member."""
    return np.array([[[1.0, r], [r, 1.0]] for r in correlations])


ZERO = np.zeros((1, 2, 2))

# ---------------------------------------------------------------- pairs


def test_one_pair_by_hand():
    V = np.array([[[2.0, 1.0], [1.0, 2.0]]])
    F = np.array([[[2.0, 1.0], [1.0, 6.0]]])
    (row,) = pair_table(["a", "b"], V, F).to_dict("records")
    # c^2 = 4 and 8; the raw correlation is 2 / sqrt(32), half of it by the features
    assert (row["label_a"], row["label_b"]) == ("a", "b")
    exact = {
        "residual_correlation": 0.5,
        "raw_correlation": 2 / math.sqrt(32),
        "by_features": 1 / math.sqrt(32),
        "share_by_features": 0.5,
    }
    assert {name: row[name] for name in exact} == pytest.approx(exact, rel=1e-14)


def test_raw_is_by_features_plus_the_residual_part():
    rng = np.random.default_rng(0)
    A, C = rng.normal(size=(2, 3, 5, 5))
    V, F = A @ A.transpose(0, 2, 1) + np.eye(5), C @ C.transpose(0, 2, 1)
    table = pair_table(list("abcde"), V, F)
    assert len(table) == 10
    both = V.mean(0) + F.mean(0)
    for row in table.itertuples():
        i, j = "abcde".index(row.label_a), "abcde".index(row.label_b)
        scale = math.sqrt(both[i, i] * both[j, j])
        assert i < j
        assert row.raw_correlation == pytest.approx(both[i, j] / scale, rel=1e-12)
        rest = V.mean(0)[i, j] / scale
        assert row.raw_correlation - row.by_features == pytest.approx(
            rest, rel=1e-12, abs=1e-14
        )
        assert row.low < row.residual_correlation < row.high


def test_strongest_residual_correlations_come_first_whatever_their_sign():
    V = np.array([[[1, 0.1, -0.8], [0.1, 1, 0.5], [-0.8, 0.5, 1]]])
    table = pair_table(["x", "y", "z"], V, np.zeros((1, 3, 3)))
    assert table[["label_a", "label_b"]].to_numpy().tolist() == [
        ["x", "z"],
        ["y", "z"],
        ["x", "y"],
    ]
    assert table["residual_correlation"].tolist() == pytest.approx([-0.8, 0.5, 0.1])
    assert table.index.tolist() == [0, 1, 2]


def test_what_is_faint_or_pulls_the_other_way_has_no_share_by_features():
    V = pair(0.5)
    # 0.02 in all is faint; of -0.3 + 0.5 nothing is a share; 0.3 of 0.8 is.
    for of_features, has_none in ((-0.48, True), (-0.3, True), (0.3, False)):
        F = np.array([[[0.0, of_features], [of_features, 0.0]]])
        table = pair_table([0, 1], V, F)
        share = table["share_by_features"][0]
        assert np.isnan(share) == has_none
        if not has_none:
            assert share == pytest.approx(0.3 / 0.8)


# ---------------------------------------------------------------- intervals


def test_the_interval_of_two_members_by_hand():
    table = pair_table(["a", "b"], pair(0.2, 0.4), np.repeat(ZERO, 2, 0), level=0.5)
    # Student's t with one degree of freedom has its upper quartile at 1; with M = 2 the
    # jackknife error is sqrt(1/2 (2 (gap / 2)^2)) = gap / 2
    half = (math.atanh(0.4) - math.atanh(0.2)) / 2
    # SciPy 1.16 has that quartile to 1e-11
    assert table["residual_correlation"][0] == pytest.approx(0.3)
    assert table["low"][0] == pytest.approx(math.tanh(math.atanh(0.3) - half), rel=1e-10)
    assert table["high"][0] == pytest.approx(math.tanh(math.atanh(0.3) + half), rel=1e-10)


def test_members_that_leave_out_one_value_each_give_the_error_of_a_mean():
    """Left-out means of a sample: the jackknife error is its standard error, s / sqrt(M)."""
    values = np.array([0.1, 0.5, -0.2, 0.4, 0.3])  # on Fisher's scale
    M = len(values)
    left_out = np.tanh((values.sum() - values) / (M - 1))
    table = pair_table(["a", "b"], pair(*left_out), np.repeat(ZERO, M, 0), level=0.9)
    width = np.arctanh(table["high"][0]) - np.arctanh(table["low"][0])
    error = values.std(ddof=1) / math.sqrt(M)
    assert width == pytest.approx(2 * student_t.ppf(0.95, M - 1) * error, rel=1e-10)


def test_higher_levels_are_wider_and_equal_members_leave_no_width():
    V, F = pair(0.2, 0.3, 0.5), np.repeat(ZERO, 3, 0)
    narrow, wide = (pair_table(["a", "b"], V, F, level=level) for level in (0.8, 0.99))
    assert -1 < wide["low"][0] < narrow["low"][0] < narrow["high"][0] < wide["high"][0] < 1
    same = pair_table(["a", "b"], pair(0.3, 0.3, 0.3), F)
    assert same["low"][0] == pytest.approx(0.3)
    assert same["high"][0] == pytest.approx(0.3)


def test_one_member_has_no_interval():
    table = pair_table(["a", "b"], pair(0.3), ZERO)
    assert table[["low", "high"]].isna().all(axis=None)
    assert table["residual_correlation"][0] == pytest.approx(0.3)


def test_one_label_has_no_pairs():
    table = pair_table(["a"], np.ones((2, 1, 1)), np.ones((2, 1, 1)))
    assert len(table) == 0
    assert "residual_correlation" in table


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, np.nan])
def test_impossible_levels_are_refused(level):
    with pytest.raises(ConfigError, match=r"level must be in \(0, 1\), got"):
        pair_table(["a", "b"], pair(0.1), ZERO, level=level)


# ---------------------------------------------------------------- groups


def planted(sizes, within=0.7, between=-0.1, seed=0):
    """Correlation of labels in blocks of these sizes, shuffled, and the block of each."""
    block = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(seed)
    rng.shuffle(block)
    noise = rng.normal(scale=0.02, size=(len(block), len(block)))
    correlation = np.where(block[:, None] == block, within, between) + (noise + noise.T) / 2
    np.fill_diagonal(correlation, 1)
    return correlation, block


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sizes", [(9, 5, 3), (4, 2), (12, 11, 10, 3, 2)])
def test_planted_blocks_are_found_largest_first(sizes, seed):
    correlation, block = planted(sizes, seed=seed)
    np.testing.assert_array_equal(group_labels(correlation), block)
    np.testing.assert_array_equal(group_labels(correlation, len(sizes)), block)


def test_equal_sizes_are_ordered_by_first_label():
    correlation, block = planted((4, 4, 4))
    groups = group_labels(correlation)
    first = [np.flatnonzero(groups == g)[0] for g in range(3)]
    assert first == sorted(first)
    assert len(np.unique(np.stack([groups, block]), axis=1).T) == 3  # the same blocks


@pytest.mark.parametrize("n_groups", [1, 2, 4, 8, 9])
@pytest.mark.parametrize(
    "correlation",
    [
        planted((5, 4), seed=3)[0],
        np.eye(9),  # all labels equally far apart
        np.kron(np.eye(3), np.full((3, 3), 0.8)) + 0.2 * np.eye(9),
    ],
    ids=["blocks", "none", "equal blocks"],
)
def test_the_number_of_groups_is_as_asked(correlation, n_groups):
    groups = group_labels(correlation, n_groups)
    assert groups.dtype == np.int64
    counts = np.bincount(groups)
    assert len(counts) == n_groups
    assert (counts > 0).all()
    assert (np.diff(counts) <= 0).all()


@pytest.mark.parametrize("n_groups", [0, -1, 5])
def test_impossible_numbers_of_groups_are_refused(n_groups):
    with pytest.raises(ConfigError, match="n_groups must be an integer from 1 to 4"):
        group_labels(np.eye(4), n_groups)


def test_one_and_two_labels():
    assert group_labels(np.eye(1)).tolist() == [0]
    assert group_labels(np.eye(1), 1).tolist() == [0]
    assert group_labels(np.eye(2)).tolist() == [0, 0]
    assert group_labels(np.eye(2), 1).tolist() == [0, 0]
    assert group_labels(np.eye(2), 2).tolist() == [0, 1]
    with pytest.raises(ConfigError, match="an integer from 1 to 1"):
        group_labels(np.eye(1), 2)


def test_the_correlation_is_left_as_it_was():
    correlation, _ = planted((5, 3))
    before = correlation.copy()
    group_labels(correlation)
    np.testing.assert_array_equal(correlation, before)


# ------------------------------------------------------------------------- very many labels


@pytest.mark.parametrize("cells", [1, 100, 10**6])
@pytest.mark.parametrize("top", [1, 7, 66])
@pytest.mark.parametrize("M", [1, 3])
def test_the_strongest_pairs_are_the_head_of_the_table(monkeypatch, cells, top, M):
    monkeypatch.setattr(associations, "_CELLS", cells)
    rng = np.random.default_rng(3)
    A, G = rng.normal(size=(M, 12, 4)), rng.normal(size=(M, 12, 3))
    names = [f"label {i}" for i in range(12)]
    V, F = np.eye(12) + A @ A.transpose(0, 2, 1), G @ G.transpose(0, 2, 1)
    whole = pair_table(names, V, F)
    found = strongest_pairs(names, list(A), list(G), top)
    # Inner products of four numbers, added in another order.
    pd.testing.assert_frame_equal(found, whole[:top], rtol=1e-10, atol=1e-12)


def test_many_labels_are_grouped_by_their_loadings():
    """Three bundles of directions, as far from each other as can be."""
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1, 2], [30, 20, 10])
    A = 5 * np.eye(3)[group] + 0.1 * rng.normal(size=(60, 3))
    for members in ([A], [A, A @ np.linalg.qr(rng.normal(size=(3, 3)))[0]]):
        np.testing.assert_array_equal(group_many(members, 3), group)
    assert len(set(group_many([A]))) == 20
    for wrong in (0, 61, 1.5):
        with pytest.raises(ConfigError, match="n_groups must be an integer from 1 to 60"):
            group_many([A], wrong)
