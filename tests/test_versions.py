"""Versions that are promised: the lowest, the usual and the locked agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def requirements():
    """All that pyproject.toml asks for, but for our own extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    found = [Requirement(text) for group in groups for text in group]
    return [one for one in found if one.name != "mpvae"]


def pins(file):
    """Versions by name, as a file of constraints, or a lock, has them."""
    found = {}
    for line in (ROOT / file).read_text().splitlines():
        if line and not line.startswith(("#", " ")):
            name, version = re.split("[;#]", line)[0].rstrip(" \\").split("==")
            assert canonicalize_name(name) not in found, f"{name} stands twice in {file}"
            found[canonicalize_name(name)] = Version(version)
    return found


def test_the_lowest_versions_tested_are_the_lowest_versions_allowed():
    floors = {}
    for one in requirements():
        for part in one.specifier:
            assert part.operator == ">=", f"{one}: state the lowest version, by >="
            floors[canonicalize_name(one.name)] = Version(part.version)
    assert pins("constraints-lowest.txt") == floors


def test_the_lock_holds_every_requirement_in_the_usual_version():
    locked, usual = pins("requirements.lock"), pins("constraints.txt")
    assert locked["torch"] == Version("2.13.0")
    for one in requirements():
        assert locked[canonicalize_name(one.name)] in one.specifier, one
    assert {name: locked[name] for name in usual} == usual


def test_every_line_of_the_lock_has_a_hash_and_none_a_place():
    text = (ROOT / "requirements.lock").read_text()
    _head, *blocks = re.split(r"\n(?=[a-z0-9])", text.strip())
    assert len(blocks) == len(pins("requirements.lock")) > 100
    for block in blocks:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block
    for place in ("/", "--index-url", "--extra-index-url", "--find-links"):
        assert place not in text


@pytest.mark.parametrize("target", ["test-lowest", "test-order", "lock", "sbom", "audit"])
def test_the_page_of_versions_names_targets_that_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"make {target}" in (ROOT / "docs" / "versions.md").read_text()
