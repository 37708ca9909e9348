"""Kernel ridge regression against scikit-learn's, and rows that were really left out."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from scipy.special import log_ndtr, ndtr
from sklearn import kernel_ridge, linear_model
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from mpvae import ridge, similarity
from mpvae.calibration import fit_line
from mpvae.ridge import KernelRidge, fit_kernel_ridge
from mpvae.similarity import Kernel

N, D, L = 80, 4, 3
UNIT = np.sqrt(2 * np.pi)
JITTER = 1e-6


def simulated(n=N, seed=0):
    """Features (n, D), a third of them zero, and labels (n, L) that depend on them."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, D)) * (rng.random((n, D)) < 2 / 3)).astype(np.float32)
    Y = (np.sin(2 * X[:, :L]) + 0.5 * rng.normal(size=(n, L)) > 0.3).astype(float)
    return X, Y


X, Y = simulated()
ONES = np.ones(N)
ASK = simulated(30, seed=1)[0]


def shaped(monkeypatch, penalty=0.3):
    """One rate, one penalty, and no calibration: the regression as it is."""
    monkeypatch.setattr(ridge, "_RATES", (1.0,))
    monkeypatch.setattr(ridge, "_PENALTIES", [penalty])
    monkeypatch.setattr(ridge, "fit_line", lambda Y, q, weight, shift: (np.ones(q.shape[1]), 0))


def regression(evidence):
    """Fitted values, from evidence that was not calibrated."""
    return evidence / UNIT + 0.5


def kernels(X, rates):
    """Kernels to choose from, 1 / median distance of rows that differ being the unit."""
    apart = np.abs(X[:, None].astype(float) - X)
    one, two = ((apart**power).sum(-1) for power in (1, 2))
    laplace, gauss = (1 / np.median(d[d > 0]) for d in (one, two))
    return [
        Kernel(rate * laplace, with_gauss * rate * gauss)
        for rate in rates
        for with_gauss in (0, 1)
    ]


def values_of(kernel, A, B):
    """Kernel values by scikit-learn."""
    A, B = A.astype(float), B.astype(float)
    laplace = laplacian_kernel(A, B, gamma=kernel.laplace)
    if not kernel.gauss:
        return laplace
    return (laplace + rbf_kernel(A, B, gamma=kernel.gauss)) / 2


def about(kernel):
    return [pytest.approx(rate, rel=1e-12) for rate in (kernel.laplace, kernel.gauss)]


# ------------------------------------------------------------------------------ the regression


@pytest.mark.parametrize("penalty", [0.03, 0.3, 10.0])
def test_it_is_the_kernel_ridge_of_scikit_learn(monkeypatch, penalty):
    shaped(monkeypatch, penalty)
    rng = np.random.default_rng(8)
    X, ASK = (rng.normal(size=(n, 8)).astype(np.float32) for n in (N, 30))  # none near another
    fitted, _ = fit_kernel_ridge(X, Y, ONES, 0)
    rates = [fitted.kernel.laplace, fitted.kernel.gauss]
    assert rates in [about(kernel) for kernel in kernels(X, [1.0])]
    other = kernel_ridge.KernelRidge(alpha=penalty, kernel="precomputed")
    K = values_of(fitted.kernel, X, X)
    other.fit(K, Y - Y.mean(0))
    # The jitter j makes K (K + j)^-1 K of the kernel. Along an eigenvector of K of value k the
    # coefficients move by p j / ((k^2 + p k + p j) (k + p)) of the labels' part, p being the
    # penalty; a row's kernel values have a part of sqrt(k) there at most.
    k = np.maximum(np.linalg.eigvalsh(K), 0)
    moved = np.sqrt(k) * penalty * JITTER
    moved /= (k**2 + penalty * k + penalty * JITTER) * (k + penalty)
    most = moved.max() * np.linalg.norm(Y - Y.mean(0), axis=0).max() + 1e-10
    assert most < 2e-3  # so that the test says something
    for rows in (X, ASK):
        expected = Y.mean(0) + other.predict(values_of(fitted.kernel, rows, X))
        np.testing.assert_allclose(regression(fitted.evidence(rows)), expected, 0, most)


