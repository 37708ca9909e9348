"""What Prometheus reads, and whether the service says that it is ready."""

import threading

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("httpx2", reason="httpx2 is not installed")

from fastapi.testclient import TestClient
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from mpvae.serve import make_app

ROW = {"rain": 0.1, "warmth": 1, "height": None, "soil": "sand"}


@pytest.fixture
def client(sites):
    """Asks a service that has counted nothing yet."""
    app = make_app(sites[0], max_wait=60)
    app.state.worker.warm.wait()
    return TestClient(app)


def samples(client):
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (s.name, *sorted(s.labels.items())): s.value
        for family in text_string_to_metric_families(answer.text)
        for s in family.samples
    }


def test_requests_are_counted_by_path_and_status(client):
    client.post("/predict", json={"rows": [ROW] * 3})
    client.post("/predict", json={"rows": []})
    client.post("/predict", json={"rows": [ROW]})
    found = samples(client)

    def count(path, status):
        return found["mpvae_requests_total", ("path", path), ("status", status)]

    assert count("/predict", "200") == 2
    assert count("/predict", "422") == 1
    assert found["mpvae_rows_total",] == 4
    assert found["mpvae_request_seconds_count", ("path", "/predict")] == 3
    assert found["mpvae_request_seconds_sum", ("path", "/predict")] > 0
    assert found["mpvae_queue_length",] == 0
    assert found["mpvae_in_flight",] == 1  # the one that asks
    assert found["mpvae_ready",] == 1
    assert found["process_resident_memory_bytes",] > 0


def test_unknown_paths_are_counted_as_one(client):
    for k in range(20):
        client.get(f"/nothing/{k}")
        client.get(f"/assets/{k}")
    paths = {label[1] for key in samples(client) for label in key[1:] if label[0] == "path"}
    assert paths == {"other", "/assets", "/metrics"} - {"/metrics"}


def test_two_services_of_one_process_count_apart(client, sites):
    client.get("/nothing")
    other = TestClient(make_app(sites[0]))
    assert ("mpvae_requests_total", ("path", "other"), ("status", "404")) not in samples(other)
    assert not any(family.name.startswith("mpvae") for family in REGISTRY.collect())


def test_ready_is_not_said_before_the_first_prediction_nor_at_the_end(sites, monkeypatch):
    asked, let_go = threading.Event(), threading.Event()
    model = sites[0]
    first = model.predict_proba

    def slow(X):
        asked.set()
        let_go.wait(20)
        return first(X)

    monkeypatch.setattr(model, "predict_proba", slow)
    app = make_app(model)
    client = TestClient(app)
    asked.wait()
    answer = client.get("/ready")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "first prediction is being made" in answer.json()["error"]
    assert client.get("/health").status_code == 200
    let_go.set()
    app.state.worker.warm.wait()
    assert client.get("/ready").json() == {"status": "ready"}
    app.state.worker.stopping = True
    assert client.get("/ready").status_code == 503
    answer = client.post("/predict", json={"rows": [ROW]})
    assert answer.status_code == 503
    assert answer.headers["connection"] == "close"
    assert client.get("/health").status_code == 200
