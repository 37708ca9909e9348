"""An exported model answers as the classifier does, for every kind of model."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.special import ndtr, ndtri
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from typer.testing import CliRunner

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from mpvae import ConfigError, ModelFileError, MPVAEClassifier, load_model
from mpvae.cli import app
from mpvae.config import Metric
from mpvae.data import simulate_probit
from mpvae.export import metadata_of, save_onnx, shapes_of, to_onnx
from mpvae.export.maths import DOMAIN, functions, opsets

DATA = simulate_probit(120, n_features=4, n_labels=3, n_factors=1, seed=0)
X, Y = DATA.X, DATA.Y
SMALL = {
    "hidden": (8, 6),
    "latent_dim": 2,
    "n_draws": 4,
    "n_members": 2,
    "max_epochs": 3,
    "random_state": 0,
}
# Measured: 2e-7 at most. Outputs are float32, and so are the sums over trees.
PARITY = 1e-5


def with_gaps(X):
    X = X.copy()
    X[::5, 1] = np.nan
    X[1::7, 3] = np.nan
    return X


def frame(X):
    """Numbers, one of them of few values, and two text columns, one in the middle."""
    table = pd.DataFrame(with_gaps(X), columns=["depth", "acidity", "light", "slope"])
    table["light"] = table["light"].round()
    table.insert(1, "ground", np.where(X[:, 0] > 0.3, "sand", np.where(X[:, 2] > 0, "mud", "")))
    table["[red] soil"] = pd.Categorical(np.where(X[:, 1] > 0, "1.0", "Äsche"))
    return table


def counts(X):
    return sp.csr_array(np.where(np.abs(X) > 0.5, np.round(np.abs(X) * 3), 0.0))


def labels_with_gaps():
    some = Y.astype(float)
    some[::3, 0], some[1::4, 2] = np.nan, np.nan
    return some


def fitted(X=X, Y=Y, **settings):
    return MPVAEClassifier(**SMALL | settings).fit(X, Y)


KINDS = {
    "networks alone": lambda: (fitted(base=None), None),
    "kernel": lambda: (fitted(base="kernel"), None),
    "forest": lambda: (fitted(base="forest"), None),
    "boosting": lambda: (fitted(base="boosting"), None),
    "default base": lambda: (fitted(), None),
    "missing values": lambda: (fitted(with_gaps(X)), with_gaps),
    "categories": lambda: (fitted(frame(X), base="forest"), frame),
    "sparse": lambda: (fitted(counts(X)), lambda X: counts(X).toarray()),
    "kernel features": lambda: (fitted(base="kernel", kernel_features=20), None),
    "kernel features alone": lambda: (fitted(base=None, kernel_features=20), None),
    "codes averaged": lambda: (fitted(base="kernel", z_draws=3), None),
    "standardised": lambda: (fitted(base="forest", quantiles=False), None),
    "missing labels": lambda: (
        fitted(Y=labels_with_gaps(), allow_missing_labels=True, base=["forest", "boosting"]),
        None,
    ),
    "recalibrated": lambda: (fitted(base="forest", recalibrate=True), None),
    "one binary label": lambda: (fitted(Y=np.where(Y[:, 0] > 0, "yes", "no")), None),
    "preset paper": lambda: (fitted(preset="paper"), None),
    "preset authors_code": lambda: (fitted(preset="authors_code"), None),
    "preset fast": lambda: (fitted(preset="fast"), None),
    "one member": lambda: (fitted(base=None, n_members=1), None),
    "no factors": lambda: (fitted(base=None, n_factors=0), None),
    "constant features": lambda: (fitted(np.ones_like(X), base=["forest", "kernel"]), None),
}
KINDS["boosting of one leaf"] = lambda: (fitted(np.ones_like(X), base="boosting"), None)


@pytest.fixture(scope="module")
def made():
    """Model, session and function that makes its kind of table, by name; made once."""
    known = {}

    def make(kind):
        if kind not in known:
            model, table = KINDS[kind]()
            content = to_onnx(model)
            known[kind] = (
                model,
                content,
                ort.InferenceSession(content),
                table or (lambda X: X),
            )
        return known[kind]

    return make


def inputs(model, table):
    """What the session is given for a table."""
    if not isinstance(table, pd.DataFrame):
        return {"X": np.asarray(table, np.float64)}
    levels = model.features_.levels
    given = {"X": table.iloc[:, model.features_.numeric].to_numpy(np.float64)}
    for i in levels:
        words = table.iloc[:, i].astype(object)
        given[f"X.{table.columns[i]}"] = words.to_numpy()[:, None]
    return given


def expected(model, table):
    p = model.predict_proba(table)
    return p if model.multilabel_ else p[:, 1:]


def rows_like_training(n):
    """New rows, rows of training, and rows far away."""
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(n, 4)) * rng.choice([1.0, 1.0, 3.0], (n, 1))
    rows[: min(n, 50)] = X[: min(n, 50)]
    if n > 100:
        rows[60:64] = [[1e6, 0, 0, 0], [0, -1e12, 0, 1e3], [1e300, -1e300, 0, 0], [-40] * 4]
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_and_labels_are_those_of_the_classifier(made, kind):
    model, content, session, table = made(kind)
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    for n in (1, 7, 1000):
        asked = table(rows_like_training(n))
        p, labels = session.run(["probabilities", "labels"], inputs(model, asked))
        assert (p.dtype, labels.dtype) == (np.float32, np.int64)
        assert p.shape == labels.shape == (n, len(model.label_names_))
        np.testing.assert_allclose(p, expected(model, asked), rtol=0, atol=PARITY)
        assert ((p > 0) & (p < 1)).all()
        decided = model.predict(asked, rule="threshold")
        if not model.multilabel_:
            decided = (decided == model.classes_[1])[:, None]
        near = np.abs(expected(model, asked) - np.asarray(cut_of(model))) < 1e-6
        assert (labels == decided)[~near].all()
        assert near.mean() < 0.01


def cut_of(model):
    return model.thresholds_[model.metric] if model.multilabel_ else 0.5


@pytest.mark.parametrize("kind", ["default base", "categories", "codes averaged"])
def test_an_answer_depends_on_its_row_alone(made, kind):
    model, _, session, table = made(kind)
    given = inputs(model, table(rows_like_training(40)))
    order = np.random.default_rng(3).permutation(40)
    straight, shuffled = (
        session.run(["probabilities"], {name: values[rows] for name, values in given.items()})[
            0
        ]
        for rows in (np.arange(40), order)
    )
    # The kernel of one row is summed alike in any batch; trees of one row may be summed in
    # another order, which moves a float32 sum of 200 by some 1e-7 of it.
    np.testing.assert_allclose(shuffled, straight[order], rtol=0, atol=1e-6)


def test_text_that_is_no_level_counts_as_missing(made):
    model, _, session, table = made("categories")
    asked = table(rows_like_training(5))
    asked["ground"] = ["sand", "glacier", None, "", "mud"]
    asked["[red] soil"] = ["1.0", "x", "1", "Äsche", None]
    given = inputs(model, asked)
    for name in ("X.ground", "X.[red] soil"):
        given[name] = np.where(pd.isna(given[name]), "not known", given[name]).astype(object)
    p = session.run(["probabilities"], given)[0]
    np.testing.assert_allclose(p, model.predict_proba(asked), rtol=0, atol=PARITY)


def test_values_on_the_quantiles_have_the_middle_of_their_shares():
    tied = np.column_stack([np.repeat(np.arange(30.0), 4), X[:, 0]])
    model = fitted(tied, base=None)
    assert np.isfinite(model.features_.knots).all()
    between = np.column_stack([np.arange(-1, 31, 0.25), np.resize(X[:, 0], 128)])
    session = ort.InferenceSession(to_onnx(model))
    for rows in (tied, between):
        p = session.run(["probabilities"], {"X": rows})[0]
        np.testing.assert_allclose(p, model.predict_proba(rows), rtol=0, atol=1e-7)


@pytest.mark.parametrize("unit", [1e-320, 1e-310, 1e-308])
def test_quantiles_too_close_to_divide_by(unit):
    tiny, between = (rows * [1, unit, 1, 1] for rows in (X, X[::-1] * 0.99))
    model = fitted(tiny, base=None)
    session = ort.InferenceSession(to_onnx(model))
    for rows in (tiny, between):
        p = session.run(["probabilities"], {"X": rows})[0]
        np.testing.assert_allclose(p, model.predict_proba(rows), rtol=0, atol=PARITY)


@pytest.mark.parametrize("unit", [1e-310, 1e-308])
def test_sparse_columns_too_small_to_divide_by(unit):
    rows = counts(X) * unit
    model = fitted(rows, base=None)
    p = ort.InferenceSession(to_onnx(model)).run(["probabilities"], {"X": rows.toarray()})[0]
    np.testing.assert_allclose(p, model.predict_proba(rows), rtol=0, atol=PARITY)


@pytest.mark.parametrize("metric", Metric.__args__)
def test_labels_are_decided_by_the_thresholds_of_the_metric(made, metric):
    model, *_ = made("kernel")
    content = to_onnx(model, metric=metric)
    labels = ort.InferenceSession(content).run(["labels"], {"X": X})[0]
    np.testing.assert_array_equal(labels, model.predict(X, metric, rule="threshold"))
    assert metadata_of(content)["metric"] == metric


def test_a_file_knows_its_model(tmp_path):
    model = fitted(frame(X), pd.DataFrame(Y, columns=["trout", "[red] algae", "Äsche"]))
    model.save(tmp_path / "model")
    content = to_onnx(load_model(tmp_path / "model"))
    assert content == to_onnx(model)
    session = ort.InferenceSession(content)
    told = json.loads(session.get_modelmeta().custom_metadata_map["mpvae"])
    assert told == metadata_of(content)
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert told["weights_sha256"] == manifest["files"]["weights"]["sha256"]
    assert told["label_names"] == ["trout", "[red] algae", "Äsche"]
    assert told["feature_names"] == list(frame(X).columns)
    assert told["inputs"]["X"] == ["depth", "acidity", "light", "slope"]
    assert told["inputs"]["X.ground"] == ["", "mud", "sand"]
    np.testing.assert_array_equal(told["thresholds"]["micro_f1"], model.thresholds_["micro_f1"])
    assert shapes_of(content) == (
        {
            "X": "double (rows, 4)",
            "X.ground": "string (rows, 1)",
            "X.[red] soil": "string (rows, 1)",
        },
        {"probabilities": "float (rows, 3)", "labels": "int64 (rows, 3)"},
    )


def test_a_table_of_text_alone_has_no_numbers_among_the_inputs():
    table = frame(X)[["ground", "[red] soil"]]
    model = fitted(table, base=None)
    given = {k: v for k, v in inputs(model, table).items() if k != "X"}
    p = ort.InferenceSession(to_onnx(model)).run(["probabilities"], given)[0]
    np.testing.assert_allclose(p, model.predict_proba(table), rtol=0, atol=PARITY)


def test_functions_are_accurate_far_into_the_tails():
    """Against SciPy: the cdf relative to its size, the probit in standard deviations."""
    t = np.concatenate([np.linspace(-37, 37, 20001), [0.0, -1e-300, 1e-9]])
    p = 10.0 ** np.linspace(-300, np.log10(0.5), 20001)
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("NormalCdf", ["t"], ["cdf"], domain=DOMAIN),
            onnx.helper.make_node("TailProbit", ["a"], ["distance"], domain=DOMAIN),
        ],
        "functions",
        [value(name, onnx.TensorProto.DOUBLE, [None]) for name in ("t", "a")],
        [value(name, onnx.TensorProto.DOUBLE, [None]) for name in ("cdf", "distance")],
    )
    model = onnx.helper.make_model(
        graph, functions=functions(), opset_imports=opsets("", DOMAIN), ir_version=9
    )
    session = ort.InferenceSession(model.SerializeToString())
    cdf, distance = session.run(None, {"t": t, "a": -np.log(p)})
    # exp(-t^2 / 2) carries the rounding of its argument: 684 x 1e-16 at the farthest.
    np.testing.assert_allclose(cdf, ndtr(t), rtol=3e-13, atol=0)
    np.testing.assert_allclose(-distance, ndtri(p), rtol=0, atol=2e-12)


def test_a_classifier_of_your_own_cannot_be_exported(tmp_path):
    own = MultiOutputClassifier(LogisticRegression())
    file = tmp_path / "model.onnx"
    file.write_bytes(b"the one before")
    with pytest.raises(ModelFileError, match=r"MultiOutputClassifier.*cannot be exported.*use"):
        save_onnx(fitted(base=own), file)
    assert file.read_bytes() == b"the one before"
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_no_metric_or_no_file_name_is_refused(made, tmp_path):
    model, *_ = made("kernel")
    with pytest.raises(ConfigError, match=r"metric must be one of .*got 'f7'"):
        to_onnx(model, metric="f7")
    with pytest.raises(ConfigError, match=r"unknown suffix; an ONNX file ends in \.onnx"):
        save_onnx(model, tmp_path / "model.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "model"
    fitted(frame(X), base="kernel").save(folder)
    return folder


def run(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_the_command_writes_a_file_and_says_what_goes_in_and_out(folder, tmp_path):
    file = tmp_path / "new" / "model.onnx"
    done = run("export", folder, "--onnx", file)
    assert done.exit_code == 0, done.output
    assert " MB -> " in done.stdout
    assert "takes X double (rows, 4), X.ground string (rows, 1)" in done.stdout
    assert "gives probabilities float (rows, 3), labels int64 (rows, 3)" in done.stdout
    assert file.read_bytes() == to_onnx(load_model(folder))
    told = json.loads(run("export", folder, "--onnx", file, "--json").stdout)
    assert told["bytes"] == file.stat().st_size
    assert [path.name for path in file.parent.iterdir()] == ["model.onnx"]


def test_the_command_refuses_another_suffix_before_it_reads(tmp_path):
    done = run("export", tmp_path / "nothing", "--onnx", tmp_path / "model.pb")
    assert done.exit_code == 2
    assert "unknown suffix; an ONNX file ends in .onnx" in done.stderr
    assert list(tmp_path.iterdir()) == []
