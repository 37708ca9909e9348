import numpy as np
import pytest
import scipy.sparse as sp

from mpvae.baselines.mlaram import MLARAM
from mpvae.errors import ConfigError

# A and B have one label set and lie close: one neuron, the box (0, 0) - (0.2, 0).
X = np.array([[0, 0], [0.2, 0], [1, 1], [0.6, 0], [0.5, 1]])  # A, B, C, E, F
Y = np.array([[1, 0], [1, 0], [0, 1], [1, 1], [1, 0]])
QUERY = [[0.4, 0]]


def drawn(seed, n, n_features, n_labels, *, binary=False):
    """Features in [0, 1] that reach both ends, and labels that hang on them."""
    rng = np.random.default_rng(seed)
    centres = rng.random((8, n_features))
    of_centre = rng.random((8, n_labels)) < 0.4
    which = rng.integers(0, 8, n)
    if binary:
        features = (rng.random((n, n_features)) < 0.4 * centres[which]).astype(float)
    else:
        features = np.clip(centres[which] + 0.1 * rng.normal(size=(n, n_features)), 0, 1)
    features[0], features[1] = 0, 1
    return features, of_centre[which].astype(np.int64)


def test_neurons_are_those_worked_out_by_hand():
    model = MLARAM(vigilance=0.8).fit(X, Y)
    # B joins A: |I AND w| / |I| = (2 - 0.2) / 2 = 0.9 >= 0.8. F does not join their box:
    # |I AND w| / |I| = (1.8 - 0.3 - 1) / 2 = 0.25. C and E have other label sets.
    # By label set (0, 1), (1, 0), (1, 1): C; AB, F; E.
    expected_low = [[1, 1], [0, 0], [0.5, 1], [0.6, 0]]
    expected_high = [[1, 1], [0.2, 0], [0.5, 1], [0.6, 0]]
    np.testing.assert_allclose(model.neurons_.low, expected_low, rtol=1e-6)
    np.testing.assert_allclose(model.neurons_.high, expected_high, rtol=1e-6)
    np.testing.assert_array_equal(model.rows_, [1, 2, 1, 1])
    np.testing.assert_array_equal(model.labels_.toarray(), [[0, 1], [1, 0], [1, 0], [1, 1]])


def test_scores_are_those_worked_out_by_hand():
    # Activations of the query (0.4, 0): AB (1.8 - 0.2) / 1.8 = 8/9, E (2 - 0.2) / 2 = 0.9,
    # F (2 - 0.1 - 1) / 2 = 0.45, C (2 - 0.6 - 1) / 2 = 0.2. AB falls short of E by 0.0111; the
    # threshold 0.02 allows 0.02 * (0.9 - 0.2) * 0.9 = 0.0126, and 0.01 half of that.
    # AB learnt two rows: label 1 has the share 0.9 / (0.9 + 2 * 8/9) = 81 / 241.
    both = MLARAM(vigilance=0.8, threshold=0.02).fit(X, Y).predict_proba(QUERY)
    np.testing.assert_allclose(both, [[1, 81 / 241]], rtol=1e-6)
    one = MLARAM(vigilance=0.8, threshold=0.01).fit(X, Y).predict_proba(QUERY)
    np.testing.assert_allclose(one, [[1, 1]])


