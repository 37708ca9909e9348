"""Multi-label classification that knows how labels hang together."""

from mpvae.errors import ConfigError, DataError, ModelFileError, MPVAEError
from mpvae.estimator import MPVAEClassifier, load_model
from mpvae.version import __version__

__all__ = [
    "ConfigError",
    "DataError",
    "MPVAEClassifier",
    "MPVAEError",
    "ModelFileError",
    "__version__",
    "load_model",
]
