"""`mpvae fit --resume`, folders that are taken, and places that cannot be written to."""

import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.utils import check_random_state
from typer.testing import CliRunner

from mpvae import MPVAEClassifier, checkpoints, choosing, cli, evidence, load_model
from mpvae.checkpoints import Kept, keeping
from mpvae.data import simulate_probit
from mpvae.errors import ModelFileError
from mpvae.model_file import TRAINING, write_atomically
from mpvae.streaming import bucket_of

DATA = simulate_probit(120, n_features=4, n_labels=3, n_factors=1, seed=3)
SMALL = ("hidden=8", "latent_dim=2", "n_draws=4", "n_members=2", "max_epochs=4")
SETTINGS = [*(word for pair in SMALL for word in ("--set", pair)), "--base", "kernel,forest"]
IS_ROOT = os.name == "posix" and os.geteuid() == 0 and sys.platform == "linux"


@pytest.fixture(autouse=True)
def write_every_epoch(monkeypatch):
    monkeypatch.setattr(checkpoints, "EVERY", 0.0)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    frame = pd.DataFrame(DATA.X, columns=list("abcd"))
    frame[["sp_0", "sp_1", "sp_2"]] = DATA.Y
    file = tmp_path_factory.mktemp("rows") / "t.parquet"
    frame.to_parquet(file, row_group_size=30)
    return file


class Killed(BaseException):
    """Not an interrupt: nothing in the package catches it."""


def fit(table, folder, *words):
    command = ["fit", str(table), "-l", "sp_*", "-o", str(folder), *SETTINGS, *words]
    return CliRunner().invoke(cli.app, command, catch_exceptions=True)


def ends(table, folder, *words):
    result = fit(table, folder, *words)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result


def refused(table, folder, *words):
    """The one line on stderr of a command that ends with exit code 2."""
    result = fit(table, folder, *words)
    assert result.exit_code == 2, (result.stderr, result.exception)
    (line,) = result.stderr.splitlines()
    return line