def test_clusters_are_those_worked_out_by_hand():
    settings = {"vigilance": 0.8, "cluster_vigilance": 0.6}
    model = MLARAM(n_clusters=1, **settings).fit(X, Y)
    # C is the first cluster. AB shares nothing with it, 0 / 1.8: the second. F joins C,
    # (0.5 + 1) / 2 = 0.75, not AB, 0.5 / 2. E joins AB, (0.4 + 1) / 2 = 0.7, not C, 0.5 / 2.
    np.testing.assert_allclose(model.clusters_.low, [[0.5, 1], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(model.clusters_.high, [[1, 1], [0.6, 0]], rtol=1e-6)
    assert [list(members) for members in model.members_] == [[0, 2], [1, 3]]
    # Only AB and E are activated: the range of activations is now 0.0111, and E wins alone.
    np.testing.assert_allclose(model.predict_proba(QUERY), [[1, 1]])
    every = MLARAM(n_clusters=2, **settings).fit(X, Y).predict_proba(QUERY)
    np.testing.assert_allclose(every, [[1, 81 / 241]], rtol=1e-6)


def test_a_vigilance_of_one_keeps_every_distinct_row_and_zero_one_per_label_set():
    features, labels = drawn(0, 200, 5, 4)
    features, labels = np.vstack([features, features]), np.vstack([labels, labels])
    assert len(MLARAM(vigilance=1).fit(features, labels).rows_) == 200
    sets = len(np.unique(labels, axis=0))
    assert len(MLARAM(vigilance=0).fit(features, labels).rows_) == sets


@pytest.mark.parametrize("n_clusters", [None, 2])
@pytest.mark.parametrize("binary", [True, False])
def test_sparse_rows_give_what_dense_rows_give(binary, n_clusters):
    features, labels = drawn(1, 150, 20, 4, binary=True)
    if not binary:
        features = features * np.random.default_rng(2).random(features.shape)
        features[1] = 1
    model = MLARAM(0.8, n_clusters=n_clusters, cluster_vigilance=0.5)
    dense = model.fit(features[:100], labels[:100]).predict_proba(features[100:])
    sparse = model.fit(sp.csr_array(features[:100]), labels[:100]).predict_proba(
        sp.csr_array(features[100:])
    )
    np.testing.assert_allclose(sparse, dense, atol=1e-5)


@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
@pytest.mark.parametrize("vigilance", [0.8, 0.9, 0.95])
def test_rankings_agree_with_scikit_multilearn(vigilance):
    """It is ML-ARAM without HARAM's clusters, by the authors of the papers.

    Definitions differ in that its scores are sums over neurons of activation times rows
    learnt, divided by the sum of activations alone: the same but for a factor per row, taken
    out here. Ties (vigilance met exactly, equal activations) are broken otherwise, and it
    computes in float64, not float32: which neuron wins may then differ, hence 98 %. It scales
    all columns alike; features that span [0, 1] are left alone by both. It overwrites y.
    """
    adapt = pytest.importorskip("skmultilearn.adapt")
    features, labels = drawn(3, 500, 12, 6)
    other = adapt.MLARAM(vigilance=vigilance, threshold=0.02)
    other.fit(features[:300], labels[:300].copy())
    scores = other.predict_proba(features[300:])
    model = MLARAM(vigilance, 0.02, decision="drop").fit(features[:300], labels[:300])
    p = model.predict_proba(features[300:])
    assert len(model.rows_) == len(other.neurons)
    scored = scores.max(1) > 0
    with np.errstate(invalid="ignore"):
        close = np.isclose(p / p.max(1, keepdims=True), scores / scores.max(1, keepdims=True))
    assert close.all(1)[scored].mean() >= 0.98
    alike = (model.predict(features[300:]) == other.predict(features[300:])).all(1)
    assert alike[scored].mean() >= 0.98


def test_the_greatest_drop_decides_where_asked_for():
    model = MLARAM(vigilance=0.8, decision="drop").fit(X, Y)
    np.testing.assert_array_equal(model.predict(QUERY), [[1, 0]])  # 1 and 81/241
    nothing = MLARAM(decision="drop").fit(X, np.zeros((5, 3), int))
    np.testing.assert_array_equal(nothing.predict(QUERY), [[0, 0, 0]])


def test_the_first_of_two_equal_drops_decides():
    # Both rows are at the same place, so both neurons win: scores 1, 1/2, 1/2, 0.
    rows = [[0.5, 0.5], [0.5, 0.5], [0, 0], [1, 1]]
    labels = [[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
    model = MLARAM(decision="drop").fit(rows, labels)
    np.testing.assert_allclose(
        model.predict_proba([[0.5, 0.5]]), [[1, 0.5, 0.5, 0]], atol=1e-12
    )
    np.testing.assert_array_equal(model.predict([[0.5, 0.5]]), [[1, 0, 0, 0]])


def test_rows_outside_the_training_range_are_taken_to_its_border():
    model = MLARAM(vigilance=0.8).fit(X, Y)
    np.testing.assert_array_equal(
        model.predict_proba([[7, -3], [1, 0]]), model.predict_proba([[1, 0], [1, 0]])
    )


def test_labels_are_predicted_better_than_by_their_frequency():
    features, labels = drawn(4, 600, 10, 5)
    hits = MLARAM().fit(features[:400], labels[:400]).predict(features[400:]) == labels[400:]
    frequent = labels[:400].mean(0) > 0.5
    assert hits.mean() > (labels[400:] == frequent).mean() + 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vigilance": 1.1}, r"vigilance must be in \[0, 1\], got 1.1"),
        ({"threshold": -1}, r"threshold must be in \[0, 1\], got -1"),
        ({"n_clusters": 0}, "n_clusters must be None or an integer >= 1, got 0"),
        ({"decision": "best"}, "decision must be one of .*, got 'best'"),
    ],
)
def test_a_senseless_parameter_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        MLARAM(**settings).fit(X, Y)
