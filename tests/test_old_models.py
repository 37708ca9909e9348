"""Models of every layout that was ever written load, and say what they said."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load as parse_tensors

from fixtures.make_models_v1 import ASKED
from mpvae import ModelFileError, load_model
from mpvae.model_file import MANIFEST, SCHEMA, read_model, write_model

MODELS = Path(__file__).parent / "fixtures" / "models_v1"
NAMES = sorted(path.name for path in MODELS.iterdir() if path.is_dir())
# Evidence and kernel features are rounded to float32: where another machine, or another
# SciPy, is on the other side of a rounding, evidence of at most 5 moves by 4.8e-7, and a
# probability by no more than 0.4 of it. All else is float64.
ATOL = 5e-7


def said(name):
    return json.loads((MODELS / f"{name}.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_a_model_says_what_it_said_when_it_was_written(name):
    model, asked, expected = load_model(MODELS / name), ASKED[name](), said(name)
    np.testing.assert_allclose(
        model.predict_proba(asked), expected["probabilities"], rtol=0, atol=ATOL
    )
    decided = model.predict(asked, rule="threshold")
    np.testing.assert_array_equal(decided, expected["decisions"])
    np.testing.assert_allclose(model.correlation_, expected["correlation"], atol=1e-9)
    if model.multilabel_:
        np.testing.assert_array_equal(model.predict_set(asked, coverage=0.8), expected["sets"])


def test_the_models_hold_every_part_a_file_can_have():
    """What is in none of them is not kept from breaking: add a model when a part is added."""
    found, described = set(), set()
    for name in NAMES:
        description, tensors = read_model(MODELS / name)
        found |= {key.split(".")[0] for key in tensors}
        described |= {f"evidence {kind}" for kind in description["evidence"]}
        described |= {key for key in ("levels", "row_length", "classes") if description[key]}
    assert found == {"features", "kernel_features", "evidence", "members", "calibration"}
    assert described == {
        "levels",
        "row_length",
        "classes",
        "evidence kernel",
        "evidence forest",
        "evidence boosting",
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_before_is_written_again_as_it_was(name, tmp_path):
    """Loading loses nothing: the weights of the new folder are the same bytes."""
    load_model(MODELS / name).save(tmp_path / "again")
    before, after = (next(f.glob("weights-*")) for f in (MODELS / name, tmp_path / "again"))
    assert parse_tensors(before.read_bytes()).keys() == parse_tensors(after.read_bytes()).keys()
    assert before.read_bytes() == after.read_bytes()


@pytest.mark.parametrize(
    "lacks", ["rules", "members_by_fold", "row_length", "feature_loadings", "calibration"]
)
def test_what_was_added_within_schema_1_may_be_missing(lacks, tmp_path):
    """Models were written without it, before it was there; marginals do not depend on it."""
    description, tensors = read_model(MODELS / "evidence")
    description.pop(lacks, None)
    tensors = {name: values for name, values in tensors.items() if lacks not in name}
    write_model(tmp_path / "older", description, tensors)
    model, asked = load_model(tmp_path / "older"), ASKED["evidence"]()
    np.testing.assert_allclose(
        model.predict_proba(asked), said("evidence")["probabilities"], rtol=0, atol=ATOL
    )
    assert (lacks == "calibration") == (model.calibration_ is None)
    assert model.rules_ == ({} if lacks == "rules" else load_model(MODELS / "evidence").rules_)


def test_schema_2_is_refused_by_name(tmp_path):
    assert SCHEMA == 1, "a new schema: write models of it, as fixtures/make_models_v1.py does"
    folder = Path(shutil.copytree(MODELS / "binary", tmp_path / "model"))
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"schema": 2}))
    with pytest.raises(
        ModelFileError, match="has schema 2, this version reads up to 1; update mpvae"
    ):
        load_model(folder)


def test_the_models_are_small():
    size = sum(path.stat().st_size for path in MODELS.rglob("*") if path.is_file())
    assert size < 70_000
