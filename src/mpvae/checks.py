"""What is refused or warned of before a classifier is trained or loaded."""

import warnings
from numbers import Integral
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from mpvae import observed
from mpvae.config import Metric
from mpvae.errors import ConfigError
from mpvae.evidence import check_base
from mpvae.features import Matrix, listed


def check_parameters(model: Any) -> None:
    """Refuse parameters of a classifier that are not among the settings and cannot be."""
    if model.metric not in get_args(Metric):
        allowed = ", ".join(get_args(Metric))
        raise ConfigError(f"metric must be one of {allowed}, got {model.metric!r}")
    if not isinstance(model.verbose, int):
        raise ConfigError(f"verbose must be an integer, got {model.verbose!r}")
    for name in ("allow_missing_labels", "recalibrate"):
        if not isinstance(getattr(model, name), bool | np.bool_):
            raise ConfigError(f"{name} must be True or False, got {getattr(model, name)!r}")
    n_jobs = model.n_jobs
    if n_jobs is not None and (isinstance(n_jobs, bool) or not isinstance(n_jobs, Integral)):
        raise ConfigError(f"n_jobs must be None or an integer, got {n_jobs!r}")
    if n_jobs == 0:
        raise ConfigError("n_jobs must not be 0; -1 is as many processes as there are cores")
    check_base(model.base)


def warn_of_unseen(Y: Matrix, names: NDArray[Any]) -> None:
    """Warn of labels that are NaN in every row."""
    unseen = observed.never_observed(Y)
    if len(unseen):
        warnings.warn(
            f"never observed: {listed([str(names[i]) for i in unseen])}; nothing can be learnt "
            "of such a label, so leave it out",
            stacklevel=4,
        )
