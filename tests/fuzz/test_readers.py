"""Every reader against hostile files: read, or refused in one line that names the file."""

import os
import signal
from contextlib import contextmanager

import pytest

from fuzz.mutations import MAX_BYTES
from fuzz.targets import TARGETS, files_of, outcome, put

INPUTS = 300


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "zebra"
    folder.mkdir()
    return folder


@contextmanager
def in_seconds(seconds):
    """A reader that waits for a pipe would wait for ever."""

    def too_late(signum, frame):
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", TARGETS)
def test_valid_files_are_read(name, home):
    for files in TARGETS[name].seeds():
        put(files, home)
        assert outcome(name, home) == ("accepted", "")


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_files_are_read_or_refused_in_one_line(name, home):
    finds, verdicts = [], set()
    for number in range(INPUTS):
        put(files_of(name, 1, number), home)
        verdict, message = outcome(name, home)
        verdicts.add(verdict)
        if verdict.startswith("find"):
            finds.append((number, verdict, message))
    assert not finds
    assert len(verdicts) > 1  # both sides of every check are reached


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
@pytest.mark.parametrize("name", [name for name in TARGETS if name != "upload"])
def test_what_is_no_file_is_refused_at_once(name, kind, home):
    files = TARGETS[name].seeds()[0]
    put(files, home)
    for file in files:
        (home / file).unlink()
        if kind == "pipe":
            os.mkfifo(home / file)
        elif kind == "folder":
            (home / file).mkdir()
        else:
            (home / file).symlink_to("/dev/zero")
    with in_seconds(5):
        verdict, message = outcome(name, home)
    assert verdict in ("DataError", "ModelFileError", "ConfigError"), (verdict, message)


def test_an_input_depends_on_target_seed_and_number_alone():
    assert files_of("csv", 0, 7) == files_of("csv", 0, 7)
    assert files_of("csv", 0, 7) != files_of("csv", 1, 7)
    some = [files_of("csv", 0, number)["zebra.csv"] for number in range(50)]
    assert len(set(some)) > 45
    assert max(map(len, some)) <= MAX_BYTES
