"""State of a training on disk, so that one that was killed goes on where it was.

A file holds the state of one network's training after some epoch: tensors in safetensors, all
else as JSON in its header. It is replaced atomically, so that whoever looks finds the state
before or after, whole. It also holds a digest of data and settings: a training that asks
anything else does not take it up.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mpvae.distributed import team
from mpvae.errors import ModelFileError
from mpvae.features import Matrix
from mpvae.model_file import told, write_atomically
from mpvae.opening import open_regular

State: TypeAlias = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors by name, and JSON values."""

EVERY = 2.0
"""Seconds between two writes, at least: more would slow short epochs down."""
_PREFIX, _SUFFIX = "training-", ".safetensors"


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Kept:
    """Where the state of a training is kept, and who is told when it was written."""

    folder: Path
    on_saved: Callable[[], None] = _nothing
    """Called in every process that takes part."""


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The file of one network's training."""

    file: Path
    question: str
    on_saved: Callable[[], None] = _nothing
    last: float = field(default_factory=time.monotonic)

    def due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() - self.last >= EVERY

    def read(self) -> State | None:
        """What was written last, if anything was."""
        try:
            open_regular(self.file).close()  # safe_open would wait for a pipe
            with safe_open(self.file, framework="pt") as stored:
                facts = dict(json.loads(stored.metadata()["facts"]))
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
                question = facts.pop("question")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (
            OSError,
            SafetensorError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise ModelFileError(
                f"{self.file} is not the state of a training ({told(error)}); delete it to "
                "begin anew"
            ) from error
        if question != self.question:
            raise ModelFileError(
                f"{self.file.parent} holds a training with other data or settings; give "
                "another folder, or delete this one to begin anew"
            )
        return tensors, facts

    def write(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Replace what was written last; of several processes one does."""
        if team().writes:
            text = json.dumps(facts | {"question": self.question})
            whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
            try:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self.file, save(whole, {"facts": text}))
            except OSError as error:
                raise ModelFileError(
                    f"cannot write the state of the training to {self.file.parent}: "
                    f"{error.strerror}; give another folder"
                ) from error
        self.last = time.monotonic()
        self.on_saved()


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoints:
    """A folder with a file for every network."""

    kept: Kept
    question: str

    def of(self, network: int) -> Checkpoint:
        """The file of one network."""
        name = f"{_PREFIX}{network:03d}{_SUFFIX}"
        return Checkpoint(self.kept.folder / name, self.question, self.kept.on_saved)

    def clear(self) -> None:
        """Forget all: the training is over."""
        if not team().writes:
            return
        for file in self.kept.folder.glob(f"{_PREFIX}[0-9][0-9][0-9]{_SUFFIX}"):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty, or not there
            self.kept.folder.rmdir()


def question_of(settings: object, arrays: Iterable[Matrix | NDArray[Any] | None]) -> str:
    """Digest of settings, told by their repr, and of data."""
    digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for array in arrays:
        if array is None:
            digest.update(b"none")
            continue
        names = ("data", "indices", "indptr") if sp.issparse(array) else ()
        parts = [getattr(array, name) for name in names] or [np.asarray(array)]
        for part in parts:
            digest.update(f"{part.dtype}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
