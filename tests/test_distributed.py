"""Two processes train as one does: the same sums, the same weights in both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from mpvae import ConfigError, load_model
from mpvae.data import simulate_probit
from mpvae.distributed import Team, agreed, joined, share_of, team

DATA = simulate_probit(230, n_features=4, n_labels=3, n_factors=1, seed=2)

LINEAR = """
import json, sys
from collections import namedtuple
from pathlib import Path
import numpy as np, torch
from mpvae import distributed, loop
from mpvae.adam import Adam, Group
from mpvae.config import DataShape
from mpvae.presets import resolve
from mpvae.rows import Rows
Terms = namedtuple("Terms", "total half")
rng = np.random.default_rng(0)
X = rng.normal(size=(103, 4)); Y = (X[:, :2] > 0).astype(float)
rows = Rows(X, Y, rng.uniform(0.2, 2, 103))
with distributed.joined() as us, loop.seeded(3):
    network = torch.nn.Linear(4, 2).double()
    def loss(x, y, weight):
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            network(x), y, reduction="none").sum(1)
        total = weight @ each / weight.sum()
        return Terms(total, total / 2)
    settings = resolve("default", {"batch_size": 17, "max_epochs": 4}, DataShape(103, 4, 2))
    generator = torch.Generator().manual_seed(1)
    shuffle = torch.randperm
    torch.randperm = lambda n, generator=None, fixed=generator: shuffle(n, generator=fixed)
    course = loop.fit_network(network, rows, None, settings,
        optimizer=Adam([Group(list(network.parameters()))]), loss=loss,
        probabilities=lambda X: None, metric="micro_f1")
    told = [r.terms["total"] for r in course.history], network.weight.flatten().tolist()
    Path(sys.argv[1], f"{us.rank}.json").write_text(json.dumps(told))
"""


def environment():
    source = str(Path(__file__).parents[1] / "src")
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": source}


def together(*words):
    """Output of two processes that torchrun starts."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    result = subprocess.run(
        [*command, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment(),
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("batch", [0, 1, 6, 7, 100])
def test_shares_are_the_batch(batch, size):
    rows = [np.arange(batch)[share_of(batch, Team(rank, size))] for rank in range(size)]
    if batch >= size:
        assert np.concatenate(rows).tolist() == list(range(batch))
        assert max(map(len, rows)) - min(map(len, rows)) <= 1
    else:
        assert all(len(some) == batch for some in rows)


def test_one_process_alone_is_a_team():
    assert team() == Team(0, 1)
    with joined() as us:
        assert us.writes
        assert agreed([0.3, None]) == [0.3, None]


def test_processes_that_nobody_started_cannot_be_joined(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="start them with torchrun"), joined():
        pass


def test_two_processes_take_the_steps_of_one(tmp_path):
    """Without noise, batches being the same: equal up to the order of sums."""
    script = tmp_path / "linear.py"
    script.write_text(LINEAR)
    subprocess.run([sys.executable, script, tmp_path], env=environment(), check=True)
    curve, weights = json.loads((tmp_path / "0.json").read_text())
    together(script, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second  # to the last bit
    # 28 steps of Adam: each moves by a ratio of sums, and a sum of some 17 rows in another
    # order is off by 1e-15 of it; where a gradient is nearly 0 the ratio has 1e-8 added.
    np.testing.assert_allclose(first[0], curve, rtol=1e-9)
    np.testing.assert_allclose(first[1], weights, rtol=0, atol=1e-9)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_command_line_under_torchrun(tmp_path, streamed):
    frame = pd.DataFrame(DATA.X, columns=list("abcd"))
    frame[["sp_0", "sp_1", "sp_2"]] = DATA.Y
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=20)  # each reads half of them
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from mpvae import choosing, cli, estimator\n"
        f"choosing.IN_MEMORY_VALUES = {100 if streamed else 10**8}\n"
        "from mpvae.distributed import team\n"
        "take = estimator.MPVAEClassifier._take\n"
        "def told(self, fitted, **k):\n"
        "    flat = torch.cat([p.flatten() for n in fitted.networks for p in n.parameters()])\n"
        f"    Path({str(tmp_path)!r}, str(team().rank)).write_bytes(flat.numpy().tobytes())\n"
        "    return take(self, fitted, **k)\n"
        "estimator.MPVAEClassifier._take = told\n"
        "cli.app(sys.argv[1:])\n"
    )
    settings = ("hidden=8", "latent_dim=2", "n_draws=4", "n_members=2", "max_epochs=3")
    words = [word for pair in settings for word in ("-s", pair)]
    told = together(
        script, "fit", tmp_path / "t.parquet", "-l", "sp_*", "-o", tmp_path / "m", *words
    )
    weights = (tmp_path / "0").read_bytes()
    assert weights
    assert weights == (tmp_path / "1").read_bytes()
    assert told.count("Model saved in") == 1  # one writer
    assert torch.isfinite(load_model(tmp_path / "m").networks_[0].B).all()


@pytest.mark.slow
def test_killed_under_torchrun_it_resumes_to_the_same_model(tmp_path):
    frame = pd.DataFrame(DATA.X, columns=list("abcd"))
    frame[["sp_0", "sp_1", "sp_2"]] = DATA.Y
    frame.to_parquet(tmp_path / "t.parquet")
    script = tmp_path / "run.py"
    script.write_text(
        "import os, sys\n"
        "from mpvae import checkpoints, cli\n"
        "checkpoints.EVERY = 0.0\n"
        "write, left = checkpoints.Checkpoint.write, [int(sys.argv.pop(1))]\n"
        "def killed(self, *state):\n"
        "    write(self, *state)\n"
        "    left[0] -= 1\n"
        "    if left[0] == 0 and os.environ['RANK'] == '0':\n"
        "        os.kill(os.getpid(), 9)\n"
        "checkpoints.Checkpoint.write = killed\n"
        "cli.app(sys.argv[1:])\n"
    )
    settings = ("hidden=8", "latent_dim=2", "n_draws=4", "n_members=2", "max_epochs=3")
    words = [word for pair in settings for word in ("-s", pair)]

    def fit(kill_after, folder, *more):
        command = ("fit", tmp_path / "t.parquet", "-l", "sp_*", "-o", folder, *words, *more)
        return together(script, kill_after, *command)

    fit(0, tmp_path / "whole")
    with pytest.raises(AssertionError, match="Signal 9"):
        fit(5, tmp_path / "m")  # two base learners, then the first network
    with pytest.raises(AssertionError, match="other data or settings"):
        fit(0, tmp_path / "m", "--resume", "--seed", "1")
    fit(0, tmp_path / "m", "--resume")
    whole, again = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("whole", "m")
    )
    assert whole == again
