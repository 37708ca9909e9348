"""The search for settings: what it promises about scores, files, interrupts and resumption."""

import importlib.util
import json
import math
import signal
import time
import tomllib

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

from mpvae import ConfigError, DataError, MPVAEClassifier, MPVAEError, cli, load_model, tuning
from mpvae.config import DataShape, setting_docs
from mpvae.data import simulate_probit
from mpvae.journal import JOURNAL, MAX_BYTES
from mpvae.presets import resolve
from mpvae.space import DECIDES, KNOBS, Range, search_space
from mpvae.task import Task
from mpvae.tuned import BEST, TRIALS
from mpvae.tuning import tune

pytest.importorskip("optuna", reason="the search is Optuna's: pip install 'mpvae[tune]'")
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

DATA = simulate_probit(40, n_features=3, n_labels=3, n_factors=1, seed=3)  # too few for a base
X, Y = DATA.X, DATA.Y
FAST = {"hidden": (8,), "latent_dim": 2, "n_draws": 4, "n_members": 3, "max_epochs": 2}
WORDS = [
    word
    for name, value in FAST.items()
    for word in ("--set", f"{name}={value[0] if name == 'hidden' else value}")
]


def search(folder=None, trials=3, **options):
    given = {"minutes": None, "trials": trials, "folder": folder} | FAST | options
    return tune(given.pop("X", X), given.pop("Y", Y), **given)


