"""A training that was killed goes on to the weights it would have had anyway, bit for bit."""

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

from mpvae import ConfigError, ModelFileError, MPVAEClassifier, checkpoints, load_model
from mpvae.data import simulate_probit

DATA = simulate_probit(400, n_features=5, n_labels=4, n_factors=2, seed=5)


@pytest.fixture(autouse=True)
def write_every_epoch(monkeypatch):
    monkeypatch.setattr(checkpoints, "EVERY", 0.0)


def classifier(**given):
    return MPVAEClassifier(
        **{"n_members": 2, "max_epochs": 6, "base": None, "random_state": 3} | given
    )


def weights(model):
    return [p for network in model.networks_ for p in network.state_dict().values()]


def assert_same(a, b):
    assert all(torch.equal(p, q) for p, q in zip(weights(a), weights(b), strict=True))
    pd.testing.assert_frame_equal(a.history_, b.history_)
    np.testing.assert_equal(a.thresholds_, b.thresholds_)


class Killed(BaseException):
    """Not an interrupt: nothing in the package catches it."""


def stopping_after(n, fit):
    """A fit that ends, as by a kill, when the state was written ``n`` times."""
    written = []

    def count():
        written.append(0)
        if len(written) == n:
            raise Killed

    with pytest.raises(Killed):
        fit(count)


@pytest.mark.parametrize("after", [1, 3, 6, 7, 12])
def test_a_fit_goes_on_to_the_same_weights(tmp_path, after):
    whole = classifier().fit(DATA.X, DATA.Y)
    folder = tmp_path / "state"
    stopping_after(
        after,
        lambda told: classifier().fit(
            DATA.X, DATA.Y, checkpoint=checkpoints.Kept(folder, told)
        ),
    )
    again = classifier().fit(DATA.X, DATA.Y, checkpoint=folder)
    assert_same(whole, again)
    assert not folder.exists()


def test_a_streamed_fit_goes_on_to_the_same_weights(tmp_path):
    frame = pd.DataFrame(DATA.X, columns=[f"x{k}" for k in range(5)])
    frame[[f"y{k}" for k in range(4)]] = DATA.Y
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=50)

    def fit(**given):
        return classifier().fit_stream(tmp_path / "rows.parquet", labels="y*", **given)

    whole = fit()
    folder = tmp_path / "state"
    stopping_after(8, lambda told: fit(checkpoint=checkpoints.Kept(folder, told)))
    assert_same(whole, fit(checkpoint=folder))


def test_patience_is_remembered(tmp_path):
    given = {"n_members": 1, "max_epochs": 60, "patience": 3, "lr": 0.05}
    whole = classifier(**given).fit(DATA.X, DATA.Y)
    assert whole.n_epochs_ < 60
    folder = tmp_path / "state"
    stopping_after(
        whole.n_epochs_ - 1,
        lambda told: classifier(**given).fit(
            DATA.X, DATA.Y, checkpoint=checkpoints.Kept(folder, told)
        ),
    )
    assert_same(whole, classifier(**given).fit(DATA.X, DATA.Y, checkpoint=folder))


def test_networks_in_processes_of_their_own_leave_nothing_behind(tmp_path):
    folder = tmp_path / "state"
    side_by_side = classifier(n_jobs=2).fit(DATA.X, DATA.Y, checkpoint=folder)
    assert_same(classifier().fit(DATA.X, DATA.Y), side_by_side)
    assert not folder.exists()


def left_behind(tmp_path):
    folder = tmp_path / "state"
    stopping_after(
        2,
        lambda told: classifier().fit(
            DATA.X, DATA.Y, checkpoint=checkpoints.Kept(folder, told)
        ),
    )
    return folder


@pytest.mark.parametrize(
    ("given", "rows"), [({"lr": 0.01}, 400), ({"random_state": 4}, 400), ({}, 399)]
)
def test_other_data_or_settings_do_not_take_it_up(tmp_path, given, rows):
    folder = left_behind(tmp_path)
    with pytest.raises(ModelFileError, match=r"other data or settings.*delete this one"):
        classifier(**given).fit(DATA.X[:rows], DATA.Y[:rows], checkpoint=folder)
    assert list(folder.iterdir())  # still there for whom it is meant


