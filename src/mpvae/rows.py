"""Rows to learn from or to be judged on, and how a batch of them becomes tensors."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpvae.features import Matrix, dense


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Features, labels and weights of some rows."""

    X: Matrix
    Y: Matrix
    weight: NDArray[np.float64]
    with_evidence: bool = False  # the last columns of X are evidence about each label

    def __len__(self) -> int:
        return len(self.weight)

    def take(self, index: NDArray[np.int64]) -> "Rows":
        """Those rows alone."""
        return replace(self, X=self.X[index], Y=self.Y[index], weight=self.weight[index])


def rows_tensor(X: Matrix, rows: NDArray[np.int64] | slice, like: Tensor) -> Tensor:
    """Some rows of a dense or sparse matrix, dense, with the dtype and device of ``like``."""
    return torch.as_tensor(dense(X[rows])).to(like)
