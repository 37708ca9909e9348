"""What a search for settings is about: data, question, and where to look."""

import copy
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import scipy.sparse as sp

from mpvae import observed
from mpvae.checks import check_parameters
from mpvae.config import DataShape, Settings, setting_docs
from mpvae.estimator import MPVAEClassifier
from mpvae.evidence import auto_asks
from mpvae.features import row_keys
from mpvae.rows import Rows
from mpvae.space import Space, search_space
from mpvae.tuned import Score
from mpvae.version import __version__


@dataclass(eq=False)
class Task:
    """Data and question of a search."""

    X: Any
    y: Any
    X_val: Any
    y_val: Any
    metric: Score
    seed: int
    fixed: dict[str, Any]
    space: Space = field(init=False)
    fingerprint: str = field(init=False)
    auto: str | None = field(init=False)  # what base="auto" is by name, whatever the preset
    _bare: tuple[MPVAEClassifier, Rows, Rows | None] = field(init=False)  # without evidence
    _prepared: dict[Any, tuple[MPVAEClassifier, Rows, Rows | None]] = field(
        init=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        model = self._model({"base": None})  # reads the data; evidence can wait
        check_parameters(MPVAEClassifier(**self.fixed))
        rows, validation = self._read(model)
        self._bare = (model, rows, validation)
        n, L = rows.Y.shape
        settings = {name: self.fixed[name] for name in setting_docs() if name in self.fixed}
        sparse = sp.issparse(rows.X)
        asked = auto_asks(model.preset, n, L)
        as_default = asked == auto_asks("default", n, L)
        self.auto = "auto" if as_default else asked[0] if asked else None
        leave_out = ["base"] if "base" in self.fixed or not asked else []
        if sparse:
            leave_out.append("quantiles")  # sparse columns have no ranks
        self.space = search_space(
            model.settings_,
            DataShape(n, model.features_.n_outputs, L, sparse),
            fixed=settings,
            preset=model.preset,
            objective=model.objective,
            leave_out=tuple(leave_out),
        )
        self.fingerprint = _fingerprint(model, rows, validation)

    def question(self) -> dict[str, Any]:
        """All that has to be the same for a search to be continued, as JSON values."""
        asked = {
            "data": self.fingerprint,
            "metric": self.metric,
            "seed": self.seed,
            "fixed": self.fixed,
            "version": __version__,
        }
        return dict(json.loads(json.dumps(asked, default=repr)))

    def parameters(self, found: dict[str, Any]) -> dict[str, Any]:
        """Parameters of a classifier with what was found, and what was fixed."""
        metric = "micro_f1" if self.metric == "log_loss" else self.metric
        return {"metric": metric, "random_state": self.seed} | self.fixed | found

    def prepare(self, point: dict[str, Any]) -> tuple[MPVAEClassifier, Rows, Rows | None]:
        """Model with its settings, and rows as its networks see them.

        Evidence depends on the base and on how features are scaled alone, so it is made once
        for each pair of these.
        """
        given = self.space.parameters(point)
        key = point.get("base"), given.get("quantiles")
        if key not in self._prepared:
            model = self._model(given)
            self._prepared[key] = (model, *self._read(model))
        model, rows, validation = self._prepared[key]
        model = copy.copy(model).set_params(**given)
        model.settings_ = self._resolved(model, rows, validation)
        return model, rows, validation

    def settings_at(self, point: dict[str, Any]) -> Settings:
        """Settings of the model that `prepare` makes, at no cost."""
        model, rows, validation = self._bare
        model = copy.copy(model).set_params(**self.space.parameters(point))
        return self._resolved(model, rows, validation)

    @staticmethod
    def _resolved(model: MPVAEClassifier, rows: Rows, validation: Rows | None) -> Settings:
        return model._resolve(
            *rows.Y.shape,
            missing=observed.has_missing(rows.Y),
            sparse=sp.issparse(rows.X),
            validated=validation is not None,
        )

    def _model(self, given: dict[str, Any]) -> MPVAEClassifier:
        return MPVAEClassifier(**self.parameters(given))

    def _read(self, model: MPVAEClassifier) -> tuple[Rows, Rows | None]:
        return model._read_rows(self.X, self.y, self.X_val, self.y_val, None, model._seed())


def _fingerprint(model: MPVAEClassifier, rows: Rows, validation: Rows | None) -> str:
    """Hash of names, features and labels; the order of the rows does not count."""
    names = [*model._names(), "labels", *map(str, model.label_names_)]
    digest = hashlib.sha256(json.dumps(names).encode())
    for part in (rows, validation):
        if part is not None:
            for content in (row_keys(part.X), row_keys(part.Y), part.weight):
                digest.update(content.tobytes())
    return digest.hexdigest()
