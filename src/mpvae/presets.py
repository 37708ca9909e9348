"""Presets: what every setting is for data of a shape, unless it is given. Knows no torch."""

import math
from collections.abc import Mapping
from typing import Any, get_args

from mpvae.config import (
    FEW_FEATURES,
    WIDTHS,
    DataShape,
    Objective,
    Preset,
    Settings,
    as_declared,
)
from mpvae.errors import ConfigError

MANY_ROWS = 10_000
"""Rows from which texts are learnt otherwise: of many labels with a deeper decoder."""

OBJECTIVES: dict[str, dict[str, Any]] = {
    "auto": {},
    "likelihood": {"lambda_ce": 1.0, "lambda_rank": 0.0, "lambda_entropy": 0.0},
    "paper": {"lambda_ce": 0.5, "lambda_rank": 10.0, "lambda_entropy": 0.5},
}
"""Weights of the loss terms by name: a bound of the joint likelihood, or the paper's for F1."""


def resolve(
    preset: Preset,
    given: Mapping[str, Any],
    shape: DataShape,
    objective: Objective = "auto",
) -> Settings:
    """Settings of a preset for data of this shape, with what the user gave on top.

    ``given`` maps names of `Settings` to values; the value "auto" leaves the preset's.
    ``objective`` names weights of the loss terms: the preset's, or one of `OBJECTIVES`.
    A given ``hidden`` also sets the other two widths, unless they are given.
    """
    if preset not in get_args(Preset):
        raise ConfigError(f"preset must be one of {', '.join(_PRESETS)}, got {preset!r}")
    for name in ("n_rows", "n_features", "n_labels"):
        if getattr(shape, name) < 1:
            raise ConfigError(f"{name} must be at least 1, got {getattr(shape, name)}")
    if objective not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise ConfigError(f"objective must be one of {known}, got {objective!r}")
    chosen = {name: value for name, value in given.items() if not _is_auto(value)}
    if "hidden" in chosen:
        hidden = as_declared("hidden", chosen["hidden"])
        chosen.setdefault("hidden_labels", hidden)
        chosen.setdefault("hidden_decoder", hidden[::-1])
    values = _PRESETS[preset](shape) | OBJECTIVES[objective]
    if objective == "likelihood":
        values["n_draws"] = max(values["n_draws"], _draws_for(shape.n_labels))
    values |= chosen
    batch_size = as_declared("batch_size", values["batch_size"])
    steps = values.pop("steps")
    values.setdefault("max_epochs", _epochs_for(shape.n_rows, max(1, batch_size), steps))
    epochs = as_declared("max_epochs", values["max_epochs"])
    values.setdefault("patience", max(5, epochs // 4))
    return Settings(**values)


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value == "auto"


def _epochs_for(n_rows: int, batch_size: int, steps: int) -> int:
    """Epochs that make so many steps, at least 20; of very many rows 6,000 steps' worth."""
    steps_per_epoch = max(1, math.ceil(n_rows / batch_size))
    epochs = max(20, math.ceil(steps / steps_per_epoch))
    return min(epochs, max(5, math.ceil(6000 / steps_per_epoch)))


def _draws_for(n_labels: int) -> int:
    """Draws that bound the joint likelihood closely: fewer make the loadings too small."""
    return min(256, max(32, 2**14 // n_labels))


def _default(shape: DataShape) -> dict[str, Any]:
    values = _networks_alone(shape)
    if not shape.sparse and shape.n_features >= FEW_FEATURES:
        values["kernel_features"] = 500
    return values


def _fast(shape: DataShape) -> dict[str, Any]:
    values = _default(shape)
    half = {name: tuple(width // 2 for width in values[name]) for name in WIDTHS}
    return (
        values
        | half
        | {
            "n_members": 2,
            "steps": values["steps"] // 4,
            "kernel_features": min(values["kernel_features"], 200),
        }
    )


def _best(shape: DataShape) -> dict[str, Any]:
    values = _default(shape)
    return values | {"n_members": 15, "kernel_features": 2 * values["kernel_features"]}


def _networks_alone(shape: DataShape) -> dict[str, Any]:
    if shape.n_labels < 100 or shape.n_features < 100:
        plain = _plain_default(shape)
        if shape.sparse and shape.n_features >= 100 and shape.n_rows >= MANY_ROWS:
            plain |= {"dropout_inputs": 0.3, "dropout_decoder": 0.5}
        return plain
    # Many labels of many features, as tags of texts. What measures best on held-out rows
    # depends on how many rows there are to learn from (docs/choices.md).
    if shape.n_rows >= MANY_ROWS:
        return _plain_default(shape) | {
            "n_factors": min(shape.n_labels, 64),
            "hidden": (512,),
            "hidden_labels": (256,),
            "hidden_decoder": (1024, 512),
            "dropout_decoder": 0.5,
            "n_draws": 20,
        }
    return _plain_default(shape) | {
        "hidden": (512,),
        "hidden_labels": (256,),
        "hidden_decoder": (512,),
        "dropout_inputs": 0.3,
        "dropout_decoder": 0.5,
        "lambda_rank": 20.0,
        "n_draws": 20,
    }


def _plain_default(shape: DataShape) -> dict[str, Any]:
    # A few features leave little to overfit: larger steps and more of them, less dropout.
    few = shape.n_features < FEW_FEATURES
    return {
        "latent_dim": 16,
        "n_factors": min(shape.n_labels, 16),
        "hidden": (256, 256),
        "hidden_labels": (256,),
        "hidden_decoder": (256,),
        "shared_output": True,
        "label_branch": True,
        "hide_labels": 0.1,
        "kernel_features": 0,
        "quantiles": few,
        "dropout": 0.1 if few else 0.5,
        "dropout_inputs": 0.0,
        "dropout_decoder": 0.0,
        "beta": 0.25 if few else 1.0,
        "beta_power": 1,
        **OBJECTIVES["likelihood"],
        "rank_gain": 1.0,
        "probability_floor": 0.0,
        "n_draws": 32,
        "lr": 3e-3 if few else 1e-3,
        "lr_factors": 10.0,
        "lr_schedule": "cosine",
        "lr_decay": 0.8,
        "lr_decay_times": 4,
        "weight_decay": 1e-5,
        "batch_size": int(2 ** min(7, max(4, round(math.log2(max(shape.n_rows, 1) / 10))))),
        "steps": 1000 if few and shape.n_rows >= 500 else 300,  # becomes max_epochs
        "validation_fraction": 0.1,
        "n_members": 5,
        "monitor": "log_loss",
        "z_draws": 0,
        "threshold": "auto",
    }


def _paper(shape: DataShape) -> dict[str, Any]:
    """Text of the paper: sections "Methods" and "Implementation and Model Comparison"."""
    return _plain_default(shape) | {
        "latent_dim": 50,  # not in the text; the authors' code
        "n_factors": shape.n_labels,
        "hidden": (512, 256),
        "hidden_labels": (512, 256),
        "hidden_decoder": (256, 512),
        "hide_labels": 0.0,
        "quantiles": False,
        "dropout": 0.5,
        "beta": 1.1,
        "beta_power": 2,
        **OBJECTIVES["paper"],
        "n_draws": 100,
        "lr": 1e-3,
        "lr_factors": 1.0,
        "lr_schedule": "step",
        "batch_size": 128,
        "max_epochs": 200,
        "patience": None,
        "n_members": 1,
        "monitor": "macro_f1",
        "threshold": "paper",
    }


def _authors_code(shape: DataShape) -> dict[str, Any]:
    """Values of the authors' released TensorFlow code, with its yeast script's weights."""
    return _paper(shape) | {
        "hidden": (256, 512, 256),
        "shared_output": False,
        "beta_power": 1,
        "lambda_ce": 0.1,
        "lambda_rank": 20.0,
        "lambda_entropy": 0.0,
        "rank_gain": 5.0,
        "probability_floor": 5e-7,
        "lr": 6e-4,
        "max_epochs": 800,
    }


_PRESETS = {
    "default": _default,
    "fast": _fast,
    "best": _best,
    "paper": _paper,
    "authors_code": _authors_code,
}
