"""The comparison with peers: its protocol, shared fits, resuming, and the page."""

import sys

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("xgboost", reason="the benchmarks need the extra bench")

from dataclasses import replace

from harness import cells, cli, datasets, peers, peers_page, runner
from harness.cells import Cell
from harness.datasets import Part, Parts
from harness.experiments import Waiting
from harness.methods import PEERS, HalfVote
from mpvae import observed
from mpvae.config import DataShape
from mpvae.data import simulate_probit
from mpvae.decisions import apply_threshold
from mpvae.forest import Forest
from mpvae.metrics import DECISION_METRICS
from mpvae.presets import resolve
from mpvae.ridge import KernelRidge


def drawn(n: int, first_row: int = 0) -> Part:
    """Rows that carry their number as the first feature."""
    data = simulate_probit(n, n_labels=3, seed=first_row)
    X = pd.DataFrame(np.column_stack([np.arange(first_row, first_row + n), data.X]))
    return Part(X, data.Y.astype(np.int64))


LEARN, TEST = drawn(90), drawn(40, first_row=1000)


class Spy:
    """Remembers the rows it was fitted to and asked about; answers by the second feature."""

    def __init__(self) -> None:
        self.fitted: list[set[int]] = []
        self.asked: list[set[int]] = []

    def fit(self, X, Y):
        self.fitted.append(set(X[0].astype(int)))
        return self

    def predict_proba(self, X):
        self.asked.append(set(X[0].astype(int)))
        p = 1 / (1 + np.exp(-X[1].to_numpy()))
        return np.column_stack([p, p**2, 1 - p])


@pytest.fixture
def spy(monkeypatch):
    spy = Spy()
    method = replace(PEERS["logistic"], build=lambda settings, seed, rows: spy)
    monkeypatch.setitem(PEERS, "logistic", method)
    return spy


def test_a_rival_is_judged_on_rows_it_did_not_see_and_learns_from_no_test_row(spy):
    peers.contents("logistic", 0, LEARN, TEST)
    learn, test = set(range(90)), set(range(1000, 1040))
    assert len(spy.fitted) == 4  # three folds, then all
    for fitted, asked in zip(spy.fitted[:3], spy.asked[:3], strict=True):
        assert not fitted & asked
        assert fitted | asked == learn
    assert set().union(*spy.asked[:3]) == learn
    assert spy.fitted[3] == learn
    assert spy.asked[3] == test


def test_many_rows_are_judged_by_the_first_of_five_folds(spy, monkeypatch):
    monkeypatch.setattr(peers, "FEW_ROWS", 89)
    peers.contents("logistic", 0, LEARN, TEST)
    assert len(spy.fitted) == 2
    assert not spy.fitted[0] & spy.asked[0]
    assert abs(len(spy.asked[0]) - 90 / 5) <= 3  # stratified folds are about equal


def test_what_the_test_labels_are_changes_no_decision(spy):
    right = peers.contents("logistic", 0, LEARN, TEST)["logistic"]["scores"]["held_out"]
    turned = TEST._replace(Y=1 - TEST.Y)
    wrong = peers.contents("logistic", 0, LEARN, turned)["logistic"]["scores"]["held_out"]
    # The same entries taken: right where the labels are, wrong where they are turned.
    assert right["hamming"] == pytest.approx(1 - wrong["hamming"])


def test_thresholds_are_of_the_kinds_of_the_default(spy):
    content = peers.contents("logistic", 0, LEARN, TEST)["logistic"]
    P_learn, P_test = spy.predict_proba(LEARN.X), spy.predict_proba(TEST.X)
    for name, metric in DECISION_METRICS.items():
        kind = "expected" if name in ("hamming", "macro_f1") else "exact"
        threshold = observed.best_threshold(LEARN.Y, P_learn, name, kind)
        expected = metric(TEST.Y, apply_threshold(P_test, threshold))
        assert content["scores"]["held_out"][name] == expected