def contents(folder):
    """Digest of everything in a model's folder, hidden files too."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()
    }


@contextmanager
def after_writes(monkeypatch, n, do):
    """Do something as soon as the state was written ``n`` times."""
    write, written = checkpoints.Checkpoint.write, []

    def counted(self, tensors, facts):
        write(self, tensors, facts)
        written.append(self.file.name)
        if len(written) == n:
            do()

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Checkpoint, "write", counted)
        yield written


def kill():
    raise Killed


def killed_after(n, monkeypatch, table, folder, *words):
    with after_writes(monkeypatch, n, kill) as written, pytest.raises(Killed):
        raise fit(table, folder, *words).exception
    return written


# --------------------------------------------------------------------------------- --resume


@pytest.fixture(scope="module")
def whole(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "m"
    ends(table, folder)
    return contents(folder)


# 2 base learners and 2 networks of 4 epochs each are written 10 times
@pytest.mark.parametrize("after", [1, 2, 4, 6, 7, 10])
def test_a_killed_fit_resumes_to_the_same_folder(table, whole, tmp_path, monkeypatch, after):
    folder = tmp_path / "m"
    killed_after(after, monkeypatch, table, folder)
    assert [path.name for path in folder.iterdir()] == [TRAINING]
    with pytest.raises(ModelFileError, match=r"has not ended, and no model yet.*--resume"):
        load_model(folder)
    result = ends(table, folder, "--resume")
    assert f"going on with the training in {folder}" in result.stderr.replace("\n", "")
    assert contents(folder) == whole


def test_killed_while_the_model_is_saved_it_resumes(table, whole, tmp_path, monkeypatch):
    folder = tmp_path / "m"
    replace = Path.replace

    def crash(self, target):
        if target.name == "manifest.json":
            raise Killed
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(Killed):
            raise fit(table, folder).exception
    (folder / ".mpvae-0123.tmp").write_bytes(b"half")  # what a real kill would have left
    (folder / TRAINING / ".mpvae-0123.tmp").write_bytes(b"half")
    ends(table, folder, "--resume")
    assert contents(folder) == whole


def test_a_stream_resumes_to_the_same_folder(table, tmp_path, monkeypatch):
    monkeypatch.setattr(choosing, "IN_MEMORY_VALUES", 100)
    nobody = ("--base", "auto")
    ends(table, tmp_path / "whole", *nobody)
    killed_after(5, monkeypatch, table, tmp_path / "m", *nobody)
    ends(table, tmp_path / "m", "--resume", *nobody)
    assert contents(tmp_path / "m") == contents(tmp_path / "whole")


def other_row_groups(frame):
    return frame, 60


def other_labels(frame):
    """Each bucket has as many of every label as before: only the cells tell."""
    labels = [name for name in frame if name.startswith("sp_")]
    bucket = bucket_of(np.arange(len(frame)), int(check_random_state(0).randint(2**31 - 1)))
    changed = frame.copy()
    for _, rows in frame.groupby(bucket)[labels]:
        changed.loc[rows.index, labels] = np.roll(rows.to_numpy(), 1, axis=0)
    assert not changed.equals(frame)
    return changed, 30


@pytest.mark.parametrize("change", [other_row_groups, other_labels])
def test_a_stream_of_other_data_is_not_resumed(table, tmp_path, monkeypatch, change):
    monkeypatch.setattr(choosing, "IN_MEMORY_VALUES", 100)
    copy = tmp_path / "t.parquet"
    copy.write_bytes(table.read_bytes())
    killed_after(5, monkeypatch, copy, tmp_path / "m", "--base", "auto")
    frame, size = change(pd.read_parquet(copy))
    frame.to_parquet(copy, row_group_size=size)
    result = fit(copy, tmp_path / "m", "--resume", "--base", "auto")
    assert result.exit_code == 2
    assert "holds a training with other data" in result.stderr


def test_base_learners_are_not_fitted_again(table, whole, tmp_path, monkeypatch):
    folder = tmp_path / "m"
    written = killed_after(3, monkeypatch, table, folder)
    assert written[:2] == [f"base-00{k}.safetensors" for k in range(2)]

    def never(*_):
        raise AssertionError("fitted again")

    for name in evidence.KINDS:
        monkeypatch.setitem(evidence._NAMED, name, never)
    ends(table, folder, "--resume")
    assert contents(folder) == whole


def test_short_trainings_keep_no_state(table, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "EVERY", 1e6)
    with after_writes(monkeypatch, 1, kill) as written:
        ends(table, tmp_path / "m")
    assert written == []
    assert len(list((tmp_path / "m").iterdir())) == 3


def test_without_resume_a_state_is_told_and_begun_anew(table, whole, tmp_path, monkeypatch):
    folder = tmp_path / "m"
    killed_after(5, monkeypatch, table, folder, "--seed", "1")
    result = ends(table, folder)
    assert "did not end; begun anew (--resume: go on with it)" in result.stderr
    assert contents(folder) == whole


def test_resume_with_nothing_there_says_so_and_begins(table, whole, tmp_path):
    result = ends(table, tmp_path / "m", "--resume")
    assert "nothing to resume" in result.stderr
    assert contents(tmp_path / "m") == whole


@pytest.mark.parametrize("after", [1, 4])
def test_resume_with_other_settings_is_refused(table, tmp_path, monkeypatch, after):
    folder = tmp_path / "m"
    killed_after(after, monkeypatch, table, folder)
    before = contents(folder / TRAINING)
    result = fit(table, folder, "--resume", "--set", "lr=0.01")
    assert result.exit_code == 2
    line = result.stderr.splitlines()[-1]
    assert "holds a training with other data or settings" in line
    assert line.endswith("(mpvae fit: leave out --resume)")
    assert contents(folder / TRAINING) == before
    ends(table, folder, "--resume")


def test_after_ctrl_c_the_best_so_far_is_saved_and_resume_goes_on(
    table, whole, tmp_path, monkeypatch
):
    folder = tmp_path / "m"
    with after_writes(monkeypatch, 5, lambda: os.kill(os.getpid(), signal.SIGINT)):
        result = fit(table, folder)
    assert result.exit_code == 130
    assert "the best model so far was saved; --resume goes on" in result.stderr
    assert len(load_model(folder).networks_) == 1
    assert (folder / TRAINING).is_dir()
    ends(table, folder, "--resume")
    assert contents(folder) == whole


def test_after_ctrl_c_between_base_learners_there_is_no_model_and_resume_goes_on(
    table, whole, tmp_path, monkeypatch
):
    folder = tmp_path / "m"
    with after_writes(monkeypatch, 1, lambda: os.kill(os.getpid(), signal.SIGINT)):
        result = fit(table, folder)
    assert result.exit_code == 130
    said = "mpvae: interrupted; no model was written; --resume goes on with what was done"
    assert result.stderr.splitlines()[-1] == said
    assert [path.name for path in folder.iterdir()] == [TRAINING]
    ends(table, folder, "--resume")
    assert contents(folder) == whole


def test_a_table_that_is_wrong_leaves_nothing_behind(table, tmp_path):
    folder = tmp_path / "new" / "m"
    assert "mpvae:" in refused(table, folder, "--rows", "test")
    assert not (tmp_path / "new").exists()


def test_validation_rows_get_the_same_evidence_after_a_kill(tmp_path):
    """The evidence about them comes from base learners that were written and read."""

    def classifier():
        return MPVAEClassifier(n_members=2, max_epochs=3, hidden=(8,), random_state=0)

    rows = DATA.X[:80], DATA.Y[:80], DATA.X[80:], DATA.Y[80:]
    whole = classifier().fit(*rows)
    written = []

    def stop():
        written.append(0)
        if len(written) == 5:
            raise Killed

    with pytest.raises(Killed):
        classifier().fit(*rows, checkpoint=Kept(tmp_path / "state", stop))
    again = classifier().fit(*rows, checkpoint=tmp_path / "state")
    np.testing.assert_array_equal(whole.predict_proba(DATA.X), again.predict_proba(DATA.X))
    assert not (tmp_path / "state").exists()


# ------------------------------------------------------------------------- processes, locks


def test_networks_side_by_side_resume_and_warn_in_the_first_process(tmp_path):
    given = {"n_members": 3, "max_epochs": 4, "hidden": (8,), "base": None, "random_state": 3}
    whole = MPVAEClassifier(**given).fit(DATA.X, DATA.Y)
    folder = tmp_path / "state"
    written = []

    def stop():
        written.append(0)
        if len(written) == 5:
            raise Killed

    with pytest.raises(Killed):
        MPVAEClassifier(**given).fit(DATA.X, DATA.Y, checkpoint=Kept(folder, stop))
    assert len(list(folder.iterdir())) == 2  # one is finished, one is not
    again = MPVAEClassifier(**given, n_jobs=2).fit(DATA.X, DATA.Y, checkpoint=folder)
    np.testing.assert_array_equal(whole.predict_proba(DATA.X), again.predict_proba(DATA.X))
    assert not folder.exists()

    def vanish():
        shutil.rmtree(folder, ignore_errors=True)

    model = MPVAEClassifier(**given, n_jobs=2)
    with pytest.warns(UserWarning, match="the training goes on"):  # said in this process
        model.fit(DATA.X, DATA.Y, checkpoint=Kept(folder, vanish))


SIDE_BY_SIDE = """
from mpvae import MPVAEClassifier
from mpvae.data import simulate_probit
data = simulate_probit(400, n_features=4, n_labels=3, n_factors=1, seed=3)
model = MPVAEClassifier(n_members=2, max_epochs=100000, patience=None, base=None, n_jobs=2)
model.fit(data.X, data.Y)
"""


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def cpu_seconds(pid):
    """Of a process, and 0 once it is gone or dead."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    ticks = int(after_name[11]) + int(after_name[12])
    return 0.0 if after_name[0] == "Z" else ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are not in /proc")
