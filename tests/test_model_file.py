"""A model on disk: comes back whole, is replaced whole, and never harms whoever reads it."""

import copy
import hashlib
import json
import os
import pickle
import shutil
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as serialise_tensors

from fixtures.make_model_v1 import asked_rows
from mpvae import ModelFileError, MPVAEClassifier, load_model
from mpvae.data import simulate_probit
from mpvae.model_file import MANIFEST, SCHEMA, read_model, write_model

FIXTURES = Path(__file__).parent / "fixtures"
DATA = simulate_probit(40, n_features=3, n_labels=3, n_factors=1, seed=0)
X = pd.DataFrame(DATA.X, columns=["a", "b", "c"]).assign(
    ground=np.where(DATA.X[:, 0] > 0, "sand", "mud"), a=np.where(DATA.X[:, 0] > 1, np.nan, 1.0)
)
Y = pd.DataFrame(DATA.Y, columns=["trout", "[red] algae", "Äsche"])


def tiny(**changes):
    chosen = {
        "hidden": (6,),
        "latent_dim": 2,
        "n_draws": 4,
        "n_members": 2,
        "max_epochs": 2,
        "random_state": 0,
    }
    return MPVAEClassifier(**chosen | changes)


@pytest.fixture(scope="module")
def model():
    return tiny().fit(X, Y)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    model.save(folder)
    return folder


@pytest.fixture
def copied(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "model"))


def part(folder, role):
    (path,) = folder.glob(f"{role}*")
    return path


def fault(folder):
    """What load_model says of the folder, one line; nothing if it loads."""
    try:
        load_model(folder)
    except ModelFileError as error:
        text = str(error)
    else:
        return ""
    assert "\n" not in text
    assert 10 < len(text) < 600
    return text


def refused(folder, *words):
    """The folder is refused with one line that holds the words."""
    text = fault(folder)
    assert text, "the folder was read"
    for word in words:
        assert word in text, text


