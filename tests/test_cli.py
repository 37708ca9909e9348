"""The command line: what users type, what they read, and what they are told when wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

from mpvae import MPVAEClassifier, __version__, cli, demo, load_model
from mpvae.data import LabelledTable, simulate_probit
from mpvae.data.delimited import EXACT

DATA = simulate_probit(60, n_features=3, n_labels=3, n_factors=1, seed=3)
NAMES = ["sp_trout", "sp_[red]x", "sp_Äsche:x:"]  # brackets are markup, :x: an emoji, to rich
FAST = [
    word
    for pair in ("hidden=8", "latent_dim=2", "n_draws=4", "n_members=2", "max_epochs=2")
    for word in ("--set", pair)
]
METRICS = {"example_f1", "micro_f1", "macro_f1", "hamming", "subset"}


def table():
    frame = pd.DataFrame(DATA.X.copy(), columns=["depth", "ph", "slope"])
    frame.insert(0, "site", [f"s{i}" for i in range(60)])
    frame["ground"] = np.where(DATA.X[:, 0] > 0, "sand", "mud")
    frame.loc[3, "ground"] = None
    frame.loc[5, "ph"] = np.nan
    return frame.join(pd.DataFrame(DATA.Y, columns=NAMES))


def run(*words):
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    crash = result.exception
    assert crash is None or isinstance(crash, SystemExit), repr(crash)
    return result


def succeeds(*words):
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def fails(*words):
    """The one line on stderr of a command that ends with exit code 2."""
    result = run(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.endswith("\n")
    (line,) = result.stderr.splitlines()
    assert line.startswith("mpvae: ")
    return line


def exactly(file):
    """A CSV file as it was written, to the last digit."""
    return pd.read_csv(file, **EXACT)


def shell(*words, **options):
    """The installed command, in a process of its own."""
    command = [sys.executable, "-c", "from mpvae.cli import main; main()", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **options)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with sites.csv and the model trained on it."""
    folder = tmp_path_factory.mktemp("cli")
    table().to_csv(folder / "sites.csv", index=False)
    succeeds(
        "fit",
        folder / "sites.csv",
        "--labels",
        "sp_*",
        "-x",
        "site",
        "-o",
        folder / "model",
        *FAST,
    )
    return SimpleNamespace(folder=folder, csv=folder / "sites.csv", model=folder / "model")


# --------------------------------------------------------------------------------------- fit


def test_fit_says_what_it_read_and_saves_a_model(place, tmp_path):
    text = succeeds("fit", place.csv, "-l", "sp_*", "-x", "site", "-o", tmp_path / "m", *FAST)
    assert (
        "sites.csv: 60 rows, 4 features, 3 labels; 2 networks, kernel, forest, boosting in"
        in text
    )
    assert "micro F1" in text
    loaded = load_model(tmp_path / "m")
    assert loaded.label_names_.tolist() == NAMES
    assert loaded.feature_names_in_.tolist() == ["depth", "ph", "slope", "ground"]
    assert loaded.settings_.hidden == (8,)


def test_the_same_seed_gives_the_same_model(place, tmp_path):
    for seed, name in ((0, "a"), (1, "b")):
        succeeds(
            "fit",
            place.csv,
            "-l",
            "sp_*",
            "-x",
            "site",
            "-o",
            tmp_path / name,
            "--seed",
            seed,
            *FAST,
        )
    X = table().drop(columns=["site", *NAMES])
    first, second, third = (
        load_model(path).predict_proba(X)
        for path in (place.model, tmp_path / "a", tmp_path / "b")
    )
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - third).max() > 1e-3


@pytest.mark.parametrize(
    "labels", ["sp_*", "3", "sp_trout,sp_[red]x,sp_Äsche:x:", "sp_t*,sp_[[]*,*x:"]
)
def test_labels_are_chosen_by_pattern_list_or_count(place, tmp_path, labels):
    text = succeeds(
        "fit", place.csv, "-l", labels, "-x", "site", "-o", tmp_path / "m", "--json", *FAST
    )
    summary = json.loads(text)
    assert summary["labels"] == 3
    assert summary["rows"] == 60
    assert summary["features"] == 4
    assert summary["networks"] == 2
    assert not summary["interrupted"]
    assert summary["held_out_scores"].keys() == METRICS | {"log_loss", "calibration_error"}
    assert load_model(tmp_path / "m").label_names_.tolist() == NAMES


