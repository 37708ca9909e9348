"""Features as the networks see them, checked against hand-made values."""

import re

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import QuantileTransformer

from mpvae.errors import DataError
from mpvae.features import (
    MAX_DISCRETE,
    MAX_LEVELS,
    ROW_LENGTH,
    fit_features,
    refuse_infinite,
    row_keys,
    with_quantiles,
)

# apply rounds to float32: half a unit in the last place is 6e-8 of the value.
FLOAT32 = 1e-7


def fit(X, weight=None):
    n = X.shape[0]
    names = tuple(map(str, getattr(X, "columns", range(X.shape[1]))))
    return fit_features(X, np.ones(n) if weight is None else np.asarray(weight, float), names)


def test_columns_are_standardised():
    X = np.array([[1.0, 10.0], [2.0, 10.0], [3.0, 10.0]])
    Z = fit(X).apply(X)
    root = np.sqrt(1.5)  # standard deviation of 1, 2, 3 is sqrt(2 / 3)
    np.testing.assert_allclose(Z, [[-root, 0], [0, 0], [root, 0]], atol=2 * FLOAT32)
    assert Z.dtype == np.float32


def test_a_weight_of_two_is_a_row_given_twice():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6, 3))
    X[0, 0] = np.nan
    weighted = fit(X, [2, 1, 1, 3, 1, 1])
    repeated = fit(X[[0, 0, 1, 2, 3, 3, 3, 4, 5]])
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=1e-13)
    np.testing.assert_allclose(weighted.scale, repeated.scale, rtol=1e-13)


def test_a_missing_number_becomes_the_mean_and_is_marked():
    X = np.array([[1.0, 5.0], [np.nan, 6.0], [3.0, 7.0]])
    features = fit(X)
    assert features.n_outputs == 3
    Z = features.apply(X)
    np.testing.assert_allclose(Z[:, 0], [-1, 0, 1], atol=FLOAT32)
    np.testing.assert_array_equal(Z[:, 2], [0, 1, 0])


def test_a_number_missing_only_at_prediction_becomes_the_mean():
    features = fit(np.array([[1.0], [3.0]]))
    np.testing.assert_array_equal(features.apply(np.array([[np.nan]])), [[0.0]])


@pytest.mark.parametrize("value", [0.0, 0.1, 1.7e18, -1e300, 1e-300])
def test_a_constant_column_becomes_zero(value):
    X = np.full((7, 1), value)
    np.testing.assert_allclose(fit(X).apply(X), 0, atol=FLOAT32)


def test_a_column_without_any_value_becomes_zero():
    X = np.array([[np.nan, 1.0], [np.nan, 2.0]])
    np.testing.assert_array_equal(fit(X).apply(X)[:, 0], [0, 0])


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_extreme_numbers_stay_finite(make):
    X = np.array([[1e300, 1.0], [0.0, 2.0], [0.0, 3.0]])
    features = fit(make(X))
    assert np.isfinite(features.scale).all()
    for part in (X, np.array([[1.7e308, -1e300]]), np.array([[0.0, 1.7e308]])):
        Z = features.apply(make(part))
        assert np.isfinite(Z.toarray() if sp.issparse(Z) else Z).all()


def test_a_sparse_matrix_stays_sparse_and_its_rows_get_one_length():
    X = np.array([[3.0, 0, 0], [4.0, 2.0, 0], [0, 0, 0]])
    features = fit(sp.csr_array(X, dtype=np.float32))
    assert features.scale.dtype == np.float64  # whatever the rows came as: it is saved so
    Z = features.apply(sp.csr_array(X))
    assert sp.issparse(Z)
    assert Z.nnz == 3
    # Columns in one unit, and times 1 + log(4 / 3) and 1 + log(4 / 2) since two and one of the
    # three rows have them; then rows to ROW_LENGTH.
    row = np.array([4 * (1 + np.log(4 / 3)), 2 * (1 + np.log(2)), 0])
    expected = ROW_LENGTH * np.array([[1, 0, 0], row / np.linalg.norm(row), [0, 0, 0]])
    np.testing.assert_allclose(Z.toarray(), expected, rtol=2 * FLOAT32)