def nystroem(rows, landmarks, kernel):
    """Rows as vectors whose inner products are the kernel spanned by the landmarks."""
    K = values_of(kernel, landmarks, landmarks) + JITTER * np.eye(len(landmarks))
    root = scipy.linalg.cholesky(K, lower=True)
    values = values_of(kernel, rows, landmarks)
    return scipy.linalg.solve_triangular(root, values.T, lower=True).T


@pytest.mark.parametrize("gauss", [0, 0.4])
@pytest.mark.parametrize("m", [20, N])
def test_rows_left_out_in_closed_form_are_left_out(m, gauss):
    weight = np.random.default_rng(2).uniform(0.2, 3, N)
    centred = Y - Y.mean(0)
    kernel, penalty = Kernel(0.5, gauss), 0.2
    coef, left_out = ridge._solve(X, X[:m], centred, weight, kernel, penalty)
    vectors = nystroem(X, X[:m], kernel)
    linear = linear_model.Ridge(alpha=penalty, fit_intercept=False, solver="cholesky")
    for i in range(N):
        others = np.arange(N) != i
        linear.fit(vectors[others], centred[others], sample_weight=weight[others])
        # Equations of condition sum(weight) / penalty, below 1e3, on vectors that a triangle
        # of condition sqrt(m / jitter), below 1e4, has made: 1e-16 x 1e7 at most.
        np.testing.assert_allclose(left_out[i], linear.predict(vectors[[i]])[0], 0, 1e-9)
    linear.fit(vectors, centred, sample_weight=weight)
    fitted = values_of(kernel, X, X[:m]) @ coef
    np.testing.assert_allclose(fitted, linear.predict(vectors), 0, 1e-9)


def test_fit_returns_what_rows_left_out_get(monkeypatch):
    shaped(monkeypatch)
    fitted, left_out = fit_kernel_ridge(X, Y, ONES, 0)
    _, expected = ridge._solve(X, X, Y - Y.mean(0), ONES, fitted.kernel, 0.3)
    np.testing.assert_allclose(regression(left_out), Y.mean(0) + expected, 0, 1e-9)
    seen = np.square(Y - regression(fitted.evidence(X))).mean()
    unseen = np.square(Y - regression(left_out)).mean()
    assert seen < unseen < Y.var()


def test_the_chosen_shape_has_the_smallest_error_on_rows_left_out(monkeypatch):
    rates = (0.25, 1.0, 4.0)
    monkeypatch.setattr(ridge, "_RATES", rates)
    monkeypatch.setattr(ridge, "_PENALTIES", np.array([0.01, 0.3, 10.0]))
    x, centred = X[:25], (Y - Y.mean(0))[:25]
    weight = np.random.default_rng(3).uniform(0.2, 3, 25)
    errors = {}
    for kernel in kernels(x, rates):
        for penalty in (0.01, 0.3, 10.0):
            model = kernel_ridge.KernelRidge(alpha=penalty, kernel="precomputed")
            K = values_of(kernel, x, x)
            error = 0.0
            for i in range(25):
                others = np.arange(25) != i
                model.fit(
                    K[np.ix_(others, others)], centred[others], sample_weight=weight[others]
                )
                error += (
                    weight[i] * np.square(centred[i] - model.predict(K[[i]][:, others])).sum()
                )
            errors[kernel, penalty] = error
    found, penalty = ridge._best_shape(x, centred, weight)
    best, best_penalty = min(errors, key=errors.get)
    assert penalty == best_penalty
    assert [found.laplace, found.gauss] == about(best)


