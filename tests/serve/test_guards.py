"""What every request must pass, and what every answer carries."""

import copy
import io
import json

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("httpx2", reason="httpx2 is not installed")

from fastapi.testclient import TestClient

from mpvae.errors import ConfigError
from mpvae.serve import guards, is_local, make_app, read_token

ROW = {"rain": 0.1, "warmth": 1, "height": None, "soil": "sand"}
TOKEN = "correct-horse-battery"
JSON = {"Content-Type": "application/json"}
OPEN = ["/", "/docs", "/openapi.json", "/health", "/ready", "/assets/explorer.js"]
CLOSED = ["/about", "/associations", "/metrics", "/nothing"]


@pytest.fixture
def guarded(sites):
    """A service that needs a token, and its log."""
    model, X, _ = sites
    log = io.StringIO()
    app = make_app(model, name="sites", examples=X[:3], token=TOKEN, log=log, max_wait=60)
    app.state.worker.warm.wait()
    with TestClient(app) as client:
        yield client, log


def test_without_the_token_nothing_but_the_pages_is_shown(guarded):
    client, _ = guarded
    for path in OPEN:
        assert client.get(path).status_code == 200, path
    for path in CLOSED:
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == 'Bearer realm="mpvae"'
        assert "Authorization: Bearer" in answer.json()["error"]
    assert client.post("/predict", json={"rows": [ROW]}).status_code == 401


@pytest.mark.parametrize(
    "given",
    [
        TOKEN,
        f"Basic {TOKEN}",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        "Bearer \xe4\xf6\xfc",
    ],
)
def test_a_wrong_token_is_refused(guarded, given):
    client, _ = guarded
    headers = {"Authorization": given.encode("latin-1")}
    assert client.get("/about", headers=headers).status_code == 401


def test_with_the_token_all_is_answered(guarded):
    client, _ = guarded
    for scheme in ("Bearer", "bearer"):
        headers = {"Authorization": f"{scheme} {TOKEN}"}
        assert client.get("/about", headers=headers).status_code == 200
        assert client.get("/metrics", headers=headers).status_code == 200
        answer = client.post("/predict", json={"rows": [ROW]}, headers=headers)
        assert answer.status_code == 200