def words(n=40, n_words=12, seed=0):
    """Counts of words, some rare and the first in every row; one row and one word empty."""
    rng = np.random.default_rng(seed)
    X = rng.poisson(rng.uniform(0.05, 2, n_words), size=(n, n_words)).astype(float)
    X[:, 0] += 1
    X[3], X[:, 5] = 0, 0
    return X


def test_sparse_columns_are_weighed_by_inverse_document_frequency():
    X = words()
    features = fit(sp.csr_array(X))
    counts = TfidfTransformer(norm=None, smooth_idf=True).fit(X)
    unit = features.scale * counts.idf_  # what is left is one number for all columns
    np.testing.assert_allclose(unit, unit[0], rtol=1e-13)
    assert unit[0] == pytest.approx(np.median(X.max(0)[X.max(0) > 0]))
    expected = ROW_LENGTH * TfidfTransformer(norm="l2", smooth_idf=True).fit_transform(X)
    # Scaled, divided by the largest, then by the length: roundings of float32 or finer.
    np.testing.assert_allclose(
        features.apply(sp.csr_array(X)).toarray(), expected.toarray(), rtol=4 * FLOAT32
    )
    length = np.linalg.norm(features.apply(sp.csr_array(X)).toarray(), axis=1)
    np.testing.assert_allclose(np.delete(length, 3), 10, rtol=1e-6)
    assert length[3] == 0


def test_zeros_that_are_stored_are_no_words():
    X = words()
    stored = sp.csr_array(np.where(X == 0, 1e9, X))
    stored.data[stored.data == 1e9] = 0
    assert stored.nnz == X.size
    np.testing.assert_array_equal(fit(stored).scale, fit(sp.csr_array(X)).scale)


def test_a_sparse_weight_of_two_is_a_row_given_twice():
    X = words()
    times = np.random.default_rng(1).integers(1, 4, len(X))
    weighted = fit(sp.csr_array(X), times)
    repeated = fit(sp.csr_array(np.repeat(X, times, axis=0)))
    np.testing.assert_allclose(weighted.scale, repeated.scale, rtol=1e-13)


def test_a_sparse_row_without_weight_counts_in_no_frequency():
    X = words()
    weight = np.ones(len(X))
    weight[::5] = 0
    kept = weight > 0
    X[~kept] = np.minimum(X[~kept], X[kept].max(0))  # the largest are among those that count
    found, expected = fit(sp.csr_array(X), weight), fit(sp.csr_array(X[kept]))
    np.testing.assert_allclose(found.scale, expected.scale, rtol=1e-13)


def test_a_sparse_column_in_another_unit_does_not_drown_the_others():
    X = words()
    plain = fit(sp.csr_array(X))
    far = X.copy()
    far[:, 2] *= 1e6 / far[:, 2].max()
    features = fit(sp.csr_array(far))
    others = np.arange(X.shape[1]) != 2
    np.testing.assert_allclose(features.scale[others], plain.scale[others], rtol=1e-13)
    # Its largest value counts as 30 usual ones would count, before rarity.
    share = (X[:, 2] > 0).sum()
    idf = 1 + np.log((1 + len(X)) / (1 + share))
    assert 1e6 / features.scale[2] == pytest.approx(30 * idf)
    # Divided by its scale alone a row that has it would be of nothing else: now words are seen.
    Z = features.apply(sp.csr_array(far)).toarray()
    has = (far[:, 2] > 0) & (far[:, others] > 0).any(1)
    assert np.linalg.norm(Z[has][:, others], axis=1).min() > 0.01 * ROW_LENGTH
    # A column of large values, but not so large, is in the common unit still.
    near = X.copy()
    near[:, 2] *= 29 * np.median(X.max(0)[X.max(0) > 0]) / near[:, 2].max()
    np.testing.assert_allclose(fit(sp.csr_array(near)).scale, plain.scale, rtol=1e-13)


