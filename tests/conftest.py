"""Shared by all tests: where the real data is, and which tests run only on demand."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run minutes of real training")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow: run with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real data sets: $MPVAE_DATA, or ../shared/data beside the project."""
    folder = Path(os.environ.get("MPVAE_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data: neither $MPVAE_DATA nor {folder} is a folder")
    return folder