def rewrite(folder, description=None, tensors=None):
    """Write other content into a model folder, sizes and hashes made to fit."""
    manifest = json.loads((folder / MANIFEST).read_text())
    contents = {}
    if description is not None:
        text = description if isinstance(description, str) else json.dumps(description)
        contents["model"] = text.encode()
    if tensors is not None:
        raw = tensors if isinstance(tensors, bytes) else serialise_tensors(tensors)
        contents["weights"] = raw
    for role, content in contents.items():
        entry = manifest["files"][role]
        (folder / entry["name"]).write_bytes(content)
        entry["bytes"] = len(content)
        entry["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))


def parts(folder):
    return json.loads(part(folder, "model-").read_text()), parse_tensors(
        part(folder, "weights-").read_bytes()
    )


# --------------------------------------------------------------------------- there and back


def test_a_loaded_model_is_the_saved_one_to_the_last_bit(model, saved):
    loaded = load_model(saved)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    for metric, threshold in model.thresholds_.items():
        np.testing.assert_array_equal(loaded.thresholds_[metric], threshold)
        np.testing.assert_array_equal(loaded.predict(X, metric), model.predict(X, metric))
    assert loaded.get_params() == model.get_params()
    assert loaded.settings_ == model.settings_
    assert loaded.label_names_.tolist() == model.label_names_.tolist()
    assert loaded.feature_names_in_.tolist() == model.feature_names_in_.tolist()
    assert loaded.classes_.tolist() == model.classes_.tolist()
    assert loaded.validation_scores_ == model.validation_scores_
    assert loaded.n_epochs_ == model.n_epochs_
    pd.testing.assert_frame_equal(loaded.history_, model.history_)
    # Loadings are stored in float32: 6e-8 of their size.
    np.testing.assert_allclose(loaded.covariance_, model.covariance_, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(loaded.sigma_g_, model.sigma_g_)


@pytest.mark.parametrize(
    ("changes", "y"),
    [
        ({"n_members": 1, "validation_fraction": 0}, DATA.Y),
        ({"preset": "authors_code", "hidden": [5, 4], "z_draws": 4}, DATA.Y),
        ({"random_state": np.random.RandomState(3)}, DATA.Y),
        ({"threshold": "per_label", "patience": None, "lr": np.float32(0.01)}, DATA.Y),
        ({}, np.where(DATA.Y[:, 0] == 1, "yes", "no")),
        ({}, DATA.Y[:, 0] == 1),
        ({}, DATA.Y[:, 0] * 2.0 - 1),
        ({}, np.zeros((40, 2))),
        ({"objective": "paper"}, DATA.Y),
        ({"allow_missing_labels": True}, np.where(np.eye(40, 3), np.nan, DATA.Y)),
        ({}, DATA.Y[:, :1].repeat(2, axis=1).astype(bool)),
    ],
)
def test_every_kind_of_model_comes_back(changes, y, tmp_path):
    fitted = tiny(**changes).fit(DATA.X, y)
    fitted.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_proba(DATA.X), fitted.predict_proba(DATA.X))
    np.testing.assert_array_equal(loaded.predict(DATA.X), fitted.predict(DATA.X))
    assert loaded.predict(DATA.X).dtype == fitted.predict(DATA.X).dtype
    loaded.save(tmp_path / "again")  # a loaded model is as good as a fitted one
    again = load_model(tmp_path / "again")
    np.testing.assert_array_equal(again.predict_proba(DATA.X), fitted.predict_proba(DATA.X))


def test_a_recalibrated_model_comes_back(tmp_path):
    fitted = tiny(recalibrate=True).fit(DATA.X, DATA.Y)
    fitted.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.get_params() == fitted.get_params()
    assert loaded.recalibrate
    # Slopes and shifts were multiplied into the weights in float64; the file has float32.
    np.testing.assert_allclose(
        loaded.predict_proba(DATA.X), fitted.predict_proba(DATA.X), rtol=1e-6
    )


def test_scores_that_are_not_defined_come_back(model, tmp_path):
    model = tiny().fit(X, Y)
    model.validation_scores_["example_f1"] = np.nan
    model.save(tmp_path / "m")
    assert np.isnan(load_model(tmp_path / "m").validation_scores_["example_f1"])


def test_an_unfitted_model_cannot_be_saved(tmp_path):
    with pytest.raises(Exception, match="not fitted"):
        tiny().save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_model_is_read_without_pickle(saved, monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    load_model(saved)
    assert {path.suffix for path in saved.iterdir()} == {".json", ".safetensors"}


def test_names_of_every_kind_survive(tmp_path):
    description = {"names": ["\U0001f41f", "日本", "\0", "a\nb", '"']}
    write_model(tmp_path / "m", description, {"t": np.zeros(1)})
    assert read_model(tmp_path / "m")[0] == description


# ---------------------------------------------------------------------------------- for ever


def test_a_model_of_schema_1_is_read_for_ever():
    loaded = load_model(FIXTURES / "model_v1")
    expected = json.loads((FIXTURES / "model_v1.json").read_text())
    # Another machine adds the float64 products of a layer in another order.
    np.testing.assert_allclose(
        loaded.predict_proba(asked_rows()), expected["probabilities"], rtol=0, atol=1e-9
    )
    np.testing.assert_array_equal(loaded.predict(asked_rows()), expected["decisions"])
    np.testing.assert_allclose(loaded.correlation_, expected["correlation"], atol=1e-9)
    assert loaded.label_names_.tolist() == ["trout", "[red] algae", "Äsche"]
    assert sum(path.stat().st_size for path in (FIXTURES / "model_v1").iterdir()) < 60_000


# ------------------------------------------------------------------------------- replacement


def test_saving_again_replaces_the_model_and_leaves_nothing_else(copied, model):
    other = tiny(random_state=1).fit(X, Y)
    other.save(copied)
    assert len(list(copied.iterdir())) == 3
    np.testing.assert_array_equal(load_model(copied).predict_proba(X), other.predict_proba(X))


@pytest.mark.parametrize("survived", [0, 1, 2])
def test_a_crash_while_saving_leaves_the_old_model(copied, model, monkeypatch, survived):
    other = tiny(random_state=1).fit(X, Y)
    replace, done = Path.replace, []

    def crashing(self, target):
        if len(done) == survived:
            raise OSError(28, "No space left on device")
        done.append(target)
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crashing)
        with pytest.raises(ModelFileError, match=r"cannot write the model .*No space left"):
            other.save(copied)
    np.testing.assert_array_equal(load_model(copied).predict_proba(X), model.predict_proba(X))
    assert not list(copied.glob(".mpvae-*"))
    other.save(copied)  # what the crash left behind is cleared away
    assert len(list(copied.iterdir())) == 3


def test_a_power_cut_while_saving_leaves_the_old_model(copied, model, monkeypatch):
    class PowerCutError(BaseException):
        pass

    def cut(self, target):
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", cut)
        with pytest.raises(PowerCutError):
            tiny(random_state=1).fit(X, Y).save(copied)
    np.testing.assert_array_equal(load_model(copied).predict_proba(X), model.predict_proba(X))


OTHERS = [
    "thesis.tex",
    "model-card.json",
    "weights-mine.safetensors",
    "model-0123456789ab.json.old",
]


@pytest.mark.parametrize("name", OTHERS)
def test_a_folder_of_other_things_is_refused_and_left_alone(model, tmp_path, name):
    (tmp_path / name).write_text("years of work")
    with pytest.raises(ModelFileError, match=rf"holds other files \({name}\)"):
        model.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_beside_a_model_are_kept(copied, model, name):
    (copied / name).write_text("mine")
    model.save(copied)
    assert (copied / name).read_text() == "mine"
    load_model(copied)


def test_a_file_in_place_of_the_folder_is_refused(model, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ModelFileError, match="is a file; give a folder"):
        model.save(file)
    with pytest.raises(ModelFileError, match="cannot write the model"):
        model.save(file / "below")
    with pytest.raises(ModelFileError, match="cannot write the model"):
        model.save("nul\0byte")
    refused(file, "is not a folder")
    refused(tmp_path / "absent", "is not a folder")
    refused("nul\0byte", "is not a folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(model, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ModelFileError, match="Permission denied"):
        model.save(tmp_path / "m")
    tmp_path.chmod(0o700)


# ------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("role", ["manifest", "model-", "weights-"])
def test_a_missing_file_is_named(copied, role):
    path = part(copied, role)
    path.unlink()
    refused(copied, f"has no {path.name}", "not a complete model")


@pytest.mark.parametrize("role", ["manifest", "model-", "weights-"])
@pytest.mark.parametrize("kept", [0, 1, 100])
def test_a_cut_file_is_refused(copied, role, kept):
    path = part(copied, role)
    path.write_bytes(path.read_bytes()[:kept])
    refused(copied, path.name)


def test_a_folder_in_place_of_a_file_is_refused(copied):
    path = part(copied, "weights-")
    path.unlink()
    path.mkdir()
    refused(copied, "cannot read")


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("role", ["manifest", "model-", "weights-"])
def test_any_changed_byte_is_noticed(saved, role, data):
    path = part(saved, role)
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    flip = data.draw(st.integers(1, 255))
    changed = bytearray(content)
    changed[place] ^= flip
    path.write_bytes(changed)
    try:
        if role != "manifest":
            refused(saved, "was changed after it was written")
            return
        # White space may change, and the file still say the same.
        assert fault(saved) or json.loads(changed) == json.loads(content)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"schema": SCHEMA + 1}, "update mpvae"),
        ({"schema": 10**100}, "update mpvae"),
        ({"schema": 0}, "not the manifest"),
        ({"schema": "1"}, "not the manifest"),
        ({"schema": True}, "not the manifest"),
        ({"format": "other"}, "not the manifest"),
        ({"files": None}, "names no valid model file"),
        ({"files": []}, "names no valid model file"),
        ({"files": {"model": "x"}}, "names no valid model file"),
    ],
)
def test_a_manifest_of_something_else_is_refused(copied, change, word):
    manifest = json.loads((copied / MANIFEST).read_text())
    (copied / MANIFEST).write_text(json.dumps(manifest | change))
    refused(copied, word)


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "model-/../../x",
        "/etc/passwd",
        "model-\0",
        "model-\U0001f41f",
        "model-" + "a" * 5000,
        "model-..",
        "manifest.json",
        "",
        None,
        5,
        ["model-"],
    ],
)
def test_a_manifest_cannot_lead_out_of_its_folder(copied, name):
    manifest = json.loads((copied / MANIFEST).read_text())
    manifest["files"]["model"]["name"] = name
    (copied / MANIFEST).write_text(json.dumps(manifest))
    refused(copied, "names no valid model file")


