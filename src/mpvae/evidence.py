"""Evidence: what another model says about each label, for the networks to start from.

For rows to learn from it has to come from a model that has not seen them: left out in closed
form by the kernel machine, out of fold for any scikit-learn classifier. For other rows the
model fitted to all rows answers. Everything is on the probit scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.base import clone, is_classifier

from mpvae import calibration
from mpvae.data import stratified_folds
from mpvae.errors import ConfigError
from mpvae.features import Matrix
from mpvae.forest import fit_forest
from mpvae.ridge import fit_kernel_ridge

NAMES = ("auto", "kernel", "forest")
MAX_ROWS = 50_000
MAX_ENTRIES = 50_000_000
"""Rows, and rows times labels, up to which "auto" asks another model first."""
_FARTHEST = 5.0
_FOLDS = 5


class Source(Protocol):
    """A fitted model that gives evidence."""

    def evidence(self, X: Matrix) -> NDArray[np.float64]:
        """Probit of each label's probability, (n, L)."""


def check_base(base: Any) -> None:
    """Refuse what is neither None, a name, a classifier, nor a list of these."""
    for one in base if isinstance(base, list | tuple) else [base]:
        named = one is None or (isinstance(one, str) and one in NAMES)
        if not (named or (hasattr(one, "predict_proba") and is_classifier(one))):
            raise ConfigError(
                f"base must be None, {', '.join(map(repr, NAMES))}, a classifier with "
                f"predict_proba, or a list of these, got {one!r}"
            )


def fit_evidence(
    base: Any, X: Matrix, Y: Matrix, weight: NDArray[np.float64], seed: int
) -> tuple[list[Source], NDArray[np.float64] | None]:
    """Sources fitted to all rows, and the evidence (n, L) for each row without itself."""
    wanted = list(base) if isinstance(base, list | tuple) else [base]
    n, L = Y.shape
    if wanted == ["auto"]:
        wanted = ["kernel", "forest"] if n <= MAX_ROWS and n * L <= MAX_ENTRIES and n >= 10 else []
    wanted = [one for one in wanted if one is not None]
    if not wanted:
        return [], None
    sources: list[Source] = []
    left_out = np.zeros((n, L))
    for one in wanted:
        fit = _NAMED[one] if isinstance(one, str) else _Classifier(one).fit
        source, found = fit(X, Y, weight, seed)
        sources.append(source)
        left_out += found / len(wanted)
    return sources, _float32(left_out)


def with_evidence(X: Matrix, sources: Sequence[Source]) -> Matrix:
    """Features with the mean evidence of the sources as L more columns."""
    if not sources:
        return X
    found = np.mean([source.evidence(X) for source in sources], axis=0)
    return beside(X, _float32(found))


def beside(X: Matrix, evidence: NDArray[np.float32]) -> Matrix:
    """Features and evidence in one matrix; sparse stays sparse."""
    if sp.issparse(X):
        return sp.csr_array(sp.hstack([X, sp.csr_array(evidence)], format="csr"))
    return np.hstack([X, evidence])


@dataclass(frozen=True, slots=True, eq=False)
class _Classifier:
    """A scikit-learn classifier, calibrated on its out-of-fold answers."""

    model: Any
    slope: Any = 1.0
    shift: Any = 0.0

    def evidence(self, X: Matrix) -> NDArray[np.float64]:
        return np.asarray(self.slope * _probits(self.model, X) + self.shift)

    def fit(
        self, X: Matrix, Y: Matrix, weight: NDArray[np.float64], seed: int
    ) -> tuple["_Classifier", NDArray[np.float64]]:
        truth = np.asarray(Y.toarray() if sp.issparse(Y) else Y)
        filled = np.nan_to_num(truth).astype(np.int64)  # a label not observed counts as absent
        folds = stratified_folds(Y, _FOLDS, seed=seed)
        left_out = np.empty(truth.shape)
        for fold in range(_FOLDS):
            away = folds == fold
            part = clone(self.model).fit(X[np.flatnonzero(~away)], filled[~away])
            left_out[away] = _probits(part, X[np.flatnonzero(away)])
        slope, shift = calibration.fit_line(Y, left_out, weight)
        whole = clone(self.model).fit(X, filled)
        return _Classifier(whole, slope, shift), slope * left_out + shift


def _probits(model: Any, X: Matrix) -> NDArray[np.float64]:
    """Probit of a classifier's probabilities, whichever way it returns them."""
    found = model.predict_proba(X)
    if isinstance(found, list):  # one array of two columns per label, or one where it is constant
        found = np.column_stack(
            [p[:, 1] if p.shape[1] == 2 else np.full(len(p), float(c[0]))
             for p, c in zip(found, model.classes_, strict=True)]
        )
    return np.clip(ndtri(np.clip(found, 1e-12, 1 - 1e-12)), -_FARTHEST, _FARTHEST)


def _float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.clip(values, -_FARTHEST, _FARTHEST).astype(np.float32)


_NAMED = {"kernel": fit_kernel_ridge, "forest": fit_forest}