def test_mpvae_is_scored_by_what_predict_gives(monkeypatch):
    class Model:
        thresholds_ = dict.fromkeys(DECISION_METRICS, 0.5)
        validation_scores_ = dict.fromkeys(DECISION_METRICS, 0.7)
        rules_ = {"example_f1": "joint", "subset": "threshold"}  # noqa: RUF012
        settings_ = resolve("default", {}, DataShape(100, 40, 3))
        evidence_ = (object.__new__(Forest), object.__new__(KernelRidge))

        def fit(self, X, Y):
            assert len(Y) == len(LEARN.Y)
            return self

        def predict_proba(self, X):
            return np.full((len(X), 3), 0.2)

        def predict(self, X, metric):
            assert metric == "example_f1"
            return TEST.Y

    method = replace(PEERS["mpvae"], build=lambda settings, seed, rows: Model())
    monkeypatch.setitem(PEERS, "mpvae", method)
    content = peers.contents("mpvae", 0, LEARN, TEST)["mpvae"]
    made = {"kernel_features": 500, "quantiles": False, "evidence": ["forest", "kernel"]}
    assert content["resolved"] == made
    scores = content["scores"]
    assert scores["held_out"]["example_f1"] == 1
    assert scores["threshold"]["example_f1"] == 0  # nothing is above one half
    assert scores["held_out"]["micro_f1"] == 0


@pytest.fixture
def small(monkeypatch):
    """Forests of 10 trees, and a table of 90 and 40 rows whose test rows are official."""
    forest = replace(PEERS["forest"], grid=({"n_estimators": 10},))
    monkeypatch.setitem(PEERS, "forest", forest)
    parts = Parts(drawn(60), drawn(30, first_row=60), TEST)
    monkeypatch.setattr(datasets, "load", lambda name, seed: parts)


@pytest.mark.usefixtures("small")
def test_one_run_of_the_average_leaves_three_cells_of_the_same_fits(tmp_path):
    fitted = []
    build = PEERS["forest"].build

    def counted(settings, seed, rows):
        fitted.append(seed)
        return build(settings, seed, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PEERS, "forest", replace(PEERS["forest"], build=counted))
        peers.run(Cell("peers", "yeast", "average"), tmp_path)
    assert len(fitted) == 4  # three folds and all rows: none for the average
    found = {m: Cell("peers", "yeast", m).read(tmp_path) for m in (*peers.SHARED, "average")}
    assert all(content["scores"]["held_out"] for content in found.values())
    apart = sum(found[m]["cpu_seconds"] for m in peers.SHARED)
    assert found["average"]["cpu_seconds"] == pytest.approx(apart)
    peers.run(Cell("peers", "yeast", "average", 1), tmp_path)
    assert Cell("peers", "yeast", "forest", 1).file(tmp_path).exists()
    # Without randomness, once on official rows.
    assert not Cell("peers", "yeast", "svm", 1).file(tmp_path).exists()


@pytest.mark.usefixtures("small")
def test_the_average_is_the_mean_of_both():
    folds = peers.folds_of(LEARN.Y, 0)
    forest, svm = (peers.answers(PEERS[m], 0, LEARN, TEST.X, folds) for m in peers.SHARED)
    both = peers.average([forest, svm])
    np.testing.assert_array_equal(both.test, (forest.test + svm.test) / 2)
    np.testing.assert_array_equal(both.judged, (forest.judged + svm.judged) / 2)
    alone = peers.contents("forest", 0, LEARN, TEST)["forest"]
    shared = peers.contents("average", 0, LEARN, TEST)["forest"]
    assert alone["scores"] == shared["scores"]


def test_half_a_vote_keeps_a_forest_from_being_certain():
    class Sure:
        n_estimators = 300

        def fit(self, X, Y):
            return self

        def predict_proba(self, X):
            return np.tile([0.0, 1.0], (len(X), 1))

    Y = np.array([[0, 1], [0, 1], [0, 1], [0, 0]])
    P = HalfVote(Sure()).fit(pd.DataFrame(Y), Y).predict_proba(pd.DataFrame([[1, 2]]))
    prior = [0.5 / 5, 3.5 / 5]  # half a row on either side
    np.testing.assert_allclose(P, [[0.5 * prior[0] / 300.5, (300 + 0.5 * prior[1]) / 300.5]])


