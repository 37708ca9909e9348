"""The service answers what the classifier answers, and says what is wrong with a question."""

import json

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("httpx2", reason="httpx2 is not installed")

from fastapi.testclient import TestClient

from mpvae import MPVAEClassifier
from mpvae.data import simulate_probit
from mpvae.serve import make_app
from mpvae.serve.answering import MAX_ROWS, Answers
from mpvae.serve.guards import MAX_BYTES

SMALL = {"hidden": (16,), "latent_dim": 3, "n_draws": 8, "n_members": 2, "max_epochs": 4}


def rows(X):
    return json.loads(X.to_json(orient="records", double_precision=15))


def test_health_tells_what_is_served(client):
    found = client.get("/health").json()
    assert found["status"] == "ok"
    assert (found["model"], found["features"], found["labels"]) == ("sites", 4, 4)


def test_about_describes_features_and_labels(client, sites):
    model, X, _ = sites
    found = client.get("/about").json()
    assert [f["name"] for f in found["features"]] == list(X)
    assert found["features"][3]["levels"] == ["clay", "sand"]
    assert found["features"][0]["usual"] == pytest.approx(X["rain"].mean())
    assert [label["name"] for label in found["labels"]] == list(model.label_names_)
    assert found["examples"] == X[:3].to_dict("records")


def test_probabilities_and_decisions_are_the_classifiers(client, sites):
    model, X, _ = sites
    asked = {"rows": rows(X[:5]), "metric": "macro_f1"}
    found = client.post("/predict", json=asked).json()
    # JSON carries all digits of a float; those of the question went through 15 of them.
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(X[:5]), atol=1e-9)
    assert found["decisions"] == model.predict(X[:5], metric="macro_f1").tolist()
    assert found["labels"] == list(model.label_names_)
    assert "decisions" not in client.post("/predict", json={"rows": rows(X[:1])}).json()


def test_conditionals_are_the_classifiers(client, sites):
    model, X, _ = sites
    known = [{"alder": 1}, {"oak": 0, "fern": 1}]
    found = client.post("/conditional", json={"rows": rows(X[:2]), "known": known}).json()
    given = pd.DataFrame({"alder": [1, np.nan], "oak": [np.nan, 0], "fern": [np.nan, 1]})
    wanted, ess = model.predict_conditional(X[:2], given, return_ess=True)
    np.testing.assert_allclose(found["probabilities"], wanted, atol=1e-9)
    np.testing.assert_allclose(found["effective_draws"], ess, rtol=1e-6)
    np.testing.assert_allclose(found["marginals"], model.predict_proba(X[:2]), atol=1e-9)


def test_without_known_labels_the_answer_is_the_marginal(client, sites):
    _, X, _ = sites
    found = client.post("/conditional", json={"rows": rows(X[:1]), "known": [{}]}).json()
    assert found["probabilities"] == found["marginals"]
    assert found["effective_draws"] == [None]


def test_joint_probabilities_are_the_classifiers(client, sites):
    model, X, Y = sites
    labels = rows(Y[:3])
    found = client.post("/joint", json={"rows": rows(X[:3]), "labels": labels}).json()
    values, errors = model.log_prob(X[:3], Y[:3], return_std=True)
    np.testing.assert_allclose(found["log_prob"], values, atol=1e-6)
    np.testing.assert_allclose(found["standard_error"], errors, atol=1e-6)


def test_associations_of_all_labels_and_of_one(client, sites):
    model, _, _ = sites
    everything = client.get("/associations").json()
    assert [pair["label_a"] for pair in everything] == list(model.associations()["label_a"])
    of_oak = client.get("/associations", params={"label": "oak", "top": 2}).json()
    assert len(of_oak) == 2
    assert all("oak" in (pair["label_a"], pair["label_b"]) for pair in of_oak)


def test_a_csv_becomes_rows(client, sites):
    model, X, _ = sites
    text = X[:4].assign(note="x").to_csv(index=False)
    found = client.post("/rows", content=text, headers={"Content-Type": "text/csv"}).json()
    assert len(found) == 4
    answer = client.post("/predict", json={"rows": found}).json()
    np.testing.assert_allclose(answer["probabilities"], model.predict_proba(X[:4]), atol=1e-9)


ROW = {"rain": 0.1, "warmth": 1, "height": None, "soil": "sand"}