def study(folder):
    backend = JournalFileBackend(str(folder / JOURNAL))
    return optuna.load_study(study_name="mpvae", storage=JournalStorage(backend))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a finished search of six trials, and what it returned."""
    folder = tmp_path_factory.mktemp("tuning") / "search"
    return folder, search(folder, trials=6)


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    frame = pd.DataFrame(X, columns=["depth", "ph", "slope"])
    file = tmp_path_factory.mktemp("tables") / "sites.csv"
    frame.join(pd.DataFrame(Y, columns=["sp_a", "sp_b", "sp_c"])).to_csv(file, index=False)
    return file


def run(*words):
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    crash = result.exception
    assert crash is None or isinstance(crash, SystemExit), repr(crash)
    return result


# ------------------------------------------------------------------------------- the space


SHAPES = [DataShape(40, 3, 1), DataShape(2000, 100, 14), DataShape(50_000, 500, 983)]


@pytest.mark.parametrize("preset", ["default", "paper", "authors_code"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_default_is_a_point_of_the_space(preset, shape):
    default = resolve(preset, {}, shape)
    space = search_space(default, shape, fixed={}, preset=preset)
    point = space.default_point()
    for name, value in point.items():
        knob = space.knobs[name]
        if isinstance(knob, Range):
            assert knob.low <= value <= knob.high, name
        else:
            assert value in knob.values
    given = space.parameters(point)
    assert given.pop("base") == "auto"
    assert resolve(preset, given, shape) == default


def test_every_knob_is_a_setting_or_decides_some():
    for name in KNOBS:
        for setting in DECIDES.get(name, (name,)):
            assert setting in {*setting_docs(), "base"}


@pytest.mark.parametrize(
    ("fixed", "gone"),
    [
        ({"hidden_labels": (8,)}, "width"),
        ({"batch_size": 16}, "batch"),
        ({"max_epochs": 3}, "steps"),
        ({"lambda_rank": 2.0}, "ranking"),
        ({"lr": "auto"}, "lr"),
    ],
)
def test_what_is_fixed_is_not_searched(fixed, gone):
    shape = SHAPES[1]
    default = resolve("default", fixed, shape)
    space = search_space(default, shape, fixed=fixed)
    assert gone not in space.knobs
    assert not set(fixed) & set(space.settings)
    given = space.parameters(space.default_point())
    del given["base"]
    assert resolve("default", given, shape) == default


def test_a_named_objective_keeps_its_weights():
    default = resolve("default", {}, SHAPES[1], "paper")
    space = search_space(default, SHAPES[1], fixed={}, objective="paper")
    assert not {"ranking", "lambda_rank"} & set(space.knobs)


def test_knobs_move_what_they_decide():
    shape = SHAPES[1]
    space = search_space(resolve("default", {}, shape), shape, fixed={})
    point = space.default_point() | {"width": 2.0, "batch": 0.5, "steps": 2.0, "lr": 0.00123456}
    point |= {"ranking": True, "lambda_rank": 5.0, "base": "none"}
    given = space.parameters(point)
    assert given["hidden"] == (512, 512)
    assert given["batch_size"] == 64
    assert given["lr"] == 0.00123  # three digits are enough, and easier to read
    assert given["lambda_rank"] == 5.0
    assert given["base"] is None
    usual = resolve("default", {"batch_size": 64}, shape).max_epochs
    assert given["max_epochs"] == 2 * usual


# ------------------------------------------------------------------------------ the search


def test_the_default_comes_first_and_nothing_worse_is_returned(place):
    _, found = place
    assert found.default.number == 0
    assert found.best.score >= found.default.score
    complete = found.trials[found.trials["state"] == "complete"]
    assert found.best.score == complete["micro_f1"].max()
    assert len(found.trials) == 6
    assert found.trials["seconds"].gt(0).all()


def test_scores_are_those_of_the_classifier_on_rows_held_out(place):
    _, found = place
    plain = MPVAEClassifier(random_state=0, **FAST).fit(X, Y)
    assert plain.settings_ == found.default.settings
    assert plain.validation_scores_["micro_f1"] == found.default.score
    best = found.estimator().fit(X, Y)
    assert best.settings_ == found.best.settings
    assert best.validation_scores_["micro_f1"] == found.best.score


def test_log_loss_is_minimised():
    found = search(trials=4, metric="log_loss")
    complete = found.trials[found.trials["state"] == "complete"]
    assert found.best.score == complete["log_loss"].min()
    assert found.best.score <= found.default.score


def test_validation_rows_are_what_trials_are_scored_on():
    found = tune(X[:30], Y[:30], X[30:], Y[30:], minutes=None, trials=2, **FAST)
    model = MPVAEClassifier(random_state=0, **FAST).fit(X[:30], Y[:30], X[30:], Y[30:])
    assert model.validation_scores_["micro_f1"] == found.default.score


def test_a_trial_that_lags_behind_is_ended_early(tmp_path):
    many = simulate_probit(60, n_features=3, n_labels=3, n_factors=1, seed=3)
    options = {"X": many.X, "Y": many.Y, "metric": "log_loss"}
    search(tmp_path, trials=1, **options)
    good = study(tmp_path).best_trial.params
    for _ in range(3):
        study(tmp_path).enqueue_trial(good)
    study(tmp_path).enqueue_trial(good | {"base": "none", "lr": 3e-4})  # learns nothing in time
    found = search(tmp_path, trials=5, **options)
    assert found.trials["state"].tolist() == ["complete"] * 4 + ["pruned"]
    last = found.trials.iloc[-1]
    assert last["networks"] < FAST["n_members"]
    assert math.isnan(last["log_loss"])


def test_evidence_is_made_once_for_each_base_and_scaling(monkeypatch):
    made = []
    fit = MPVAEClassifier._read_rows

    def counted(model, *args):
        made.append((model.base, model.quantiles))
        return fit(model, *args)

    monkeypatch.setattr(MPVAEClassifier, "_read_rows", counted)
    many = simulate_probit(60, n_features=3, n_labels=3, n_factors=1, seed=3)
    found = search(trials=5, X=many.X, Y=many.Y, n_members=1)
    assert len(set(found.trials["base"])) > 1
    assert len(made) - 1 == len(found.trials.groupby(["base", "quantiles"]))  # 1: to look
    assert len(made) == len(set(made))


@pytest.mark.parametrize("fixed", [{}, {"preset": "fast"}, {"base": "kernel"}], ids=str)
def test_with_evidence_and_kernel_features_a_score_is_that_of_the_model(fixed):
    many = simulate_probit(60, n_features=3, n_labels=3, n_factors=1, seed=3)
    given = {"kernel_features": 5, "n_members": 2} | fixed
    found = search(trials=2, X=many.X, Y=many.Y, metric="log_loss", **given)
    again = MPVAEClassifier(**FAST | given, random_state=0).fit(many.X, many.Y)
    assert again.evidence_
    assert again.validation_scores_["log_loss"] == found.default.score
    best = found.estimator().fit(many.X, many.Y)
    assert best.kernel_features_.n_outputs == 5
    assert best.validation_scores_["log_loss"] == found.best.score


def test_where_nobody_would_be_asked_no_base_is_searched():
    many = simulate_probit(60, n_features=3, n_labels=3, n_factors=1, seed=3)
    words = sp.csr_array(np.maximum(many.X, 0))
    for features, options, searched in (
        (many.X, {}, True),
        (words, {}, True),
        (words, {"preset": "fast"}, True),
        (many.X, {"preset": "paper"}, False),
        (X, {}, False),  # too few rows
    ):
        task = Task(
            features, Y if features is X else many.Y, None, None, "log_loss", 0, FAST | options
        )
        assert ("base" in task.space.knobs) == searched


def test_auto_is_kept_by_a_name_that_means_the_same_in_every_preset():
    many = simulate_probit(60, n_features=3, n_labels=3, n_factors=1, seed=3)
    for preset, name in (
        ("default", "auto"),
        ("best", "auto"),
        ("fast", "kernel"),
        ("paper", None),
    ):
        task = Task(many.X, many.Y, None, None, "log_loss", 0, FAST | {"preset": preset})
        assert task.auto == name


def test_sparse_features_and_labels_are_searched():
    found = search(trials=2, X=sp.csr_array(np.where(X > 0, X, 0)), Y=sp.csr_array(Y))
    assert "quantiles" not in found.trials
    assert np.isfinite(found.best.score)


def test_settings_that_diverge_are_a_failed_trial_and_no_more(monkeypatch):
    train = tuning.fit_members

    def fails_once(rows, validation, settings, **options):
        if settings.dropout != 0.1:  # not the default
            raise MPVAEError("the loss is not finite; lower lr")
        return train(rows, validation, settings, **options)

    monkeypatch.setattr(tuning, "fit_members", fails_once)
    found = search(trials=3)
    assert found.trials["state"].tolist() == ["complete", "failed", "failed"]
    assert "not finite" in found.trials["fault"].iloc[1]
    assert found.changed == {}


def test_time_ends_a_search_but_not_its_default():
    start = time.monotonic()
    found = search(trials=None, minutes=1e-6, max_epochs=4)
    assert found.trials["state"].tolist() == ["complete"]
    found = search(trials=10_000, minutes=0.02)  # 1.2 s
    assert len(found.trials) > 1
    assert time.monotonic() - start < 15


def test_a_search_leaves_the_logging_of_optuna_alone():
    before = optuna.logging.get_verbosity()
    search(trials=1)
    assert optuna.logging.get_verbosity() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metric": "f1"}, "metric must be one of"),
        ({"trials": None}, "nothing ends the search"),
        ({"minutes": 0}, "minutes must be above 0"),
        ({"minutes": math.nan}, "minutes must be above 0"),
        ({"trials": 0}, "trials must be at least 1"),
        ({"seed": -1}, "seed must be"),
        ({"random_state": 3}, "'random_state' is no parameter"),
        ({"lrate": 3}, "'lrate' is no parameter"),
        ({"lr": -1.0}, "lr must be above 0"),
        ({"base": "oracle"}, "base must be"),
    ],
)
def test_wrong_questions_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        search(**options)


def test_too_few_rows_to_judge_by():
    with pytest.raises(DataError, match="too few rows"):
        tune(X[:2], Y[:2], trials=1, **FAST | {"n_members": 1})


def test_without_optuna_the_error_names_the_remedy(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "optuna" else find(name)
    )
    with pytest.raises(MPVAEError, match=r"optuna, .* not installed; run: pip install"):
        search()


# ------------------------------------------------------------------- files and resumption


def test_a_search_goes_on_counting_where_it_stopped(tmp_path):
    first = search(tmp_path, trials=2)
    second = search(tmp_path, trials=4)
    assert second.trials["trial"].tolist() == [0, 1, 2, 3]
    pd.testing.assert_frame_equal(second.trials.iloc[:2], first.trials)
    assert (second.default.score, second.default.number) == (first.default.score, 0)
    assert second.trials["lr"].is_unique  # nothing is proposed twice
    third = search(tmp_path, trials=4)  # has all it wants
    pd.testing.assert_frame_equal(third.trials, second.trials)


def test_a_killed_process_loses_its_running_trial_alone(tmp_path):
    search(tmp_path, trials=2)
    study(tmp_path).ask()  # never told: its process is gone
    journal = tmp_path / JOURNAL
    with journal.open("ab") as stream:
        stream.write(b'{"op_code":5,"worker')  # killed while writing
    found = search(tmp_path, trials=3)
    assert found.trials["trial"].tolist() == [0, 1, 3]


def test_a_default_that_was_cut_off_is_tried_again(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "fit_members", interrupted)
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path)
    found = search(tmp_path, trials=1)
    assert found.trials["state"].tolist() == ["stopped", "complete"]
    assert found.default.number == 1


def test_an_interrupt_returns_the_best_so_far(tmp_path, monkeypatch):
    train = tuning.fit_members
    calls = []

    def third_is_interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(*args, **kwargs)

    monkeypatch.setattr(tuning, "fit_members", third_is_interrupted)
    found = search(tmp_path, trials=9)
    assert found.interrupted
    assert found.trials["state"].tolist() == ["complete", "complete", "stopped"]
    assert (tmp_path / "best.toml").read_text() == found.to_toml()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"X": X**3}, "other data"),
        ({"Y": 1 - Y}, "other data"),
        ({"X": X[:-1], "Y": Y[:-1]}, "other data"),
        ({"X": pd.DataFrame(X, columns=list("abc"))}, "other data"),
        ({"metric": "hamming"}, "another metric"),
        ({"seed": 1}, "another seed"),
        ({"lr": 0.01}, "other settings fixed"),
        ({"n_draws": 6, "seed": 1}, "another seed and other settings fixed"),
    ],
)
def test_another_question_is_refused(place, options, words):
    folder, _ = place
    before = (folder / JOURNAL).read_bytes()
    with pytest.raises(ConfigError, match=f"holds a search with {words}"):
        search(folder, trials=6, **options)
    assert (folder / JOURNAL).read_bytes() == before


def test_the_order_of_rows_does_not_matter(place):
    folder, found = place
    again = search(folder, trials=6, X=X[::-1], Y=Y[::-1])
    pd.testing.assert_frame_equal(again.trials, found.trials)


def test_folders_that_are_something_else_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        search(tmp_path / "file")
    with pytest.raises(ConfigError, match="holds other files"):
        search(tmp_path)
    (tmp_path / JOURNAL).write_text("no json\n{}\n")
    with pytest.raises(ConfigError, match="is damaged; give another folder"):
        search(tmp_path)


def test_an_absurdly_large_journal_is_not_read(tmp_path):
    with (tmp_path / JOURNAL).open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(ConfigError, match="more than the limit"):
        search(tmp_path)


def test_tampered_settings_are_refused(tmp_path):
    search(tmp_path, trials=1)
    journal = tmp_path / JOURNAL
    text = journal.read_text()
    tried = '"settings":{"latent_dim":2'
    assert tried in text
    journal.write_text(text.replace(tried, tried.replace("2", "-2")))
    with pytest.raises(ConfigError, match="trial 0 in the journal is damaged"):
        search(tmp_path, trials=2)


def test_the_journal_holds_json_and_no_pickle_is_opened(place, monkeypatch):
    import pickle

    def refused(*args, **kwargs):
        raise AssertionError("something pickled was opened")

    monkeypatch.setattr(pickle, "loads", refused)
    monkeypatch.setattr(pickle, "load", refused)
    folder, _ = place
    for line in (folder / JOURNAL).read_text().splitlines():
        json.loads(line)
    search(folder, trials=6)
    assert {path.name for path in folder.iterdir()} == {
        JOURNAL,
        BEST,
        TRIALS,
    }


def test_best_toml_is_the_whole_configuration(place):
    folder, found = place
    values = tomllib.loads((folder / "best.toml").read_text())
    assert values.keys() == {*setting_docs(), "base"}
    assert values["base"] == "auto"
    assert values["hidden"] == [8]
    written = pd.read_csv(folder / "trials.csv")
    assert written["trial"].tolist() == found.trials["trial"].tolist()
    np.testing.assert_array_equal(written["lr"], found.trials["lr"])


def test_a_classifier_as_base_is_left_out_of_the_file():
    from sklearn.tree import DecisionTreeClassifier

    found = search(trials=1, base=DecisionTreeClassifier(max_depth=2), n_members=1)
    assert "base" not in tomllib.loads(found.to_toml())
    assert isinstance(found.parameters["base"], DecisionTreeClassifier)


# ------------------------------------------------------------------------ the command line


def test_tune_then_fit(csv, tmp_path):
    folder = tmp_path / "tuned"
    words = ["tune", csv, "-l", "sp_*", "-o", folder, "--trials", 3, "--metric", "macro_f1"]
    result = run(*words, *WORDS)
    assert result.exit_code == 0, result.stderr
    assert "sites.csv: 3 trials" in result.stdout
    assert "macro F1" in result.stdout
    shown = next(line for line in result.stdout.splitlines() if "mpvae fit" in line)
    command = shown.strip().removeprefix("mpvae ").replace("'", "").split()
    command[command.index("model")] = str(tmp_path / "model")
    fitted = run(*command, "--json")
    assert fitted.exit_code == 0, fitted.stderr
    again = run(*words, *WORDS, "--json")  # nothing left to do: says what was found
    summary = json.loads(again.stdout)
    assert sum(summary["trials"].values()) == 3
    assert summary["best"] >= summary["default"]
    held_out = json.loads(fitted.stdout)["held_out_scores"]
    assert held_out["macro_f1"] == summary["best"]
    settings = load_model(tmp_path / "model").settings_
    for name, value in summary["changed"].items():
        wanted = tuple(value) if isinstance(value, list) else value
        assert getattr(settings, name) == wanted


def test_another_table_is_refused_in_one_line(csv, place):
    folder, _ = place
    result = run("tune", csv, "-l", "sp_a,sp_b", "-o", folder, *WORDS)
    assert result.exit_code == 2
    assert "holds a search with other data" in result.stderr


def test_a_base_may_stand_in_the_file_and_be_overruled(csv, tmp_path):
    file = tmp_path / "given.toml"
    file.write_text('base = "none"\nhidden = [8]\nmax_epochs = 1\nn_members = 1\n')
    for words, base in (
        ((), None),
        (("--base", "auto"), "auto"),
        (("-s", "base=auto"), "auto"),
    ):
        result = run("fit", csv, "-l", "3", "-o", tmp_path / "m", "--config", file, *words)
        assert result.exit_code == 0, result.stderr
        assert load_model(tmp_path / "m").base == base
    file.write_text('base = "oracle"\n')
    result = run("fit", csv, "-l", "3", "-o", tmp_path / "m", "--config", file)
    assert result.exit_code == 2
    assert "base must be one of auto, none, kernel, forest" in result.stderr


def test_help_teaches():
    text = " ".join(run("tune", "--help").stdout.replace("│", " ").split())
    for words in ("held out of training", "best.toml", "Ctrl-C", "goes on where", "Example"):
        assert words in text


def test_ctrl_c_writes_and_prints_the_best_so_far(csv, tmp_path, monkeypatch):
    train = tuning.fit_members

    def interrupted(rows, validation, settings, **options):
        if (tmp_path / "t" / "best.toml").exists():  # the default is done
            signal.raise_signal(signal.SIGINT)
        return train(rows, validation, settings, **options)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(tuning, "fit_members", interrupted)
    result = run("tune", csv, "-l", "sp_*", "-o", tmp_path / "t", *WORDS)
    assert result.exit_code == 130
    assert "the best settings so far were saved" in result.stderr
    assert "2 trials (1 complete, 1 stopped)" in result.stdout
    assert "mpvae fit" in result.stdout
    assert signal.getsignal(signal.SIGINT) is before