@pytest.mark.parametrize("factor", [1e-12, 0.5, 1e12])
def test_the_unit_of_all_sparse_columns_does_not_matter(factor):
    X = sp.csr_array(words())
    found, expected = fit(factor * X).apply(factor * X), fit(X).apply(X)
    np.testing.assert_allclose(found.toarray(), expected.toarray(), rtol=4 * FLOAT32)


def test_a_sparse_matrix_of_zeros_stays_one():
    X = sp.csr_array((4, 3))
    features = fit(X)
    assert (features.scale > 0).all()
    assert features.apply(X).nnz == 0


def test_sparse_rows_are_centred_where_training_rows_were():
    rng = np.random.default_rng(0)
    X = rng.normal(5, 1, size=(20, 3))
    X[0, 0] = np.nan
    features = fit(X)
    new = rng.normal(5, 1, size=(4, 3))
    np.testing.assert_array_equal(features.apply(sp.csr_array(new)), features.apply(new))


def test_dense_rows_fit_a_map_made_from_sparse_ones():
    X = np.array([[3.0, 0], [4.0, 2.0]])
    features = fit(sp.csr_array(X))
    np.testing.assert_allclose(
        features.apply(X), features.apply(sp.csr_array(X)).toarray(), rtol=2 * FLOAT32
    )


def test_text_becomes_one_column_per_level_and_unknown_or_missing_text_none():
    X = pd.DataFrame({"ground": ["sand", "mud", None, "sand"], "depth": [1.0, 2, 3, 4]})
    features = fit(X)
    assert features.levels == {0: ("mud", "sand")}
    Z = features.apply(X)
    np.testing.assert_array_equal(Z[:, 1:], [[0, 1], [1, 0], [0, 0], [0, 1]])
    new = pd.DataFrame({"ground": ["rock", None], "depth": [1.0, 1.0]})
    np.testing.assert_array_equal(features.apply(new)[:, 1:], np.zeros((2, 2)))


def test_booleans_nullable_numbers_and_categories_are_understood():
    X = pd.DataFrame(
        {
            "wet": [True, False, True],
            "count": pd.array([1, None, 3], dtype="Int64"),
            "maybe": pd.array([True, None, False], dtype="boolean"),
            "kind": pd.Categorical(["a", "b", None], categories=["b", "a", "unused"]),
            "text": pd.array(["x", None, "y"], dtype="string"),
        }
    )
    features = fit(X)
    assert features.numeric.tolist() == [0, 1, 2]
    assert features.marked.tolist() == [1, 2]
    assert features.levels == {3: ("a", "b"), 4: ("x", "y")}
    Z = features.apply(X)
    assert Z.shape == (3, features.n_outputs)
    np.testing.assert_array_equal(Z[1, 3:], [1, 1, 0, 1, 0, 0])


@pytest.mark.parametrize(
    "column", [[1, 2], [1.0, 2.0], [1.0, None], pd.array([1, 2], "Int64"), ["1", "2"]]
)
def test_codes_of_categories_are_known_as_text_and_as_numbers(column):
    features = fit(pd.DataFrame({"code": ["1", "2", "A"], "x": [1.0, 2.0, 3.0]}))
    new = pd.DataFrame({"code": column, "x": [1.0, 1.0]})
    assert features.apply(new)[0, 1:].tolist() == [1, 0, 0]
    numbers = np.array([[1.0, 5.0], [2.0, 5.0]])  # as a frame without text is handed over
    assert features.apply(numbers)[:, 1:].tolist() == [[1, 0, 0], [0, 1, 0]]


def test_categories_that_are_numbers_match_plain_numbers():
    features = fit(pd.DataFrame({"c": pd.Categorical([1.0, 2.0]), "x": [1.0, 2.0]}))
    assert features.levels == {0: ("1", "2")}