def test_evidence_is_calibrated_on_rows_left_out():
    _, left_out = fit_kernel_ridge(X, Y, ONES, 0)
    slope, shift = fit_line(Y, left_out)
    # Fitted already, up to the pull of 20 rows towards slope 1 and the label's frequency;
    # the pull that is left now is as strong at most.
    assert (np.abs(ndtr(left_out).mean(0) - Y.mean(0)) < 0.05).all()
    assert (np.abs(slope - 1) < 0.5).all()
    assert (np.abs(shift) < 0.2).all()
    likelihood = np.log(np.where(Y == 1, ndtr(left_out), ndtr(-left_out))).mean(0)
    share = Y.mean(0)
    assert (likelihood > share * np.log(share) + (1 - share) * np.log(1 - share)).all()


# --------------------------------------------------------------------------- rows of every kind


def test_a_weight_of_two_is_a_row_twice():
    times = np.random.default_rng(4).integers(1, 4, N)
    centred, kernel = Y - Y.mean(0), Kernel(0.5, 0.3)
    weighted, _ = ridge._solve(X, X[:30], centred, times.astype(float), kernel, 0.2)
    X2, Y2 = np.repeat(X, times, 0), np.repeat(centred, times, 0)
    repeated, _ = ridge._solve(X2, X[:30], Y2, np.ones(len(X2)), kernel, 0.2)
    values = values_of(kernel, ASK, X[:30])
    np.testing.assert_allclose(values @ weighted, values @ repeated, 0, 1e-9)


def test_only_ratios_of_weights_count():
    weight = np.random.default_rng(5).uniform(0.2, 3, N)
    one, left_out = fit_kernel_ridge(X, Y, weight, 0)
    other, also = fit_kernel_ridge(X, Y, 8 * weight, 0)
    np.testing.assert_array_equal(other.evidence(ASK), one.evidence(ASK))
    np.testing.assert_array_equal(also, left_out)


def test_sparse_rows_are_as_good_as_dense_ones():
    dense, left_out = fit_kernel_ridge(X, Y, ONES, 0)
    sparse, also = fit_kernel_ridge(sp.csr_array(X), sp.csr_array(Y), ONES, 0)
    assert sp.issparse(sparse.landmarks)
    # Another kernel: of squares. What both say about the rows left out is about as good.
    losses = [-log_ndtr((2 * Y - 1) * e).mean() for e in (left_out, also)]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
    for model in (dense, sparse):
        narrow, wide = model.evidence(ASK), model.evidence(sp.csr_array(ASK))
        np.testing.assert_allclose(narrow, wide, 0, 1e-8)  # sums in another order


def test_a_label_not_observed_is_taken_to_be_the_mean(monkeypatch):
    shaped(monkeypatch)
    unknown = np.random.default_rng(6).random(Y.shape) < 0.3
    holes = np.where(unknown, np.nan, Y)
    filled = np.where(unknown, np.nanmean(holes, axis=0), Y)
    for a, b in zip(
        fit_kernel_ridge(X, holes, ONES, 0), fit_kernel_ridge(X, filled, ONES, 0), strict=True
    ):
        a, b = (v.evidence(ASK) if isinstance(v, KernelRidge) else v for v in (a, b))
        np.testing.assert_allclose(a, b, 0, 1e-9)


def test_of_a_label_never_observed_nothing_is_said():
    holes = Y.copy()
    holes[:, 1] = np.nan
    fitted, left_out = fit_kernel_ridge(X, holes, ONES, 0)
    for evidence in (fitted.evidence(ASK), left_out):
        np.testing.assert_allclose(evidence[:, 1], 0, 0, 1e-12)
        assert evidence[:, 0].std() > 0.1


