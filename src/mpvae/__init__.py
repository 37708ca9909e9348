"""Multi-label classification that knows how labels hang together."""

__version__ = "0.1.0"

from mpvae.errors import ConfigError, DataError, ModelFileError, MPVAEError
from mpvae.estimator import MPVAEClassifier, load_model

__all__ = [
    "ConfigError",
    "DataError",
    "MPVAEClassifier",
    "MPVAEError",
    "ModelFileError",
    "load_model",
]
