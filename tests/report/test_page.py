"""The report is one file that holds what the model and the rows say."""

import copy
import json
import re

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("plotly", reason="the extra report is not installed")

from mpvae import DataError, MPVAEClassifier, load_model
from mpvae.data import LabelledTable, simulate_probit
from mpvae.metrics import DECISION_METRICS, micro_f1
from mpvae.report import judge, make_report
from mpvae.report.judging import FOREST, OURS, examples, resampled
from mpvae.report.page import packed

SMALL = {"hidden": (16,), "latent_dim": 3, "n_draws": 8, "n_members": 2, "max_epochs": 4}
NAMES = ("alder", "</script><script>alert(1)</script>", "c & d", 'quoted "e"')


@pytest.fixture(scope="module")
def table():
    data = simulate_probit(240, n_features=3, n_labels=4, n_factors=2, seed=0)
    frame = pd.DataFrame(data.X, columns=["a", "b", "c"])
    frame["soil"] = np.where(data.X[:, 0] > 0, "sand", "clay")
    return LabelledTable(frame, data.Y.astype(np.int32), tuple(frame), NAMES, name="sites")


@pytest.fixture(scope="module")
def model(table):
    return MPVAEClassifier(base=None, random_state=0, **SMALL).fit(
        table.features(), table.labels()
    )


@pytest.fixture(scope="module")
def page(model, table):
    return make_report(model, table, name="demo").html()


def held(page):
    text = re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL).group(1)
    return json.loads(text)


def test_it_is_one_page_with_everything_in_it(page):
    loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]*)"', page)
    assert all(source.startswith("data:") for source in loaded)
    data = held(page)
    keys = set(data["figures"])
    assert {"scores", "training", "correlation", "label-map", "associations"} <= keys
    assert {"reliability", "precision", "latent", "example-1"} <= keys
    for key in keys:
        assert f'data-figure="{key}"' in page


def test_names_of_labels_cannot_break_out(page):
    assert "alert(1)</script>" not in page
    assert [row["label"] for row in held(page)["labels"]] == list(NAMES)


def test_without_a_table_the_page_has_the_model_alone(model):
    data = held(make_report(model).html())
    assert "scores" not in data["figures"]
    assert set(data["labels"][0]) == {"label", "threshold", "group"}


def test_one_label_makes_a_report(table):
    X, y = table.features(), table.labels()["alder"]
    model = MPVAEClassifier(base=None, random_state=0, **SMALL).fit(X, y)
    assert set(held(make_report(model).html())["figures"]) == {"training"}
    Y = y.to_numpy()[:, None]
    alone = LabelledTable(X, Y, table.feature_names, tuple(model.label_names_), name="one")
    figures = held(make_report(model, alone).html())["figures"]
    assert set(figures) == {"scores", "training", "reliability", "latent"}


def test_rows_that_may_have_been_seen_are_not_judged_on(model, table):
    """The model that is judged has learnt from other rows than it is judged on."""
    judged = judge(model, table)
    assert judged.model is not model
    assert len(judged.Y) == 48
    assert set(judged.P) == {OURS, FOREST}
    again = MPVAEClassifier(base=None, random_state=0, **SMALL)
    ask = {tuple(row) for row in judged.X[["a", "b", "c"]].to_numpy()}
    learn = [
        k for k, row in enumerate(table.X[["a", "b", "c"]].to_numpy()) if tuple(row) not in ask
    ]
    assert len(learn) == 192
    again.fit(table.rows(learn).features(), table.rows(learn).labels())
    np.testing.assert_array_equal(again.predict_proba(judged.X), judged.P[OURS])


def test_the_model_that_is_judged_is_as_large_as_the_one_it_stands_for(model, table):
    """A folder may ask for more than it holds: by a stranger's hand, or after Ctrl-C."""
    asked = copy.copy(model).set_params(n_members=200, hidden=(16000, 16000))
    again = judge(asked, table).model
    assert len(again.networks_) == len(model.networks_)
    assert again.settings_.hidden == model.settings_.hidden


def test_rows_are_named_by_their_place_in_the_table(model, table):
    judged = judge(model, table)
    np.testing.assert_array_equal(table.X.iloc[judged.rows]["a"], judged.X["a"])
    for example in examples(judged):
        known = list(table.label_names).index(example.known)
        assert table.Y[example.row, known] == 1