@pytest.mark.parametrize(
    ("path", "question", "told"),
    [
        ("/predict", {"rows": []}, "rows"),
        ("/predict", {"rows": [ROW] * (MAX_ROWS + 1)}, "rows"),
        ("/predict", {"rows": [ROW | {"rian": 1}]}, "did you mean 'rain'"),
        ("/predict", {"rows": [{"rain": 1}]}, "row 1 lacks 'warmth'"),
        (
            "/predict",
            {"rows": [ROW | {"rain": "wet"}]},
            "'rain' is 'wet'; give a finite number",
        ),
        ("/predict", {"rows": [ROW], "metric": "best"}, "metric"),
        ("/predict", {"rows": [ROW], "more": 1}, "more"),
        ("/predict", {"rows": [[1, 2]]}, "rows"),
        ("/predict", [], "the question is no object"),
        ("/conditional", {"rows": [ROW], "known": []}, "1 rows but labels of 0"),
        ("/conditional", {"rows": [ROW], "known": [{"aldr": 1}]}, "did you mean 'alder'"),
        ("/conditional", {"rows": [ROW], "known": [{"alder": 2}]}, "'alder' is 2; give 1"),
        ("/conditional", {"rows": [ROW], "known": [{"alder": 0.5}]}, "'alder' is 0.5; give 1"),
        ("/joint", {"rows": [ROW]}, "labels"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(client, path, question, told):
    answer = client.post(path, json=question)
    assert answer.status_code == 422
    assert told in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(client, number):
    text = json.dumps({"rows": [ROW]}).replace("0.1", number)
    answer = client.post("/predict", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert "finite" in answer.json()["error"]


@pytest.mark.parametrize("text", ["", "rain\n1\n", "rain,warmth,height,soil\n1,2,wet,sand\n"])
def test_a_bad_csv_is_refused(client, text):
    answer = client.post("/rows", content=text, headers={"Content-Type": "text/csv"})
    assert answer.status_code == 422
    assert answer.json()["error"]


def test_the_cell_of_a_csv_that_is_no_number_is_named(client):
    text = "rain,warmth,height,soil\n1,9,3,sand\n1,abc,3,sand\n1,1_000,,sand\n"
    answer = client.post("/rows", content=text, headers={"Content-Type": "text/csv"})
    assert answer.json()["error"].startswith("upload.csv, row 2: 'warmth' is 'abc'; give a")


def test_a_request_may_not_be_too_long(client):
    answer = client.post("/rows", content=b"x" * (MAX_BYTES + 1))
    assert answer.status_code == 413
    assert f"{MAX_BYTES:,}" in answer.json()["error"]


def test_pages_load_nothing_from_elsewhere(client):
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.status_code == 200
        assert "https://" not in page.text
        assert "http://" not in page.text
    for asset in ("explorer.css", "explorer.js", "plotly.js", "swagger-ui-bundle.js"):
        assert client.get(f"/assets/{asset}").status_code == 200
    assert client.get("/assets/../app.py").status_code == 404


def test_a_model_of_one_label_is_served_too():
    data = simulate_probit(100, n_features=2, n_labels=1, n_factors=1, seed=0)
    model = MPVAEClassifier(base=None, random_state=0, **SMALL).fit(data.X, data.Y[:, 0])
    app = make_app(model, max_wait=60)
    app.state.worker.warm.wait()
    client = TestClient(app)
    assert client.get("/ready").status_code == 200
    row = {"0": float(data.X[0, 0]), "1": float(data.X[0, 1])}
    found = client.post("/predict", json={"rows": [row]}).json()["probabilities"]
    np.testing.assert_allclose(found, model.predict_proba(data.X[:1])[:, 1:], atol=1e-12)
    refused = client.post("/conditional", json={"rows": [row], "known": [{"label_0": 1}]})
    assert refused.status_code == 422
    assert "need a table of labels" in refused.json()["error"]


def test_a_model_of_nameless_columns_takes_their_numbers():
    data = simulate_probit(100, n_features=2, n_labels=2, n_factors=1, seed=0)
    model = MPVAEClassifier(base=None, random_state=0, **SMALL).fit(data.X, data.Y)
    answers = Answers(model)
    row = {"0": float(data.X[0, 0]), "1": float(data.X[0, 1])}
    found = answers.predict([row], None)["probabilities"]
    np.testing.assert_allclose(found, model.predict_proba(data.X[:1]), atol=1e-12)
