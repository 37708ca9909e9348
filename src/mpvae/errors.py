"""What goes wrong, by name: the errors mpvae raises about data, files or settings."""

import re


def printable(text: str) -> str:
    """Text with a replacement character for what a terminal would obey rather than show."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def is_unicode(text: str) -> bool:
    """Whether a text can be written: one with half of a surrogate pair cannot."""
    return re.search("[\ud800-\udfff]", text) is None


class MPVAEError(Exception):
    """Base of all errors raised on purpose; its text states the fact, then the remedy."""


class DataError(MPVAEError, ValueError):
    """A table, matrix or file of data cannot be used as it is."""


class ConfigError(MPVAEError, ValueError):
    """A setting has a value that makes no sense."""


class ModelFileError(MPVAEError):
    """A model folder is missing, damaged, or written by an incompatible version."""
