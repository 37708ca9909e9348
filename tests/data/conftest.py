import pytest

from mpvae.data import read_table
from mpvae.errors import DataError


@pytest.fixture
def write(tmp_path):
    """Write text or bytes to a file in a temporary folder; give its path."""

    def write_file(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture
def attempt():
    """Read a file, whatever it holds; give the table, or the text of the DataError."""

    def read(path, **options):
        try:
            return read_table(path, **options)
        except DataError as error:
            return str(error)

    return read
