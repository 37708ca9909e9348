"""Label vectors best under the joint distribution, where labels cannot go one by one."""

from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpvae import joint, optimal
from mpvae.features import Matrix
from mpvae.networks import MPVAE

JointMetric: TypeAlias = Literal["example_f1", "subset"]
"""Metrics whose best answer depends on how labels go together."""

N_DRAWS = 128
_VECTORS = 4  # label vectors from each draw
_SEED = 20110913  # of the label vectors: part of the definition of a prediction


def best_answers(
    networks: Sequence[MPVAE],
    X: Matrix,
    wanted: Collection[JointMetric],
    *,
    empty_value: float = 1.0,
    on_rows: Callable[[int], None] = lambda n: None,
) -> dict[JointMetric, NDArray[np.int64]]:
    """Label vectors (n, L) with the highest expected F1, and the most probable ones.

    Parameters
    ----------
    networks : sequence of MPVAE
        The members.
    X : matrix of shape (n, D)
        Features as the networks see them.
    wanted : collection of "example_f1" and "subset"
        What answers should be best for.
    empty_value : float
        For "example_f1": see `mpvae.optimal.best_for_f1`.
    on_rows : callable
        Told the number of rows done, after each piece.
    """
    shape = X.shape[0], networks[0].B.shape[0]
    answers = {metric: np.empty(shape, np.int64) for metric in wanted}
    for piece, prob in joint.probabilities(networks, X, N_DRAWS):
        if "subset" in answers:
            answers["subset"][piece], _ = optimal.mode(prob)
        if "example_f1" in answers:
            # The same uniform numbers for every row: equal rows get equal answers.
            S, L = prob.shape[1:]
            uniform = np.random.default_rng(_SEED).random((_VECTORS, S, L))
            samples = (uniform < prob[:, None]).reshape(len(prob), _VECTORS * S, L)
            best, _ = optimal.best_for_f1(samples, empty_value=empty_value)
            answers["example_f1"][piece] = best
        on_rows(piece.stop - piece.start)
    return answers
