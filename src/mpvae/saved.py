"""Which parts of a fitted classifier go into its file, and back."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeGuard, TypeVar, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from mpvae.answers import JointMetric
from mpvae.checks import check_parameters
from mpvae.config import DataShape, Metric, Settings, setting_docs
from mpvae.conformal import Calibration
from mpvae.errors import ConfigError, ModelFileError
from mpvae.evidence import KINDS, source_names
from mpvae.features import N_KNOTS, FeatureMap
from mpvae.kernel_features import KernelFeatures
from mpvae.losses import LossTerms
from mpvae.model_file import Tensors, told
from mpvae.networks import MPVAE
from mpvae.presets import resolve
from mpvae.version import __version__

Model = TypeVar("Model")

_NEWER_SETTINGS = {
    "label_branch": True,
    "hide_labels": 0.0,
    "kernel_features": 0,
    "quantiles": False,
    "dropout_inputs": 0.0,
    "dropout_decoder": 0.0,
}  # what a file without them was trained with

_OF_THE_MACHINE = {"device": "auto", "n_jobs": None}
"""Parameters that a file neither holds nor decides: whoever loads it has another machine."""


def to_file(model: Any) -> tuple[dict[str, Any], Tensors]:
    """Description (JSON values) and tensors of a fitted classifier."""
    features: FeatureMap = model.features_
    if any(type(source) not in KINDS.values() for source in model.evidence_):
        raise ModelFileError(
            "a model with a base classifier of your own cannot be saved, since it would have "
            "to be pickled; use base='kernel', 'forest', 'boosting' or 'auto'"
        )
    params = {k: _plain(v) for k, v in model.get_params(deep=False).items()}
    params["random_state"] = (
        params["random_state"] if _is_integer(params["random_state"]) else None
    )
    params |= _OF_THE_MACHINE
    description = {
        "version": __version__,
        "params": params,
        "settings": {k: _plain(v) for k, v in asdict(model.settings_).items()},
        "n_features_in": model.n_features_in_,
        "feature_names_in": _plain(getattr(model, "feature_names_in_", None)),
        "levels": {str(k): list(v) for k, v in features.levels.items()},
        "row_length": features.row_length,
        "evidence": source_names(model.evidence_),
        "label_names": _plain(model.label_names_),
        "multilabel": model.multilabel_,
        "classes": None if model.multilabel_ else _plain(model.classes_),
        "classes_dtype": None if model.multilabel_ else model.classes_.dtype.kind,
        "thresholds": {k: _plain(v) for k, v in model.thresholds_.items()},
        "rules": model.rules_,
        "members_by_fold": model.members_by_fold_,
        "validation_scores": {k: _plain(v) for k, v in model.validation_scores_.items()},
        "history": {
            name: [_plain(v) for v in model.history_[name]] for name in model.history_.columns
        },
    }
    tensors: Tensors = {
        "features.numeric": features.numeric.astype(np.int64),
        "features.mean": features.mean,
        "features.scale": features.scale,
        "features.marked": features.marked.astype(np.int64),
    }
    if features.knots is not None:
        tensors["features.knots"] = features.knots
    if model.kernel_features_ is not None:
        for name, array in model.kernel_features_.arrays().items():
            tensors[f"kernel_features.{name}"] = array
    for i, source in enumerate(model.evidence_):
        for name, array in source.arrays().items():
            tensors[f"evidence.{i}.{name}"] = np.ascontiguousarray(array)
    for i, (network, loadings) in enumerate(
        zip(model.networks_, model.code_loadings_, strict=True)
    ):
        for name, value in network.state_dict().items():
            tensors[f"members.{i}.{name}"] = _as_short_as_exact(value.cpu().numpy())
        tensors[f"members.{i}.code_loadings"] = np.ascontiguousarray(loadings, np.float32)
        by_features = np.ascontiguousarray(model.feature_loadings_[i], np.float32)
        tensors[f"members.{i}.feature_loadings"] = by_features
    if model.calibration_ is not None:
        for name, array in model.calibration_.arrays().items():
            tensors[f"calibration.{name}"] = array
    return description, tensors


def from_file(
    kind: type[Model], folder: str | Path, description: dict[str, Any], tensors: Tensors
) -> Model:
    """Fitted classifier from what `to_file` gave, everything checked for sense."""
    try:
        return _restore(kind, description, tensors)
    except ConfigError as error:
        raise ModelFileError(f"{folder} holds an invalid setting: {told(error)}") from error
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
        ArithmeticError,
    ) as error:
        raise ModelFileError(
            f"{folder} does not describe a model ({type(error).__name__}: {told(error)}); "
            "was it edited? save the model again"
        ) from error


def _restore(kind: type[Model], text: dict[str, Any], tensors: Tensors) -> Model:
    model: Any = kind(**(_tuples(text["params"]) | _OF_THE_MACHINE))
    model.settings_ = Settings(**(_NEWER_SETTINGS | _tuples(text["settings"])))
    model.n_features_in_ = _count(text["n_features_in"], "n_features_in")
    if text["feature_names_in"] is not None:
        model.feature_names_in_ = _names(text["feature_names_in"], model.n_features_in_)
    model.features_ = FeatureMap(
        tensors["features.numeric"],
        tensors["features.mean"],
        tensors["features.scale"],
        tensors["features.marked"],
        {int(k): tuple(_names(v, len(v))) for k, v in text["levels"].items()},
        text.get("row_length"),  # models of before had none
        tensors.get("features.knots"),
    )
    _check_features(model.features_, model.n_features_in_)
    model.label_names_ = _names(text["label_names"], len(text["label_names"]))
    n_labels = len(model.label_names_)
    _check_params(model, n_labels)
    model.evidence_ = _evidence(text.get("evidence", []), model, tensors)
    model.kernel_features_ = _kernel_features(model, tensors)
    model.multilabel_ = text["multilabel"]
    if not isinstance(model.multilabel_, bool) or (not model.multilabel_ and n_labels != 1):
        raise ValueError("multilabel does not fit the labels")
    model.classes_ = np.arange(n_labels)
    if not model.multilabel_:
        model.classes_ = _classes(text["classes"], text["classes_dtype"])
    model.thresholds_ = {
        metric: _threshold(text["thresholds"][metric], n_labels) for metric in get_args(Metric)
    }
    model.validation_scores_ = {
        k: np.nan if v is None else float(v) for k, v in text["validation_scores"].items()
    }
    model.rules_ = text.get("rules", {})  # models of before had thresholds alone
    if not isinstance(model.rules_, dict) or not all(
        metric in get_args(JointMetric) and rule in ("joint", "threshold")
        for metric, rule in model.rules_.items()
    ):
        raise ValueError("rules are not those of a metric")
    model.members_by_fold_ = text.get("members_by_fold", True)
    if not isinstance(model.members_by_fold_, bool):
        raise ValueError("members_by_fold is not true or false")
    model.calibration_ = _calibration(tensors, n_labels)
    model.history_ = _history(text["history"])
    model.n_epochs_ = int(model.history_["epoch"].max())
    model.networks_, model.code_loadings_, model.feature_loadings_ = [], [], []
    n_members = _count(max(int(n.split(".")[1]) for n in tensors if n[:8] == "members.") + 1)
    for i in range(n_members):
        network, loadings, by_features = _network(i, model, tensors)
        model.networks_.append(network)
        model.code_loadings_.append(loadings)
        model.feature_loadings_.append(by_features)
    if set(model.history_["member"]) != set(range(n_members)):
        raise ValueError(f"the history is not that of {n_members} networks")
    return model  # type: ignore[no-any-return]


def _evidence(kinds: Any, model: Any, tensors: Tensors) -> list[Any]:
    """Sources of evidence; models of before had none."""
    if not isinstance(kinds, list) or not all(kind in KINDS for kind in kinds):
        raise ValueError("evidence is not of a known kind")
    sources = []
    for i, kind in enumerate(kinds):
        own = _own(f"evidence.{i}.", tensors)
        n_features, n_labels = model.features_.n_outputs, len(model.label_names_)
        sources.append(KINDS[kind].from_arrays(own, n_features, n_labels))
    return sources


def _history(columns: Any) -> pd.DataFrame:
    """History of the training: the columns that a training writes, each of its type."""
    if not isinstance(columns, dict):
        raise ValueError("the history is not a table")
    scores = {"val_log_loss", *(f"val_{metric}" for metric in get_args(Metric))}
    numbers = {"lr", *LossTerms._fields, "val_log_loss"}
    needed = {"member", "epoch", "is_best", *numbers}
    lacking = sorted(needed - set(columns))
    strange = sorted(set(columns) - needed - scores - {"skipped"})  # once it was not counted
    if lacking or strange:
        what = f"lacks {lacking[0]!r}" if lacking else f"has {strange[0]!r}"
        raise ValueError(f"the history {what}, unlike that of a training")
    for name, values in columns.items():
        fits = _is_number_or_none
        if name in ("member", "epoch", "skipped"):
            fits = _is_small_count
        elif name == "is_best":
            fits = _is_bool
        if not isinstance(values, list) or not values or not all(map(fits, values)):
            raise ValueError(f"{name!r} of the history does not hold what a training writes")
    if len({len(values) for values in columns.values()}) != 1:
        raise ValueError("the columns of the history differ in length")
    return pd.DataFrame(columns)


def _kernel_features(model: Any, tensors: Tensors) -> KernelFeatures | None:
    arrays = _own("kernel_features.", tensors)
    if not arrays:
        return None
    return KernelFeatures.from_arrays(arrays, model.features_.n_outputs)


def _as_short_as_exact(values: NDArray[Any]) -> NDArray[Any]:
    """In float32, as networks are trained; what was multiplied since may need float64."""
    short = values.astype(np.float32)
    return short if np.array_equal(short, values) else values


def _own(prefix: str, tensors: Tensors) -> Tensors:
    """Tensors whose names begin like this, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _calibration(tensors: Tensors, n_labels: int) -> Calibration | None:
    arrays = _own("calibration.", tensors)
    if not arrays:
        return None
    calibration = Calibration.from_arrays(arrays)
    if calibration.n_labels != n_labels:
        raise ValueError("the calibration does not fit the labels")
    return calibration