def write_as(frame, suffix, folder):
    path = folder / f"sites{suffix}"
    if suffix == ".tsv":
        frame.to_csv(path, index=False, sep="\t")
    elif suffix == ".parquet":
        frame.to_parquet(path, index=False)
    elif suffix == ".csv.gz":
        frame.to_csv(path, index=False)
    elif suffix == ".npz":
        np.savez(path, X=DATA.X.astype(np.float32), Y=DATA.Y)
    elif suffix == ".arff":
        lines = ["@relation sites", *(f"@attribute x{i} numeric" for i in range(3))]
        lines += [f"@attribute y{i} {{0,1}}" for i in range(3)]
        rows = [",".join(map(str, [*x, *y])) for x, y in zip(DATA.X, DATA.Y, strict=True)]
        path.write_text("\n".join([*lines, "@data", *rows, ""]))
    return path


@pytest.mark.parametrize("suffix", [".tsv", ".parquet", ".csv.gz", ".npz", ".arff"])
def test_every_kind_of_file_is_fitted_predicted_and_evaluated(suffix, tmp_path):
    path = write_as(table().drop(columns="site"), suffix, tmp_path)
    labels = {".npz": [], ".arff": ["-l", "y*"]}.get(suffix, ["-l", "sp_*"])
    succeeds("fit", path, *labels, "-o", tmp_path / "m", *FAST)
    lines = succeeds("predict", tmp_path / "m", path).splitlines()
    assert len(lines) == 61
    scores = json.loads(succeeds("evaluate", tmp_path / "m", path, "--json"))
    assert scores.keys() >= METRICS


def test_sparse_rows_are_fitted_and_predicted(tmp_path):
    thin = sp.csr_array(np.where(DATA.X > 0, DATA.X, 0).astype(np.float32))
    np.savez(
        tmp_path / "t.npz",
        data=thin.data, indices=thin.indices, indptr=thin.indptr, shape=thin.shape,
        Y=DATA.Y,
    )  # fmt: skip
    succeeds("fit", tmp_path / "t.npz", "-o", tmp_path / "m", *FAST)
    assert len(succeeds("predict", tmp_path / "m", tmp_path / "t.npz").splitlines()) == 61
    line = fails("predict", tmp_path / "m", tmp_path / "t.npz", "--keep", "x1")
    assert "leave out --keep" in line


def test_an_official_split_is_used_and_said(tmp_path):
    train, val, test = np.split(np.arange(60), [40, 50])
    parts = {"train_idx": train, "val_idx": val, "test_idx": test}
    np.savez(tmp_path / "t.npz", X=DATA.X.astype(np.float32), Y=DATA.Y, **parts)
    result = run("fit", tmp_path / "t.npz", "-o", tmp_path / "m", "--json", *FAST)
    assert "has an official split: using its train rows" in result.stderr
    assert json.loads(result.stdout)["rows"] == 40
    result = run("evaluate", tmp_path / "m", tmp_path / "t.npz")
    assert "using its test rows" in result.stderr
    assert "10 rows" in result.stdout
    assert len(succeeds("predict", tmp_path / "m", tmp_path / "t.npz").splitlines()) == 61
    some = succeeds("predict", tmp_path / "m", tmp_path / "t.npz", "--rows", "val", "-k", "x2")
    assert len(some.splitlines()) == 11
    assert some.startswith("x2,")
    everything = run(
        "fit", tmp_path / "t.npz", "-o", tmp_path / "m", "--rows", "all", "--json", *FAST
    )
    assert json.loads(everything.stdout)["rows"] == 60
    assert "dev" in fails("predict", tmp_path / "m", tmp_path / "t.npz", "--rows", "dev")


