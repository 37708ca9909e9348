"""What the README shows is run: its Python blocks, its commands, and the output it prints."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mpvae.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
NUMBER = re.compile(r"[+-]?\d*\.\d+")


@pytest.fixture
def project_copy(tmp_path, monkeypatch):
    """An empty folder with the example tables, where the README's paths work."""
    (tmp_path / "examples").mkdir()
    for name in ("sites.csv", "new_sites.csv", "seen.csv"):
        (tmp_path / "examples" / name).write_bytes((ROOT / "examples" / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_blocks_run_and_print_what_is_shown(project_copy, capsys):
    pytest.importorskip("river", reason="the yeast data comes with river")
    names = {}
    for block in PYTHON:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    shown = next(text for kind, text in BLOCKS if kind == "text")
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    # Rounding differs between machines and grows over some hundred training steps
    for a, b in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        assert float(a) == pytest.approx(float(b), abs=0.1)
    assert (project_copy / "demo/sites-model/manifest.json").exists()


def test_the_commands_run_in_their_order(project_copy):
    commands = next(text for _, text in BLOCKS if text.startswith("mpvae fit"))
    for line in commands.strip().splitlines():
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == 0, (line, result.output)
    assert len((project_copy / "demo/probabilities.csv").read_text().splitlines()) == 121


def test_every_link_leads_to_a_file():
    for document in (ROOT / "README.md", *ROOT.glob("docs/*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), (document.name, target)
