"""Commands to look at a model: what they write, and what they refuse."""

import json
import shutil
import subprocess
import sys
import urllib.request

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

pytest.importorskip("plotly", reason="the extra report is not installed")

from mpvae import MPVAEClassifier
from mpvae.cli import app
from mpvae.data import simulate_probit

SMALL = {"hidden": (16,), "latent_dim": 3, "n_draws": 8, "n_members": 2, "max_epochs": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("showing")
    data = simulate_probit(150, n_features=3, n_labels=4, n_factors=2, seed=0)
    X = pd.DataFrame(data.X, columns=["a", "b", "c"])
    X["soil"] = np.where(data.X[:, 0] > 0, "sand", "clay")
    Y = pd.DataFrame(data.Y.astype(int), columns=["alder", "birch", "fern", "oak"])
    MPVAEClassifier(base=None, random_state=0, **SMALL).fit(X, Y).save(folder / "model")
    X.join(Y).to_csv(folder / "sites.csv", index=False)
    X[:5].to_csv(folder / "new.csv", index=False)
    return folder


def run(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_a_report_is_written_whole(place, tmp_path):
    done = run(
        "report", place / "model", "--data", place / "sites.csv", "--out", tmp_path / "r.html"
    )
    assert done.exit_code == 0, done.output
    assert "r.html" in done.output
    assert [file.name for file in tmp_path.iterdir()] == ["r.html"]
    told = run("report", place / "model", "-o", tmp_path / "m.html", "--json")
    assert json.loads(told.stdout)["figures"][0] == "training"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--out", "r.pdf"], "a report is an HTML file"),
        (["--unseen"], "give --data too"),
        (["--data", "new.csv"], "alder"),
        (["--data", "nothing.csv"], "does not exist"),
    ],
)
def test_what_makes_no_report_is_refused(place, monkeypatch, words, says):
    monkeypatch.chdir(place)
    done = run("report", "model", *words)
    assert done.exit_code == 2
    assert says in done.output
    assert not (place / "report.html").exists()


def test_without_plotly_the_remedy_is_named(place, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for command, extra in (("report", "mpvae[report]"), ("serve", "mpvae[serve]")):
        done = run(command, place / "model")
        assert done.exit_code == 2
        assert f'pip install "{extra}"' in done.output


def test_figures_become_files(place, tmp_path):
    pytest.importorskip("kaleido", reason="kaleido is not installed")
    if shutil.which("chromium") is None:
        pytest.skip("no chromium on this machine: `make browser` installs it")
    done = run(
        "report", place / "model", "-o", tmp_path / "r.html", "--figures", tmp_path / "f"
    )
    assert done.exit_code == 0, done.output
    names = {file.name for file in (tmp_path / "f").iterdir()}
    assert {"correlation.png", "correlation.svg", "label-map.png"} <= names
    assert (tmp_path / "f" / "correlation.png").read_bytes()[:4] == b"\x89PNG"
    assert "alder" in (tmp_path / "f" / "correlation.svg").read_text()


def test_the_service_answers_until_it_is_ended(place):
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    words = [sys.executable, "-m", "mpvae", "serve", place / "model", "--port", "0"]
    service = subprocess.Popen(
        [*words, "--data", place / "new.csv"], stderr=subprocess.PIPE, text=True
    )
    try:
        told = service.stderr.readline()
        address = next(word.strip(",") for word in told.split() if word.startswith("http"))
        with urllib.request.urlopen(f"{address}/about") as answer:
            assert len(json.loads(answer.read())["examples"]) == 5
    finally:
        service.terminate()
        assert service.wait(20) in (0, -15)
        service.stderr.close()


def test_a_port_that_is_taken_is_told(place):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "mpvae", "serve", place / "model"),
                *("--port", str(taken.getsockname()[1])),
            ],
            capture_output=True,
            text=True,
        )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