def test_declared_sizes_are_compared_not_believed(copied):
    manifest = json.loads((copied / MANIFEST).read_text())
    for size in (10**18, -1, "4", None, [4]):
        manifest["files"]["weights"]["bytes"] = size
        (copied / MANIFEST).write_text(json.dumps(manifest))
        refused(copied, "its manifest says")


def test_a_file_beyond_the_limit_is_not_read(copied):
    with (copied / MANIFEST).open("r+b") as stream:
        stream.truncate(10**9)  # sparse: takes no room on the disk
    refused(copied, "more than the limit")


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_json_has_not_are_refused(copied, text):
    description, _ = parts(copied)
    description["thresholds"]["subset"] = "HERE"
    rewrite(copied, json.dumps(description).replace('"HERE"', text))
    refused(copied, "not valid JSON", text)


def test_names_with_half_of_a_character_are_refused(copied):
    description, _ = parts(copied)
    description["label_names"][0] = "\U0001f41f\ud800"  # a fish, and half of something
    rewrite(copied, json.dumps(description))
    refused(copied, "not valid JSON", "surrogates")


def test_a_character_written_as_a_pair_is_read(copied):
    description, _ = parts(copied)
    description["label_names"][0] = "\U0001f41f"
    text = json.dumps(description)
    assert "\\ud83d\\udc1f" in text
    rewrite(copied, text)
    assert load_model(copied).label_names_[0] == "\U0001f41f"


