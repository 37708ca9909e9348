"""Version of the package, and of the files it writes."""

__version__ = "0.1.0"