def test_settings_come_from_a_toml_file_and_single_options_win(place, tmp_path):
    config = tmp_path / "s.toml"
    config.write_text(
        "hidden = [8]\nlatent_dim = 2\nn_draws = 4\nn_members = 3\nmax_epochs = 2\n"
        'lr = "auto"\npatience = "none"\nshared_output = false\n',
        encoding="utf-8",
    )
    words = ["-l", "sp_*", "-x", "site", "-o", tmp_path / "m", "--config", config]
    succeeds("fit", place.csv, *words, "--set", "n_members=2")
    chosen = load_model(tmp_path / "m").settings_
    assert (chosen.n_members, chosen.patience, chosen.shared_output) == (2, None, False)


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("lr = ", ["not valid TOML"]),
        ("learning_rate = 1", ["there is no setting 'learning_rate'"]),
        ("[network]\nlr = 1", ["there is no setting 'network'"]),
        ("lr = -1.0", ["lr must be above 0, got -1.0"]),
        ('lr = "fast"', ["lr must be a number, got 'fast'"]),
        ("hidden = [8, 'a']", ["hidden must be"]),
        ("lr = 2020-07-11", ["lr must be a number"]),
    ],
)
def test_a_wrong_toml_file_is_refused(place, tmp_path, toml, words):
    (tmp_path / "s.toml").write_text(toml)
    line = fails(
        "fit",
        place.csv,
        "-l",
        "sp_*",
        "-x",
        "site",
        "-o",
        tmp_path / "m",
        "--config",
        tmp_path / "s.toml",
    )
    assert all(word in line for word in words)
    assert not (tmp_path / "m").exists()


# ----------------------------------------------------------------------------------- predict


def test_probabilities_are_printed_as_csv_in_full_precision(place):
    answer = exactly(StringIO(succeeds("predict", place.model, place.csv)))
    assert answer.columns.tolist() == NAMES
    expected = load_model(place.model).predict_proba(table().drop(columns=["site", *NAMES]))
    np.testing.assert_array_equal(answer, expected)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json"])
def test_predictions_are_written_to_a_file(place, tmp_path, suffix):
    file = tmp_path / f"out{suffix}"
    text = succeeds("predict", place.model, place.csv, "-o", file, "--keep", "site", "-k", "d*")
    assert "60 rows, 3 labels -> " in text
    read = {".csv": exactly, ".parquet": pd.read_parquet, ".json": pd.read_json}[suffix]
    answer = read(file)
    assert answer.columns.tolist() == ["site", "depth", *NAMES]
    assert answer["site"].tolist() == table()["site"].tolist()
    assert answer[NAMES].to_numpy().min() > 0
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_decisions_are_made_for_the_metric_asked_for(place, tmp_path):
    X = table().drop(columns=["site", *NAMES])
    for options, metric in (
        (["--decide"], None),
        (["--decide", "--metric", "macro_f1"], "macro_f1"),
        (["--metric", "subset"], "subset"),
    ):
        succeeds("predict", place.model, place.csv, *options, "-o", tmp_path / "d.csv")
        answer = pd.read_csv(tmp_path / "d.csv")
        np.testing.assert_array_equal(answer, load_model(place.model).predict(X, metric=metric))


def test_columns_may_come_in_another_order_and_with_others_among_them(place, tmp_path):
    shuffled = table()[["slope", "ground", "site", "ph", "depth"]].assign(extra=1)
    shuffled.to_csv(tmp_path / "new.csv", index=False)
    assert succeeds("predict", place.model, tmp_path / "new.csv") == succeeds(
        "predict", place.model, place.csv
    )


@pytest.mark.parametrize("classes", [("no", "yes"), (0, 1)])
def test_a_model_of_one_vector_can_be_used_from_the_command_line(tmp_path, classes):
    X = pd.DataFrame(DATA.X, columns=["a", "b", "c"])
    fitted = MPVAEClassifier(
        hidden=(8,), latent_dim=2, n_draws=4, n_members=2, max_epochs=2, random_state=0
    ).fit(X, np.array(classes)[DATA.Y[:, 0]])
    fitted.save(tmp_path / "m")
    X.assign(label_0=DATA.Y[:, 0]).to_csv(tmp_path / "t.csv", index=False)
    for suffix in (".csv", ".parquet", ".json"):
        succeeds("predict", tmp_path / "m", tmp_path / "t.csv", "-o", tmp_path / f"p{suffix}")
    answer = exactly(tmp_path / "p.csv")
    assert answer.columns.tolist() == [str(name) for name in classes]
    decided = succeeds("predict", tmp_path / "m", tmp_path / "t.csv", "--decide").splitlines()
    assert decided[0] == "label_0"
    assert set(decided[1:]) <= {str(name) for name in classes}
    scores = json.loads(succeeds("evaluate", tmp_path / "m", tmp_path / "t.csv", "--json"))
    assert scores["hamming"] == np.mean(fitted.predict(X) == np.array(classes)[DATA.Y[:, 0]])


