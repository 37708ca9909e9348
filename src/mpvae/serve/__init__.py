"""A model behind HTTP: answers as JSON, and the label explorer, a page to look at them.

Needs the extra ``serve``: ``pip install "mpvae[serve]"``.
"""

from mpvae.serve.app import make_app
from mpvae.serve.running import (
    LOCAL_NAMES,
    bind,
    is_local,
    make_server,
    read_token,
    run,
)

__all__ = [
    "LOCAL_NAMES",
    "bind",
    "is_local",
    "make_app",
    "make_server",
    "read_token",
    "run",
]
