"""How many threads torch works with: one where the work is too small to share."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PAYS = 4e8
"""Operations, between two points where threads meet, from which a second one pays.

Measured on two cores. With fewer it gains nothing, and on a busy machine every meeting is a
wait for a thread that has no core.
"""


@contextmanager
def threads_for(operations: float, reading: int = 0) -> Iterator[None]:
    """One thread inside the block where so few operations are not worth sharing.

    ``reading`` other threads are at work all the time: their cores are left to them.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if operations < PAYS else max(1, before - reading))
    try:
        yield
    finally:
        torch.set_num_threads(before)
