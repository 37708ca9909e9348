"""Several processes that train one network: rows are shared out, gradients added up.

Each process takes its share of every batch; the sum of the gradients, and so the weights, are
the same in all of them. `torchrun` starts the processes, torch.distributed connects them
(gloo between CPUs, nccl between GPUs).
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from mpvae.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Team:
    """Processes at work on one network, and which of them this one is."""

    rank: int = 0
    size: int = 1

    @property
    def writes(self) -> bool:
        """Whether this process is the one that shows progress and writes files."""
        return self.rank == 0


def team() -> Team:
    """The processes that were joined; this one alone, if none were."""
    if dist.is_available() and dist.is_initialized():
        return Team(dist.get_rank(), dist.get_world_size())
    return Team()


@contextmanager
def joined(device: str = "cpu") -> Iterator[Team]:
    """Join the processes that `torchrun` has started, if it has, for the time of the block."""
    size = os.environ.get("WORLD_SIZE", "1")
    if not size.isdecimal() or int(size) < 2 or dist.is_initialized():
        yield team()
        return
    backend = "nccl" if device.startswith("cuda") else "gloo"
    try:
        dist.init_process_group(backend)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"WORLD_SIZE is {size}, but the processes cannot be joined ({error}); start them "
            "with torchrun"
        ) from error
    try:
        yield team()
    finally:
        dist.destroy_process_group()


def share_of(batch: int, of: Team) -> slice:
    """Rows of a batch that this process takes; of fewer rows than processes all."""
    if batch < of.size:
        return slice(0, batch)
    return slice(batch * of.rank // of.size, batch * (of.rank + 1) // of.size)


def add_up(parameters: Iterable[Tensor], weight: Tensor, terms: Sequence[Tensor]) -> Tensor:
    """Gradients and loss terms of the whole batch, from those of the shares.

    Parameters
    ----------
    parameters : tensors
        Their gradients, means over the rows of this process, become means over all rows.
    weight : Tensor of shape ()
        Weight of the rows of this process.
    terms : sequence of tensors of shape ()
        Means over the rows of this process.

    Returns
    -------
    Tensor of shape (terms,)
        Means over all rows.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([*(g.reshape(-1) for g in gradients), torch.stack(tuple(terms)).detach()])
    everything = torch.cat([weight * flat, weight[None]])
    dist.all_reduce(everything)
    everything = everything[:-1] / everything[-1]
    begin = 0
    for g in gradients:
        g.copy_(everything[begin : begin + g.numel()].view_as(g))
        begin += g.numel()
    return everything[begin:]


def agreed(values: Sequence[float | None]) -> list[float | None]:
    """Numbers as the first process has them; None stays None."""
    if team().size == 1:
        return list(values)
    told = torch.tensor([float("nan") if v is None else v for v in values], dtype=torch.float64)
    dist.broadcast(told, 0)
    return [None if v is None else float(t) for v, t in zip(values, told, strict=True)]