def _network(i: int, model: Any, tensors: Tensors) -> tuple[MPVAE, Any, Any]:
    prefix = f"members.{i}."
    own = _own(prefix, tensors)
    floats = (np.float32, np.float64)
    most = np.finfo(np.float32).max  # of what a network is trained in; squares are finite
    if not all(v.dtype in floats and (np.abs(v) <= most).all() for v in own.values()):
        raise ValueError("weights are not finite numbers")
    n_labels = len(model.label_names_)
    loadings = own.pop("code_loadings").astype(np.float64)
    none = np.zeros((n_labels, 0), np.float32)  # models of before: nothing known of features
    by_features = own.pop("feature_loadings", none).astype(np.float64)
    for matrix in (loadings, by_features):
        if matrix.ndim != 2 or len(matrix) != n_labels:
            raise ValueError(f"{prefix}: loadings do not fit the labels")
    settings = model.settings_
    widths = (*settings.hidden, *settings.hidden_labels, *settings.hidden_decoder)
    if len(widths) > len(own):  # before as many layers are built
        raise ValueError("there are fewer weights than layers")
    with torch.device("meta"):  # shapes only: nothing is allocated before they are checked
        n_columns = model.features_.n_outputs  # without evidence: no layer sees it
        if model.kernel_features_ is not None:
            n_columns += model.kernel_features_.n_outputs
        network = MPVAE(n_columns, n_labels, settings, bool(model.evidence_))
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    found = {name: value.shape for name, value in own.items()}
    if expected != found:
        wrong = sorted(k for k in expected | found if expected.get(k) != found.get(k))
        raise ValueError(f"weights do not fit the settings: {', '.join(wrong[:3])}")
    state = {name: torch.as_tensor(value).double() for name, value in own.items()}
    network.load_state_dict(state, assign=True)
    return network.eval().requires_grad_(False), loadings, by_features


