"""What the documentation shows is run: its Python blocks, its commands, the examples."""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from mpvae.cli import app
from mpvae.data import simulate_probit

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = sorted((ROOT / "docs").glob("*.md"))
QUICK = ["--set", "max_epochs=2", "--set", "n_members=2", "--set", "hidden=16"]


def blocks(page, kind):
    return [text for name, text in BLOCK.findall(page.read_text()) if name == kind]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the example tables and the tables that pages speak of."""
    (tmp_path / "examples").mkdir()
    for name in ("sites.csv", "new_sites.csv", "seen.csv"):
        (tmp_path / "examples" / name).write_bytes((ROOT / "examples" / name).read_bytes())
    sites = pd.read_csv(tmp_path / "examples" / "sites.csv")
    sites.to_csv(tmp_path / "sites.csv", index=False)
    plots = sites.rename(columns={"site_id": "plot_id"})
    for name in ("plots", "new_plots"):
        (tmp_path / name).mkdir()
        plots.to_parquet(tmp_path / name / "part.parquet")
    plots.to_parquet(tmp_path / "plots.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def with_few_epochs(text):
    """The same code, with a classifier that learns for two epochs."""
    text = text.replace("trials=20", "trials=2")
    small = "max_epochs=2, n_members=2, hidden=(16,)"
    text = re.sub(r"MPVAEClassifier\((?=\))", f"MPVAEClassifier({small}", text)
    return re.sub(
        r"MPVAEClassifier\((?!max_epochs)(?!preset=\"paper\")",
        f"MPVAEClassifier({small}, ",
        text,
    )


def names_for(page):
    """What a page takes for granted."""
    data = simulate_probit(200, n_features=4, n_labels=3, seed=0)
    given = {
        "scale": {"X": data.X, "y": data.Y},
        "resuming": {"X": data.X, "y": data.Y},
        "tuning": {"X": data.X, "y": data.Y, "Y": data.Y, "X_train": data.X, "y_train": data.Y},
        "evidence": {"X": data.X, "y": data.Y, "Y": data.Y},
    }
    return dict(given.get(page.stem, {}))


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.stem
)
def test_python_blocks_run(page, project):
    names = names_for(page)
    if page.stem in ("report", "service"):
        run_commands(page)
    for block in blocks(page, "python"):
        if "spark" in block:  # tests/test_spark.py
            continue
        exec(compile(with_few_epochs(block), page.name, "exec"), names)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "sh")], ids=lambda p: p.stem)
def test_commands_run_in_their_order(page, project):
    run_commands(page)


def run_commands(page):
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith("mpvae") or line.startswith("mpvae serve"):
                continue
            words = shlex.split(line.split("   #")[0])
            if "ray" in words:  # tests/test_cluster.py
                continue
            if words[1] in ("fit", "tune"):
                words += QUICK
            if words[1] == "tune":
                words += ["--trials", "2"]
            result = CliRunner().invoke(app, words[1:])
            assert result.exit_code == 0, (line, result.output)


def test_from_a_csv_to_report_and_explorer_in_three_commands(project):
    """As the guide for ecologists has them; the third one answers in a process of its own."""
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    page = ROOT / "docs" / "ecologists.md"
    fit, report, serve = blocks(page, "sh")[0].strip().splitlines()
    for line in (f"{fit} {shlex.join(QUICK)}", report):
        assert CliRunner().invoke(app, shlex.split(line)[1:]).exit_code == 0
    text = (project / "demo" / "report.html").read_text()
    assert "species_alder" in text
    with serving(serve) as address:
        with urllib.request.urlopen(f"{address}/about") as answer:
            about = json.loads(answer.read())
        row = about["examples"][0]
        question = json.dumps({"rows": [row], "known": [{"species_alder": 1}]}).encode()
        asked = urllib.request.Request(
            f"{address}/conditional", question, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked) as answer:
            found = json.loads(answer.read())
        assert np.isfinite(found["probabilities"]).all()
        with urllib.request.urlopen(address) as answer:
            assert b"Label explorer" in answer.read()
        if shutil.which("curl"):  # as the page of the report has it
            pages = blocks(ROOT / "docs" / "report.md", "sh")
            curl = next(text for text in pages if text.startswith("curl"))
            assert asked_by_shell(curl, address)["labels"][0] == "species_alder"


def test_a_service_with_a_token_as_its_page_has_it(project):
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    if not (shutil.which("curl") and shutil.which("openssl")):
        pytest.skip("the page asks with curl and openssl")
    first, token = blocks(ROOT / "docs" / "service.md", "sh")[:2]
    fit = f"{first.splitlines()[0]} {shlex.join(QUICK)}"
    assert CliRunner().invoke(app, shlex.split(fit)[1:]).exit_code == 0
    make, serve, curl = token.strip().splitlines()
    subprocess.run(["sh", "-c", make], check=True)
    # On this machine alone: tests listen to nobody else.
    with serving(serve.replace("0.0.0.0", "127.0.0.1")) as address:
        assert asked_by_shell(curl, address)["labels"]
        refused = curl.replace("$(cat token)", "$(cat token | tr 0-9a-f 1-9a-f0)")
        assert "token" in asked_by_shell(refused, address)["error"]


@contextlib.contextmanager
def serving(command):
    """Address of what a command of a page serves, in a process of its own."""
    words = [sys.executable, "-m", *shlex.split(command), "--port", "0"]
    service = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        told = service.stderr.readline()
        yield next(word.strip(",") for word in told.split() if word.startswith("http"))
    finally:
        service.terminate()
        assert service.wait(20) in (0, -15)
        service.stderr.close()


def asked_by_shell(curl, address):
    """What a curl command of a page prints, sent to another address than the usual one."""
    words = ["sh", "-c", curl.replace("localhost:8000", address)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    "name", ["bird_survey", "gene_functions", "tags_of_texts", "drug_side_effects"]
)
def test_examples_run(name, real_data, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py", "--quick"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_page_of_commands_is_the_help():
    from commands import PAGE, text

    if f"typer=={typer.__version__}\n" not in (ROOT / "constraints.txt").read_text():
        pytest.skip("the page is laid out by the typer of constraints.txt")
    assert PAGE.read_text() == text(), "run: make docs"


def test_the_documentation_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", tmp_path / "site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "index.html").read_text()
    assert not re.findall(r'<(?:script|link)[^>]+(?:src|href)="https?:', page)
