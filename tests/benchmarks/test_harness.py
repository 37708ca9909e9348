"""The harness of the paper's experiments: cells, bounds, resuming, the page."""

import time

import numpy as np
import pytest

pytest.importorskip("xgboost")

from harness import cells, datasets, experiments, page, runner
from harness.cells import Cell
from harness.experiments import Waiting
from harness.methods import METHODS, KernelMachine
from harness.summary import summary
from mpvae.data import simulate_probit

SCORED = {
    "settings": {"C": 1.0},
    "seconds": 1.0,
    "cpu_seconds": 1.0,
    "scores": {"validation": {"micro_f1": 0.5}},
    "on_validation_rows": {"micro_f1": 0.5},
}


def test_a_cell_leaves_settings_versions_and_every_metric_and_is_not_run_again(tmp_path):
    cell = Cell("quick", "yeast", "logistic")
    runner.run_all([cell], tmp_path, workers=1)
    content = cell.read(tmp_path)
    assert content["settings"]["C"] in (1.0, 0.1)
    assert {"torch", "scikit-learn"} <= set(content["versions"])
    assert content["git"]
    assert content["seconds"] > 0
    for protocol in ("validation", "best_on_test", "half"):
        assert set(content["scores"][protocol]) == {
            "example_f1",
            "micro_f1",
            "macro_f1",
            "hamming",
            "subset",
        }
    assert (
        content["scores"]["best_on_test"]["micro_f1"]
        >= content["scores"]["validation"]["micro_f1"]
    )
    assert len(content["precision_at_k"]) == 10
    before = cell.file(tmp_path).stat().st_mtime_ns
    runner.run_all([cell], tmp_path, workers=1)
    assert cell.file(tmp_path).stat().st_mtime_ns == before
    assert not list(tmp_path.rglob("*.tmp*"))


@pytest.mark.parametrize(
    ("bound", "value", "words"),
    [("MAX_SECONDS", 0, "more than 0 minutes"), ("MAX_GB", 0.001, "GB of memory")],
)
def test_a_cell_beyond_its_bounds_is_stopped_and_says_so(
    bound, value, words, tmp_path, monkeypatch
):
    monkeypatch.setattr(runner, bound, value)
    first, second = (Cell("ablation", "yeast", "mpvae_paper", seed, "paper") for seed in (0, 1))
    start = time.monotonic()
    runner.run_all([first, second], tmp_path, workers=2)
    assert time.monotonic() - start < 60  # far from the minute or more that training takes
    assert words in first.read(tmp_path)["reason"]
    assert second.read(tmp_path)["reason"] == first.read(tmp_path)["reason"]  # not even tried


def test_a_cell_that_fails_gives_its_reason_and_runs_again_on_demand(tmp_path):
    cell = Cell("quick", "no_such_data", "logistic")
    runner.run_all([cell], tmp_path, workers=1)
    content = cell.read(tmp_path)
    assert "no_such_data" in content["reason"]
    assert content["error"]
    before = cell.file(tmp_path).stat().st_mtime_ns
    runner.run_all([cell], tmp_path, workers=1)
    assert cell.file(tmp_path).stat().st_mtime_ns == before
    runner.run_all([cell], tmp_path, workers=1, retry=True)
    assert cell.file(tmp_path).stat().st_mtime_ns != before


def test_the_tables_wait_for_the_search_and_take_its_best_setting(tmp_path):
    table = Cell("tables", "yeast", "logistic")
    with pytest.raises(Waiting):
        experiments.without_running(table, tmp_path)
    first, second = experiments.search_cells("yeast", "logistic")
    first.write(tmp_path, SCORED)
    assert experiments.without_running(second, tmp_path) is None
    better = SCORED | {"settings": {"C": 0.1}, "on_validation_rows": {"micro_f1": 0.6}}
    second.write(tmp_path, better)
    assert experiments.chosen_option("yeast", "logistic", tmp_path) == 1
    assert experiments.without_running(table, tmp_path)["settings"] == {"C": 0.1}


def test_a_search_ends_at_its_first_setting_where_that_took_long(tmp_path):
    first, second = experiments.search_cells("yeast", "forest")
    first.write(tmp_path, SCORED | {"cpu_seconds": 1000.0})
    assert "1000 s" in experiments.without_running(second, tmp_path)["reason"]


