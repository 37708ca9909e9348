"""A model on disk: a folder with weights in safetensors and all else in JSON. No pickle.

The folder holds ``manifest.json`` and the two files it names, each with its size and SHA-256.
The manifest is written last and replaced atomically: whoever looks, at any moment, finds the
old model or the new one, whole. Reading checks sizes before content and hashes before use.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as serialise_tensors

from mpvae.errors import ModelFileError, printable
from mpvae.opening import open_regular

SCHEMA = 1
"""Number of the layout; a model of a newer one is refused by name."""
MANIFEST = "manifest.json"
TRAINING = ".training"
"""Folder inside that of a model, for the state of its training while that lasts."""
_OWN_NAMES = r"(model-[0-9a-f]{12}\.json|weights-[0-9a-f]{12}\.safetensors|\.mpvae-.*\.tmp)"
MAX_MANIFEST_BYTES = 64 * 1024
MAX_JSON_BYTES = 512 * 1024**2
MAX_TENSOR_BYTES = 16 * 1024**3

Tensors = dict[str, NDArray[Any]]


def write_model(folder: str | Path, description: dict[str, Any], tensors: Tensors) -> None:
    """Write a model into a folder, replacing a model that stands there.

    Parameters
    ----------
    folder : path
        Made if absent. A folder that holds other things than a model is refused.
    description : dict
        Everything but the tensors, as JSON values.
    tensors : dict of str to ndarray
        The weights.
    """
    folder = Path(folder)
    text = json.dumps(description, allow_nan=False, ensure_ascii=False, indent=1).encode()
    contents = {
        "model": (text, ".json"),
        "weights": (serialise_tensors(tensors), ".safetensors"),
    }
    files = {}
    new: list[Path] = []
    try:
        refuse_foreign(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for role, (content, suffix) in contents.items():
            digest = hashlib.sha256(content).hexdigest()
            name = f"{role}-{digest[:12]}{suffix}"
            if not (folder / name).exists():
                new.append(folder / name)
            write_atomically(folder / name, content)
            files[role] = {"name": name, "bytes": len(content), "sha256": digest}
        manifest = {"format": "mpvae", "schema": SCHEMA, "files": files}
        write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        with contextlib.suppress(OSError, ValueError):
            for path in new:  # no manifest names them
                path.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(
            f"cannot write the model to {folder}: {reason}; a model that stood there still "
            "does; make room, or give another folder"
        ) from error
    keep = {MANIFEST, *(entry["name"] for entry in files.values())}
    with contextlib.suppress(OSError):  # the model stands; a leftover does no harm
        for path in folder.iterdir():
            if path.name not in keep and _is_ours(path):
                path.unlink(missing_ok=True)


def read_model(folder: str | Path) -> tuple[dict[str, Any], Tensors]:
    """Description and tensors of a model folder, verified against its manifest."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelFileError(
            f"{folder} is not a folder; give the one `save` or `mpvae fit` wrote"
        )
    if (folder / TRAINING).is_dir() and not (folder / MANIFEST).exists():
        raise ModelFileError(
            f"{folder} holds a training that has not ended, and no model yet; if it was "
            "killed, the same `mpvae fit` with --resume goes on"
        )
    manifest = _parse_json(_read(folder / MANIFEST, MAX_MANIFEST_BYTES), folder / MANIFEST)
    schema = manifest.get("schema")
    if manifest.get("format") != "mpvae" or type(schema) is not int or schema < 1:
        raise ModelFileError(f"{folder / MANIFEST} is not the manifest of an mpvae model")
    if schema > SCHEMA:
        raise ModelFileError(
            f"{folder} has schema {told(schema)}, this version reads up to {SCHEMA}; "
            "update mpvae"
        )
    text = _verified(folder, manifest, "model", MAX_JSON_BYTES)
    weights = _verified(folder, manifest, "weights", MAX_TENSOR_BYTES)
    try:
        tensors = parse_tensors(weights)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ModelFileError(f"{folder}: the weights are not valid safetensors") from error
    return _parse_json(text, folder), tensors


