"""Kernel features: inner products that are the kernel, and files that hold them whole."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics.pairwise import laplacian_kernel

from mpvae import MPVAEClassifier, load_model, similarity
from mpvae.data import simulate_probit
from mpvae.kernel_features import KernelFeatures, fit_kernel_features
from test_model_file import TENSOR_CHANGES, parts, refused, rewrite

N, D = 40, 6
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(N, D)) * (RNG.random((N, D)) < 0.7)).astype(np.float32)
ASK = (RNG.normal(size=(15, D)) * (RNG.random((15, D)) < 0.7)).astype(np.float32)
ONES = np.ones(N)
EPS = float(np.finfo(np.float32).eps)


def uncentred(features, rows):
    """Columns before the mean was taken off."""
    return features.apply(rows).astype(float) + features.shift


def spread_of(features, rows=X):
    """The one scale: a kernel is 1 at distance zero, so squares of columns sum to that."""
    return 1 / np.sqrt(np.square(uncentred(features, rows)).sum(1).mean())


# -------------------------------------------------------------------------------- the kernel


def test_inner_products_are_the_kernel_where_all_rows_are_landmarks():
    """Among training rows, and between these and any others; up to the scale and the centre."""
    features = fit_kernel_features(X, ONES, N, 0)
    assert features.n_outputs == N
    K = laplacian_kernel(X.astype(float), gamma=1 / D)
    eigenvalues = np.linalg.eigvalsh(K)
    assert eigenvalues[0] > 1e-6 * eigenvalues[-1]  # none was lifted
    scale = spread_of(features)
    ours, others = (scale * uncentred(features, rows) for rows in (X, ASK))
    # Mix and shift are float32, and so are the columns. A column is a sum of N products of a
    # kernel value, 1 at most, and an entry of K^(-1/2), whose rows have at most the length
    # 1 / sqrt(smallest eigenvalue): an error of eps sqrt(N) / sqrt(smallest) for each column.
    # Squares of a row's N columns sum to 1, so an inner product is off by sqrt(N) of these,
    # twice; the scale, which is read off the same columns, by as much again.
    error = EPS * np.sqrt(N) / np.sqrt(eigenvalues[0])
    most = 4 * np.sqrt(N) * error
    assert most < 2e-3  # so that the test says something
    np.testing.assert_allclose(ours @ ours.T, K, 0, most)
    between = laplacian_kernel(ASK.astype(float), X.astype(float), gamma=1 / D)
    np.testing.assert_allclose(others @ ours.T, between, 0, most)


def test_with_fewer_landmarks_the_kernel_is_spanned_by_theirs():
    """Nystroem: K(x, landmarks) K(landmarks, landmarks)^-1 K(landmarks, x)."""
    features = fit_kernel_features(X, ONES, 12, 0)
    marks = features.landmarks.astype(float)
    assert features.n_outputs == len(marks) == 12
    assert {row.tobytes() for row in features.landmarks} <= {row.tobytes() for row in X}
    own = laplacian_kernel(marks, gamma=1 / D)
    scale = spread_of(features, features.landmarks)
    columns = scale * uncentred(features, ASK)
    to = laplacian_kernel(ASK.astype(float), marks, gamma=1 / D)
    expected = to @ np.linalg.solve(own, to.T)
    # As above, with 12 landmarks.
    most = 4 * 12 * EPS / np.sqrt(np.linalg.eigvalsh(own)[0])
    assert most < 1e-4
    np.testing.assert_allclose(columns @ columns.T, expected, 0, most)


def test_columns_are_centred_and_of_unit_spread_over_the_training_rows():
    features = fit_kernel_features(X, ONES, 20, 0)
    columns = features.apply(X).astype(float)
    # Means of columns of size 1 or so, their roundings those of float32.
    np.testing.assert_allclose(columns.mean(0), 0, 0, 1e-4)
    assert columns.var(0).mean() == pytest.approx(1, rel=1e-4)
    assert columns.dtype == float
    assert features.apply(X).dtype == np.float32


def test_the_seed_chooses_the_landmarks():
    one, same, other = (fit_kernel_features(X, ONES, 12, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.apply(ASK), same.apply(ASK))
    assert (one.landmarks != other.landmarks).any()


def test_sparse_rows_are_as_good_as_dense_ones():
    dense, sparse = (fit_kernel_features(rows, ONES, 20, 0) for rows in (X, sp.csr_array(X)))
    assert isinstance(sparse.landmarks, np.ndarray)
    long = sp.csr_array(ASK)
    long.indices, long.indptr = long.indices.astype(np.int64), long.indptr.astype(np.int64)
    for features in (dense, sparse):
        for rows in (ASK, sp.csr_array(ASK), long):
            found = features.apply(rows)
            assert isinstance(found, np.ndarray)
            # Products added in another order, then rounded to float32.
            np.testing.assert_allclose(found, dense.apply(ASK), 0, 1e-4)


def test_rows_are_answered_in_pieces(monkeypatch):
    features = fit_kernel_features(X, ONES, 20, 0)
    whole = features.apply(ASK)
    monkeypatch.setattr(similarity, "_CELLS", 40)
    np.testing.assert_allclose(features.apply(ASK), whole, 0, 1e-5)
    assert features.apply(ASK[:0]).shape == (0, 20)
    again = fit_kernel_features(X, ONES, 20, 0)
    np.testing.assert_allclose(again.apply(ASK), whole, 0, 1e-4)


def test_weights_count_as_repetition():
    """Of centre and scale; which rows are landmarks depends on the rows there are."""
    times = np.random.default_rng(3).integers(1, 4, N).astype(float)
    weighted = fit_kernel_features(X, times, N, 0)
    columns = np.repeat(weighted.apply(X).astype(float), times.astype(int), axis=0)
    np.testing.assert_allclose(columns.mean(0), 0, 0, 1e-4)
    assert columns.var(0).mean() == pytest.approx(1, rel=1e-4)
    plain = fit_kernel_features(X, ONES, N, 0)
    np.testing.assert_array_equal(weighted.landmarks, plain.landmarks)
    assert (weighted.shift != plain.shift).any()
    np.testing.assert_array_equal(fit_kernel_features(X, 7 * ONES, N, 0).mix, plain.mix)


# ---------------------------------------------------------------------------------- odd tables


@pytest.mark.parametrize(
    "case", ["constant column", "equal rows", "one row", "all equal", "far"]
)
def test_nothing_odd_breaks_it(case):
    x = X.copy()
    if case == "constant column":
        x[:, 2] = 1
    elif case == "equal rows":
        x[20:] = x[:20]
    elif case == "one row":
        x = x[:1]
    elif case == "all equal":
        x[:] = x[0]
    else:
        x *= 1e4  # every row is at the end of the world
    features = fit_kernel_features(x, np.ones(len(x)), 500, 0)
    assert features.n_outputs == len(x)
    found = features.apply(x)
    assert np.isfinite(found).all()
    assert np.isfinite(features.apply(ASK)).all()
    if case == "equal rows":
        np.testing.assert_array_equal(found[20:], found[:20])
    if case in ("one row", "all equal"):
        # No spread to be scaled to 1: what is left is rounding, and must not be blown up, not
        # for other rows either; theirs is the kernel's difference from 1, in all columns alike.
        assert np.ptp(found, axis=0) == pytest.approx(np.zeros(len(x)))
        assert np.abs(found).max() < 1e-3
        assert np.abs(features.apply(ASK)).max() <= 1 / np.sqrt(len(x)) + 1e-3


# ------------------------------------------------------------------------------------- to file


@pytest.fixture(scope="module")
def arrays():
    return fit_kernel_features(X, ONES, 12, 0).arrays()


def test_arrays_hold_everything(arrays):
    again = KernelFeatures.from_arrays({k: v.copy() for k, v in arrays.items()}, D)
    expected = fit_kernel_features(X, ONES, 12, 0).apply(ASK)
    np.testing.assert_array_equal(again.apply(ASK), expected)


@pytest.mark.parametrize("name", ["landmarks", "mix", "shift"])
@pytest.mark.parametrize("change", TENSOR_CHANGES)
def test_arrays_that_make_no_features_are_refused(arrays, name, change):
    changed = TENSOR_CHANGES[change](arrays[name])
    others = {k: v for k, v in arrays.items() if k != name}
    with pytest.raises((ValueError, LookupError, TypeError)):
        KernelFeatures.from_arrays(others if changed is None else others | {name: changed}, D)


def test_arrays_of_another_width_are_refused(arrays):
    for n_features in (D - 1, D + 1):
        with pytest.raises(ValueError, match="do not fit the features"):
            KernelFeatures.from_arrays(arrays, n_features)
    nothing = {"landmarks": np.empty((0, D), np.float32), "mix": np.empty((0, 0), np.float32)}
    with pytest.raises(ValueError, match="do not fit the features"):
        KernelFeatures.from_arrays(nothing | {"shift": np.empty(0, np.float32)}, D)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    with pytest.raises(ValueError, match="not finite numbers"):
        KernelFeatures.from_arrays(wide, D)


# ------------------------------------------------------------------------------------ the model

DATA = simulate_probit(90, n_features=D, n_labels=3, n_factors=1, seed=0)


def small(**changes):
    settings = {
        "hidden": (8,),
        "latent_dim": 2,
        "n_factors": 2,
        "n_draws": 4,
        "n_members": 2,
        "max_epochs": 2,
        "kernel_features": 10,
        "base": None,
        "random_state": 0,
    }
    return MPVAEClassifier(**settings | changes)


@pytest.mark.parametrize("base", [None, "kernel"])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_networks_see_features_then_kernel_features_then_evidence(base, kind):
    x = kind(np.maximum(DATA.X, 0))
    model = small(base=base).fit(x, DATA.Y)
    wide = model._encode(x)
    assert sp.issparse(wide) == sp.issparse(x)
    wide = wide.toarray() if sp.issparse(wide) else wide
    scaled = model.features_.apply(x)
    np.testing.assert_array_equal(wide[:, D : D + 10], model.kernel_features_.apply(scaled))
    assert wide.shape[1] == D + 10 + (3 if base else 0)
    assert all(net.prior_net[0].in_features == D + 10 for net in model.networks_)
    assert model.settings_.kernel_features == 10
    if base:  # whoever is asked is given the features alone
        assert model.evidence_[0].landmarks.shape[1] == D


def test_none_are_made_where_none_are_wanted():
    model = small(kernel_features=0).fit(DATA.X, DATA.Y)
    assert model.kernel_features_ is None
    assert model.networks_[0].prior_net[0].in_features == D


@pytest.mark.parametrize("changes", [{}, {"kernel_features": 10**4}, {"base": "auto"}], ids=str)
def test_validation_rows_get_them_too(changes):
    model = small(**changes).fit(DATA.X[:60], DATA.Y[:60], X_val=DATA.X[60:], y_val=DATA.Y[60:])
    assert model.kernel_features_.n_outputs == min(60, model.settings_.kernel_features)
    assert np.isfinite(model.predict_proba(DATA.X)).all()


@pytest.mark.parametrize("base", [None, "auto"])
def test_a_loaded_model_is_the_saved_one(base, tmp_path):
    model = small(base=base).fit(DATA.X, DATA.Y)
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_proba(DATA.X), model.predict_proba(DATA.X))
    np.testing.assert_array_equal(
        loaded.log_prob(DATA.X[:5], DATA.Y[:5]), model.log_prob(DATA.X[:5], DATA.Y[:5])
    )


def test_a_model_whose_kernel_features_do_not_fit_is_refused(tmp_path):
    folder = tmp_path / "m"
    small().fit(DATA.X, DATA.Y).save(folder)
    _, tensors = parts(folder)
    names = [name for name in tensors if name.startswith("kernel_features.")]
    assert len(names) == 3
    without = {name: array for name, array in tensors.items() if name not in names}
    wrong = [without, *({k: v for k, v in tensors.items() if k != name} for name in names)]
    fewer = {
        "kernel_features.landmarks": tensors["kernel_features.landmarks"][:9].copy(),
        "kernel_features.mix": tensors["kernel_features.mix"][:9, :9].copy(),
        "kernel_features.shift": tensors["kernel_features.shift"][:9].copy(),
    }
    for case in (*wrong, tensors | fewer):
        rewrite(folder, tensors=case)
        refused(folder, "does not describe a model")
    rewrite(folder, tensors=tensors)
    load_model(folder)
