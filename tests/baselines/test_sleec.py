import numpy as np
import pytest
import scipy.sparse as sp

from mpvae.baselines import sleec_maths as maths
from mpvae.baselines.sleec import SLEEC
from mpvae.data import simulate_probit
from mpvae.errors import ConfigError

EPS32 = float(np.finfo(np.float32).eps)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def small(**parameters):
    sizes = {"n_components": 20, "n_learners": 2, "random_state": 0}
    return SLEEC(**sizes | parameters)


# --- neighbours by labels


def test_cosines_of_all_pairs_are_those_computed_by_hand(rng):
    Y = np.array([[1, 0], [1, 1], [0, 1], [0, 0]])
    h = 0.5**0.5
    by_hand = [[1, h, 0, 0], [h, 1, h, 0], [0, h, 1, 0], [0, 0, 0, 1]]
    G = maths.label_cosines(Y.astype(float), 4, rng)
    assert G.nnz == 16  # zeros are stored: they are known, not missing
    # stored as float32 with 2 added, hence rounded to a multiple of 2 eps
    np.testing.assert_allclose(G.toarray(), by_hand, atol=4 * EPS32)


def test_omega_holds_each_row_its_nearest_by_labels_and_both_directions(rng):
    Y = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]]).astype(float)
    G = maths.label_cosines(Y, 2, rng)
    linked = (G - sp.diags_array(G.diagonal())).toarray() > 0
    assert linked.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    G = maths.label_cosines(Y[[0, 0, 1, 2, 3]], 2, rng)
    assert abs(G - G.T).max() == 0
    assert G.nnz == 5 + 2 * 2 + 2  # diagonal; pairs 0-1 and 3-4; row 2 with 0 or 1, a tie


# --- embedding


def test_an_embedding_of_full_rank_keeps_every_inner_product(rng):
    Y = (rng.random((12, 5)) < 0.5).astype(float)
    G = maths.label_cosines(Y, 12, rng)
    Z = maths.svp(G, 6, max_iter=50, tol=0.0, rng=rng)
    # 5 labels and "none" span 6 dimensions, so the error is rounding: sums over 12 rows
    np.testing.assert_allclose(Z @ Z.T, G.toarray(), atol=12 * 4 * EPS32)


def test_an_embedding_of_lower_rank_is_the_best_of_that_rank_when_all_pairs_are_known(rng):
    A = rng.standard_normal((40, 6)) * [5, 4, 3, 1, 0.5, 0.3]
    G = A @ A.T
    Z = maths.svp(sp.csr_array(G.astype(np.float32)), 3, max_iter=200, tol=0.0, rng=rng)
    values, vectors = np.linalg.eigh(G)
    best = (vectors[:, -3:] * values[-3:]) @ vectors[:, -3:].T
    # float32 products of terms as large as the largest eigenvalue, over 40 rows
    np.testing.assert_allclose(Z @ Z.T, best, atol=40 * EPS32 * values[-1])


def test_svp_recovers_a_low_rank_matrix_from_part_of_its_entries(rng):
    A = rng.standard_normal((60, 2))
    M = A @ A.T
    known = np.triu(rng.random((60, 60)) < 0.4)
    known |= known.T | np.eye(60, dtype=bool)
    i, j = np.nonzero(known)
    G = sp.csr_array((M[i, j].astype(np.float32), (i, j)), shape=(60, 60))
    Z = maths.svp(G, 2, max_iter=300, tol=0.0, rng=rng)
    # 120 unknowns, about 700 equations: the solution is exact up to float32 rounding of
    # sums over 60 rows of terms no larger than the largest entry
    np.testing.assert_allclose((Z @ Z.T)[~known], M[~known], atol=60 * EPS32 * abs(M).max())


def test_the_objective_never_ends_higher_with_more_steps(rng):
    Y = (rng.random((150, 12)) < 0.25).astype(float)
    G = maths.label_cosines(Y, 10, rng)
    i, j = G.nonzero()

    def objective(steps):
        Z = maths.svp(G, 8, max_iter=steps, tol=0.0, rng=np.random.default_rng(1))
        return float(((G[i, j] - (Z @ Z.T)[i, j]) ** 2).sum())

    values = [objective(steps) for steps in (1, 5, 20, 80)]
    assert values == sorted(values, reverse=True)


# --- regression


