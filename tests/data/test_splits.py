import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from mpvae.data import stratified_folds, stratified_split
from mpvae.errors import DataError


def random_labels(n_rows=600, n_labels=12, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.random((n_rows, n_labels)) < np.linspace(0.02, 0.6, n_labels)).astype(np.int32)


def test_every_label_is_spread_evenly_over_the_folds():
    Y = random_labels()
    folds = stratified_folds(Y, 5, seed=0)
    assert folds.dtype == np.int64
    assert np.bincount(folds).min() > 100
    random_folds = np.random.default_rng(0).permutation(600) % 5

    def deviation(of):
        per_fold = np.array([Y[of == k].sum(axis=0) for k in range(5)])
        return np.abs(per_fold - Y.sum(axis=0) / 5)

    # labels are dealt from the rarest on, so the rare half is as even as whole rows allow
    assert deviation(folds)[:, :6].max() < 1
    assert deviation(folds).mean() < deviation(random_folds).mean() / 2


def test_a_split_has_the_asked_sizes_and_every_row_once():
    Y = random_labels()
    parts = stratified_split(Y, {"train": 0.8, "val": 0.1, "test": 0.1}, seed=3)
    assert list(parts) == ["train", "val", "test"]
    assert np.sort(np.concatenate(list(parts.values()))).tolist() == list(range(600))
    assert abs(len(parts["train"]) - 480) <= 12
    assert abs(len(parts["test"]) - 60) <= 12
    assert all((np.diff(rows) > 0).all() for rows in parts.values())
    assert np.abs(Y[parts["train"]].mean(axis=0) - Y.mean(axis=0)).max() < 0.02


def test_the_seed_decides_and_the_global_state_is_left_alone():
    Y = random_labels()
    np.random.seed(5)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = stratified_folds(Y, 4, seed=1)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.random.seed(6)  # noqa: NPY002
    np.testing.assert_array_equal(stratified_folds(Y, 4, seed=1), first)
    assert (stratified_folds(Y, 4, seed=2) != first).any()


def test_sparse_and_missing_labels_count_like_dense_zeros():
    Y = random_labels()
    expected = stratified_folds(Y, 3, seed=0)
    np.testing.assert_array_equal(stratified_folds(csr_array(Y), 3, seed=0), expected)
    with_nan = np.where((Y == 0) & (np.arange(12) % 2 == 0), np.nan, Y)
    np.testing.assert_array_equal(stratified_folds(with_nan, 3, seed=0), expected)


@settings(max_examples=60, deadline=None)
@given(
    n_folds=st.integers(2, 6),
    extra=st.integers(0, 8),
    n_labels=st.integers(0, 4),
    share=st.sampled_from([0.0, 0.2, 0.9, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_fold_is_empty(n_folds, extra, n_labels, share, seed):
    n_rows = n_folds + extra
    Y = np.random.default_rng(seed).random((n_rows, n_labels)) < share
    folds = stratified_folds(Y, n_folds, seed=seed)
    assert np.bincount(folds, minlength=n_folds).min() >= 1
    assert folds.shape == (n_rows,)
    parts = stratified_split(Y, {"a": 0.98, "b": 0.02}, seed=seed)
    assert min(len(rows) for rows in parts.values()) >= 1


def test_too_many_labels_are_thinned_to_the_rarest_useful_ones(monkeypatch):
    monkeypatch.setattr("mpvae.data.splits.MAX_STRATIFIED_WORK", 600 * 4)  # two labels
    Y = random_labels()
    Y[:, 0] = 0
    Y[:2, 0] = 1  # fewer positives than folds
    folds = stratified_folds(Y, 5, seed=0)
    per_fold = np.array([Y[folds == k, 1:3].sum(axis=0) for k in range(5)])
    assert np.abs(per_fold - Y[:, 1:3].sum(axis=0) / 5).max() <= 1.5
    np.testing.assert_array_equal(stratified_folds(csr_array(Y), 5, seed=0), folds)


def test_very_many_rows_are_dealt_at_random_in_exact_shares(monkeypatch):
    monkeypatch.setattr("mpvae.data.splits.MAX_STRATIFIED_ROWS", 100)
    parts = stratified_split(random_labels(), {"train": 0.75, "test": 0.25}, seed=0)
    assert (len(parts["train"]), len(parts["test"])) == (450, 150)
    assert parts["test"].max() > 450


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stratified_folds(np.ones((3, 1)), 4, seed=0), "3 rows cannot fill 4 parts"),
        (lambda: stratified_folds(np.ones((3, 1)), 1, seed=0), "at least 2, got 1"),
        (lambda: stratified_folds(np.ones(3), 2, seed=0), "Y must have 2 dimensions"),
        (lambda: stratified_split(np.ones((9, 1)), {"a": 0.5, "b": 0.6}, seed=0), "sum 1"),
        (lambda: stratified_split(np.ones((9, 1)), {"a": 1.5, "b": -0.5}, seed=0), "positive"),
    ],
)
def test_impossible_splits_are_refused(call, message):
    with pytest.raises(DataError, match=message):
        call()
