"""A fitted classifier as one ONNX graph: raw features in, probabilities and decisions out."""

import hashlib
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
from onnx import ModelProto, TensorProto, helper, load_from_string
from safetensors.numpy import save as serialise_tensors
from sklearn.utils.validation import check_is_fitted

from mpvae.config import Metric
from mpvae.errors import ConfigError, ModelFileError
from mpvae.estimator import MPVAEClassifier
from mpvae.evidence import KINDS, source_names
from mpvae.export.features import NUMBERS, add_features, inputs_of
from mpvae.export.graph import Graph
from mpvae.export.maths import OPSETS, functions, opsets
from mpvae.export.networks import add_networks
from mpvae.export.sources import add_evidence, add_kernel_features
from mpvae.saved import to_file
from mpvae.version import __version__
from mpvae.writing import replacing

METADATA = "mpvae"
"""Key of the file's metadata under which names, thresholds and versions stand, as JSON."""
_IR_VERSION = 9  # of opset 19: onnxruntime 1.16 and later
_MOST_BYTES = 2**31 - 1  # of a Protocol Buffers message


def to_onnx(model: MPVAEClassifier, *, metric: Metric | None = None) -> bytes:
    """Content of an ONNX file that predicts as the fitted ``model`` does.

    Inputs: ``X``, the numeric columns (float64, NaN where a value is missing), and for every
    text column NAME an input ``X.NAME`` of one column. Outputs: ``probabilities`` (float32)
    and ``labels`` (int64), both of shape (N, L).

    Parameters
    ----------
    model : MPVAEClassifier
        Fitted; a base classifier of your own cannot be exported.
    metric : Metric, optional
        Whose thresholds decide about the labels; default: the model's `metric`. Decisions by
        the joint distribution (`rules_`) are not in the graph, thresholds take their place.

    Returns
    -------
    bytes
    """
    check_is_fitted(model)
    metric = metric or model.metric
    if metric not in get_args(Metric):
        allowed = ", ".join(get_args(Metric))
        raise ConfigError(f"metric must be one of {allowed}, got {metric!r}")
    own = [
        name
        for name, source in zip(source_names(model.evidence_), model.evidence_, strict=True)
        if type(source) not in KINDS.values()
    ]
    if own:
        raise ModelFileError(
            f"a model with a base classifier of your own ({own[0]}) cannot be exported: only "
            "it knows what it computes; use base='kernel', 'forest', 'boosting' or 'auto'"
        )
    proto = _model(model, metric)
    if proto.ByteSize() > _MOST_BYTES:
        raise ModelFileError(
            f"the graph has {proto.ByteSize() / 2**30:.1f} GB, an ONNX file at most 2; fit "
            "with base='kernel' or base=None, or fewer members"
        )
    content: bytes = proto.SerializeToString(deterministic=True)
    return content


def save_onnx(model: MPVAEClassifier, file: str | Path, *, metric: Metric | None = None) -> int:
    """Write the ONNX file of a fitted model, whole or not at all; return its bytes.

    Parameters
    ----------
    model, metric
        As in `to_onnx`.
    file : path
        Ends in ``.onnx``.
    """
    file = Path(file)
    check_onnx_suffix(file)
    content = to_onnx(model, metric=metric)
    with replacing(file) as partial:
        partial.write_bytes(content)
    return len(content)


def check_onnx_suffix(file: Path) -> None:
    """Refuse a file that does not look like ONNX by its name."""
    if file.suffix != ".onnx":
        raise ConfigError(f"{file}: unknown suffix; an ONNX file ends in .onnx")


def metadata_of(content: bytes | ModelProto) -> dict[str, Any]:
    """What an exported file tells of its model: names, thresholds, metric, versions, hash."""
    proto = content if isinstance(content, ModelProto) else load_from_string(content)
    found = {entry.key: entry.value for entry in proto.metadata_props}
    told: dict[str, Any] = json.loads(found[METADATA])
    return told


def shapes_of(content: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """Inputs and outputs of an ONNX file by name: what they hold and their shape, as text."""
    graph = load_from_string(content).graph
    takes, gives = (
        {value.name: _shape(value.type.tensor_type) for value in side}
        for side in (graph.input, graph.output)
    )
    return takes, gives


def _shape(kind: Any) -> str:
    sizes = ", ".join(size.dim_param or str(size.dim_value) for size in kind.shape.dim)
    return f"{TensorProto.DataType.Name(kind.elem_type).lower()} ({sizes})"


def _model(model: MPVAEClassifier, metric: Metric) -> ModelProto:
    features, names = model.features_, _feature_names(model)
    graph = Graph()
    x = add_features(graph, features, names)
    evidence = add_evidence(graph, model.evidence_, x) if model.evidence_ else None
    wide = x.float64
    if model.kernel_features_ is not None:
        columns = add_kernel_features(graph, model.kernel_features_, x)
        wide = graph.add("Concat", x.float64, columns, name="features/with_kernel", axis=1)
    p = add_networks(graph, model.networks_, wide, evidence, model.settings_.z_draws)
    _add_outputs(graph, model, metric, p)
    L = len(model.label_names_)
    outputs = [
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", L]),
        helper.make_tensor_value_info("labels", TensorProto.INT64, ["rows", L]),
    ]
    proto = helper.make_model(
        graph.finished("mpvae", inputs_of(features, names), outputs),
        functions=functions(),
        opset_imports=opsets(*OPSETS),
        ir_version=_IR_VERSION,
        producer_name="mpvae",
        producer_version=__version__,
        doc_string=f"Probabilities of {L} labels, and decisions for {metric}.",
    )
    helper.set_model_props(proto, {METADATA: json.dumps(_told(model, metric, names))})
    return proto


def _add_outputs(graph: Graph, model: MPVAEClassifier, metric: Metric, p: str) -> None:
    """Probabilities off 0 and 1, as the classifier has them, and 0/1 by thresholds."""
    least, most = np.finfo(np.float32).tiny, 1 - np.finfo(np.float32).epsneg
    short = graph.add("Cast", p, name="probabilities/float32", to=TensorProto.FLOAT)
    low = graph.constant("probabilities/least", least, np.float32)
    high = graph.constant("probabilities/most", most, np.float32)
    graph.add("Clip", short, low, high, name="probabilities")
    if model.multilabel_:
        cut = graph.constant("labels/thresholds", model.thresholds_[metric])
        taken = graph.add("GreaterOrEqual", p, cut, name="labels/taken")
    else:
        cut = graph.constant("labels/threshold", 0.5)
        taken = graph.add("Greater", p, cut, name="labels/taken")
    graph.add("Cast", taken, name="labels", to=TensorProto.INT64)


def _told(model: MPVAEClassifier, metric: Metric, names: list[str]) -> dict[str, Any]:
    """What the file says about itself."""
    description, tensors = to_file(model)
    return {
        "mpvae_version": __version__,
        "weights_sha256": hashlib.sha256(serialise_tensors(tensors)).hexdigest(),
        "label_names": list(map(str, model.label_names_)),
        "classes": description["classes"],  # of one binary label: absent, present
        "feature_names": names,
        "inputs": {NUMBERS: [names[i] for i in model.features_.numeric]}
        | {f"{NUMBERS}.{names[i]}": list(v) for i, v in model.features_.levels.items()},
        "metric": metric,
        "thresholds": description["thresholds"],
        "rules": model.rules_,
    }


def _feature_names(model: MPVAEClassifier) -> list[str]:
    named = getattr(model, "feature_names_in_", range(model.n_features_in_))
    return list(map(str, named))