def test_processes_of_a_killed_training_end_with_it():
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    words = [sys.executable, "-c", SIDE_BY_SIDE]
    with subprocess.Popen(words, env=environment) as first:
        end = time.monotonic() + 90
        workers = []
        while len(workers) < 2 and time.monotonic() < end:
            time.sleep(0.1)  # until both have trained for a while
            workers = [pid for pid in children(first.pid) if cpu_seconds(pid) > 4]
        assert len(workers) >= 2
        first.kill()
    end = time.monotonic() + 30
    while any(map(cpu_seconds, workers)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(cpu_seconds, workers))


HOLDING = """
import sys, time
from pathlib import Path
from mpvae.checkpoints import keeping
with keeping(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(1000)
"""


def test_a_folder_in_use_is_refused_until_its_process_is_gone(table, whole, tmp_path):
    folder = tmp_path / "m"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    words = [sys.executable, "-c", HOLDING, str(folder / TRAINING)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout.readline() == "held\n"
        line = refused(table, folder)
        assert f"is in use by another training (process {other.pid} on " in line
        assert line.endswith("wait for its end, or give another folder")
        with pytest.raises(ModelFileError, match="in use by another training"):
            MPVAEClassifier(random_state=0).fit(DATA.X, DATA.Y, checkpoint=folder / TRAINING)
        other.kill()
    ends(table, folder)  # a lock does not outlive its process
    assert contents(folder) == whole


def test_two_fits_of_one_process_do_not_share_a_folder(tmp_path):
    model = MPVAEClassifier(max_epochs=2, n_members=1, base=None, random_state=0)
    with keeping(tmp_path / "state"):
        with pytest.raises(ModelFileError, match="in use by another training"):
            model.fit(DATA.X, DATA.Y, checkpoint=tmp_path / "state")
        assert (tmp_path / "state").is_dir()
    assert not (tmp_path / "state").exists()
    model.fit(DATA.X, DATA.Y, checkpoint=tmp_path / "state")


# ------------------------------------------------------------ places that cannot be written


@contextmanager
def small_disk(folder, size):
    """A file system of so many bytes."""
    folder.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if not IS_ROOT or subprocess.run(options, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(disk):
    """Fill a disk to the last byte."""
    with (disk / "ballast").open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            return


@pytest.fixture(scope="module")
def fitted():
    return MPVAEClassifier(max_epochs=2, n_members=1, base=None, random_state=0).fit(
        DATA.X, DATA.Y
    )


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_full_disk_leaves_the_old_model(table, fitted, tmp_path):
    other = MPVAEClassifier(max_epochs=1, n_members=1, base=None, random_state=1)
    other.fit(DATA.X, DATA.Y)
    with small_disk(tmp_path / "disk", 2**21) as disk:
        fitted.save(disk / "m")
        before = contents(disk / "m")
        fill(disk)
        with pytest.raises(ModelFileError, match=r"No space left.*still does; make room"):
            other.save(disk / "m")
        assert contents(disk / "m") == before
        load_model(disk / "m").predict(DATA.X)
        with pytest.raises(ModelFileError, match="No space left"):
            other.save(disk / "new")
        assert left(disk / "new") == []
        line = refused(table, disk / "m")  # before the work, not after it
        assert "cannot write the state of the training" in line
        assert "No space left on device; make room, or give another folder" in line
        assert contents(disk / "m") == before


def test_a_disk_that_fills_up_does_not_end_a_training(fitted, tmp_path):
    model = MPVAEClassifier(max_epochs=2, n_members=1, base=None, random_state=0)
    with small_disk(tmp_path / "disk", 2**21) as disk:
        with keeping(disk / "state") as kept:
            fill(disk)
            with pytest.warns(UserWarning, match=r"No space left.*could not be resumed"):
                model.fit(DATA.X, DATA.Y, checkpoint=kept)
        assert left(disk) == ["ballast"]
    np.testing.assert_array_equal(model.predict_proba(DATA.X), fitted.predict_proba(DATA.X))


def test_a_read_only_disk_is_refused_before_the_work(table, fitted, tmp_path):
    with small_disk(tmp_path / "disk", 2**21) as disk:
        fitted.save(disk / "m")
        remount = ["mount", "-o", "remount,ro", str(disk)]
        assert subprocess.run(remount, capture_output=True).returncode == 0
        for folder in (disk / "m", disk / "new"):
            assert "Read-only file system" in refused(table, folder)
        with pytest.raises(ModelFileError, match="Read-only file system"):
            fitted.save(disk / "m")
        load_model(disk / "m").predict(DATA.X)


def test_a_file_too_large_for_the_limit_leaves_the_old_model(fitted, tmp_path):
    fitted.save(tmp_path / "m")
    before = contents(tmp_path / "m")
    other = MPVAEClassifier(max_epochs=1, n_members=1, base=None, random_state=1)
    other.fit(DATA.X, DATA.Y)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(ModelFileError, match="File too large"):
            other.save(tmp_path / "m")
        with pytest.warns(UserWarning, match=r"File too large; the training goes on"):
            again = MPVAEClassifier(max_epochs=2, n_members=1, base=None, random_state=0).fit(
                DATA.X, DATA.Y, checkpoint=tmp_path / "state"
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(tmp_path / "m") == before
    assert left(tmp_path) == ["m"]
    np.testing.assert_array_equal(again.predict_proba(DATA.X), fitted.predict_proba(DATA.X))


@pytest.mark.filterwarnings("default")
def test_a_folder_that_vanishes_costs_the_state_alone(table, whole, tmp_path, monkeypatch):
    folder = tmp_path / "m"

    def vanish():
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()

    with after_writes(monkeypatch, 4, vanish):
        result = ends(table, folder)
    assert result.stderr.count("the training goes on, but could not be resumed") == 1
    assert contents(folder) == whole


def test_a_file_in_place_of_the_state_is_named(table, tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / TRAINING).write_text("mine")
    assert "cannot write the state of the training" in refused(table, folder)
    assert (folder / TRAINING).read_text() == "mine"


def test_a_written_file_and_its_name_reach_the_disk(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def counted(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc to see which file is synced")
    monkeypatch.setattr(os, "fsync", counted)
    write_atomically(tmp_path / "file", b"content")
    assert [Path(name).parent if name.endswith(".tmp") else name for name in synced] == [
        tmp_path,
        str(tmp_path),
    ]
    assert left(tmp_path) == ["file"]