def test_a_model_of_nameless_columns_takes_a_table_with_names_without_a_warning(tmp_path):
    MPVAEClassifier(
        hidden=(8,), latent_dim=2, n_draws=4, n_members=2, max_epochs=1, random_state=0
    ).fit(DATA.X, DATA.Y).save(tmp_path / "m")
    pd.DataFrame(DATA.X, columns=["a", "b", "c"]).to_csv(tmp_path / "t.csv", index=False)
    result = run("predict", tmp_path / "m", tmp_path / "t.csv")
    assert result.stderr == ""
    assert result.stdout.startswith("label_0,label_1,label_2\n")


# ----------------------------------------------------------- known labels, sets, associations


def test_known_labels_change_the_others(place, tmp_path):
    X = table().drop(columns=["site", *NAMES])
    known = table()[[NAMES[2], NAMES[1]]].astype("Int64")
    known.loc[::2, NAMES[1]] = None
    known.to_csv(tmp_path / "known.csv", index=False)
    text = succeeds("predict", place.model, place.csv, "--given", tmp_path / "known.csv")
    answer = exactly(StringIO(text))
    expected = load_model(place.model).predict_conditional(X, known.astype(float))
    np.testing.assert_array_equal(answer, expected)
    np.testing.assert_array_equal(answer[NAMES[2]], known[NAMES[2]])


def test_columns_beside_known_labels_must_be_those_of_the_table(place, tmp_path):
    file = tmp_path / "known.csv"
    known = table()[["site", NAMES[0]]]
    known.to_csv(file, index=False)
    text = succeeds("predict", place.model, place.csv, "--given", file)
    assert text.startswith(",".join(NAMES))
    known.iloc[::-1].to_csv(file, index=False)
    line = fails("predict", place.model, place.csv, "--given", file)
    assert "'site'" in line
    assert "row 1" in line
    assert "one order" in line
    known.rename(columns={NAMES[0]: NAMES[0] + "x"}).to_csv(file, index=False)
    line = fails("predict", place.model, place.csv, "--given", file)
    assert f"did you mean {NAMES[0]!r}?" in line


def test_what_is_known_is_not_written_over(place, tmp_path):
    known = tmp_path / "known.csv"
    table()[[NAMES[0]]].to_csv(known, index=False)
    before = known.read_bytes()
    line = fails("predict", place.model, place.csv, "--given", known, "--out", known)
    assert "is the file of --given itself; give another file" in line
    assert known.read_bytes() == before


def test_known_labels_that_do_not_fit_are_refused(place, tmp_path):
    known = tmp_path / "known.csv"
    table()[[NAMES[0]]][:59].to_csv(known, index=False)
    line = fails("predict", place.model, place.csv, "--given", known)
    assert "known.csv has 59 rows" in line
    assert " 60; give a row of known labels for each row of the table" in line
    table()[["site"]].to_csv(known, index=False)
    line = fails("predict", place.model, place.csv, "--given", known)
    assert f"no column that is a label of the model ({NAMES[0]}, " in line
    table()[[NAMES[0]]].replace(1, 2).to_csv(known, index=False)
    assert NAMES[0] in fails("predict", place.model, place.csv, "--given", known)
    assert "absent.csv" in fails("predict", place.model, place.csv, "--given", "absent.csv")


@pytest.mark.parametrize("guarantee", ["all", "recall", "label"])
def test_sets_are_written_for_each_guarantee(place, guarantee):
    words = ["--sets", 0.9] + ([] if guarantee == "all" else ["--guarantee", guarantee])
    answer = exactly(StringIO(succeeds("predict", place.model, place.csv, *words)))
    X = table().drop(columns=["site", *NAMES])
    expected = load_model(place.model).predict_set(X, 0.9, guarantee=guarantee)
    assert answer.columns.tolist() == NAMES
    np.testing.assert_array_equal(answer, expected)


