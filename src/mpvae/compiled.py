"""Loops as machine code, where numba is installed.

numba is imported, and a loop compiled (once per machine and variant), on first use.
"""

import importlib.util
from collections.abc import Callable
from typing import Any, cast

available = importlib.util.find_spec("numba") is not None


def compile_loop(function: Callable[..., None], *signature: Any) -> Callable[..., None]:
    """Machine code of a loop over a span, from numba's cache on disk where there is one."""
    import numba
    from numba import types as nt

    types = nt.void(nt.int64, nt.int64, *signature)
    # Contraction alone, to multiply and add in one instruction: free reassociation would
    # cancel the number away by which `kernel_loops` rounds to an integer.
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
    try:
        made = numba.njit(types, cache=True, **options)(function)
    except (RuntimeError, OSError):  # nowhere to write, as in a read-only install
        made = numba.njit(types, **options)(function)
    return cast("Callable[..., None]", made)
