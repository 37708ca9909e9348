"""Rows to learn from or to be judged on, and how a batch of them becomes tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpvae.features import Matrix, beside, dense

FARTHEST = 5.0
"""On the probit scale: evidence is never certain."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Features, labels and weights of some rows."""

    X: Matrix
    Y: Matrix
    weight: NDArray[np.float64]
    evidence: NDArray[np.float32] | None = None  # (S, n, L), of models that have not seen it

    def __len__(self) -> int:
        return len(self.weight)

    def take(self, index: NDArray[np.int64]) -> "Rows":
        """Those rows alone."""
        evidence = None if self.evidence is None else self.evidence[:, index]
        return Rows(self.X[index], self.Y[index], self.weight[index], evidence)

    def with_evidence(self, worth: NDArray[np.float64] | None) -> Matrix:
        """Features, and evidence of worth (S, L), if there is any, in L more columns."""
        if self.evidence is None or worth is None:
            return self.X
        return beside(self.X, in_sum(worth[:, None] * self.evidence))


def in_sum(
    evidence: Sequence[NDArray[np.floating]] | NDArray[np.floating],
) -> NDArray[np.float32]:
    """What several sources say together, (n, L): the sum, and never certain."""
    total = np.clip(np.sum(evidence, axis=0), -FARTHEST, FARTHEST)
    return np.asarray(total, np.float32)


def rows_tensor(X: Matrix, rows: NDArray[np.int64] | slice, like: Tensor) -> Tensor:
    """Some rows of a dense or sparse matrix, dense, with the dtype and device of ``like``."""
    return torch.as_tensor(dense(X[rows])).to(like)