def test_the_open_page_of_questions_has_no_names_of_the_model(guarded, client):
    with_token, _ = guarded
    page = with_token.get("/openapi.json")
    assert "alder" not in page.text
    assert "warmth" not in page.text
    assert page.json()["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert page.json()["paths"]["/predict"]["post"]["security"] == [{"HTTPBearer": []}]
    assert "security" not in page.json()["paths"]["/health"]["get"]
    assert "alder" in client.get("/openapi.json").text  # where anyone may ask, they are shown
    assert "securitySchemes" not in client.get("/openapi.json").text


def test_a_token_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("MPVAE_TOKEN", raising=False)
    assert read_token() is None
    monkeypatch.setenv("MPVAE_TOKEN", TOKEN)
    assert read_token() == TOKEN
    (tmp_path / "token").write_text(f"from-a-file-{TOKEN}\n")
    assert read_token(tmp_path / "token") == f"from-a-file-{TOKEN}"


@pytest.mark.parametrize("token", ["", "short", "with a blank in the middle", "ä" * 20])
def test_a_token_that_can_be_guessed_is_refused(monkeypatch, token):
    monkeypatch.setenv("MPVAE_TOKEN", token)
    with pytest.raises(ConfigError, match="give at least 16") as told:
        read_token()
    assert not token or token not in str(told.value)


def test_a_token_file_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_token(tmp_path / "nothing")


def test_addresses_of_this_machine_are_known():
    assert all(map(is_local, ["127.0.0.1", "127.1.2.3", "::1", "localhost"]))
    assert not any(map(is_local, ["0.0.0.0", "::", "192.168.1.5", "example.org"]))


@pytest.mark.parametrize(
    "path", [*OPEN, "/about", "/metrics", "/nothing", "/assets/nothing", "/associations?top=0"]
)
def test_every_answer_carries_the_headers_of_safety(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert scripts == "script-src 'self'"
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    for kind in ("opener", "resource", "embedder"):
        assert f"cross-origin-{kind}-policy" in headers
    assert "server" not in headers
    if path not in OPEN or path in ("/openapi.json", "/health", "/ready"):
        assert headers["cache-control"] == "no-store"


def test_a_good_id_is_kept_and_a_bad_one_replaced(client):
    assert client.get("/health", headers={"X-Request-ID": "a.b-C_9"}).headers[
        "x-request-id"
    ] == ("a.b-C_9")
    for bad in ("", "a b", "x" * 65, 'a"}', "ä"):
        made = client.get("/health", headers={"X-Request-ID": bad.encode()}).headers
        assert made["x-request-id"] != bad
        assert len(made["x-request-id"]) == 16


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/predict/", 404),
        ("GET", "/assets/../../etc/passwd", 404),
        ("GET", "/assets/%00", 404),
        ("GET", "/assets/%2e%2e%2fapp.py", 404),
        ("GET", "/%ff%fe", 404),
        ("GET", "/predict", 405),
        ("DELETE", "/health", 405),
        ("PUT", "/rows", 405),
        ("POST", "/health", 405),
        ("OPTIONS", "/predict", 405),
        ("GET", "/associations?top=many", 422),
        ("GET", "/associations?top=1e9", 422),
        ("GET", "/associations?label=%ed%a0%80", 422),
        ("GET", "/associations?label=" + "x" * 501, 422),
    ],
)
def test_errors_are_json_of_one_line(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert "\n" not in answer.json()["error"]
    if status == 405:
        assert answer.headers["allow"]


def nested(n):
    return b'{"rows": ' + b"[" * n + b"]" * n + b"}"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"{", "no JSON"),
        (b"null", "no object"),
        (b'{"rows": [{"rain": NaN}]}', "NaN is no number in JSON"),
        (b'{"rows": [{"rain": -Infinity}]}', "-Infinity is no number in JSON"),
        (nested(100_000), "nested too deeply"),
        (b'{"rows": ' * 100_000, "nested too deeply"),
        (b'{"rows": [' + b"9" * 10_000 + b"]}", "too many digits"),
        (json.dumps({"rows": [ROW | {"rain": 10**400}]}).encode(), "a number of many digits"),
        (json.dumps({"rows": [ROW | {"rain": [1]}]}).encode(), "'rain' is a list"),
        (json.dumps({"rows": [ROW | {"soil": {"a": 1}}]}).encode(), "'soil' is an object"),
        (json.dumps({"rows": [ROW | {"soil": "\ud800"}]}).encode(), "half of a character"),
        (b'{"rows": [{"rain": 1, "rain": 2}]}', "'rain' is given twice"),
        (b'{"rows": [], "rows": []}', "'rows' is given twice"),
        (b'{"rows": [{"\\ud800": 1}]}', "no feature"),
        (b'{"\\udfff": 1}', "no part of this question"),
        (json.dumps({"rows": [ROW | {"x" * 10**6: 1}]}).encode(), "no feature"),
        (json.dumps({"rows": [ROW | {"": 1}]}).encode(), "no feature"),
        (json.dumps({"rows": [ROW | {"\n\x00'\"<b>": 1}]}).encode(), "no feature"),
        (b'{"rows": [' + b"{}," * 10**5 + b"{}]}", "at most 1000"),
        (b'{"rows": [' + b"1," * 10**5 + b"1]}", "at most 1000"),
        (b'{"rows": "all"}', "no list"),
        (b'{"rows": [[]]}', "entry 1 of 'rows' is no object"),
        (b'{"rows": [], "metric": {}}', "no such metric"),
    ],
)
def test_no_question_is_strange_enough_to_break_the_service(client, body, told):
    for path in ("/predict", "/conditional", "/joint"):
        answer = client.post(path, content=body, headers=JSON)
        assert answer.status_code == 422
        error = answer.json()["error"]
        assert len(error) < 300
        if path == "/predict":
            assert told in error