@pytest.mark.parametrize(
    ("method", "n", "L", "leaf"),
    [
        ("forest", 12920, 983, 5),  # delicious
        ("extra_trees", 12920, 983, 8),
        ("forest", 17208, 52, 1),  # disdat_nz_plants
        ("extra_trees", 17208, 52, 8),
        ("extra_trees", 4880, 159, 1),  # bibtex
    ],
)
def test_forests_are_bounded_where_they_would_not_fit_into_memory(method, n, L, leaf):
    rows = Part(None, np.broadcast_to(0, (n, L)))
    model = PEERS[method].build(PEERS[method].grid[0], 0, rows)
    assert model.estimator.min_samples_leaf == leaf
    assert model.estimator.n_estimators == 300


def test_cells_are_of_the_methods_that_run_there_and_of_those_that_share_fits():
    found = peers.cells(["yeast", "ng20"], ["forest", "mlknn", "lamp"], (0, 1))
    by = {(c.data, c.method): [] for c in found}
    for cell in found:
        by[cell.data, cell.method].append(cell.seed)
    assert by == {
        ("yeast", "forest"): [0, 1],
        ("yeast", "svm"): [0],
        ("yeast", "average"): [0, 1],
        ("yeast", "mlknn"): [0],
        ("yeast", "lamp"): [0, 1],
        ("ng20", "forest"): [0, 1],
        ("ng20", "svm"): [0, 1],
        ("ng20", "average"): [0, 1],
    }


def test_every_table_has_a_stored_split_whose_parts_are_not_empty():
    for name in peers.DATA:
        official = datasets.EVERY[name].official
        for seed in (0,) if official else (0, 1, 2):
            file = f"{name}.npz" if official else f"{name}-{seed}.npz"
            assert (datasets.SPLITS / file).exists()
            assert (np.bincount(datasets.split(name, seed)) > 0).tolist() == [True] * 3


def test_forest_and_kernel_machine_wait_for_the_average_and_share_its_fate(tmp_path):
    forest, average = (Cell("peers", "yeast", m) for m in ("forest", "average"))
    with pytest.raises(Waiting):
        peers.without_running(forest, tmp_path)
    assert peers.without_running(average, tmp_path) is None
    average.write(tmp_path, {"reason": "more than 120 minutes"})
    assert peers.without_running(forest, tmp_path)["reason"] == "more than 120 minutes"
    forest.write(tmp_path, scored(0.5))
    assert peers.without_running(forest, tmp_path) == scored(0.5)
    later = Cell("peers", "yeast", "average", 1)
    assert peers.without_running(later, tmp_path)["reason"] == "more than 120 minutes"


def test_a_cell_is_run_once_and_says_what_it_was(tmp_path):
    wanted = peers.cells(["yeast"], ["mlknn"], (0, 1, 2))
    how = {"run": peers.run, "known": peers.without_running, "max_seconds": 600.0}
    runner.run_all(wanted, tmp_path, workers=1, **how)
    (cell,) = wanted
    content = cell.read(tmp_path)
    assert content["shape"] == {
        "learning_rows": 1500,
        "test_rows": 917,
        "features": 103,
        "labels": 14,
    }
    assert content["cpu_seconds"] > 0
    assert content["settings"] == {"k": 10}
    assert set(content["scores"]["held_out"]) == {*DECISION_METRICS, "log_loss"}
    before = cell.file(tmp_path).stat().st_mtime_ns
    runner.run_all(wanted, tmp_path, workers=1, **how)
    assert cell.file(tmp_path).stat().st_mtime_ns == before


def test_a_cell_beyond_the_bound_of_its_experiment_is_stopped(tmp_path):
    cell = Cell("peers", "yeast", "boosting")
    how = {"run": peers.run, "known": peers.without_running, "max_seconds": 0.0}
    runner.run_all([cell], tmp_path, workers=1, **how)
    assert cell.read(tmp_path)["reason"] == "more than 0 minutes"