def test_a_coverage_of_none_or_all_is_refused(place):
    for coverage in (0, 1):
        line = fails("predict", place.model, place.csv, "--sets", coverage)
        assert "coverage must be in (0, 1)" in line
    result = run("predict", place.model, place.csv, "--sets", 90)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--decide", "--sets", "0.9"],
        ["--metric", "subset", "--given", "{csv}"],
        ["--given", "{csv}", "--sets", "0.9"],
        ["--decide", "--given", "{csv}", "--sets", "0.9"],
    ],
)
def test_only_one_kind_of_answer_at_a_time(place, words):
    words = [word.format(csv=place.csv) for word in words]
    assert "one of them at a time" in fails("predict", place.model, place.csv, *words)


def test_associations_are_printed_or_written(place, tmp_path):
    printed = pd.read_csv(StringIO(succeeds("associations", place.model)))
    model = load_model(place.model)
    expected = model.associations()
    assert printed.columns.tolist() == [*expected.columns, "group_a", "group_b"]
    pd.testing.assert_frame_equal(printed[expected.columns], expected)
    assert printed["group_a"].tolist() == model.label_groups()[printed["label_a"]].tolist()
    text = succeeds("associations", place.model, "-o", tmp_path / "p.csv", "--level", 0.5)
    assert "3 pairs of 3 labels -> " in text
    narrow = pd.read_csv(tmp_path / "p.csv")
    assert (narrow["high"] - narrow["low"] < printed["high"] - printed["low"]).all()
    line = fails("associations", place.model, "-o", tmp_path / "p.xlsx")
    assert "use .csv, .parquet or .json" in line
    assert "level must be in (0, 1)" in fails("associations", place.model, "--level", 95)


# ------------------------------------------------------------------ gaps in labels, objectives


def test_empty_label_cells_are_learnt_around_if_allowed(place, tmp_path):
    gaps = table().astype(dict.fromkeys(NAMES, "Int64"))
    gaps.loc[::3, NAMES[1]] = None
    gaps.to_csv(tmp_path / "gaps.csv", index=False)
    words = ["fit", tmp_path / "gaps.csv", "-l", "sp_*", "-x", "site", "-o", tmp_path / "m"]
    line = fails(*words, *FAST)
    assert "--allow-missing-labels" in line
    assert NAMES[1] in line
    assert not (tmp_path / "m").exists()
    succeeds(*words, "--allow-missing-labels", *FAST)
    loaded = load_model(tmp_path / "m")
    assert loaded.allow_missing_labels
    X = gaps.drop(columns=["site", *NAMES])
    assert np.isfinite(loaded.score(X, gaps[NAMES]))


def test_an_objective_is_chosen_by_name(place, tmp_path):
    words = ["fit", place.csv, "-l", "sp_*", "-x", "site", "-o", tmp_path / "m", *FAST]
    for objective, weight in (("likelihood", 1.0), ("paper", 0.5)):
        succeeds(*words, "--objective", objective)
        loaded = load_model(tmp_path / "m")
        assert loaded.objective == objective
        assert loaded.settings_.lambda_ce == weight
    result = run(*words, "--objective", "f1")
    assert result.exit_code == 2
    assert "likelihood" in result.stderr


# -------------------------------------------------------------------------- evaluate and info


def test_evaluate_prints_every_metric(place):
    scores = json.loads(succeeds("evaluate", place.model, place.csv, "--json"))
    X, Y = table().drop(columns=["site", *NAMES]), DATA.Y
    assert scores["micro_f1"] == load_model(place.model).score(X, Y)
    text = succeeds("evaluate", place.model, place.csv)
    assert "sites.csv, 60 rows" in text
    assert f"{scores['micro_f1']:.4f}" in text


def test_evaluate_needs_every_label(place, tmp_path):
    gaps = table().astype({NAMES[0]: "Int64"})
    gaps.loc[0, NAMES[0]] = None
    gaps.to_csv(tmp_path / "gaps.csv", index=False)
    assert "empty label cells" in fails("evaluate", place.model, tmp_path / "gaps.csv")
    table().drop(columns=NAMES[0]).to_csv(tmp_path / "less.csv", index=False)
    assert "sp_trout" in fails("evaluate", place.model, tmp_path / "less.csv")