@pytest.mark.parametrize("label", [True, "1", None, [], {}, 2, -1, 0.5, 10**30])
def test_a_known_label_is_0_or_1(client, label):
    question = {"rows": [ROW], "known": [{"alder": label}]}
    answer = client.post("/conditional", json=question)
    assert answer.status_code == 422
    assert "give 1 (present) or 0 (absent)" in answer.json()["error"]


def test_a_level_that_the_model_does_not_know_is_answered(client):
    for level in ("mud", "", "\x00", "\U0001f33f", 7, True):
        answer = client.post("/predict", json={"rows": [ROW | {"soil": level}]})
        assert answer.status_code == 200, level


@pytest.mark.parametrize("media", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_form_of_another_site_cannot_ask(client, media):
    headers = {} if media is None else {"Content-Type": media}
    answer = client.post("/predict", content=json.dumps({"rows": [ROW]}), headers=headers)
    assert answer.status_code == 415
    assert "send application/json" in answer.json()["error"]


def pieces(n_bytes):
    for _ in range(n_bytes // 2**16 + 1):
        yield b" " * 2**16


def test_a_request_without_a_length_may_not_be_too_long(client):
    answer = client.post("/predict", content=pieces(guards.MAX_BYTES), headers=JSON)
    assert answer.status_code == 413
    body = json.dumps({"rows": [ROW]}).encode()
    answer = client.post("/predict", content=iter([body[:9], body[9:]]), headers=JSON)
    assert answer.status_code == 200


def test_all_requests_together_may_not_fill_the_memory(client, monkeypatch):
    monkeypatch.setattr(guards, "MAX_HELD", 1000)
    answer = client.post("/predict", content=pieces(2000), headers=JSON)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    monkeypatch.undo()  # nothing of it is still counted
    assert client.post("/predict", json={"rows": [ROW]}).status_code == 200


def test_a_page_from_elsewhere_that_points_here_is_not_answered(sites):
    client = TestClient(make_app(sites[0], hosts=("localhost", "127.0.0.1", "::1")))
    for good in ("localhost", "localhost:8000", "127.0.0.1:80", "[::1]:8000", "LOCALHOST"):
        assert client.get("/health", headers={"Host": good}).status_code == 200, good
    for bad in ("evil.example", "evil.example:8000", "localhost.evil.example", ""):
        answer = client.get("/health", headers={"Host": bad})
        assert answer.status_code == 421, bad
        assert "localhost only" in answer.json()["error"]


def test_a_failure_tells_its_id_and_nothing_else(sites, capsys):
    model = copy.copy(sites[0])
    app = make_app(model, max_wait=60)
    app.state.worker.warm.wait()
    model.networks_ = None  # as no file or setting could leave it
    client, secret = TestClient(app), "what a row holds"
    question = {"rows": [ROW | {"soil": secret}]}
    answer = client.post("/predict", json=question, headers={"X-Request-ID": "id-7"})
    assert answer.status_code == 500
    assert list(answer.json()) == ["error"]
    assert "id id-7" in answer.json()["error"]
    told = capsys.readouterr().err
    line = json.loads(told)
    assert (line["id"], line["failed"]) == ("id-7", "TypeError")
    assert "answering.py" in "".join(line["traceback"])
    assert secret not in told
    for text in (secret, "Traceback", "TypeError", ".py", "/"):
        assert text not in answer.text
    assert client.get("/health").status_code == 200


def test_the_log_has_a_line_for_each_request_and_no_secret(guarded):
    client, log = guarded
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Request-ID": "one"}
    level = "a secret level"
    client.post("/predict", json={"rows": [ROW | {"soil": level}] * 3}, headers=headers)
    client.get("/about?token=hidden", headers={"Authorization": "Bearer wrong"})
    first, second = map(json.loads, log.getvalue().splitlines())
    assert (
        first.items()
        >= {
            "id": "one",
            "method": "POST",
            "path": "/predict",
            "status": 200,
            "rows": 3,
        }.items()
    )
    assert first["ms"] >= first["worked_ms"] > 0
    assert first["waited_ms"] >= 0
    assert first["time"].endswith("+00:00")
    assert (second["status"], second["refused"], second["path"]) == (401, "token", "/about")
    for secret in (TOKEN, level, "wrong", "hidden"):
        assert secret not in log.getvalue()
