"""Ray runs the same code: the models, answers and searches are those of one machine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from mpvae import DataError, MPVAEError, cluster, load_model
from mpvae.asked import Asked
from mpvae.choosing import FitJob
from mpvae.data import simulate_probit
from mpvae.data.delimited import EXACT
from mpvae.data.parts import open_parts

ray = pytest.importorskip("ray", reason="the engine ray is not installed")

SETTINGS = ["--set", "n_members=2", "--set", "hidden=32", "--base", "none"]


def environment():
    source = str(Path(__file__).parents[1] / "src")
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": source}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table in three files, and a model of it."""
    folder = tmp_path_factory.mktemp("ray")
    data = simulate_probit(3000, n_features=6, n_labels=5, n_factors=2, seed=0)
    frame = pd.DataFrame(data.X, columns=[f"x{k}" for k in range(6)])
    frame = frame.join(pd.DataFrame(data.Y.astype(int), columns=[f"y{k}" for k in range(5)]))
    frame.insert(0, "id", np.arange(3000))
    (folder / "table").mkdir()
    for k in range(3):
        part = frame.iloc[1000 * k : 1000 * (k + 1)]
        part.to_parquet(folder / "table" / f"part-{k}.parquet", row_group_size=300)
    mpvae(folder, "fit", *TRAINED, "--out", "model", "--set", "max_epochs=3")
    return folder


TRAINED = ["table", "--labels", "y*", "--exclude", "id", *SETTINGS]


def mpvae(folder, *words, launcher=()):
    result = subprocess.run(
        [sys.executable, *launcher, "-m", "mpvae", *map(str, words)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_worker_that_is_killed_does_not_change_the_model(folder):
    """SIGKILL in an epoch; torchrun, undisturbed, ends with the same weights bit for bit."""
    words = ["fit", *TRAINED, "--set", "max_epochs=50"]
    run = subprocess.Popen(
        [sys.executable, "-m", "mpvae", *words, "--out", "by_ray", "--engine", "ray", "--json"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not list(folder.glob(".by_ray.training/run/checkpoint_*/training-*")):
        assert time.monotonic() < deadline
        assert run.poll() is None, run.stderr.read()
        time.sleep(0.05)
    workers = subprocess.run(
        ["pgrep", "-f", "RayTrainWorker"], capture_output=True, text=True, check=True
    )
    os.kill(int(workers.stdout.split()[-1]), signal.SIGKILL)
    told, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    assert json.loads(told)["rows"] == 3000
    assert not (folder / ".by_ray.training").exists()

    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    mpvae(folder, *words, "--out", "by_torchrun", launcher=torchrun)
    a, b = load_model(folder / "by_ray"), load_model(folder / "by_torchrun")
    for p, q in zip(weights(a), weights(b), strict=True):
        assert torch.equal(p, q)
    assert a.validation_scores_ == b.validation_scores_


def weights(model):
    return [p for network in model.networks_ for p in network.state_dict().values()]


def test_answers_are_those_of_one_process_in_the_order_of_the_rows(folder):
    words = ["predict", "model", "table", "--keep", "id", "--metric", "micro_f1"]
    assert "3000 rows" in mpvae(folder, *words, "--engine", "ray", "--out", "answers")
    mpvae(folder, *words, "--out", "answers.parquet")
    files = sorted((folder / "answers").glob("*.parquet"))
    assert len(files) == 12  # row groups, of which the last of a file is small
    by_ray = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    pd.testing.assert_frame_equal(
        by_ray, pd.read_parquet(folder / "answers.parquet"), check_dtype=False
    )
    with pytest.raises(MPVAEError, match="exists; with Ray the answer is a new folder"):
        cluster.predict(
            folder / "model", Asked(), open_parts(folder / "table"), [], folder / "answers"
        )


def test_a_search_is_continued_without_ray(folder):
    words = ["tune", *TRAINED, "--out", "tuned", "--set", "max_epochs=2", "--json"]
    told = json.loads(mpvae(folder, *words, "--engine", "ray", "--trials", "3"))
    trials = pd.read_csv(folder / "tuned" / "trials.csv", **EXACT)
    assert len(trials) == 3
    assert trials["state"].iloc[0] == "complete"
    assert trials["lr"].between(3e-4, 1e-2).all()
    assert told["default"] == trials["micro_f1"].iloc[0]
    on = json.loads(mpvae(folder, *words, "--trials", "4"))
    assert sum(on["trials"].values()) == 4
    assert on["default"] == told["default"]


def test_what_is_wrong_is_told_before_ray_begins(folder):
    job = FitJob(folder / "table", "nothing*", (), "auto", 0, {})
    with pytest.raises(DataError, match="nothing"):
        cluster.fit(job, folder / "m", workers=2)


def test_without_ray_the_remedy_is_named(monkeypatch, folder):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    job = FitJob(folder / "table", "y*", (), "auto", 0, {})
    with pytest.raises(MPVAEError, match="pip install"):
        cluster.fit(job, folder / "m", workers=2)
