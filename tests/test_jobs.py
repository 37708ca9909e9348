"""Networks trained side by side in processes are those trained one after the other."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import joblib
import numpy as np
import pytest
from joblib.parallel import get_active_backend

from mpvae import MPVAEClassifier, load_model
from mpvae.errors import ConfigError
from mpvae.members import _watched_backend

rng = np.random.default_rng(0)
X = rng.normal(size=(80, 5))
Y = (X @ rng.normal(size=(5, 3)) > 0).astype(int)
SMALL = {"max_epochs": 3, "n_members": 3, "hidden": (8,), "base": None, "random_state": 0}


@pytest.mark.parametrize("validation", [False, True])
def test_two_processes_train_the_same_networks(validation):
    given = (X[60:], Y[60:]) if validation else ()
    one = MPVAEClassifier(**SMALL).fit(X[:60], Y[:60], *given)
    two = MPVAEClassifier(**SMALL, n_jobs=2).fit(X[:60], Y[:60], *given)
    for a, b in zip(one.networks_, two.networks_, strict=True):
        for name, value in a.state_dict().items():
            assert np.array_equal(value, b.state_dict()[name]), name
    np.testing.assert_array_equal(one.predict_proba(X), two.predict_proba(X))
    assert one.history_.equals(two.history_)


def test_processes_are_of_the_machine_not_of_the_model(tmp_path):
    model = MPVAEClassifier(**SMALL | {"n_members": 1}, n_jobs=2).fit(X, Y)
    model.save(tmp_path / "m")
    assert load_model(tmp_path / "m").n_jobs is None


@pytest.mark.parametrize("n_jobs", [0, 1.5, "all", True])
def test_what_is_no_number_of_processes_is_refused(n_jobs):
    with pytest.raises(ConfigError, match="n_jobs"):
        MPVAEClassifier(n_jobs=n_jobs).fit(X, Y)


@contextlib.contextmanager
def python(code):
    """A process in a session of its own, of which nothing is left afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_an_interrupt_ends_all_processes():
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"  # background
        "import numpy as np; from mpvae import MPVAEClassifier;"
        "rng = np.random.default_rng(0); X = rng.normal(size=(2000, 5));"
        "Y = (X[:, :3] > 0).astype(int); print('begun', flush=True);"
        "MPVAEClassifier(max_epochs=10**5, patience=None, base=None, n_jobs=2).fit(X, Y)"
    )
    with python(code) as process:
        assert process.stdout.readline() == b"begun\n"
        time.sleep(3)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, error = process.communicate(timeout=60)
        assert b"KeyboardInterrupt" in error


def test_processes_end_with_a_parent_killed_as_they_start():
    code = (
        "import os; import numpy as np; from mpvae import MPVAEClassifier;"
        "from joblib.externals.loky.backend.popen_loky_posix import Popen;"
        "launch = Popen._launch;"
        "Popen._launch = lambda *a: (launch(*a), os.kill(os.getpid(), 9));"
        "X = np.random.default_rng(0).normal(size=(80, 5)); Y = (X[:, :3] > 0).astype(int);"
        "MPVAEClassifier(base=None, n_jobs=2).fit(X, Y)"
    )
    with python(code) as process:
        process.communicate(timeout=60)  # until nobody has its output open
        assert process.returncode == -signal.SIGKILL


def test_other_backends_of_joblib_stay_what_they_are():
    with joblib.parallel_config("threading"):
        assert type(_watched_backend()) is type(get_active_backend()[0])
    with joblib.parallel_config("loky", inner_max_num_threads=3):
        given = get_active_backend()[0]
        assert _watched_backend().inner_max_num_threads == 3
        assert "configure" not in vars(given)  # others who use it start what they always did
