"""The benchmark of joint answers: its rivals do what they say, its page shows its cells."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("xgboost", reason="the benchmarks need the extra bench")

from harness import joint, joint_page
from harness.cells import Cell
from harness.datasets import Part, Parts


def drawn(n: int, seed: int) -> Part:
    """Three features, four labels; the last two labels are copies of the first two."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(n, 3)))
    Y = (rng.random((n, 2)) < 0.5).astype(np.int64)
    return Part(X, np.hstack([Y, Y]))


PARTS = Parts(drawn(300, 0), drawn(60, 1), drawn(100, 2))


def test_hidden_labels_are_a_share_of_them_and_the_rest_is_true():
    Y = drawn(2000, 3).Y
    known = joint.hidden(Y, 0.3, 0)
    share = 1 - np.isnan(known).mean()
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / Y.size)
    seen = ~np.isnan(known)
    assert (known[seen] == Y[seen]).all()
    assert np.isnan(joint.hidden(Y, 0.0, 0)).all()


@pytest.mark.parametrize("rival", [joint._SeeingForest, joint._Chain])
def test_rivals_that_see_known_labels_use_them(rival):
    model = rival(0)
    model.fit(PARTS)
    X, Y = PARTS.test
    blind = model.predict(X, np.full(Y.shape, np.nan))
    errors = []  # of the copies given their originals, and the other way round
    for known, asked in ((slice(0, 2), slice(2, 4)), (slice(2, 4), slice(0, 2))):
        given = np.full(Y.shape, np.nan)
        given[:, known] = Y[:, known]
        errors.append(np.mean((model.predict(X, given)[:, asked] - Y[:, asked]) ** 2))
    blind_error = np.mean((blind - Y) ** 2)
    # A chain is helped where the known label comes first in its order; a forest both ways.
    assert (min if rival is joint._Chain else max)(errors) < 0.6 * blind_error


def test_a_forest_of_marginals_does_not_look():
    model = joint._Forest(0)
    model.fit(PARTS)
    X, Y = PARTS.test
    blank = np.full(Y.shape, np.nan)
    np.testing.assert_array_equal(model.predict(X, Y.astype(float)), model.predict(X, blank))


def test_sets_of_independent_labels_are_right_where_labels_are():
    rng = np.random.default_rng(0)
    P = rng.random((4000, 5))
    Y = (rng.random(P.shape) < P).astype(np.int64)

    class Known:
        @staticmethod
        def predict_proba(X):
            return P

    found = joint._independent_sets(Known, Part(None, Y))
    assert joint.COVERAGE - 4 * found["error"] < found["coverage"]
    assert found["size"] < 5


def test_oracles_run_and_stay_within_four_standard_errors(tmp_path):
    cell = Cell("oracles", "simulated", "mpvae", 1)
    joint.run(cell, tmp_path)
    found = cell.read(tmp_path)
    assert set(found["in_standard_errors"]) == set(found["absolute"])
    assert max(found["in_standard_errors"].values()) < 4
    page = joint_page.page(tmp_path, ["oracles"], [1])
    assert "joint against SciPy" in page


def test_the_page_names_the_best_and_the_gain(tmp_path):
    by_share = {
        str(s): {"log_loss": 0.4 - 0.1 * s, "micro_f1": 0.6 + 0.1 * s} for s in joint.SHARES
    }
    worse = {str(s): {"log_loss": 0.4, "micro_f1": 0.6} for s in joint.SHARES}
    names = ["ours", "our marginals", "forest", "seeing forest", "chain"]
    methods = {
        name: {"cpu_seconds": 1.0, "by_share": by_share if name == "ours" else worse}
        for name in names
    }
    nll = {"MPVAE": 11.0, "MPVAE_std": 0.01, "forest": 13.0}
    for seed in (0, 1):
        cell = Cell("conditional", "yeast", "all", seed)
        cell.write(tmp_path, {"methods": methods, "joint_nll": nll})
    page = joint_page.page(tmp_path, ["conditional"], [0, 1])
    assert "**0.3500** ± 0.0000" in page
    assert "| gain | +0.0% | +2.5% | +12.5% | +22.5% | |" in page
    assert "### yeast" in page
    assert "### eco_butterflies" not in page


def test_every_section_has_cells_for_every_seed():
    sections = ("oracles", "conditional", "missing", "decisions", "sets", "speed")
    cells = joint.cells(sections, (0, 1))
    assert len(cells) == len(set(cells))
    assert {cell.experiment for cell in cells} == set(sections)
    assert {cell.seed for cell in cells} == {0, 1}
