"""Rows to learn from or to be judged on, and how a batch of them becomes tensors."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpvae.features import Matrix, beside, dense


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Features, labels and weights of some rows."""

    X: Matrix
    Y: Matrix
    weight: NDArray[np.float64]
    evidence: NDArray[np.float32] | None = None  # (n, L), of models that have not seen the row

    def __len__(self) -> int:
        return len(self.weight)

    def take(self, index: NDArray[np.int64]) -> "Rows":
        """Those rows alone."""
        evidence = None if self.evidence is None else self.evidence[index]
        return Rows(self.X[index], self.Y[index], self.weight[index], evidence)

    def with_evidence(self) -> Matrix:
        """Features, and the evidence, if any, in L more columns."""
        return self.X if self.evidence is None else beside(self.X, self.evidence)


def rows_tensor(X: Matrix, rows: NDArray[np.int64] | slice, like: Tensor) -> Tensor:
    """Some rows of a dense or sparse matrix, dense, with the dtype and device of ``like``."""
    return torch.as_tensor(dense(X[rows])).to(like)
