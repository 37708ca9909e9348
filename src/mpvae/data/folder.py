"""Where data sets lie that are too large, or not free enough, to come with the package."""

import os
from pathlib import Path


def data_folder() -> Path | None:
    """Folder named by the environment variable ``MPVAE_DATA``; ``None`` if it is not set."""
    folder = os.environ.get("MPVAE_DATA")
    return Path(folder) if folder else None