@pytest.mark.parametrize("m", [1, 7, 40])
def test_fewer_landmarks_than_rows_span_the_kernel(monkeypatch, m):
    monkeypatch.setattr(ridge, "MAX_LANDMARKS", m)
    shaped(monkeypatch)
    fitted, left_out = fit_kernel_ridge(X, Y, ONES, 0)
    assert fitted.landmarks.shape == (m, D)
    assert {row.tobytes() for row in fitted.landmarks} <= {row.tobytes() for row in X}
    vectors = [nystroem(rows, fitted.landmarks, fitted.kernel) for rows in (X, ASK)]
    linear = linear_model.Ridge(alpha=0.3, fit_intercept=False).fit(vectors[0], Y - Y.mean(0))
    expected = Y.mean(0) + linear.predict(vectors[1])
    np.testing.assert_allclose(regression(fitted.evidence(ASK)), expected, 0, 1e-9)
    assert np.isfinite(left_out).all()


def test_rows_are_answered_in_pieces(monkeypatch):
    fitted, _ = fit_kernel_ridge(X, Y, ONES, 0)
    whole = fitted.evidence(ASK)
    monkeypatch.setattr(similarity, "_CELLS", 7 * N)
    # Products of other shapes may be added in another order.
    np.testing.assert_allclose(fitted.evidence(ASK), whole, 0, 1e-10)
    assert fitted.evidence(ASK[:0]).shape == (0, L)


def test_weighted_evidence_is_multiplied_label_by_label():
    fitted, _ = fit_kernel_ridge(X, Y, ONES, 0)
    weight = np.resize([0.3, 0.0, 1.7], L)
    weighted = fitted.weighted(weight)
    # Sums of N products, none above 10: roundings below 1e-12.
    np.testing.assert_allclose(weighted.evidence(ASK), weight * fitted.evidence(ASK), 0, 1e-12)
    assert type(weighted) is KernelRidge


@pytest.mark.parametrize("case", ["constant labels", "equal rows", "one row", "far", "two"])
def test_nothing_odd_breaks_it(case):
    x, y = X.copy(), Y.copy()
    if case == "constant labels":
        y[:, 0], y[:, 1] = 0, 1
    elif case == "equal rows":
        x[40:], x[:, 2] = x[:40], 1
    elif case == "one row":
        x[:] = x[0]
    elif case == "far":
        x[0] = np.finfo(np.float32).max  # what features are cut at
    else:
        x, y = x[:2], y[:2]
    fitted, left_out = fit_kernel_ridge(x, y, np.ones(len(x)), 0)
    assert np.isfinite(left_out).all()
    assert np.isfinite(fitted.evidence(x)).all()
    if case == "constant labels":
        assert (left_out[:, 0] < -2).all()  # 0 of 80: -2.5 is Phi^-1(0.5 / 81)
        assert (left_out[:, 1] > 2).all()


def test_equal_rows_tell_of_no_scale():
    """Of 64 features the squared distance of equal rows is 1e-14 rather than 0."""
    rng = np.random.default_rng(7)
    kinds = rng.normal(size=(2, 64)).astype(np.float32)
    which = (np.arange(N) < 8).astype(int)  # most pairs are equal rows
    between = np.abs(kinds[0].astype(float) - kinds[1])
    y = (rng.random((N, 1)) < np.where(which == 1, 0.9, 0.1)[:, None]).astype(float)
    for convert in (np.asarray, sp.csr_array):
        fitted, left_out = fit_kernel_ridge(convert(kinds[which]), y, ONES, 0)
        rates = fitted.kernel.laplace * between.sum(), fitted.kernel.gauss * (between**2).sum()
        assert max(rates) > 0
        for rate in filter(None, rates):
            assert np.isclose(rate, ridge._RATES, rtol=1e-6).any()
        assert left_out[which == 1].min() > left_out[which == 0].max()


# ------------------------------------------------------------------------------------- to file


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_arrays_hold_everything(convert):
    fitted, _ = fit_kernel_ridge(convert(X), Y, ONES, 0)
    arrays = {name: array.copy() for name, array in fitted.arrays().items()}
    again = KernelRidge.from_arrays(arrays, D, L)
    np.testing.assert_array_equal(again.evidence(ASK), fitted.evidence(ASK))
    for n_features, n_labels in ((D - 1, L), (D, L - 1), (D, L + 1)):
        with pytest.raises(ValueError, match="does not fit"):
            KernelRidge.from_arrays(arrays, n_features, n_labels)


