"""What the rivals share: checks of tables as in `mpvae.MPVAEClassifier`, and `predict`."""

from dataclasses import replace
from numbers import Integral
from typing import Any, Literal, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from mpvae.errors import ConfigError, DataError
from mpvae.features import FeatureMap, Matrix, fit_features
from mpvae.surface import MultiLabelClassifier, inside_zero_one

Scaling = Literal["none", "standard", "minmax"]


class Baseline(MultiLabelClassifier):
    """Base of the rivals that need no validation rows.

    A subclass stores its parameters in ``__init__`` and implements `_check`, `_learn` and
    `_probabilities`; what it learns it keeps in attributes that end in ``_``.
    """

    random_state: Any = None
    _scaling: Scaling = "standard"

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from features and labels.

        Parameters
        ----------
        X : array-like, DataFrame (pandas or polars) or sparse matrix of shape (n, D)
            Features. Columns of a DataFrame may be categories (text). NaN is a missing value.
        y : array-like, DataFrame or sparse matrix of shape (n, L), or (n,)
            A 0/1 indicator matrix, or one binary label in any encoding.
        """
        self.__dict__.pop("fitted_", None)
        self._check()
        X, Y = self._read_training(X, y)
        self.features_ = self._fit_features(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        Y = (Y.toarray() if sp.issparse(Y) else Y).astype(np.float64)
        self._learn(self._seen(self.features_.apply(X), reset=True), Y, seed)
        self.fitted_ = True  # set last: a fit that failed leaves none
        return self

    def predict(self, X: Any) -> Any:
        """Labels of probability at least one half; shape (n, L), or (n,) for one label."""
        p = self._marginals(X)
        if not self.multilabel_:
            return self.classes_[(p[:, 0] > 0.5).astype(int)]
        return self._wrap((p >= 0.5).astype(np.int64), X, self.label_names_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fitted_")

    def _check(self) -> None:
        """Raise a ConfigError for parameters that make no sense, before any work."""

    def _learn(self, X: Matrix, Y: NDArray[np.float64], seed: int) -> None:
        """Learn from features (n, D), float32, dense or CSR, and labels (n, L) of 0 and 1."""
        raise NotImplementedError

    def _probabilities(self, X: Matrix) -> NDArray[np.float64]:
        """Probability of each label, shape (n, L), for features as `_learn` saw them."""
        raise NotImplementedError

    def _marginals(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        return inside_zero_one(self._probabilities(self._seen(self._encode(X), reset=False)))

    def _fit_features(self, X: Any) -> FeatureMap:
        features = fit_features(X, np.ones(X.shape[0]), self._names())
        return features if self._scaling == "standard" else replace(features, row_length=None)

    def _seen(self, Z: Matrix, *, reset: bool) -> Matrix:
        """Standardised features scaled as this method wants them."""
        if self._scaling == "standard":
            return Z
        raw = _as_written(Z, self.features_)
        if self._scaling == "none":
            return raw
        if reset:
            low, high = (_column(raw.min(axis=0)), _column(raw.max(axis=0)))
            self.low_, self.span_ = low, np.where(high > low, high - low, 1)
        if sp.issparse(raw) and not self.low_.any():
            return sp.csr_array(raw.multiply(1 / self.span_)).astype(np.float32)
        dense = raw.toarray() if sp.issparse(raw) else raw
        return ((dense - self.low_) / self.span_).astype(np.float32)


def is_integer(value: object) -> bool:
    """Whether it is a whole number of Python's or NumPy's, and no flag."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def require(name: str, value: Any, ok: bool, rule: str) -> None:
    """Raise a ConfigError that names parameter, rule and value unless ``ok``."""
    if not ok:
        raise ConfigError(f"{name} must be {rule}, got {value!r}")


def require_rows(n: int, least: int, why: str) -> None:
    """Raise a DataError unless there are ``least`` training rows."""
    if n < least:
        raise DataError(f"X has {n} rows; {why} needs at least {least}")


def _as_written(Z: Matrix, features: FeatureMap) -> Matrix:
    """Standardised numbers turned back into the user's; a missing one is the column's mean."""
    n = len(features.numeric)
    if sp.issparse(Z):
        return sp.csr_array(Z.multiply(features.scale))
    raw: NDArray[np.float64] = Z.astype(np.float64)
    raw[:, :n] = raw[:, :n] * features.scale + features.mean
    return raw


def _column(values: Any) -> NDArray[np.float64]:
    dense = values.toarray() if sp.issparse(values) else values
    return np.asarray(dense, dtype=np.float64).ravel()
