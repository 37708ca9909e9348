"""Where `mpvae.tuning` searches: which settings, between which values. Knows no Optuna.

A search stays around the default, which is always one of its points.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from mpvae.config import DataShape, Objective, Preset, Settings
from mpvae.presets import resolve


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``; on a logarithmic scale, or whole ones, if so marked."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def reaching(self, value: float) -> "Range":
        """The same range, widened if need be so that it holds ``value``."""
        return replace(self, low=min(self.low, value), high=max(self.high, value))


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]


Knob: TypeAlias = Range | Choice

KNOBS: dict[str, Knob] = {
    "base": Choice(("auto", "kernel", "forest", "boosting", "none")),
    "width": Choice((1.0, 0.5, 2.0)),  # times the default width of every layer
    "latent_dim": Range(4, 64, log=True, whole=True),
    "n_factors": Range(0, 64, whole=True),  # at most the number of labels
    "quantiles": Choice((True, False)),
    "dropout": Range(0.0, 0.7),
    "dropout_inputs": Range(0.0, 0.5),
    "dropout_decoder": Range(0.0, 0.6),
    "beta": Range(0.03, 3.0, log=True),
    "ranking": Choice((False, True)),  # whether there is a ranking term
    "lambda_rank": Range(1.0, 30.0, log=True),  # its weight, if so
    "lr": Range(3e-4, 1e-2, log=True),
    "weight_decay": Range(1e-6, 1e-2, log=True),
    "batch": Choice((1.0, 0.5, 2.0)),  # times the default rows per step
    "steps": Choice((1.0, 0.5, 2.0)),  # times the default number of steps
}
"""What is searched: a knob is a setting of that name, unless `DECIDES` has it."""

DECIDES: dict[str, tuple[str, ...]] = {
    "width": ("hidden", "hidden_labels", "hidden_decoder"),
    "ranking": ("lambda_rank",),
    "batch": ("batch_size",),
    "steps": ("max_epochs",),
}
"""Settings that a knob of another name decides."""


@dataclass(frozen=True, slots=True)
class Space:
    """The knobs that are left for some data and a user who has fixed some settings."""

    preset: Preset
    objective: Objective
    fixed: Mapping[str, Any]  # by name of the setting
    shape: DataShape
    default: Settings
    knobs: dict[str, Knob]

    @property
    def settings(self) -> list[str]:
        """Names of the settings that are searched, ``base`` among them."""
        names = [n for knob in self.knobs for n in DECIDES.get(knob, (knob,))]
        return list(dict.fromkeys(names))

    def default_point(self) -> dict[str, Any]:
        """The default, as values of the knobs."""
        point: dict[str, Any] = {}
        for name, knob in self.knobs.items():
            if name == "ranking":
                point[name] = self.default.lambda_rank > 0
            elif name == "base" or name in DECIDES:
                assert isinstance(knob, Choice)
                point[name] = knob.values[0]
            elif name != "lambda_rank" or point["ranking"]:
                point[name] = getattr(self.default, name)
        return point

    def parameters(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters of the classifier at a point: what the user fixed, and the knobs."""
        values = dict(self.fixed)
        for name, value in point.items():
            if name == "base":
                values["base"] = None if value == "none" else value
            elif name == "width":
                for layers in DECIDES[name]:
                    widths = getattr(self.default, layers)
                    values[layers] = tuple(max(1, round(value * w)) for w in widths)
            elif name == "ranking":
                values.setdefault("lambda_rank", 0.0)
            elif name == "batch":
                values["batch_size"] = max(1, round(value * self.default.batch_size))
            elif name != "steps":
                values[name] = float(f"{value:.3g}") if type(value) is float else value
        if "steps" in point:
            given = {k: v for k, v in values.items() if k != "base"}
            usual = resolve(self.preset, given, self.shape, self.objective).max_epochs
            values["max_epochs"] = max(1, round(point["steps"] * usual))
        return values


def search_space(
    default: Settings,
    shape: DataShape,
    *,
    fixed: Mapping[str, Any],
    preset: Preset = "default",
    objective: Objective = "auto",
    leave_out: tuple[str, ...] = (),
) -> Space:
    """Space around ``default``, without what is fixed or to be left out."""
    gone = {*fixed, *leave_out}
    if objective != "auto":
        gone.add("lambda_rank")  # the objective is what has it
    knobs: dict[str, Knob] = {}
    for name, knob in KNOBS.items():
        if not gone.isdisjoint((name, *DECIDES.get(name, ()))):
            continue
        if name == "n_factors":
            knob = Range(0, min(64, shape.n_labels), whole=True)
        if isinstance(knob, Range):
            value = getattr(default, name)
            if value > 0 or not knob.log:
                knob = knob.reaching(value)
        knobs[name] = knob
    return Space(preset, objective, fixed, shape, default, knobs)