# ---------------------------------------------------------------- the page


def scored(value: float, log_loss: float = 0.3, seconds: float = 2.0) -> dict:
    shape = {"learning_rows": 1500, "test_rows": 917, "features": 103, "labels": 14}
    scores = dict.fromkeys(DECISION_METRICS, value) | {"log_loss": log_loss}
    return {"scores": {"held_out": scores}, "cpu_seconds": seconds, "shape": shape}


def store(folder, method, values, data="yeast", **more):
    for seed, value in enumerate(values):
        Cell("peers", data, method, seed).write(folder, scored(value, **more))


def table(folder):
    return {
        (data, m): peers_page.summary(folder, "peers", data, m)
        for data in peers.DATA
        for m in PEERS
    }


def test_ranks_worked_by_hand(tmp_path):
    for data, values in {"yeast": (0.9, 0.8, 0.8), "scene": (0.1, 0.3, 0.2)}.items():
        for method, value in zip(("mpvae", "forest", "mlp"), values, strict=True):
            store(tmp_path, method, [value], data=data, log_loss=value)
    methods, data = ("mpvae", "forest", "mlp"), ("yeast", "scene")
    ranks = peers_page.mean_ranks(table(tmp_path), "micro_f1", methods, data)
    assert ranks == {"mpvae": (1 + 3) / 2, "forest": (2.5 + 1) / 2, "mlp": (2.5 + 2) / 2}
    # Of log-loss the lowest is best.
    ranks = peers_page.mean_ranks(table(tmp_path), "log_loss", methods, data)
    assert ranks == {"mpvae": (3 + 1) / 2, "forest": (1.5 + 3) / 2, "mlp": (1.5 + 2) / 2}


def test_first_and_within_one_standard_error_worked_by_hand(tmp_path):
    # Means .60 and .61; both have sd .01 over 3 seeds: the error is sqrt(2 / 3) * .01 = .0082.
    store(tmp_path, "mpvae", [0.59, 0.60, 0.61])
    store(tmp_path, "forest", [0.60, 0.61, 0.62])
    store(tmp_path, "mlp", [0.5])
    store(tmp_path, "mpvae_alone", [0.9])  # ours is not a rival of ours
    (duel,) = peers_page.duels(table(tmp_path), "mpvae", "micro_f1")
    assert duel.rival == "forest"
    assert duel.behind == pytest.approx(0.01)
    assert duel.error == pytest.approx(np.sqrt(2 / 3) * 0.01)
    assert not duel.first
    assert not duel.close
    store(tmp_path, "mpvae", [0.595, 0.605, 0.615])  # .605: .005 behind
    (duel,) = peers_page.duels(table(tmp_path), "mpvae", "micro_f1")
    assert not duel.first
    assert duel.close
    (duel,) = peers_page.duels(table(tmp_path), "mpvae_alone", "micro_f1")
    assert duel.first
    assert duel.close
    # Of log-loss the lowest is first: equal here.
    (duel,) = peers_page.duels(table(tmp_path), "mpvae", "log_loss")
    assert duel.first


