"""State of a training on disk, so that one that was killed goes on where it was.

A file holds the state of one network's training after some epoch, or a base learner that is
done: tensors in safetensors, all else as JSON in its header. It is replaced atomically, so
that whoever looks finds the state before or after, whole. It also holds a digest of data and
settings: a training that asks anything else does not take it up.

A folder of such files belongs to one training at a time: a lock says so, which the system
takes back when its process ends, in whatever way.
"""

import contextlib
import hashlib
import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mpvae.distributed import agreed, team
from mpvae.errors import ModelFileError
from mpvae.features import Matrix
from mpvae.model_file import remove_temporary, told, write_atomically
from mpvae.opening import open_regular

State: TypeAlias = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors by name, and JSON values."""

EVERY = 2.0
"""Seconds between two writes, at least: more would slow short epochs down."""
_USUAL = 0.1  # seconds a write takes at most; after a longer one the pause is longer too
_NETWORK, _SOURCE = "training-{:03d}.safetensors", "base-{:03d}.safetensors"
_STATES = ("training-[0-9][0-9][0-9].safetensors", "base-[0-9][0-9][0-9].safetensors")
_LOCK, _OWNER = "training.lock", "training.owner"


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Kept:
    """Where the state of a training is kept, and who is told when it was written."""

    folder: Path
    on_saved: Callable[[], None] = _nothing
    """Called in every process that takes part."""
    found: bool = False
    """Whether a training that did not end had left its state there."""

    def clear(self) -> None:
        """Forget all: the training is over."""
        if team().writes:
            for file in _states(self.folder):
                file.unlink(missing_ok=True)


@contextmanager
def keeping(folder: Path, *, resume: bool = True) -> Iterator[Kept]:
    """A folder for the state of a training, for this training alone while the block lasts.

    It is made if absent and, when nothing is left in it, removed. What a training that did not
    end has left there is kept or, without ``resume``, deleted. Of several processes that train
    together the first one sees to all this.

    Raises
    ------
    ModelFileError
        When another training is at work there, or nothing can be written.
    """
    with ExitStack() as stack:
        kept, fault = Kept(folder), None
        if team().writes:
            try:
                kept = stack.enter_context(_held(folder, resume))
            except ModelFileError as error:
                fault = error
        # Also: nobody looks for a state before the first has made up its mind.
        if agreed([float(fault is not None)])[0]:
            raise fault or ModelFileError(f"the first process cannot use {folder}; see there")
        yield kept


@contextmanager
def _held(folder: Path, resume: bool) -> Iterator[Kept]:
    made = [path for path in folder.parents if not path.exists()]
    lock = FileLock(folder / _LOCK)
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        who = _owner(folder) or "it has just begun"
        raise ModelFileError(
            f"{folder} is in use by another training ({who}); wait for its end, or give "
            "another folder"
        ) from None
    except OSError as error:
        _remove_empty(folder, *made)
        raise _unwritable(folder, error) from error
    try:
        try:
            remove_temporary(folder)
            kept = Kept(folder, found=bool(_states(folder)))
            if not resume:
                kept.clear()
            write_atomically(folder / _OWNER, owner.encode())  # fails where the disk is full
        except OSError as error:
            raise _unwritable(folder, error) from error
        yield kept
    finally:
        with contextlib.suppress(OSError):
            remove_temporary(folder)
            for name in (_OWNER, _LOCK):
                (folder / name).unlink(missing_ok=True)
        lock.release()
        _remove_empty(folder, *made)


def _states(folder: Path) -> list[Path]:
    return [file for pattern in _STATES for file in folder.glob(pattern)]


def _owner(folder: Path) -> str:
    try:
        return (folder / _OWNER).read_text()
    except OSError:
        return ""


def _remove_empty(*folders: Path) -> None:
    with contextlib.suppress(OSError):  # not empty, or not there
        for folder in folders:
            folder.rmdir()


def _unwritable(folder: Path, error: OSError) -> ModelFileError:
    return ModelFileError(
        f"cannot write the state of the training to {folder}: {error.strerror or error}; make "
        "room, or give another folder"
    )


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The file of one network's training, or of one base learner."""

    file: Path
    question: str
    kept: Kept
    begun: float  # when the whole training was
    every: float = field(default_factory=lambda: EVERY)
    last: float = field(default_factory=time.monotonic)
    took: float = 0.0  # seconds, the last write

    def due(self) -> bool:
        """Whether it is time to write."""
        pause = self.every * max(1.0, self.took / _USUAL)
        return time.monotonic() - self.last >= pause

    def lasts(self) -> bool:
        """Whether the training as a whole has taken long enough to keep what is finished."""
        return time.monotonic() - self.begun >= self.every

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
                "begin anew (mpvae fit: leave out --resume)"
            ) from error
        if question != self.question:
            raise ModelFileError(
                f"{self.file.parent} holds a training with other data or settings; give "
                "another folder, or delete this one to begin anew (mpvae fit: leave out "
                "--resume)"
            )
        return tensors, facts

    def write(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Replace what was written last; of several processes one does.

        Where that cannot be done a warning says so, and the training goes on: its result is
        what is wanted.
        """
        start = time.monotonic()
        if team().writes:
            text = json.dumps(facts | {"question": self.question})
            whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
            try:
                write_atomically(self.file, save(whole, {"facts": text}))
            except OSError as error:
                warnings.warn(
                    f"cannot write the state of the training to {self.file.parent}: "
                    f"{error.strerror}; the training goes on, but could not be resumed from "
                    "here: make room, or the folder writable",
                    stacklevel=2,
                )
        self.last = time.monotonic()
        self.took = self.last - start
        self.kept.on_saved()


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoints:
    """A folder with a file for every network and every base learner."""

    kept: Kept
    question: str
    begun: float = field(default_factory=time.monotonic)

    def of(self, network: int) -> Checkpoint:
        """The file of one network."""
        return self._file(_NETWORK.format(network))

    def of_source(self, number: int) -> Checkpoint:
        """The file of one base learner."""
        return self._file(_SOURCE.format(number))

    def _file(self, name: str) -> Checkpoint:
        return Checkpoint(self.kept.folder / name, self.question, self.kept, self.begun)


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
