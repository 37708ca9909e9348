"""The classifier as its users meet it: every kind of table, every promise of the docstrings."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import torch
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mpvae import (
    ConfigError,
    DataError,
    MPVAEClassifier,
    MPVAEError,
    associations,
    estimator,
    inference,
    load_model,
    members,
    metrics,
    questions,
)
from mpvae.calibration import apply_probit, fit_probit
from mpvae.config import DataShape
from mpvae.data import simulate_probit
from mpvae.decisions import PAPER_THRESHOLDS
from mpvae.presets import resolve
from mpvae.progress import FitProgress
from mpvae.rows import Rows

METRICS = ("example_f1", "micro_f1", "macro_f1", "hamming", "subset")
LOSS_TERMS = ("total", "ce_x", "ce_y", "rank_x", "rank_y", "entropy_x", "entropy_y", "kl")
DATA = simulate_probit(60, n_features=4, n_labels=3, n_factors=1, seed=1)
X, Y = DATA.X, DATA.Y
FRAME = pd.DataFrame(X, columns=["a", "b", "c", "d"], index=[f"site{i}" for i in range(60)])
LABELS = pd.DataFrame(Y, columns=["trout", "[red] algae", "Äsche"], index=FRAME.index)


def tiny(**changes):
    settings = {
        "hidden": (16,),
        "latent_dim": 4,
        "n_draws": 8,
        "n_members": 2,
        "max_epochs": 5,
        "random_state": 0,
    }
    return MPVAEClassifier(**settings | changes)


@pytest.fixture(scope="module")
def model():
    return tiny().fit(X, Y)


@pytest.fixture(scope="module")
def named():
    return tiny().fit(FRAME, LABELS)


def mixed_frame():
    """Numbers, booleans, text and their nullable and categorical kin, each with gaps."""
    rows = np.arange(60)
    return FRAME.assign(
        ground=np.where(rows % 7 == 0, None, np.where(X[:, 0] > 0, "sand", "mud")),
        wet=X[:, 1] > 0,
        count=pd.array([None if i % 5 == 0 else i for i in rows], dtype="Int64"),
        maybe=pd.array([None if i % 4 == 0 else bool(i % 2) for i in rows], dtype="boolean"),
        kind=pd.Categorical(np.where(X[:, 2] > 0, "x", "y"), categories=["y", "x", "z"]),
        note=pd.array([None if i % 3 == 0 else "n" for i in rows], dtype="string"),
        c=np.where(rows % 6 == 0, np.nan, X[:, 2]),
    )


def check_probabilities(P, n=60, L=3):
    values = np.asarray(P)
    assert values.shape == (n, L)
    assert ((values > 0) & (values < 1)).all()


# ------------------------------------------------------------------------- kinds of features


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        np.asfortranarray,
        np.ndarray.tolist,
        lambda x: x.astype(np.float32),
        sp.csr_array,
        sp.csc_array,
        sp.coo_array,
        sp.csr_matrix,
        sp.csc_matrix,
        sp.coo_matrix,
        lambda x: pd.DataFrame(x),
        lambda x: pd.DataFrame(x, columns=list("abcd")),
        lambda x: pl.DataFrame(x, schema=list("abcd")),
        lambda x: pl.DataFrame(x, schema=list("abcd")).lazy(),
        lambda x: pd.DataFrame.sparse.from_spmatrix(sp.csr_matrix(x)),
    ],
)
def test_any_kind_of_numeric_table_can_be_learnt_from(convert):
    table = convert(X)
    fitted = tiny(max_epochs=2).fit(table, Y)
    assert fitted.n_features_in_ == 4
    check_probabilities(fitted.predict_proba(table))


def test_kinds_of_dense_tables_give_one_model(model):
    expected = model.predict_proba(X)
    for table in (X.tolist(), pd.DataFrame(X), np.asfortranarray(X)):
        np.testing.assert_array_equal(tiny().fit(table, Y).predict_proba(table), expected)


def test_kinds_of_sparse_tables_give_one_model():
    thin = np.where(np.abs(X) < 0.5, 0, X)
    models = [
        tiny(max_epochs=2).fit(kind(thin), Y)
        for kind in (sp.csr_array, sp.csc_matrix, sp.coo_array)
    ]
    expected = models[0].predict_proba(thin)
    for other in models:
        # Dense rows are scaled in one float64 step, sparse ones by the inverse scale: they
        # differ by float32 rounding, 6e-8 of a feature, before a network of slope about 1.
        np.testing.assert_allclose(other.predict_proba(sp.csr_array(thin)), expected, atol=1e-6)


def test_stored_zeros_change_nothing():
    thin = np.where(np.abs(X) < 0.5, 0, X)
    stored = sp.csr_array(
        (thin.ravel(), np.tile(np.arange(4), 60), np.arange(0, 241, 4)), shape=(60, 4)
    )
    assert stored.nnz > sp.csr_array(thin).nnz
    np.testing.assert_array_equal(
        tiny(max_epochs=2).fit(stored, Y).predict_proba(thin),
        tiny(max_epochs=2).fit(sp.csr_array(thin), Y).predict_proba(thin),
    )


def test_a_model_of_dense_rows_answers_alike_for_sparse_ones(model):
    np.testing.assert_array_equal(model.predict_proba(sp.csr_array(X)), model.predict_proba(X))


def test_wide_sparse_features_are_never_dense_as_a_whole(monkeypatch):
    wide = sp.random_array((400, 3000), density=0.001, random_state=0, format="csr")
    labels = (np.asarray(wide.sum(axis=1)).ravel()[:, None] > [1.0, 2.0]).astype(int)
    largest = 0
    toarray = sp.csr_array.toarray

    def watched(self, *args, **kwargs):
        nonlocal largest
        if self.shape[1] == 3000:
            largest = max(largest, self.shape[0])
        return toarray(self, *args, **kwargs)

    monkeypatch.setattr(sp.csr_array, "toarray", watched)
    tiny(hidden=(4,), max_epochs=1, batch_size=32).fit(wide, labels)
    assert 0 < largest <= 200  # one fold of two, never both


def test_mixed_columns_with_gaps_are_learnt_from_and_predicted():
    table = mixed_frame()
    fitted = tiny().fit(table, LABELS)
    check_probabilities(fitted.predict_proba(table))
    assert fitted.feature_names_in_.tolist() == table.columns.tolist()
    unseen = table.assign(ground="glacier", note=None, kind="z", count=None, wet=True)
    check_probabilities(fitted.predict_proba(unseen))


def test_text_from_polars_is_understood():
    table = pl.from_pandas(mixed_frame().reset_index(drop=True))
    fitted = tiny(max_epochs=2).fit(table, pl.from_pandas(LABELS))
    assert fitted.label_names_.tolist() == LABELS.columns.tolist()
    check_probabilities(fitted.predict_proba(table))


def test_category_codes_read_as_numbers_at_prediction_are_still_categories():
    table = pd.DataFrame({"code": np.where(X[:, 0] > 0, "1", "A"), "x": X[:, 1]})
    fitted = tiny(max_epochs=2).fit(table, Y)
    some = pd.DataFrame({"code": ["1", "1"], "x": [0.0, 1.0]})
    np.testing.assert_array_equal(
        fitted.predict_proba(some.assign(code=[1, 1])), fitted.predict_proba(some)
    )


def test_missing_numbers_are_allowed_wherever_they_are(model):
    gaps = X.copy()
    gaps[::3, 0] = np.nan
    gaps[:, 3] = np.nan
    check_probabilities(tiny(max_epochs=2).fit(gaps, Y).predict_proba(gaps))
    check_probabilities(model.predict_proba(gaps))


@pytest.mark.parametrize("table", [FRAME, mixed_frame()], ids=["numbers", "mixed"])
def test_infinite_features_are_refused_by_name(table):
    with pytest.raises(DataError, match="X contains inf in column b"):
        tiny().fit(table.assign(b=np.inf), Y)


@pytest.mark.parametrize("of_labels", [False, True])
def test_names_that_no_file_could_hold_are_refused(of_labels):
    X, labels = FRAME.copy(), pd.DataFrame(Y)
    table = labels if of_labels else X
    table.columns = pd.Index(["\ud800", *"xyz"][: table.shape[1]], dtype=object)
    with pytest.raises(DataError, match=r"'\\ud800' holds half of a character"):
        tiny().fit(X, labels)


def test_infinite_features_are_refused_at_prediction(model):
    with pytest.raises(DataError, match="X contains inf in column 2"):
        model.predict(np.array([[0, 0, -np.inf, 0]]))


def test_an_identifier_is_refused_by_name():
    many = pd.DataFrame({"id": [f"row{i}" for i in range(180)], "x": 1.0})
    with pytest.raises(DataError, match="column 'id' has 180 distinct text values"):
        tiny().fit(many, np.tile(Y, (3, 1)))


def test_other_feature_names_at_prediction_are_refused(named):
    with pytest.raises(ValueError, match="feature names should match"):
        named.predict(FRAME.rename(columns={"a": "z"}))
    with pytest.raises(ValueError, match="same order"):
        named.predict(FRAME[["b", "a", "c", "d"]])
    with pytest.raises(ValueError, match="3 features"):
        tiny(max_epochs=1).fit(X, Y).predict(X[:, :3])


def test_text_at_prediction_where_training_had_numbers_is_refused_by_name(named):
    with pytest.raises(DataError, match="text in column b, where training had numbers"):
        named.predict(FRAME.assign(b="deep"))


def test_extreme_rows_have_finite_answers(model):
    extreme = np.array([[1e300, 0, 0, 0], [-1e39, 1e39, 0, 0], [1e-300, 0, 0, 0]])
    check_probabilities(model.predict_proba(extreme), n=3)


# --------------------------------------------------------------------------- kinds of labels


@pytest.mark.parametrize(
    "convert",
    [
        np.ndarray.tolist,
        lambda y: y.astype(bool),
        lambda y: y.astype(float),
        sp.csr_array,
        sp.csc_matrix,
        lambda y: pd.DataFrame(y),
        lambda y: pl.DataFrame(y.astype(bool), schema=["x", "y", "z"]),
    ],
)
def test_every_form_of_the_labels_gives_the_same_model(convert, model):
    np.testing.assert_allclose(
        tiny().fit(X, convert(Y)).predict_proba(X), model.predict_proba(X), atol=1e-6
    )


def test_label_names_and_index_reach_a_pandas_prediction(named):
    assert named.label_names_.tolist() == LABELS.columns.tolist()
    told = clone(named).set_output(transform="pandas").fit(FRAME, LABELS)
    for answer in (
        told.predict_proba(FRAME),
        told.predict(FRAME),
        told.decision_function(FRAME),
    ):
        assert answer.columns.tolist() == LABELS.columns.tolist()
        assert answer.index.equals(FRAME.index)
    np.testing.assert_array_equal(told.predict_proba(FRAME), named.predict_proba(FRAME))
    assert isinstance(told.set_output(transform="default").predict(FRAME), np.ndarray)


def test_label_names_reach_a_polars_prediction():
    told = tiny(max_epochs=2).set_output(transform="polars")
    table = pl.from_pandas(FRAME.reset_index(drop=True))
    answer = told.fit(table, pl.from_pandas(LABELS)).predict_proba(table)
    assert isinstance(answer, pl.DataFrame)
    assert answer.columns == LABELS.columns.tolist()


def test_an_unknown_output_is_refused(model):
    with pytest.raises(ConfigError, match="'pandas' or 'polars', got 'arrow'"):
        clone(model).set_output(transform="arrow")


def test_one_label_in_a_frame_is_a_table_of_one_label():
    fitted = tiny().fit(FRAME, LABELS[["trout"]])
    check_probabilities(fitted.predict_proba(FRAME), L=1)
    assert fitted.predict(FRAME).shape == (60, 1)
    assert fitted.correlation_.tolist() == [[1.0]]


@pytest.mark.parametrize("classes", [("no", "yes"), (-1, 1), (False, True), (0, 1)])
def test_one_binary_vector_keeps_its_encoding(classes):
    y = np.array(classes)[Y[:, 0]]
    fitted = tiny().fit(X, y)
    assert fitted.classes_.tolist() == list(classes)
    P = fitted.predict_proba(X)
    assert P.shape == (60, 2)
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-15)
    assert set(fitted.predict(X)) <= set(classes)
    assert fitted.decision_function(X).shape == (60,)
    assert fitted.score(X, y) == np.mean(fitted.predict(X) == y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y + 1, "got 2 in row"),
        (np.where(Y == 1, np.nan, 0.0), "y holds NaN in row"),
        (Y[:-1], "X has 60 rows but y has 59"),
        (np.arange(60) % 3, "Only binary classification is supported"),
        (np.zeros(60), "y holds one class"),
        (None, "the target y is None"),
        (np.zeros((60, 0)), "0 feature"),
        (Y[None], "dim"),
    ],
)
def test_labels_that_make_no_sense_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        tiny().fit(X, y)


@pytest.mark.parametrize("value", [0, 1])
def test_constant_labels_can_be_learnt(value):
    fitted = tiny().fit(X, np.full((60, 2), value))
    check_probabilities(fitted.predict_proba(X), L=2)
    assert (fitted.predict(X, metric="hamming") == value).all()
    some = Y.copy()
    some[:, 1] = value
    check_probabilities(tiny(max_epochs=2).fit(X, some).predict_proba(X))


def test_rows_without_and_with_all_labels_can_be_learnt():
    some = Y.copy()
    some[:20], some[20:40] = 0, 1
    check_probabilities(tiny(max_epochs=2).fit(X, some).predict_proba(X))


# ----------------------------------------------------------------------- seeds, rows, weights


def test_the_same_seed_gives_the_same_model_and_another_seed_another(model):
    np.testing.assert_array_equal(tiny().fit(X, Y).predict_proba(X), model.predict_proba(X))
    other = tiny(random_state=1).fit(X, Y).predict_proba(X)
    assert np.abs(other - model.predict_proba(X)).max() > 1e-3


@pytest.mark.parametrize(
    "kind",
    [np.asarray, sp.csr_array, lambda x: pd.DataFrame(x, columns=list("abcd")).assign(t="u")],
)
def test_the_order_of_rows_does_not_matter(kind):
    order = np.random.default_rng(0).permutation(60)
    table = kind(X)
    shuffled = table.iloc[order] if isinstance(table, pd.DataFrame) else table[order]
    first = tiny(max_epochs=2).fit(table, Y)
    second = tiny(max_epochs=2).fit(shuffled, Y[order])
    np.testing.assert_array_equal(second.predict_proba(table), first.predict_proba(table))


def test_repeating_rows_is_weighting_them():
    times = np.random.default_rng(0).integers(0, 4, 60)
    rows = np.repeat(np.arange(60), times)
    repeated = tiny(max_epochs=3).fit(X[rows], Y[rows])
    weighted = tiny(max_epochs=3).fit(X, Y, sample_weight=times)
    np.testing.assert_array_equal(weighted.predict_proba(X), repeated.predict_proba(X))
    for metric in METRICS:
        np.testing.assert_array_equal(
            weighted.thresholds_[metric], repeated.thresholds_[metric]
        )


def test_rows_of_next_to_no_weight_are_left_out(tmp_path):
    odd = np.arange(60) % 2 == 1
    weight = np.where(odd, 1e300, 1e-300)
    model = tiny(base="forest", max_epochs=1).fit(X, Y, sample_weight=weight)
    model.save(tmp_path / "m")
    without = tiny(base="forest", max_epochs=1).fit(X[odd], Y[odd])
    found = load_model(tmp_path / "m").predict_proba(X)
    np.testing.assert_allclose(found, without.predict_proba(X), rtol=1e-9)


def test_weights_that_make_no_sense_are_refused():
    for weight in (np.zeros(60), np.full(60, -1.0), np.ones(59), np.full(60, np.nan)):
        with pytest.raises(ValueError, match=r"weight"):
            tiny().fit(X, Y, sample_weight=weight)


def test_the_random_states_of_the_caller_are_left_alone():
    np.random.seed(5)  # noqa: NPY002 - the global state is what is tested
    torch.manual_seed(5)
    before = np.random.get_state()[1].copy(), torch.random.get_rng_state()  # noqa: NPY002
    tiny(z_draws=4, max_epochs=2).fit(X, Y).predict(X)
    after = np.random.get_state()[1], torch.random.get_rng_state()  # noqa: NPY002
    np.testing.assert_array_equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("z_draws", [0, 8])
def test_a_prediction_depends_on_its_row_alone(z_draws):
    fitted = tiny(z_draws=z_draws, max_epochs=2).fit(X, Y)
    together = fitted.predict_proba(X)
    np.testing.assert_array_equal(fitted.predict_proba(X), together)
    one_by_one = np.vstack([fitted.predict_proba(X[i : i + 1]) for i in range(60)])
    # Matrix products in float64 may add up in another order: a few 1e-16 per layer.
    np.testing.assert_allclose(one_by_one, together, rtol=0, atol=1e-12)


def test_features_and_labels_of_the_caller_are_not_changed():
    table, labels = mixed_frame(), LABELS.copy()
    tiny(max_epochs=1).fit(table, labels).predict(table)
    pd.testing.assert_frame_equal(table, mixed_frame())
    pd.testing.assert_frame_equal(labels, LABELS)


# ---------------------------------------------------------------------- training and history


def test_history_has_every_term_and_score_of_every_epoch(model):
    history = model.history_
    assert set(history.columns) >= {
        "member", "epoch", "lr", "is_best", "val_log_loss", "val_micro_f1", *LOSS_TERMS,
    }  # fmt: skip
    assert history["member"].tolist() == [0] * 5 + [1] * 5
    assert history["epoch"].tolist() == [1, 2, 3, 4, 5] * 2
    assert model.n_epochs_ == 5
    assert np.isfinite(history.drop(columns="is_best").to_numpy(float)).all()
    for _, member in history.groupby("member"):
        best = member["val_log_loss"].cummin()
        assert (
            member["is_best"] == (member["val_log_loss"] < best.shift(fill_value=np.inf))
        ).all()


def test_given_validation_rows_judge_every_member():
    fitted = tiny().fit(X[:40], Y[:40], X[40:], Y[40:])
    assert len(fitted.networks_) == 2
    P = fitted.predict_proba(X[40:])
    assert fitted.validation_scores_["log_loss"] == pytest.approx(metrics.log_loss(Y[40:], P))
    Z = fitted.predict(X[40:])
    assert fitted.validation_scores_["micro_f1"] == metrics.DECISION_METRICS["micro_f1"](
        Y[40:], Z
    )


def test_validation_rows_of_another_shape_are_refused():
    for bad in ({"X_val": X}, {"y_val": Y}):
        with pytest.raises(DataError, match="X_val and y_val belong together"):
            tiny().fit(X, Y, **bad)
    with pytest.raises(DataError, match="y_val has 2 labels, the model 3"):
        tiny().fit(X, Y, X, Y[:, :2])
    with pytest.raises(DataError, match="X_val has 60 rows but y_val has 59"):
        tiny().fit(X, Y, X, Y[1:])


def test_a_single_member_holds_out_a_share_of_the_rows():
    fitted = tiny(n_members=1, validation_fraction=0.25).fit(X, Y)
    assert len(fitted.networks_) == 1
    assert fitted.validation_scores_.keys() == {*METRICS, "log_loss", "calibration_error"}
    without = tiny(n_members=1, validation_fraction=0).fit(X, Y)
    assert without.validation_scores_ == {}
    assert set(without.thresholds_.values()) == {0.5}
    assert without.history_["val_log_loss"].isna().all()


def test_without_patience_training_goes_on_to_the_end():
    hopeless = {"lr": 0.1, "max_epochs": 12, "n_members": 1, "validation_fraction": 0.3}
    assert tiny(patience=None, **hopeless).fit(X, Y).n_epochs_ == 12
    assert tiny(patience=1, **hopeless).fit(X, Y).n_epochs_ < 12


def test_few_rows_make_fewer_members():
    fitted = tiny(n_members=5, max_epochs=1).fit(X[:6], Y[:6])
    assert len(fitted.networks_) == fitted.settings_.n_members == 3
    assert len(tiny(max_epochs=1).fit(X[:2], Y[:2]).networks_) == 1


def test_a_loss_that_is_not_finite_ends_the_fit_with_advice():
    with (
        pytest.warns(UserWarning, match="such a step is not taken"),
        pytest.raises(MPVAEError, match="lower lr, or look for extreme values"),
    ):
        tiny(lr=1e20, batch_size=4).fit(X, Y)


@pytest.mark.parametrize("stop", [(0, 2), (1, 1), (1, 3)])
def test_an_interrupt_leaves_a_fitted_model_and_is_raised_on(stop, monkeypatch):
    update = FitProgress.update

    def interrupted(self, *, member, epoch, **rest):
        update(self, member=member, epoch=epoch, **rest)
        if (member, epoch) == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(FitProgress, "update", interrupted)
    estimator = tiny()
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(X, Y)
    assert len(estimator.networks_) == stop[0] + 1
    assert len(estimator.history_) == 5 * stop[0] + stop[1]
    check_probabilities(estimator.predict_proba(X))
    assert estimator.predict(X).shape == (60, 3)


def test_an_interrupt_between_training_and_judging_keeps_the_members_before(monkeypatch):
    train, marginals, trained = members.train, inference.marginals, []

    def counted(*args, **kwargs):
        result = train(*args, **kwargs)
        trained.append(1)
        return result

    def interrupted(*args, **kwargs):
        if len(trained) == 2:
            trained.append(1)
            raise KeyboardInterrupt
        return marginals(*args, **kwargs)

    monkeypatch.setattr(members, "train", counted)
    monkeypatch.setattr(inference, "marginals", interrupted)
    estimator = tiny()
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(X, Y)
    assert len(estimator.networks_) == len(estimator.code_loadings_) == 1
    check_probabilities(estimator.predict_proba(X))


def test_an_interrupt_after_the_last_training_keeps_all_members(monkeypatch):
    loadings, calls = inference.code_loadings, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return loadings(*args, **kwargs)

    whole = tiny().fit(X, Y)
    monkeypatch.setattr(inference, "code_loadings", interrupted)
    estimator = tiny()
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(X, Y)
    assert len(estimator.networks_) == len(estimator.code_loadings_) == 2
    np.testing.assert_array_equal(estimator.predict_proba(X), whole.predict_proba(X))
    assert estimator.validation_scores_ == whole.validation_scores_


# ------------------------------------------------------------------- decisions and covariance


@pytest.mark.parametrize("kind", ["auto", "paper", "exact", "per_label"])
def test_every_metric_has_a_threshold_of_its_kind(kind):
    fitted = tiny(threshold=kind, max_epochs=2).fit(X, Y)
    for metric in METRICS:
        threshold = fitted.thresholds_[metric]
        if kind == "per_label" or (kind == "auto" and metric == "macro_f1"):
            assert threshold.shape == (3,)
        else:
            assert isinstance(threshold, float)
        if kind == "paper":
            assert threshold in PAPER_THRESHOLDS
        decided = fitted.predict(X, metric=metric, rule="threshold")
        np.testing.assert_array_equal(decided, fitted.predict_proba(X) >= threshold)


@pytest.mark.parametrize("metric", METRICS)
def test_score_is_the_metric_of_the_predictions(metric):
    fitted = tiny(metric=metric, max_epochs=2).fit(X, Y)
    expected = metrics.DECISION_METRICS[metric](Y, fitted.predict(X))
    assert fitted.score(X, Y) == expected
    np.testing.assert_array_equal(fitted.predict(X), fitted.predict(X, metric=metric))


def test_an_unknown_metric_is_refused_with_the_known_ones(model):
    with pytest.raises(ConfigError, match=r"one of example_f1, .*, got 'f1'"):
        model.predict(X, metric="f1")
    with pytest.raises(ConfigError, match=r"one of example_f1, .*, got 'f1'"):
        tiny(metric="f1").fit(X, Y)


def test_score_takes_no_weights_for_several_labels(model):
    with pytest.raises(DataError, match="score takes no sample_weight"):
        model.score(X, Y, sample_weight=np.ones(60))


def test_the_decision_function_is_positive_where_the_probability_exceeds_one_half(model):
    scores, P = model.decision_function(X), model.predict_proba(X)
    np.testing.assert_array_equal(scores > 0, P > 0.5)
    assert np.isfinite(scores).all()
    assert (np.argsort(scores, axis=None) == np.argsort(P, axis=None)).all()


def test_covariances_are_what_they_claim_to_be(model):
    for covariance in (model.covariance_, model.sigma_g_):
        np.testing.assert_array_equal(covariance, covariance.T)
        # Sigma_g = I + B B^T: no eigenvalue below 1, up to rounding.
        assert np.linalg.eigvalsh(covariance).min() > 1 - 1e-12
    # What the latent code adds has no negative variance.
    assert np.linalg.eigvalsh(model.covariance_ - model.sigma_g_).min() > -1e-12
    correlation = model.correlation_
    np.testing.assert_array_equal(np.diag(correlation), 1)
    assert np.abs(correlation).max() <= 1
    names = list(model.label_names_)
    block = model.correlation_block(names[1:3], names)
    assert (block.index.tolist(), block.columns.tolist()) == (names[1:3], names)
    np.testing.assert_allclose(block, correlation[1:3], rtol=0, atol=1e-14)
    np.testing.assert_allclose(
        model.correlation_block(names[::-1]), correlation[::-1, ::-1], rtol=0, atol=1e-14
    )
    with pytest.raises(DataError, match="'nobody' is no label of the model"):
        model.correlation_block(["nobody"])
    embedding = model.label_embedding_
    np.testing.assert_array_equal(embedding, np.tril(embedding))
    np.testing.assert_allclose(embedding @ embedding.T, model.sigma_g_, rtol=1e-12)


@pytest.mark.parametrize("preset", ["paper", "authors_code"])
def test_the_published_settings_train(preset):
    fitted = MPVAEClassifier(preset=preset, max_epochs=2, random_state=0).fit(X, Y)
    check_probabilities(fitted.predict_proba(X))
    code = preset == "authors_code"
    settings = fitted.settings_
    assert settings.rank_gain == (5 if code else 1)
    assert settings.beta_power == (1 if code else 2)
    assert settings.lambda_entropy == (0 if code else 0.5)
    assert settings.probability_floor == (5e-7 if code else 0)
    assert settings.hidden == ((256, 512, 256) if code else (512, 256))
    assert (fitted.networks_[0].output_y is not None) == code


@pytest.mark.parametrize(
    "wrong",
    [
        {"preset": "fastest"},
        {"latent_dim": 0},
        {"hidden": {"a": 1}},
        {"lr": -1.0},
        {"dropout": 1.0},
        {"threshold": "best"},
        {"monitor": "accuracy"},
        {"patience": 0},
        {"shared_output": "yes"},
    ],
    ids=str,
)
def test_a_wrong_parameter_is_refused_in_fit_by_name_and_value(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigError) as refused:
        tiny(**wrong).fit(X, Y)
    assert name in str(refused.value)
    assert repr(value) in str(refused.value)


# -------------------------------------------------------------------- within scikit-learn


def test_a_clone_has_the_parameters_and_nothing_learnt(named):
    copy = clone(named)
    assert copy.get_params() == named.get_params()
    assert not hasattr(copy, "networks_")


def test_a_pickled_model_answers_alike(named):
    copy = pickle.loads(pickle.dumps(named))
    np.testing.assert_array_equal(copy.predict_proba(FRAME), named.predict_proba(FRAME))
    assert copy.label_names_.tolist() == named.label_names_.tolist()


def test_cross_validated_probabilities_have_a_column_per_label():
    P = cross_val_predict(tiny(max_epochs=1), X, Y, cv=2, method="predict_proba")
    check_probabilities(P)


def test_a_grid_search_runs_over_the_number_of_factors():
    search = GridSearchCV(tiny(max_epochs=1), {"n_factors": [1, 2]}, cv=2).fit(FRAME, LABELS)
    assert search.best_params_["n_factors"] in (1, 2)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_it_ends_a_pipeline():
    steps = make_pipeline(StandardScaler(), tiny(max_epochs=1)).fit(X, Y)
    check_probabilities(steps.predict_proba(X))
    assert steps.score(X, Y) == steps[-1].score(steps[0].transform(X), Y)


def _probabilities():
    return tiny().fit(X, Y).predict_proba(X)


def test_a_model_trained_in_another_process_is_the_same(model):
    (answer,) = Parallel(n_jobs=2)([delayed(_probabilities)()])
    # Another process may have another number of threads, which add up in another order:
    # float32 rounding, 6e-8, over 5 epochs of 4 steps.
    np.testing.assert_allclose(answer, model.predict_proba(X), atol=1e-4)


# -------------------------------------------------------------------------- recalibration


@pytest.fixture(scope="module")
def recalibrated():
    """A model of one member that trained too long, plain and recalibrated, and its rows."""
    data = simulate_probit(600, n_features=4, n_labels=3, n_factors=1, seed=5)
    learn, judge, new = np.split(np.arange(600), [150, 400])
    settings = {"n_members": 1, "max_epochs": 60, "lr": 0.02, "patience": None, "dropout": 0.0}
    rows = (data.X[learn], data.Y[learn], data.X[judge], data.Y[judge])
    plain, changed = (
        tiny(**settings, monitor="hamming", recalibrate=flag).fit(*rows)
        for flag in (False, True)
    )
    return plain, changed, (data.X[judge], data.Y[judge]), (data.X[new], data.Y[new])


def test_recalibration_is_a_slope_and_a_shift_of_each_label(recalibrated):
    plain, changed, (X_judge, Y_judge), (X_new, _) = recalibrated
    slope, shift = fit_probit(Y_judge, plain.predict_proba(X_judge))
    expected = apply_probit(plain.predict_proba(X_new), slope, shift)
    # Evidence of the judged rows was rounded to float32 before it was weighted, here after:
    # 3e-7 at most of any row, in a mean over 250.
    np.testing.assert_allclose(changed.predict_proba(X_new), expected, rtol=0, atol=1e-7)
    # Factors are left alone; what the code adds is scaled as the means are.
    np.testing.assert_array_equal(changed.sigma_g_, plain.sigma_g_)
    scaled = slope[:, None] * plain.code_loadings_[0]
    np.testing.assert_allclose(changed.code_loadings_[0], scaled, rtol=1e-7)


def test_recalibration_lowers_the_log_loss_of_held_out_rows(recalibrated):
    plain, changed, (X_judge, Y_judge), (X_new, Y_new) = recalibrated
    before, after = (metrics.log_loss(Y_new, m.predict_proba(X_new)) for m in (plain, changed))
    assert after <= before
    held_out = changed.validation_scores_["log_loss"]
    assert held_out <= plain.validation_scores_["log_loss"]
    assert held_out == pytest.approx(metrics.log_loss(Y_judge, changed.predict_proba(X_judge)))


def test_recalibration_of_folds_keeps_or_lowers_the_held_out_log_loss(model):
    changed = tiny(recalibrate=True).fit(X, Y)
    assert changed.validation_scores_["log_loss"] <= model.validation_scores_["log_loss"]


def test_without_held_out_rows_recalibration_changes_nothing():
    plain, changed = (
        tiny(n_members=1, validation_fraction=0, max_epochs=2, recalibrate=flag).fit(X, Y)
        for flag in (False, True)
    )
    np.testing.assert_array_equal(changed.predict_proba(X), plain.predict_proba(X))


# ------------------------------------------------------------------------- very many labels


def test_the_most_probable_labels(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4))
    Y = (X @ rng.normal(size=(4, 12)) + rng.normal(size=(90, 12)) > 1).astype(int)
    model = MPVAEClassifier(
        hidden=8, latent_dim=2, n_draws=4, n_members=2, max_epochs=3, random_state=0
    ).fit(X, Y)
    P = model.predict_proba(X)
    for entries in (1, 50, 10**6):
        monkeypatch.setattr(estimator, "_TOP_ENTRIES", entries)
        for k in (1, 3, 12):
            names, top = model.predict_top(X, k)
            # Rows in batches of another size: sums in another order.
            np.testing.assert_allclose(top, -np.sort(-P, axis=1)[:, :k], rtol=1e-9)
            which = np.array([[int(n.removeprefix("label_")) for n in row] for row in names])
            np.testing.assert_allclose(np.take_along_axis(P, which, 1), top, rtol=1e-9)
    for wrong in (0, 13, 2.0, True):
        with pytest.raises(ConfigError, match="k must be an integer from 1 to 12"):
            model.predict_top(X, wrong)


def test_associations_of_many_labels_are_the_strongest_pairs(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    model = MPVAEClassifier(
        hidden=8, latent_dim=2, n_draws=4, n_members=2, max_epochs=2, random_state=0, base=None
    ).fit(X, (rng.random((60, 8)) < 0.4).astype(int))
    whole = model.associations()
    assert len(whole) == 28
    pd.testing.assert_frame_equal(model.associations(top=5), whole[:5], rtol=1e-8)
    monkeypatch.setattr(questions, "MAX_PAIRS", 10)
    pd.testing.assert_frame_equal(model.associations(), whole[:10], rtol=1e-8)
    with pytest.raises(ConfigError, match="top must be an integer"):
        model.associations(top=0)
    monkeypatch.setattr(associations, "MANY", 7)
    assert set(model.label_groups(3)) == {0, 1, 2}


def test_members_are_judged_on_some_rows_where_labels_are_very_many(monkeypatch):
    assert [members.most_judged(n) for n in (2**10, 2**20)] == [2**12, 100]
    monkeypatch.setattr(members, "most_judged", lambda n_labels: 9)
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(60, 3)), (rng.random((60, 3)) < 0.4).astype(int)
    settings = resolve("default", {"n_members": 3}, DataShape(60, 3, 3))
    rows = Rows(X, Y, np.ones(60))
    for learn, judge in members._splits(rows, None, settings, 0):
        assert len(judge) == 9
        assert not set(judge) & set(learn)
