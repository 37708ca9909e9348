"""What a model is asked about rows of a table, and its answer as a table."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from mpvae.config import Metric
from mpvae.conformal import Guarantee
from mpvae.errors import ConfigError, DataError
from mpvae.estimator import MPVAEClassifier


@dataclass(frozen=True, slots=True)
class Asked:
    """Probabilities, or 0/1 decisions, or sets of labels with a guarantee."""

    decide: bool = False
    metric: Metric | None = None  # to decide for
    sets: float | None = None  # coverage
    guarantee: Guarantee | None = None

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.decide and self.sets is not None:
            raise ConfigError("--decide or --metric, and --sets: one of them at a time")
        if self.guarantee is not None and self.sets is None:
            raise ConfigError("--guarantee says what --sets should hold; add --sets 0.9")

    def answer(self, model: MPVAEClassifier, X: Any) -> Any:
        """The answer about each row, by a model whose output is set to pandas."""
        if self.sets is not None:
            return model.predict_set(X, self.sets, guarantee=self.guarantee or "all")
        if not self.decide:
            return model.predict_proba(X)
        found = model.predict(X, metric=self.metric)
        if not model.multilabel_:
            index = getattr(X, "index", None)
            return pd.DataFrame({model.label_names_[0]: found}, index=index)
        return found


def beside(kept: list[pd.DataFrame], answer: pd.DataFrame) -> pd.DataFrame:
    """Columns of the input that are kept, and the answer."""
    answer.columns = answer.columns.astype(str)  # classes may be numbers
    twice = [str(name) for frame in kept for name in frame if name in set(answer.columns)]
    if twice:
        raise DataError(f"--keep {twice[0]} is a label of the model; keep other columns")
    return pd.concat([*kept, answer], axis=1)
