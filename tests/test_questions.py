"""Questions about labels together: what goes in, what comes out, and what answers are worth."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import torch
from sklearn.exceptions import NotFittedError

from fixtures.make_model_v1 import asked_rows
from mpvae import ConfigError, DataError, MPVAEClassifier, joint, load_model, metrics
from mpvae.data import LabelledTable, simulate_probit
from mpvae.questions import MAX_DRAWS

FIXTURES = Path(__file__).parent / "fixtures"
# One strong factor and weak features: labels say more about each other than features do.
DATA = simulate_probit(
    500, n_features=3, n_labels=6, n_factors=1, feature_strength=0.5, factor_strength=3, seed=0
)
LEARN, ASK = np.arange(400), np.arange(400, 500)
NAMES = ["trout", "[red] algae", "Äsche", "d", "e", "f"]
FRAME = pd.DataFrame(DATA.X, columns=["a", "b", "c"], index=[f"site{i}" for i in range(500)])
LABELS = pd.DataFrame(DATA.Y, columns=NAMES, index=FRAME.index)
X, Y = FRAME.iloc[ASK], LABELS.iloc[ASK].astype(float)
HALF = Y.mask(np.arange(6) >= 3 * np.ones((100, 1)))  # the first three labels are known
UNKNOWN = np.full((100, 6), np.nan)


def small(**changes):
    settings = {
        "hidden": (16,),
        "latent_dim": 2,
        "n_factors": 2,
        "n_draws": 8,
        "n_members": 2,
        "max_epochs": 20,
        "lr": 0.01,
        "random_state": 0,
    }
    return MPVAEClassifier(**settings | changes)


@pytest.fixture(scope="module")
def model():
    return small().fit(FRAME.iloc[LEARN], LABELS.iloc[LEARN])


@pytest.fixture(scope="module")
def nameless():
    """Fitted on arrays; barely trained."""
    return small(max_epochs=1).fit(DATA.X[LEARN], DATA.Y[LEARN])


# ------------------------------------------------------------------------- what can be asked


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        lambda t: np.asarray(t).tolist(),
        lambda t: [[None if np.isnan(v) else v for v in row] for row in np.asarray(t)],
        lambda t: pd.DataFrame(np.asarray(t), columns=[f"label_{i}" for i in range(6)]),
        lambda t: pl.DataFrame(np.asarray(t)[:, :3], schema=["label_0", "label_1", "label_2"]),
        lambda t: sp.csr_array(np.asarray(t)),
    ],
    ids=["array", "list", "None", "pandas", "polars", "sparse"],
)
def test_known_labels_come_in_any_form(nameless, convert):
    expected = nameless.predict_conditional(DATA.X[ASK], HALF.to_numpy())
    answer = nameless.predict_conditional(DATA.X[ASK].tolist(), convert(HALF))
    np.testing.assert_array_equal(answer, expected)


def test_answers_have_a_row_per_row_and_a_column_per_label(model):
    assert model.log_prob(X, Y).shape == (100,)
    values, errors = model.log_prob(X, Y, return_std=True)
    np.testing.assert_array_equal(values, model.log_prob(X, Y))
    assert (errors > 0).all()
    P, effective = model.predict_conditional(X, HALF, return_ess=True)
    np.testing.assert_array_equal(P, model.predict_conditional(X, HALF))
    assert P.shape == (100, 6)
    assert ((effective >= 1) & (effective <= 2 * 128)).all()  # 128 draws, 2 members
    assert model.predict_set(X).shape == (100, 6)


def test_labels_left_out_of_a_frame_or_in_another_order_are_matched_by_name(model):
    expected = model.predict_conditional(X, HALF)
    for known in (HALF[NAMES[:3]], HALF[NAMES[2::-1]], HALF[NAMES[::-1]]):
        np.testing.assert_array_equal(model.predict_conditional(X, known), expected)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (HALF.assign(pike=1.0), r"1 columns are no labels of the model: \['pike'\]"),
        (HALF[["d", "d"]], "several columns are named 'd'"),
        (HALF[:99], "X has 100 rows but the labels have 99"),
        (HALF.to_numpy()[:, :5], "the labels have 5 columns, the model has 6 labels"),
        (HALF.to_numpy()[:, :1], "the labels have 1 columns, the model has 6 labels"),
        (HALF.to_numpy()[:, 0], "the labels have 1 columns, the model has 6 labels"),
        (HALF.assign(d=2.0), "got 2 in row 0, column d"),
        (HALF.assign(d=0.5), "got 0.5 in row 0, column d"),
        (HALF.assign(d=np.inf), "got inf in row 0, column d"),
        (HALF.assign(d="yes"), "not numbers; labels must be 0 or 1"),
    ],
)
def test_known_labels_that_make_no_sense_are_refused(model, known, message):
    for ask in (model.log_prob, model.predict_conditional):
        with pytest.raises(DataError, match=message):
            ask(X, known)


@pytest.mark.parametrize("n", [0, -1, MAX_DRAWS + 1, 2.0, "8", None, True])
def test_a_number_of_draws_out_of_bounds_is_refused(model, n):
    with pytest.raises(ConfigError, match=f"n_draws must be an integer from 1 to {MAX_DRAWS}"):
        model.log_prob(X, Y, n_draws=n)
    with pytest.raises(ConfigError, match="n_draws must be"):
        model.predict_conditional(X, HALF, n_draws=n)
    with pytest.raises(ConfigError, match="n must be"):
        model.sample(X, n)


def test_one_draw_is_enough_for_an_answer_but_not_for_its_error():
    fitted = small(n_members=1, max_epochs=1).fit(DATA.X, DATA.Y)
    values, errors = fitted.log_prob(DATA.X[:3], DATA.Y[:3], n_draws=1, return_std=True)
    assert np.isfinite(values).all()
    assert np.isinf(errors).all()


def test_before_fit_every_question_says_so():
    unfitted = small()
    questions = {
        "log_prob": (X, Y),
        "predict_conditional": (X, HALF),
        "sample": (X,),
        "simulate": (X,),
        "predict_set": (X,),
        "associations": (),
        "label_groups": (),
        "feature_importance": (X, Y),
    }
    for name, given in questions.items():
        with pytest.raises(NotFittedError, match="not fitted"):
            getattr(unfitted, name)(*given)


def test_one_binary_label_has_no_joint_probability_but_the_rest():
    fitted = small(max_epochs=1).fit(FRAME, np.where(DATA.Y[:, 0] == 1, "yes", "no"))
    for ask in (fitted.log_prob, fitted.predict_conditional):
        with pytest.raises(DataError, match="vector y; joint questions need a table"):
            ask(X, Y[["trout"]])
    assert fitted.sample(X, 2).shape == (100, 2, 1)
    assert fitted.predict_set(X).shape == (100, 1)
    assert len(fitted.associations()) == 0
    assert fitted.label_groups().tolist() == [0]


def test_a_table_of_one_label_may_be_asked_all_the_same():
    fitted = small(max_epochs=1).fit(FRAME, LABELS[["d"]])
    P = fitted.predict_proba(X)[:, 0]
    values = fitted.log_prob(X, Y[["d"]].to_numpy())
    # Probabilities take the mean code, log_prob all codes: one epoch leaves little between.
    np.testing.assert_allclose(values, np.log(np.where(Y["d"] == 1, P, 1 - P)), atol=0.05)


# ----------------------------------------------------------------------------- conditionals


def test_known_labels_are_returned_as_given_and_no_other_is_certain(model):
    known = HALF.to_numpy()
    P = model.predict_conditional(X, known)
    np.testing.assert_array_equal(P[:, :3], known[:, :3])
    assert ((P[:, 3:] > 0) & (P[:, 3:] < 1)).all()
    np.testing.assert_array_equal(model.predict_conditional(X, Y), Y)


def test_with_nothing_known_probabilities_are_those_of_predict_proba(model):
    # predict_proba decodes the mean of p(z | x), the conditional averages 128 codes. The
    # largest difference measured is .017, and .002 with z_draws=128 in predict_proba too.
    P = model.predict_conditional(X, UNKNOWN)
    np.testing.assert_allclose(P, model.predict_proba(X), atol=0.03)


def test_what_is_known_helps_a_lot_where_labels_hang_together(model):
    truth = Y.to_numpy()[:, 3:]
    by_features = metrics.log_loss(truth, model.predict_proba(X)[:, 3:])
    given = metrics.log_loss(truth, model.predict_conditional(X, HALF)[:, 3:])
    assert given < 0.85 * by_features


def test_conditional_and_joint_probabilities_obey_the_chain_rule(model):
    one = UNKNOWN.copy()
    one[:, 0] = 1
    two = one.copy()
    two[:, 1] = 1
    joint_probability = np.exp(model.log_prob(X, two, n_draws=1024))
    first = np.exp(model.log_prob(X, one, n_draws=1024))
    second = model.predict_conditional(X, one, n_draws=1024)[:, 1]
    # Relative errors of 2 x 1024 quasi-random draws are below a percent each.
    np.testing.assert_allclose(first * second, joint_probability, rtol=0.03)


def test_true_label_vectors_are_more_probable_than_those_of_other_rows(model):
    shuffled = Y.to_numpy()[np.random.default_rng(0).permutation(100)]
    true, other = model.log_prob(X, Y), model.log_prob(X, shuffled)
    assert true.mean() > other.mean() + 0.05
    independent = np.log(np.where(Y == 1, p := model.predict_proba(X), 1 - p)).sum(axis=1)
    assert true.mean() > independent.mean() + 0.5


def test_the_probabilities_of_all_vectors_add_up_to_one(nameless):
    vectors = (np.arange(64)[:, None] >> np.arange(6)) & 1
    rows = np.repeat(DATA.X[:1], 64, axis=0)
    total = np.exp(nameless.log_prob(rows, vectors, n_draws=512)).sum()
    assert total == pytest.approx(1, abs=0.01)
    nothing = nameless.log_prob(DATA.X[ASK], UNKNOWN)
    np.testing.assert_allclose(nothing, 0, atol=0.05)


def test_frames_come_out_with_the_names_of_labels_and_rows(model):
    try:
        model.set_output(transform="pandas")
        for answer in (model.predict_conditional(X, HALF), model.predict_set(X)):
            assert answer.columns.tolist() == NAMES
            assert answer.index.equals(X.index)
        model.set_output(transform="polars")
        assert model.predict_conditional(X, HALF).columns == NAMES
    finally:
        model.set_output(transform="default")


# ------------------------------------------------------------------------------ determinism


@pytest.mark.parametrize("moved", [False, True])
def test_an_answer_depends_on_its_row_alone(model, monkeypatch, moved):
    if moved:  # as if the weights of all rows had collapsed
        monkeypatch.setattr(joint, "_LEAST_SHARE", 1.0)
        monkeypatch.setattr(joint, "_MOVES", 3)
    before = torch.random.get_rng_state()
    together = model.predict_conditional(X, HALF), model.log_prob(X, Y)
    again = model.predict_conditional(X, HALF), model.log_prob(X, Y)
    alone = [
        (model.predict_conditional(X[i : i + 1], HALF[i : i + 1])[0],
         model.log_prob(X[i : i + 1], Y[i : i + 1])[0])
        for i in range(10)
    ]  # fmt: skip
    for k in range(2):
        np.testing.assert_array_equal(again[k], together[k])
        # Matrix products in float64 may add up in another order.
        np.testing.assert_allclose([row[k] for row in alone], together[k][:10], atol=1e-9)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_row_far_from_all_others_does_not_spoil_the_answers(model):
    far = X.copy()
    far.iloc[0] = 1e7
    P = model.predict_conditional(far, HALF)
    assert np.isfinite(P).all()
    assert np.isfinite(model.log_prob(far, HALF)).all()
    np.testing.assert_allclose(P[1:], model.predict_conditional(X, HALF)[1:], atol=1e-9)
    assert set(np.unique(model.sample(far))) <= {0, 1}


# ------------------------------------------------------------------------ samples and tables


def test_samples_are_whole_vectors_with_the_probabilities_of_the_model(model):
    drawn = model.sample(X, 200, random_state=0)
    assert drawn.shape == (100, 200, 6)
    assert drawn.dtype == np.int8
    assert set(np.unique(drawn)) == {0, 1}
    np.testing.assert_array_equal(drawn, model.sample(X, 200, random_state=0))
    assert (drawn != model.sample(X, 200, random_state=1)).any()
    assert model.sample(X).shape == (100, 1, 6)
    # A share of 20,000 draws has a standard error of at most .0035; the rest, up to .01, is
    # the mean code of predict_proba.
    expected = model.predict_proba(X).mean(axis=0)
    np.testing.assert_allclose(drawn.mean(axis=(0, 1)), expected, atol=0.025)
    vectors = drawn.reshape(-1, 6)
    assert (np.corrcoef(vectors.T) * np.corrcoef(Y.T) > -0.02).all()


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        lambda f: sp.csr_array(np.where(np.asarray(f) > 0, f, 0)),
        lambda f: f.assign(ground=np.where(f["a"] > 0, "sand", "mud")),
        lambda f: pl.DataFrame(f.reset_index(drop=True).to_dict("list")),
    ],
    ids=["array", "sparse", "categories", "polars"],
)
def test_a_simulated_table_can_be_learnt_from(convert):
    table = convert(FRAME)
    fitted = small(max_epochs=1).fit(table, LABELS)
    simulated = fitted.simulate(table, random_state=0)
    assert isinstance(simulated, LabelledTable)
    assert simulated.Y.shape == (500, 6)
    assert simulated.label_names == tuple(NAMES)
    np.testing.assert_array_equal(simulated.Y, fitted.simulate(table, random_state=0).Y)
    again = small(max_epochs=1).fit(simulated.features(), simulated.labels())
    assert again.n_features_in_ == fitted.n_features_in_
    assert again.label_names_.tolist() == NAMES


# ------------------------------------------------------------------------- sets and decisions


@pytest.mark.parametrize("guarantee", ["all", "recall", "label"])
def test_sets_grow_with_their_coverage(model, guarantee):
    sets = [model.predict_set(X, c, guarantee=guarantee) for c in (0.5, 0.7, 0.9, 0.99)]
    for smaller, larger in pairwise(sets):
        assert (smaller <= larger).all()
    assert sets[0].mean() < sets[-1].mean()
    inside = ((sets[2] == 1) | (Y == 0)).all(axis=1).mean()
    if guarantee == "all":
        assert inside > 0.8  # 100 rows at .9: a standard error of .03


def test_all_labels_inside_is_the_hardest_guarantee(model):
    every, share = (model.predict_set(X, 0.9, guarantee=g) for g in ("all", "recall"))
    assert (share <= every).all()


@pytest.mark.parametrize("coverage", [0, 1, -0.1, 1.5, np.nan])
def test_a_coverage_out_of_bounds_is_refused(model, coverage):
    with pytest.raises(ConfigError, match=r"coverage must be in \(0, 1\), as 0.9, got"):
        model.predict_set(X, coverage)


def test_an_unknown_guarantee_is_refused(model):
    with pytest.raises(ConfigError, match="one of all, recall, label"):
        model.predict_set(X, guarantee="most")


def test_without_held_out_rows_there_are_no_sets():
    fitted = small(n_members=1, validation_fraction=0, max_epochs=1).fit(DATA.X, DATA.Y)
    assert fitted.rules_ == {}
    with pytest.raises(DataError, match=r"no held-out rows.* with X_val and y_val"):
        fitted.predict_set(DATA.X)


def test_the_rule_that_did_better_is_kept_and_taken(model):
    assert model.rules_.keys() == {"example_f1", "subset"}
    assert set(model.rules_.values()) <= {"joint", "threshold"}
    for metric, rule in model.rules_.items():
        chosen = model.predict(X, metric)
        np.testing.assert_array_equal(chosen, model.predict(X, metric, rule=rule))
        np.testing.assert_array_equal(chosen, model.predict(X, metric, rule="auto"))
    for metric in ("micro_f1", "macro_f1", "hamming"):
        by_threshold = model.predict_proba(X) >= model.thresholds_[metric]
        np.testing.assert_array_equal(model.predict(X, metric), by_threshold)


@pytest.mark.parametrize("metric", ["example_f1", "subset"])
def test_auto_follows_the_stored_rule_either_way(model, monkeypatch, metric):
    answers = {rule: model.predict(X, metric, rule=rule) for rule in ("joint", "threshold")}
    assert (answers["joint"] != answers["threshold"]).any()
    for rule, expected in answers.items():
        monkeypatch.setitem(model.rules_, metric, rule)
        np.testing.assert_array_equal(model.predict(X, metric), expected)


def test_deciding_jointly_finds_more_whole_vectors_than_half_as_threshold(model):
    by_half = model.predict_proba(X) >= 0.5
    decided = model.predict(X, "subset", rule="joint")
    subset = metrics.DECISION_METRICS["subset"]
    assert subset(Y.to_numpy(), decided) >= subset(Y.to_numpy(), by_half.astype(int))


@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1", "hamming"])
def test_metrics_of_single_labels_are_not_decided_jointly(model, metric):
    with pytest.raises(ConfigError, match=f"for example_f1 and subset, got '{metric}'"):
        model.predict(X, metric, rule="joint")


def test_an_unknown_rule_is_refused(model):
    with pytest.raises(ConfigError, match="auto, threshold or joint, got 'best'"):
        model.predict(X, rule="best")


# ------------------------------------------------------------------ associations, importance


def test_associations_have_a_row_per_pair(model):
    pairs = model.associations()
    assert pairs.columns.tolist() == [
        "label_a", "label_b", "residual_correlation", "low", "high", "raw_correlation",
        "by_features", "share_by_features",
    ]  # fmt: skip
    assert len(pairs) == 6 * 5 / 2
    where = {name: i for i, name in enumerate(NAMES)}
    found = [model.correlation_[where[a], where[b]] for a, b in pairs.iloc[:, :2].to_numpy()]
    np.testing.assert_allclose(pairs["residual_correlation"], found, rtol=1e-12)
    inside = pairs["residual_correlation"].between(pairs["low"], pairs["high"])
    assert inside.all()
    narrow = model.associations(level=0.5)
    assert (narrow["high"] - narrow["low"] < pairs["high"] - pairs["low"]).all()
    with pytest.raises(ConfigError, match=r"level must be in \(0, 1\)"):
        model.associations(level=95)


def test_strong_associations_have_the_sign_of_the_truth(model):
    pairs = model.associations().head(5)
    true = pd.DataFrame(DATA.correlation, index=NAMES, columns=NAMES)
    for row in pairs.itertuples():
        assert true.loc[row.label_a, row.label_b] * row.residual_correlation > 0


def test_every_label_is_in_a_group(model):
    groups = model.label_groups()
    assert groups.index.tolist() == NAMES
    assert groups.value_counts().idxmax() == 0
    assert model.label_groups(3).nunique() == 3
    for n in (0, 7):
        with pytest.raises(ConfigError, match="n_groups must be an integer from 1 to 6"):
            model.label_groups(n)


def test_the_feature_that_matters_is_found():
    rng = np.random.default_rng(0)
    features = pd.DataFrame(rng.normal(size=(300, 3)), columns=["depth", "noise", "ph"])
    labels = pd.DataFrame({"deep": features["depth"] > 0, "sour": features["ph"] < 0})
    fitted = small(max_epochs=15).fit(features, labels.astype(int))
    labels = labels.astype(float).mask(rng.random(labels.shape) < 0.2)  # gaps are left out
    table = fitted.feature_importance(features, labels, n_repeats=2, random_state=0)
    assert table.columns.tolist() == ["feature", "label", "importance", "std"]
    assert len(table) == 3 * 2
    assert table["importance"].is_monotonic_decreasing
    top = set(map(tuple, table[["feature", "label"]].head(2).to_numpy()))
    assert top == {("depth", "deep"), ("ph", "sour")}
    by_pair = table.set_index(["feature", "label"])["importance"]
    assert by_pair["noise"].abs().max() < 0.1 * by_pair["depth", "deep"]


# ------------------------------------------------------------------------------ there and back


def test_a_saved_model_answers_every_question_as_before(model, tmp_path):
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.log_prob(X, Y), model.log_prob(X, Y))
    np.testing.assert_array_equal(
        loaded.predict_conditional(X, HALF), model.predict_conditional(X, HALF)
    )
    for guarantee in ("all", "recall", "label"):
        found, kept = (m.predict_set(X, guarantee=guarantee) for m in (loaded, model))
        np.testing.assert_array_equal(found, kept)
    assert loaded.rules_ == model.rules_
    for metric in model.rules_:
        np.testing.assert_array_equal(loaded.predict(X, metric), model.predict(X, metric))
    np.testing.assert_array_equal(
        loaded.sample(X, random_state=3), model.sample(X, random_state=3)
    )
    # Loadings are stored in float32: 6e-8 of their size.
    pd.testing.assert_frame_equal(
        loaded.associations(), model.associations(), rtol=1e-4, atol=1e-5
    )
    pd.testing.assert_series_equal(loaded.label_groups(), model.label_groups())


def test_a_model_of_schema_1_answers_what_it_can():
    old = load_model(FIXTURES / "model_v1")
    rows = asked_rows()  # the last one lies 3e5 standard deviations away
    assert (old.log_prob(rows, np.ones((5, 3))) < 0).all()
    P = old.predict_conditional(rows, pd.DataFrame({"trout": [1, 0, 1, np.nan, 1]}))
    assert ((P[:, 1:] > 0) & (P[:, 1:] < 1)).all()
    assert old.predict(rows, "subset", rule="joint").shape == (5, 3)
    assert old.rules_ == {}
    pairs = old.associations()
    assert pairs["residual_correlation"].notna().all()
    # What the features bring about was not kept: unknown, not nothing.
    assert pairs[["raw_correlation", "by_features", "share_by_features"]].isna().all(axis=None)
    with pytest.raises(DataError, match="saved by a version that kept none; fit again"):
        old.predict_set(rows)


def test_labels_in_another_order_than_the_features_are_refused(model):
    turned = Y.iloc[::-1]
    asked = [
        lambda: model.predict_conditional(X, turned),
        lambda: model.log_prob(X, turned),
        lambda: model.score(X, turned),
        lambda: model.feature_importance(X, turned),
        lambda: small().fit(X, turned),
    ]
    for ask in asked:
        with pytest.raises(
            DataError, match=r"'site499', in X 'site400'.*labels.loc\[X.index\]"
        ):
            ask()
    expected = model.predict_conditional(X, HALF)
    again = model.predict_conditional(X, HALF.iloc[::-1].loc[X.index])
    by_position = model.predict_conditional(X, HALF.reset_index(drop=True))
    np.testing.assert_array_equal(again, expected)
    np.testing.assert_array_equal(by_position, expected)


def test_nothing_known_has_probability_one(model):
    value, error = model.log_prob(X, UNKNOWN, return_std=True)
    np.testing.assert_array_equal(value, 0)
    np.testing.assert_array_equal(error, 0)


def test_a_named_series_is_one_known_label(model):
    P = model.predict_conditional(X, Y[NAMES[2]])
    np.testing.assert_array_equal(P[:, 2], Y[NAMES[2]])


def test_there_is_no_interval_where_members_learn_from_the_same_rows(model, tmp_path):
    fitted = small(max_epochs=1).fit(DATA.X[LEARN], DATA.Y[LEARN], DATA.X[ASK], DATA.Y[ASK])
    fitted.save(tmp_path / "model")
    for found in (fitted, load_model(tmp_path / "model")):
        assert found.associations()["low"].isna().all()
    assert model.associations()["low"].notna().all()


def test_a_simulated_table_has_one_index(model):
    drawn = model.simulate(X, random_state=0)
    assert drawn.features().index.equals(drawn.labels().index)