def test_text_where_training_had_numbers_is_refused_with_the_column():
    features = fit(pd.DataFrame({"depth": [1.0, 2.0], "x": [0.0, 1.0]}))
    with pytest.raises(DataError, match="text in column depth, where training had numbers"):
        features.apply(pd.DataFrame({"depth": ["deep"], "x": [0.0]}))


def test_too_many_levels_are_refused_by_name():
    enough = pd.DataFrame({"soil": [f"kind{i}" for i in range(MAX_LEVELS)] * 2})
    assert fit(enough).n_outputs == MAX_LEVELS
    many = pd.DataFrame({"soil": [f"kind{i}" for i in range(MAX_LEVELS + 1)] * 3})
    with pytest.raises(DataError, match="column 'soil' has 101 distinct text values"):
        fit(many)


def test_a_text_column_that_is_new_in_most_rows_is_taken_for_an_identifier():
    ids = pd.DataFrame({"site": [f"S{i}" for i in range(40)]})
    with pytest.raises(DataError, match=r"'site' has 40 .* identifier or a date"):
        fit(ids)
    assert fit(ids[:10]).n_outputs == 10  # too few rows to tell


@pytest.mark.parametrize("odd", ["n/a?", "1_000", "\N{ARABIC-INDIC DIGIT FIVE}"])
def test_one_odd_cell_among_numbers_is_named(odd):
    column = [str(i / 7) for i in range(60)]
    column[30] = odd
    with pytest.raises(
        DataError, match=f"'temp' holds numbers, but also {re.escape(repr(odd))}"
    ):
        fit(pd.DataFrame({"temp": column}))


def test_a_frame_without_any_value_is_refused():
    with pytest.raises(DataError, match="no column with a value"):
        fit(pd.DataFrame({"a": pd.Series([None, None], dtype=object)}))


def test_infinite_values_are_refused_with_their_columns():
    names = tuple("abcdefgh")
    X = np.zeros((2, 8))
    refuse_infinite(X, names)
    X[0, 2] = np.inf
    with pytest.raises(DataError, match="X contains inf in column c; replace"):
        refuse_infinite(X, names)
    X[1] = -np.inf
    with pytest.raises(DataError, match="in columns a, b, c, d, e and 3 more;"):
        refuse_infinite(X, names)
    frame = pd.DataFrame({"t": ["inf", "x"], "v": [1.0, np.inf]})
    with pytest.raises(DataError, match="in column v;"):
        refuse_infinite(frame, ("t", "v"))


def test_missing_values_are_refused_in_a_sparse_matrix():
    X = sp.csr_array(np.array([[0, np.nan, 1.0]]))
    with pytest.raises(DataError, match="inf or NaN in column b; replace them; in a dense X"):
        refuse_infinite(X, ("a", "b", "c"))


def test_equal_rows_have_equal_keys_and_others_do_not():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, size=(300, 4)).astype(float)
    X[X == 2] = np.nan
    _, of_keys = np.unique(row_keys(X), axis=0, return_inverse=True)
    _, of_rows = np.unique(np.nan_to_num(X, nan=9), axis=0, return_inverse=True)
    pairs = set(zip(of_keys.tolist(), of_rows.tolist(), strict=True))
    assert len(pairs) == len(set(of_rows.tolist())) == len(set(of_keys.tolist()))


def test_keys_do_not_depend_on_dtype_or_sign_of_zero_or_stored_zeros():
    X = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]])
    keys = row_keys(X)
    np.testing.assert_array_equal(row_keys(X.astype(np.float32)), keys)
    np.testing.assert_array_equal(row_keys(np.where(X == 0, -0.0, X)), keys)
    np.testing.assert_array_equal(row_keys(pd.DataFrame(X.astype(int))), keys)
    stored = sp.csr_array((X.ravel(), np.tile(np.arange(3), 2), [0, 3, 6]), shape=(2, 3))
    assert stored.nnz == 6
    np.testing.assert_array_equal(row_keys(stored), row_keys(sp.csr_array(X)))