def test_info_shows_the_model(place):
    text = succeeds("info", place.model)
    assert "4 features -> 3 labels (sp_trout, sp_[red]x, sp_Äsche:x:); 2 networks" in text
    facts = json.loads(succeeds("info", place.model, "--json"))
    assert facts["labels"] == NAMES
    assert facts["features"] == ["depth", "ph", "slope", "ground"]
    assert facts["settings"]["hidden"] == [8]
    assert facts["thresholds"].keys() == METRICS
    assert facts["base"] == ["kernel", "forest", "boosting"]


def test_several_bases_have_commas_between(place, tmp_path):
    words = ["fit", place.csv, "-l", "sp_*", "-x", "site", *FAST, "--out", tmp_path / "m"]
    assert "2 networks, forest, kernel in" in succeeds(*words, "--base", "forest, kernel")
    assert "2 networks, forest, kernel; preset" in succeeds("info", tmp_path / "m")
    assert json.loads(succeeds(*words, "-s", "base=none", "--json"))["base"] == []


@pytest.mark.parametrize("base", ["forests", "", "auto,kernel", "none,kernel", "kernel;forest"])
def test_a_base_nobody_knows_is_refused(place, base):
    line = fails("fit", place.csv, "-l", "sp_*", "--out", place.model, "--base", base)
    assert "auto, none, kernel, forest, boosting" in line
    assert repr(base) in line


def test_undefined_scores_are_null_in_json(place, tmp_path):
    model = load_model(place.model)
    model.validation_scores_["subset"] = np.nan
    model.save(tmp_path / "m")
    text = succeeds("info", tmp_path / "m", "--json")
    assert "NaN" not in text
    assert json.loads(text)["held_out_scores"]["subset"] is None


def test_settings_are_explained(place):
    for preset in ("default", "paper", "authors_code"):
        text = succeeds("settings", "--preset", preset)
        assert f"{preset} value" in text
        assert "lambda_rank" in text


def test_names_with_markup_are_printed_as_they_are(tmp_path):
    folder = tmp_path / "[b]dir[red]"
    folder.mkdir()
    names = ["[red]x", "[/red]y", "\\[bold]z"]
    frame = pd.DataFrame(DATA.X, columns=["a", "b", "c"]).join(
        pd.DataFrame(DATA.Y, columns=names)
    )
    frame.to_csv(folder / "[i]t.csv", index=False)
    text = succeeds("fit", folder / "[i]t.csv", "-l", 3, "-o", folder / "[b]m", *FAST)
    assert "[i]t.csv: 60 rows" in text
    assert f"Model saved in {folder}/[b]m" in text
    text = succeeds("info", folder / "[b]m")
    assert f"{folder}/[b]m: 3 features" in text
    assert "([red]x, [/red]y, \\[bold]z)" in text
    assert "[red]x / " in text
    assert "[i]t.csv, 60 rows" in succeeds("evaluate", folder / "[b]m", folder / "[i]t.csv")
    text = succeeds("predict", folder / "[b]m", folder / "[i]t.csv", "-o", folder / "[u].csv")
    assert "/[u].csv" in text
    assert "[x].csv" in fails("info", tmp_path / "[x].csv")