@pytest.mark.parametrize("text", ["", "[]", "3", "null", "{", "[" * 100_000, "\udc80", "{}"])
def test_other_json_is_refused(copied, text):
    rewrite(copied)
    manifest = json.loads((copied / MANIFEST).read_text())
    content = text.encode(errors="surrogateescape")
    entry = manifest["files"]["model"]
    (copied / entry["name"]).write_bytes(content)
    entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (copied / MANIFEST).write_text(json.dumps(manifest))
    refused(copied)


# --------------------------------------------------------------- hostile, but with right hashes


def test_weights_that_are_not_safetensors_are_refused(copied):
    for raw in (b"", b"\x80\x04N.", b"\xff" * 100, (10**17).to_bytes(8, "little") + b"{}"):
        rewrite(copied, tensors=raw)
        refused(copied, "not valid safetensors")


def _header(tensors):
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize("shape", [[2**40, 2**40], [2**62], [-1], [0, 2**60]])
def test_tensors_of_impossible_shape_are_refused(copied, shape):
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    rewrite(copied, tensors=_header({"features.mean": entry}))
    refused(copied)


TENSOR_CHANGES = {
    "gone": lambda t: None,
    "longer": lambda t: np.concatenate([t, t]),
    "deeper": lambda t: t[None].copy(),
    "scalar": lambda t: np.array(1, t.dtype),
    "complex": lambda t: t.astype(np.complex64),
    "boolean": lambda t: t.astype(bool),
    "half": lambda t: t.astype(np.float16),
    "nan": lambda t: np.full_like(t, np.nan, dtype=t.dtype if t.dtype.kind == "f" else float),
    "infinite": lambda t: np.full_like(
        t, np.inf, dtype=t.dtype if t.dtype.kind == "f" else float
    ),
    "far": lambda t: np.full_like(t, 10**9 if t.dtype.kind == "i" else np.inf),
    "negative": lambda t: np.full_like(t, -5 if t.dtype.kind == "i" else -np.inf),
}