def _verified(folder: Path, manifest: dict[str, Any], role: str, limit: int) -> bytes:
    files = manifest.get("files")
    entry = files.get(role) if isinstance(files, dict) else None
    entry = entry if isinstance(entry, dict) else {}
    name = entry.get("name")
    if not isinstance(name, str) or not re.fullmatch(rf"{role}-[0-9a-f]{{12}}\.[a-z]+", name):
        raise ModelFileError(f"{folder / MANIFEST} names no valid {role} file")
    size = entry.get("bytes")
    if type(size) is not int:
        raise ModelFileError(
            f"{folder / name}: its manifest says {told(size)} bytes, no number; copy the "
            "folder again"
        )
    content = _read(folder / name, limit, size)
    if hashlib.sha256(content).hexdigest() != entry.get("sha256"):
        raise ModelFileError(
            f"{folder / name} was changed after it was written; copy the folder again"
        )
    return content


def told(value: object) -> str:
    """What an error or a value says, on one short line, without what a terminal would obey."""
    return printable(" ".join(str(value).split())[:200])


def _read(path: Path, limit: int, declared: object = None) -> bytes:
    """Content of a file; its size is compared with limit and manifest before it is read."""
    try:
        if path.is_symlink() and path.resolve().parent != path.parent.resolve():
            raise ModelFileError(
                f"{path} is a link that leads out of its folder; copy the file itself into it"
            )
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise ModelFileError(f"{path} has {size} bytes, more than the limit of {limit}")
            if declared is not None and size != declared:
                raise ModelFileError(
                    f"{path} has {size} bytes, its manifest says {told(declared)}; the copy is "
                    "incomplete, copy the folder again"
                )
            return stream.read(size + 1)  # read(limit) would take that much memory first
    except FileNotFoundError as error:
        raise ModelFileError(
            f"{path.parent} has no {path.name}: not a complete model"
        ) from error
    except RuntimeError as error:  # of Path.resolve, up to Python 3.12; then OSError
        raise ModelFileError(
            f"cannot read {path}: it is a link that leads to itself; copy the file there"
        ) from error
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from error


def _parse_json(content: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(
            content.decode(),
            parse_constant=_refuse_constant,
            parse_float=_finite_number,
            object_pairs_hook=_each_once,
        )
        if re.search(rb"\\u[dD]", content):  # where half of a surrogate pair could stand
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {told(error)}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} does not hold a JSON object")
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):  # two readers could see two different models
        raise ValueError("a name stands twice in one object")
    return found


def _finite_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):  # 1e999
        raise ValueError(f"{text} is too large a number")
    return value


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; once this returns, a power cut does not undo it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".mpvae-", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)  # mkstemp makes it private; a model is to be shared
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _make_durable(path.parent)


def _make_durable(folder: Path) -> None:
    """Bring the names in a folder to the disk: that of a renamed file is not there yet."""
    if os.name == "nt":
        return  # folders cannot be opened there
    with contextlib.suppress(OSError):  # not every file system can; the content is safe
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_temporary(folder: Path) -> None:
    """Delete what writes that were killed have left in a folder."""
    for path in folder.glob(".mpvae-*.tmp"):
        path.unlink(missing_ok=True)


def refuse_foreign(folder: Path) -> None:
    """Raise where a model must not be written: over a file, or among files of others."""
    if folder.exists() and not folder.is_dir():
        raise ModelFileError(f"{folder} is a file; give a folder for the model")
    if folder.is_dir() and not (folder / MANIFEST).exists():
        foreign = [
            path.name
            for path in folder.iterdir()
            if not _is_ours(path) and path.name != TRAINING
        ]
        if foreign:
            raise ModelFileError(
                f"{folder} holds other files ({', '.join(sorted(foreign)[:3])}); "
                "give a new or empty folder, or one with a model"
            )


def _is_ours(path: Path) -> bool:
    return re.fullmatch(_OWN_NAMES, path.name) is not None