def test_a_summary_is_mean_and_spread_or_the_reason(tmp_path):
    for seed, value in enumerate((0.5, 0.6, 0.7)):
        scores = {"validation": {"micro_f1": value}}
        Cell("tables", "yeast", "forest", seed).write(tmp_path, SCORED | {"scores": scores})
    found = summary(tmp_path, "tables", "yeast", "forest")
    assert found.mean("micro_f1") == pytest.approx(0.6)
    assert found.sd("micro_f1") == pytest.approx(0.1)
    Cell("tables", "scene", "forest").write(tmp_path, {"reason": "more than 20 minutes"})
    assert summary(tmp_path, "tables", "scene", "forest").reason == "more than 20 minutes"
    assert summary(tmp_path, "tables", "bibtex", "forest").reason == "not run"


def test_the_stored_split_keeps_the_official_test_rows_and_parts_do_not_meet():
    part = datasets.split("yeast")
    assert np.bincount(part).tolist() == [1357, 143, 917]
    parts = datasets.load("yeast")
    assert [len(p.Y) for p in parts] == [1357, 143, 917]
    assert all(p.Y.dtype == np.int64 for p in parts)  # narrower ones get permuted


def test_noise_flips_its_share_of_labels_but_none_of_the_test_rows():
    clean, noisy = datasets.load("yeast"), datasets.load("yeast", noise=0.2)
    n = clean.train.Y.size
    flipped = (clean.train.Y != noisy.train.Y).sum()
    assert abs(flipped - 0.2 * n) < 4 * np.sqrt(0.2 * 0.8 * n)  # four binomial deviations
    assert (clean.validation.Y != noisy.validation.Y).any()
    assert (clean.test.Y == noisy.test.Y).all()


def test_published_scores_are_those_of_the_paper():
    known = datasets.published()
    assert len(known) == 4 * 9 * 7
    assert known["micro_f1", "yeast", "MPVAE"] == 0.6554
    assert known["hamming_accuracy", "delicious", "LaMP"] == 0.9822


def test_every_published_column_has_a_method():
    columns = {method for _, _, method in datasets.published()}
    assert columns == {m.published for m in METHODS.values()} - {""}


def test_groups_are_last_words_and_loners_have_none():
    names = ["Blue-winged Teal", "Cinnamon Teal", "Anhinga", "dark.green_fritillary"]
    assert experiments.label_groups(names) == ["teal", "teal", "", ""]


def test_the_share_of_same_group_neighbours_worked_by_hand():
    # a1-a2 and b1-b2 are most alike: every nearest neighbour is of the same group.
    likeness = np.eye(4) + 0.1
    likeness[0, 1] = likeness[1, 0] = likeness[2, 3] = likeness[3, 2] = 0.9
    found = experiments._same_group(likeness, ["a", "a", "b", "b"])
    assert found["share"] == 1.0
    # Shuffled, the pairs stay together in 1 of the 3 ways to pair four labels.
    assert found["chance"] == pytest.approx(1 / 3, abs=4 * np.sqrt(2 / 9 / 2000))


def test_the_kernel_machine_gives_probabilities_and_takes_constant_labels():
    data = simulate_probit(300, n_labels=3, seed=0)
    Y = data.Y.astype(np.int64)
    Y[:, 2] = 1
    machine = KernelMachine(C=1.0, seed=0).fit(_frame(data.X[:200]), Y[:200])
    P = machine.predict_proba(_frame(data.X[200:]))
    assert ((P >= 0) & (P <= 1)).all()
    assert (P[:, 2] == 1).all()
    assert np.mean((P[:, :2] > 0.5) == Y[200:, :2]) > 0.6
    machine.MOST = 0  # the approximation for large tables
    approximate = machine.fit(_frame(data.X[:200]), Y[:200]).predict_proba(_frame(data.X[200:]))
    assert np.corrcoef(P[:, 0], approximate[:, 0])[0, 1] > 0.8


def _frame(X):
    import pandas as pd

    return pd.DataFrame(X)


def test_the_page_is_what_the_stored_cells_give():
    lines = page.text(
        cells.RESULTS, [file.name for file in page.IMAGES.glob("reproduction_*.svg")]
    )
    assert lines == page.FILE.read_text()


def test_stored_cells_have_scores_or_a_reason_that_is_no_failure():
    once = experiments.FIGURE_SEEDS
    wanted = [
        *experiments.table_cells(datasets.SOURCES, METHODS, experiments.SEEDS),
        *experiments.noise_cells(METHODS, once),
        *experiments.ablation_cells(once),
        *experiments.covariance_cells(once),
        *experiments.explanation_cells(),
    ]
    for cell in wanted:
        content = cell.read(cells.RESULTS)
        assert content is not None, cell
        has_result = "scores" in content or "same_group_neighbours" in content
        assert has_result != ("reason" in content)
        assert not content.get("error"), content