@pytest.mark.parametrize("harm", ["truncated", "empty", "other"])
def test_a_damaged_state_is_named(tmp_path, harm):
    folder = left_behind(tmp_path)
    (file,) = folder.iterdir()
    content = file.read_bytes()
    broken = {"truncated": content[: len(content) // 2], "empty": b"", "other": b"x" * 99}
    file.write_bytes(broken[harm])
    with pytest.raises(ModelFileError, match=rf"{file.name} .*delete it to begin anew"):
        classifier().fit(DATA.X, DATA.Y, checkpoint=folder)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ConfigError, match="is a file; give a folder"):
        classifier().fit(DATA.X, DATA.Y, checkpoint=tmp_path / "state")
    with pytest.raises(ModelFileError, match=r"cannot write.*give another folder"):
        classifier().fit(DATA.X, DATA.Y, checkpoint=tmp_path / "state" / "inside")
    with pytest.raises(ConfigError, match="must be a folder, got 3"):
        classifier().fit(DATA.X, DATA.Y, checkpoint=3)


def test_what_could_not_be_taken_up_is_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"give random_state an integer, such as 0, not None"):
        classifier(random_state=None).fit(DATA.X, DATA.Y, checkpoint=tmp_path)


def test_files_of_others_stay(tmp_path):
    mine = tmp_path / "training-mine.safetensors"
    mine.write_text("mine")
    classifier().fit(DATA.X, DATA.Y, checkpoint=tmp_path)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("change", ["features", "label name", "feature name"])
def test_a_stream_of_other_rows_does_not_take_up_a_state(tmp_path, change):
    X = pd.DataFrame(DATA.X, columns=list("abcde")[: DATA.X.shape[1]])
    Y = pd.DataFrame(DATA.Y, columns=[f"y{k}" for k in range(DATA.Y.shape[1])])
    # Whoever gives more than a path sees to the end: the state is left, as by a kill.
    classifier().fit_stream(lambda: [(X, Y)], checkpoint=checkpoints.Kept(tmp_path))
    other_X, other_Y = X.copy(), Y
    if change == "features":
        other_X.iloc[17, 1] += 0.5
    elif change == "label name":
        other_Y = Y.rename(columns={"y0": "z"})
    else:
        other_X = X.rename(columns={"a": "z"})
    with pytest.raises(ModelFileError, match="other data or settings"):
        classifier().fit_stream(lambda: [(other_X, other_Y)], checkpoint=tmp_path)


KILLED = """
import sys
import numpy as np
from mpvae import MPVAEClassifier, checkpoints
from mpvae.data import simulate_probit
checkpoints.EVERY = 0.0
data = simulate_probit(400, n_features=5, n_labels=4, n_factors=2, seed=5)
model = MPVAEClassifier(n_members=2, max_epochs=40, base=None, random_state=3)
print("ready", flush=True)
model.fit(data.X, data.Y, checkpoint=sys.argv[1])
model.save(sys.argv[2])
"""


def test_killed_again_and_again_it_ends_with_the_same_model(tmp_path):
    """SIGKILL at moments that depend on the machine: while training, judging or writing."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    words = [sys.executable, "-c", KILLED, tmp_path / "state", tmp_path / "model"]
    rng = np.random.default_rng(0)
    n_killed = 0
    while not (tmp_path / "model").exists():
        process = subprocess.Popen(
            list(map(str, words)), stdout=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout.readline() == "ready\n"
        if n_killed < 4:
            time.sleep(rng.uniform(0.3, 1.2))
            process.send_signal(signal.SIGKILL)
            n_killed += 1
        process.wait(timeout=120)
        process.stdout.close()
    whole = classifier(max_epochs=40).fit(DATA.X, DATA.Y)
    assert_same(whole, load_model(tmp_path / "model"))
    assert not (tmp_path / "state").exists()