@pytest.mark.parametrize("change", TENSOR_CHANGES)
@pytest.mark.parametrize(
    "name",
    [
        "features.numeric",
        "features.mean",
        "features.scale",
        "features.marked",
        "members.0.B",
        "members.1.output.bias",
        "members.1.code_loadings",
    ],
)
def test_changed_tensors_are_refused(copied, name, change):
    _, tensors = parts(copied)
    changed = TENSOR_CHANGES[change](tensors[name])
    if changed is None:
        del tensors[name]
    else:
        tensors[name] = changed
    rewrite(copied, tensors=tensors)
    refused(copied, "does not describe a model")


def test_a_member_too_many_or_too_few_layers_are_refused(copied):
    _, tensors = parts(copied)
    rewrite(copied, tensors=tensors | {"members.99999999.B": tensors["members.0.B"]})
    refused(copied)
    rewrite(copied, tensors=tensors | {"members.x.B": tensors["members.0.B"]})
    refused(copied)
    rewrite(copied, tensors={k: v for k, v in tensors.items() if "members" not in k})
    refused(copied)


def test_settings_that_ask_for_gigabytes_are_refused_without_taking_them(copied):
    description, _ = parts(copied)
    hostile = [
        {"hidden": [10**9, 10**9]},
        {"hidden": [10**30]},
        {"hidden": [1] * 300_000},
        {"n_factors": 10**12},
        {"latent_dim": 10**6},
        {"hidden_decoder": [2**62]},
    ]
    tracemalloc.start()
    try:
        for change in hostile:
            rewrite(copied, description | {"settings": description["settings"] | change})
            refused(copied)
        for change in ({"n_features_in": 10**8}, {"n_features_in": 10**30}):
            rewrite(copied, description | change)
            refused(copied)
        # 300,000 widths are 2 MB of JSON, parsed to some 10 MB of Python.
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("params", {"verbose": "x"}),
        ("params", {"metric": "f1"}),
        ("params", {"preset": "fastest"}),
        ("params", {"lr": -1}),
        ("params", {"unknown": 1}),
        ("params", {"objective": "f1"}),
        ("params", {"max_epochs": 10**7, "patience": None}),
        ("params", {"n_members": 5000}),
        ("params", {"n_draws": 10**7}),
        ("params", {"hidden": [20000, 20000]}),
        ("params", {"base": ["kernel"] * 17}),
        ("params", {"random_state": -1}),
        ("params", {"random_state": "x"}),
        ("rules", {"micro_f1": "joint"}),
        ("rules", {"subset": "best"}),
        ("settings", {"lr": "fast"}),
        ("settings", {"unknown": 1}),
        ("settings", {"z_draws": 10**9}),
        ("settings", {"hidden": "16"}),
        ("thresholds", {"subset": None}),
        ("thresholds", {"subset": [0.5, 0.5]}),
        ("thresholds", {"subset": "half"}),
        ("validation_scores", {"subset": "half"}),
        ("validation_scores", {"subset": []}),
        ("history", {"epoch": 5}),
        ("history", {"epoch": [1, 2, 1]}),
        ("history", {"epoch": [1, 2, 1, 10**400]}),
        ("history", {"member": [0, 0, 0, 0]}),
        ("history", {"member": [0, 0, 1, 2]}),
        ("history", {"member": ["0", "0", "1", "1"]}),
        ("history", {"is_best": [1, 0, 1, 0]}),
        ("history", {"total": ["high", 1.0, 1.0, 1.0]}),
        ("history", {"kl": [True, True, False, False]}),
        ("history", {"lr": [10**400, 1, 1, 1]}),
        ("history", {"skipped": [None, None, None, None]}),
        ("history", {"val_accuracy": [0.5, 0.5, 0.5, 0.5]}),
        ("history", {"epoch": ["a", "b"]}),
        ("levels", {"3": "sand"}),
        ("levels", {"3": [1, 2]}),
        ("levels", {"-1": ["x"]}),
        ("levels", {"7": ["x"]}),
        ("levels", {"x": ["x"]}),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(copied, key, value):
    description, _ = parts(copied)
    description[key] |= value
    rewrite(copied, description)
    refused(copied)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("label_names", "abc"),
        ("label_names", ["a", "b"]),
        ("label_names", ["a", "b", 3]),
        ("label_names", []),
        ("feature_names_in", "abcd"),
        ("feature_names_in", ["a", "b", "c"]),
        ("n_features_in", -1),
        ("n_features_in", 4.0),
        ("n_features_in", True),
        *[("row_length", value) for value in (0.0, -1.0, True, "10", 1e300, 10**400, 10.0)],
        ("multilabel", 1),
        ("multilabel", False),
        ("thresholds", []),
        ("history", {}),
        ("history", None),
        ("params", None),
        ("settings", []),
        ("levels", []),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(copied, key, value):
    description, _ = parts(copied)
    rewrite(copied, description | {key: value})
    refused(copied)


