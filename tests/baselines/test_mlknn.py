import numpy as np
import pytest
import scipy.sparse as sp

from mpvae.baselines.mlknn import MLKNN
from mpvae.errors import ConfigError, DataError

# Four rows on a line; nearest others: 0 <-> 1 and 3 <-> 3.5.
X = np.array([[0.0], [1.0], [3.0], [3.5]])
Y = np.array([[1, 0], [1, 1], [1, 1], [0, 0]])


def drawn(seed, n=120, n_features=6, n_labels=5):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, n_features))
    scores = features @ rng.normal(size=(n_features, n_labels)) + rng.normal(size=(n, n_labels))
    return features, (scores > 0.5).astype(np.int64)


def test_probabilities_are_those_worked_out_by_hand():
    p = MLKNN(k=1).fit(X, Y).predict_proba([[0.4], [3.4], [2.9]])
    # Label 0: prior (1 + 3) / (2 + 4) = 2/3. The rows that bear it count 1, 1, 0 neighbours
    # with it, so P(0 | H1), P(1 | H1) = (1 + 1)/5, (1 + 2)/5; the one that lacks it counts 1,
    # so P(0 | H0), P(1 | H0) = 1/3, 2/3. Posterior of 1: 2/5 / (2/5 + 2/9) = 9/14; of 0:
    # 4/15 / (4/15 + 1/9) = 12/17.
    # Label 1: prior 1/2; both rows with it count 0, both without count 1: P(0 | H1) = 3/4,
    # P(1 | H1) = 1/4, the reverse for H0. Posterior of 1: 1/4; of 0: 3/4.
    # The rows' neighbours are 0, 3.5 and 3, with labels (1, 0), (0, 0) and (1, 1).
    np.testing.assert_allclose(p, [[9 / 14, 3 / 4], [12 / 17, 3 / 4], [9 / 14, 1 / 4]])


def test_smoothing_draws_the_probabilities_towards_one_half():
    p = MLKNN(k=1, smoothing=1e9).fit(X, Y).predict_proba(X)
    np.testing.assert_allclose(p, 0.5, atol=1e-8)


@pytest.mark.parametrize("left_out", [True, False])
@pytest.mark.parametrize("k", [1, 4, 10])
def test_probabilities_agree_with_scikit_multilearn(k, left_out):
    """Its `fit` counts a row among its own neighbours unless told to ignore the first.

    Its `predict_proba` would then ignore the nearest training row, too, so that this is reset.
    """
    adapt = pytest.importorskip("skmultilearn.adapt")
    features, labels = drawn(0)
    other = adapt.MLkNN(k=k, ignore_first_neighbours=int(left_out))
    other.fit(features[:90], labels[:90])
    other.ignore_first_neighbours = 0
    expected = other.predict_proba(features[90:]).toarray()
    model = MLKNN(k=k, leave_one_out=left_out).fit(features[:90], labels[:90])
    np.testing.assert_allclose(model.predict_proba(features[90:]), expected, atol=1e-9)


@pytest.mark.parametrize("whole", [True, False])
def test_sparse_rows_give_what_dense_rows_give(whole):
    rng = np.random.default_rng(1)
    n = 300  # blocks of 64 training rows, the last one not full
    # Distinct distances: every column has a weight of its own, a power of two or not.
    weights = 2 ** np.arange(7) if whole else rng.uniform(1, 9, 7)
    features = rng.integers(0, 4, (n, 7)) * (rng.random((n, 7)) < 0.6) * weights.astype(float)
    if not whole:
        features *= rng.uniform(0.5, 1, features.shape)
    features = np.unique(features, axis=0)
    rng.shuffle(features)
    labels = (features[:, :3] + rng.normal(size=(len(features), 3)) > 2).astype(int)
    dense, sparse = (
        MLKNN(k=1).fit(kind(features), labels) for kind in (np.asarray, sp.csr_array)
    )
    gaps = dense.search_.index.kneighbors(n_neighbors=2)[0]
    clear = gaps[:, 1] - gaps[:, 0] > 1e-5
    assert clear.sum() > 50
    near = dense.search_.others(), sparse.search_.others()
    np.testing.assert_array_equal(near[0][clear], near[1][clear])


def test_sparse_neighbours_are_the_k_nearest_where_distances_tie():
    rng = np.random.default_rng(2)
    features = (rng.random((200, 12)) < 0.3).astype(float)
    labels = (rng.random((200, 3)) < 0.4).astype(int)
    model = MLKNN(k=7).fit(sp.csr_array(features), labels)
    near = model.search_.others()
    distance = ((features[:, None] - features[None]) ** 2).sum(-1)
    np.fill_diagonal(distance, np.inf)
    found = np.sort(np.take_along_axis(distance, near, 1), 1)
    np.testing.assert_array_equal(found, np.sort(distance, 1)[:, :7])
    assert all(len(set(row)) == 7 for row in near)


def test_no_more_neighbours_are_asked_for_than_there_are_other_rows():
    p = MLKNN(k=10).fit(X, Y)
    assert p.likelihood_.shape == (2, 2, 4)
    np.testing.assert_allclose(p.likelihood_.sum(-1), 1)


def test_labels_are_predicted_better_than_by_their_frequency():
    features, labels = drawn(3, n=600)
    model = MLKNN().fit(features[:400], labels[:400])
    frequent = labels[:400].mean(0) > 0.5
    hits = model.predict(features[400:]) == labels[400:]
    assert hits.mean() > (labels[400:] == frequent).mean() + 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k must be an integer >= 1, got 0"),
        ({"k": 2.5}, "k must be an integer >= 1, got 2.5"),
        ({"smoothing": 0}, "smoothing must be above 0, got 0"),
        ({"smoothing": float("nan")}, "smoothing must be above 0, got nan"),
    ],
)
def test_a_senseless_parameter_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        MLKNN(**settings).fit(X, Y)


def test_numbers_whose_distances_overflow_are_refused():
    features, labels = drawn(4, n=40)
    features[0, 0] = 1e300
    with pytest.raises(DataError, match=r"X holds 1e\+300.*scale or clip"):
        MLKNN().fit(features, labels)
