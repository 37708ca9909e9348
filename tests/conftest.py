"""Shared by all tests: where the real data is, and which tests run only on demand."""

import os
from pathlib import Path

# Models in tests are tiny: a second thread costs more than it gains, above all on a busy
# machine. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from mpvae.data import data_folder

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
    folder = data_folder() or ROOT.parent / "shared" / "data"
    if not (folder / "MANIFEST.md").is_file():
        pytest.skip("no real data: neither $MPVAE_DATA nor ../shared/data is there")
    return folder