def test_missing_text_has_a_key_of_its_own():
    X = pd.DataFrame({"t": ["None", None, "nan", "", "None", None], "x": 1.0})
    keys = [tuple(key) for key in row_keys(X).tolist()]
    assert keys[0] == keys[4]
    assert keys[1] == keys[5]
    assert len(set(keys)) == 4


def ranked(X, weight=None):
    weight = np.ones(len(X)) if weight is None else np.asarray(weight, float)
    return with_quantiles(fit(X, weight), X, weight)


def test_ranks_become_normal_scores_as_scikit_learn_has_them():
    rng = np.random.default_rng(1)
    X = np.exp(3 * rng.normal(size=(5000, 2)))  # a long tail
    Z = ranked(X).apply(X)
    peer = QuantileTransformer(n_quantiles=201, subsample=None, output_distribution="normal")
    expected = peer.fit_transform(X)
    inner = np.abs(expected) < 2.5  # the outermost ranks are drawn in
    # Quantiles are values of the data here and lie between two there: the knots on either
    # side of a value are up to 1 / 5000 of rank apart, over a density of .017 at 2.5
    np.testing.assert_allclose(Z[inner], expected[inner], atol=2 / 5000 / 0.017 + 1e-6)
    assert np.abs(Z).max() < 3


def test_ranks_do_not_see_a_monotone_change_of_the_column():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(400, 1))
    one, other = ranked(X).apply(X), ranked(np.exp(X)).apply(np.exp(X))
    # Equal at the knots, every second row; between two of them both lie between their scores,
    # 1 / 200 of rank apart, over a density of at least .054 at 2
    inner = np.abs(one) < 2
    np.testing.assert_allclose(one[inner], other[inner], atol=1 / 200 / 0.054)


def test_a_weight_is_a_repetition_for_ranks_too():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 2))
    weight = rng.integers(1, 4, 60)
    again = np.repeat(np.arange(60), weight)
    np.testing.assert_array_equal(ranked(X, weight).knots, ranked(X[again]).knots)


def test_columns_of_few_values_stay_standardised_and_missing_ones_marked():
    rng = np.random.default_rng(4)
    X = np.column_stack(
        [rng.integers(0, MAX_DISCRETE, 300).astype(float), rng.normal(size=300)]
    )
    X[7, 1] = np.nan
    plain, by_rank = fit(X), ranked(X)
    np.testing.assert_array_equal(by_rank.apply(X)[:, 0], plain.apply(X)[:, 0])
    assert by_rank.apply(X)[7, 1] == 0
    assert by_rank.apply(X)[7, 2] == 1
    assert not by_rank.fitted_sparse


def test_values_beyond_the_training_rows_have_the_outermost_rank():
    X = np.linspace(0, 1, 500)[:, None]
    Z = ranked(X).apply(np.array([[-1e300], [0.5], [1e300]]))
    np.testing.assert_allclose(Z[0], -Z[2])
    assert abs(Z[1, 0]) < 0.01
    assert 2.5 < Z[2, 0] < 3


def test_sparse_columns_have_no_ranks():
    X = sp.csr_array(np.eye(5))
    features = fit(X)
    assert with_quantiles(features, X, np.ones(5)) is features


def test_sparse_columns_of_the_largest_numbers_have_a_scale():
    X = sp.csr_array(np.array([[1.7e308, 0.0], [1.6e308, 1.5e308]]))
    scale = fit_features(X, np.ones(2), ("a", "b")).scale
    assert np.isfinite(scale).all()
    assert (scale > 0).all()


def test_an_entry_written_in_parts_counts_once():
    parts = sp.csr_array(
        (np.array([1.0, 1.0, 1.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2)
    )
    whole = sp.csr_array(np.array([[2.0, 0.0], [0.0, 1.0]]))
    found, wanted = (fit_features(X, np.ones(2), ("a", "b")).scale for X in (parts, whole))
    np.testing.assert_array_equal(found, wanted)
    assert parts.nnz == 3  # the caller's own matrix is left alone