def test_too_few_rows_to_judge_on_are_told(model, table):
    with pytest.raises(DataError, match="has 9 rows; a report learns from four fifths"):
        judge(model, table.rows(range(9)))
    assert len(judge(model, table.rows(range(9)), unseen=True).Y) == 9


def test_of_an_official_split_the_test_rows_are_judged_on(model, table):
    splits = {"train": np.arange(200), "test": np.arange(200, 240)}
    split = LabelledTable(table.X, table.Y, table.feature_names, table.label_names, splits)
    judged = judge(model, split)
    assert judged.model is model
    np.testing.assert_array_equal(judged.Y, table.Y[200:])


def test_unseen_rows_are_judged_on_by_the_model_alone(model, table):
    judged = judge(model, table, unseen=True)
    assert set(judged.P) == {OURS}
    np.testing.assert_array_equal(judged.P[OURS], model.predict_proba(table.features()))
    scores = judged.scores().set_index("metric")
    own = micro_f1(table.Y, model.predict(table.features(), metric="micro_f1"))
    assert scores.loc["micro F1", "score"] == pytest.approx(own)
    assert (scores["low"] <= scores["score"]).all()
    assert (scores["score"] <= scores["high"]).all()


def test_resampled_scores_are_those_of_the_metrics():
    rng = np.random.default_rng(0)
    Y = (rng.random((30, 4)) < 0.2).astype(float)
    Z = (rng.random((30, 4)) < 0.3).astype(int)
    rows = rng.integers(30, size=(5, 30))
    times = np.stack([np.bincount(sample, minlength=30) for sample in rows]).astype(float)
    for metric in ("example_f1", "micro_f1", "macro_f1", "hamming"):
        wanted = [DECISION_METRICS[metric](Y[sample], Z[sample]) for sample in rows]
        nothing = np.zeros_like(Y)
        none = DECISION_METRICS[metric](nothing, nothing.astype(int))
        assert resampled(nothing, nothing.astype(int), metric, times).tolist() == [none] * 5
        found = resampled(Y, Z, metric, times)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_the_forest_is_scikit_learns(model, table):
    from sklearn.ensemble import RandomForestClassifier

    splits = {"train": np.arange(200), "test": np.arange(200, 240)}
    split = LabelledTable(table.X, table.Y, table.feature_names, table.label_names, splits)
    judged = judge(model, split)
    x = model.features_.apply(table.X)
    forest = RandomForestClassifier(300, min_samples_leaf=3, random_state=0)
    forest.fit(x[:200], table.Y[:200])
    P = np.column_stack([p[:, 1] for p in forest.predict_proba(x[200:])])
    np.testing.assert_allclose(judged.P[FOREST], P, rtol=0, atol=1e-12)


def test_labels_that_are_not_observed_are_refused(model, table):
    Y = table.Y.astype(float)
    Y[3, 1] = np.nan
    gaps = LabelledTable(table.X, Y, table.feature_names, table.label_names, name="gaps")
    with pytest.raises(DataError, match="gaps has empty label cells"):
        judge(model, gaps, unseen=True)
    with pytest.raises(DataError, match="has no labels"):
        judge(model, LabelledTable(table.X, None, table.feature_names, (), name="none"))


def test_heat_maps_are_packed_into_bytes_and_back(model):
    from mpvae.report import correlation_figure

    figure = correlation_figure(model)
    (trace,) = packed(figure)["data"]
    scale = trace["meta"]["scale"]
    import base64

    raw = np.frombuffer(base64.b64decode(trace["z"]["bdata"]), np.int8).reshape(4, 4)
    z = np.asarray(figure.data[0].z, float)
    assert (raw == -128).sum() == 4
    off = raw != -128
    # Rounded to one of 255 steps.
    np.testing.assert_allclose(raw[off] * scale, z[off], rtol=0, atol=scale / 2 + 1e-12)


def test_a_saved_model_makes_the_same_report(model, tmp_path, table):
    model.save(tmp_path / "m")
    whole = held(make_report(load_model(tmp_path / "m"), table).html())
    assert whole["labels"] == held(make_report(model, table).html())["labels"]
