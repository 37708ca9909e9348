"""Settings: the only place where defaults, presets and checks live. Knows no torch."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from mpvae.errors import ConfigError

Metric = Literal["example_f1", "micro_f1", "macro_f1", "hamming", "subset"]
ThresholdKind = Literal["paper", "exact", "per_label"]
Schedule = Literal["constant", "cosine", "step"]
Preset = Literal["default", "paper", "authors_code"]


def _doc(text: str) -> Any:  # noqa: ANN401
    return field(metadata={"doc": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every choice of a model and its training, checked. See `resolve` for where they come from."""

    latent_dim: int = _doc("dimension d of the latent code z")
    n_factors: int = _doc("columns K of the factor loadings B; K = number of labels is full rank")
    hidden: tuple[int, ...] = _doc("layer widths of the feature encoder")
    hidden_labels: tuple[int, ...] = _doc("layer widths of the label encoder")
    hidden_decoder: tuple[int, ...] = _doc("layer widths of the shared decoder")
    shared_output: bool = _doc("one output layer for both branches (text) or one each (code)")
    dropout: float = _doc("share of hidden units dropped in the encoders while training")
    beta: float = _doc("weight of the KL term")
    beta_power: int = _doc("how often beta is applied: 1 (code) or 2 (Eq. 2 and Eq. 5, text)")
    lambda_ce: float = _doc("weight of the cross-entropy (joint likelihood) term")
    lambda_rank: float = _doc("weight of the ranking term")
    lambda_entropy: float = _doc("weight of the entropy term")
    rank_gain: float = _doc("g in the ranking term exp(-g (p_i - p_j)) / g: 1 (text), 5 (code)")
    probability_floor: float = _doc("squash probabilities to [f, 1 - f]; 0 (text), 5e-7 (code)")
    n_draws: int = _doc("Monte Carlo draws of the factors per row and step")
    lr: float = _doc("learning rate of Adam")
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
    threshold: ThresholdKind = _doc("paper: best of 27 values; exact: best of all; per_label")

    def __post_init__(self) -> None:
        for name in ("latent_dim", "n_factors", "n_draws", "batch_size", "max_epochs", "n_members"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("hidden", "hidden_labels", "hidden_decoder"):
            widths = getattr(self, name)
            self._require(name, len(widths) > 0 and min(widths) >= 1, "one or more widths >= 1")
        for name in ("beta", "lambda_ce", "lambda_rank", "lambda_entropy", "weight_decay"):
            self._require(name, 0 <= getattr(self, name) < float("inf"), "at least 0")
        for name in ("rank_gain", "lr"):
            self._require(name, 0 < getattr(self, name) < float("inf"), "above 0")
        for name in ("dropout", "validation_fraction"):
            self._require(name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        self._require("beta_power", self.beta_power in (1, 2), "1 or 2")
        self._require("probability_floor", 0 <= self.probability_floor < 0.1, "in [0, 0.1)")
        self._require("lr_decay", 0 < self.lr_decay <= 1, "in (0, 1]")
        self._require("lr_decay_times", self.lr_decay_times >= 0, "at least 0")
        self._require("patience", self.patience is None or self.patience >= 1, "None or >= 1")
        self._require("z_draws", self.z_draws >= 0, "at least 0")
        for name, allowed in (
            ("lr_schedule", get_args(Schedule)),
            ("threshold", get_args(ThresholdKind)),
            ("monitor", ("log_loss", *get_args(Metric))),
        ):
            self._require(name, getattr(self, name) in allowed, "one of " + ", ".join(allowed))

    def _require(self, name: str, ok: bool, rule: str) -> None:
        if not ok:
            raise ConfigError(f"{name} must be {rule}, got {getattr(self, name)!r}")

    @property
    def antithetic(self) -> bool:
        """Draws come in pairs u, -u whenever their number is even."""
        return self.n_draws % 2 == 0
