"""Any scikit-learn classifier as a source of evidence: asked out of fold, and calibrated."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.base import clone, is_classifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.utils.validation import has_fit_parameter

from mpvae import calibration
from mpvae.data import stratified_folds
from mpvae.errors import ConfigError
from mpvae.features import Matrix, dense
from mpvae.merging import as_repeats
from mpvae.rows import FARTHEST

_FOLDS = 5


@dataclass(frozen=True, slots=True, eq=False)
class OwnClassifier:
    """A classifier of the user's, calibrated on its out-of-fold answers."""

    fitted: "_Fitted"
    slope: NDArray[np.float64]
    shift: NDArray[np.float64]

    @property
    def name(self) -> str:
        """That of its class."""
        return type(self.fitted.model).__name__

    def evidence(self, X: Matrix) -> NDArray[np.float64]:
        """Probit of each label's probability, (n, L)."""
        return np.asarray(self.slope * self.fitted.probits(X) + self.shift)

    def weighted(self, weight: NDArray[np.float64]) -> "OwnClassifier":
        """The same, its evidence multiplied by a weight for each label, (L,)."""
        return replace(self, slope=weight * self.slope, shift=weight * self.shift)


def can_be_asked(one: Any) -> bool:
    """Whether this is a classifier that tells probabilities."""
    return not isinstance(one, type) and hasattr(one, "predict_proba") and is_classifier(one)


def fit_classifier(
    classifier: Any, X: Matrix, Y: Matrix, weight: NDArray[np.float64], seed: int
) -> tuple[OwnClassifier, NDArray[np.float64]]:
    """Fit to all rows, and say what each row's evidence is by a fit without it.

    A label that is not observed counts as absent; one that does not vary among the rows to
    learn from has its share of them for all.

    Parameters
    ----------
    classifier : scikit-learn classifier
        Left as it is; parameters ``random_state`` that are None get the seed.
    X, Y, weight, seed
        Features, labels (NaN where not observed), weights of rows, seed of the folds.

    Returns
    -------
    source : OwnClassifier
    left_out : ndarray of shape (n, L)
        Evidence on the probit scale.
    """
    unseeded = [
        name
        for name, value in classifier.get_params().items()
        if value is None and name.rpartition("__")[2] == "random_state"
    ]
    classifier = clone(classifier).set_params(**dict.fromkeys(unseeded, seed))
    truth = dense(Y)
    folds = stratified_folds(Y, min(_FOLDS, len(truth)), seed=seed)
    left_out = np.empty(truth.shape)
    for fold in np.unique(folds):
        learn, away = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        fitted = _fitted(classifier, X[learn], truth[learn], weight[learn])
        left_out[away] = fitted.probits(X[away])
    slope, shift = calibration.fit_line(Y, left_out, weight)
    whole = _fitted(classifier, X, truth, weight)
    return OwnClassifier(whole, slope, shift), slope * left_out + shift


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    """A classifier of the labels that vary, and the share of each label."""

    model: Any
    varies: NDArray[np.bool_]  # (L,)
    share: NDArray[np.float64]  # (L,)

    def probits(self, X: Matrix) -> NDArray[np.float64]:
        """Probit of each label's probability, (n, L)."""
        P = np.tile(self.share, (X.shape[0], 1))
        if self.varies.any():
            try:
                P[:, self.varies] = _probabilities(self.model, X, int(self.varies.sum()))
            except Exception as error:
                raise _failed(self.model, "predict_proba", error) from error
        return np.asarray(np.clip(ndtri(P), -FARTHEST, FARTHEST))


def _fitted(
    classifier: Any, X: Matrix, truth: NDArray[Any], weight: NDArray[np.float64]
) -> _Fitted:
    """A copy fitted to the rows; one that takes no weights sees rows repeated."""
    seen = ~np.isnan(truth) * weight[:, None]
    Y = np.nan_to_num(truth).astype(np.int64)
    share = ((seen * Y).sum(0) + 0.5) / (seen.sum(0) + 1)
    varies = Y.min(0) < Y.max(0)
    model = clone(classifier)
    if not varies.any():
        return _Fitted(model, varies, share)
    Y = Y[:, varies]
    given: dict[str, Any] = {}
    each = getattr(model, "estimator", model)  # of scikit-learn's wrappers for several labels
    if all(has_fit_parameter(one, "sample_weight") for one in (model, each)):
        given = {"sample_weight": weight} if weight.min() < weight.max() else {}
    else:
        rows = as_repeats(weight, 10 * len(weight))
        X, Y = (X, Y) if rows is None else (X[rows], Y[rows])
    if Y.shape[1] == 1 and not isinstance(model, MultiOutputClassifier | ClassifierChain):
        Y = Y[:, 0]  # others want one label as a vector
    try:
        model.fit(X, Y, **given)
    except Exception as error:
        raise _failed(model, "fit", error) from error
    return _Fitted(model, varies, share)


def _probabilities(model: Any, X: Matrix, n_labels: int) -> NDArray[np.float64]:
    """Probability of each label, (n, L), in whichever of three ways a classifier returns it."""
    found = model.predict_proba(X)
    if isinstance(found, list):  # for each label, a column for each class
        found = np.column_stack([np.asarray(p)[:, -1] for p in found])
    P = np.asarray(found, np.float64)
    if n_labels == 1:
        P = P[:, -1:]
    if P.shape != (X.shape[0], n_labels):
        raise ValueError(f"an array of shape {P.shape}, expected {(X.shape[0], n_labels)}")
    if not ((P >= 0) & (P <= 1)).all():
        raise ValueError("values that are no probabilities")
    return P


def _failed(model: Any, what: str, error: Exception) -> ConfigError:
    name = type(model).__name__
    return ConfigError(
        f"base {name} failed to {what}: {error}; a classifier of one label can be wrapped: "
        f"base=OneVsRestClassifier({name}())"
    )