@pytest.mark.parametrize("shape", [(30, 7), (7, 30)])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_without_l1_the_regression_is_ridge_in_closed_form(shape, form, rng):
    X, Z = rng.standard_normal(shape), rng.standard_normal((shape[0], 3))
    V = maths.sparse_ridge(form(X), Z, l1=0.0, l2=0.5)
    by_formula = np.linalg.solve(X.T @ X + 0.5 * np.eye(shape[1]), X.T @ Z)
    # both solve systems of condition below 1e3 in float64
    np.testing.assert_allclose(V, by_formula, atol=1e3 * np.finfo(float).eps * 10)


def test_a_vanishing_l1_leads_to_the_ridge_solution(rng):
    X, Z = rng.standard_normal((30, 7)), rng.standard_normal((30, 3))
    ridge = maths.sparse_ridge(X, Z, l1=0.0, l2=0.5)
    V = maths.sparse_ridge(X, Z, l1=1e-9, l2=0.5, max_iter=2000, tol=1e-10)
    # ADMM stops at 1e-10 of |Z|, about 10, and X has singular values above 1
    np.testing.assert_allclose(V, ridge, atol=1e-7)


def test_the_admm_solution_satisfies_the_optimality_conditions(rng):
    X, Z = rng.standard_normal((8, 8)) + 3 * np.eye(8), rng.standard_normal((8, 4))
    l1, l2 = 0.3, 0.2
    V = maths.sparse_ridge(X, Z, l1=l1, l2=l2, max_iter=20_000, tol=1e-12)
    # Stationarity: X^T (X V - Z) + l2 V + l1 X^T S = 0 with S in the subdifferential of
    # |X V|_1; X is invertible, so S is known.
    S = -np.linalg.solve(X.T, X.T @ (X @ V - Z) + l2 * V) / l1
    A = X @ V
    atol = 1e-8  # ADMM stops at 1e-12 of |Z|; inverting X and dividing by l1 lose 4 digits
    assert np.abs(S).max() <= 1 + atol
    inner = np.abs(A) < atol
    assert 0 < inner.sum() < A.size  # the penalty sets some points to 0, not all
    np.testing.assert_allclose(S[~inner], np.sign(A[~inner]), atol=atol)


# --- vote


def test_the_vote_of_two_neighbours_is_the_one_computed_by_hand():
    reference = np.array([[0.0], [1.0], [3.0]])
    Y = sp.csr_array(np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]))
    # From 0: squared distances 0 and 1, mean 1/2, so weights 1 and e^-2.
    # From 3: 0 and 4 (row 1), mean 2, again 1 and e^-2.
    far = np.exp(-2) / (1 + np.exp(-2))
    P = maths.neighbour_vote(np.array([[0.0], [3.0]]), reference, Y, 2)
    np.testing.assert_allclose(P, [[1, far], [far, 1]], atol=4 * EPS32)


def test_neighbours_at_one_distance_count_alike():
    reference = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [9, 9]])
    Y = sp.csr_array(np.array([[1.0], [1], [1], [0], [0]]))
    P = maths.neighbour_vote(np.zeros((1, 2)), reference, Y, 4)
    np.testing.assert_allclose(P, [[0.75]], atol=4 * EPS32)
    same = maths.neighbour_vote(np.zeros((1, 2)), np.zeros((4, 2)), Y[:4], 4)
    assert same.tolist() == [[0.75]]  # all at distance 0


def test_fewer_reference_points_than_neighbours_all_vote():
    P = maths.neighbour_vote(np.zeros((1, 1)), np.ones((2, 1)), sp.csr_array([[1.0], [0]]), 50)
    assert P.tolist() == [[0.5]]


# --- clusters


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_clusters_are_the_groups_of_well_separated_data(form, rng):
    group = np.repeat([0, 1, 2], 100)
    X = rng.standard_normal((300, 2)) + np.array([[0, 0], [60, 0], [0, 60]])[group]
    # k-means from random centres may join groups; a third of the size divides them further
    centres, of_row = maths.cluster_rows(form(X.astype(np.float32)), 30, rng)
    assert all(len(set(group[of_row == c])) == 1 for c in range(len(centres)))
    assert (maths.nearest_centre(form(X), centres) == of_row).all()


def test_an_outlier_is_no_cluster_and_equal_rows_are_one(rng):
    X = np.vstack([rng.standard_normal((99, 2)), [[1e4, 0]]])
    assert np.bincount(maths.cluster_rows(X, 50, rng).of_row).min() >= 5
    assert len(maths.cluster_rows(np.ones((100, 2)), 10, rng).centres) == 1


# --- classifier


