"""Bombs, and what was found once, each in a process that may take 1 GB."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.bombs import BOMBS, corpus
from fuzz.mutations import MAX_BYTES

ROOT = Path(__file__).parents[2]
MOST_BYTES = 2**30
CHILD = """
import json, os, resource, sys
from pathlib import Path
from fuzz.bombs import BOMBS, corpus
from fuzz.targets import outcome, put

home = Path(sys.argv[1])
bombs = BOMBS | corpus()
files = {bomb: make() for bomb, (_, make) in bombs.items()}
for bomb, (name, _) in bombs.items():
    put(files[bomb], home)
    sys.stdout.flush()
    if os.fork():
        _, status = os.wait()
        if status:
            print(json.dumps([bomb, 0, f"find: died, status {status}", "", 0]))
        continue
    pages, resident = map(int, Path("/proc/self/statm").read_text().split()[:2])
    size = resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    limit = pages * size + int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))  # what does not end is ended
    verdict, message = outcome(name, home)
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    grown = int(peak) * 1024 - resident * size
    length = sum(map(len, files[bomb].values()))
    print(json.dumps([bomb, length, verdict, message, grown]), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Length, verdict, message and bytes by bomb."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("memory is measured in /proc, which is not there")
    home = tmp_path_factory.mktemp("bombs") / "zebra"
    home.mkdir()
    single = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    pool = {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # others set address space aside
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(home), str(MOST_BYTES)],
        env=os.environ | single | pool | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {line[0]: line[1:] for line in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("bomb", BOMBS | corpus())
def test_a_bomb_does_not_go_off(bomb, measured):
    length, verdict, message, grown = measured[bomb]
    assert not verdict.startswith("find"), (verdict, message)
    assert length <= 3 * MAX_BYTES
    assert grown < MOST_BYTES