DENSE = fit_kernel_ridge(X, Y, ONES, 0)[0].arrays()
SPARSE = fit_kernel_ridge(sp.csr_array(X), Y, ONES, 0)[0].arrays()


def put(array, value):
    changed = array.copy()
    changed.flat[3 % changed.size] = value
    return changed


@pytest.mark.parametrize(
    ("arrays", "name", "change"),
    [
        (DENSE, "landmarks", lambda a: a[:-1]),
        (DENSE, "landmarks", lambda a: a.astype(float)),
        (DENSE, "landmarks", lambda a: put(a, np.nan)),
        (DENSE, "landmarks", lambda a: put(a, np.inf)),
        (DENSE, "landmarks", lambda a: a[None]),
        (DENSE, "landmarks", np.ravel),
        (DENSE, "coef", lambda a: a[1:]),
        (DENSE, "coef", lambda a: a[..., None]),
        (DENSE, "coef", lambda a: a.astype(np.float32)),
        (DENSE, "coef", lambda a: put(a, np.nan)),
        (DENSE, "intercept", lambda a: put(a, -np.inf)),
        (DENSE, "intercept", lambda a: a[:-1]),
        (DENSE, "intercept", lambda a: a[:, None]),
        (DENSE, "rates", lambda a: 0 * a),
        (DENSE, "rates", np.negative),
        (DENSE, "rates", lambda a: a * np.nan),
        (DENSE, "rates", lambda a: a + np.inf),
        (DENSE, "rates", lambda a: np.repeat(a, 2)),
        (DENSE, "rates", lambda a: a[0]),
        (SPARSE, "rates", lambda a: a + 1),
        (SPARSE, "landmarks.data", lambda a: put(a, np.nan)),
        (SPARSE, "landmarks.data", lambda a: a.astype(float)),
        (SPARSE, "landmarks.data", lambda a: a[:-1]),
        (SPARSE, "landmarks.indices", lambda a: put(a, D)),
        (SPARSE, "landmarks.indices", lambda a: put(a, -1)),
        (SPARSE, "landmarks.indices", lambda a: a.astype(float)),
        (SPARSE, "landmarks.indices", lambda a: a.astype(np.int8)),
        (SPARSE, "landmarks.indices", lambda a: a[:, None]),
        (SPARSE, "landmarks.indptr", lambda a: a[:-1]),
        (SPARSE, "landmarks.indptr", lambda a: a[1:]),
        (SPARSE, "landmarks.indptr", lambda a: a[:0]),
        (SPARSE, "landmarks.indptr", lambda a: a[::-1]),
        (SPARSE, "landmarks.indptr", lambda a: put(a, 10**6)),
        (SPARSE, "landmarks.indptr", lambda a: put(a, -1)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, name, change):
    with pytest.raises(ValueError, match=r"kernel machine|sparse matrix"):
        KernelRidge.from_arrays(arrays | {name: change(arrays[name])}, D, L)


def test_a_machine_without_landmarks_is_refused():
    empty = {"landmarks": DENSE["landmarks"][:0], "coef": DENSE["coef"][:0]}
    with pytest.raises(ValueError, match="does not fit"):
        KernelRidge.from_arrays(DENSE | empty, D, L)


def test_positions_that_rise_by_overflow_alone_are_refused():
    """Each difference is positive once it has wrapped round, but most places lie outside."""
    far, n_entries = 2**62, len(SPARSE["landmarks.indices"])
    wild = np.array([0, far, 2 * far - 1, -2 * far, -far, 0, n_entries])
    assert (np.diff(wild) > 0).all()
    changed = {"landmarks.indptr": wild, "coef": np.zeros((6, L))}
    with pytest.raises(ValueError, match="sparse matrix does not fit"):
        KernelRidge.from_arrays(SPARSE | changed, D, L)
