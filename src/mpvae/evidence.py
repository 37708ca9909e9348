"""Evidence: what another model says about each label, to be weighed with the networks.

For rows to learn from it has to come from a model that has not seen them: left out in closed
form by the kernel machine, out of bag by the forest, out of fold by boosted trees and by a
scikit-learn classifier. For other rows the model fitted to all rows answers. Everything is on
the probit scale.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from mpvae.boosting import Boosting, fit_boosting
from mpvae.checkpoints import Checkpoint, Checkpoints
from mpvae.config import MAX_SOURCES, Preset
from mpvae.distributed import agreed
from mpvae.errors import ConfigError, ModelFileError
from mpvae.features import Matrix, with_short_positions
from mpvae.forest import Forest, fit_forest
from mpvae.own_classifier import OwnClassifier, can_be_asked, fit_classifier
from mpvae.ridge import KernelRidge, fit_kernel_ridge
from mpvae.rows import in_sum

MIN_ROWS, MAX_ROWS = 50, 50_000
MAX_ENTRIES = 20_000_000
"""Rows, and rows times labels, within which "auto" asks anyone."""


class Source(Protocol):
    """A fitted model that gives evidence."""

    def evidence(self, X: Matrix) -> NDArray[np.float64]:
        """Probit of each label's probability, (n, L)."""
        ...

    def weighted(self, weight: NDArray[np.float64]) -> "Source":
        """The same, its evidence multiplied by a weight for each label, (L,)."""
        ...


class NamedSource(Source, Protocol):
    """One of ours, which can be written to a file."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything by name."""
        ...


_Fit: TypeAlias = Callable[
    [Matrix, Matrix, NDArray[np.float64], int], tuple[NamedSource, NDArray[np.float64]]
]
_NAMED: dict[str, _Fit] = {
    "kernel": fit_kernel_ridge,
    "forest": fit_forest,
    "boosting": fit_boosting,
}
KINDS: dict[str, type[KernelRidge] | type[Forest] | type[Boosting]] = {
    "kernel": KernelRidge,
    "forest": Forest,
    "boosting": Boosting,
}
"""Sources that can be written to a file, by name."""


def source_names(sources: Sequence[Source]) -> list[str]:
    """Names of sources; of a classifier that of its class."""
    names: dict[type, str] = {kind: name for name, kind in KINDS.items()}
    return [
        source.name if isinstance(source, OwnClassifier) else names[type(source)]
        for source in sources
    ]


def check_base(base: Any) -> None:
    """Refuse what is neither None, a name, a classifier, nor a list of the last two."""
    several = isinstance(base, list | tuple)
    names = ", ".join(map(repr, _NAMED))
    if several and len(base) > MAX_SOURCES:
        raise ConfigError(f"base must be a list of at most {MAX_SOURCES}, got {len(base)}")
    for one in base if several else [base]:
        named = isinstance(one, str) and (one in _NAMED or (one == "auto" and not several))
        nothing = one is None and not several
        if not (named or nothing or can_be_asked(one)):
            raise ConfigError(
                f"base must be None, 'auto', {names}, a classifier with predict_proba, or a "
                f"list of the last {len(_NAMED) + 1}, got {one!r}"
            )


def auto_asks(preset: Preset, n_rows: int, n_labels: int) -> list[str]:
    """Whom ``base="auto"`` asks."""
    if not MIN_ROWS <= n_rows <= MAX_ROWS or n_rows * n_labels > MAX_ENTRIES:
        return []
    asked = {"default": list(_NAMED), "best": list(_NAMED), "fast": ["kernel"]}
    return asked.get(preset, [])


def asked_by(base: Any, preset: Preset, n_rows: int, n_labels: int) -> list[Any]:
    """Names and classifiers that ``base`` stands for."""
    if isinstance(base, str) and base == "auto":
        return list(auto_asks(preset, n_rows, n_labels))
    if isinstance(base, list | tuple):
        return list(base)
    return [] if base is None else [base]


def fit_evidence(
    asked: Sequence[Any],
    X: Matrix,
    Y: Matrix,
    weight: NDArray[np.float64],
    seed: int,
    on_source: Callable[[str], None] = lambda name: None,
    checkpoints: Checkpoints | None = None,
) -> tuple[list[Source], NDArray[np.float32] | None]:
    """Sources fitted to all rows, and their evidence for each row without itself.

    Parameters
    ----------
    asked : list of names and classifiers
        Sources to fit.
    X, Y, weight
        Features as the networks see them, labels (NaN where not observed), weights of rows.
    seed : int
        For what is random in the sources.
    on_source : callable
        Told the name of each source before it is fitted.
    checkpoints : Checkpoints, optional
        Where sources that take long are kept, and taken from.

    Returns
    -------
    sources : list
        Empty where there is no evidence.
    left_out : ndarray of shape (S, n, L), or None
        What each source says about each row without having seen it.
    """
    X = with_short_positions(X)
    sources: list[Source] = []
    found: list[NDArray[np.float32]] = []
    for number, one in enumerate(asked):
        on_source(one if isinstance(one, str) else type(one).__name__)
        if isinstance(one, str):
            kept = None if checkpoints is None else checkpoints.of_source(number)
            source, left_out = _fit_named(one, X, Y, weight, seed, kept)
        else:
            source, left_out = fit_classifier(one, X, Y, weight, seed)
        sources.append(source)
        found.append(left_out.astype(np.float32))
    return sources, np.stack(found) if found else None


def _fit_named(
    name: str,
    X: Matrix,
    Y: Matrix,
    weight: NDArray[np.float64],
    seed: int,
    checkpoint: Checkpoint | None,
) -> tuple[Source, NDArray[np.float64]]:
    """A source and what it says of rows it has not seen; as it was kept, if it was."""
    found = None if checkpoint is None else checkpoint.read()
    if checkpoint is not None and found is not None:
        arrays = {key: tensor.numpy() for key, tensor in found[0].items()}
        try:
            left_out = arrays.pop("left_out")
            return KINDS[name].from_arrays(arrays, X.shape[1], Y.shape[1]), left_out
        except (KeyError, ValueError) as error:
            raise ModelFileError(
                f"{checkpoint.file} is no state of this training; delete it to begin anew"
            ) from error
    source, left_out = _NAMED[name](X, Y, weight, seed)
    if checkpoint is not None and agreed([float(checkpoint.due())])[0]:
        arrays = {**source.arrays(), "left_out": left_out}
        tensors = {k: torch.from_numpy(np.ascontiguousarray(a)) for k, a in arrays.items()}
        checkpoint.write(tensors, {})
    return source, left_out


def evidence_of_each(sources: Sequence[Source], X: Matrix) -> NDArray[np.float32]:
    """What each source says about each row, (S, n, L)."""
    X = with_short_positions(X)
    return np.stack([source.evidence(X).astype(np.float32) for source in sources])


def evidence_of(sources: Sequence[Source], X: Matrix) -> NDArray[np.float32]:
    """What the sources say together about each row, (n, L)."""
    X = with_short_positions(X)
    return in_sum([source.evidence(X) for source in sources])
