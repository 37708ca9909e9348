import os
from pathlib import Path

import pytest

from mpvae.data import data_folder


@pytest.fixture(scope="session")
def real_data():
    folder = data_folder() or Path(__file__).parents[3] / "shared" / "data"
    if not (folder / "MANIFEST.md").is_file():
        pytest.skip("no real data: neither $MPVAE_DATA nor ../shared/data is there")
    return folder


@pytest.fixture
def write(tmp_path):
    """Write text or bytes to a file in a temporary folder; give its path."""

    def write_file(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture(autouse=True)
def no_data_variable_leaks():
    before = os.environ.get("MPVAE_DATA")
    yield
    assert os.environ.get("MPVAE_DATA") == before
