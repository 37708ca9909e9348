"""Rows to learn from or to be judged on, and how a batch of them becomes tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpvae.distributed import share_of, team
from mpvae.features import Matrix, beside, dense
from mpvae.observed import prevalence

FARTHEST = 5.0
"""On the probit scale: evidence is never certain."""


class Batch(NamedTuple):
    """Features (N, D), labels (N, L) and weights (N,) of some rows."""

    x: Tensor
    y: Tensor
    weight: Tensor
    number: NDArray[np.int64] | None = None
    """Of each row in the table that was given, (N,), where it is known."""


class Learnt(Protocol):
    """Rows to learn from, wherever they are."""

    @property
    def n_features(self) -> int: ...  # noqa: D102
    @property
    def n_labels(self) -> int: ...  # noqa: D102
    @property
    def sample(self) -> "Rows":
        """Some of the rows, or all, in memory."""
        ...

    def __len__(self) -> int: ...

    def batches(
        self, size: int, like: Tensor, generator: torch.Generator | None = None
    ) -> Iterator[Batch]:
        """All rows once, in random order; tensors with dtype and device of ``like``.

        Of several processes each gets its share of every batch; the order comes from the
        generator, which is in the same state in all of them.
        """
        ...

    def prevalence(self) -> NDArray[np.float64]:
        """Share of the rows that have each label, see `observed.prevalence`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Features, labels and weights of some rows, in memory."""

    X: Matrix
    Y: Matrix
    weight: NDArray[np.float64]
    evidence: NDArray[np.float32] | None = None  # (S, n, L), of models that have not seen it
    number: NDArray[np.int64] | None = None  # (n,), in the table that was given

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def n_features(self) -> int:
        """Columns of X."""
        return int(self.X.shape[1])

    @property
    def n_labels(self) -> int:
        """Columns of Y."""
        return int(self.Y.shape[1])

    @property
    def sample(self) -> "Rows":
        """All of them."""
        return self

    def batches(
        self, size: int, like: Tensor, generator: torch.Generator | None = None
    ) -> Iterator[Batch]:
        """All rows once, in random order; of several processes each gets its share."""
        order = torch.randperm(len(self), generator=generator).numpy()
        us = team()
        for start in range(0, len(self), size):
            index = order[start : start + size]
            index = index[share_of(len(index), us)]
            yield Batch(
                rows_tensor(self.X, index, like),
                rows_tensor(self.Y, index, like),
                torch.as_tensor(self.weight[index]).to(like),
                None if self.number is None else self.number[index],
            )

    def prevalence(self) -> NDArray[np.float64]:
        """Share of the rows that have each label, see `observed.prevalence`."""
        return prevalence(self.Y, self.weight)

    def contents(self) -> tuple[Matrix | NDArray[np.floating] | None, ...]:
        """All that is in the rows."""
        return self.X, self.Y, self.weight, self.evidence

    def take(self, index: NDArray[np.int64]) -> "Rows":
        """Those rows alone."""
        evidence = None if self.evidence is None else self.evidence[:, index]
        number = None if self.number is None else self.number[index]
        return Rows(self.X[index], self.Y[index], self.weight[index], evidence, number)

    def with_evidence(self, worth: NDArray[np.float64] | None) -> Matrix:
        """Features, and evidence of worth (S, L), if there is any, in L more columns."""
        if self.evidence is None or worth is None:
            return self.X
        return beside(self.X, in_sum(worth[:, None] * self.evidence))


def most_judged(n_labels: int) -> int:
    """Rows a member is judged on, at most: with very many labels some are enough."""
    return max(100, 2**22 // n_labels)


def in_sum(
    evidence: Sequence[NDArray[np.floating]] | NDArray[np.floating],
) -> NDArray[np.float32]:
    """What several sources say together, (n, L): the sum, and never certain."""
    total = np.clip(np.sum(evidence, axis=0), -FARTHEST, FARTHEST)
    return np.asarray(total, np.float32)


def rows_tensor(X: Matrix, rows: NDArray[np.int64] | slice, like: Tensor) -> Tensor:
    """Some rows of a dense or sparse matrix, dense, with the dtype and device of ``like``."""
    return torch.as_tensor(dense(X[rows])).to(like)
