"""A model behind HTTP: answers as JSON, and the label explorer, a page to look at them.

Needs the extra ``serve``: ``pip install "mpvae[serve]"``.
"""

from mpvae.serve.app import make_app

__all__ = ["make_app"]
