"""What every classifier of the package shares: how tables come in and answers go out."""

from typing import Any, Self

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import validate_data

from mpvae import labels, observed
from mpvae.errors import ConfigError, DataError, is_unicode
from mpvae.features import FeatureMap, Matrix, refuse_infinite


class MultiLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the classifiers: checks of X and y, names, and the shape of predictions.

    A subclass implements `_marginals`, probabilities of shape (n, L), and in `fit` calls
    `_read_training` and sets `features_`.
    """

    features_: FeatureMap
    label_names_: NDArray[Any]
    classes_: NDArray[Any]
    multilabel_: bool

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.multi_class = False  # a 1-d y must be binary
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def predict_proba(self, X: Any) -> Any:
        """Probability of each label.

        Returns
        -------
        array (or frame, see `set_output`) of shape (n, L)
            Or (n, 2), absent then present, when fitted on one binary label.
        """
        p = self._marginals(X)
        if self.multilabel_:
            return self._wrap(p, X, self.label_names_)
        return self._wrap(inside_zero_one(np.hstack([1 - p, p])), X, self.classes_)

    def decision_function(self, X: Any) -> Any:
        """Probability of each label on the probit scale: positive where it exceeds one half."""
        scores = ndtri(self._marginals(X))
        return self._wrap(scores, X, self.label_names_) if self.multilabel_ else scores[:, 0]

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose what predictions come as: "default" (arrays), "pandas" or "polars" frames."""
        if transform not in (None, "default", "pandas", "polars"):
            raise ConfigError(
                f"transform must be 'default', 'pandas' or 'polars', got {transform!r}"
            )
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}
        return self

    def _marginals(self, X: Any) -> NDArray[np.float64]:
        raise NotImplementedError

    def _read_training(
        self, X: Any, y: Any, *, allow_missing: bool = False
    ) -> tuple[Any, Matrix]:
        """Check X and y, remember names and classes; return X and the 0/1 matrix Y (n, L)."""
        if y is None:
            raise DataError("requires y to be passed, but the target y is None")
        labels.refuse_other_order(X, y)
        X = self._check_features(X, reset=True)
        coded = labels.read_labels(y, allow_missing=allow_missing)
        if coded.Y.shape[0] != X.shape[0]:
            raise DataError(f"X has {X.shape[0]} rows but y has {coded.Y.shape[0]}")
        for name in (*self._names(), *coded.names, *map(str, coded.classes)):
            if not is_unicode(name):  # no file could hold it
                raise DataError(f"the name {name!r} holds half of a character; give Unicode")
        self.label_names_ = np.array(coded.names, dtype=object)
        self.classes_ = coded.classes
        self.multilabel_ = coded.multilabel
        return X, coded.Y

    def _read_validation(
        self, X_val: Any, y_val: Any, *, allow_missing: bool = False
    ) -> tuple[Matrix, Matrix]:
        """Validation rows as the model sees them: features (n, D), labels (n, L)."""
        labels.refuse_other_order(X_val, y_val)
        X = self._encode(X_val)
        if self.multilabel_:
            Y = self._read_known_labels(y_val, allow_missing=allow_missing, name="y_val")
        else:
            values = np.asarray(y_val).reshape(-1, 1)
            missing = pd.isna(values) if allow_missing else np.zeros(values.shape, bool)
            if not np.isin(values[~missing], self.classes_).all():
                raise DataError(f"y_val holds other classes than y, {list(self.classes_)}")
            Y = np.where(missing, np.nan, values == self.classes_[1]).astype(np.float32)
        if Y.shape[0] != X.shape[0]:
            raise DataError(
                f"X_val has {X.shape[0]} rows but y_val has {Y.shape[0]}; give labels for each"
            )
        if not observed.has_observed(Y):
            raise DataError("y_val holds no observed label, NaN alone; leave it out")
        return X, Y

    def _encode(self, X: Any) -> Matrix:
        """Features as `features_` maps them, once the classifier is fitted or about to be."""
        return self.features_.apply(self._check_features(X, reset=False))

    def _check_features(self, X: Any, *, reset: bool) -> Any:
        X = labels.as_pandas(X)
        if isinstance(X, pd.DataFrame) and (
            not all(map(pd.api.types.is_numeric_dtype, X.dtypes))
            or (not reset and self.features_.levels)
        ):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if len(X) < (2 if reset else 1):
                raise DataError(f"X has {len(X)} rows; give at least {2 if reset else 1}")
        else:
            X = validate_data(
                self,
                X,
                reset=reset,
                accept_sparse="csr",
                dtype=[np.float64, np.float32],
                ensure_all_finite=False,
                ensure_min_samples=2 if reset else 1,
            )
            if sp.issparse(X):
                X = sp.csr_array(X)
                X.sum_duplicates()
        refuse_infinite(X, self._names())
        return X

    def _names(self) -> tuple[str, ...]:
        if hasattr(self, "feature_names_in_"):
            return tuple(self.feature_names_in_)
        return tuple(map(str, range(self.n_features_in_)))

    def _read_known_labels(
        self, y: Any, *, allow_missing: bool = False, name: str = "y"
    ) -> Any:
        """Labels (n, L) in the order of the fitted ones; a frame is matched by its names."""
        y = labels.as_pandas(y)
        if isinstance(y, pd.DataFrame):
            y = y.rename(columns=str)
            lacking = [label for label in self.label_names_ if label not in y.columns]
            if lacking:
                raise DataError(
                    f"{name} lacks {len(lacking)} labels of the model: {lacking[:5]}"
                )
            y = y[list(self.label_names_)]
        Y = labels.read_labels(y, allow_missing=allow_missing).Y
        if Y.shape[1] != len(self.label_names_):
            raise DataError(
                f"{name} has {Y.shape[1]} labels, the model {len(self.label_names_)}; give a "
                "column for each"
            )
        return Y

    def _wrap(self, values: NDArray[Any], X: Any, columns: NDArray[Any]) -> Any:
        kind = getattr(self, "_sklearn_output_config", {}).get("transform", "default")
        if kind == "pandas":
            return pd.DataFrame(
                values, columns=columns, index=X.index if isinstance(X, pd.DataFrame) else None
            )
        if kind == "polars":
            import polars

            return polars.DataFrame(values, schema=[str(name) for name in columns])
        return values


def inside_zero_one(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities moved off 0 and 1, where rounding or a vote put them there."""
    # Rounding makes 1 of a probability 8 standard deviations up; no label is certain.
    return np.clip(p, np.finfo(np.float64).tiny, 1 - np.finfo(np.float64).epsneg)
