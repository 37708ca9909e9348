"""What the OpenAPI page says is true: questions made from it, good and bad, are answered so."""

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from mpvae.serve import make_app

GOOD, BAD = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
WITHOUT = [("GET", path) for path in ("/health", "/ready", "/about", "/metrics")]
WITH = [
    ("GET", "/associations"),
    *[("POST", path) for path in ("/predict", "/conditional", "/joint", "/rows")],
]
LABELS = {"/conditional": "known", "/joint": "labels"}
PLACES = WITHOUT + WITH
QUICK = settings(
    max_examples=15,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=300)


@pytest.fixture(scope="module")
def described(sites):
    app = make_app(sites[0], max_wait=60)
    app.state.worker.warm.wait()
    return schemathesis.openapi.from_asgi("/openapi.json", app)


def check(described, method, path, mode, data):
    case = data.draw(described[path][method].as_strategy(generation_mode=mode))
    left_out = []
    if mode is GOOD and path in LABELS:  # of equal length: JSON schema cannot say so
        lists = case.body["rows"], case.body[LABELS[path]]
        n = min(map(len, lists))
        case.body = {"rows": lists[0][:n], LABELS[path]: lists[1][:n]}
    if mode is GOOD and path == "/rows":  # any text is a CSV file to the page
        left_out = [positive_data_acceptance]
    case.call_and_validate(excluded_checks=left_out)


def test_every_endpoint_is_tried(described):
    told = {(o.ok().method.upper(), o.ok().path) for o in described.get_all_operations()}
    assert told == set(PLACES)


@pytest.mark.parametrize(("method", "path"), PLACES)
@QUICK
@given(data=st.data())
def test_good_questions_are_answered_as_the_page_says(described, method, path, data):
    check(described, method, path, GOOD, data)


@pytest.mark.parametrize(("method", "path"), WITH)
@QUICK
@given(data=st.data())
def test_bad_questions_are_refused_as_the_page_says(described, method, path, data):
    check(described, method, path, BAD, data)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GOOD, BAD])
@pytest.mark.parametrize(("method", "path"), WITH)
@LONG
@given(data=st.data())
def test_questions_of_all_kinds_are_answered_so(described, method, path, mode, data):
    check(described, method, path, mode, data)