def test_the_ensemble_is_the_mean_of_its_learners():
    data = simulate_probit(300, n_features=5, n_labels=6)
    model = small(cluster_size=100, n_learners=3).fit(data.X, data.Y)
    X = model.features_.apply(data.X)
    alone = [m.probabilities(X, model.training_labels_, 20) for m in model.learners_]
    assert not np.allclose(alone[0], alone[1])
    inside = np.clip(np.mean(alone, axis=0), 1e-300, 1 - 1e-16)
    # means of 3 numbers in [0, 1], rounded
    np.testing.assert_allclose(model.predict_proba(data.X), inside, atol=1e-15)


@pytest.mark.parametrize("regressor", ["linear", "neural"])
@pytest.mark.parametrize("cluster_size", [6000, 500])
def test_both_regressors_learn_simulated_data_better_than_prevalence(regressor, cluster_size):
    data = simulate_probit(1500, n_features=8, n_labels=10, feature_strength=2.0)
    X, Y = data.X, data.Y
    model = small(regressor=regressor, cluster_size=cluster_size)
    P = model.fit(X[:1000], Y[:1000]).predict_proba(X[1000:])
    prevalence = Y[:1000].mean(axis=0)
    gain = ((Y[1000:] - prevalence) ** 2).mean(axis=1) - ((Y[1000:] - P) ** 2).mean(axis=1)
    # the Brier score falls, by more than 5 standard errors of its mean over the 500 rows
    assert gain.mean() > 5 * gain.std() / len(gain) ** 0.5


@pytest.mark.parametrize("regressor", ["linear", "neural"])
def test_l1_and_sparse_features_are_accepted_and_seeds_repeat(regressor):
    data = simulate_probit(200, n_features=6, n_labels=4)
    X = sp.csr_array(np.maximum(data.X, 0))
    model = small(regressor=regressor, l1=0.01, cluster_size=60, max_epochs=2)
    P = model.fit(X, data.Y).predict_proba(X)
    assert P.shape == data.Y.shape
    assert (model.fit(X, data.Y).predict_proba(X) == P).all()
    # a row's answer does not depend on its company; distances are rounded to float32
    np.testing.assert_allclose(model.predict_proba(X[:1]), P[:1], atol=1e-6)


def test_the_unit_of_sparse_features_does_not_matter():
    data = simulate_probit(200, n_features=6, n_labels=4)
    X = sp.csr_array(np.maximum(data.X, 0))
    scaled = 2.0**10 * X  # a power of 2: no rounding
    P = small().fit(X, data.Y).predict_proba(X)
    np.testing.assert_allclose(small().fit(scaled, data.Y).predict_proba(scaled), P, atol=1e-6)


def test_rows_without_labels_are_neighbours_of_each_other():
    # Two groups in feature space: one has both labels, the other none.
    X = np.repeat([[0.0, 1.0], [1.0, 0.0]], 30, axis=0)
    X += np.random.default_rng(0).normal(0, 0.05, X.shape)
    Y = np.repeat([[1, 1], [0, 0]], 30, axis=0)
    P = small(n_neighbors=10).fit(X, Y).predict_proba([[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(P, [[1, 1], [0, 0]], atol=1e-12)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("n_components", 0),
        ("n_neighbors", 1.5),
        ("n_neighbors_train", 0),
        ("n_learners", 0),
        ("cluster_size", 0),
        ("svp_steps", 0),
        ("regressor", "quadratic"),
        ("l1", -1.0),
        ("l2", 0.0),
        ("hidden", ()),
        ("dropout", 1.0),
        ("lr", 0.0),
        ("weight_decay", -1.0),
        ("batch_size", 0),
        ("max_epochs", 0),
        ("device", "abacus"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_named(parameter, value):
    with pytest.raises(ConfigError, match=parameter):
        SLEEC(**{parameter: value}).fit([[0.0], [1.0]], [[0, 1], [1, 0]])


def test_dense_rows_get_the_answer_of_the_same_sparse_rows_and_long_indices_are_taken():
    rng = np.random.default_rng(0)
    X = sp.csr_array((rng.random((80, 12)) < 0.3).astype(np.float64))
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    Y = np.column_stack([X.toarray()[:, :3].sum(1) > k for k in range(3)]).astype(int)
    model = SLEEC(random_state=0).fit(X, Y)
    # One scaling, so equal but for the order of float32 sums.
    np.testing.assert_allclose(
        model.predict_proba(X.toarray()), model.predict_proba(X), atol=1e-4
    )
