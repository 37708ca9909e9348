"""The engine itself: changes stay pure, what surrounds them stays valid, finds are seen."""

import hashlib
import io
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from random import Random

import pytest

from fuzz import seeds, targets, thrift
from fuzz.canaries import CANARY, WORDS
from fuzz.structures import changed_json, changed_model, changed_safetensors, changed_zip
from mpvae.data import thrift as reader
from mpvae.errors import DataError

ROOT = Path(__file__).parents[2]


def footer_of(data):
    length = int.from_bytes(data[-8:-4], "little")
    return data[len(data) - 8 - length : -8]


@pytest.mark.parametrize("k", range(len(seeds.parquet())))
def test_a_footer_that_was_read_is_written_as_it_was(k):
    footer = footer_of(seeds.parquet()[k]["zebra.parquet"])
    fields, end = thrift.read_struct(footer, 0)
    assert end == len(footer)
    assert thrift.write_struct(fields) == footer


def test_the_reader_of_footers_agrees_with_the_one_that_writes_them():
    footer = footer_of(seeds.parquet()[0]["zebra.parquet"])
    ours, end = reader.read_struct(footer)
    assert end == len(footer)
    theirs = {number: value for number, _, value in thrift.read_struct(footer, 0)[0]}
    assert ours[3, reader.I64] == theirs[3] == 30
    assert len(ours[2, reader.LIST]) == len(theirs[2][1]) == 7  # six columns and their root


def test_changed_json_is_mostly_json():
    value = {"a": [1, 2, {"b": None}], "c": "text"}
    texts = [changed_json(Random(k), value) for k in range(200)]
    assert len(set(texts)) > 100

    def parses(text):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return False
        return True

    assert 100 < sum(map(parses, texts)) < 200


def test_changed_json_is_a_function_of_its_generator():
    value = {"a": [1, 2, {"b": None}], "c": "text"}
    texts = [changed_json(Random(k), value) for k in range(500)]
    assert [changed_json(Random(k), value) for k in range(500)] == texts
    assert value == {"a": [1, 2, {"b": None}], "c": "text"}


def test_the_length_of_a_changed_header_mostly_fits():
    (files,) = seeds.states()
    (data,) = files.values()
    fit = 0
    for k in range(100):
        changed = changed_safetensors(Random(k), data)
        fit += struct.unpack_from("<Q", changed)[0] < len(changed)
    assert fit > 80


def test_hashes_of_a_changed_model_mostly_fit():
    fit = 0
    for k in range(100):
        files = changed_model(Random(k), seeds.first_model())
        try:
            told = json.loads(files["manifest.json"])["files"]
            fit += all(
                hashlib.sha256(files[entry["name"]]).hexdigest() == entry["sha256"]
                for entry in told.values()
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
    assert fit > 70


def test_changed_zip_members_keep_their_checksums():
    (data,) = seeds.npz()[0].values()
    fit = 0
    for k in range(60):
        changed = changed_zip(Random(k), data, lambda rng, content: content[::-1])
        try:
            fit += zipfile.ZipFile(io.BytesIO(changed)).testzip() is None
        except Exception:  # noqa: BLE001 the directory was changed, too
            continue
    assert fit > 30


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (KeyError("zebra"), "find: KeyError"),
        (UserWarning("zebra"), "find: UserWarning"),
        (DataError("two\nlines of zebra"), "find: the message is not one short line"),
        (DataError("\x1b[31m zebra"), "find: the message is not one short line"),
        (DataError("zebra" * 200), "find: the message is not one short line"),
        (DataError("something is wrong"), "find: the message names no file"),
        (DataError("zebra is wrong"), "DataError"),
    ],
)
def test_what_must_not_be_is_a_find(tmp_path, monkeypatch, error, verdict):
    def read(folder):
        raise error

    (tmp_path / "zebra.csv").touch()
    monkeypatch.setitem(targets.TARGETS, "bad", targets.Target(list, CANARY.change, read))
    assert targets.outcome("bad", tmp_path)[0] == verdict


def test_memory_that_was_refused_is_a_find_though_the_error_is_ours(tmp_path, monkeypatch):
    def read(folder):
        try:
            raise MemoryError
        except MemoryError as error:
            raise DataError("zebra cannot be read") from error

    (tmp_path / "zebra.csv").touch()
    monkeypatch.setitem(targets.TARGETS, "bad", targets.Target(list, CANARY.change, read))
    assert targets.outcome("bad", tmp_path)[0] == "find: took too much memory"


@pytest.mark.slow
def test_the_long_run_sees_death_waiting_work_and_memory(tmp_path, monkeypatch):
    command = [
        sys.executable,
        "benchmarks/fuzz.py",
        "canary",
        "--inputs",
        "10",
        "--seed",
        "106",
    ]
    result = tmp_path / "fuzz.json"
    done = subprocess.run(
        [*command, "--results", str(result)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    finds = json.loads(result.read_text())["canary"]["finds"]
    verdicts = {find["number"]: find["verdict"] for find in finds}
    expected = {
        b"die": "find: died, status -11",
        b"wait": "find: waited",
        b"work": "find: took 6",
        b"take": "find: MemoryError",
        b"hide": "find: took too much memory",
        b"raise": "find: KeyError",
    }
    monkeypatch.setitem(targets.TARGETS, "canary", CANARY)
    drawn = {k: targets.files_of("canary", 106, k)["zebra.bin"] for k in range(10)}
    assert set(drawn.values()) == set(WORDS)
    for number, word in drawn.items():
        assert verdicts.get(number, "").startswith(expected.get(word, ""))
        assert (number in verdicts) == (word in expected)
