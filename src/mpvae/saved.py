"""Which parts of a fitted classifier go into its file, and back."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import pandas as pd
import torch

from mpvae.config import Metric, Settings
from mpvae.errors import ConfigError, ModelFileError
from mpvae.features import FeatureMap
from mpvae.model_file import Tensors
from mpvae.networks import MPVAE

Model = TypeVar("Model")


def to_file(model: Any) -> tuple[dict[str, Any], Tensors]:
    """Description (JSON values) and tensors of a fitted classifier."""
    from mpvae import __version__

    features: FeatureMap = model.features_
    params = {k: _plain(v) for k, v in model.get_params(deep=False).items()}
    params["random_state"] = (
        params["random_state"] if _is_seed(params["random_state"]) else None
    )
    description = {
        "version": __version__,
        "params": params,
        "settings": {k: _plain(v) for k, v in asdict(model.settings_).items()},
        "n_features_in": model.n_features_in_,
        "feature_names_in": _plain(getattr(model, "feature_names_in_", None)),
        "levels": {str(k): list(v) for k, v in features.levels.items()},
        "label_names": _plain(model.label_names_),
        "multilabel": model.multilabel_,
        "classes": None if model.multilabel_ else _plain(model.classes_),
        "classes_dtype": None if model.multilabel_ else model.classes_.dtype.kind,
        "thresholds": {k: _plain(v) for k, v in model.thresholds_.items()},
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
    for i, (network, loadings) in enumerate(
        zip(model.networks_, model.code_loadings_, strict=True)
    ):
        for name, value in network.state_dict().items():
            tensors[f"members.{i}.{name}"] = value.cpu().numpy().astype(np.float32)
        tensors[f"members.{i}.code_loadings"] = np.ascontiguousarray(loadings, np.float32)
    return description, tensors


def from_file(
    kind: type[Model], folder: str | Path, description: dict[str, Any], tensors: Tensors
) -> Model:
    """Fitted classifier from what `to_file` gave, everything checked for sense."""
    try:
        return _restore(kind, description, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        if isinstance(error, ConfigError):
            raise ModelFileError(f"{folder} holds an invalid setting: {error}") from error
        raise ModelFileError(
            f"{folder} does not describe a model ({type(error).__name__}: {error}); "
            "was it edited? save the model again"
        ) from error


def _restore(kind: type[Model], text: dict[str, Any], tensors: Tensors) -> Model:
    model: Any = kind(**_tuples(text["params"]))
    settings: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in text["settings"].items()
    }
    model.settings_ = Settings(**settings)
    model.n_features_in_ = _count(text["n_features_in"], "n_features_in")
    if text["feature_names_in"] is not None:
        model.feature_names_in_ = _names(text["feature_names_in"], model.n_features_in_)
    model.features_ = FeatureMap(
        tensors["features.numeric"],
        tensors["features.mean"],
        tensors["features.scale"],
        tensors["features.marked"],
        {int(k): tuple(map(str, v)) for k, v in text["levels"].items()},
    )
    _check_features(model.features_, model.n_features_in_)
    model.label_names_ = _names(text["label_names"], len(text["label_names"]))
    n_labels = len(model.label_names_)
    model.multilabel_ = bool(text["multilabel"])
    model.classes_ = np.arange(n_labels)
    if not model.multilabel_:
        dtype = {"i": np.int64, "u": np.int64, "f": np.float64, "b": np.bool_}
        model.classes_ = np.array(
            text["classes"], dtype=dtype.get(text["classes_dtype"], object)
        )
        if model.classes_.shape != (2,):
            raise ValueError("a binary label needs two classes")
    model.thresholds_ = {
        metric: _threshold(text["thresholds"][metric], n_labels) for metric in get_args(Metric)
    }
    model.validation_scores_ = {str(k): float(v) for k, v in text["validation_scores"].items()}
    model.history_ = pd.DataFrame(text["history"])
    model.n_epochs_ = int(model.history_["epoch"].max())
    model.networks_, model.code_loadings_ = [], []
    for i in range(
        _count(max(int(n.split(".")[1]) for n in tensors if n[:8] == "members.") + 1)
    ):
        network, loadings = _network(i, model, tensors)
        model.networks_.append(network)
        model.code_loadings_.append(loadings)
    return model  # type: ignore[no-any-return]


def _network(i: int, model: Any, tensors: Tensors) -> tuple[MPVAE, Any]:
    prefix = f"members.{i}."
    own = {
        name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)
    }
    loadings = own.pop("code_loadings").astype(np.float64)
    n_labels = len(model.label_names_)
    if loadings.ndim != 2 or len(loadings) != n_labels:
        raise ValueError(f"{prefix}code_loadings has shape {loadings.shape}")
    with torch.device("meta"):  # shapes only: nothing is allocated before they are checked
        network = MPVAE(model.features_.n_outputs, n_labels, model.settings_)
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    found = {name: value.shape for name, value in own.items()}
    if expected != found:
        wrong = sorted(k for k in expected | found if expected.get(k) != found.get(k))
        raise ValueError(f"weights do not fit the settings: {', '.join(wrong[:3])}")
    if not all(np.isfinite(value).all() for value in own.values()):
        raise ValueError("weights are not finite")
    state = {name: torch.as_tensor(value).double() for name, value in own.items()}
    network.load_state_dict(state, assign=True)
    return network.eval().requires_grad_(False), loadings


def _check_features(features: FeatureMap, n_features: int) -> None:
    n = len(features.numeric)
    positions = np.sort(
        np.concatenate([features.numeric, list(features.levels)]).astype(np.int64)
    )
    if not np.array_equal(positions, np.arange(n_features)):
        raise ValueError("the features do not cover the columns")
    if features.mean.shape != (n,) or features.scale.shape != (n,):
        raise ValueError("means and scales do not fit the features")
    if not (np.isfinite(features.mean).all() and (features.scale > 0).all()):
        raise ValueError("means or scales are not valid numbers")
    if len(features.marked) and not 0 <= features.marked.min() <= features.marked.max() < n:
        raise ValueError("marked columns are out of range")


def _threshold(value: Any, n_labels: int) -> Any:
    threshold = np.asarray(value, dtype=np.float64)
    if threshold.shape not in ((), (n_labels,)) or not np.isfinite(threshold).all():
        raise ValueError("a threshold is not one number, or one per label")
    return float(threshold) if threshold.ndim == 0 else threshold


def _names(values: list[Any], n: int) -> Any:
    if len(values) != n or not all(isinstance(value, str) for value in values):
        raise ValueError(f"expected {n} names")
    return np.array(values, dtype=object)


def _count(value: Any, name: str = "members") -> int:
    if not isinstance(value, int) or not 1 <= value <= 10**8:
        raise ValueError(f"{name} is not a count")
    return value


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def _is_seed(value: object) -> bool:
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