@pytest.mark.parametrize(
    "classes",
    [None, "ab", ["a"], ["a", "b", "c"], [["a"], ["b"]], [{}, {}], ["a", "a"], [1, None]],
)
def test_classes_that_make_no_sense_are_refused(classes, tmp_path):
    tiny().fit(DATA.X, np.where(DATA.Y[:, 0] == 1, "yes", "no")).save(tmp_path / "m")
    description, _ = parts(tmp_path / "m")
    rewrite(tmp_path / "m", description | {"classes": classes})
    refused(tmp_path / "m")


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def _places(value, path=()):
    """Every place in nested JSON, the whole left out."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from _places(inner, (*path, key))


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_edit_of_the_json_is_refused_or_leaves_a_model_that_works(saved, data):
    path = part(saved, "model-")
    content, manifest = path.read_bytes(), (saved / MANIFEST).read_bytes()
    description = json.loads(content)
    *way, last = data.draw(st.sampled_from(list(_places(description))))
    inner = description
    for key in way:
        inner = inner[key]
    if data.draw(st.booleans()):
        del inner[last]
    else:
        inner[last] = data.draw(JSON_VALUES)
    rewrite(saved, description)
    try:
        if not fault(saved):
            loaded = load_model(saved)
            names = getattr(loaded, "feature_names_in_", X.columns)
            with warnings.catch_warnings():  # the names may be what was edited away
                warnings.filterwarnings("ignore", "X has feature names")
                loaded.predict(X.iloc[:2].set_axis(names, axis=1))
    finally:
        path.write_bytes(content)
        (saved / MANIFEST).write_bytes(manifest)


def test_a_model_of_ranks_comes_back_and_its_quantiles_are_checked(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 2)) ** 3
    Y = (X > 0).astype(int)
    fitted = tiny(quantiles=True).fit(X, Y)
    fitted.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    description, tensors = parts(tmp_path / "model")
    knots = tensors["features.knots"]
    for wrong in (knots[:, ::-1].copy(), knots[:, :5].copy(), knots.astype(np.float32)):
        rewrite(tmp_path / "model", description, tensors | {"features.knots": wrong})
        refused(tmp_path / "model")


def test_a_model_of_sparse_rows_comes_back_and_its_row_length_is_checked(tmp_path):
    X = sp.csr_array((np.random.default_rng(0).random((40, 5)) < 0.4).astype(float))
    Y = (X.toarray()[:, :2] > 0).astype(int)
    fitted = tiny().fit(X, Y)
    fitted.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    description, _ = parts(tmp_path / "model")
    for value in (0.0, True, 10**400):
        rewrite(tmp_path / "model", description | {"row_length": value})
        refused(tmp_path / "model")


def test_a_link_that_leads_out_of_the_folder_is_refused(copied, tmp_path):
    weights = part(copied, "weights")
    weights.rename(tmp_path / "elsewhere")
    weights.symlink_to(tmp_path / "elsewhere")
    refused(copied, "is a link that leads out of its folder")


@pytest.mark.parametrize("role", ["manifest", "model-", "weights-"])
def test_a_link_to_itself_is_refused(copied, role):
    file = part(copied, role)
    file.unlink()
    file.symlink_to(file.name)
    refused(copied, "cannot read", file.name)


@pytest.mark.parametrize("column", ["member", "epoch", "total", "val_log_loss", "is_best"])
def test_a_history_of_more_columns_or_fewer_is_refused(copied, column):
    description, _ = parts(copied)
    whole = description["history"]
    without = {name: values for name, values in whole.items() if name != column}
    rewrite(copied, description | {"history": without})
    refused(copied, f"the history lacks '{column}'")
    rewrite(copied, description | {"history": whole | {f"{column}2": whole[column]}})
    refused(copied, f"the history has '{column}2'")
    rewrite(copied, description | {"history": {column: [1]}})
    refused(copied, "the history lacks")


@pytest.mark.parametrize(
    "changes", [{"device": "meta"}, {"device": 3}, {"n_jobs": 10**9}, {"n_jobs": "all"}]
)
def test_what_is_of_the_machine_is_not_taken_from_a_file(copied, changes):
    description, _ = parts(copied)
    description["params"] |= changes
    rewrite(copied, description)
    loaded = load_model(copied)
    assert (loaded.device, loaded.n_jobs) == ("auto", None)


def test_parameters_changed_after_fit_do_not_lose_the_model(model, tmp_path):
    changed = copy.copy(model).set_params(hidden=(7,), kernel_features=5)
    changed.save(tmp_path / "m")
    again = load_model(tmp_path / "m")
    assert again.hidden == (7,)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("value", [1e39, -1e300, np.inf, np.nan])
def test_weights_beyond_those_of_a_training_are_refused(copied, value):
    description, tensors = parts(copied)
    tensors["members.0.B"] = np.full(tensors["members.0.B"].shape, value)
    rewrite(copied, description, tensors)
    refused(copied, "weights are not finite numbers")


def test_a_link_inside_the_folder_is_followed(copied, model):
    weights = part(copied, "weights")
    weights.rename(weights.with_name("blob"))
    weights.symlink_to("blob")
    assert load_model(copied).n_features_in_ == model.n_features_in_


def test_json_with_a_name_twice_is_refused(copied):
    manifest = copied / MANIFEST
    manifest.write_text(manifest.read_text().replace("{", '{"schema": 1,', 1))
    refused(copied, "a name stands twice in one object")


def test_a_file_longer_than_its_manifest_says_is_not_read(tmp_path, monkeypatch):
    write_model(tmp_path / "m", {"a": 1}, {"w": np.zeros(3)})
    (weights,) = (tmp_path / "m").glob("weights-*")
    with weights.open("r+b") as stream:
        stream.truncate(2**40)  # sparse: takes no disk
    monkeypatch.setattr("mpvae.model_file.MAX_TENSOR_BYTES", 2**41)
    with pytest.raises(ModelFileError, match="its manifest says"):
        read_model(tmp_path / "m")