# ----------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fit", "absent.csv", "-l", "a", "-o", "m"], "absent.csv does not exist"),
        (["fit", "{csv}", "-o", "m"], "which columns are labels? give --labels"),
        (["fit", "{csv}", "-l", "spp_*", "-o", "m"], "no label column 'spp_*'"),
        (["fit", "{csv}", "-l", "99", "-o", "m"], "99 label columns cannot be taken"),
        (["fit", "{csv}", "-l", "sp_*", "-x", "sight", "-o", "m"], "did you mean site"),
        (["fit", "{csv}", "-l", "depth", "-o", "m"], "depth"),
        (["fit", "{csv}", "-l", "sp_*", "-o", "{csv}", "-x", "site", *FAST], "is a file"),
        (["fit", "{csv}", "-l", "sp_*", "-o", "m", "--set", "lr"], "--set takes NAME=VALUE"),
        (["fit", "{csv}", "-l", "sp_*", "-o", "m", "--set", "lr=x"], "lr must be a number"),
        (["fit", "{csv}", "-l", "sp_*", "-o", "m", "--set", "eta=1"], "no setting 'eta'"),
        (["fit", "{csv}", "-l", "sp_*", "-o", "m", "--set", "hidden=8,x"], "hidden must be"),
        (["fit", "{csv}", "-l", "sp_*", "-o", "m", "-x", "site", "-s", "lr=-1"], "lr must"),
        (["fit", "{csv}", "-l", "sp_*", "-o", "m", "--config", "no.toml"], "no.toml"),
        (["fit", "{folder}/x.xlsx", "-l", "a", "-o", "m"], "unknown suffix"),
        (["fit", "{folder}/empty.csv", "-l", "a", "-o", "m"], "empty.csv"),
        (["fit", "{folder}/text.csv", "-l", "y", "-o", "m"], "y"),
        (["predict", "absent", "{csv}"], "absent is not a folder"),
        (["predict", "{folder}", "{csv}"], "has no manifest.json"),
        (["predict", "{broken}", "{csv}"], "was changed after it was written"),
        (["predict", "{model}", "absent.csv"], "absent.csv does not exist"),
        (["predict", "{model}", "{folder}/less.csv"], "lacks 2 of 4 feature columns: ph,"),
        (["predict", "{model}", "{csv}", "-o", "out.xlsx"], "use .csv, .parquet or .json"),
        (["predict", "{model}", "{csv}", "-o", "{csv}"], "is the table itself"),
        (["predict", "{model}", "{csv}", "-k", "sight"], "no kept column 'sight'"),
        (["predict", "{model}", "{csv}", "--rows", "val"], "val"),
        (["predict", "{model}", "{folder}/words.csv"], "column ph, where training had numbers"),
        (["evaluate", "{model}", "{folder}/less.csv"], "less.csv"),
        (["info", "{csv}"], "is not a folder"),
        (["settings", "--n-labels", "0"], "n_labels must be at least 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_line(place, words, said, monkeypatch, tmp_path):
    folder = place.folder / "wrong"
    if not folder.exists():
        folder.mkdir()
        (folder / "x.xlsx").write_text("")
        (folder / "empty.csv").write_text("")
        (folder / "text.csv").write_text("a,y\n1,maybe\n2,1\n")
        table().drop(columns=["ph", "slope"]).to_csv(folder / "less.csv", index=False)
        table().assign(ph="sour").to_csv(folder / "words.csv", index=False)
        load_model(place.model).save(folder / "broken")
        (weights,) = (folder / "broken").glob("weights-*")
        weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    monkeypatch.chdir(tmp_path)
    known = {
        "csv": place.csv,
        "model": place.model,
        "folder": folder,
        "broken": folder / "broken",
    }
    line = fails(*(word.format(**known) for word in words))
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_metric_is_refused_with_the_known_ones(place):
    result = run("fit", place.csv, "-l", "sp_*", "-o", "m", "--metric", "f1")
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    for metric in METRICS:
        assert metric in result.stderr


def test_an_interrupt_before_the_first_epoch_writes_nothing(place, tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(MPVAEClassifier, "fit", interrupted)
    result = run("fit", place.csv, "-l", "sp_*", "-x", "site", "-o", tmp_path / "m")
    assert result.exit_code == 130
    assert result.stderr == "mpvae: interrupted; nothing was written\n"
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")],
)
def test_memory_that_cannot_be_had_is_told_in_one_line(place, tmp_path, monkeypatch, error):
    def large(*args, **kwargs):
        raise error

    monkeypatch.setattr(MPVAEClassifier, "fit", large)
    line = fails("fit", place.csv, "-l", "sp_*", "-x", "site", "-o", tmp_path / "m")
    assert "not enough memory; give fewer rows, features or labels" in line


def test_the_experiments_name_what_they_need(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'pip install "mpvae[bench]"' in fails("benchmark", "--help")


# -------------------------------------------------------------------------- help, demo, shells


def test_help_explains_and_gives_examples():
    text = succeeds("--help")
    assert "mpvae demo" in text
    for command in ("demo", "fit", "predict", "evaluate", "associations", "info", "settings"):
        assert command in text
        assert len(succeeds(command, "--help")) > 300
    for command in ("fit", "predict", "associations"):
        assert f"Example: mpvae {command}" in succeeds(command, "-h")
    assert succeeds("--version") == f"{__version__}\n"


def test_the_demo_compares_with_the_paper(monkeypatch, tmp_path):
    monkeypatch.setattr(
        demo,
        "load_yeast",
        lambda: LabelledTable(
            X=DATA.X.astype(np.float32),
            Y=DATA.Y,
            feature_names=("a", "b", "c"),
            label_names=tuple(NAMES),
            splits={"train": np.arange(40), "test": np.arange(40, 60)},
            name="yeast",
        ),
    )
    quick = {"hidden": (8,), "latent_dim": 2, "n_draws": 4, "n_members": 2, "max_epochs": 2}
    monkeypatch.setattr(
        demo, "MPVAEClassifier", lambda **given: MPVAEClassifier(**given | quick)
    )
    text = succeeds("demo", "-o", tmp_path / "[m]")
    assert "40 training and 20 test rows" in text
    assert "0.6554" in text
    assert f"mpvae info {tmp_path}/[m]" in text
    assert load_model(tmp_path / "[m]").n_features_in_ == 3
    assert (tmp_path / "[m]-report.html").exists()
    told = json.loads(succeeds("demo", "-o", tmp_path / "n", "--json"))
    assert told["published"]["micro_f1"] == 0.6554
    assert 0 <= told["scores"]["micro_f1"] <= 1


@pytest.mark.slow
def test_the_real_demo_runs(tmp_path):
    done = shell("demo", "-o", tmp_path / "m")
    assert done.returncode == 0
    assert "published MPVAE" in done.stdout


def test_output_in_a_pipe_is_plain_text(place):
    done = shell("info", place.model, env=os.environ | {"TERM": "xterm-256color"})
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "sp_[red]x" in done.stdout


def test_a_mistake_in_a_real_shell_is_one_line_without_traceback(place):
    done = shell("predict", place.model, "absent.csv")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "mpvae: absent.csv does not exist; check the path\n"


def test_a_reader_that_goes_away_is_no_mistake(place):
    command = [sys.executable, "-c", "from mpvae.cli import main; main()", "predict"]
    with subprocess.Popen(
        [*command, place.model, place.csv], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        told = process.stderr.read().decode()
        process.wait(timeout=100)
    assert told == ""
    assert process.returncode == 1


def test_ctrl_c_in_a_real_shell_saves_the_best_model_so_far(place, tmp_path):
    command = [
        sys.executable, "-c",
        "import mpvae.cli as cli, mpvae.progress as p, sys\n"
        "update = p.FitProgress.update\n"
        "def told(self, **k):\n"
        "    update(self, **k)\n"
        "    print(k['epoch'], file=sys.stderr, flush=True)\n"
        "p.FitProgress.update = told\n"
        "cli.main()",
        "fit", place.csv, "-l", "sp_*", "-x", "site", "-o", tmp_path / "m", *FAST,
        "--set", "max_epochs=100000", "--set", "patience=none",
    ]  # fmt: skip
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        for line in process.stderr:  # one line per epoch: training has begun
            if int(line) >= 3:
                break
        process.send_signal(signal.SIGINT)
        start = time.perf_counter()
        out, err = process.communicate(timeout=60)
    assert time.perf_counter() - start < 30
    assert process.returncode == 130, err
    saved = "mpvae: interrupted; the best model so far was saved"
    assert err.splitlines()[-1].startswith(saved)  # and if it took 2 seconds: how to go on
    assert "Traceback" not in err
    assert "Model saved in" in out
    loaded = load_model(tmp_path / "m")
    assert loaded.n_epochs_ >= 3
    assert len(loaded.networks_) == 1
    assert succeeds("predict", tmp_path / "m", place.csv).count("\n") == 61


def test_benchmark_hands_everything_to_the_experiments(capfd):
    assert run("benchmark", "--help").exit_code == 0
    assert "table1" in capfd.readouterr().out
    assert run("benchmark", "table9").exit_code == 2
    assert "table9" in capfd.readouterr().err


def test_benchmark_says_where_the_experiments_are_when_they_are_not_installed(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(cli, "EXPERIMENTS", tmp_path / "paper.py")
    assert "clone the project" in fails("benchmark", "table1")
