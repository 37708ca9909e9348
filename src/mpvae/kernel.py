r"""The objective's inner loop compiled for the processor, where numba is installed.

Same contract as ``losses._rows_value_and_gradient``, float32 only. One walk per row: the
draws stay in cache, lanes of the vector unit are draws, and all special functions are inline
polynomials, so that a label costs some fifty vector instructions per eight draws. With
``v = -t s / sqrt 2``, ``d = exp(-v^2)`` and ``h(a) = erfcx(a) / 2``,

.. math:: \Phi(t s) = d \, h(v) \text{ for } v > 0, \quad 1 - d \, h(-v) \text{ otherwise},

so for ``v > 0`` both the logarithm, :math:`-v^2 + \log h(v)`, and the hazard
:math:`d / \Phi = 1 / h(v)` are free of the underflowing ``d``: right however far in the tail.
With a probability floor it is :math:`\Phi` itself that cannot underflow. Floor, ranking and
entropy are compiled in only where they are asked for: without them nothing is slower.
"""

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from mpvae import compiled, kernel_loops
from mpvae.kernel_loops import BLOCK

_LARGEST_GAIN = 80  # e^gain must be a float32
_LEAST_FLOOR = 1e-9  # the product of four floors must be a normal float32


class Weights(Protocol):
    """What the kernel reads of the weights of the terms."""

    @property
    def ce(self) -> float: ...  # noqa: D102
    @property
    def rank(self) -> float: ...  # noqa: D102
    @property
    def entropy(self) -> float: ...  # noqa: D102
    @property
    def rank_gain(self) -> float: ...  # noqa: D102
    @property
    def floor(self) -> float: ...  # noqa: D102


def supports(v_mean: Tensor, weights: Weights) -> bool:
    """Whether the kernel can take these: else the torch code is the one to call."""
    return (
        compiled.available
        and v_mean.dtype == torch.float32
        and v_mean.device.type == "cpu"
        and v_mean.is_contiguous()
        and (weights.floor == 0 or weights.floor >= _LEAST_FLOOR)
        and weights.rank_gain <= _LARGEST_GAIN
    )


def rows_value_and_gradient(
    v_mean: Tensor,
    v_draw: Tensor,
    t: Tensor,
    row_weight: Tensor,
    weights: Weights,
    antithetic: bool,
    share: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Terms of some rows, and the gradient of their weighted sum.

    Parameters
    ----------
    v_mean : Tensor of shape (n, R, L)
        ``-t m / sqrt 2`` of each branch.
    v_draw : Tensor of shape (G, H, L)
        ``-B u / sqrt 2`` of each draw.
    t : Tensor of shape (n, L)
        Signs of the labels: 1, -1, or 0 where not observed.
    row_weight : Tensor of shape (n,)
        Factor of each row in the sum.
    weights : Weights
        Factor of each term; `supports` says which can be taken.
    antithetic : bool
        Use ``-v_draw`` beside ``v_draw``.
    share : int
        Rows, one after the other, that share draws.

    Returns
    -------
    terms : Tensor of shape (3, R, n)
        Cross-entropy, ranking, entropy; unweighted, and zero where not computed.
    dv_mean : Tensor of shape (n, R, L)
        Gradient of ``sum_rows row_weight * sum_terms weight * term`` in ``v_mean``.
    dv_draw : Tensor of shape (G, H, L)
        The same in ``v_draw``. Where ``t`` is 0 a row adds nothing to either; both are the
        same bits whatever the number of threads.
    """
    n, R, _ = v_mean.shape
    terms = v_mean.new_zeros(3, R, n)
    dv_mean, dv_draw = torch.empty_like(v_mean), torch.zeros_like(v_draw)
    arrays = [x.detach().contiguous().numpy() for x in (v_mean, v_draw, t, row_weight)]
    numbers = [np.float32(x) for x in (weights.ce, weights.rank_gain)]
    given = [weights.rank, weights.floor, weights.entropy]
    optional = [np.float32(x) if x else None for x in given]
    out = [x.numpy() for x in (terms, dv_mean, dv_draw)]
    loop = _rows_loop(*(x is not None for x in optional))
    _in_parts(loop, len(v_draw), *arrays, *numbers, *optional, antithetic, share, *out)
    return terms, dv_mean, dv_draw


def normal_draws(shape: Sequence[int], seed: int) -> Tensor:
    """Standard normal numbers, float32, a function of ``shape`` and ``seed`` alone.

    Every 4096 numbers come from 32 generators xoshiro128++ side by side, seeded by splitmix64
    from the seed and the position, through the transformation of Box and Muller. The largest
    possible number is 6.7.
    """
    n = math.prod(shape)
    n_blocks = -(-n // BLOCK)
    out = torch.empty(n_blocks * BLOCK)
    _in_parts(_normal_loop(), n_blocks, np.uint64(seed % 2**64), out.numpy())
    return out[:n].view(*shape)


def _in_parts(function: Callable[..., None], n: int, *arguments: object) -> None:
    """Call ``function(start, stop, ...)`` on equal parts of ``range(n)``, a thread for each."""
    parts = min(torch.get_num_threads(), n)
    if parts < 2:
        function(0, n, *arguments)
        return
    todo = [(n * k // parts, n * (k + 1) // parts) for k in range(parts)]
    left = set(todo)
    errors: list[BaseException] = []

    def work(_: object = None) -> None:
        try:
            while todo:
                part = todo.pop()  # atomic
                function(*part, *arguments)
                left.discard(part)
        except IndexError:  # another thread was faster
            return
        except BaseException as error:  # noqa: BLE001  a C caller would drop it: Ctrl-C, above all
            errors.append(error)

    team = _torch_team()
    if team is None:
        others = [_pool(parts - 1).submit(work) for _ in range(parts - 1)]
        work()
        for other in others:
            other.result()
    else:
        team(_TASK(work), None, parts, 0)
    if errors:
        raise errors[0]
    for part in left:  # a thread that was interrupted before it began
        function(*part, *arguments)


_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _torch_team() -> Callable[..., None] | None:
    """Torch's own OpenMP threads, as a function that runs a task on each of them.

    For some milliseconds after its last operation torch's threads spin, waiting for the next.
    Threads of any other pool would share the cores with them: measured, the second thread
    then gains nothing. None where torch has no OpenMP of this interface.
    """
    try:
        # The symbol is looked up in torch's library and the runtime it is linked to.
        library = Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"
        team: Any = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return None
    team.argtypes = [_TASK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    team.restype = None
    return cast("Callable[..., None]", team)


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="mpvae-kernel")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


@cache
def _rows_loop(rank: bool, floor: bool, entropy: bool) -> Callable[..., None]:
    """Machine code of the objective, with or without a floor and either of two terms."""
    from numba import types as nt

    cube, table, number = nt.float32[:, :, ::1], nt.float32[:, ::1], nt.float32
    optional = [number if given else nt.none for given in (rank, floor, entropy)]
    inputs = (cube, cube, table, number[::1], number, number, *optional)
    return compiled.compile_loop(
        kernel_loops.rows_loop, *inputs, nt.boolean, nt.int64, cube, cube, cube
    )


@cache
def _normal_loop() -> Callable[..., None]:
    """Machine code of the normal numbers."""
    from numba import types as nt

    return compiled.compile_loop(kernel_loops.normal_loop, nt.uint64, nt.float32[::1])
