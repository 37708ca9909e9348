"""Settings: what there is to choose, and what is refused. Knows no torch."""

import math
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from mpvae.errors import ConfigError

Metric = Literal["example_f1", "micro_f1", "macro_f1", "hamming", "subset"]
ThresholdKind = Literal["paper", "exact", "per_label"]
ThresholdChoice = Literal["auto", "paper", "exact", "per_label"]
Schedule = Literal["constant", "cosine", "step"]
Preset = Literal["default", "fast", "best", "paper", "authors_code"]
Objective = Literal["auto", "likelihood", "paper"]

MAX_LATENT_DIM = 21201
"""Dimensions for which torch has quasi-random (Sobol) points: of latent code and factors."""
# Of what a setting may ask for, mistyped or read from the folder of a stranger's model.
MAX_WIDTH = 2**14
MAX_LAYERS = 16
MAX_KERNEL_FEATURES = 10_000
MAX_DRAWS_PER_STEP = 4096
MAX_EPOCHS = 100_000
MAX_MEMBERS = 256
MAX_SOURCES = 16
"""Names and classifiers in a list that is given as ``base``."""

FEW_FEATURES = 30
"""Below this a table is learnt with larger steps, more of them, and little dropout."""


def _doc(text: str) -> Any:
    return field(metadata={"doc": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every choice of a model and its training, checked; `presets.resolve` makes one."""

    latent_dim: int = _doc("dimension d of the latent code z")
    n_factors: int = _doc(
        "columns K of the factor loadings B; K = number of labels is full rank, 0 is none: "
        "labels independent given z"
    )
    hidden: tuple[int, ...] = _doc("layer widths of the feature encoder")
    hidden_labels: tuple[int, ...] = _doc("layer widths of the label encoder")
    hidden_decoder: tuple[int, ...] = _doc("layer widths of the shared decoder")
    shared_output: bool = _doc("one output layer for both branches (text) or one each (code)")
    label_branch: bool = _doc(
        "train the label encoder and its branch; False leaves both, and the KL term, out"
    )
    hide_labels: float = _doc(
        "share of rows, per step, with some labels hidden from the label encoder, which then "
        "is told what is known; 0: never, as in the paper"
    )
    kernel_features: int = _doc(
        "kernel features beside x, one for each of so many training rows; 0: none"
    )
    quantiles: bool = _doc("numeric features by rank, as normal scores; else standardised")
    dropout: float = _doc("share of hidden units dropped in the encoders while training")
    dropout_inputs: float = _doc("share of the features dropped while training")
    dropout_decoder: float = _doc("share of hidden units dropped in the decoder while training")
    beta: float = _doc("weight of the KL term")
    beta_power: int = _doc("how often beta is applied: 1 (code) or 2 (Eq. 2 and Eq. 5, text)")
    lambda_ce: float = _doc("weight of the cross-entropy (joint likelihood) term")
    lambda_rank: float = _doc("weight of the ranking term")
    lambda_entropy: float = _doc("weight of the entropy term")
    rank_gain: float = _doc("g in the ranking term exp(-g (p_i - p_j)) / g: 1 (text), 5 (code)")
    probability_floor: float = _doc("squash probabilities to [f, 1 - f]; 0 (text), 5e-7 (code)")
    n_draws: int = _doc("Monte Carlo draws of the factors per row and step")
    lr: float = _doc("learning rate of Adam")
    lr_factors: float = _doc("learning rate of the loadings B, as a multiple of lr")
    lr_schedule: Schedule = _doc("learning rate over time: constant, cosine to 0, or in steps")
    lr_decay: float = _doc("factor of one decay in the step schedule")
    lr_decay_times: int = _doc("decays over the whole training in the step schedule")
    weight_decay: float = _doc("weight decay of Adam (L2 penalty on weights)")
    batch_size: int = _doc("rows per step")
    max_epochs: int = _doc("passes over the training rows, at most")
    patience: int | None = _doc("epochs without a better validation score before stopping")
    validation_fraction: float = _doc("share of rows held out when there is one member")
    n_members: int = _doc("networks, each trained without one fold of the rows, then averaged")
    monitor: str = _doc("validation score that picks the epoch: log_loss, or a metric's name")
    z_draws: int = _doc("codes z averaged at prediction; 0 takes the mean of p(z | x)")
    threshold: ThresholdChoice = _doc(
        "decision threshold: paper (best of 27 values), exact (best of all), per_label, "
        "or auto (where the expectation is highest for hamming and macro_f1, else exact)"
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, as_declared(f.name, getattr(self, f.name)))
        for name in (
            "latent_dim",
            "n_draws",
            "batch_size",
            "max_epochs",
            "n_members",
        ):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("n_factors", "kernel_features"):
            self._require(name, getattr(self, name) >= 0, "at least 0")
        for name in WIDTHS:
            widths = getattr(self, name)
            self._require(name, len(widths) > 0 and min(widths) >= 1, "one or more widths >= 1")
            self._require(name, len(widths) <= MAX_LAYERS, f"at most {MAX_LAYERS} widths")
            self._require(name, max(widths) <= MAX_WIDTH, f"widths <= {MAX_WIDTH}")
        for name in ("beta", "lambda_ce", "lambda_rank", "lambda_entropy", "weight_decay"):
            self._require(name, 0 <= getattr(self, name) < math.inf, "at least 0")
        for name in ("rank_gain", "lr", "lr_factors"):
            self._require(name, 0 < getattr(self, name) < math.inf, "above 0")
        for name in ("dropout", "dropout_inputs", "dropout_decoder", "validation_fraction"):
            self._require(name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        self._require("hide_labels", 0 <= self.hide_labels <= 1, "in [0, 1]")
        for name, most in (
            ("latent_dim", MAX_LATENT_DIM),
            ("n_factors", MAX_LATENT_DIM),
            ("kernel_features", MAX_KERNEL_FEATURES),
            ("n_draws", MAX_DRAWS_PER_STEP),
            ("max_epochs", MAX_EPOCHS),
            ("n_members", MAX_MEMBERS),
        ):
            self._require(name, getattr(self, name) <= most, f"<= {most}")
        if self.latent_dim + self.n_factors > MAX_LATENT_DIM:  # they are drawn together
            raise ConfigError(
                f"latent_dim and n_factors must be <= {MAX_LATENT_DIM} together, got "
                f"{self.latent_dim} and {self.n_factors}"
            )
        self._require("beta_power", self.beta_power in (1, 2), "1 or 2")
        self._require("probability_floor", 0 <= self.probability_floor < 0.1, "in [0, 0.1)")
        self._require("lr_decay", 0 < self.lr_decay <= 1, "in (0, 1]")
        self._require("lr_decay_times", self.lr_decay_times >= 0, "at least 0")
        self._require("patience", self.patience is None or self.patience >= 1, "None or >= 1")
        self._require("z_draws", 0 <= self.z_draws <= 4096, "in [0, 4096]")

    def _require(self, name: str, ok: bool, rule: str) -> None:
        if not ok:
            raise ConfigError(f"{name} must be {rule}, got {_short(getattr(self, name))}")

    def threshold_kind(self, metric: Metric) -> ThresholdKind | Literal["expected"]:
        """How the threshold for ``metric`` is fitted: only macro-F1 separates by label."""
        if self.threshold == "auto":
            return "expected" if metric in ("hamming", "macro_f1") else "exact"
        return self.threshold

    @property
    def antithetic(self) -> bool:
        """Draws come in pairs u, -u whenever their number is even."""
        return self.n_draws % 2 == 0


class DataShape(NamedTuple):
    """What the automatic settings look at."""

    n_rows: int
    n_features: int
    n_labels: int
    sparse: bool = False  # features, as the networks see them


def setting_docs() -> dict[str, str]:
    """Meaning of every setting, by name."""
    return {f.name: f.metadata["doc"] for f in fields(Settings)}


def parse_setting(name: str, text: str) -> Any:
    """Value of a setting written as text, as on the command line: ``hidden`` as "512,256"."""
    if name not in setting_docs():
        raise ConfigError(f"there is no setting {name!r}; known: {', '.join(setting_docs())}")
    if text == "auto":
        return text
    if name in WIDTHS:
        parts = [part for part in text.split(",") if part]
        if not all(part.strip().isdecimal() for part in parts):
            raise ConfigError(f"{name} must be layer widths, as 512,256, got {text!r}")
        return tuple(map(int, parts))
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() == "none":
        return None
    if name in _CHOICES or name in _FLAGS:
        return text  # refused by name, if it is none of the choices
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ConfigError(f"{name} must be a number, got {text!r}")


_FLAGS = ("shared_output", "label_branch", "quantiles")
WIDTHS = ("hidden", "hidden_labels", "hidden_decoder")
_CHOICES: dict[str, tuple[str, ...]] = {
    "lr_schedule": get_args(Schedule),
    "threshold": get_args(ThresholdChoice),
    "monitor": ("log_loss", *get_args(Metric)),
}
_INTEGERS = (
    "latent_dim",
    "n_factors",
    "kernel_features",
    "beta_power",
    "n_draws",
    "lr_decay_times",
    "batch_size",
    "max_epochs",
    "patience",
    "n_members",
    "z_draws",
)


def as_declared(name: str, value: Any) -> Any:
    """Value as the plain Python type its setting has, or an error that names both."""
    if name in WIDTHS:
        widths = (value,) if _is_int(value) else value
        if isinstance(widths, list | tuple) and all(_is_int(w) for w in widths):
            return tuple(int(w) for w in widths)
        rule = "a sequence of layer widths, as (512, 256)"
    elif name in _CHOICES:
        if isinstance(value, str) and value in _CHOICES[name]:
            return str(value)
        rule = "one of " + ", ".join(_CHOICES[name])
    elif name in _FLAGS:
        if isinstance(value, bool | np.bool_):
            return bool(value)
        rule = "True or False"
    elif name in _INTEGERS:
        if _is_int(value):
            return int(value)
        if value is None and name == "patience":
            return None
        rule = "an integer"
    else:
        if isinstance(value, Real) and not isinstance(value, bool):
            return float(value)
        rule = "a number"
    raise ConfigError(f"{name} must be {rule}, got {_short(value)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _is_int(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