def test_the_page_shows_scores_losses_bars_and_times(tmp_path):
    store(tmp_path, "mpvae", [0.68, 0.69, 0.70], log_loss=0.2, seconds=4.0)
    for method in ("forest", "average", "boosting"):
        store(tmp_path, method, [0.70, 0.70, 0.70])
    store(tmp_path, "svm", [0.6], seconds=1.0)
    store(tmp_path, "mlknn", [0.5])
    page = peers_page.text(tmp_path)
    assert "| example-F1 | 0 of 1 | 0 of 1 | not run | not run |" in page
    assert "| **all** | 1 of 5 | 1 of 5 | not run | not run |" in page
    assert "is behind a rival in 4 of 5 cells, in 4 of them by more than one" in page
    # .01 behind, the error is .01 / sqrt(3)
    row = "| yeast | micro-F1 | 0.690 ± 0.010 | 0.700 ± 0.000 | random forest | 0.0100 | 1.7 |"
    assert row in page
    assert "0.6900 (0.687) met" in page
    assert "0.6900 (0.815) **0.1250 short**" in page
    assert "| yeast | 2.0 | 2.00 | not run | not run | not run | 0.50 | 1.00 |" in page
    assert (
        "| **median** |  | **2.00** | not run | not run | not run | **0.50** | **1.00** |"
        in page
    )
    assert "| yeast | 1,500 | 917 | 103 | 14 | official |" in page
    assert "5 methods on 1 of 18 tables; without norberg_birds, norberg_vegetation, " in page
    assert "| yeast | 0.500 | not run |" in page  # the paper's six


def test_the_page_without_cells_says_not_run_and_with_a_reason_gives_it(tmp_path):
    page = peers_page.text(tmp_path)
    assert "not run" in page
    assert "## Where we lose\n\nNot run." in page
    Cell("peers", "delicious", "extra_trees").write(tmp_path, {"reason": "more than 8 GB"})
    assert "No score: extra trees on delicious: more than 8 GB." in peers_page.text(tmp_path)


def test_a_seed_that_failed_is_not_passed_over(tmp_path):
    store(tmp_path, "mpvae", [0.6, 0.7])
    Cell("peers", "yeast", "mpvae", 2).write(tmp_path, {"reason": "no luck", "error": True})
    page = peers_page.text(tmp_path)
    assert "0.650 ± 0.071 (2)" in page
    assert "No score: MPVAE (default) on yeast: no luck." in page


def test_the_page_is_what_the_stored_cells_give():
    if not peers_page.FILE.exists():
        pytest.skip("the comparison has not been run")
    assert peers_page.text(cells.RESULTS) == peers_page.FILE.read_text()


def test_the_command_names_what_an_experiment_does_not_have(monkeypatch, capsys):
    for words, told in (
        (["peers", "--data", "imdb"], "peers has no imdb in its data"),
        (["table1", "--data", "ng20"], "table1 has no ng20 in its data"),
        (["table1", "--methods", "average"], "table1 has no average in its methods"),
    ):
        monkeypatch.setattr(sys, "argv", ["paper.py", *words])
        with pytest.raises(SystemExit):
            cli.main()
        assert told in capsys.readouterr().err


def test_probabilities_that_were_kept_are_not_fitted_again(tmp_path, monkeypatch):
    def kept(method):
        return tmp_path / "kept" / f"{method}.npz"

    first = peers.contents("logistic", 0, LEARN, TEST, kept)["logistic"]
    assert kept("logistic").exists()

    def refuse(*args):
        raise AssertionError("fitted again")

    monkeypatch.setattr(peers, "answers", refuse)
    again = peers.contents("logistic", 0, LEARN, TEST, kept)["logistic"]
    assert again["parameters"] == first["parameters"]
    assert again["seconds"] == first["seconds"]
    assert again["scores"]["held_out"] == pytest.approx(first["scores"]["held_out"], rel=1e-12)


def test_where_seeds_have_their_own_rows_only_common_ones_are_compared(tmp_path):
    """Ours on three splits, a rival on two of them: a hard third split must not count."""
    assert not datasets.EVERY["sider"].official
    store(tmp_path, "mpvae", [0.70, 0.60, 0.10], data="sider")
    store(tmp_path, "forest", [0.69, 0.62], data="sider")
    (duel,) = peers_page.duels(table(tmp_path), "mpvae", "micro_f1")
    assert (duel.rival, duel.behind) == ("forest", pytest.approx(0.005))
    # Differences of .01 and -.02: sd .0212, over sqrt(2).
    assert duel.error == pytest.approx(0.015)
    ranks = peers_page.mean_ranks(table(tmp_path), "micro_f1", ["mpvae", "forest"], ["sider"])
    assert ranks == {"mpvae": 2, "forest": 1}
