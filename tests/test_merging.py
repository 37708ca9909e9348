"""Rows as a weighted set, and tables on which the same features come again and again."""

import numpy as np
import pandas as pd
import pytest

from mpvae import DataError, MPVAEClassifier
from mpvae.forest import fit_forest
from mpvae.merging import MAX_COPIES, as_repeats, merge_equal_rows, rows_meant
from mpvae.metrics import log_loss


def test_features_that_come_with_other_labels_keep_copies():
    X = np.array([[0.0]] * 12 + [[1.0]] * 7)
    Y = np.array([[0]] * 9 + [[1]] * 3 + [[1]] * 7)
    x, y, weight, number = merge_equal_rows(X, Y, np.ones(19))
    assert set(number.tolist()) == {0, 9, 12}  # the first of equal ones
    found = {}
    for a, b, w in zip(x[:, 0], y[:, 0], weight * 19 / weight.sum(), strict=True):
        found.setdefault((a, b), []).append(w)
    assert {key: len(parts) for key, parts in found.items()} == {
        (0.0, 0): 9,
        (0.0, 1): 3,
        (1.0, 1): 1,  # no other labels: left out with all its copies
    }
    assert {key: sum(parts) for key, parts in found.items()} == pytest.approx(
        {(0.0, 0): 9, (0.0, 1): 3, (1.0, 1): 7}
    )


def test_levels_are_counted_before_equal_rows_are_merged():
    fast = MPVAEClassifier(preset="fast", max_epochs=1, random_state=0)
    kind = np.arange(900) % 30
    X = pd.DataFrame({"g": [f"g{k}" for k in kind]})
    Y = np.column_stack([kind % 2, kind % 3 == 0]).astype(int)
    repeated = fast.fit(X, Y).predict_proba(X)
    weighted = fast.fit(X[:30], Y[:30], sample_weight=np.r_[1.0, np.full(29, 30.0)])
    assert weighted.predict_proba(X).shape == repeated.shape
    with pytest.raises(DataError, match="'g' has 30 distinct text values in 30 rows"):
        fast.fit(X[:30], Y[:30])


@pytest.mark.parametrize(
    ("weight", "rows"),
    [
        ([2, 2, 6, 0], [1, 1, 3, 0]),
        ([0.5, 0.7, 3.1, 0], [1, 1, 1, 0]),  # no counts: a row is a row
        ([1e300, 1e-300], [1, 0]),
        ([0, 0], [0, 0]),
    ],
)
def test_a_row_stands_for_as_many_as_its_weight_says(weight, rows):
    np.testing.assert_array_equal(rows_meant(np.array(weight, float)), rows)


def test_copies_are_few_and_a_weight_is_a_repetition():
    X = np.array([[0.0]] * 1001)
    Y = np.array([[0]] * 1000 + [[1]])
    repeated = merge_equal_rows(X, Y, np.ones(1001))
    assert 2 * MAX_COPIES - 1 <= len(repeated[2]) <= 2 * MAX_COPIES + 1  # of two rows
    weighted = merge_equal_rows(X[[0, 1000]], Y[[0, 1000]], np.array([1000.0, 1.0]))
    for a, b in zip(repeated[:3], weighted[:3], strict=True):
        np.testing.assert_allclose(a, b)


def test_probabilities_of_a_category_are_its_frequencies():
    """Left out by labels, each answer was judged by what the other rows never showed."""
    rng = np.random.default_rng(0)
    truth = np.array([[0.05, 0.9], [0.2, 0.5], [0.6, 0.3], [0.95, 0.1]])
    x = rng.integers(0, 4, 2000)
    Y = (rng.random((2000, 2)) < truth[x]).astype(int)
    model = MPVAEClassifier(random_state=0).fit(x[:, None].astype(float), Y)
    every = model.predict_proba(np.arange(4.0)[:, None])
    # 500 rows a category: a standard error of .02 at most; the fit is smooth, so some more.
    assert np.abs(every - truth).max() < 0.1
    assert log_loss(Y, every[x]) < log_loss(Y, truth[x]) + 0.01
    assert model.score(x[:, None].astype(float), Y) > 0.7


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_weights_that_are_no_counts_are_not_forgotten(factor):
    weight = np.array([1.0, 2.0, 3.0, 4.0 * factor])
    repeats = as_repeats(weight, 10**6)
    share = np.bincount(repeats, minlength=4) / len(repeats)
    # Up to 40 rows: each share is right to one of them.
    np.testing.assert_allclose(share, weight / weight.sum(), atol=1 / len(repeats))


def test_equal_weights_repeat_nothing_and_bounds_are_kept():
    assert as_repeats(np.full(5, 0.3), 100) is None
    uneven = np.random.default_rng(0).random(50) + 0.1
    assert len(as_repeats(uneven, 120)) == 120
    assert len(as_repeats(uneven, 10)) == 50


def test_rows_of_a_forest_vote_by_their_weight():
    X = np.zeros((100, 2))
    Y = (np.arange(100) < 50).astype(float)[:, None]
    weight = np.where(Y[:, 0] == 1, 9.0, 1.0)
    fitted, _ = fit_forest(X, Y, weight, 0)
    assert fitted.prior == pytest.approx(0.9, abs=0.01)  # half a row is added on either side
    leaves = fitted.trees.leaves(X[:1])
    # Each tree sees 70 of the rows: shares of .9 vary by .01 or so; 200 of them are averaged.
    assert fitted.votes(leaves, np.ones(leaves.shape, bool)) == pytest.approx(0.9, abs=0.01)