def _check_features(features: FeatureMap, n_features: int) -> None:
    numeric, mean, scale, marked = (
        features.numeric,
        features.mean,
        features.scale,
        features.marked,
    )
    n = len(numeric)
    if numeric.dtype != np.int64 or marked.dtype != np.int64 or marked.ndim != 1:
        raise ValueError("columns are not numbered by integers")
    positions = [*numeric.tolist(), *features.levels]
    if len(positions) != n_features or set(positions) != set(range(n_features)):
        raise ValueError("the features do not cover the columns")
    if not mean.shape == scale.shape == (n,) or not mean.dtype == scale.dtype == np.float64:
        raise ValueError("means and scales do not fit the features")
    if not (np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError("means or scales are not valid numbers")
    length = features.row_length
    if length is not None and not (
        isinstance(length, float) and 0 < length < 1e6 and features.fitted_sparse
    ):
        raise ValueError("row_length is not a length of sparse rows")
    knots = features.knots
    if knots is not None:
        if knots.dtype != np.float64 or knots.shape != (n, N_KNOTS):
            raise ValueError("quantiles do not fit the features")
        ranked = ~np.isnan(knots[:, 0])
        if not (np.isfinite(knots[ranked]).all() and (np.diff(knots[ranked]) >= 0).all()):
            raise ValueError("quantiles are not rising numbers")
    if len(marked) and not 0 <= marked.min() <= marked.max() < n:
        raise ValueError("marked columns are out of range")


def _check_params(model: Any, n_labels: int) -> None:
    """Refuse parameters that fit would refuse, or that predict would stumble on."""
    given = {name: getattr(model, name) for name in setting_docs()}
    shape = DataShape(2, model.n_features_in_, n_labels)
    resolve(model.preset, given, shape, model.objective)
    check_parameters(model)
    check_random_state(model.random_state)


def _classes(values: Any, kind: str) -> NDArray[Any]:
    dtypes = {"i": np.int64, "u": np.uint64, "f": np.float64, "b": np.bool_, "U": np.str_}
    if not isinstance(values, list) or not all(
        isinstance(value, str | int | float) for value in values
    ):
        raise ValueError("classes are not a list of values")
    classes: NDArray[Any] = np.array(values, dtype=dtypes.get(kind, object))
    if len(classes) != 2 or classes[0] == classes[1]:
        raise ValueError("a binary label needs two classes")
    return classes


def _threshold(value: Any, n_labels: int) -> Any:
    threshold = np.asarray(value, dtype=np.float64)
    if threshold.shape not in ((), (n_labels,)) or not np.isfinite(threshold).all():
        raise ValueError("a threshold is not one number, or one per label")
    return float(threshold) if threshold.ndim == 0 else threshold


def _names(values: list[Any], n: int) -> Any:
    if not isinstance(values, list) or len(values) != n:
        raise ValueError(f"expected a list of {n} names")
    if not all(isinstance(value, str) for value in values):
        raise ValueError("a name is not text")
    if len(set(values)) != n:
        raise ValueError("a name stands twice")
    return np.array(values, dtype=object)


def _count(value: Any, name: str = "members") -> int:
    if not _is_integer(value) or not 1 <= value <= 10**8:
        raise ValueError(f"{name} is not a count")
    return int(value)


def _is_small_count(value: object) -> bool:
    return _is_integer(value) and 0 <= value <= 10**8


def _is_number_or_none(value: object) -> bool:
    return value is None or isinstance(value, float) or _is_small_count(value)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """Value as JSON has it."""
    if isinstance(value, np.ndarray | tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
